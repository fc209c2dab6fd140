"""Run the benchmarks of this folder, one after the other, and write what they found on one page.

    python benchmarks/run_all.py [--quick] [--only NAME ...]

In full each writes ``benchmarks/results/<name>.json``; from all of these come ``benchmarks/RESULTS.md`` and
``benchmarks/results.json``, the same without details. With ``--quick`` nothing is written: a check that they work.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _bench import shown

from isthmus.files import read_json, write_atomic, write_json

HERE = Path(__file__).resolve().parent
#: What makes a file of results one of the present form.
KEYS = ("benchmark", "question", "answer", "gates", "columns", "rows", "provenance")
UNKNOWN = "not recorded"


def names() -> list[str]:
    """The benchmarks; a leading underscore marks a part of others."""
    found = (path.stem for path in HERE.glob("*.py") if not path.name.startswith("_"))
    return sorted(name for name in found if name != Path(__file__).stem)


def collect(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The documents in ``folder`` without their details, and the names of files of another form."""
    documents, others = [], []
    for path in sorted(folder.glob("*.json")):
        document = read_json(path)
        if isinstance(document, dict) and all(key in document for key in KEYS):
            documents.append({key: document[key] for key in KEYS})
        else:
            others.append(path.stem)
    return documents, others


def cell(value: Any) -> str:
    """A cell of a Markdown table."""
    return shown(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def markdown_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of a table; what a row lacks is a dash."""
    lines = [[cell(column) for column in columns], ["---"] * len(columns)]
    lines += [[cell(row.get(column)) for column in columns] for row in rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _circumstances(found: Mapping[str, Any]) -> list[str]:
    """Peers with their versions, then when, on what and at which commit."""
    versions = {**found.get("versions", {}), **found.get("peers", {})}
    with_versions = ", ".join(f"{name} {version}" for name, version in versions.items()) or UNKNOWN
    load = found.get("load")
    first = load[0] if isinstance(load, list) and load else load
    where = [
        f"threads {shown(found.get('threads', UNKNOWN))} of {shown(found.get('cores', UNKNOWN))} cores",
        f"load at the start {UNKNOWN if first is None else shown(first)}",
        f"time stolen by the host {UNKNOWN if found.get('stolen') is None else format(found['stolen'], '.0%')}",
        f"commit {found.get('commit', UNKNOWN)}",
        str(found.get("date", UNKNOWN)),
    ]
    return [f"With: {with_versions}.", "", f"On: {found.get('processor', UNKNOWN)}; {'; '.join(where)}."]


def page(documents: Sequence[Mapping[str, Any]], others: Sequence[str] = ()) -> str:
    """RESULTS.md: all gates first, then each benchmark."""
    gates = [{"benchmark": d["benchmark"], **gate} for d in documents for gate in d["gates"]]
    met = sum(bool(gate["met"]) for gate in gates)
    lines = [
        "# What the benchmarks found",
        "",
        "Written by `python benchmarks/run_all.py` (`make bench`) from `benchmarks/results`; do not edit.",
        "",
        f"## Gates: {met} of {len(gates)} met",
        "",
        *markdown_table(("benchmark", "what", "value", "wanted", "met"), gates),
    ]
    for d in documents:
        quick = ["", "**A quick run: it shows that the benchmark works, and no more.**"]
        lines += ["", f"## {d['benchmark']}", "", f"*{d['question']}*", "", d["answer"]]
        lines += quick if d["provenance"].get("quick") else []
        lines += ["", *markdown_table(d["columns"], d["rows"]), "", *_circumstances(d["provenance"])]
    if others:
        lines += ["", "## Kept in another form", "", ", ".join(f"`results/{name}.json`" for name in others)]
    return "\n".join(lines) + "\n"


def write_page(folder: Path) -> None:
    """RESULTS.md and results.json in ``folder``, from the files in its ``results``."""
    documents, others = collect(folder / "results")
    write_json(folder / "results.json", {"benchmarks": documents, "other_forms": others})
    write_atomic(folder / "RESULTS.md", page(documents, others).encode())


def main() -> int:
    """Run them; the number that failed is the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="all in a few minutes; nothing is written")
    parser.add_argument("--only", nargs="+", choices=names(), metavar="NAME", help="these alone")
    options = parser.parse_args()
    failed, begun = [], time.perf_counter()
    for name in options.only or names():
        print(f"== {name}", flush=True)
        extra = ["--quick"] if options.quick else ["--out", str(HERE / "results" / f"{name}.json")]
        start = time.perf_counter()
        if subprocess.run([sys.executable, str(HERE / f"{name}.py"), *extra], check=False).returncode != 0:
            failed.append(name)
        print(f"== {name}: {time.perf_counter() - start:.0f} s\n", flush=True)
    print(f"{time.perf_counter() - begun:.0f} s in all; failed: {', '.join(failed) or 'none'}")
    if not options.quick:
        write_page(HERE)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
