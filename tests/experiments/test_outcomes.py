"""How figures are judged: quotes, conditions, and statements that could not be tested."""

import pytest

from isthmus.experiments._outcomes import Quote, condition, under
from isthmus.runs import worst

WORDS = Quote("the words", "caption of Figure 1")


@pytest.mark.parametrize(
    ("good", "otherwise", "status"),
    [
        (True, "fails", "agrees"),
        (None, "fails", "undetermined"),
        (False, "fails", "fails"),
        (False, "differs", "differs"),
    ],
)
def test_a_quote_goes_with_its_outcome(good, otherwise, status):
    found = WORDS.judge("a number", good, 2, 3, "why", otherwise=otherwise)
    assert (found.status, found.kind, found.quote, found.where) == (status, "statement", WORDS.text, WORDS.where)
    assert (found.value, found.expected) == (2, 3)


def test_a_condition_is_met_or_not():
    for met, status in ((True, "met"), (False, "not met")):
        found = condition("converged", met, 0.1)
        assert (found.kind, found.status, found.quote) == ("condition", status, "")


def test_what_does_not_agree_is_undetermined_while_a_condition_is_not_met():
    stated = [WORDS.judge("a", True), WORDS.judge("b", False), WORDS.judge("c", False, reason="r", otherwise="differs")]
    unmet, met = condition("converged", False), condition("accurate", True)
    assert under([met], stated) == stated
    found = under([unmet, met], stated)
    assert [one.status for one in found] == ["agrees", "undetermined", "undetermined"]
    assert "converged" in found[1].reason and "accurate" not in found[1].reason and found[2].reason.startswith("r;")
    assert worst([*found, unmet]) == "undetermined"
