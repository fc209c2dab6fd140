"""What is on a page: the numbers of the result and no others, as one file that loads nothing."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

import isthmus
from isthmus import DataError, FileFormatError, IsthmusError
from isthmus.plotting.figure import POINTS, label, short, thinned
from isthmus.report import page_of, page_of_document, save
from isthmus.report.discovery_page import samples_of
from isthmus.report.page import flat
from reported import ERRORS, HOSTILE, constant, discovery, hostile, profile, run
from tools import assert_close

ROUNDED = "figures carry five digits"


class Read(HTMLParser):
    """Scripts, the policy, visible text, tags, and everything that could be loaded."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.data, self.policy, self.text, self.tags, self.loaded = [], [], "", [], [], []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append(tag)
        self.inside = tag if tag in ("script", "style") else self.inside
        self.inside = "data" if values.get("type") == "application/json" else self.inside
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"] or ""
        for key in ("src", "href", "data", "action", "poster", "srcset"):
            if key in values:
                self.loaded.append(values[key])
        assert not any(key.startswith("on") for key in values), values

    def handle_endtag(self, tag):
        self.inside = "" if tag in ("script", "style") else self.inside

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts.append(data)
        elif self.inside == "data":
            self.data = json.loads(data)
        elif not self.inside:
            self.text.append(data)

    def figure(self, key):
        return next(one for one in self.data if one["key"] == key)


def read(result, **more):
    return Read(save.render(page_of(result, **more)))


def test_the_answer_stands_on_top():
    found = discovery()
    text = "".join(read(found).text)
    assert text.index(found.sentence) < text.index("Rank profile")
    for word in ("determined", "one coordinate less is clearly worse", "0.031", "4 → 3", "through 2"):
        assert word in text, word


def test_no_searches_agree_where_there_was_one():
    two, one = ("".join(read(discovery(**more)).text) for more in ({}, {"replicas": ()}))
    assert "independent searches agree" in two and "no second search" not in two
    assert "no second search was made" in one and "searches agree" not in one


def test_the_map_is_told_in_words_of_both_themes():
    """Much is dark on a light page and light on a dark one."""
    (told,) = [
        b.reading for s in page_of(discovery()).sections for b in s.blocks if getattr(b, "key", "") == "overview"
    ]
    # Every figure has its own words.
    reading = [b.reading for s in page_of(discovery()).sections for b in s.blocks if hasattr(b, "alternative")]
    assert len({tuple(one) for one in reading}) == len({one[0] for one in reading}) == len(reading)
    assert "stands out from the page" in " ".join(told) and not re.search(r"\b([Dd]ark|[Ll]ight)\b", " ".join(told))


def test_figures_show_the_numbers_of_the_result():
    found = discovery()
    page = read(found)
    points = next(t for t in page.figure("profile")["data"] if "error_y" in t)
    assert_close(points["y"], list(ERRORS.values()), rtol=1e-4, reason=ROUNDED)
    assert points["x"] == [1, 2, 3, 4.5]  # the wide network stands apart
    ring = page.figure("profile")["data"][-1]
    assert (ring["x"], ring["y"]) == ([2], [0.031])
    cloud = page.figure("cloud")
    assert_close(np.array(cloud["columns"][:2]).T, found.coordinates, rtol=1e-4, reason=ROUNDED)
    # The second route to what colours stand for: the decoder itself.
    predicted = found.decode(found.coordinates)
    shown = np.array(cloud["columns"][2])
    apart = [float(np.abs(predicted[:, j] - shown).max()) for j in range(3)]
    assert min(apart) < 1e-4 * np.abs(shown).max()
    assert found.sensitivity is not None
    bars = page.figure("meaning")["choices"][0]["options"]
    assert_close([one["data.0.x"] for one in bars], found.sensitivity.value, rtol=1e-4, reason=ROUNDED)
    assert page.figure("evidence")["data"][0]["x"] == [2, 7]  # what is not known is in the table only


def test_colours_by_the_data_that_were_given():
    found = discovery(samples=60)
    X, Y = np.arange(240.0).reshape(60, 4), np.arange(180.0).reshape(60, 3)
    columns = samples_of(found, X, Y)
    assert set(columns) == {"x:x0", "x:x1", "x:x2", "x:x3", "y:y0", "y:y1", "y:y2"}
    assert_close(columns["x:x2"], X[:, 2])
    with pytest.raises(IsthmusError, match="60 rows"):
        samples_of(found, X[:-1])
    with pytest.raises(IsthmusError, match="4 columns"):
        samples_of(found, Y)


