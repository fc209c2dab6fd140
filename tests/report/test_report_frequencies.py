"""The section on frequencies: its numbers are those of the diagnosis; none without circular filters."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from isthmus import ConvolutionalNet, FileFormatError, diagnose
from isthmus.measures import filter_spectra
from isthmus.plotting.frequencies import plane
from isthmus.report import page_of, page_of_document, save, save_report
from isthmus.report.page import Table
from tools import assert_close, gaussian, generator

ROUNDED = "figures carry five digits"


def made(size, channels=(1, 3, 2)):
    return ConvolutionalNet(list(channels), size, dtype=torch.float64, generator=generator())


def section(page):
    return next((one for one in page.sections if one.key == "frequencies"), None)


@pytest.mark.parametrize("size", [(5,), (6,), 4, (3, 4)])
def test_the_plane_has_both_halves(size):
    W = gaussian(2, 2, *([2] if isinstance(size, tuple) and len(size) == 1 else [2, 2]))
    found = filter_spectra(W, size)
    ticks, largest = plane(found)
    padded = np.zeros((2, 2, *found.size))
    padded[(slice(None), slice(None), *(slice(0, 2) for _ in found.size))] = W.numpy()
    blocks = np.fft.fftn(padded, axes=tuple(range(2, padded.ndim)))
    for place in np.ndindex(*largest.shape):
        turns = [axis[k] for axis, k in zip(ticks, place)]
        block = blocks[(slice(None), slice(None), *(k % n for k, n in zip(turns, found.size)))]
        assert_close(largest[place], np.linalg.svd(block, compute_uv=False)[0])


@pytest.mark.parametrize("size", [(6,), 4])
def test_the_section(size):
    net = made(size)
    found = diagnose(net, gaussian(30, net.d_in), jacobian_samples=0)
    page = page_of(found)
    assert json.dumps(page_of_document(json.loads(found.to_json())).sections, default=vars) == json.dumps(
        page.sections, default=vars
    )
    one = section(page)
    assert one is not None
    tables = {block.key: block for block in one.blocks if isinstance(block, Table)}
    figures = {block.key: block for block in one.blocks if block.kind == "figure"}
    assert tables["frequencies-verdict"].rows[0][0].word == found.whole["kept_frequencies"]["verdict"]
    rows = tables["frequencies-numbers"].rows
    assert [row[0] for row in rows] == ["2", "4"]
    for row, W in zip(rows, net.filters):
        assert_close(row[4], W.square().sum())
        assert_close(row[5], net.positions * W.square().sum())
    points = figures["frequencies-depth"].data[0]
    values = torch.cat([filter_spectra(W, net.size).values.flatten() for W in net.filters])
    assert_close(sorted(points["y"]), values.sort().values, rtol=1e-4, reason=ROUNDED)
    assert len(points["x"]) == len(points["text"]) == len(points["marker"]["color"]) == len(values)
    assert any("±" in text for text in points["text"]) and not all("±" in text for text in points["text"])
    (choice,) = figures["frequencies-layer"].choices
    assert [name for name, _ in choice.options] == ["2", "4"]
    key = "data.0.y" if len(net.size) == 1 else "data.0.z"
    drawn = np.array(choice.options[1][1][key])
    assert_close(drawn, plane(filter_spectra(net.filters[1], net.size))[1], rtol=1e-4, reason=ROUNDED)


def test_it_is_written(tmp_path, monkeypatch):
    net = made(4)
    found = diagnose(net, gaussian(30, 16), jacobian_samples=0)
    save_report(found, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Singular values coloured by frequency" in text and "What every filter passes" in text


def test_none_without_circular_filters():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)).double()
    assert section(page_of(diagnose(net, gaussian(20, 1, 4, 4), jacobian_samples=0))) is None


def test_signals_and_images_in_one_network():
    """No plane is drawn for both at once; the points are."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            settings = {"padding": "same", "padding_mode": "circular", "dtype": torch.float64}
            self.flat, self.long = nn.Conv2d(1, 1, 3, **settings), nn.Conv1d(1, 1, 3, **settings)

        def forward(self, x):
            return self.long(self.flat(x).flatten(2))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Both()
    one = section(page_of(diagnose(net, gaussian(20, 1, 4, 4), jacobian_samples=0)))
    assert one is not None
    assert [block.key for block in one.blocks] == ["frequencies-depth", "frequencies-numbers"]


@pytest.mark.parametrize(
    "hostile", [{"verdict": ["x"], "reasons": [1]}, {"mean": []}, {"reasons": 3}, {"verdict": "<b>" * 10**4}, [1, 2]]
)
def test_a_strangers_verdict(hostile, monkeypatch):
    document = json.loads(diagnose(made((5,)), gaussian(20, 5), jacobian_samples=0).to_json())
    document["whole"]["kept_frequencies"] = hostile
    try:
        page = page_of_document(document)
    except FileFormatError:
        return
    assert "<b><b>" not in save.render(page)
