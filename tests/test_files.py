"""Files: round trips bit by bit, atomic writes under failure, and every error of reading and writing."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import isthmus
from isthmus import files
from isthmus._errors import DataError, FileFormatError, IsthmusError
from isthmus._strict_json import MAX_NESTING, loads
from isthmus._tensorfile import MAX_HEADER_BYTES, MAX_TENSORS

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)


def bits(T: torch.Tensor) -> bytes:
    return T.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same_bits(A: torch.Tensor, B: torch.Tensor) -> bool:
    return A.dtype == B.dtype and A.shape == B.shape and bits(A) == bits(B)


def same_net(a: isthmus.FullyConnected, b: isthmus.FullyConnected) -> bool:
    x, y = a.state_dict(), b.state_dict()
    alike = (a.dims, repr(a.slope), repr(a.bias), list(x)) == (b.dims, repr(b.slope), repr(b.bias), list(y))
    return alike and all(same_bits(x[name], y[name]) for name in x)


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name.startswith(".isthmus-")]


def random_bytes(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """A tensor of random bits: NaNs of all payloads, subnormals, infinities."""
    n = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == torch.bool else 256, n, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).reshape(shape) if n else torch.empty(shape, dtype=dtype)


# --- atomic writes


def test_write_atomic_writes_and_replaces(tmp_path):
    path = tmp_path / "a.bin"
    files.write_atomic(path, b"old")
    assert path.read_bytes() == b"old"
    files.write_atomic(path, [b"ne", memoryview(b"w"), bytearray(b"!")])
    assert path.read_bytes() == b"new!"
    assert list(tmp_path.iterdir()) == [path]


def test_write_atomic_modes_and_links(tmp_path):
    path, link = tmp_path / "a.bin", tmp_path / "link"
    files.write_atomic(path, b"1")
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)  # the umask, not 0600
    path.chmod(0o640)
    link.symlink_to(path)
    files.write_atomic(link, b"2")
    assert link.is_symlink() and path.read_bytes() == b"2" and stat.S_IMODE(path.stat().st_mode) == 0o640


def test_write_atomic_overwrite_false(tmp_path):
    path = tmp_path / "a.bin"
    files.write_atomic(path, b"1", overwrite=False)
    with pytest.raises(IsthmusError, match="must not exist"):
        files.write_atomic(path, b"2", overwrite=False)
    assert path.read_bytes() == b"1" and not leftovers(tmp_path)


@pytest.mark.parametrize("function", ["replace", "fsync", "fdopen"])
@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EIO, "Input/output error")],
)
def test_write_atomic_failure_keeps_the_old_file(tmp_path, monkeypatch, function, code, words):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def broken(*args, **kwargs):
        if function == "fdopen":
            os.close(args[0])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, function, broken)
    with pytest.raises(IsthmusError, match=words):
        files.write_atomic(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old" and not leftovers(tmp_path)


def test_write_atomic_interrupted_in_the_middle(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def pieces():
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_atomic(path, pieces())
    assert path.read_bytes() == b"old" and not leftovers(tmp_path)


def test_write_atomic_folder_that_cannot_be_synced(tmp_path, monkeypatch):
    real, calls = os.fsync, []

    def only_files(descriptor):
        calls.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        if calls[-1]:
            raise OSError(errno.EINVAL, "not supported here")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    files.write_atomic(tmp_path / "a.bin", b"1")
    assert calls == [False, True]  # the file, then the folder


def test_readers_see_old_or_new_only(tmp_path):
    path = tmp_path / "a.bin"
    contents = {bytes([k]) * 50_000 for k in range(4)}
    files.write_atomic(path, bytes(50_000))
    done, seen = threading.Event(), set()

    def watch():
        while not done.is_set():
            seen.add(path.read_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for k in range(60):
        files.write_atomic(path, bytes([k % 4]) * 50_000)
    done.set()
    watcher.join()
    assert seen and seen <= contents


def test_write_errors_say_what_is_wrong(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, words in [
        (tmp_path / "absent" / "a", "no such file or folder"),
        (tmp_path / "file" / "a", "not a folder"),
        (tmp_path, "a folder or a device"),
        (tmp_path / ("n" * 300), "name is too long"),
        (tmp_path / "loop", "symbolic links"),
        ("", "path of a file"),
        ("a\0b", "path of a file"),
        (3, "path of a file"),
        (b"bytes", "path of a file"),
        ("/dev/null", "a folder or a device"),
    ]:
        with pytest.raises(IsthmusError, match=words):
            files.write_atomic(path, b"x")  # pyright: ignore
    assert not leftovers(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_permissions(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"1")
    path.chmod(0)
    with pytest.raises(DataError, match="permission denied"):
        files.read_json(path)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(IsthmusError, match="permission denied"):
            files.write_atomic(tmp_path / "b", b"1")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_really_full_disk(tmp_path, monkeypatch):
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda p, *a, **k: real("/dev/full", os.O_WRONLY) if ".isthmus-" in str(p) else real(p, *a, **k)
    )
    with pytest.raises(IsthmusError, match="disk is full"):
        files.write_atomic(tmp_path / "a", b"x" * 100)
    assert not (tmp_path / "a").exists()


# --- JSON


def test_json_round_trip_and_scalars(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(
        path,
        {
            "int": np.int64(3),
            "float": np.float32(0.5),
            "bool": np.bool_(True),
            "tensor": torch.tensor(2.0, requires_grad=True),
            "array": np.arange(4).reshape(2, 2),
            "tuple": (1, None, "ℓ \x1b"),
            "nan": float("nan"),
            "inf": [np.inf, torch.tensor(-np.inf)],
            "third": 1 / 3,
        },
    )
    assert files.read_json(path) == {
        "int": 3,
        "float": 0.5,
        "bool": True,
        "tensor": 2.0,
        "array": [[0, 1], [2, 3]],
        "tuple": [1, None, "ℓ \x1b"],
        "nan": "nan",
        "inf": ["inf", "-inf"],
        "third": 1 / 3,
    }
    json.loads(path.read_text(), parse_constant=lambda c: pytest.fail(f"not strict: {c}"))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**38), 10**38)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(value=plain)
def test_json_round_trip_property(tmp_path, value):
    files.write_json(tmp_path / "a.json", value)
    assert files.read_json(tmp_path / "a.json") == value


def test_json_writer_refuses(tmp_path):
    deep: list = []
    deep.append(deep)
    for value, words in [
        ({"a": {"b": object()}}, r"'\.a\.b' must be plain data"),
        ({1: 2}, "must be strings"),
        (deep, "nest at most"),
        (10**50, "digits"),
        (1j, "plain data"),
        ({"x": Path("a")}, "plain data"),
        (np.array([1j]), "plain data"),
        ({"s": {1, 2}}, "plain data"),
    ]:
        with pytest.raises(IsthmusError, match=words):
            files.write_json(tmp_path / "a.json", value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"1e999",
        b"9" * 41,
        b"9" * 10_000,
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 1}}',
        b"[" * (MAX_NESTING + 1) + b"]" * (MAX_NESTING + 1),
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b"\xff\xfe",
        b'"\xed\xa0\x80"',
        b"[1] trailing",
        b"'a'",
        b"[01]",
        b'"' + b"\\" * 100_001,
        b'"' + b'\\"' * 1_000_000,
        b"[" + b"[]," * 1_100_000 + b"0]",
        b"[" + b"0," * 1_100_000 + b"0]",
    ],
    ids=lambda t: repr(t[:12]),
)
def test_json_reader_refuses(tmp_path, text):
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(FileFormatError, match="strict JSON") as caught:
        files.read_json(tmp_path / "a.json")
    assert len(str(caught.value)) < 1000


def test_json_reader_accepts_brackets_in_strings():
    text = json.dumps({"a": "[" * 500 + '"\\{' * 500}).encode()
    assert loads("t", text, "x") == json.loads(text)
    assert loads("t", b"[" * MAX_NESTING + b"]" * MAX_NESTING, "x") is not None


def test_reading_what_is_not_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"1" * 100)
    for read in (files.read_json, files.read_tensors, files.load):
        with pytest.raises(DataError, match="no such file"):
            read(tmp_path / "absent")
        with pytest.raises(DataError, match="a folder"):
            read(tmp_path)
        with pytest.raises(DataError, match="pipe"):
            read(tmp_path / "pipe")
        with pytest.raises(DataError, match="device"):
            read("/dev/zero")
        with pytest.raises(DataError, match="at most 10 bytes. Got 100 bytes"):
            read(tmp_path / "large", max_bytes=10)
        with pytest.raises(IsthmusError, match="path of a file"):
            read(None)  # pyright: ignore
        with pytest.raises(IsthmusError) as caught:
            read(tmp_path / ("\x1b[2J\n" * 2000))
        assert len(str(caught.value)) < 500 and str(caught.value).isprintable()


# --- tensors


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (5, 7), (2, 3, 4)], ids=str)
def test_tensors_round_trip_bitwise(tmp_path, dtype, shape):
    T = random_bytes(shape, dtype)
    files.write_tensors(tmp_path / "t", {"T": T}, {"note": "ℓ\x00\n"})
    tensors, metadata = files.read_tensors(tmp_path / "t")
    assert list(tensors) == ["T"] and same_bits(tensors["T"], T)
    assert metadata == {"note": "ℓ\x00\n"}
    # The reference implementation reads the same.
    reference = safetensors.torch.load_file(tmp_path / "t")
    assert same_bits(reference["T"], T)


def test_awkward_tensors(tmp_path):
    A = random_bytes((6, 5), torch.float64)
    array = np.arange(6.0)
    array.flags.writeable = False
    tensors = {
        "transposed": A.T,
        "strided": A[::2, 1:4],
        "shared": A,
        "expanded": A[:1].expand(4, 5),
        "parameter": torch.nn.Parameter(A[0]),
        "negative view": torch.view_as_real(torch.ones(2, dtype=torch.complex64)).neg(),
        "reversed": np.arange(6)[::-1],
        "big endian": np.arange(3, dtype=">f4"),
        "read-only": array,
        "numpy scalar": np.float32(2.5),
        'weird \x1b\n"name" ℓ': A[0, 0],
    }
    files.write_tensors(tmp_path / "t", tensors)
    back, metadata = files.read_tensors(tmp_path / "t")
    assert metadata == {} and back.keys() == tensors.keys()
    for name, T in tensors.items():
        expected = (
            T.detach()
            if isinstance(T, torch.Tensor)
            else torch.from_numpy(np.array(T, dtype=np.asarray(T).dtype.newbyteorder("=")))
        )
        assert same_bits(back[name], expected), name
    assert files.fingerprint(tensors) == files.fingerprint(back)
    with safetensors.safe_open(tmp_path / "t", "pt") as handle:
        assert set(handle.keys()) == set(tensors)
        assert handle.metadata()["sha256"] == files.fingerprint(tensors)
    files.write_tensors(tmp_path / "none", {})
    assert files.read_tensors(tmp_path / "none") == ({}, {})


def test_files_are_deterministic_and_order_free(tmp_path):
    A, B = random_bytes((3,), torch.float32, 1), random_bytes((4,), torch.float64, 2)
    files.write_tensors(tmp_path / "1", {"A": A, "B": B}, {"x": "1", "y": "2"})
    files.write_tensors(tmp_path / "2", {"B": B, "A": A}, {"y": "2", "x": "1"})
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_reads_what_the_reference_writes(tmp_path):
    """The layout is ours to check, not ours to choose: any order of tensors and metadata is read."""
    tensors = {"b": random_bytes((3,), torch.bfloat16), "a": random_bytes((2, 2), torch.float64)}
    files.write_tensors(tmp_path / "ours", tensors, {"k": "v"})
    with safetensors.safe_open(tmp_path / "ours", "pt") as handle:
        metadata = handle.metadata()
    safetensors.torch.save_file(tensors, tmp_path / "theirs", metadata)
    back, notes = files.read_tensors(tmp_path / "theirs")
    assert notes == {"k": "v"} and all(same_bits(back[name], T) for name, T in tensors.items())
    safetensors.torch.save_file(tensors, tmp_path / "bare")
    with pytest.raises(FileFormatError, match="must carry 'sha256'"):
        files.read_tensors(tmp_path / "bare")


def test_fingerprint_sees_names_dtypes_shapes_and_bits():
    A = torch.arange(6, dtype=torch.int32)
    prints = [
        files.fingerprint({"a": A}),
        files.fingerprint({"b": A}),
        files.fingerprint({"a": A.view(torch.float32)}),
        files.fingerprint({"a": A.reshape(2, 3)}),
        files.fingerprint({"a": A + 1}),
        files.fingerprint({"a": A[:3], "b": A[3:]}),
        files.fingerprint({"a": A[:2], "b": A[2:]}),
        files.fingerprint({}),
    ]
    assert len(set(prints)) == len(prints)


def test_tensor_writer_refuses(tmp_path):
    T = torch.ones(2)
    for tensors, metadata, words in [
        ({"a": T.to(torch.complex64)}, {}, "dense real"),
        ({"a": T.to_sparse()}, {}, "sparse"),
        ({"a": T.to("meta")}, {}, "meta"),
        ({"a": [1.0]}, {}, "a 'list'"),
        ({"a": np.array(["x"])}, {}, "dtype"),
        ({"a": np.array([object()])}, {}, "dtype"),
        ({"": T}, {}, "names of tensors"),
        ({"__metadata__": T}, {}, "names of tensors"),
        ({"x" * 2000: T}, {}, "names of tensors"),
        ({"\ud800": T}, {}, "names of tensors"),
        ({3: T}, {}, "names of tensors"),
        ({"a": T}, {"n": 3}, "strings to strings"),
        ({"a": T}, {"sha256": "0"}, "strings to strings"),
        ({"a": T}, {"n": "x" * MAX_HEADER_BYTES}, "must take at most"),
        ({"a": T}, {str(k): "" for k in range(300)}, "256 strings"),
        ({"a": torch.ones([1] * 9)}, {}, "shape"),
        ({str(k): T[:0] for k in range(MAX_TENSORS + 1)}, {}, f"at most {MAX_TENSORS} tensors"),
    ]:
        with pytest.raises(IsthmusError, match=words) as caught:
            files.write_tensors(tmp_path / "t", tensors, metadata)
        assert len(str(caught.value)) < 1000
    assert not list(tmp_path.iterdir())


# --- networks


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("slope", [0.0, -0.0, 1.0, -1.0, 0.1, 1 / 3])
@pytest.mark.parametrize("bias", [1.0, 0.0, 0.3])
def test_networks_round_trip(tmp_path, dtype, slope, bias):
    net = isthmus.FullyConnected([3, 5, 4, 2], slope, bias, dtype=dtype)
    with torch.no_grad():
        for k, parameter in enumerate(net.parameters()):
            parameter.copy_(random_bytes(tuple(parameter.shape), dtype, k))
    state = torch.random.get_rng_state()
    isthmus.save(net, tmp_path / "n.safetensors")
    back = isthmus.load(tmp_path / "n.safetensors")
    assert torch.equal(state, torch.random.get_rng_state())  # neither draws from the user's generator
    assert type(back) is isthmus.FullyConnected and same_net(net, back)
    assert back.training and all(p.requires_grad for p in back.parameters())


def test_saved_file_describes_itself(tmp_path):
    net = isthmus.FullyConnected([3, 2], slope=0.5)
    isthmus.save(net.eval().requires_grad_(False), str(tmp_path / "n"))
    with safetensors.safe_open(tmp_path / "n", "pt") as handle:
        metadata = handle.metadata()
    assert metadata["kind"] == "FullyConnected" and metadata["format_version"] == "1"
    assert json.loads(metadata["config"]) == {"dims": [3, 2], "slope": 0.5, "bias": 1.0, "dtype": "float32"}
    assert json.loads(metadata["versions"])["torch"] == str(torch.__version__)
    assert json.loads(metadata["versions"])["isthmus"] == isthmus.__version__
    assert metadata["sha256"] == files.fingerprint(net.state_dict())
    back = isthmus.load(str(tmp_path / "n"))
    assert back.training and all(p.requires_grad for p in back.parameters())


def test_save_to_an_existing_file(tmp_path):
    path = tmp_path / "n"
    a, b = isthmus.FullyConnected([3, 2]), isthmus.FullyConnected([2, 2])
    isthmus.save(a, path)
    isthmus.save(b, path)
    with pytest.raises(IsthmusError, match="overwrite=True"):
        isthmus.save(a, path, overwrite=False)
    assert same_net(isthmus.load(path), b)


def test_tied_weights_are_saved_apart(tmp_path):
    net = isthmus.FullyConnected([3, 3, 3], bias=0.0)
    net.weights[1] = net.weights[0]
    isthmus.save(net, tmp_path / "n")
    assert same_net(isthmus.load(tmp_path / "n"), net)


def test_save_refuses(tmp_path):
    mixed = isthmus.FullyConnected([3, 4, 2])
    mixed.weights[1].data = mixed.weights[1].data.double()
    reshaped = isthmus.FullyConnected([3, 4, 2])
    reshaped.weights[0] = torch.nn.Parameter(torch.ones(4, 4))
    extra = isthmus.FullyConnected([3, 4, 2])
    extra.register_parameter("more", torch.nn.Parameter(torch.ones(1)))
    steep = isthmus.FullyConnected([3, 2])
    steep._slope = 7.0
    for obj, words in [
        (torch.nn.Linear(2, 2), "nn.Sequential"),
        ({"a": 1}, "a 'dict'"),
        (mixed, "weights.1.*float32"),
        (reshaped, "weights.0"),
        (extra, "'more' too many"),
        (steep, "slope"),
        (isthmus.FullyConnected([3, 2], device="cpu").to("meta"), "meta"),
    ]:
        with pytest.raises(IsthmusError, match=words):
            isthmus.save(obj, tmp_path / "n")
    assert not list(tmp_path.iterdir())


def test_load_tells_other_safetensors_files_apart(tmp_path):
    files.write_tensors(tmp_path / "t", {"a": torch.ones(2)}, {"format": "pt"})
    with pytest.raises(FileFormatError, match=r"isthmus\.save.*'pt'"):
        isthmus.load(tmp_path / "t")
    files.write_tensors(tmp_path / "t", {}, {"format": "isthmus", "format_version": "2", "versions": "{}"})
    with pytest.raises(FileFormatError, match="newer isthmus.*Upgrade"):
        isthmus.load(tmp_path / "t")
    files.write_tensors(tmp_path / "t", {}, {"format": "isthmus", "format_version": "1", "kind": "os.system"})
    with pytest.raises(FileFormatError, match="one of FullyConnected, LeakyResNet, .*. Got 'os.system'"):
        isthmus.load(tmp_path / "t")


def test_names_of_our_kinds_are_kept_for_them(tmp_path):
    """A class of such a name from elsewhere is neither saved nor what a file of ours becomes."""
    ours = isthmus.FullyConnected([3, 2])
    isthmus.save(ours, tmp_path / "n")
    for kind in ("FullyConnected", "LeakyResNet", "Discovery"):
        files.register(kind, torch.nn.Linear, lambda obj: ({}, {}), lambda config, tensors: None)
    stranger = type("FullyConnected", (isthmus.FullyConnected,), {"__module__": __name__})
    assert type(isthmus.load(tmp_path / "n")) is isthmus.FullyConnected
    with pytest.raises(IsthmusError, match="`obj` must be one of"):
        isthmus.save(stranger([3, 2]), tmp_path / "m")
    assert not (tmp_path / "m").exists()
