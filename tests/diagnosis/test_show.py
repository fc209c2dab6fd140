"""A Diagnosis in a notebook: complete, small and harmless."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import architectures
from isthmus import diagnose
from tools import gaussian, three_part_net

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], "", []
        self.feed(str(text))

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def found():
    return diagnose(three_part_net(3).to_torch(), gaussian(200, 12))


def assert_harmless(page):
    assert page.open == []
    assert not {"script", "img", "iframe", "link", "object", "svg"} & set(page.tags)
    assert set(page.attributes) <= {"style", "title"}


def test_everything_is_there(found):
    page = Page(found._repr_html_())
    assert_harmless(page)
    assert found.sentence in page.text
    assert found.verdict in page.text
    for part in (*found.isthmus.reasons, *found.notes):
        assert part in page.text
    for index, one in enumerate(found.agreement):
        # What each counts is in the whole table only, which a report shows.
        assert one.name in page.text
        assert not index or one.beside(found.rank)[0] in page.text
    whole = next(table for table in found.tables() if table.key == "agreement-numbers")
    assert [row[3] for row in whole.rows] == [one.meaning.partition(";")[0] for one in found.agreement]
    for layer in found.layers:
        assert layer.name in page.text


@pytest.mark.parametrize("name", list(architectures.ARCHITECTURES))
def test_every_architecture(name):
    net, X = architectures.ARCHITECTURES[name]()
    page = diagnose(net, X, jacobian_samples=0)._repr_html_()
    assert_harmless(Page(page))
    assert len(page) < 20_000


def test_hostile_names_do_nothing():
    net = nn.Sequential()
    for index in range(2):
        net.add_module(f"{HOSTILE}{index}".replace(".", ""), nn.Linear(4, 4))
    found = diagnose(net, gaussian(50, 4, dtype=torch.float32))
    spoiled = dataclasses.replace(found, notes=(HOSTILE,), whole={"type": HOSTILE})
    for one in (found, spoiled):
        page = Page(one._repr_html_())
        assert_harmless(page)
    assert "onerror" in Page(spoiled._repr_html_()).text


def test_the_check_sees_a_page_that_is_not_harmless():
    for bad in ("<div><script></script></div>", '<p onclick="x"></p>', "<div><b></div>", "<div>"):
        with pytest.raises(AssertionError):
            assert_harmless(Page(bad))


def test_a_long_table_shows_the_isthmus():
    net = three_part_net(2, depth=40, width=8).to_torch()
    found = diagnose(net, gaussian(100, 12), jacobian_samples=0)
    late = dataclasses.replace(found, isthmus=dataclasses.replace(found.isthmus, layers=("70", "72")))
    page = Page(late._repr_html_())
    assert "rows above are left out" in page.text
    assert "70" in page.text
