"""A rank profile as a figure and a table, and as a page of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

from isthmus._html import number
from isthmus.discovery import RankProfile
from isthmus.discovery._tables import profile_table
from isthmus.plotting.discovery import profile_figure
from isthmus.plotting.figure import Figure
from isthmus.report.page import Answer, Fact, Page, Section, Table


def page_of(profile: RankProfile) -> Page:
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
    section = Section("profile", "Rank profile", blocks(profile, (), profile.chosen, "given"))
    return Page("Rank profile", "Rank profile", answer, facts, [section])


def blocks(profile: RankProfile, replicas: Sequence[RankProfile], rank: int, verdict: str) -> list[Figure | Table]:
    """The figure and the table of a rank profile."""
    return [profile_figure(profile, replicas, rank, verdict), profile_table(profile, rank)]
