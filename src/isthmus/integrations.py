"""Ranks in the tools where people train: TensorBoard, MLflow, W&B, Lightning, HuggingFace's Trainer, peft.

None of these packages is a dependency, and none is imported before a callback for it is made.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from isthmus._checks import check_integer, check_number, fail
from isthmus.diagnosis import Diagnosis, History, Monitor, Snapshot, weighted_layers

__all__ = ["huggingface_callback", "lightning_callback", "numbers_of", "rank_pattern", "writer"]


def numbers_of(snapshot: Snapshot, prefix: str = "isthmus/") -> dict[str, float]:
    """A snapshot as a flat dict of finite numbers, with names such as ``"isthmus/encoder.2/rank"``.

    Of each layer: ``rank`` (dimensions of its outputs that clearly stand out; left out where that is unclear),
    ``participation_ratio`` of its outputs, ``weight_rank``, ``stable_rank`` and ``weight_norm_squared`` of its first
    matrix. Of the whole: ``norm_squared``, and ``cost`` and ``sharpness`` where they were measured.

    Parameters
    ----------
    snapshot : Snapshot
    prefix : str
        Put before every name.
    """
    numbers: dict[str, float | None] = {
        "norm_squared": snapshot.norm_squared,
        "cost": snapshot.cost,
        "sharpness": snapshot.sharpness,
    }
    for layer in snapshot.layers:
        name = layer.name or "module"
        if layer.representation is not None:
            numbers[f"{name}/rank"] = layer.representation.rank
            numbers[f"{name}/participation_ratio"] = layer.representation.participation_ratio
        if layer.weights:
            first = layer.weights[0]
            numbers[f"{name}/weight_rank"] = first.rank
            numbers[f"{name}/stable_rank"] = first.stable_rank
            numbers[f"{name}/weight_norm_squared"] = first.norm_squared
    return {
        prefix + name: float(value) for name, value in numbers.items() if value is not None and math.isfinite(value)
    }


def writer(target: Any, prefix: str = "isthmus/") -> Callable[[Snapshot], Any]:
    """What writes each snapshot to a logger: ``Monitor(module, X, on_snapshot=writer(target))``.

    Parameters
    ----------
    target : object
        A ``SummaryWriter`` of TensorBoard (``add_scalar``); the module ``mlflow`` or a logger of Lightning
        (``log_metrics(numbers, step=)``); a run of W&B (``log(numbers, step=)``).
    prefix : str
        As in :func:`numbers_of`.

    Notes
    -----
    W&B drops numbers of a step that is behind the last one it was given: log with the same count of steps.
    """
    if hasattr(target, "add_scalar"):

        def write(snapshot: Snapshot) -> None:
            for name, value in numbers_of(snapshot, prefix).items():
                target.add_scalar(name, value, snapshot.step)

        return write
    log = getattr(target, "log_metrics", None) or getattr(target, "log", None)
    if not callable(log):
        must = "`target` must have `add_scalar`, `log_metrics` or `log`"
        fail("writer", must, type(target).__name__, "Pass a SummaryWriter, the module mlflow, or a run of W&B.")
    return lambda snapshot: log(numbers_of(snapshot, prefix), step=snapshot.step)


class _Recorder:
    """What both callbacks do: they count steps for a Monitor, and hand on its new snapshots."""

    def __init__(
        self, X: Any, every: int, submodule: str, on_snapshot: Callable[[Snapshot], Any] | None, options: dict[str, Any]
    ) -> None:
        super().__init__()
        self._X, self._every = X, check_integer(type(self).__name__, "every", every, low=1)
        self._submodule, self._on_snapshot, self._options = submodule, on_snapshot, options
        self._monitor: Monitor | None = None

    @property
    def history(self) -> History:
        """The History recorded so far."""
        return History(()) if self._monitor is None else self._monitor.history

    def _begin(self, module: nn.Module, step: int, on_snapshot: Callable[[Snapshot], Any]) -> None:
        inner = module.get_submodule(self._submodule)
        on_snapshot = self._on_snapshot or on_snapshot
        self._monitor = Monitor(inner, self._X, self._every, on_snapshot=on_snapshot, **self._options)
        first = self._monitor.record(step)
        if first.state == "failed":
            do = "Pass `X` as the module's forward takes it, or name the part that takes it as `submodule`."
            fail(type(self).__name__, "`X` must go through the module", first.note, do)

    def _at(self, step: int, *, due: bool = True) -> None:
        monitor = self._monitor
        if monitor is not None and step != monitor.step and not (due and step % monitor.every):
            monitor.record(step)


def lightning_callback(
    X: Any,
    every: int = 100,
    *,
    submodule: str = "",
    on_snapshot: Callable[[Snapshot], Any] | None = None,
    **options: Any,
) -> Any:
    """A callback for ``Trainer(callbacks=[…])`` of Lightning: ranks go to the trainer's loggers.

    Parameters
    ----------
    X : array, tensor, dict, tuple or DataLoader
        What representations are measured on, as in ``diagnose``.
    every : int, default 100
        Steps of the optimiser between two snapshots; there is one before the first step and one after the last.
    submodule : str, optional
        The part of the LightningModule that takes ``X``, such as ``"model"``; itself unless given.
    on_snapshot : callable, optional
        Called with each :class:`~isthmus.diagnosis.Snapshot` in place of the loggers.
    **options
        Of :class:`~isthmus.diagnosis.Monitor`, such as ``Y`` and ``layers``.

    Returns
    -------
    lightning.pytorch.Callback
        Its ``history`` is a :class:`~isthmus.diagnosis.History`. Only the process of rank 0 records.
    """
    base = _first("lightning_callback", "lightning.pytorch", "pytorch_lightning").Callback

    class IsthmusCallback(_Recorder, base):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            def log(snapshot: Snapshot) -> None:
                for logger in trainer.loggers:
                    logger.log_metrics(numbers_of(snapshot), step=snapshot.step)

            if trainer.is_global_zero:
                self._begin(pl_module, trainer.global_step, log)

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            self._at(trainer.global_step)

        def on_train_end(self, trainer: Any, *_: Any) -> None:
            self._at(trainer.global_step, due=False)

    return IsthmusCallback(X, every, submodule, on_snapshot, options)


def huggingface_callback(
    X: Any,
    every: int = 100,
    *,
    submodule: str = "",
    on_snapshot: Callable[[Snapshot], Any] | None = None,
    **options: Any,
) -> Any:
    """A ``TrainerCallback`` for the Trainer of HuggingFace: ranks go into ``trainer.state.log_history``.

    Where ``report_to`` sends numbers, ranks go with
    ``on_snapshot=lambda snapshot: trainer.log(numbers_of(snapshot))``, given to ``trainer.add_callback``.

    Parameters
    ----------
    X : dict of arrays, array, tensor, tuple or DataLoader
        What representations are measured on, as in ``diagnose``: of a language model
        ``{"input_ids": …, "attention_mask": …}``.
    every : int, default 100
        Steps of the optimiser between two snapshots; there is one before the first step and one after the last.
    submodule : str, optional
        The part of the model that takes ``X``; the model itself unless given.
    on_snapshot : callable, optional
        Called with each :class:`~isthmus.diagnosis.Snapshot` in place of that, such as a :func:`writer`.
    **options
        Of :class:`~isthmus.diagnosis.Monitor`, such as ``layers``.

    Returns
    -------
    transformers.TrainerCallback
        Its ``history`` is a :class:`~isthmus.diagnosis.History`. Only the process of rank 0 records.
    """
    base = _first("huggingface_callback", "transformers").TrainerCallback

    class IsthmusCallback(_Recorder, base):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            def log(snapshot: Snapshot) -> None:
                state.log_history.append({**numbers_of(snapshot), "step": snapshot.step})

            if state.is_world_process_zero:
                self._begin(model, state.global_step, log)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._at(state.global_step)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._at(state.global_step, due=False)

    return IsthmusCallback(X, every, submodule, on_snapshot, options)


def _first(who: str, *names: str) -> Any:
    """The first of these modules that can be imported."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A package that is there, but lacks one of its own, says so itself.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
    return fail(who, f"{' or '.join(names)} must be installed", "none", f"pip install {names[0].split('.')[0]}.")


