"""Taking snapshots of a module on the same samples, without a trace in it."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from isthmus._atomic import open_checked, shown
from isthmus._checks import check_choice, check_integer, check_number, fail
from isthmus._deprecations import renamed
from isthmus._errors import DataError, FileFormatError, IsthmusError
from isthmus._tensorfile import DTYPES, MAX_FILE_BYTES, read_body, read_header
from isthmus.diagnosis._capture import run_hooked, untouched, unwrap
from isthmus.diagnosis._diagnose import as_torch, fully_connected, unit_roundoff, wanted
from isthmus.diagnosis._history import (
    FAILED,
    MEASURED,
    NOT_FINITE,
    TOP,
    History,
    LayerSnapshot,
    Snapshot,
    SpectrumSnapshot,
)
from isthmus.diagnosis._inputs import batches
from isthmus.diagnosis._observe import as_rows
from isthmus.diagnosis._ranks import isthmus_of_chain, rounding_floor
from isthmus.diagnosis._weights import WeightedLayer, WeightPart, weight_spectrum, weighted_layers
from isthmus.diagnosis._whole import minimum_of, rank_in_use, relative_gradient, targets_of
from isthmus.measures import bottleneck_rank, participation_ratio, read_spectrum, sharpness
from isthmus.measures._positivity import negative_part
from isthmus.objective import LOSSES, cost

#: Smaller side up to which all singular values are computed: an SVD of 512² takes a twentieth of a second.
EXACT_UP_TO = 512

#: Samples that a snapshot runs unless asked otherwise: a hundredth of the forwards of 100 steps of 64 samples.
SAMPLES = 128

#: Samples that the curvature is taken on, tens of passes over them for a snapshot.
SHARPNESS_SAMPLES = 64

#: Rows of a representation for each sample asked for: positions of images and tokens count as rows.
ROWS_PER_SAMPLE = 8

#: Seconds that snapshots may take between the first and the last, whatever share of a short training that is.
SECONDS_FREE = 3.0


_NONE = torch.empty(0, dtype=torch.float64)


class Camera:
    """Takes snapshots of a module on the same samples.

    Parameters
    ----------
    who : str
        The public function that errors name.
    module, X, Y, loss, layers, unpack
        As in ``diagnose``.
    max_samples : int
        Samples that are run for a snapshot: evenly spaced ones of arrays, the first ones of a loader.
    """

    def __init__(
        self,
        who: str,
        module: nn.Module,
        X: Any,
        Y: Any = None,
        *,
        loss: str = "mse",
        layers: Sequence[str] | str | None = None,
        max_samples: int = SAMPLES,
        unpack: Callable[[Any], Any] | None = None,
        seed: int = 0,
        learning_rate: float | None = None,
        ridge: float | None = None,
        true_rank: int | None = None,
    ) -> None:
        if true_rank is not None:
            check_integer(who, "true_rank", true_rank, low=0)
        check_choice(who, "loss", loss, LOSSES)
        for name, value in (("learning_rate", learning_rate), ("ridge", ridge)):
            if value is not None:
                check_number(who, name, value, low=0.0, low_open=name == "learning_rate")
        self._sharp, self._ridge, self._true_rank = learning_rate is not None, ridge, true_rank
        check_integer(who, "max_samples", max_samples, low=2)
        self.module, notes = unwrap(module, who=who)
        self._who, self._layers, self._loss, self._seed = who, layers, loss, seed
        self._rows = ROWS_PER_SAMPLE * max_samples
        self._known: tuple[list[int], list[WeightedLayer]] = [], []
        if layers is not None and not any(wanted(layer.name, layers) for layer in self._weighted(self._plain())):
            fail(who, "`layers` must name layers with parameters", layers, "See `module.named_modules()`.")
        # A loader may draw from any generator, and its first batch is not the user's first batch.
        with untouched(self.module, eval=False):
            source = batches(who, X, self.module, unpack=unpack)
            self._targets = None if Y is None else self._matching(Y, source.samples, max_samples)
            self._call = source.first(max_samples)
        self.notes = (*notes, *source.notes)

    def _matching(self, Y: Any, samples: int | None, max_samples: int) -> Tensor:
        """The targets of the samples that are run."""
        if samples is None:
            got, do = "`X` as a loader", "Pass arrays for both, or leave `Y` out."
            fail(self._who, "`Y` goes with `X` given as arrays", got, do)
        targets = targets_of(self._who, Y, self._loss)
        if len(targets) != samples:
            got, do = f"{samples} and {len(targets)}", "Pass one target for each sample."
            fail(self._who, "`X` and `Y` must have as many rows", got, do, error=DataError)
        count = min(max_samples, samples)
        return targets[torch.arange(count) * samples // count]

    def _plain(self) -> nn.Module:
        """The module with layers that can be hooked; networks of this library are written out, with their weights."""
        with torch.random.fork_rng(devices=[]):  # new layers draw their first weights
            return as_torch(self.module)

    def _weighted(self, module: nn.Module) -> list[WeightedLayer]:
        """The layers that are looked at; found anew only when the module has other parameters."""
        present = [id(parameter) for parameter in module.parameters()]
        if not present or present != self._known[0] or module is not self.module:
            found = [layer for layer in weighted_layers(module) if wanted(layer.name, self._layers)]
            self._known = present, found
        return self._known[1]

    @torch.no_grad()
    def take(self, step: int) -> Snapshot:
        """A snapshot; the module, the generators and the user's graph stay as they are."""
        module = self._plain()
        weighted = self._weighted(module)
        single = unit_roundoff(module)
        eps = single * max(len(weighted), 1)
        layouts = {layer.name: layer.layout for layer in weighted}
        seen: dict[str, SpectrumSnapshot] = {}
        signs: dict[str, float] = {}
        costs: list[float] = []

        def visit(name: str, output: Tensor, number: int) -> None:  # noqa: ARG001
            # Of a layer that is called several times, the last call.
            if name in layouts:
                seen[name] = self._representation(output, layouts[name], single, eps)
                signs[name] = negative_part(output)[1] if output.is_floating_point() else math.nan
            if name == "" and self._targets is not None:
                costs.append(self._cost(output, self._targets))

        with ExitStack() as stack:
            for device in {"cpu", *(p.device.type for p in module.parameters())}:
                # In the module's own dtype; weights that autocast casts and keeps must not reach the user's step.
                stack.enter_context(torch.autocast(device, enabled=False))
            run_hooked(module, [self._call], dict.fromkeys([*layouts, ""]), visit, who=self._who)
            curvature = self._sharpness(module) if self._sharp else math.nan
        layers = []
        for one in weighted:
            weights = tuple(self._weights(part, single, eps) for part in one.parts)
            sign = signs.get(one.name, math.nan)
            layers.append(LayerSnapshot(one.name, one.kind, weights, seen.get(one.name), sign))
        bad = [
            f"{one.name or '(itself)'} ({part.label})"
            for one in layers
            for part in _spectra(one)
            if part.status == NOT_FINITE
        ]
        return Snapshot(
            step=step,
            state=NOT_FINITE if bad else MEASURED,
            note=f"NaN or infinite: {', '.join(bad[:6])}{' and more' * (len(bad) > 6)}" if bad else "",
            layers=tuple(layers),
            norm_squared=sum(_square(p) for p in self.module.parameters()),
            cost=costs[-1] if costs else math.nan,
            sharpness=curvature,
            minimum="" if bad else self._minimum(module),
        )

    def _minimum(self, module: nn.Module) -> str:
        """Which kind of minimum a fully connected network is at; empty of others, and without targets or ridge."""
        args, kwargs = self._call
        if self._targets is None or not self._ridge or kwargs or len(args) != 1 or args[0].ndim != 2:
            return ""
        chain = fully_connected(module)
        if chain is None:
            return ""
        chain, X, targets = chain.double(), args[0].double(), self._targets.to(args[0].device)
        names = [str(ell) for ell in range(1, chain.depth + 1)]
        narrow = isthmus_of_chain(bottleneck_rank(chain.trace(X)), names, chain.dims[0], chain.dims[-1])
        gradient = relative_gradient(chain, X, targets, self._loss, self._ridge)
        options = {"loss": self._loss, "ridge": self._ridge, "true_rank": self._true_rank, "gradient": gradient}
        return minimum_of(chain, X, targets, rank=rank_in_use(narrow, X, chain), **options).kind

    def _sharpness(self, module: nn.Module) -> float:
        """‖H‖ on a few samples; NaN where inputs are no array of numbers, or torch.func refuses the module."""
        args, kwargs = self._call
        if len(args) != 1 or kwargs or not isinstance(args[0], Tensor) or not args[0].is_floating_point():
            return math.nan
        count = min(len(args[0]), SHARPNESS_SAMPLES)
        rows = torch.arange(count) * len(args[0]) // count
        with untouched(module):
            try:
                found = sharpness(module, args[0][rows], loss=self._loss, ridge=self._ridge or 0.0, tolerance=1e-2)
            except (IsthmusError, RuntimeError, NotImplementedError):
                return math.nan
        return found.value

    def _weights(self, part: WeightPart, single: float, eps: float) -> SpectrumSnapshot:
        if not part.note and len(part.matrix_shape) == 2 and 0 < min(part.matrix_shape) <= EXACT_UP_TO:
            W = part.stored().double()
            return self._spectrum(part.label, W, torch.linalg.vector_norm(W), single, eps, floor=0.0)
        found = weight_spectrum(part, exact_up_to=EXACT_UP_TO, k=TOP, seed=self._seed)
        if found.method == "not computed":
            return _missing(part.label, "not computed" if part.note else NOT_FINITE)
        whole = found.method != "randomised"
        return _spectrum_snapshot(part.label, found.values, found.norm * found.norm, eps, whole=whole)

    def _representation(self, output: Tensor, layout: str, single: float, eps: float) -> SpectrumSnapshot:
        rows, _ = as_rows(output, layout)
        # With more units than an exact spectrum may have, as many rows.
        most = self._rows if rows.shape[1] <= EXACT_UP_TO else EXACT_UP_TO
        if len(rows) > most:
            rows = rows[torch.arange(most, device=rows.device) * len(rows) // most]
        if len(rows) < 2:
            return _missing("representation", "not computed")
        A = rows.double() / len(rows) ** 0.5
        size = torch.linalg.vector_norm(A)
        floor = rounding_floor(float(size), eps)
        return self._spectrum("representation", A - A.mean(0), size, single, eps, floor=floor)

    def _spectrum(
        self, label: str, A: Tensor, size: Tensor, single: float, eps: float, *, floor: float
    ) -> SpectrumSnapshot:
        """Of a matrix whose smaller side is at most ``EXACT_UP_TO``; ``size`` is not finite if some entry is not."""
        if not bool(torch.isfinite(size)):
            return _missing(label, NOT_FINITE)
        values = _singular_values(A, single).cpu()
        return _spectrum_snapshot(label, values, float(values.square().sum()), eps, floor=floor)

    def _cost(self, output: Tensor, targets: Tensor) -> float:
        targets = targets.to(output.device)
        if self._loss == "mse":
            if targets.shape != output.shape:
                got = f"{tuple(targets.shape[1:])} for outputs {tuple(output.shape[1:])}"
                fail(self._who, "`Y` must have the shape of the outputs", got, "Match it.", error=DataError)
            output, targets = output.flatten(1), targets.flatten(1)
        return float(cost(output.double(), targets, self._loss))


def safely(take: Callable[[int], Snapshot], step: int) -> Snapshot:
    """A snapshot whatever happens: what fails is its ``note``, never an exception in somebody's training loop."""
    try:
        return take(step)
    except Exception as error:  # whatever the user's forward raises
        note = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return Snapshot(step, FAILED, note, (), math.nan, math.nan)


def _singular_values(A: Tensor, eps: float) -> Tensor:
    """All singular values of A (float64), as exact as data with the unit round-off ``eps`` deserve.

    Square roots of the eigenvalues of the Gram matrix have a floor near 1e-7·s₁: twice as fast as an SVD, and below
    what single precision leaves.
    """
    if eps < 1e-8:
        return torch.linalg.svdvals(A)
    gram = A.mT @ A if A.shape[0] >= A.shape[1] else A @ A.mT
    return torch.linalg.eigvalsh(gram).flip(0).clamp_min(0).sqrt()


def _spectrum_snapshot(
    label: str, values: Tensor, norm_squared: float, eps: float, *, floor: float = 0.0, whole: bool = True
) -> SpectrumSnapshot:
    reading = read_spectrum(values, eps=eps, floor=floor)
    # Of the largest values alone, only a clear drop says how many there are.
    told = reading.status in ("clear", "zero") or (whole and reading.status == "full")
    return SpectrumSnapshot(
        label=label,
        values=values[:TOP].clone(),
        norm_squared=norm_squared,
        participation_ratio=float(participation_ratio(values)),
        rank=reading.count if told else None,
        status=reading.status if told else "unclear",
    )


def _spectra(layer: LayerSnapshot) -> list[SpectrumSnapshot]:
    return [*layer.weights, *([] if layer.representation is None else [layer.representation])]


def _missing(label: str, status: str) -> SpectrumSnapshot:
    return SpectrumSnapshot(label, _NONE, math.nan, math.nan, None, status)


def _square(parameter: Tensor) -> float:
    if not parameter.is_floating_point():
        return 0.0
    norm = float(torch.linalg.vector_norm(parameter.detach(), dtype=torch.float64))
    return norm * norm


# ---- The Monitor: ranks, norms and spectra during somebody's own training loop, which it does not change


class Monitor:
    """Record ranks, norms and spectra every so many steps of a training loop: ``with Monitor(net, X) as m: …``.

    Snapshots are taken on entering, every ``every`` steps and on leaving, by hooks: the loop needs no further call. A
    step is a forward of ``net`` in training mode with gradients on, or, where an ``optimizer`` is given, one of its
    steps (that is the better count where gradients are accumulated). The weights that the training ends with are bit
    for bit those it would have without the Monitor.

    Parameters
    ----------
    net : nn.Module
        As the loop calls it; a compiled or parallel wrapper is looked into.
    X : array, tensor, DataFrame, tuple or dict of them, or DataLoader
        What representations are measured on, as in ``diagnose``.
    every : int, default 100
    Y : array, optional
        Targets, for the cost.
    layers : str or sequence of str, optional
        Names or globs; all layers with parameters unless given.
    optimizer : torch.optim.Optimizer, optional
        Count its steps instead of forwards.
    max_samples : int, default 128
        Samples that each snapshot runs, in the module's own dtype.
    budget : float or None, default 0.05
        Share of the time since entering that snapshots may take beyond three seconds: one that is due is left out as
        long as it would take more. None for all that are due. The first and the last are always taken.
    max_snapshots : int, default 1000
        When there are more, every second one is dropped and ``every`` doubles: memory and time stay bounded.
    learning_rate : float, optional
        Of the loop: adds the sharpness ‖H‖ to every snapshot, and whether steps of this size stay at the end.
    ridge : float, optional
        Weight decay of the loop, in this library's convention. With targets, of a fully connected network, adds to
        every snapshot which kind of minimum it is.
    true_rank : int, optional
        Of the task, without which only that the rank is overestimated can be shown.
    on_snapshot : callable, optional
        Called with every :class:`~isthmus.diagnosis.Snapshot` as soon as it is taken, such as a writer of
        :mod:`isthmus.integrations`. What it raises is raised.
    loss, unpack, seed
        As in ``diagnose``.

    Attributes
    ----------
    history : History
        What was recorded so far.
    step : int
        Steps counted so far.
    overhead : float
        Share of the time since entering that was spent here.
    left_out : int
        Snapshots that were due and not taken, by ``budget``.

    Notes
    -----
    On entering, anything wrong with ``X`` is an error. Inside, nothing raises: a snapshot that could not be taken has
    the state ``"failed"`` and says why, one of weights that are NaN or infinite ``"not finite"``. Hooks that the module
    already has are run by a snapshot's forward as by any other in evaluation mode.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    >>> with Monitor(net, X, every=2) as monitor:
    ...     for _ in range(5):
    ...         optimizer.zero_grad()
    ...         net(X).square().mean().backward()
    ...         optimizer.step()
    >>> monitor.history.steps
    (0, 2, 4, 5)
    """

    @renamed(module="net")
    def __init__(
        self,
        net: nn.Module,
        X: Any,
        every: int = 100,
        *,
        Y: Any = None,
        layers: Sequence[str] | str | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        max_samples: int = SAMPLES,
        budget: float | None = 0.05,
        max_snapshots: int = 1000,
        loss: str = "mse",
        learning_rate: float | None = None,
        ridge: float | None = None,
        true_rank: int | None = None,
        unpack: Callable[[Any], Any] | None = None,
        seed: int = 0,
        on_snapshot: Callable[[Snapshot], Any] | None = None,
    ) -> None:
        who = "Monitor"
        if on_snapshot is not None and not callable(on_snapshot):
            got = type(on_snapshot).__name__
            fail(who, "`on_snapshot` must be callable", got, "Pass a function of one snapshot.")
        self._on_snapshot = on_snapshot
        self.every = check_integer(who, "every", every, low=1)
        self._most = check_integer(who, "max_snapshots", max_snapshots, low=3)
        if budget is not None:
            check_number(who, "budget", budget, low=0.0, low_open=True)
        self._budget = budget
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            got = type(optimizer).__name__
            fail(who, "`optimizer` must be a torch.optim.Optimizer", got, "Pass the one that the loop steps.")
        options = {"loss": loss, "layers": layers, "max_samples": max_samples, "unpack": unpack, "seed": seed}
        options |= {"learning_rate": learning_rate, "ridge": ridge, "true_rank": true_rank}
        self._camera = Camera(who, net, X, Y, **options)
        if optimizer is None and net._compiled_call_impl is not None:
            got, do = "a module compiled in place", "Pass `optimizer`: its steps are counted instead."
            fail(who, "forwards are counted by a hook, which compiled code leaves out", got, do)
        # The wrapper's own forward is the one that the loop calls, and no compiled code.
        self._called, self._optimizer = net, optimizer
        self._settings = {
            "every": every,
            "counts": "forwards in training mode" if optimizer is None else f"steps of {type(optimizer).__name__}",
            "layers": [layers] if isinstance(layers, str) else None if layers is None else list(layers),
            "max_samples": max_samples,
            "budget": budget,
            "loss": None if Y is None else loss,
            "learning_rate": learning_rate,
            "ridge": ridge,
            "true_rank": true_rank,
            "seed": seed,
        }
        self.step = self.left_out = 0
        self._snapshots: list[Snapshot] = []
        self._hook: RemovableHandle | None = None
        self._busy = False
        self._spent, self._first, self._last, self._entered, self._left = 0.0, 0.0, 0.0, 0.0, 0.0

    @property
    def history(self) -> History:
        """What was recorded so far."""
        settings = {**self._settings, "overhead": self.overhead, "left_out": self.left_out}
        if self.every != self._settings["every"]:
            settings["every_at_the_end"] = self.every
        notes = self._camera.notes
        if self.left_out:
            notes = *notes, f"{self.left_out} snapshots that were due are left out: see `budget`"
        return History(tuple(self._snapshots), notes, settings)

    @property
    def overhead(self) -> float:
        """Share of the wall time since entering that was spent in snapshots; 0 before."""
        until = self._left or time.perf_counter()
        return self._spent / (until - self._entered) if self._entered else 0.0

    def record(self, step: int | None = None) -> Snapshot:
        """Take a snapshot now, besides those that are due; ``step`` is the count of a loop that counts itself."""
        if step is not None:
            self.step = check_integer("Monitor.record", "step", step, low=0)
        self._busy = True
        try:
            snapshot = self._timed(lambda: safely(self._camera.take, self.step))
        finally:
            self._busy = False
        self._keep(snapshot)
        return snapshot

    def _timed(self, take: Callable[[], Snapshot]) -> Snapshot:
        started = time.perf_counter()
        snapshot = take()
        self._last = time.perf_counter() - started
        self._spent += self._last
        return snapshot

    def _affordable(self) -> bool:
        """Whether one more snapshot like the last stays within the budget."""
        if self._budget is None:
            return True
        allowed = self._budget * (time.perf_counter() - self._entered)
        return self._spent + self._last <= allowed or self._spent - self._first + self._last <= SECONDS_FREE

    def _keep(self, snapshot: Snapshot) -> None:
        self._snapshots.append(snapshot)
        if len(self._snapshots) > self._most:
            self._snapshots = self._snapshots[:-1:2] + self._snapshots[-1:]
            self.every *= 2
        if self._on_snapshot is not None:
            self._on_snapshot(snapshot)

    def __enter__(self) -> Monitor:
        if self._hook is not None:
            fail("Monitor", "a Monitor is entered once at a time", "one that is open", "Leave it first, or make two.")
        self._spent, self._entered, self._left = 0.0, time.perf_counter(), 0.0
        self._keep(self._timed(lambda: self._camera.take(self.step)))
        self._first = self._last
        if self._optimizer is not None:
            self._hook = self._optimizer.register_step_post_hook(self._after_step)
        else:
            self._hook = self._called.register_forward_pre_hook(self._before_forward)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self._snapshots[-1].step != self.step:
            self.record()
        self._left = time.perf_counter()

    def _before_forward(self, *_: Any) -> None:
        # The module's own flag: that of a compiled wrapper is a copy.
        if self._busy or not (self._camera.module.training and torch.is_grad_enabled()):
            return
        # Before forward number n + 1 the weights are those after n steps.
        self._when_due()
        self.step += 1

    def _after_step(self, *_: Any) -> None:
        self.step += 1
        self._when_due()

    def _when_due(self) -> None:
        if self.step % self.every or self._snapshots[-1].step == self.step:
            return
        if self._affordable():
            self.record()
        else:
            self.left_out += 1


# ---- A series of checkpoints of one network, looked at one after the other


_CONVERT = "`isthmus convert OLD NEW.safetensors` makes a file of numbers of it; with --raw, of any class of network."


@renamed(module="net")
def diagnose_checkpoints(
    net: nn.Module,
    checkpoints: Iterable[Mapping[str, Tensor] | str | os.PathLike[str]],
    X: Any,
    Y: Any = None,
    *,
    steps: Sequence[int] | None = None,
    loss: str = "mse",
    layers: Sequence[str] | str | None = None,
    max_samples: int = SAMPLES,
    unpack: Callable[[Any], Any] | None = None,
    seed: int = 0,
) -> History:
    """Ranks, norms and spectra over a series of checkpoints of one network.

    Parameters
    ----------
    net : nn.Module
        Of the same shape; a copy is loaded, the network itself stays as it is.
    checkpoints : iterable of state dicts or paths
        Paths of ``.safetensors`` files, those of this library or of any other; pickles are never loaded. One is read
        at a time.
    X, Y, loss, layers, max_samples, unpack, seed
        As in :class:`~isthmus.diagnosis.Monitor`.
    steps : sequence of int, optional
        The step of each checkpoint; 0, 1, 2, … unless given.

    Returns
    -------
    History
    """
    who = "diagnose_checkpoints"
    if isinstance(checkpoints, (str, os.PathLike, Mapping)):
        got = type(checkpoints).__name__
        fail(who, "`checkpoints` must be a series of state dicts or paths", got, "Put it into a list.")
    numbers = None if steps is None else [check_integer(who, "steps", one, low=0) for one in steps]
    if isinstance(checkpoints, Sequence) and numbers is not None and len(numbers) != len(checkpoints):
        got = f"{len(numbers)} steps for {len(checkpoints)} checkpoints"
        fail(who, "`steps` must have one entry for each checkpoint", got, "Give each its step.")
    plain, _ = unwrap(net, who=who)
    try:
        replica = copy.deepcopy(plain)
    except Exception as error:  # whatever a user's __deepcopy__ raises
        got = f"{type(error).__name__}: {error}"
        fail(who, "`net` must be copyable", got, "Pass a new network of the same class.")
    camera = Camera(who, replica, X, Y, loss=loss, layers=layers, max_samples=max_samples, unpack=unpack, seed=seed)
    snapshots = []
    for index, checkpoint in enumerate(checkpoints):
        if numbers is not None and index >= len(numbers):
            fail(who, "`steps` must have one entry for each checkpoint", f"{len(numbers)} for more", "Give all.")
        is_path = isinstance(checkpoint, (str, os.PathLike))
        label = shown(checkpoint) if is_path else f"checkpoint {index}"
        load_strictly(who, replica, read_state(who, checkpoint) if is_path else checkpoint, label)
        snapshots.append(camera.take(index if numbers is None else numbers[index]))
    if not snapshots:
        fail(who, "`checkpoints` must not be empty", "none", "Pass state dicts or paths.", error=DataError)
    settings = {"checkpoints": len(snapshots), "max_samples": max_samples, "seed": seed}
    return History(tuple(snapshots), camera.notes, settings)


def read_state(who: str, path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file, written by this library (its hashes are checked) or by any other."""
    label = shown(path)
    with open_checked(who, path, MAX_FILE_BYTES) as (handle, size):
        refuse_pickle(who, path, handle.read(4))
        handle.seek(0)
        header = read_header(who, handle, size, label)
        if "sha256" in header.metadata:
            return read_body(who, handle, header, label)
        # The header accounts for every byte of the file: nothing larger than it can be asked for.
        return {
            entry.name: _tensor(handle.read(entry.end - entry.begin), DTYPES[entry.code], entry.shape)
            for entry in header.entries
        }


def _tensor(content: bytes, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    flat = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
    return flat.reshape(tuple(shape))


def refuse_pickle(who: str, path: str | os.PathLike[str], start: bytes) -> None:
    """Fail if a file is a pickle by its name or its first bytes: loading one runs whatever code is in it."""
    name = Path(path).name
    by_name = name.lower().endswith((".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin"))
    if by_name or start[:2] in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        must = f"{shown(path)} must be a safetensors file"
        fail(who, must, "a pickle, which can run code when it is loaded", _CONVERT, error=FileFormatError)


def load_strictly(who: str, module: nn.Module, state: Any, label: str) -> None:
    """Load a state dict into ``module``, or fail naming the tensors that do not match."""
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        fail(who, f"{label} must be a state dict or a path", type(state).__name__, "Pass `module.state_dict()`.")
    try:
        module.load_state_dict(state, strict=True)
    except RuntimeError as error:
        own = module.state_dict()
        shapes = {name: (tuple(own[name].shape), tuple(state[name].shape)) for name in own if name in state}
        wrong = [f"{name} {there} for {here}" for name, (here, there) in shapes.items() if here != there]
        parts = {
            "missing": [name for name in own if name not in state],
            "not in the module": [name for name in state if name not in own],
            "of another shape": wrong,
        }
        said = [f"{what}: {', '.join(names[:5])}{', …' * (len(names) > 5)}" for what, names in parts.items() if names]
        got, do = "; ".join(said) or str(error), "Pass the module that it was saved from."
        fail(who, f"{label} must have the tensors of the module", got, do, error=DataError)
