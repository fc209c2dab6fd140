"""The report of a real sweep, from its folder: the same file whoever makes it, spectra as the runs have them."""

import json

import numpy as np
import pytest

import isthmus
from isthmus.cli import main
from isthmus.report import page_of
from isthmus.report.page import Phase
from quick_runs import Here
from tools import assert_close


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Two depths, two ridges, two seeds of F-bn-1, hardly trained."""
    folder = tmp_path_factory.mktemp("sweeps") / "mine"
    grid, base = {"depth": "3,5", "ridge": "1e-3,1e-2"}, {"adam_steps": 3, "steps": 0}
    found = isthmus.sweep("F-bn-1", grid, seeds=2, base=base, quick=True, engine=Here(), out=folder)
    return folder, found


def test_the_command_and_the_function_write_the_same(swept, tmp_path, capsys):
    folder, found = swept
    main(["report", str(folder), "--out", str(tmp_path / "a.html"), "--json"])
    assert json.loads(capsys.readouterr().out)["subject"] == "Sweep"
    isthmus.save_report(found, tmp_path / "b.html")
    isthmus.save_report(isthmus.sweeps.read(folder), tmp_path / "c.html")
    texts = [(tmp_path / f"{name}.html").read_bytes() for name in "abc"]
    assert texts[0] == texts[1] == texts[2] and str(folder.parent).encode() not in texts[0]


def test_cells_and_spectra_are_those_of_the_runs(swept):
    _, found = swept
    page = page_of(found)
    phase = next(one for section in page.sections for one in section.blocks if isinstance(one, Phase))
    assert phase.content["names"] == ["depth", "ridge"] and len(phase.content["cells"]) == 4
    keys = [row[phase.content["heads"].index("key")] for row in phase.content["runs"]]
    assert sorted(keys) == sorted(found.frame.index)
    for key, spectrum in zip(keys, phase.content["spectra"]):
        arrays = found.run(key).arrays
        values = np.maximum(arrays["spectra"][0][:, :12], 1e-6)
        shown = np.array(spectrum[2], dtype=np.float64).T
        assert_close(shown, values, rtol=1e-2, reason="spectra carry three digits")
        assert spectrum[1] == int(arrays["ranks"][0])
    assert len(next(one for one in page.figures() if one.key == "norms").choices[0].options) == 2
