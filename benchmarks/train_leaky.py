"""F-ham-1's network: seconds to the loss at which the paper's recipe ends, and how near to critical each side is.

    python benchmarks/train_leaky.py [--quick] [--json] [--out benchmarks/results/train_leaky.json]

A leaky ResNet with adaptive steps, L̃ = 7, on F-ham-1's task; the loss is the regularised one of the figure. The recipe
is the paper's, in plain PyTorch with autograd: Adam at 1e-3, then gradient descent; all samples in each step, steps
adapted every 20 epochs by the same rule. At a smaller size it has the paper's 20,000 + 10,000 steps, at the figure's
own size fewer: they are long there. Ours is the plan of the figure, to its end. The residual is that of
criticality, kinks resolved, in float64: 0 at a critical point of the loss. Same data, same start, float32 in training.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from _bench import Gate, arguments, report
from _recipes import followed, plain_pytorch

from isthmus import LeakyResNet, mechanics
from isthmus.experiments.hamiltonian2024._mechanics import HamiltonianFigure1
from isthmus.experiments.hamiltonian2024._trained import KINKS, MEMORY, Split, plan_of_path, ridge_of, split
from isthmus.problems import teacher
from isthmus.training import Phase

#: L̃ of the networks.
DEEP = 7.0


@dataclass(frozen=True)
class Setting:
    """A size of the network, and the steps of the recipe."""

    name: str
    setting: HamiltonianFigure1
    adam: int
    descent: int


PAPER = Setting("F-ham-1, L̃ = 7", HamiltonianFigure1(steps=100), 3000, 1000)
SMALL = HamiltonianFigure1(width=64, layers=20, samples=500, steps=100)
SMALLER = Setting("smaller, the whole recipe", SMALL, 20_000, 10_000)
QUICK = Setting("quick", HamiltonianFigure1.quick(), 300, 100)


def residual(net: LeakyResNet, data: Split, ridge: float) -> tuple[float, float]:
    """Distance from criticality, and the spread of the Hamiltonian."""
    found = mechanics(net, data.X, data.Y, ridge=ridge, gamma_share=1e-3, kinks=KINKS).arrays
    if found is None:
        return float("nan"), float("nan")
    return float(found.total_residual), float(found.spread)


def one(case: Setting) -> dict[str, Any]:
    """Both sides on one network."""
    s = case.setting
    shape = {"d_in": s.d_in, "rank": s.rank, "d_out": s.d_out, "samples": 2 * s.samples}
    data = split(teacher(**shape, relu_latents=True, seed=0), s.samples)
    generator = torch.Generator().manual_seed(0)
    net = LeakyResNet(s.d_in, s.d_out, s.width, s.layers, DEEP, steps="adaptive", generator=generator)
    ridge = ridge_of(s.settings, DEEP)
    twin = copy.deepcopy(net)
    last = [Phase("lbfgs", 4 * s.steps, memory=MEMORY)]
    phases = plan_of_path(net, data.Y, ridge, s.steps, s.learning_rate, last)
    _, curve = followed(net, data.X, data.Y, ridge, phases)
    recipe = plain_pytorch(twin, data.X, data.Y, ridge, adam=case.adam, descent=case.descent, every=100)
    reached = next((seconds for seconds, loss in curve if loss <= recipe.loss), None)
    near, spread = residual(net, data, ridge)
    their_net = recipe.module.to_isthmus()  # pyright: ignore[reportCallIssue]
    their, their_spread = residual(their_net, data, ridge)
    end, loss = curve[-1]
    return {
        "network": case.name,
        "recipe's steps": f"{case.adam} + {case.descent}",
        "recipe s": recipe.seconds,
        "recipe's loss": recipe.loss,
        "ours s": reached,
        "ratio": recipe.seconds / reached if reached else None,
        "ours end s": end,
        "ratio at the end": recipe.seconds / end,
        "ours end loss": loss,
        "residual": near,
        "recipe's residual": their,
        "spread": spread,
        "recipe's spread": their_spread,
        "rate": recipe.rate,
        "curve": curve[:: max(1, len(curve) // 100)],
        "recipe's curve": recipe.curve[:: max(1, len(recipe.curve) // 100)],
    }


def main() -> None:
    """Run and show."""
    options = arguments(__doc__ or "").parse_args()
    torch.set_num_threads(options.threads)
    rows = [one(case) for case in ((QUICK,) if options.quick else (PAPER, SMALLER))]
    gates, told = [], []
    for row in rows:
        where, ratio = row["network"], row["ratio"] or 0.0
        closer = row["residual"] / row["recipe's residual"]
        if where == PAPER.name:
            gates.append(Gate(f"{where}: times the recipe to its final loss", ratio, "≥ 3", ratio >= 3))
            gates.append(Gate(f"{where}: our residual over the recipe's", closer, "< 1", closer < 1))
        loss, their = row["recipe's loss"], row["recipe's residual"]
        told.append(
            f"{where}: {ratio:.1f} times less time to the recipe's loss of {loss:.3g}; in the end, after "
            f"{row['ratio at the end']:.1f} times less time than the whole recipe, a loss of "
            f"{row['ours end loss']:.3g} and a residual of {row['residual']:.2g} against {their:.2g}"
        )
    report(
        options,
        name="train_leaky",
        question="How many seconds to the loss at which the paper's recipe ends, for F-ham-1's leaky ResNet?",
        answer=". ".join(told) + ".",
        columns=[
            *("network", "recipe's steps", "recipe s", "recipe's loss", "ours s", "ratio", "ours end s"),
            *("ratio at the end", "ours end loss", "residual", "recipe's residual"),
        ],
        rows=rows,
        gates=gates if not options.quick else [],
        peers=["torch"],
    )


if __name__ == "__main__":
    main()
