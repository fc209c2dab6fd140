"""Every number of the page "How to read a rank": ``python docs/figures/how_to_read_a_rank.py [CASE …]``.

Writes ``docs/figures/how_to_read_a_rank.json``, one entry per case, and the picture of the case ``ball``. Named cases
are run again; without a name, those that the file lacks.
"""

import math
import sys
from pathlib import Path

import numpy as np

import isthmus
from isthmus.files import read_json, write_json
from isthmus.problems import CATALOGUE, angle, teacher

HERE = Path(__file__).parent
NUMBERS = HERE / "how_to_read_a_rank.json"


def copies(samples=1000):
    """y depends on x0 and x1; x2 is x0 with 1 % of noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((samples, 3))
    X[:, 2] = X[:, 0] + 0.01 * X[:, 2]
    Y = np.column_stack([X[:, 0], X[:, 1], np.abs(X[:, 0]), X[:, 0] + X[:, 1]])
    return {"X": X, "Y": Y}


def patients(count=60, each=10):
    """Inputs that name the patient, outputs that are the patient's own and have nothing to do with them."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(count), each)
    X = rng.standard_normal((count, 5))[who] + 0.1 * rng.standard_normal((count * each, 5))
    Y = rng.standard_normal((count, 4))[who] + 0.1 * rng.standard_normal((count * each, 4))
    return {"X": X, "Y": Y}, who


def weak(samples=1000):
    """The second of two latents explains 0.3 % of the variance of every output."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((samples, 10))
    A = np.sign(rng.standard_normal((2, 10))) * np.sqrt([[0.997], [0.003]])
    return {"X": X, "Y": X[:, :2] @ A}


def of(problem):
    return {"X": problem.X, "Y": problem.Y}


def units(problem):
    rng = np.random.default_rng(0)
    return {
        "X": problem.X * 10.0 ** rng.integers(-3, 4, problem.X.shape[1]) + 100,
        "Y": problem.Y * 10.0 ** rng.integers(-3, 4, problem.Y.shape[1]),
    }


def cases():
    """Name → function that returns the arguments of discover."""
    table, who = patients()
    noisy = teacher(d_in=20, rank=3, d_out=20, samples=1000, noise=0.1)
    out = {
        "circle": of(angle()),
        "arc": of(CATALOGUE["arc"]()),
        "product": of(CATALOGUE["product"]()),
        "norm": of(CATALOGUE["norm"]()),
        "ball": of(CATALOGUE["ball-ranges"](noise=0.05)),
        "one-output": {"X": noisy.X, "Y": noisy.Y[:, 0]},
        "pure-noise": of(CATALOGUE["pure-noise"]()),
        "few": of(teacher(d_in=20, rank=3, d_out=20, samples=60, noise=0.1)),
        "few-held": of(teacher(d_in=20, rank=3, d_out=20, samples=30, noise=0.1)),
        "weak": weak(),
        "weak-fine": {**weak(), "resolution": 0.001, "steps": 100},
        "copies": copies(),
        "patients-rows": table,
        "patients-groups": {**table, "groups": who},
        "many": {**of(teacher(d_in=20, rank=3, d_out=20, samples=20000, noise=0.1)), "max_samples": 2000},
        "short": {**of(noisy), "steps": 4},
        "max-rank": {**of(noisy), "max_rank": 2},
        "units": units(noisy),
        "rows": {"X": noisy.X[::-1], "Y": noisy.Y[::-1]},
        "seed": {**of(noisy), "seed": 1},
        "rate": {**of(noisy), "learning_rate": 1e-2},
        "start": {**of(noisy), "init_scale": 0.5},
        "depth": {**of(noisy), "depth": 12},
    }
    for noise in (0.0, 0.1, 0.3, 0.6):
        out[f"noise-{noise:g}"] = of(teacher(d_in=20, rank=3, d_out=20, samples=1000, noise=noise))
    return out


def summary(found):
    """What the page may quote, rounded as it is quoted."""

    def short(value):
        return float(f"{value:.2g}") if math.isfinite(value) else None

    return {
        "rank": found.rank,
        "verdict": found.verdict,
        "error": short(found.error),
        "reasons": list(found.reasons),
        "notes": list(found.notes),
        "errors": {str(k): short(e) for k, e in zip(found.profile.ranks, found.profile.error)},
        "walks": [found.profile.chosen, *[replica.chosen for replica in found.replicas]],
        "evidence": {item.name: short(item.value) for item in found.evidence},
        "sensitivity": [[short(v) for v in row[:5]] for row in found.sensitivity.value],
        "seconds": found.settings["seconds"],
    }


def main(wanted):
    numbers = read_json(NUMBERS) if NUMBERS.exists() else {}
    everything = cases()
    for name, arguments in everything.items():
        if name not in (wanted or set(everything) - set(numbers)):
            continue
        found = isthmus.discover(**arguments)
        numbers[name] = summary(found)
        print(name, found, *found.reasons, sep="\n  ", flush=True)
        if name == "ball":
            found.plot().savefig(HERE / "how_to_read_a_rank.png", dpi=80)
        write_json(NUMBERS, {key: numbers[key] for key in everything if key in numbers})


if __name__ == "__main__":
    main(sys.argv[1:])
