"""``convert_state_dict``: chains of matrices become networks, all else is refused by name or kept raw."""

from __future__ import annotations

import pickle
import random
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

import isthmus
from isthmus import files
from isthmus._errors import DataError, FileFormatError, IsthmusError
from isthmus.cli import main
from isthmus.networks._reading import Conversion, UntrustedFileWarning, convert_state_dict


def convert(source, target, **options) -> Conversion:
    """Convert, and insist on exactly one warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = convert_state_dict(source, target, **options)
    assert [w.category for w in caught] == [UntrustedFileWarning]
    assert "trust" in str(caught[0].message) and caught[0].filename == __file__
    return result


@pytest.fixture
def refuses(tmp_path):
    def check(state, words, **options):
        source, target = tmp_path / "w.pt", tmp_path / "out.safetensors"
        if not isinstance(state, Path):
            torch.save(state, source)
        else:
            source = state
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UntrustedFileWarning)
            with pytest.raises(FileFormatError, match=words) as caught:
                convert_state_dict(source, target, **options)
        assert len(str(caught.value)) < 1000 and str(caught.value).isprintable()
        assert not target.exists()

    return check


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sequential(tmp_path, dtype):
    module = nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 2)).to(dtype)
    torch.save(module.state_dict(), tmp_path / "w.pt")
    result = convert(tmp_path / "w.pt", tmp_path / "w.safetensors")
    assert result == Conversion(
        tmp_path / "w.pt", tmp_path / "w.safetensors", "FullyConnected", ("0", "2", "4"), (3, 7, 5, 2), 80
    )
    X = torch.randn(10, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    net = isthmus.load(tmp_path / "w.safetensors")
    assert net.slope == 0.0 and net.bias == 1.0
    torch.testing.assert_close(net(X), module(X))


def test_own_state_dict_slope_and_bias(tmp_path):
    net = isthmus.FullyConnected([3] * 13, slope=0.2, bias=0.5, dtype=torch.float64)
    with torch.no_grad():
        for b in net.bs:
            b.normal_(generator=torch.Generator().manual_seed(1))
    torch.save(net.state_dict(), tmp_path / "w.pt")
    result = convert(tmp_path / "w.pt", tmp_path / "w", slope=0.2, bias=0.5)
    back = isthmus.load(tmp_path / "w")
    assert result.layers == tuple(str(k) for k in range(12)) and (back.slope, back.bias) == (0.2, 0.5)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), back.parameters()))


def test_order_is_by_number_not_by_text(tmp_path):
    module = nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(11)])
    shuffled = OrderedDict(sorted(module.state_dict(prefix="net.").items()))
    assert list(shuffled)[2] == "net.10.weight"
    torch.save(shuffled, tmp_path / "w.pt")
    result = convert(tmp_path / "w.pt", tmp_path / "w", slope=1.0)
    assert result.layers == tuple(f"net.{k}" for k in range(11))
    X = torch.ones(1, 2)
    torch.testing.assert_close(isthmus.load(tmp_path / "w")(X), module(X))


def test_named_layers_keep_their_order_and_missing_biases_are_zero(tmp_path):
    state = {"stem.weight": torch.ones(4, 3), "head.weight": torch.ones(2, 4), "head.bias": torch.ones(2)}
    torch.save(state, tmp_path / "w.pt")
    result = convert(tmp_path / "w.pt", tmp_path / "w")
    net = isthmus.load(tmp_path / "w")
    assert result.layers == ("stem", "head") and torch.equal(net.bs[0], torch.zeros(4))
    torch.save({"weight": torch.ones(2, 3).T}, tmp_path / "w.pt")  # one bare Linear, not contiguous
    assert convert(tmp_path / "w.pt", tmp_path / "w").dims == (2, 3)


def test_raw_keeps_everything(tmp_path):
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    tied = torch.arange(3)
    state = {**module.state_dict(), "tied.a": tied, "tied.b": tied, "odd \x1b name": torch.tensor(True)}
    torch.save(state, tmp_path / "w.pt")
    result = convert(tmp_path / "w.pt", tmp_path / "w", raw=True)
    tensors, metadata = files.read_tensors(tmp_path / "w")
    assert result.kind == "tensors" and result.dims is None and result.layers == tuple(state)
    assert metadata == {"format": "pt"} and tensors.keys() == state.keys()
    assert all(torch.equal(tensors[name], T) and tensors[name].dtype == T.dtype for name, T in state.items())


def test_misfits_are_named(refuses):
    W = torch.ones(2, 2)
    bn = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)).state_dict()
    for state, words in [
        (bn, "1.weight"),
        (nn.Conv2d(1, 2, 3).state_dict(), r"'weight' of shape '?\(2, 1, 3, 3\).*raw=True"),
        ({"0.weight": W, "in_proj": W}, r"'in_proj'.*\*\.weight"),
        ({"0.bias": W[0]}, "'0.bias'.*no weight"),
        ({"0.weight": W, "1.weight": torch.ones(2, 3)}, "'1.weight'.*2 outputs"),
        ({"0.weight": W, "0.bias": torch.ones(3)}, "'0.bias'.*vector of 2"),
        ({"0.weight": W.int()}, "floating"),
        ({"0.weight": W.to(torch.complex64)}, "floating"),
        ({"0.weight": W, "1.weight": W.double()}, "'1.weight'.*first layer"),
        ({"0.weight": torch.ones(0, 2)}, "not a matrix"),
        ({"weights.0": W, "biases.1": W[0]}, "'biases.1'.*no weight"),
        ({"0.weight": torch.ones(2), "\x1b[2J" * 200: W}, r"'0.weight'|\\x1b"),
    ]:
        refuses(state, words)


def test_odd_contents_are_named(refuses):
    W = torch.ones(2, 2)
    for state, words in [
        ({"state_dict": {"0.weight": W}, "epoch": 3}, "a 'dict' at 'state_dict'"),
        ({"0.weight": W, "epoch": 3}, "a 'int' at 'epoch'"),
        ({"0.weight": [1.0]}, "a 'list' at '0.weight'"),
        ({3: W}, "at 3"),
        ([W], "a 'list'"),
        (W, "a 'Tensor'"),
        ({}, "no entry"),
        ({"a": W.to_sparse()}, "dense"),
        ({"a": W.to("meta")}, "dense|weights_only"),
        ({"0.weight": torch.ones(1, 1).expand(30_000, 30_000)}, "expanded"),
    ]:
        for raw in (False, True):
            refuses(state, words, raw=raw)


def test_a_whole_module_or_any_other_pickle_is_refused(refuses, tmp_path):
    marker = tmp_path / "marker"

    class Payload:
        def __reduce__(self):
            return (Path.touch, (marker,))

    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    refuses(tmp_path / "module.pt", "weights_only=True.*UnpicklingError")
    torch.save({"0.weight": torch.ones(2, 2), "x": Payload()}, tmp_path / "evil.pt", pickle_protocol=2)
    refuses(tmp_path / "evil.pt", "weights_only=True")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps({"x": Payload()}))
    refuses(tmp_path / "evil.pkl", "zip archive")
    assert not marker.exists()
    # The payload is live: an ordinary unpickler runs it.
    pickle.loads((tmp_path / "evil.pkl").read_bytes())
    assert marker.exists()


def test_archives_that_torch_never_writes(refuses, tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(50_000_000))
    assert (tmp_path / "bomb.pt").stat().st_size < 100_000
    refuses(tmp_path / "bomb.pt", "uncompressed archive")
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("readme", "hello")
    refuses(tmp_path / "other.pt", "weights_only")
    torch.save({"0.weight": torch.ones(2, 2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    refuses(tmp_path / "old.pt", "zip archive")
    for content in (b"", b"PK", b"PK\x05\x06" + bytes(18), b"\x80\x02."):
        (tmp_path / "x.pt").write_bytes(content)
        refuses(tmp_path / "x.pt", "zip archive|weights_only")


def test_damaged_archives(tmp_path):
    """Random damage gives a FileFormatError, or a file whose tensors still are a chain."""
    torch.save(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)).state_dict(), tmp_path / "good.pt")
    good = (tmp_path / "good.pt").read_bytes()
    rng = random.Random(0)
    refused = accepted = 0
    for _ in range(150):
        data = bytearray(good)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        (tmp_path / "bad.pt").write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UntrustedFileWarning)
            try:
                convert_state_dict(tmp_path / "bad.pt", tmp_path / "out")
            except FileFormatError as problem:
                refused += len(str(problem)) < 2000
            else:
                accepted += 1
    assert refused + accepted == 150 and refused > 50


def test_files_and_arguments(tmp_path):
    torch.save({"0.weight": torch.ones(2, 2)}, tmp_path / "w.pt")
    with pytest.raises(DataError, match="no such file"):
        convert_state_dict(tmp_path / "absent.pt", tmp_path / "out")
    with pytest.raises(DataError, match="max_bytes"):
        convert_state_dict(tmp_path / "w.pt", tmp_path / "out", max_bytes=10)
    with pytest.raises(IsthmusError, match="slope"):
        convert_state_dict(tmp_path / "w.pt", tmp_path / "out", slope=2.0)
    convert(tmp_path / "w.pt", tmp_path / "out")
    with pytest.warns(UntrustedFileWarning), pytest.raises(IsthmusError, match="must not exist"):
        convert_state_dict(tmp_path / "w.pt", tmp_path / "out", overwrite=False)
    # With warnings as errors the pickle is not even opened.
    with pytest.raises(UntrustedFileWarning):
        convert_state_dict(tmp_path / "w.pt", tmp_path / "out2")
    assert not (tmp_path / "out2").exists()


def test_the_command_never_replaces_its_source(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.save({"0.weight": torch.ones(2, 2)}, "w.pt")
    Path("link").symlink_to("w.pt")
    before = Path("w.pt").read_bytes()
    for target in ("w.pt", "link"):
        assert main(["convert", "w.pt", target]) == 2
        assert "TARGET must be another file than SOURCE" in capsys.readouterr().err
    assert Path("w.pt").read_bytes() == before