def test_nothing_is_computed_anew():
    found = discovery()
    columns = samples_of(found)

    class Refuses(torch.nn.Module):
        def forward(self, X):
            raise AssertionError("a map was evaluated")

    silent = discovery(encoder=Refuses(), decoder=Refuses())
    assert save.render(page_of(silent, samples=columns)) == save.render(page_of(found))
    with pytest.raises(AssertionError, match="evaluated"):
        page_of(silent)


def test_large_clouds_are_thinned_evenly():
    page = read(discovery(samples=4500))
    assert len(page.figure("cloud")["columns"][0]) == 1500
    for count in (0, 1, POINTS, POINTS + 1, 10**6 + 1):
        rows = range(count)[thinned(count)]
        assert len(rows) <= POINTS and (count == 0 or rows[0] == 0)


def test_learned_against_true():
    found = discovery()
    true = np.linspace(0, 1, 40)
    recovered = np.where(np.arange(40) < 30, np.nan, true + 0.01)
    columns = samples_of(found) | {"true:hidden": true, "recovered:hidden": recovered}
    known = {"rank": 2, "found_from_true": 0.97, "true_from_found": 0.95}
    page = read(found, document={"truth": known}, samples=columns)
    pair = page.figure("truth")["columns"]
    assert_close(pair[0], true[30:], rtol=1e-4, reason=ROUNDED)
    assert_close(pair[1], recovered[30:], rtol=1e-4, reason=ROUNDED)
    assert "0.95" in "".join(page.text)
    assert "truth" not in [one["key"] for one in read(found).data]


@pytest.mark.parametrize(
    "result",
    [
        discovery(),
        discovery(1),
        discovery(9, inputs=12),
        discovery(verdict="undetermined", error=float("nan"), replicas=()),
        discovery(profile=profile({1: float("nan"), 2: 0.0, 16: 1e-30}), sensitivity=None),
        discovery(samples=1),
        constant(),
        profile(),
        profile({1: 1e-12, 16: 1e-12}, baseline=float("nan")),
        run(),
        run(arrays={}, outcomes=(), provenance={}),
    ],
    ids=repr,
)
def test_every_result_has_a_page(result):
    page = Read(save.render(page_of(result)))
    assert page.tags.count("h1") == 1
    assert all(len(one["data"]) for one in page.data)
    # Nothing that JSON, and so the page, has no word for.
    assert "NaN" not in json.dumps(page.data)


def test_one_file_that_loads_nothing():
    page = read(discovery())
    assert page.loaded and all(target.startswith(("#", "data:")) for target in page.loaded)
    rules = dict(part.split(" ", 1) for part in page.policy.split("; "))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    # The hashes by the other route: from what a browser would find between the tags.
    found = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in page.scripts]
    assert rules["script-src"].split() == found and len(found) == 3


def test_a_small_result_is_a_small_file():
    assert len(save.render(page_of(run(arrays={})))) < 100_000
    assert len(save.render(page_of(discovery(samples=4500)))) < 400_000


def test_the_same_result_gives_the_same_bytes(tmp_path):
    found = discovery()
    isthmus.save(found, tmp_path / "found.safetensors")
    for result, name in ((found, "a.html"), (isthmus.load(tmp_path / "found.safetensors"), "b.html")):
        assert isthmus.save_report(result, tmp_path / name) == tmp_path / name
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_hostile_names_are_text():
    text = save.render(page_of(hostile()))
    page = Read(text)
    shown = "".join(page.text)
    for name in HOSTILE:
        assert name in shown, name[:40]
    # No element came out of a name.
    assert page.tags.count("script") == 4 and "img" not in page.tags and "b" not in page.tags
    block = re.search(r'id="figures">(.*?)</script>', text, flags=re.DOTALL)
    assert block is not None and not set("<>&\u2028\u2029") & set(block[1])
    assert "49" not in [one.strip() for one in page.text]


def test_names_in_figures_are_short_and_keep_their_direction():
    assert label("<b>&") == "<b>&"
    assert label("a\u202eb") == "a\\u202eb"
    assert label("שלום").startswith("\u2068")
    assert len(label("long" * 2500)) == 26
    assert label("  ") == "(no name)"


