"""The numbers of a Discovery as tables: the rank profile, what the coordinates respond to, other ways of counting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus._result import Table
from isthmus.diagnosis._ranks import evidence_table
from isthmus.discovery._profile import RankProfile

_STATES = "State: “at rest” has converged, “falling” ran out of steps, “diverged” has no usable number."


def profile_table(profile: RankProfile, rank: int) -> Table:
    """One row for each network, the one of ``rank`` set apart."""
    heads = ["k", "held-out error", "± se", "above the best", "± se of that", "training cost", "‖θ‖²", "state"]
    columns = [profile.error, profile.standard_error, profile.excess, profile.excess_error, profile.cost, profile.norm]
    # A network without a narrow place has a width, and no k.
    labels: list[Any] = ["wide" if start == "fresh" else int(k) for k, start in zip(profile.ranks, profile.starts)]
    rows = [[label, *[float(column[i]) for column in columns], profile.states[i]] for i, label in enumerate(labels)]
    title = "The numbers of the profile"
    reading = [f"Errors are shares of {profile.whole}; ‖θ‖² is the squared norm of all parameters.", _STATES]
    row = profile.row(rank)
    strong = () if row is None else (row,)
    return Table("profile-numbers", title, heads, rows, reading, strong=strong, brief=(0, 1, 2, 5, 6, 7))


def meaning_table(coordinates: Sequence[Sequence[Mapping[str, Any]]]) -> Table:
    """The strongest inputs of every coordinate: ``input``, ``sensitivity``, ``low``, ``high``."""
    rows = [
        [f"coordinate {j}", str(one["input"]), *[float(one[key]) for key in ("sensitivity", "low", "high")]]
        for j, strongest in enumerate(coordinates)
        for one in strongest
    ]
    heads = ["coordinate", "input", "sensitivity", "lowest refit", "highest refit"]
    reading = ["Standard deviations of the coordinate for one of the input; at most ten inputs for each coordinate."]
    return Table("meaning-numbers", "The strongest inputs", heads, rows, reading, folded=len(rows) > 12, brief=())


def tables_of(found: Any) -> list[Table]:
    """The tables of a discovery; those without rows are left out."""
    profile = [] if found.profile is None else [profile_table(found.profile, found.rank)]
    evidence = evidence_table("evidence-numbers", found.evidence, found.rank)
    return [one for one in (*profile, evidence, meaning_table(found.to_dict()["coordinates"])) if one.rows]
