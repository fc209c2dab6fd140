"""Every parameter of any module, in the layer that owns it, and the matrices among them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn.utils import parametrize

from isthmus._checks import fail
from isthmus.diagnosis.effective_weights import effective, shape_of, tensors_of, type_name, why_not
from isthmus.diagnosis.weight_parts import WeightPart, kind_of, layout_of, parts_of


@dataclass(frozen=True)
class WeightedLayer:
    """A submodule that owns parameters.

    Attributes
    ----------
    name : str
        In ``named_modules``; empty for the module itself.
    kind : str
        ``"linear"``, ``"convolution"``, ``"transposed convolution"``, ``"embedding"``, ``"attention"``,
        ``"recurrent"``, ``"bilinear"``, ``"leaky step"``, ``"norm"`` or ``"parameters"`` (those of a module of another
        type).
    type_name : str
        The class.
    layout : {"channels-first", "last"}
        Where the features of its output are.
    parts : tuple of WeightPart
        Its matrices.
    parameters : tuple of str
        Full names of the parameters that belong to this layer and to no other one.
    shared_with : tuple of str
        Other full names under which these same parameters appear.
    note : str
        Parameters that are not a matrix, that were not computed or that belong to an earlier layer.
    """

    name: str
    kind: str
    type_name: str
    layout: str
    parts: tuple[WeightPart, ...]
    parameters: tuple[str, ...]
    shared_with: tuple[str, ...]
    note: str


def weighted_layers(module: nn.Module) -> list[WeightedLayer]:
    """Every submodule that owns parameters, in the order of ``named_modules``: no parameter is left out.

    A parameter with several names (tied weights) belongs to the layer where it comes first; later layers that use it
    are listed with a note. Weights under parametrisations, weight norm, spectral norm or pruning are the effective
    ones; those of a leaky ResNet are W, not the parameters √ρ·W. The output projection inside
    ``nn.MultiheadAttention`` belongs to the attention: PyTorch never calls it.
    """
    if not isinstance(module, nn.Module):
        fail("weighted_layers", "`module` must be a torch.nn.Module", type(module).__name__, "Pass the network.")
    names: dict[Tensor, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    layers, taken, inside = [], dict[Tensor, str](), set[nn.Module]()
    for name, layer in module.named_modules():
        if layer in inside:
            continue
        owners = {"": layer}
        if isinstance(layer, nn.MultiheadAttention):
            owners["out_proj."] = layer.out_proj
            inside.update(layer.out_proj.modules())
        if _is_quantised(layer):
            inside.update(layer.modules())
        for owner in owners.values():
            if parametrize.is_parametrized(owner):
                inside.update(owner.get_submodule("parametrizations").modules())
        found = _layer(name, layer, owners, names, taken)
        if found is not None:
            layers.append(found)
    return layers


def _layer(
    name: str,
    layer: nn.Module,
    owners: dict[str, nn.Module],
    names: dict[Tensor, list[str]],
    taken: dict[Tensor, str],
) -> WeightedLayer | None:
    """One entry, or None for a module without parameters; marks the parameters as ``taken``."""
    prefix = f"{name}." if name else ""
    parts: list[WeightPart] = []
    notes: list[str] = []
    own: dict[str, Tensor] = {}
    kind, seen = kind_of(layer), False
    for inner, owner in owners.items():
        for tensor_name, stored in tensors_of(owner).items():
            seen = True
            parameters = {f"{prefix}{inner}{local}": owner.get_parameter(local) for local in stored}
            new = {full: parameter for full, parameter in parameters.items() if parameter not in taken}
            shown = f"{inner}{tensor_name}"
            if not new:
                first = next(iter(parameters.values()))
                notes.append(f"{shown} is {taken[first]} (tied): see there")
                continue
            taken |= {parameter: full for full, parameter in new.items()}
            own |= new
            of_tensor = list(parts_of(owner, shown, tensor_name))
            parts += [replace(part, label="output projection") for part in of_tensor] if inner else of_tensor
            if not of_tensor and (kind == "parameters" or (kind != "norm" and "bias" not in tensor_name)):
                notes.append(_not_a_matrix(owner, tensor_name))
    if not seen:
        if not _is_quantised(layer):
            return None
        notes.append("not computed: quantised weights, packed; diagnose the module before quantising it")
    notes += [f"{part.name} {part.note}" for part in parts if part.note]
    return WeightedLayer(
        name=name,
        kind=kind,
        type_name=type_name(layer),
        layout=layout_of(layer),
        parts=tuple(parts),
        parameters=tuple(own),
        shared_with=tuple(other for full, parameter in own.items() for other in names[parameter] if other != full),
        note="; ".join(notes),
    )


def _not_a_matrix(owner: nn.Module, tensor_name: str) -> str:
    tensor = effective(owner, tensor_name)
    return f"{tensor_name} {why_not(tensor) or f'of shape {shape_of(tensor)} is not a matrix'}"


def _is_quantised(layer: nn.Module) -> bool:
    """PyTorch's quantised layers keep their weights packed, outside the parameters."""
    return hasattr(layer, "_packed_params") or hasattr(layer, "_all_weight_values")