def test_what_two_pages_do_is_written_once():
    """The report and the live page take the theme and the drawing from the same files."""
    homes = {
        "theme.js": "report",
        "draw.js": "report",
        "report.js": "report",
        "sweep.js": "report",
        "live.js": "serving",
    }
    source = Path(isthmus.__file__).parent
    texts = {name: (source / home / "assets" / name).read_text(encoding="utf-8") for name, home in homes.items()}
    shared = {name for part in ("theme.js", "draw.js") for name in re.findall(r"function (\w+)\(", texts.pop(part))}
    assert {"isDark", "resolved", "followTheme", "ticksOf", "legend"} <= shared - {"draw"}
    shared.remove("draw")  # the report's own, which calls it
    for name, text in texts.items():
        assert not shared & set(re.findall(r"function (\w+)\(", text)), name


def test_a_script_that_would_end_its_element_is_refused():
    assert save._closed("a\r\nb") == "a\nb"
    for script in ("x = '</script>'", "x = '</SCRIPT '", "<!-- x"):
        with pytest.raises(ValueError, match="end its own element"):
            save._closed(script)


def test_a_network_of_fifty_layers_is_small():
    text = save.render(page_of(run(layers=50, values=100)))
    assert len(text.encode()) < 1e6


def test_the_page_of_a_run():
    page = read(run())
    text = "".join(page.text)
    assert "1 of 2 statements of F-made came out as stated, 1 differs for a known reason." in text
    assert "pi is three: it is not" in text and "π = 3" in text
    statements, conditions = page_of(run()).sections[0].blocks
    assert [len(table.rows) for table in (statements, conditions)] == [2, 1]
    assert conditions.rows[0][0].word == "not met"
    content = b"\x89PNG"
    picture = Read(save.render(page_of(run(figures={"figure.png": content}))))
    assert f"data:image/png;base64,{base64.b64encode(content).decode()}" in picture.loaded
    assert "The one statement of F-made came out as stated." in "".join(read(run(outcomes=run().outcomes[:1])).text)


def test_spectra_are_shares_of_the_largest():
    page = read(run())
    spectra = run().arrays["weight_spectra"]
    share = spectra / spectra[:, :1]
    drawn = np.array([trace["y"] for trace in page.figure("weights-lines")["data"][::-1]]).T
    assert_close(drawn, share, rtol=1e-4, reason=ROUNDED)
    assert page.figure("weights-lines")["drives"] == {"key": "weights-layer", "values": [1, 2, 3, 4, 5]}
    assert_close(page.figure("weights-map")["data"][0]["customdata"], share.T, rtol=1e-4, reason=ROUNDED)
    layer = page.figure("weights-layer")["choices"][0]
    assert_close(layer["options"][layer["selected"]]["data.0.y"], share[2], rtol=1e-4, reason=ROUNDED)


def test_a_document_gives_the_same_answer():
    document = json.loads(json.dumps(discovery().to_dict()))
    page = page_of_document(document, "isthmus discovery")
    assert page.answer == page_of(discovery()).answer
    assert "give the folder" in "".join(Read(save.render(page)).text)


@pytest.mark.parametrize("broken", ["rank", "verdict", "reasons", "profile", "coordinates", "evidence", "samples"])
def test_documents_of_strangers_are_checked(broken):
    document = discovery().to_dict()
    for value in ({"rows": [{}]}, "</script>", -1):
        with pytest.raises(IsthmusError):
            page_of_document({**document, broken: value}, "isthmus discovery")
    del document[broken]
    with pytest.raises(FileFormatError, match="JSON must be that of a Discovery"):
        page_of_document(document, "isthmus discovery")


def test_mistakes_are_explained(tmp_path):
    with pytest.raises(IsthmusError, match="must be one of Discovery, RankProfile, Run"):
        isthmus.save_report({"rank": 2}, tmp_path / "report.html")
    with pytest.raises(IsthmusError, match="go with a Discovery"):
        isthmus.save_report(run(), tmp_path / "report.html", X=np.ones((3, 2)))
    with pytest.raises(DataError, match="40 values"):
        page_of(discovery(), samples={"x:x0": np.ones(3)})
    with pytest.raises(DataError, match="must be numbers"):
        page_of(discovery(), samples={"x:x0": np.array(["a"] * 40)})
    assert not list(tmp_path.iterdir())


def test_numbers_of_figures():
    assert short([1, 1 / 3, np.nan, None, np.inf]) == [1, 0.33333, None, None, None]
    assert short(np.array([[0.1], [2e-7]])) == [[0.1], [2e-7]]
    assert flat({"a": {"b": [1, 2]}, "c": None, "d": 0.5}) == [("a.b", "1, 2"), ("d", "0.5")]
