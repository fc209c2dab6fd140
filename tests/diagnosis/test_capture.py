"""Capture: what is seen is what the layers gave, bit for bit, and the module is as it was."""

from __future__ import annotations

import copy
import random
import warnings
from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from architectures import ARCHITECTURES, mlp, resnet, transformer, unet
from isthmus import IsthmusError
from isthmus.diagnosis._calls import first_tensor
from isthmus.diagnosis._capture import capture, in_float64, run_hooked, untouched, unwrap
from isthmus.diagnosis._inputs import batches
from tools import assert_close, gaussian

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_with_kwargs")


def everything(module: nn.Module) -> dict[str, object]:
    """All that must not change, by value where it has one."""
    state = {f"state {name}": value.clone() for name, value in module.state_dict().items()}
    for name, part in module.named_modules():
        state[f"mode {name}"] = part.training
        for kind in HOOKS:
            state[f"{kind} {name}"] = list(getattr(part, kind))
    for name, p in module.named_parameters():
        state[f"flags {name}"] = (p.requires_grad, id(p), id(p.grad), p.data_ptr())
        state[f"grad {name}"] = None if p.grad is None else p.grad.clone()
    state["torch"] = torch.get_rng_state()
    state["numpy"] = repr(np.random.get_state())  # noqa: NPY002
    state["random"] = random.getstate()
    state["fused attention"] = torch.backends.mha.get_fastpath_enabled()
    state["grad mode"] = torch.is_grad_enabled()
    return state


def changes(before: dict[str, object], after: dict[str, object]) -> list[str]:
    def same(a: object, b: object) -> bool:
        return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b

    return [key for key in before.keys() | after.keys() if not same(before.get(key), after.get(key))]


def with_gradients(module: nn.Module, X: Tensor) -> None:
    """Gradients on half of the parameters, some frozen, modes mixed: nothing is in its default state."""
    for i, p in enumerate(module.parameters()):
        p.grad = torch.full_like(p, 0.5) if i % 2 else None
        p.requires_grad_(i % 3 != 0)
    for i, part in enumerate(module.modules()):
        part.training = i % 2 == 0


def all_outputs(module: nn.Module, X: Tensor) -> list[tuple[str, Tensor]]:
    """The other route: an evaluation copy of the module whose leaf methods are wrapped, no hook involved."""
    twin, found = copy.deepcopy(module).eval(), []
    for name, part in twin.named_modules():

        def wrapped(*args, forward=part.forward, name=name, **kwargs):
            output = forward(*args, **kwargs)
            tensor = output[0] if isinstance(output, tuple) else output
            found.append((name, tensor.clone()))
            return output

        part.forward = wrapped
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            twin(X)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_captured_is_what_was_there_and_nothing_changes(architecture):
    module, X = ARCHITECTURES[architecture]()
    with_gradients(module, X)
    names = [name for name, _ in module.named_modules()]
    expected = all_outputs(module, X)
    before = everything(module)
    seen: list[tuple[str, Tensor]] = []
    source = batches("test", X, module, batch_size=len(X))
    skipped = run_hooked(module, source, names, lambda name, output, call: seen.append((name, output.clone())))
    assert changes(before, everything(module)) == []
    assert [name for name, _ in seen] == [name for name, _ in expected]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(seen, expected))
    # Attention multiplies by the weight of its out_proj without calling it; a ModuleList is never called.
    uncalled = {name for name in names if name.endswith(("out_proj", ".layers"))}
    assert skipped == dict.fromkeys(uncalled, "not called in the forward pass")


def test_an_mlp_by_hand():
    module, X = mlp()
    seen: dict[str, Tensor] = {}
    run_hooked(
        module, batches("test", X, module), ["0", "1", "2"], lambda name, output, call: seen.update({name: output})
    )
    Z = X @ module[0].weight.T + module[0].bias
    assert_close(seen["0"], Z)
    assert_close(seen["1"], Z.clamp_min(0))
    assert_close(seen["2"], Z.clamp_min(0) @ module[2].weight.T + module[2].bias)


def test_keeping_without_copying_would_be_wrong():
    """Why `visit` must copy: the in-place ReLU writes over the output of the convolution."""
    module, X = unet()
    kept, copied = [], []

    def visit(name: str, output: Tensor, call: int) -> None:
        kept.append(output)
        copied.append(output.clone())

    run_hooked(module, [((X,), {})], ["down.0"], visit)
    assert copied[0].min() < 0 <= kept[0].min()


