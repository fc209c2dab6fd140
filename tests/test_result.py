"""The protocol that report, notebook and terminal render: what other ways of counting mean for an answer, tables."""

import io
import math

import pytest
from rich.console import Console

import isthmus
from isthmus import _html
from isthmus._progress import progress
from isthmus._result import Badge, Result, Table
from isthmus.claims import verify_samples
from isthmus.cli import screen
from isthmus.diagnosis import Evidence, History
from isthmus.diagnosis._ranks import DEPARTURES, evidence_table
from isthmus.report import page_of
from leaky_nets import critical
from reported import HOSTILE, constant, diagnosis, discovery, run, without
from swept import result_of, row_of, unfinished
from tools import random_net


@pytest.mark.parametrize(
    ("name", "value", "rank", "word"),
    [
        ("weights", 5.0, 5, "agrees"),
        ("weights", 6.0, 6, "counts something else"),
        # One more is common, two are not; and nothing makes it fewer.
        ("weights", 7.0, 7, "unexplained"),
        ("weights", 4.0, 4, "unexplained"),
        ("Jacobian", 4.0, 4, "counts something else"),
        ("Jacobian", 6.0, 6, "unexplained"),
        # Soft measures agree within half a dimension.
        ("‖θ‖²/L", 5.4, None, "agrees"),
        ("‖θ‖²/L", 14.8, None, "counts something else"),
        ("‖θ‖²/L", 3.0, None, "unexplained"),
        ("PCA of Y", 12.0, 12, "counts something else"),
        ("of somebody else", 5.0, 5, "agrees"),
        ("of somebody else", 6.0, 6, "unexplained"),
        ("weights", math.nan, None, ""),
    ],
)
def test_what_a_count_means_for_an_answer_of_five(name, value, rank, word):
    found, why = Evidence(name, value, rank, "what; when").beside(5)
    assert found == word
    assert bool(why) == (word == "counts something else") and why in ("", *DEPARTURES.get(name, ()))


def test_the_table_of_evidence():
    panel = [
        Evidence("bottleneck rank", 2.0, 2, "ours"),
        Evidence("weights", 3.0, 3, "values; one more may be constant"),
    ]
    table = evidence_table("key", panel, 2)
    assert table.rows[0][2] == "" and table.rows[1][2].startswith("counts something else: ")
    assert [row[3] for row in table.rows] == ["ours", "values"]
    # Without a rank nothing is said of it.
    assert [row[2] for row in evidence_table("key", panel, None).rows] == ["", ""]


def moving():
    net, X, Y, ridge = critical(layers=10)
    return isthmus.mechanics(net, X, Y, ridge=ridge)


def smaller():
    return isthmus.compress(random_net((3, 8, 2), seed=1))


@pytest.mark.parametrize(
    "result",
    [
        *(discovery(), constant(), diagnosis(), without("none", "wide"), History(()), verify_samples(["C-rank-1"])),
        *(run(), result_of([row_of(4, 1e-3, 0), unfinished(row_of(4, 1e-3, 1), "failed", "no")]), moving(), smaller()),
    ],
    ids=lambda one: type(one).__name__,
)
def test_results_keep_the_protocol(result):
    assert isinstance(result, Result)
    assert result.verdict in _html.TONES
    keys = [one.key for one in result.tables()]
    assert len(set(keys)) == len(keys)
    # The report shows the same tables, and the notebook the sentence.
    blocks = [block for section in page_of(result).sections for block in section.blocks]
    shown = {block.key: block.rows for block in blocks if isinstance(block, Table)}
    for one in result.tables():
        # As text: what is no number equals nothing.
        assert repr(shown[one.key]) == repr(one.rows)
    assert _html.prose(result.sentence) in result._repr_html_()


def test_layers_of_the_isthmus_are_set_apart_and_say_whether_all_passes():
    found = diagnosis()
    layers = next(one for one in found.tables() if one.key == "layers")
    assert list(layers.strong) == [1, 2]
    passes = layers.heads.index("all passes")
    assert [row[passes] for row in layers.rows] == ["yes", "yes", "yes", "no", "yes", ""]
    assert [layer.passes for layer in found.layers] == [True, True, True, False, True, None]


def test_a_terminal_shows_the_brief_form_and_takes_nothing_for_markup():
    rows = [[name, 0.123456, Badge("agrees"), "not here"] for name in HOSTILE]
    table = Table("key", "Title", ["a", "b", "c", "d"], rows, strong=[1], brief=(0, 1, 2))
    out = Console(file=io.StringIO(), width=120, markup=False, emoji=False)
    screen.print_table(out, table, "← here")
    text = out.file.getvalue()
    assert "0.123" in text and "agrees" in text and "not here" not in text and text.count("← here") == 1
    assert "\u202e" not in text and "[bold]" not in text and max(map(len, text.splitlines())) <= 120


def test_progress_beyond_a_guessed_total_shows_none():
    told, now = io.StringIO(), iter(range(0, 1000, 10))
    with progress(10, "search", stream=told, clock=lambda: next(now)) as bar:
        bar.advance(8, error=0.25, rank=2.0)
        bar.advance(8, error=0.5, rank=1.0)
    first, second, last = told.getvalue().splitlines()
    assert first.startswith("search: 8/10, error 0.25, rank 2") and "left" in first
    assert second == "search: 16, error 0.5, rank 1"
    # The rank that was tried last is not the answer.
    assert last.startswith("search: 16, done in")
