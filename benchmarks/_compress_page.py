"""The page and the picture of compress.py."""

from __future__ import annotations

from typing import Any

from isthmus.plotting.style import PALETTE, dress, headline, new_figure, render

#: Relative change of the test error that counts as none.
WITHIN = 0.01
QUESTION = "How small does a trained network get at the same test error, and how much faster?"
COLUMNS = (
    "network",
    "method",
    "fitted",
    "parameters",
    "times fewer",
    "ms a pass",
    "times faster",
    "error / original's",
)
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
                        "milliseconds": None if r is None else r.get("milliseconds"),
                        "times_faster": None if r is None else r.get("times_faster"),
                    }
                )
    return out


def result(document: dict[str, Any]) -> dict[str, Any]:
    """Question, answer and the short table; everything else in the details."""
    rows = [
        {
            "network": s["network"],
            "method": s["method"],
            "fitted": s["fitted"],
            "parameters": s["parameters"],
            "times fewer": s["times_fewer"],
            "ms a pass": s.get("milliseconds"),
            "times faster": s.get("times_faster"),
            "error / original's": s["relative_error"],
        }
        for s in document["summary"]
    ]
    told = []
    for network in dict.fromkeys(row["network"] for row in rows):
        served = [row for row in rows if row["network"] == network and row["parameters"] is not None]
        mine = next((row for row in served if row["method"] == "compress"), None)
        others = [row for row in served if row["method"] != "compress"]
        best = min(others, key=lambda row: row["parameters"], default=None)
        said = "`compress` does not get there" if mine is None else f"`compress` leaves {_size(mine)}"
        beside = "no peer does" if best is None else f"the best peer, {best['method']}, {_size(best)}"
        told.append(f"of the network from `{network}` {said}, {beside}")
    answer = f"Within {WITHIN:.0%} of the test error: {'; '.join(told)}."
    return {"question": QUESTION, "answer": answer, "columns": COLUMNS, "rows": rows, "details": document}


def _size(row: dict[str, Any]) -> str:
    faster = "" if row["times faster"] is None else f", {row['times faster']:.1f} times faster"
    return f"{row['parameters']} parameters ({row['times fewer']:.1f} times fewer{faster})"


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
        "| network | method | fitted | parameters | times fewer | times faster | error / original's |",
        "|---|---|---|---|---|---|---|",
    ]
    for s in document["summary"]:
        told = ["–"] * 4
        if s["parameters"] is not None:
            faster = "–" if s.get("times_faster") is None else f"{s['times_faster']:.1f}"
            told = [str(s["parameters"]), f"{s['times_fewer']:.1f}", faster, f"{s['relative_error']:.3f}"]
        lines.append(f"| {s['network']} | {s['method']} | {'yes' if s['fitted'] else 'no'} | {' | '.join(told)} |")
    lines += [
        "",
        "![error against size](results/compress.png)",
        "",
        "## All of them",
        "",
        "| network | method | knob | fitted | parameters | times fewer | ms a pass | error / original's "
        "| max change on X | s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        seconds = f"{r['seconds']:.0f}" if "seconds" in r else ""
        errors = f"{r['relative_error']:.3g} | {r['deviation']:.2g}"
        lines.append(
            f"| {r['network']} | {r['method']} | {r['knob']:g} | {'yes' if r['fitted'] else 'no'} | "
            f"{r['parameters']} | {r['times_fewer']:.1f} | {_pass(r)} | {errors} | {seconds} |"
        )
    return "\n".join(lines) + "\n"


def _pass(row: dict[str, Any]) -> str:
    return f"{row['milliseconds']:.3g}" if "milliseconds" in row else "–"


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
