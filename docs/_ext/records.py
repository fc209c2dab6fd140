"""What is kept about figures, claims and errata, read from the one place where each is written.

Nothing here is typed twice: statements come from ``ids.toml``, numbers from ``figures/F-*.json``, verdicts on samples
from ``claims/*.md``, corrections from ``errata.md``, commands from the parameters of a kept run.
"""

import functools
import json
import re
from dataclasses import dataclass

from pending import DOCS, load_ids

FIGURES = DOCS / "figures"
NOT_RUN = "not run yet"
SECTION = re.compile(r"^## (.+)\n", re.MULTILINE)
EXAMPLE = re.compile(r"^Example: \*\*(?P<status>[^*]+)\*\*, `(?P<sides>[^`]+)`", re.MULTILINE)
PAPERS = ("rank2023", "bottleneck2023", "hamiltonian2024", "features2022", "talk2023")


def sections(path):
    """Text below each heading of the second level, by heading."""
    pieces = SECTION.split(path.read_text(encoding="utf-8"))
    return dict(zip(pieces[1::2], pieces[2::2]))


def errata_of(paper):
    """The section of errata.md on one paper, in Markdown."""
    found = sections(DOCS / "errata.md")
    if paper not in found:
        raise ValueError(f"errata_of: errata.md must have a section {paper!r}. Got {', '.join(found)}. Add it.")
    return found[paper].strip()


@functools.cache
def claim_examples():
    """Paper, status and both sides of every claim on its own sample, as the pages of claims show them."""
    found = {}
    for path in sorted((DOCS / "claims").glob("*.md")):
        for name, text in sections(path).items():
            if example := EXAMPLE.search(text):
                found[name] = (path.stem, example["status"], example["sides"])
    return found


def notes_on(name):
    """Documents of the notes that have the id of a figure in a heading, or its family in their name."""
    found = []
    for path in sorted((DOCS / "notes").glob("*.md")):
        headings = re.findall(r"^#+ .*$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        family = path.stem.startswith("f-") and f"{name.lower()}-".startswith(f"{path.stem}-")
        if family or any(re.search(rf"\b{name}\b", heading) for heading in headings):
            found.append(f"notes/{path.stem}")
    return found


@dataclass(frozen=True)
class Figure:
    """One figure: what the paper says of it, and what came of our run."""

    id: str
    title: str
    papers: tuple
    where: str
    statement: str
    settings: str
    outcome: str
    status: str
    statements: tuple
    conditions: tuple
    seconds: float | None
    usual_seconds: float
    command: str
    changed: tuple  # (parameter, value of the run, default, who set the default)
    notes: tuple

    @property
    def home(self):
        """The document that shows it in full: the page of the first paper that has it."""
        return f"papers/{self.papers[0]}"

    @property
    def image(self):
        """Path of its picture from the root of the documentation, or None."""
        return f"/figures/{self.id}.png" if (FIGURES / f"{self.id}.png").exists() else None


def _changes(experiment, parameters):
    """What the kept run was told otherwise than by default; parameters that are no longer there count too."""
    from dataclasses import fields

    known = {item.name: item for item in fields(experiment)}
    default = experiment().parameters
    changed = []
    for name, value in parameters.items():
        value = tuple(value) if isinstance(value, list) else value
        if name not in known:
            changed.append((name, value, None, "no longer a parameter"))
        elif value != default[name]:
            changed.append((name, value, default[name], known[name].metadata.get("source", "our choice")))
    return tuple(changed)


def judged(experiment, kept):
    """Outcomes of a kept run: by the code as it is now from the numbers that are kept, or as they were written down."""
    from dataclasses import fields

    import numpy as np

    from isthmus.runs import Outcome

    known = {item.name for item in fields(experiment)}
    parameters = {name: value for name, value in kept["parameters"].items() if name in known}
    numbers = kept.get("numbers", {})
    try:
        # Numbers that are not finite are texts, which float reads.
        arrays = {name: np.asarray(value) for name, value in numbers.items()}
        arrays = {name: a.astype(float) if a.dtype.kind == "U" else a for name, a in arrays.items()}
        return experiment(**parameters).outcomes(arrays)
    except KeyError:
        # Kept by an earlier version, without the arrays that are asked for now.
        return [Outcome(**outcome) for outcome in kept["outcomes"]]


def _as_text(value):
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@functools.cache
def figures():
    """Every figure of ids.toml, by id."""
    from isthmus.experiments import find_experiments
    from isthmus.runs import worst

    experiments = find_experiments()
    found = {}
    for name, table in load_ids().items():
        if table["kind"] != "figure":
            continue
        experiment = experiments[name]
        path = FIGURES / f"{name}.json"
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        outcomes = judged(experiment, kept) if kept else []
        changed = _changes(experiment, kept["parameters"]) if kept else ()
        sets = [f"--set {key}={_as_text(value)}" for key, value, _, who in changed if who != "no longer a parameter"]
        found[name] = Figure(
            id=name,
            title=experiment.title,
            papers=tuple(table["papers"]),
            where=table["where"],
            statement=table["statement"],
            settings=table.get("settings", ""),
            outcome=table.get("outcome", ""),
            status=worst(outcomes) if kept else NOT_RUN,
            statements=tuple(o for o in outcomes if o.kind == "statement"),
            conditions=tuple(o for o in outcomes if o.kind == "condition"),
            seconds=kept["provenance"].get("seconds") if kept else None,
            usual_seconds=experiment.full_seconds,
            command=" ".join(["isthmus reproduce", name, *sets]),
            changed=changed,
            notes=tuple(notes_on(name)),
        )
    return found


def figures_of(paper):
    """Figures that a paper has, those that are shown in full on its page first."""
    chosen = [one for one in figures().values() if paper in one.papers]
    return sorted(chosen, key=lambda one: one.papers[0] != paper)


def duration(seconds):
    """``90`` as "1.5 minutes"."""
    if seconds is None:
        return "not known"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds >= 600 else f"{seconds / 60:.1f} min"


def number(value):
    """A number of an outcome as text; what is none is a dash."""
    if value is None:
        return "–"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.3g}"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
