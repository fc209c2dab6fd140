"""docs/ids.toml is complete, its papers exist, and what has no function yet is known."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAPERS = {"features2022", "rank2023", "bottleneck2023", "talk2023", "hamiltonian2024"}

FAMILIES = {
    "model": ["M-fc", "M-leaky", "M-resnet", "M-conv", "M-kernel"],
    "quantity": [
        *(
            "Q-norm",
            "Q-balance",
            "Q-spectra",
            "Q-jac",
            "Q-bnrank",
            "Q-ntk",
            "Q-stable",
            "Q-repcost",
            "Q-geodesic",
            "Q-minimum",
            "Q-nonneg",
            "Q-domain",
            "Q-coi",
        ),
        *(
            "Q-energy",
            "Q-forces",
            "Q-sigmarank",
            "Q-topology",
            "Q-denoise",
            "Q-tsp",
            "Q-summary",
            "Q-full-half",
            "Q-depth",
            "Q-plateau",
            "Q-spurious",
        ),
    ],
    "algorithm": [
        *("A-threepart", "A-rank1", "A-rebalance", "A-linear", "A-divergent", "A-zopt", "A-kopt"),
        *("A-caratheodory", "A-merge", "A-cpdata", "A-saddle", "A-symmetries", "A-path"),
    ],
    "claim": [
        *(f"C-rank-{i}" for i in range(1, 16)),
        *(f"C-bn-{i}" for i in range(1, 17)),
        *(f"C-ham-{i}" for i in range(1, 10)),
        *(f"C-feat-{i}" for i in range(1, 15)),
    ],
    "figure": [
        *("F-rank-1", "F-rank-2", "F-rank-3", "F-bn-1", "F-bn-2", "F-ham-1", "F-ham-2", "F-ham-3"),
        *("F-feat-1", "F-feat-2", "F-talk-1", "F-talk-2", "F-talk-3", "F-talk-4"),
    ],
}
FIELDS = {"kind", "paper", "where", "statement"}
EXTRA = {"claim": {"hypotheses", "twin"}, "figure": {"settings", "outcome"}}
#: What a quantity or an algorithm may have as well, both or neither.
CONDITIONS = {"hypotheses", "twin"}


def load_pending():
    spec = importlib.util.spec_from_file_location("pending", DOCS / "_ext" / "pending.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ids():
    return tomllib.loads((DOCS / "ids.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pending():
    return load_pending()


def bibliography_keys():
    return set(re.findall(r"^@\w+\{([^,\s]+),", (DOCS / "papers.bib").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("kind", FAMILIES)
def test_families_are_complete(ids, kind):
    assert [name for name, table in ids.items() if table["kind"] == kind] == FAMILIES[kind]


def test_no_id_outside_the_families(ids):
    assert sorted(ids) == sorted(name for family in FAMILIES.values() for name in family)


def test_every_id_has_its_fields(ids):
    for name, table in ids.items():
        required = FIELDS | EXTRA.get(table["kind"], set())
        if table["kind"] in ("model", "quantity", "algorithm") and CONDITIONS & set(table):
            required |= CONDITIONS
        assert required <= set(table) <= required | {"rate"}, name
        assert "rate" not in table or (table["rate"] is True and table["kind"] == "claim"), name
        for field in required - {"paper"}:
            assert isinstance(table[field], str) and table[field].strip(), (name, field)
        assert len(table["statement"].split()) >= 5, f"{name}: a statement that stands alone"


def test_ids_named_in_statements_exist(ids):
    for name, table in ids.items():
        text = " ".join(str(value) for value in table.values())
        named = re.findall(r"\b[MQACF]-(?:rank|bn|ham|feat|talk)-\d+\b", text)
        assert set(named) <= set(ids), name


def test_papers_exist(ids):
    assert bibliography_keys() == PAPERS
    for name, table in ids.items():
        papers = [table["paper"]] if isinstance(table["paper"], str) else table["paper"]
        assert papers and set(papers) <= PAPERS and len(set(papers)) == len(papers), name


def test_citations_name_known_papers_and_ids(ids, pending):
    citations = pending.citations()
    assert citations, "the package cites nothing"
    for citation in citations:
        assert citation.paper in PAPERS, citation
        assert set(citation.ids) <= set(ids), citation
        assert citation.where.strip(), citation


def test_ids_without_a_function_are_the_listed_ones(pending):
    missing, listed = pending.missing(), pending.listed()
    lost, landed = set(missing) - set(listed), set(listed) - set(missing)
    assert not lost, f"these ids lost their function: {sorted(lost)}"
    assert not landed, f"these ids have a function now: {sorted(landed)}. Run python docs/_ext/pending.py"
    assert listed == missing, "the list is in the order of ids.toml. Run python docs/_ext/pending.py"


def test_pending_list_does_not_grow_silently(pending, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pending, "PENDING", tmp_path / "pending.txt")
    pending.PENDING.write_text("C-rank-1\n", encoding="utf-8")
    monkeypatch.setattr(pending, "missing", lambda: ["C-rank-1", "C-rank-2"])
    assert pending.main([]) == 1
    assert "C-rank-2" in capsys.readouterr().err
    assert pending.listed() == ["C-rank-1"]
    assert pending.main(["--grow"]) == 0
    assert pending.listed() == ["C-rank-1", "C-rank-2"]
    monkeypatch.setattr(pending, "missing", lambda: ["C-rank-2"])
    assert pending.main([]) == 0
    assert pending.listed() == ["C-rank-2"]
