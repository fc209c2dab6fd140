"""The Monitor: ranks, norms and spectra during somebody's own training loop, which it does not change."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from isthmus._checks import check_integer, fail
from isthmus.diagnosis.camera import Camera, safely, timed
from isthmus.diagnosis.history import History
from isthmus.diagnosis.snapshot import Snapshot


class Monitor:
    """Record ranks, norms and spectra every so many steps of a training loop: ``with Monitor(module, X) as m: …``.

    Snapshots are taken on entering, every ``every`` steps and on leaving, by hooks: the loop needs no further call. A
    step is a forward of ``module`` in training mode with gradients on, or, where an ``optimizer`` is given, one of its
    steps (that is the better count where gradients are accumulated). The weights that the training ends with are bit
    for bit those it would have without the Monitor.

    Parameters
    ----------
    module : nn.Module
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
    max_samples : int, default 512
        Samples that each snapshot runs, in the module's own dtype.
    max_snapshots : int, default 1000
        When there are more, every second one is dropped and ``every`` doubles: memory and time stay bounded.
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

    def __init__(
        self,
        module: nn.Module,
        X: Any,
        every: int = 100,
        *,
        Y: Any = None,
        layers: Sequence[str] | str | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        max_samples: int = 512,
        max_snapshots: int = 1000,
        loss: str = "mse",
        unpack: Callable[[Any], Any] | None = None,
        seed: int = 0,
    ) -> None:
        who = "Monitor"
        self.every = check_integer(who, "every", every, low=1)
        self._most = check_integer(who, "max_snapshots", max_snapshots, low=3)
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            got = type(optimizer).__name__
            fail(who, "`optimizer` must be a torch.optim.Optimizer", got, "Pass the one that the loop steps.")
        options = {"loss": loss, "layers": layers, "max_samples": max_samples, "unpack": unpack, "seed": seed}
        self._camera = Camera(who, module, X, Y, **options)
        if optimizer is None and module._compiled_call_impl is not None:
            got, do = "a module compiled in place", "Pass `optimizer`: its steps are counted instead."
            fail(who, "forwards are counted by a hook, which compiled code leaves out", got, do)
        # The wrapper's own forward is the one that the loop calls, and no compiled code.
        self._called, self._optimizer = module, optimizer
        self._settings = {
            "every": every,
            "counts": "forwards in training mode" if optimizer is None else f"steps of {type(optimizer).__name__}",
            "layers": [layers] if isinstance(layers, str) else None if layers is None else list(layers),
            "max_samples": max_samples,
            "loss": None if Y is None else loss,
            "seed": seed,
        }
        self.step = 0
        self._snapshots: list[Snapshot] = []
        self._hook: RemovableHandle | None = None
        self._busy = False
        self._spent, self._entered, self._left = 0.0, 0.0, 0.0

    @property
    def history(self) -> History:
        """What was recorded so far."""
        settings = {**self._settings, "overhead": self.overhead}
        if self.every != self._settings["every"]:
            settings["every_at_the_end"] = self.every
        return History(tuple(self._snapshots), self._camera.notes, settings)

    @property
    def overhead(self) -> float:
        """Share of the wall time since entering that was spent in snapshots; 0 before."""
        until = self._left or time.perf_counter()
        return self._spent / (until - self._entered) if self._entered else 0.0

    def record(self) -> Snapshot:
        """Take a snapshot now, besides those that are due."""
        self._busy = True
        try:
            snapshot, seconds = timed(lambda: safely(self._camera.take, self.step))
        finally:
            self._busy = False
        self._spent += seconds
        self._keep(snapshot)
        return snapshot

    def _keep(self, snapshot: Snapshot) -> None:
        self._snapshots.append(snapshot)
        if len(self._snapshots) > self._most:
            self._snapshots = self._snapshots[:-1:2] + self._snapshots[-1:]
            self.every *= 2

    def __enter__(self) -> Monitor:
        if self._hook is not None:
            fail("Monitor", "a Monitor is entered once at a time", "one that is open", "Leave it first, or make two.")
        self._spent, self._entered, self._left = 0.0, time.perf_counter(), 0.0
        snapshot, seconds = timed(lambda: self._camera.take(self.step))
        self._spent += seconds
        self._keep(snapshot)
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
        if self.step % self.every == 0 and self._snapshots[-1].step != self.step:
            self.record()
