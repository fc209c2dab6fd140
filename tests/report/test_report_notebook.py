"""What notebooks show: small, static, escaped."""

import pytest

from isthmus import _html
from reported import HOSTILE, constant, discovery, hostile, profile, run


@pytest.mark.parametrize(
    "result", [discovery(), constant(), hostile(), profile(), profile({k: 1.0 / k for k in range(1, 60)}), run()]
)
def test_small_and_without_scripts(result):
    shown = result._repr_html_()
    assert len(shown) < 40_000
    assert "<script" not in shown and 'onerror="' not in shown and "http" not in shown
    assert shown.count("<div") == shown.count("</div>") and shown.count("<td") == shown.count("</td>")


def test_the_answer_is_there():
    found = discovery()
    shown = found._repr_html_()
    for part in (found.sentence, "determined", "one coordinate less is clearly worse", "0.031", "wide"):
        assert part in shown, part
    assert "k = 2" in profile()._repr_html_()
    assert "pi is three" in run()._repr_html_() and "differs" in run()._repr_html_()
    assert "36 rows above are left out" in profile({k: 1.0 / k for k in range(1, 61)})._repr_html_()


def test_names_are_escaped():
    for name in HOSTILE[:3]:
        shown = _html.name(name)
        assert shown.count("<") == 2, shown  # that of the isolation, and its end
    assert "\u202e" not in _html.name(HOSTILE[3]) and "\\u202e" in _html.name(HOSTILE[3])
    assert len(_html.name(HOSTILE[4])) < 2200


def test_numbers():
    assert [_html.number(v) for v in (None, float("nan"), 3, 0.12345, "nan")] == ["—", "—", "3", "0.123", "nan"]
