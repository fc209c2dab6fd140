"""What makes the residual of criticality of a leaky ResNet small: several ways of training, at equal processor time.

    python benchmarks/criticality.py [--quick | --draw | --again SEED | --redo TEXT] [--seconds S] [--keep DIR]
                                     [--data FILE] [--json] [--out benchmarks/results/criticality.json]

One task (10 → 3 → 10), one network, one thread. Every way begins at the same data and, but for the two Gaussian ones,
the same weights; the ways of finishing all begin where the continuation in the ridge ended, and get as much time again.
The clock is the processor's and stands still while a point is measured. What is measured is ‖∇‖/(2·ridge·‖θ‖) in
float64 at the final ridge, whatever the ridge in force. A full run writes all curves into ``--data``
(``criticality.json`` beside this file) and ``docs/notes/criticality.png``; what is in ``--out`` comes from them. Curves
differ from run to run: they follow a clock.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from _bench import arguments, report
from _critical_points import (
    GaussNewton,
    Setting,
    ended,
    gradient,
    largest_curvature,
    model_by_length,
    place,
)
from _criticality_page import BEGIN, CONTINUED, FINISH, draw, result, row, table
from torch import nn

from isthmus import ConvergenceWarning, LeakyResNet, load, save
from isthmus._provenance import provenance
from isthmus.experiments.hamiltonian2024._trained import MEMORY, plan_of_path
from isthmus.files import read_json, write_atomic, write_json
from isthmus.networks._leaky_resnet import LeakyMetric
from isthmus.plotting.style import render
from isthmus.training import Phase, train
from isthmus.training._objective import Stack

HERE = Path(__file__).parent
PICTURE = HERE.parent / "docs" / "notes" / "criticality.png"
ENDLESS = 10**7
CG_STEPS = 30
QUICK = Setting(d=3, rank=2, width=8, layers=4, effective_depth=3.0, samples=40, seconds=0.25, plan_steps=10)


class Recorder:
    """Loss and residual against processor seconds; a callback of :func:`isthmus.train`, which ends it in time."""

    def __init__(self, setting: Setting, start: nn.Module) -> None:
        self.setting = setting
        self.X, self.Y = setting.data()
        self.used, self.due, self.mark = 0.0, 0.0, 0.0
        self.rows: dict[str, list[float]] = {"seconds": [], "loss": [], "residual": []}
        self.measure(start)

    def measure(self, net: nn.Module) -> None:
        """One point, off the clock."""
        ridge = self.setting.ridge
        loss, g, theta = gradient(net, self.X, self.Y, ridge)
        for key, number in zip(self.rows, (self.used, loss, float(g.norm()) / (2.0 * ridge * float(theta.norm())))):
            self.rows[key].append(number)
        self.due = self.used + max(self.setting.seconds / 100.0, 0.08 * self.used)
        self.mark = time.process_time()

    def __call__(self, event: Any) -> bool:
        """After every step."""
        return self.tick(event.network)

    def tick(self, net: nn.Module) -> bool:
        """Whether the time is over."""
        now = time.process_time()
        self.used, self.mark = self.used + now - self.mark, now
        over = self.used >= self.setting.seconds
        if over or self.used >= self.due:
            self.measure(net)
        return over


def trained(recorder: Recorder, net: LeakyResNet, *phases: Phase, coupling: float | None = None) -> dict[str, Any]:
    """Train in place until the time is over."""
    setting = recorder.setting

    def other(net: LeakyResNet, loss: str) -> LeakyMetric:
        assert coupling is not None
        metric = LeakyMetric(net, loss)
        metric.coupling = coupling
        return metric

    patch = mock.patch.object(LeakyResNet, "metric", other) if coupling else contextlib.nullcontext()
    with warnings.catch_warnings(), patch:
        # Stopped by the recorder: that is no surprise.
        warnings.simplefilter("ignore", ConvergenceWarning)
        options: dict[str, Any] = {"ridge": setting.ridge, "phases": phases, "tolerance": 0.0, "seed": setting.seed}
        result = train(net, recorder.X, recorder.Y, callbacks=[recorder], **options)
    recorder.measure(net)
    return {"curve": recorder.rows, "steps": result.steps, "evaluations": result.evaluations, "reason": result.reason}


def clocked(recorder: Recorder, learning_rate: float) -> Phase:
    """Adam whose rate falls along the clock, not along steps: it ends annealed however fast the machine was."""

    class Clocked(Phase):
        def rate(self, step: int) -> float:  # noqa: ARG002
            return super().rate(int(min(1.0, recorder.used / recorder.setting.seconds) * self.steps))

    return Clocked("adam", ENDLESS, learning_rate, anneal=True)


def gauss_newton(recorder: Recorder, net: LeakyResNet) -> dict[str, Any]:
    """Gauss–Newton steps by conjugate gradients in the metric, halved until the loss falls enough."""
    X, ridge, shares, steps = recorder.X, recorder.setting.ridge, [], 0
    objective = Stack([copy.deepcopy(net)], [X], [recorder.Y], "mse").objectives[0]
    with objective.attached():
        value, over = objective(ridge), False
        while not over:
            place(net, objective.theta)
            H = GaussNewton(net, X, ridge)
            x, square = H.step(value.gradient, CG_STEPS)
            slope, origin, length = float(value.gradient @ x), objective.theta.clone(), 1.0
            predicted = -slope - 0.5 * square
            for trial in range(20):
                torch.add(origin, x, alpha=length, out=objective.theta)
                new = objective(ridge)
                if trial == 0:
                    shares.append((value.loss - new.loss) / predicted)
                if new.loss <= value.loss + 1e-4 * length * slope:
                    break
                length *= 0.5
            else:
                objective.theta.copy_(origin)
                new, over = value, True
            value, steps = new, steps + 1
            place(net, objective.theta)
            over = recorder.tick(net) or over
    recorder.measure(net)
    quartiles = np.quantile(shares, (0.25, 0.5, 0.75)).tolist()
    told = {"steps": steps, "evaluations": objective.evaluations, "model_right": quartiles}
    return {"curve": recorder.rows, **told, "reason": ""}


# -------------------------------------------------------------------- the ways


def begin(setting: Setting, name: str) -> dict[str, Any]:
    """One way from the start, and its network."""
    net = setting.network("gaussian" if "Gaussian" in name else "identity")
    recorder = Recorder(setting, net)
    if name.startswith("Adam"):
        found = trained(recorder, net, clocked(recorder, setting.learning_rate))
    elif name == CONTINUED:
        last = [Phase("lbfgs", ENDLESS, memory=MEMORY)]
        phases = plan_of_path(net, recorder.Y, setting.ridge, setting.plan_steps, setting.learning_rate, last)
        found = trained(recorder, net, *phases)
    else:
        phase = Phase("lbfgs", ENDLESS, metric=name != "L-BFGS")
        found = trained(recorder, net, phase, coupling=1.0 if name == "metric ×1" else None)
    return {**found, "end": ended(setting, net), "network": net}


def finish(setting: Setting, name: str, middle: LeakyResNet) -> dict[str, Any]:
    """One way from where the continuation ended, and its network."""
    net = copy.deepcopy(middle)
    recorder, more = Recorder(setting, net), {}
    if name.startswith("Gauss"):
        more["model"] = model_by_length(setting, net, CG_STEPS)
        recorder = Recorder(setting, net)  # the clock begins now
        found = gauss_newton(recorder, net)
    elif name.startswith("Adam"):
        found = trained(recorder, net, clocked(recorder, 1e-4))
    elif name.startswith("Nesterov"):
        more["rate"] = 0.5 / largest_curvature(net, recorder.X, recorder.Y, setting.ridge)
        found = trained(recorder, net, Phase("nesterov", ENDLESS, more["rate"]))
    else:
        precision = "double" if name.endswith("float64") else "module"
        found = trained(recorder, net, Phase("lbfgs", ENDLESS, precision=precision))
    return {**found, **more, "end": ended(setting, net), "network": net}


def curvature(setting: Setting, net: LeakyResNet) -> dict[str, Any]:
    """The Gauss–Newton matrix against the metric with either coupling, in float64."""
    H = GaussNewton(copy.deepcopy(net).double(), setting.data()[0].double(), setting.ridge)
    return {"1": H.against_metric(1.0), "L": H.against_metric(float(setting.layers))}


def experiment(setting: Setting, path_lengths: Sequence[int], keep: Path) -> dict[str, Any]:
    """All ways, then the continuation again with other numbers of steps along the path."""
    found: dict[str, Any] = {"begin": {}, "finish": {}, "layers": {}}
    found["curvature"] = {"start": curvature(setting, setting.network())}
    for name in BEGIN:
        found["begin"][name] = told(name, begin(setting, name), keep)
    middle = load(keep / f"{CONTINUED}.safetensors")
    found["curvature"]["continued"] = curvature(setting, middle)
    for name in FINISH:
        found["finish"][name] = told(f"then {name}", finish(setting, name, middle), keep)
    for layers in path_lengths:
        other = dataclasses.replace(setting, layers=layers, seconds=setting.seconds * layers / setting.layers)
        found["layers"][str(layers)] = told(f"{layers} steps", begin(other, CONTINUED), keep)
    return found


def again(setting: Setting, keep: Path) -> dict[str, Any]:
    """The ways to begin from the identity, with other data and weights."""
    names = [name for name in BEGIN if "Gaussian" not in name]
    return {name: told(f"{name}, seed {setting.seed}", begin(setting, name), keep) for name in names}


def redone(document: dict[str, Any], text: str, setting: Setting, keep: Path) -> None:
    """Every way with ``text`` in its name once more, in place."""
    middle = load(keep / f"{CONTINUED}.safetensors")
    for name in document["begin"]:
        if text in name:
            document["begin"][name] = told(name, begin(setting, name), keep)
    for name in document["finish"]:
        if text in name:
            document["finish"][name] = told(f"then {name}", finish(setting, name, middle), keep)
    for seed, ways in document.get("again", {}).items():
        other = dataclasses.replace(setting, seed=int(seed))
        ways.update({n: told(f"{n}, seed {seed}", begin(other, n), keep) for n in ways if text in n})


def told(name: str, one: dict[str, Any], keep: Path) -> dict[str, Any]:
    """The same without its network, which goes into the folder ``keep``; a row of the table is printed."""
    print(row(name, one), file=sys.stderr, flush=True)
    keep.mkdir(parents=True, exist_ok=True)
    save(one["network"], keep / f"{name}.safetensors")
    return {key: value for key, value in one.items() if key != "network"}


def main() -> None:
    """Run, print, keep, draw."""
    parser = arguments(__doc__ or "")
    # Times are those of the processor, of one thread.
    parser.set_defaults(threads=1)
    parser.add_argument("--seconds", type=float, help="processor seconds of each way")
    parser.add_argument("--again", type=int, metavar="SEED", help="add to what was kept: other draws")
    parser.add_argument("--redo", metavar="TEXT", help="replace what was kept: ways with TEXT in their names")
    parser.add_argument("--draw", action="store_true", help="only the table and the picture of what was kept")
    parser.add_argument("--keep", type=Path, help="a folder for the networks; --redo takes them from there")
    parser.add_argument("--data", type=Path, help="the file of the curves; a quick run keeps none unless it is given")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data, started = options.data or HERE / "criticality.json", time.time()
    with tempfile.TemporaryDirectory() as folder:
        keep = options.keep or Path(folder)
        if options.draw or options.redo or options.again is not None:
            document = read_json(data)
            setting = Setting(**{key: value for key, value in document["setting"].items() if key != "ridge"})
            if options.again is not None:
                other = dataclasses.replace(setting, seed=options.again)
                document.setdefault("again", {})[str(options.again)] = again(other, keep)
            if options.redo:
                redone(document, options.redo, setting, keep)
            if not options.draw:
                when = datetime.fromtimestamp(started, UTC).isoformat(timespec="minutes")
                more = {"again": options.again, "redo": options.redo, "started": when}
                document.setdefault("amended", []).append(more)
        else:
            setting = QUICK if options.quick else Setting()
            setting = dataclasses.replace(setting, seconds=options.seconds or setting.seconds)
            found = experiment(setting, (3,) if options.quick else (12, 32), keep)
            took, command = time.time() - started, [f"--seconds={setting.seconds:g}"]
            origin = provenance(seed=setting.seed, dtype="float32", started=started, seconds=took, command=command)
            about = {"benchmark": "criticality", "setting": {**dataclasses.asdict(setting), "ridge": setting.ridge}}
            document = {**about, **found, "provenance": origin}
    if not options.draw and (options.data or not options.quick):
        write_json(data, document)
    report(options, name="criticality", **result(document))
    if options.draw:
        print(table(document))
    picture = render(draw(document))
    if not options.quick:
        write_atomic(PICTURE, picture)


if __name__ == "__main__":
    main()
