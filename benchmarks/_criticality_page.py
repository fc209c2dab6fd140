"""The tables and the picture of criticality.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from _critical_points import DECADES, TOLERANCES
from matplotlib.figure import Figure

from isthmus.experiments.hamiltonian2024._trained import KINKS
from isthmus.plotting.style import PALETTE, dress, new_figure

QUESTION = "Which way of training a leaky ResNet makes its residual of criticality small, at equal processor time?"
COLUMNS = (
    "way",
    "evaluations",
    "loss",
    "residual",
    "resolved",
    "elsewhere",
    "rank",
    "Hamiltonian",
    "spread",
    "within 1e-4",
    "times smooth",
    "times own",
)
CONTINUED = "metric ×L, continuation"
#: Ways to begin, with the colour of their curves; then ways to finish.
BEGIN = {
    "Adam, annealed": "orange",
    "Adam, annealed, Gaussian start": "yellow",
    "L-BFGS": "black",
    "metric ×1": "purple",
    "metric ×L": "sky",
    "metric ×L, Gaussian start": "vermilion",
    CONTINUED: "blue",
}
FINISH = {
    "L-BFGS on": "blue",
    "L-BFGS in float64": "green",
    "Adam, annealed from 1e-4": "orange",
    "Nesterov with restart": "purple",
    "Gauss–Newton by CG": "vermilion",
}
PARTS = ("begin", "finish")


def cells(name: str, one: dict[str, Any]) -> dict[str, Any]:
    """Loss, residuals, rank, Hamiltonian (as −(2/L̃)𝓗) and kinks of one way."""
    end = one["end"]
    layer, neuron = (np.array(end["near_zero"][key]).mean(0) for key in ("layer", "neuron"))
    excess = [float(1e3 * shares[2] / max(shares[5], 1e-300)) for shares in (layer, neuron)]
    numbers = (
        one["evaluations"],
        end["loss"],
        end["residual"],
        end["resolved"][2],
        end["resolved_elsewhere"][2],
        end["rank"],
        end["hamiltonian"][1],
        end["spread"][1],
        float(layer[2]),
        *excess,
    )
    return dict(zip(COLUMNS, (name, *numbers), strict=True))


def row(name: str, one: dict[str, Any]) -> str:
    """The same for a table in Markdown."""
    c = cells(name, one)
    return (
        f"| {name} | {c['evaluations']} | {c['loss']:.4f} | {c['residual']:.3g} | {c['resolved']:.3g} | "
        f"{c['elsewhere']:.3g} | {c['rank'] or '–'} | {c['Hamiltonian']:.2f} | {c['spread']:.2g} | "
        f"{100 * c['within 1e-4']:.2g} % | {c['times smooth']:.0f} | {c['times own']:.0f} |"
    )


HEAD = (
    "| way | evaluations | loss | residual | resolved | elsewhere | rank | −(2/L̃)𝓗 | spread | within 10⁻⁴ | × smooth "
    "| × own |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
)


def named(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """All ways with their names in tables."""
    found = [
        (name if part == "begin" else f"then {name}", one) for part in PARTS for name, one in document[part].items()
    ]
    found += [(f"{layers} steps", one) for layers, one in document["layers"].items()]
    for seed, ways in document.get("again", {}).items():
        found += [(f"{name}, seed {seed}", one) for name, one in ways.items()]
    return found


def table(document: dict[str, Any]) -> str:
    """All ways, in Markdown."""
    return "\n".join([*HEAD, *(row(name, one) for name, one in named(document))])


def result(document: dict[str, Any]) -> dict[str, Any]:
    """Question, answer and table; curves stay in the data."""
    rows = [cells(name, one) for name, one in named(document)]
    ways = {part: [(name, one["end"]) for name, one in document[part].items()] for part in PARTS}
    best = {part: min(ends, key=lambda pair: pair[1]["residual"]) for part, ends in ways.items()}
    (first, a), (second, b) = (best[part] for part in PARTS)
    answer = (
        f"After {document['setting']['seconds']:g} s of the processor the smallest plain residual is "
        f"{a['residual']:.3g} by {first} (loss {a['loss']:.4f}); after as much again from where the continuation "
        f"ended, {b['residual']:.3g} by {second} (loss {b['loss']:.4f})."
    )
    details = {"curves": "benchmarks/criticality.json", "setting": document["setting"]}
    return {"question": QUESTION, "answer": answer, "columns": COLUMNS, "rows": rows, "details": details}


def draw(document: dict[str, Any]) -> Figure:
    """Residual and loss against time; residuals at the end, plain and resolved; how near 0 representations are."""
    figure = new_figure(14.0, 10.5, dpi=110)
    panels = figure.subplots(2, 2).ravel()
    seconds, tolerance = document["setting"]["seconds"], TOLERANCES.index(KINKS)
    best = min(min(one["curve"]["loss"]) for part in ("begin", "finish") for one in document[part].values())
    names, ends = [], []
    for part, colours, style, after in (("begin", BEGIN, "-", 0.0), ("finish", FINISH, "--", seconds)):
        for name, one in document[part].items():
            t, colour = np.array(one["curve"]["seconds"]) + after, PALETTE[colours[name]]
            names.append(f"then {name}" if after else name)
            ends.append(one["end"])
            panels[0].plot(t, one["curve"]["residual"], style, color=colour, label=names[-1], linewidth=1.6)
            above = np.maximum(np.array(one["curve"]["loss"]) - best, 1e-5)
            panels[1].plot(t, above, style, color=colour, linewidth=1.6)
            near = one["end"]["near_zero"]
            panels[3].plot(near["decades"], np.array(near["neuron"]).mean(0), style, color=colour, linewidth=1.6)
    places = np.arange(len(names), 0, -1)
    for key, index, marker, colour, label in (
        ("resolved", 0, "o", "black", "plain gradient"),
        ("resolved_elsewhere", tolerance, "x", "orange", "as many derivatives chosen elsewhere"),
        ("resolved", tolerance, "s", "green", f"derivatives at kinks (|A| ≤ {KINKS:g} rms) chosen"),
    ):
        panels[2].plot([e[key][index] for e in ends], places, marker, color=PALETTE[colour], label=label)
    panels[2].set_xscale("log")
    panels[2].set_yticks(places, names)
    panels[2].set_ylim(0.3, len(names) + 3.2)  # room for the legend
    panels[2].xaxis.set_minor_formatter("")
    ticks = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
    panels[2].set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    top = float(np.median([np.array(e["near_zero"]["neuron"])[:, -1].mean() for e in ends]))
    panels[3].plot(DECADES, top / DECADES[-1] * np.array(DECADES), ":", color="#333333", label="∝ t: a smooth density")
    panels[3].set_xscale("log")
    for axes in (panels[0], panels[1], panels[3]):
        axes.set_yscale("log")
    dress(panels[0], title="Residual ‖∇‖ / (2·ridge·‖θ‖), plain", x="processor seconds")
    dress(panels[1], title=f"Loss above the best found, {best:.4f}", x="processor seconds")
    dress(panels[2], title="Residual at the end", x="‖W − L̃Bσ(A)ᵀ‖ / ‖W‖")
    dress(panels[3], title="Share of entries with |A| ≤ t·rms of their neuron", x="t")
    panels[2].legend(fontsize=9, frameon=False, loc="upper left")
    panels[3].legend(fontsize=9, frameon=False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=10, frameon=False)
    return figure