def test_the_fused_path_would_hide_layers():
    encoder = transformer()[0].encoder
    arguments = (gaussian(4, 6, 16, dtype=torch.float32),), {"src_key_padding_mask": torch.arange(6).expand(4, 6) > 3}
    name = "layers.0.linear1"
    seen: list[Tensor] = []
    encoder.eval()
    # PyTorch warns that nested tensors are a prototype.
    with (
        torch.no_grad(),
        warnings.catch_warnings(action="ignore"),
        capture(encoder, [name], lambda *visited: seen.append(visited[1])) as plain,
    ):
        encoder(*arguments[0], **arguments[1])
    # PyTorch 2.4 fuses it whatever is hooked.
    fused = torch.__version__.startswith("2.4.")
    why = "not called in the forward pass" if fused else "its output is a sparse or nested tensor"
    assert not seen and plain.skipped == {name: why}
    assert run_hooked(encoder, [arguments], [name], lambda *visited: seen.append(visited[1])) == {}
    assert seen[0].shape == (4, 6, 32)


class Fragile(nn.Module):
    """Does everything a forward should not: draws, counts, keeps, and raises at the second batch."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.net = resnet()[0]
        self.fails = fails
        self.count = 0
        self.log: list[int] = []
        self.register_buffer("total", torch.zeros(2))
        self.plain = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.log.append(self.count)
        self.total += 1
        self.plain[0] = 7
        self.last = x
        torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
        self.register_buffer("late", x)
        if self.fails and self.count == 2:
            raise RuntimeError("mat1 and mat2 do not fit")
        return self.net(x)


def quietly(name: str, output: Tensor, call: int) -> None:
    pass


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("evaluation", [False, True])
def test_a_bad_forward_leaves_no_trace(fails, evaluation):
    module = Fragile(fails)
    X = resnet()[1]
    with_gradients(module, X)
    before, attributes = everything(module), set(module.__dict__)
    expected = pytest.raises(RuntimeError, match="mat1") if fails else nullcontext()
    with expected, untouched(module, eval=evaluation), capture(module, ["net.stem"], quietly):
        module.net.head.weight.requires_grad_(False)
        module.register_forward_hook(lambda *_: None)
        for x in X.split(8):
            module(x).sum().backward()
    assert changes(before, everything(module)) == []
    assert set(module.__dict__) == attributes
    assert (module.count, module.log, module.plain[0]) == (0, [], 0)


def test_the_check_of_changes_can_fail():
    """Without `untouched` the same forward is noticed in all the places that it touches."""
    module = Fragile(False)
    before = everything(module)
    module(resnet()[1]).sum().backward()
    module.eval()
    found = {key.split()[0] for key in changes(before, everything(module))}
    assert found >= {"state", "mode", "grad", "torch", "numpy", "random"}


def test_buffers_keep_their_identity_and_gradients_flow_inside():
    module, X = resnet()
    buffer, parameter = module.stem[1].running_mean, module.head.weight
    parameter.grad = grad = torch.ones_like(parameter)
    version = buffer._version
    with untouched(module):
        module(X).sum().backward()
        assert not torch.equal(grad, torch.ones_like(grad)), "gradients are on, and added to the user's"
    assert module.stem[1].running_mean is buffer and buffer._version == version
    assert parameter.grad is grad and torch.equal(grad, torch.ones_like(grad))


def test_a_failing_forward_is_named():
    module, X = mlp()
    with pytest.raises(
        IsthmusError, match=r"diagnose: `net` must run on `X`. Got \(float32 \(40, 5\)\) → RuntimeError: .* Pass `X`"
    ) as caught:
        run_hooked(module, [((X[:, :5],), {})], [""], quietly)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(IsthmusError, match=r"mask=int64 \(2,\).*TypeError"):
        run_hooked(module, [((X,), {"mask": torch.zeros(2, dtype=torch.int64)})], [""], quietly)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_a_failing_visit_is_not_blamed_on_the_module():
    module, X = mlp()

    def visit(name: str, output: Tensor, call: int) -> None:
        raise ZeroDivisionError("ours")

    with pytest.raises(ZeroDivisionError, match="ours"):
        run_hooked(module, [((X,), {})], ["0"], visit)
    assert not module[0]._forward_hooks


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.alias = self.layer
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.alias(x))


def test_a_module_used_twice_is_visited_twice_in_every_forward():
    module = Shared()
    seen = []
    pairs = [((gaussian(3, 4, seed=i, dtype=torch.float32),), {}) for i in range(2)]
    names = ["layer", "alias", "unused", ""]
    skipped = run_hooked(module, pairs, names, lambda name, output, call: seen.append((name, call, output)))
    assert [entry[:2] for entry in seen] == [("layer", 0), ("layer", 1), ("", 0)] * 2
    assert torch.equal(seen[0][2], module.layer(pairs[0][0][0])) and torch.equal(seen[1][2], seen[2][2])
    assert skipped == {"alias": "the same module as 'layer'", "unused": "not called in the forward pass"}


def test_we_see_what_the_users_hooks_made():
    module, X = mlp()
    module[0].register_forward_hook(lambda _, __, output: output * 0 + 5)
    seen = []
    run_hooked(module, [((X,), {})], ["0"], lambda name, output, call: seen.append(output))
    assert bool((seen[0] == 5).all()) and len(module[0]._forward_hooks) == 1


@dataclass
class Answer:
    loss: Tensor | None
    logits: Tensor


T = torch.arange(3.0)


@pytest.mark.parametrize(
    "output",
    [
        T,
        (T, None),
        [None, [T, T + 1]],
        {"hidden": T, "other": T + 1},
        OrderedDict(a=None, b=(None, {"c": T})),
        Answer(None, T),
        (Answer(T, T + 1), T + 2),
    ],
)
def test_first_tensor(output):
    assert first_tensor(output) is T


def test_packed_sequences_and_outputs_without_tensors():
    packed = pack_sequence([torch.ones(3, 2), torch.zeros(2, 2)])
    assert first_tensor(packed) is packed.data
    assert first_tensor(None) is first_tensor((None, "text", 3)) is None

    class Odd(nn.Module):
        def forward(self, x):
            return "text"

    class Thin(nn.Module):
        def forward(self, x):
            return x.to_sparse()

    module = nn.ModuleDict({"odd": Odd(), "thin": Thin()})
    module.forward = lambda x: (module["odd"](x), module["thin"](x))  # type: ignore[method-assign]
    skipped = run_hooked(module, [((T,), {})], ["odd", "thin"], quietly)
    assert skipped == {
        "odd": "its output, str, holds no tensor",
        "thin": "its output is a sparse or nested tensor",
    }


def test_recurrent_layers_on_packed_sequences():
    torch_lstm = ARCHITECTURES["lstm"]()[0].lstm
    packed = pack_sequence([gaussian(n, 4, seed=n, dtype=torch.float32) for n in (5, 3)])
    seen = []
    run_hooked(torch_lstm, [((packed,), {})], [""], lambda name, output, call: seen.append(output))
    assert seen[0].shape == (8, 10)


def test_unknown_names_are_listed():
    module, _ = mlp()
    with pytest.raises(IsthmusError, match=r"'9'.*Choose from '', '0', '1'"), capture(module, ["0", "9"], quietly):
        pass
    assert not module[0]._forward_hooks


def test_wrappers_are_taken_off():
    module, _ = mlp()
    plain, notes = unwrap(module)
    assert plain is module and notes == []
    wrapped = nn.DataParallel(nn.DataParallel(module))
    plain, notes = unwrap(wrapped)
    assert plain is module and len(notes) == 2 and "DataParallel" in notes[0]
    plain, notes = unwrap(torch.compile(module, backend="eager"))
    assert plain is module and "OptimizedModule" in notes[0]


def test_parts_compiled_in_place_are_seen_and_stay_compiled():
    module, X = mlp()
    compiled = module[0]._compiled_call_impl = lambda *args, **kwargs: torch.zeros(40, 16)
    seen = []
    run_hooked(module, [((X,), {})], ["0"], lambda name, output, call: seen.append(output))
    assert bool(seen[0].any()) and module[0]._compiled_call_impl is compiled


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_what_cannot_be_seen_is_refused():
    module, X = mlp()
    with pytest.raises(IsthmusError, match="TorchScript"):
        unwrap(torch.jit.trace(module, X))
    with pytest.raises(IsthmusError, match="must be a torch.nn.Module. Got function"):
        unwrap(lambda x: x)
    lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(IsthmusError, match="'0.weight', which waits.*Call the module once"):
        unwrap(lazy)
    with pytest.raises(IsthmusError, match="meta device"):
        unwrap(nn.Linear(2, 2, device="meta"))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_part_is_run_and_left_out():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Dropout()))
    module = nn.Sequential(nn.Linear(4, 4), scripted)
    X = gaussian(5, 4, dtype=torch.float32)
    seen = []
    names = ["", "1", "1.0"]
    skipped = run_hooked(module, [((X,), {})], names, lambda name, output, call: seen.append(output))
    linear, dropout = scripted.children()
    assert torch.equal(seen[0], linear(module[0](X))), "dropout is off"
    assert scripted.training and dropout.training
    assert skipped == dict.fromkeys(["1", "1.0"], "TorchScript does not show its outputs")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_float64_copies(architecture):
    module, X = ARCHITECTURES[architecture]()
    before = everything(module)
    double, how = in_float64(module)
    assert how == "float64 copy" and double is not module and not double.training
    source = batches("test", X, double)
    outputs = []
    run_hooked(double, source, [""], lambda name, output, call: outputs.append(output))
    assert outputs[0].dtype == torch.float64
    with untouched(module):
        assert_close(outputs[0], module(X), rtol=1e-4, atol=1e-5, reason="float32 through many layers")
    assert changes(before, everything(module)) == []


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_what_cannot_be_copied_is_run_as_it_is():
    module = nn.utils.weight_norm(nn.Linear(4, 4))
    X = gaussian(5, 4, dtype=torch.float32)
    module(X)
    weight = module.weight
    same, why = in_float64(module)
    assert same is module and "cannot be copied" in why and "weight_norm" in why
    run_hooked(module, [((X,), {})], [""], quietly)
    assert module.weight is weight
    same, why = in_float64(mlp()[0], max_bytes=1000)
    assert "GiB" in why and same.training
