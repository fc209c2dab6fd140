"""A Discovery as a page: the answer, the profile, the coordinates, what they mean, other evidence, where it is from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus._checks import as_matrix, check_choice, check_integer, fail
from isthmus._errors import DataError
from isthmus._html import number
from isthmus.diagnosis import Evidence
from isthmus.diagnosis._ranks import evidence_table
from isthmus.discovery import Discovery, RankProfile
from isthmus.discovery._result import VERDICTS
from isthmus.discovery._tables import meaning_table, profile_table
from isthmus.plotting import discovery as picture
from isthmus.plotting.diagnosis import agreement
from isthmus.plotting.discovery import COLUMNS, profile_figure, strongest_outputs
from isthmus.plotting.figure import Figure, thinned
from isthmus.report.page import Answer, Badge, Block, Fact, Notes, Page, Section, Table, origin_section

_MEANING = {
    "determined": "One coordinate less is clearly worse, one more no better, and independent searches agree.",
    "undetermined": "At least one check failed: the number is a guess, and the first reasons say what is in doubt.",
    "trivial": "A theorem bounds the rank whatever the data: there was nothing to search for.",
    "given": "The number of coordinates was given by whoever asked; it was not searched for.",
}
_ALONE = "One coordinate less is clearly worse and one more no better; no second search was made."
_NO_SAMPLES = "Made from the JSON file alone, which holds no samples: give the folder to see the coordinates."
_MEANS = "What moves each coordinate. A coordinate that answers to one input is that input in other words."
_PROFILE = "How well can networks do that let only k numbers pass from the inputs to the outputs?"
_CLOUD = "The variables that were found, at the samples. They are uncorrelated and of unit variance."
_EVIDENCE = "Other ways of counting, which need not give the rank: each says what it counts."


def page_of(
    found: Discovery, *, document: Mapping[str, Any] | None = None, samples: Mapping[str, Any] | None = None
) -> Page:
    """The page of a Discovery.

    Parameters
    ----------
    found : Discovery
    document : mapping, optional
        What its folder's JSON knows beyond it: ``data``, ``truth``, ``provenance``.
    samples : mapping of str to array, optional
        From :func:`samples_of`, which is asked by default: columns beside the coordinates.
    """
    more = {key: value for key, value in (document or {}).items() if key in ("data", "truth", "provenance")}
    columns = samples_of(found) if samples is None else check_samples(samples, len(found.coordinates))
    U = found.coordinates[thinned(len(found.coordinates))]
    overview = None
    if found.sensitivity is not None and found.rank > 1:
        overview = picture.overview(found.sensitivity.value, found.feature_names)
    return page_of_content({**found.to_dict(), **more}, U, columns, overview)


def page_of_content(
    content: Mapping[str, Any],
    U: Array | None = None,
    columns: Mapping[str, Array] = MappingProxyType({}),
    overview: Figure | None = None,
) -> Page:
    """The page of what :meth:`Discovery.to_dict` wrote, with what is known beside it."""
    rank = check_integer("report", "rank", content["rank"], low=0, high=10**6)
    check_choice("report", "verdict", content["verdict"], VERDICTS)
    verdict = content["verdict"]
    walks = [RankProfile.from_dict(one) for one in content["replicas"]]
    profile = None if content["profile"] is None else RankProfile.from_dict(content["profile"])
    means = _ALONE if verdict == "determined" and not walks else _MEANING[verdict]
    answer = Answer(str(content["sentence"]), verdict, _texts(content["reasons"]), means)
    sections = []
    if profile is not None:
        sections.append(Section("rank", "Rank profile", profile_blocks(profile, walks, rank, verdict), _PROFILE))
    sections.append(_coordinates(rank, U, columns))
    sections.append(_meaning(content["coordinates"], overview, 1 + len(walks)))
    sections.append(_truth(rank, content.get("truth"), columns))
    sections.append(Section("evidence", "Other evidence", _evidence(rank, content["evidence"]), _EVIDENCE))
    if content["notes"]:
        sections.append(Section("data", "About the data", [Notes(_texts(content["notes"]))]))
    about = {key: content.get(key) for key in ("data", "settings", "provenance")}
    sections.append(origin_section(about))
    source = about["data"] or {}
    name = source.get("file") or source.get("problem") or "Discovery"
    return Page("Discovery", str(name), answer, _facts(content, profile, walks), [s for s in sections if s.blocks])


def _texts(values: Any) -> list[str]:
    if not isinstance(values, list):
        raise TypeError("a list of texts is missing")
    return [str(value) for value in values]


def _facts(content: Mapping[str, Any], profile: RankProfile | None, walks: list[RankProfile]) -> list[Fact]:
    error = content["error"]
    guess = "a guess" if content["verdict"] == "undetermined" else "between inputs and outputs"
    facts = [Fact("variables" if content["rank"] != 1 else "variable", str(content["rank"]), guess)]
    if error is not None and math.isfinite(error):
        unit = "variance" if profile is None else profile.unit
        facts.append(Fact("held-out error", number(error), f"of the final maps, share of the {unit}"))
    classes = profile is not None and profile.loss_kind == "cross_entropy"
    counts = f"{len(content['inputs'])} → {len(content['outputs'])}"
    facts.append(Fact("inputs → classes" if classes else "inputs → outputs", counts, "" if classes else "columns"))
    samples = check_integer("report", "samples", content["samples"], low=0)
    facts.append(Fact("samples", f"{samples:,}", "rows used"))
    if profile is not None and walks:
        facts.append(Fact("independent checks", str(len(walks)), "; ".join(walk.in_words for walk in walks)))
    return facts


def _coordinates(rank: int, U: Array | None, columns: Mapping[str, Array]) -> Section:
    blocks: list[Any] = []
    if U is None and rank:
        blocks.append(Notes([_NO_SAMPLES]))
    elif U is not None and rank and len(U):
        colours = [(title(key), values) for key, values in columns.items() if not key.startswith("recovered:")]
        colours.append(("order of the samples", np.arange(len(U), dtype=np.float64)))
        blocks.append(picture.cloud(U, colours))
    return Section("coordinates", "Coordinates", blocks, _CLOUD)


def _meaning(coordinates: Sequence[Sequence[dict[str, Any]]], overview: Figure | None, fits: int) -> Section:
    """Bars of the strongest inputs by coordinate, the overview, and the numbers.

    Parameters
    ----------
    coordinates : list of lists
        For each coordinate its strongest inputs: ``input``, ``sensitivity``, ``low``, ``high``.
    overview : Figure or None
    fits : int
        How many fits low and high are of.
    """
    blocks: list[Any] = []
    if any(coordinates):
        blocks = [picture.bars(coordinates[: picture.COORDINATES], fits), *([overview] if overview else [])]
        blocks.append(meaning_table(coordinates))
    return Section("meaning", "What each coordinate means", blocks, _MEANS)


def _truth(rank: int, known: Any, columns: Mapping[str, Array]) -> Section:
    """Learned against true: where the data were made by somebody who knows."""
    blocks: list[Any] = []
    if known is not None:
        right = int(known["rank"]) == rank
        rows = [
            ["hidden variables", int(known["rank"]), rank, Badge("agrees" if right else "differs")],
            ["coordinates from the true variables, R²", 1.0, float(known["found_from_true"]), ""],
            ["true variables from the coordinates, R²", 1.0, float(known["true_from_found"]), ""],
        ]
        told = (
            "R² is by smooth regression on samples held out, the worst of the variables; 1 says: the same information."
        )
        blocks.append(Table("truth-numbers", "Truth and answer", ["", "true", "found", ""], rows, [told]))
    pairs = []
    for name, values in columns.items():
        other = columns.get(f"recovered:{name.removeprefix('true:')}")
        both = None if other is None else np.isfinite(values) & np.isfinite(other)
        if name.startswith("true:") and other is not None and both is not None and both.any():
            pairs.append((name.removeprefix("true:"), values[both], other[both]))
    if pairs:
        blocks.insert(0, picture.truth(pairs))
    return Section("truth", "Learned against true", blocks, "The data were made, so the hidden variables are known.")


def _evidence(rank: int, items: Any) -> list[Block]:
    panel = [Evidence.from_dict(item) for item in items]
    figure = agreement(panel, rank, key="evidence", title="Other counts beside the rank")
    return [*([figure] if figure else []), *([evidence_table("evidence-numbers", panel, rank)] if panel else [])]


# ---- What is known of some samples beside their coordinates: the columns that a cloud can be coloured by


Array = NDArray[np.float64]

#: How the name of a column begins, and what it means to a reader.
ROLES = {"x:": "input", "y:": "output", "h:": "predicted", "true:": "true", "recovered:": "recovered"}


def samples_of(found: Discovery, X: Any = None, Y: Any = None) -> dict[str, Array]:
    """The strongest inputs and outputs of at most 2,000 samples, evenly thinned, as ``{"x:NAME": column, …}``.

    Parameters
    ----------
    found : Discovery
    X, Y : array (N, d_in), (N, d_out), optional
        The data it was made from, in the order of its coordinates. Without Y, outputs are the maps' own: ``"h:NAME"``.
    """
    N, rows = len(found.coordinates), thinned(len(found.coordinates))
    columns: dict[str, Array] = {}
    if found.rank == 0:
        return columns
    U = found.coordinates[rows]
    measured = None if Y is None else _rows("Y", Y, N, len(found.target_names))[rows]
    values, role = (found.decode(U), "h:") if measured is None else (measured, "y:")
    for i in strongest_outputs(U, values):
        columns[f"{role}{found.target_names[i]}"] = values[:, i]
    if X is not None and found.sensitivity is not None:
        inputs = _rows("X", X, N, len(found.feature_names))[rows]
        order = np.argsort(-found.sensitivity.value.max(axis=0), kind="stable")[:COLUMNS]
        columns |= {f"x:{found.feature_names[i]}": inputs[:, i] for i in order}
    return columns


def check_samples(columns: Mapping[str, Any], count: int) -> dict[str, Array]:
    """Columns of a file as arrays, if they belong to ``count`` samples; fails otherwise."""
    length = len(range(count)[thinned(count)])
    checked: dict[str, Array] = {}
    for name, values in columns.items():
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            must = "the columns beside the samples must be numbers"
            fail("report", must, ascii(name)[:80], "Write the folder again.", error=DataError)
        if array.shape != (length,):
            must = f"the columns beside {count} samples must have {length} values"
            fail("report", must, f"shape {array.shape}", "Write the folder again.", error=DataError)
        if any(name.startswith(start) for start in ROLES):
            checked[name] = array
    return checked


def title(name: str) -> str:
    """``"x:speed"`` in words: the role, then the name."""
    for start, role in ROLES.items():
        if name.startswith(start):
            return f"{role} {name.removeprefix(start)}"
    return name


def _rows(name: str, value: Any, rows: int, columns: int) -> Array:
    array = as_matrix("save_report", name, value, columns=columns).numpy()
    if len(array) != rows:
        do = "Pass the data the Discovery was made from."
        fail("save_report", f"`{name}` must have {rows} rows, one for each sample", len(array), do)
    return array


# ---- A rank profile as a figure and a table, and as a page of its own


def profile_page(profile: RankProfile) -> Page:
    """The page of a profile by itself: there are no verdict and no coordinates."""
    answer = Answer(
        f"The rule takes k = {profile.chosen}.",
        "given",
        [profile.rule],
        "A profile alone carries no verdict: how sure the rank is, a Discovery says.",
    )
    row = profile.row(profile.chosen)
    error = math.nan if row is None else float(profile.error[row])
    facts = [
        Fact("k", str(profile.chosen), "coordinates, by the rule"),
        Fact("held-out error", number(error), f"share of {profile.whole}"),
        Fact("a constant has", number(profile.baseline), "the error to beat"),
        Fact("networks", str(len(profile.ranks)), f"of {profile.depth} layers, {profile.width} wide"),
    ]
    section = Section("profile", "Rank profile", profile_blocks(profile, (), profile.chosen, "given"))
    return Page("Rank profile", "Rank profile", answer, facts, [section])


def profile_blocks(
    profile: RankProfile, replicas: Sequence[RankProfile], rank: int, verdict: str
) -> list[Figure | Table]:
    """The figure and the table of a rank profile."""
    return [profile_figure(profile, replicas, rank, verdict), profile_table(profile, rank)]
