"""The page and the picture of compress.py."""

from __future__ import annotations

from typing import Any

from isthmus.plotting.style import PALETTE, dress, headline, new_figure, render

#: Relative change of the test error that counts as none.
WITHIN = 0.01
COLOURS = {
    "compress": "vermilion",
    "torch-pruning, one ratio": "blue",
    "torch-pruning, one threshold": "sky",
    "SVD truncation": "green",
}


def smallest(rows: list[dict[str, Any]], network: str, method: str, fitted: bool) -> dict[str, Any] | None:
    """The row with fewest parameters whose test error is at most 1 % above that of the original."""
    serve = [
        r
        for r in rows
        if (r["network"], r["method"], r["fitted"]) == (network, method, fitted) and r["relative_error"] <= 1 + WITHIN
    ]
    return min(serve, key=lambda r: r["parameters"], default=None)


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each network and method the smallest within 1 % of the test error."""
    out = []
    for network in dict.fromkeys(r["network"] for r in rows):
        for method in COLOURS:
            for fitted in (True,) if method == "compress" else (False, True):
                r = smallest(rows, network, method, fitted)
                out.append(
                    {
                        "network": network,
                        "method": method,
                        "fitted": fitted,
                        "parameters": None if r is None else r["parameters"],
                        "times_fewer": None if r is None else round(r["times_fewer"], 1),
                        "relative_error": None if r is None else r["relative_error"],
                    }
                )
    return out


def table(rows: list[dict[str, Any]], document: dict[str, Any]) -> str:
    """The Markdown page."""
    lines = [
        "# How small can a trained network get?",
        "",
        "Written by `python benchmarks/compress.py --out benchmarks/results/compress.json`: "
        f"{document['threads']} thread(s), torch {document['torch']}, torch-pruning {document['torch-pruning']}.",
        f"Task: a teacher of rank 3, 20 inputs and outputs, {document['samples']} training and as many test samples.",
        f"Networks of width {document['width']} and depth {document['depth']}. *Fitted*: all weights to the outputs of "
        f"the original on",
        f"the training inputs, at most {document['steps']} iterations of L-BFGS; `compress` does that by itself.",
        "The error is the squared error on the test samples over their variance, here relative to the original's;",
        "it can be below 1: a small network fitted to the outputs of a larger one may predict better than that.",
        "`compress` follows the original within its tolerance, errors included; what is pruned and then fitted may",
        "leave it for better or worse. One task, one seed; for each method the size in the first table was chosen by",
        "the test error: these are the best of each curve and no forecast.",
        "",
        "## The smallest within 1 % of the original's test error",
        "",
        "| network | method | fitted | parameters | times fewer | error / original's |",
        "|---|---|---|---|---|---|",
    ]
    for s in document["summary"]:
        told = ["–"] * 3
        if s["parameters"] is not None:
            told = [str(s["parameters"]), f"{s['times_fewer']:.1f}", f"{s['relative_error']:.3f}"]
        lines.append(f"| {s['network']} | {s['method']} | {'yes' if s['fitted'] else 'no'} | {' | '.join(told)} |")
    lines += [
        "",
        "![error against size](results/compress.png)",
        "",
        "## All of them",
        "",
        "| network | method | knob | fitted | parameters | times fewer | error / original's | max change on X | s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        seconds = f"{r['seconds']:.0f}" if "seconds" in r else ""
        errors = f"{r['relative_error']:.3g} | {r['deviation']:.2g}"
        lines.append(
            f"| {r['network']} | {r['method']} | {r['knob']:g} | {'yes' if r['fitted'] else 'no'} | "
            f"{r['parameters']} | {r['times_fewer']:.1f} | {errors} | {seconds} |"
        )
    return "\n".join(lines) + "\n"


def picture(rows: list[dict[str, Any]]) -> bytes:
    """Test error against parameters, one panel for each network."""
    names = list(dict.fromkeys(r["network"] for r in rows))
    figure = new_figure(6.0 * len(names), 5.4)
    headline(figure, "Test error against size: compress beside pruning and SVD truncation", PALETTE["black"], size=14)
    for place, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), place + 1)
        mine = [r for r in rows if r["network"] == name]
        axes.set_xscale("log")
        axes.set_yscale("log")
        for method, colour in COLOURS.items():
            for fitted in (False, True):
                points = sorted(
                    (r["parameters"], r["relative_error"])
                    for r in mine
                    if r["method"] == method and r["fitted"] == fitted
                )
                if points:
                    label = method if method == "compress" else f"{method}{', fitted' if fitted else ''}"
                    axes.plot(
                        *zip(*points),
                        "o-" if fitted else "o:",
                        color=PALETTE[colour],
                        markersize=5 if method == "compress" else 3.5,
                        linewidth=2.2 if method == "compress" else 1.2,
                        label=label,
                        zorder=3 if method == "compress" else 2,
                    )
        original = next(r for r in mine if r["method"] == "original")
        axes.axhline(1.0, color="#999999", linewidth=1.0)
        axes.plot(original["parameters"], 1.0, "s", color=PALETTE["black"], label="original")
        axes.set_ylim(0.1, 300)
        dress(axes, title=f"network from `{name}`", x="parameters", y="test error / that of the original")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return render(figure)
