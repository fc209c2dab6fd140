"""Resuming: bitwise the weights of an uninterrupted run, from every step of every kind of phase, and after SIGKILL."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.files import read_tensors
from small import PLANS, long_training, network, quiet, same_bits, task, weights
from tools import gaussian, orthogonal

DIMS = (4, 8, 8, 8, 3)


def start(name):
    """Network and data of a plan; for narrowing a rank to work on."""
    dtype = torch.float32 if name in ("double", "sgd") else torch.float64
    net = network(DIMS, dtype=dtype)
    X, Y = task(dtype=dtype)
    if name == "narrow":
        with torch.no_grad():
            P = orthogonal(8, 3)
            net.weights[1].copy_(P @ P.mT @ net.weights[1])
    return net, X, Y


def options(name):
    return {"ridge": 1e-2, "phases": PLANS[name], "seed": 3}


def copies_of_every_checkpoint(name, folder):
    """Train with a checkpoint at every step; a copy of the folder as it was after each."""
    net, X, Y = start(name)
    live, copies = folder / "live", []

    def keep(event):
        if live.exists():
            copies.append(folder / f"copy-{len(copies)}")
            shutil.copytree(live, copies[-1])

    result = quiet(net, X, Y, checkpoint=live, checkpoint_seconds=0.0, callbacks=[keep], **options(name))
    shutil.copytree(live, folder / "end")
    return weights(net), result, [*copies, folder / "end"]


@pytest.mark.parametrize("name", sorted(PLANS))
def test_from_every_step(name, tmp_path):
    expected, full, copies = copies_of_every_checkpoint(name, tmp_path)
    alone, X, Y = start(name)
    quiet(alone, X, Y, **options(name))
    assert same_bits(weights(alone), expected)  # checkpoints change nothing
    if len(copies) > 20:
        # All steps of the shorter plans; of the longer ones some, and every end of a phase.
        phases = full.history["phase"]
        ends = [i + d for i in range(len(phases) - 1) if phases[i] != phases[i + 1] for d in (-1, 0)]
        chosen = {*ends, *range(0, len(copies), len(copies) // 6), len(copies) - 1, len(copies) - 2}
        copies = [copies[i] for i in sorted(chosen)]
    steps = set()
    for copy in copies:
        net, X, Y = start(name)
        taken = []
        result = quiet(net, X, Y, checkpoint=copy, callbacks=[taken.append], **options(name))
        assert same_bits(weights(net), expected), copy.name
        assert (result.state, result.reason, result.steps) == (full.state, full.reason, full.steps)
        assert all(v.tolist() == result.history[k].tolist() for k, v in full.history.items())
        steps.add(len(taken))
    assert 0 in steps  # the last checkpoint is the end
    assert len(steps) > min(4, len(copies) - 1)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("adam", "ctrl-c"),
        ("nesterov", "callback"),
        ("metric", "ctrl-c"),
        ("metric", "time"),
        ("narrow", "ctrl-c"),
        ("narrow", "callback"),
        ("narrow", "time"),
        ("double", "ctrl-c"),
        ("double", "callback"),
    ],
)
def test_after_interruptions(name, how, tmp_path):
    net, X, Y = start(name)
    quiet(net, X, Y, **options(name))
    states, again = [], net
    for part in range(200):
        again, X, Y = start(name)
        count = 0

        def stop(event):
            nonlocal count
            count += 1
            if count == 9 + 4 * (part % 3):  # noqa: B023
                if how == "ctrl-c":
                    raise KeyboardInterrupt
                return how == "callback"
            return None

        limit = {"max_seconds": 0.06} if how == "time" else {}
        kept = {"checkpoint": tmp_path, "checkpoint_seconds": 0.0, "callbacks": [stop]}
        try:
            result = quiet(again, X, Y, **kept, **limit, **options(name))
        except KeyboardInterrupt:
            states.append("raised")
            continue
        states.append(result.state)
        if result.at_rest or (result.state == "budget" and "max_seconds" not in result.reason):
            break
    assert set(states[:-1]) == {{"time": "budget", "callback": "interrupted", "ctrl-c": "raised"}[how]}
    assert len(states) > 1
    assert same_bits(weights(again), weights(net))


def test_buffers_are_continued(tmp_path):
    def module() -> Any:
        net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3)).double()
        with torch.no_grad():
            for i, p in enumerate(net.parameters()):
                p.copy_(0.5 * gaussian(*p.shape, seed=i))
        return net

    X, Y = task()
    phases = PLANS["gd"]
    full, part = module(), module()
    quiet(full, X, Y, phases=phases)
    quiet(part, X, Y, phases=phases, checkpoint=tmp_path, callbacks=[lambda event: event.step == 5])
    again = module()
    quiet(again, X, Y, phases=phases, checkpoint=tmp_path)
    assert same_bits(weights(again), weights(full))
    assert not torch.equal(again[1].running_mean, module()[1].running_mean)


# ---------------------------------------------------------------- SIGKILL

WORKER = """
    import sys, warnings
    sys.path[:0] = sys.argv[2:4]
    import torch
    torch.set_num_threads(1)
    from small import long_training
    print("ready", flush=True)
    long_training(sys.argv[1])
"""


def kill_once(folder, seconds):
    here = Path(__file__).parent
    command = [sys.executable, "-c", textwrap.dedent(WORKER), str(folder), str(here), str(here.parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        time.sleep(seconds)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(("kills", "chains"), [(2, 1), pytest.param(20, 4, marks=pytest.mark.slow)])
def test_sigkill_at_random_moments(kills, chains, tmp_path):
    began = time.monotonic()
    expected = long_training(None)
    seconds = time.monotonic() - began
    rng = random.Random(kills)
    steps = []
    for chain in range(chains):
        folder = tmp_path / f"killed-{chain}"
        for _ in range(kills // chains):
            # Short lives, so that several kills fall into one training.
            kill_once(folder, rng.uniform(0.05, 1.5) * seconds / (kills // chains))
            paths = sorted(folder.glob("*.safetensors"))
            found = [json.loads(read_tensors(path)[1]["numbers"])["step"] for path in paths]
            steps.append(max(found, default=0))
        assert same_bits(long_training(folder), expected)
    # They did fall into the training, and each part went on from the one before.
    assert max(steps) > 0
    per_chain = kills // chains
    for i in range(0, kills, per_chain):
        assert steps[i : i + per_chain] == sorted(steps[i : i + per_chain])