def rank_pattern(source: nn.Module | Diagnosis, *, base: nn.Module | None = None, share: float = 0.9) -> dict[str, int]:
    """Measured rank of each layer, min{r : Σ_{i≤r} s_i² ≥ share·‖A‖²_F}, for ``rank_pattern=`` of ``peft.LoraConfig``.

    A is the layer's weight; with ``base`` the weight minus that of the same layer of ``base``, which is the update that
    a full fine-tuning made; of a Diagnosis the layer's centred outputs. It is a measurement, not advice: whether
    adapters of these ranks train better than others is not said.

    Parameters
    ----------
    source : nn.Module or Diagnosis
        Layers with one matrix are listed: linear ones, embeddings, convolutions without groups (unfolded filters). All
        singular values are computed, in float64.
    base : nn.Module, optional
        The same network before its fine-tuning.
    share : float in (0, 1], default 0.9
        Of the squared norm, that the rank must hold.

    Returns
    -------
    dict of str → int
        Name of the layer, as in ``named_modules``, → rank; layers that vanish are left out.

    Examples
    --------
    >>> layer = torch.nn.Linear(4, 3)
    >>> _ = layer.weight.data.copy_(torch.diag_embed(torch.tensor([3.0, 2.0, 0.1])) @ torch.eye(3, 4))
    >>> rank_pattern(torch.nn.Sequential(layer))
    {'0': 2}
    """
    who = "rank_pattern"
    check_number(who, "share", share, low=0.0, low_open=True, high=1.0)
    if isinstance(source, Diagnosis):
        if base is not None:
            fail(who, "`base` goes with a module", "a Diagnosis", "Pass the module, or leave `base` out.")
        spectra = {
            one.name: one.representation.values
            for one in source.layers
            if len(one.weights) == 1 and one.representation is not None and len(one.representation.values)
        }
    else:
        matrices, before = _matrices(source), None if base is None else _matrices(base)
        if before is not None and {n: A.shape for n, A in before.items()} != {n: A.shape for n, A in matrices.items()}:
            got = f"{len(before)} and {len(matrices)} matrices, or other names or shapes"
            fail(who, "`base` must have the layers of `source`", got, "Pass the same network before its training.")
        spectra = {
            name: torch.linalg.svdvals(A if before is None else A - before[name]) for name, A in matrices.items()
        }
    ranks = {name: _rank_at(s, share) for name, s in spectra.items()}
    return {name: rank for name, rank in ranks.items() if rank}


def _matrices(module: nn.Module) -> dict[str, Tensor]:
    """By the layer's name, of layers with one matrix."""
    found = {
        layer.name: layer.parts[0]
        for layer in weighted_layers(module)
        if len(layer.parts) == 1 and not layer.parts[0].note and len(layer.parts[0].matrix_shape) == 2
    }
    return {name: part.matrix().detach() for name, part in found.items()}


def _rank_at(s: Tensor, share: float) -> int:
    """The fewest leading values with this share of Σs²; 0 of a spectrum that vanishes."""
    if not len(s) or not float(s[0]) > 0:
        return 0
    held = (s / s[0]).square().cumsum(0)
    return int((held < share * held[-1]).sum()) + 1
