"""The page of a compression: the domain on top, bars with the certificate's own numbers, and strangers' files."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import isthmus
from isthmus._errors import FileFormatError
from isthmus._strict_json import dumps
from isthmus.compression import Certificate, LayerChange
from isthmus.compression._certificate import DOMAINS
from isthmus.compression._tables import REASONS
from isthmus.plotting.figure import LAYERS
from isthmus.report import page_of_document
from isthmus.report.page import Table
from isthmus.report.save import page_of, render
from reported import HOSTILE, Watched, chromium
from tools import gaussian, random_net


def certificate(**changes):
    """Written down by hand; three layers, one of them joined with the next, and a new one."""
    content = {
        "domain": "the data",
        "deviation": 2e-15,
        "before_rounding": 1e-15,
        "tolerance": 0.0,
        "points": 50,
        "elsewhere": 0.03,
        "norm_before": 40.0,
        "norm_after": 30.0,
        "parameters_before": 1000,
        "parameters_after": 100,
        "bytes_before": 8000,
        "bytes_after": 800,
        "latency_before": 0.25,
        "latency_after": 0.5,
        "batch": 50,
        "layers": (
            LayerChange("1", 20, 6, 2, {"dead": 4, "on one ray": 10}),
            LayerChange("2", 20, 0, 0, {"on one ray": 12, "layer joined with the next": 8}),
            LayerChange("3", 10, 10),
            LayerChange("factors of weight 1", 0, 2, 2),
        ),
        "untouched": (("conv", "Conv1d is not a linear layer of a plain stack"),),
        "notes": ("one thing to know",),
    }
    return Certificate(**{**content, **changes})


def figure(page, key):
    return next(one for one in page.figures() if one.key == key)


def blocks(page):
    return {block.key: block for section in page.sections for block in section.blocks if isinstance(block, Table)}


def test_the_answer_comes_first():
    found = certificate()
    page = page_of(found)
    assert page.answer.sentence == found.sentence and page.answer.verdict == "the data"
    assert [section.key for section in page.sections] == ["removed", "equality", "layers", "untouched", "notes"]
    facts = {fact.label: (fact.value, fact.note) for fact in page.facts}
    assert facts["parameters"] == ("100", "of 1,000; 10 times fewer")
    assert facts["deviation elsewhere"][0] == "3.0e-02" and facts["latency"][0] == "0.5 ms"


def test_bars_have_the_numbers():
    widths = figure(page_of(certificate()), "widths")
    parts = {one["name"]: one["y"] for one in widths.data}
    assert parts == {
        "kept": [4, 0, 10, 0],
        "kept, linear": [2, 0, 0, 2],
        "on one ray": [10, 12, 0, 0],
        "layer joined with the next": [0, 8, 0, 0],
        "dead": [4, 0, 0, 0],
    }
    assert [note["text"] for note in widths.layout["annotations"]] == ["20 → 6", "20 → 0", "10 → 10", "0 → 2"]
    (left,) = figure(page_of(certificate()), "left").data
    shares = dict(zip(left["y"], left["x"]))
    assert shares == {"neurons": 18 / 50, "parameters": 0.1, "bytes": 0.1, "latency": 2.0, "‖θ‖²": 0.75}
    assert dict(zip(left["y"], left["marker"]["color"]))["latency"] == "@vermilion"


def test_tables():
    tables = blocks(page_of(certificate()))
    assert [row[:5] for row in tables["changes"].rows][0] == ["1", 20, 6, 2, 14]
    assert tables["changes"].rows[2][5] == "nothing" and "two factors" in tables["changes"].rows[3][5]
    assert [(row[0], row[1]) for row in tables["reasons"].rows][0] == ("on one ray", 22)
    assert [row[3] for row in tables["evidence"].rows] == [2e-15, 1e-15, 0.03]
    assert tables["parts"].rows[0][0] == "conv"


def test_every_reason_of_the_package_is_explained():
    """What the code notes and what the page knows are kept apart: they must not drift."""
    folder = Path(isthmus.__file__).parent / "compression"
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    noted = re.findall(r'\.(?:drop|note)\([^"\n]*"([^"]+)"', source) + re.findall(r'why="([^"]+)"', source)
    assert set(noted) == set(REASONS) and len(noted) > 10


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_domain_has_a_page(domain):
    nothing = {"latency_before": float("nan"), "latency_after": float("nan"), "elsewhere": None, "layers": ()}
    for changes in ({}, {**nothing, "untouched": (), "notes": ()}, {"deviation": float("inf"), "elsewhere": 0.0}):
        found = certificate(domain=domain, **changes)
        page = page_of(found)
        assert page.answer.meaning and page.answer.verdict == domain
        json.dumps([(one.data, one.layout) for one in page.figures()], allow_nan=False)
        # A file is as good as the object.
        assert page_of_document(json.loads(dumps("test", found.to_dict()))) == page


def test_of_a_real_one_and_of_many_layers():
    found = isthmus.compress(random_net([5, 9, 7, 3], seed=2), gaussian(40, 5), tolerance=0.2)
    assert len(page_of(found).figures()) == 2
    many = certificate(layers=tuple(LayerChange(str(k), 4, 3, 0, {"dead": 1}) for k in range(LAYERS + 5)))
    widths = figure(page_of(many), "widths")
    assert len(widths.data[0]["y"]) == LAYERS and "first 400" in widths.reading[-1]
    assert not widths.layout["annotations"] and len(blocks(page_of(many))["changes"].rows) == LAYERS + 5


def test_no_text_is_markup():
    layers = tuple(LayerChange(name, 9, 4, 1, {f"{name}?": 5}) for name in HOSTILE)
    found = certificate(layers=layers, untouched=tuple((name, name) for name in HOSTILE), notes=HOSTILE)
    text = render(page_of_document(json.loads(dumps("test", found.to_dict()))))
    assert "<script>alert" not in text and 'onerror="alert' not in text and len(text) < 10**7


BAD = [
    {"format": "isthmus.mechanics"},
    {"version": 2},
    {"domain": "here"},
    {"domain": ["the data"]},
    {"deviation": None},
    {"deviation": "nan"},
    {"deviation": -1.0},
    {"deviation": True},
    {"latency_before": "0.5"},
    {"elsewhere": "none"},
    {"points": 1.5},
    {"points": -1},
    {"parameters_after": 10**16},
    {"parameters_after": True},
    {"neurons_after": 17},
    {"layers": {}},
    {"layers": [{}]},
    {"layers": [1]},
    {"untouched": [["conv", "why"]]},
    {"untouched": [{"part": 1, "reason": "why"}]},
    {"notes": "text"},
    {"notes": [1]},
    {"more": 1},
]


@pytest.mark.parametrize("change", BAD, ids=str)
def test_files_of_strangers(change):
    document = json.loads(dumps("test", certificate().to_dict()))
    with pytest.raises(FileFormatError, match=r"Certificate.from_dict"):
        page_of_document(document | change, "isthmus.compression")


@pytest.mark.parametrize(
    "change",
    [{"linear": 7}, {"before": "20"}, {"removed": []}, {"removed": {"dead": -1}}, {"layer": 1}, {"more": 1}],
    ids=str,
)
def test_layers_of_strangers(change):
    document = json.loads(dumps("test", certificate().to_dict()))
    document["layers"][0] |= change
    with pytest.raises(FileFormatError, match=r"Certificate.from_dict"):
        Certificate.from_dict(document)


def test_fields_must_be_there_and_documents_be_mappings():
    document = json.loads(dumps("test", certificate().to_dict()))
    for name in document:
        if name.startswith("operations_"):
            # Certificates were written without them.
            assert math.isnan(getattr(Certificate.from_dict({**document, name: "nan"}), name))
            continue
        with pytest.raises(FileFormatError):
            Certificate.from_dict({key: value for key, value in document.items() if key != name})
    for other in (None, [], "Certificate", 1):
        with pytest.raises(FileFormatError):
            Certificate.from_dict(other)


def test_there_and_back():
    found = certificate(latency_before=float("inf"))
    assert vars(Certificate.from_dict(found.to_dict())) == vars(found)
    real = isthmus.compress(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)))
    back = Certificate.from_dict(json.loads(dumps("test", real.to_dict())))
    assert back.sentence == real.sentence and back.layers == real.certificate.layers
    assert replace(back, notes=()).notes == ()


@pytest.mark.slow
def test_in_the_browser(tmp_path):
    hostile = tuple(LayerChange(name, 9, 4, 1, {f"{name}?": 5}) for name in HOSTILE)
    isthmus.save_report(certificate(layers=(*certificate().layers, *hostile)), tmp_path / "page.html")
    with chromium() as browser:
        watched = Watched(browser, tmp_path / "page.html", viewport={"width": 390, "height": 900})
        watched.show_all()
        assert len(watched.drawn()) == 2 and all(watched.drawn())
        assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        watched.check_quiet()
        watched.context.close()
