"""2,000 mutated model files: each loads to exactly the same network or fails on one screen.

The campaign runs in a process of its own (this file as a script), where memory is limited and measured.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import isthmus
from isthmus import files
from isthmus._errors import DataError, FileFormatError, IsthmusError

MUTATIONS = 2000
#: What one load of a small file may add to the peak of the process, over the whole campaign.
MEMORY_MB = 200

# --- taking files apart and forging them: written from the format's description, not with the library's code


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    n = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + n]), data[8 + n :]


def join(header: dict[str, Any] | str | bytes, body: bytes) -> bytes:
    text = json.dumps(header) if isinstance(header, dict) else header
    raw = text.encode() if isinstance(text, str) else text
    return len(raw).to_bytes(8, "little") + raw + body


def forge(header: dict[str, Any], body: bytes) -> bytes:
    """The file with both hashes made right, so that only the deeper checks can refuse it."""
    layout, payload = [], b""
    for name in sorted(set(header) - {"__metadata__"}):
        entry = header[name]
        try:
            layout.append([name, entry["dtype"], entry["shape"]])
            begin, end = entry["data_offsets"]
            payload += body[begin:end]
        except (TypeError, KeyError, ValueError, IndexError):
            pass
    metadata = dict(header["__metadata__"])
    compact = {"separators": (",", ":")}
    metadata["sha256"] = hashlib.sha256(json.dumps(layout, **compact).encode() + payload).hexdigest()
    metadata.pop("sha256_metadata", None)
    metadata["sha256_metadata"] = hashlib.sha256(
        json.dumps(dict(sorted(metadata.items())), **compact).encode()
    ).hexdigest()
    return join({**header, "__metadata__": metadata}, body)


def tensor_names(header: dict[str, Any]) -> list[str]:
    return [name for name in header if name != "__metadata__"]


LONG = "\x1b[2J\x1b]0;title\x07\r\n\u202e\x00" * 1000
SIZES = [
    2**24,
    2**31,
    2**32 + 1,
    2**62,
    2**63 - 1,
    2**64,
    10**38,
    -1,
    -(2**63),
    0,
    1,
    4.0,
    1e18,
    "4",
    True,
    None,
    [4],
    {},
]

# --- mutations: (random source, a good file) -> bytes


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 20])):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def flip_header(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    out[rng.randrange(8 + int.from_bytes(data[:8], "little"))] = rng.randrange(256)
    return bytes(out)


def cut_or_extend(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.5:
        return data[: rng.randrange(len(data))]
    return data + rng.choice([b"\0", bytes(rng.randrange(1, 5000)), rng.randbytes(rng.randrange(1, 100)), data])


def splice(rng: random.Random, data: bytes) -> bytes:
    a, b = sorted(rng.sample(range(len(data)), 2))
    return rng.choice([data[:a] + data[b:], data[:b] + data[a:], data[:a] + rng.randbytes(b - a) + data[b:]])


def header_length(rng: random.Random, data: bytes) -> bytes:
    n = int.from_bytes(data[:8], "little")
    values = [
        0,
        1,
        2,
        n - 1,
        n + 1,
        n + 8,
        len(data),
        len(data) - 8,
        2**23,
        2**23 + 1,
        2**31,
        2**63,
        2**64 - 1,
    ]
    return rng.choice(values).to_bytes(8, "little") + data[8:]


def shape(rng: random.Random, data: bytes) -> bytes:
    header, body = split(data)
    entry = header[rng.choice(tensor_names(header))]
    if rng.random() < 0.3:
        entry["shape"] = rng.choice([LONG, None, 3, [], [[1]], [0] * 9, [2**24] * 8, [0, 2**60, 2**60], [1] * 10_000])
    else:
        entry["shape"][rng.randrange(len(entry["shape"]))] = rng.choice([s for s in SIZES if s != 1])
    if rng.random() < 0.3:  # offsets that agree with a declared, absent gigabyte
        entry["data_offsets"] = [0, 2**30]
        entry["shape"] = [2**14, 2**14]
    return rng.choice([forge, join])(header, body)


def offsets(rng: random.Random, data: bytes) -> bytes:
    header, body = split(data)
    names = tensor_names(header)
    entry, other = header[names[0]], header[names[1]]
    choice = rng.randrange(5)
    if choice == 0:  # two tensors on the same bytes
        n = entry["data_offsets"][1] - entry["data_offsets"][0]
        other.update(dtype=entry["dtype"], shape=entry["shape"])
        other["data_offsets"] = [entry["data_offsets"][0], entry["data_offsets"][0] + n]
    elif choice == 1:
        entry["data_offsets"] = entry["data_offsets"][::-1]
    elif choice == 2:  # everything moved, leaving a gap
        gap = rng.randrange(1, 64)
        for name in names:
            header[name]["data_offsets"] = [x + gap for x in header[name]["data_offsets"]]
        body = bytes(gap) + body
    elif choice == 3:
        entry["data_offsets"] = rng.choice([LONG, None, [], [0], [0, 0, 0], {"0": 1}, [0, 0.5]])
    else:
        entry["data_offsets"][rng.randrange(2)] = rng.choice([s for s in SIZES if s != 0])
    return rng.choice([forge, join])(header, body)


def dtypes(rng: random.Random, data: bytes) -> bytes:
    header, body = split(data)
    name = rng.choice(tensor_names(header))
    entry = header[name]
    # Same width, other meaning (the layout stays right), and codes that do not exist.
    twins = {"F64": ["I64", "U64"], "F32": ["I32", "U32"], "BF16": ["F16", "I16", "U16"]}[entry["dtype"]]
    entry["dtype"] = rng.choice([*twins, "BOOL", "C64", "F8_E4M3", "F4", "float64", LONG, 3, None, ["F64"], "O"])
    return forge(header, body)


def literals(rng: random.Random, data: bytes) -> bytes:
    header, body = split(data)
    entry = header[rng.choice(tensor_names(header))]
    entry[rng.choice(["shape", "data_offsets"])][0] = "@"
    bad = [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "9" * 5000,
        "-0",
        "01",
        "0x10",
        "1_000",
        "",
        "'1'",
        "\x00",
        "1e2",
    ]
    return join(json.dumps(header).replace('"@"', rng.choice(bad)), body)


def duplicates(rng: random.Random, data: bytes) -> bytes:
    header, body = split(data)
    key = rng.choice([*header, "format", "kind", "config", "sha256", "dtype", "shape", "data_offsets"])
    places = [key] if key in header else []
    value = json.dumps(header[places[0]] if places else "x")
    text = json.dumps(header)
    at = text.index(f'"{key}"')
    return join(text[:at] + f'"{key}": {value}, ' + text[at:], body)


def nesting(rng: random.Random, data: bytes) -> bytes:
    header, body = split(data)
    n = rng.choice([50, 100, 1000, 100_000, 1_000_000])
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    deep = opening * n + "0" + closing * rng.choice([n, 0])
    text = json.dumps({**header, "deep": "@"}).replace('"@"', deep)
    if rng.random() < 0.3:  # inside the configuration, behind correct hashes
        header["__metadata__"]["config"] = deep
        return forge(header, body)
    return join(text, body)


def many_values(rng: random.Random, data: bytes) -> bytes:
    header, body = split(data)
    element = rng.choice(["[],", "{},", "0,", '"",', "[[]],", "null,"])
    text = json.dumps({**header, "many": "@"})
    return join(text.replace('"@"', "[" + element * rng.choice([500, 500, 500, 1_200_000]) + "0]"), body)


def config(rng: random.Random, data: bytes) -> bytes:
    """A configuration that does not agree with the tensors, or is no configuration, behind correct hashes."""
    header, body = split(data)
    values = json.loads(header["__metadata__"]["config"])
    key = rng.choice(["dims", "dims", "dims", "slope", "bias", "dtype", "keys", "text"])
    if key == "dims" and rng.random() < 0.6:
        dims = values["dims"]
        at = rng.randrange(len(dims))
        dims[at] = rng.choice([s for s in SIZES if s != dims[at]])
    elif key == "dims":
        values["dims"] = rng.choice(
            [
                [],
                [5],
                values["dims"][::-1],
                values["dims"][:-1],
                [2**24] * 4,
                [2**24] * 1000,
                [1] * 200_000,
                LONG,
                {},
                None,
            ]
        )
    elif key == "slope":
        values["slope"] = rng.choice([1.5, -2, "0.0", "nan", True, None, [0.0], 10**38])
    elif key == "bias":
        values["bias"] = rng.choice([0.0 if values["bias"] else 1.0, "1", "inf", None, False, {}])
    elif key == "dtype":
        names = {"float16", "bfloat16", "float32", "float64", "complex64", "int64", "O", LONG} - {values["dtype"]}
        values["dtype"] = rng.choice([*sorted(names), 3, None, []])
    elif key == "keys":
        values.pop(rng.choice(list(values))) if rng.random() < 0.5 else values.update({rng.choice(["x", LONG]): 1})
    text = json.dumps(values)
    if key == "text":
        text = rng.choice(
            [
                "",
                "{}",
                "[]",
                "null",
                "NaN",
                text[:-1],
                text + "}",
                text.replace(":", ": NaN,", 1),
                LONG,
                "\ud800",
            ]
        )
    header["__metadata__"]["config"] = text
    return forge(header, body)


def metadata(rng: random.Random, data: bytes) -> bytes:
    header, body = split(data)
    notes = header["__metadata__"]
    choice = rng.randrange(6)
    if choice == 0:
        notes["kind"] = rng.choice(
            ["", "Linear", "os.system", "FullyConnected\0", "fullyconnected", "__main__.X", LONG]
        )
    elif choice == 1:
        notes["format_version"] = rng.choice(["2", "999999999", "9" * 5000, "0", "-1", "1.0", "", "\u0661", "1 ", LONG])
    elif choice == 2:
        notes.pop(rng.choice(["format", "format_version", "kind", "config"]))
    elif choice == 3:
        header["__metadata__"] = rng.choice([[], "x", None, 3, {"a": 1}, {str(k): "" for k in range(300)}, {}])
        return join(header, body)
    elif choice == 4:
        notes[rng.choice(list(notes))] = rng.choice([1, None, ["x"], {}, True])
        return join(header, body)
    else:
        notes["format"] = rng.choice(["pt", "", LONG])
    return forge(header, body)


def hashes(rng: random.Random, data: bytes) -> bytes:
    """Edits of hashes, or of hashed content without the hash following it."""
    header, body = split(data)
    notes = header["__metadata__"]
    key = rng.choice(["sha256", "sha256_metadata"])
    choice = rng.randrange(4)
    if choice == 0:
        notes.pop(key)
    elif choice == 1:
        notes[key] = rng.choice(["", "0" * 64, notes[key].upper(), notes[key][:-1], LONG])
    elif choice == 2:
        notes["config"] = notes["config"].replace('"slope":', '"slope":-')
    else:
        values = json.loads(notes["config"])
        notes["config"] = json.dumps({**values, "slope": rng.random()})
    return join(header, body)


def swap(rng: random.Random, data: bytes) -> bytes:
    """Tensors exchanged, renamed, removed or added, behind right hashes; or bytes behind old ones."""
    header, body = split(data)
    a, b = rng.sample(tensor_names(header), 2)
    choice = rng.randrange(5)
    if choice == 0:
        header[a], header[b] = header[b], header[a]
    elif choice == 1:
        header[rng.choice(["weights.9", "biases.-1", "weights.00", "x", LONG[:900], LONG, "", "\ud800"])] = header.pop(
            a
        )
    elif choice == 2:
        begin, end = header.pop(a)["data_offsets"]
        body = body[:begin] + body[end:]
        for name in tensor_names(header):
            header[name]["data_offsets"] = [x - (end - begin) * (x > begin) for x in header[name]["data_offsets"]]
    elif choice == 3:
        header[rng.choice(["extra", "weights.3", LONG[:500]])] = {
            "dtype": "U8", "shape": [0], "data_offsets": [len(body)] * 2
        }  # fmt: skip
    else:
        n = min(len(body) // 2, rng.randrange(1, 40))
        return join(header, body[-n:] + body[n:-n] + body[:n])
    return forge(header, body)


class Payload:
    """Unpickling this creates the file named by the environment."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path(os.environ["ISTHMUS_TEST_MARKER"]),))


def other_formats(rng: random.Random, data: bytes) -> bytes:
    choice = rng.randrange(7)
    if choice == 0:
        return pickle.dumps(Payload(), protocol=rng.randrange(6))
    if choice == 1:
        stream = io.BytesIO()
        torch.save({"weights.0": torch.ones(2, 2), "x": Payload()}, stream)
        return stream.getvalue()
    if choice == 2:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("data.pkl", bytes(2_000_000))
        return stream.getvalue()
    if choice == 3:
        return gzip.compress(data)
    if choice == 4:
        return rng.choice([b"", b"\0", bytes(7), bytes(8), bytes(5000), b"{}", b"\x02" + bytes(7) + b"{}"])
    if choice == 5:
        return rng.randbytes(rng.randrange(5000))
    body = pickle.dumps(Payload())  # a pickle as the content of a well-formed file
    entry = {"dtype": "U8", "shape": [len(body)], "data_offsets": [0, len(body)]}
    return forge({"__metadata__": split(data)[0]["__metadata__"], "weights.0": entry}, body)


def harmless(rng: random.Random, data: bytes) -> bytes:
    """Other spellings of the same content, which must load."""
    header, body = split(data)
    items = list(header.items())
    rng.shuffle(items)
    text = json.dumps(dict(items), indent=rng.choice([None, 1, 4]), ensure_ascii=rng.random() < 0.5)
    return join(text + " " * rng.randrange(20), body)


MUTATORS: list[Callable[[random.Random, bytes], bytes]] = [
    flip_bits, flip_header, cut_or_extend, splice, header_length, shape, offsets, dtypes, literals,
    duplicates, nesting, many_values, config, config, metadata, hashes, swap, other_formats, flip_bits,
    harmless,
]  # fmt: skip


def networks() -> list[isthmus.FullyConnected]:
    """All shapes within a network differ, so that no exchange of tensors gives a network again."""
    generator = torch.Generator().manual_seed(0)
    nets = [
        isthmus.FullyConnected([5, 7, 4, 3], dtype=torch.float64, generator=generator),
        isthmus.FullyConnected([2, 6, 3], slope=0.3, bias=0.0, generator=generator),
        isthmus.FullyConnected([3, 8, 2], slope=-1.0, bias=0.5, dtype=torch.bfloat16, generator=generator),
    ]
    for net in nets:
        for b in net.bs:
            b.data.normal_(generator=generator)
    return nets


def content(net: isthmus.FullyConnected) -> Any:
    state = {
        k: (str(T.dtype), tuple(T.shape), T.contiguous().view(torch.uint8).numpy().tobytes())
        for k, T in net.state_dict().items()
    }
    return type(net).__name__, net.dims, repr(net.slope), repr(net.bias), state


def campaign(count: int, load: Callable[[Path], Any], folder: Path, seed: int = 0) -> dict[str, Any]:
    """Load ``count`` mutated files; every outcome that breaks the promise is listed under ``broken``."""
    goods = []
    for net in networks():
        isthmus.save(net, folder / "good")
        goods.append(((folder / "good").read_bytes(), content(net)))
    outcomes: dict[str, Counter[str]] = {}
    broken, messages = [], Counter()
    for index in range(count):
        rng = random.Random(f"{seed}-{index}")
        mutate = MUTATORS[index % len(MUTATORS)]
        data, expected = goods[rng.randrange(len(goods))]
        path = folder / "mutant.safetensors"
        path.write_bytes(mutate(rng, data))
        try:
            outcome = "same" if content(load(path)) == expected else "different"
        except IsthmusError as problem:
            text = str(problem)
            tidy = len(text) <= 2000 and text.count("\n") < 24 and text.replace("\n", "").isprintable()
            outcome = "refused" if tidy and isinstance(problem, DataError) else f"untidy: {text[:300]!r}"
            messages[text] += 1
        except Exception as problem:  # noqa: BLE001
            outcome = f"{type(problem).__name__}: {str(problem)[:200]}"
        outcomes.setdefault(mutate.__name__, Counter())[outcome if outcome in ("same", "refused") else "broken"] += 1
        if outcome not in ("same", "refused"):
            broken.append(f"{index} {mutate.__name__}: {outcome}")
    return {"broken": broken, "outcomes": outcomes, "messages": list(messages)}


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        isthmus.save(networks()[0], folder / "warm")
        isthmus.load(folder / "warm")
        # Address space beyond what the imports took: an allocation by declared size would fail, not swap.
        if sys.platform == "linux":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 2 * MEMORY_MB * 2**20,) * 2)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = campaign(count, isthmus.load, folder)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024
    print(json.dumps({**result, "growth_mb": (after - before) * unit / 2**20}))


# --- tests


@pytest.fixture
def marker(tmp_path, monkeypatch):
    path = tmp_path / "marker"
    monkeypatch.setenv("ISTHMUS_TEST_MARKER", str(path))
    return path


def test_2000_mutated_files(marker):
    source = str(Path(isthmus.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__, str(MUTATIONS)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["broken"] == []
    assert not marker.exists(), "a file ran code"
    assert result["growth_mb"] < MEMORY_MB
    counts = result["outcomes"]
    assert sum(sum(c.values()) for c in counts.values()) == MUTATIONS
    assert counts["harmless"] == {"same": MUTATIONS // len(MUTATORS)}
    for name in (
        "config",
        "metadata",
        "hashes",
        "swap",
        "other_formats",
        "dtypes",
        "shape",
        "offsets",
        "duplicates",
    ):
        assert counts[name].keys() == {"refused"}, name
    # The mutants are not all stopped at the door: every line of defence was reached.
    for words in [
        "must begin with a header", "must be a JSON object", "strict JSON", "duplicate key", "nesting",
        "values", "the literal", "overflows", "digits", "must declare dtype", "the dtype of",
        "the shape of", "data_offsets of", "must begin where", "must fill", "256 strings",
        "must carry 'sha256", "the metadata of", "the tensors of", "must be a file of isthmus.save",
        "newer isthmus", "must be a number", "the kind of object", "names in",
        "configuration must have the keys", "`dims` must", "`dims[", "`slope`", "`bias`",
        "`dtype` must", "the tensors must be the", "must have shape", "bool",
    ]:  # fmt: skip
        assert any(words in text for text in result["messages"]), f"never reached: {words}"


def test_the_campaign_can_fail(tmp_path, marker):
    """Against a reader that trusts the file, the same mutants give other networks and foreign exceptions."""

    def trusting(path: Path) -> Any:
        data = path.read_bytes()
        notes = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["config"])
        net = isthmus.FullyConnected([min(n, 50) for n in notes["dims"][:50]], notes["slope"], notes["bias"])
        net = net.to(getattr(torch, notes["dtype"]))
        net.load_state_dict(safetensors.torch.load(data))
        return net

    broken = campaign(200, trusting, tmp_path)["broken"]
    assert any("different" in line for line in broken)
    assert sum("different" not in line for line in broken) > 50
    # And the payload is live: an unpickler would have run it.
    pickle.loads(pickle.dumps(Payload()))
    assert marker.exists()


def test_one_flipped_bit_of_data_is_caught_by_the_hash_alone(tmp_path):
    path = tmp_path / "n"
    isthmus.save(networks()[0], path)
    header, body = split(path.read_bytes())
    for at in range(0, len(body), 37):
        flipped = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        path.write_bytes(join(header, flipped))
        with pytest.raises(FileFormatError, match="tensors of .* must have the SHA-256"):
            isthmus.load(path)
        # With the hash made right the file is well-formed: nothing but the hash stood in the way.
        path.write_bytes(forge(header, flipped))
        assert content(isthmus.load(path)) != content(networks()[0])


def test_a_right_hash_does_not_excuse_a_wrong_shape(tmp_path):
    path = tmp_path / "n"
    isthmus.save(networks()[0], path)
    header, body = split(path.read_bytes())
    path.write_bytes(forge(header, body))
    assert content(isthmus.load(path)) == content(networks()[0])
    header["weights.0"]["shape"] = header["weights.0"]["shape"][::-1]
    path.write_bytes(forge(header, body))
    with pytest.raises(FileFormatError, match=r"'weights.0' must have shape \(7, 5\)"):
        isthmus.load(path)


def test_declared_sizes_are_never_allocated(tmp_path):
    """A sparse file of many terabytes, and 2^24 × 2^24 networks declared in a file of one kilobyte."""
    path = tmp_path / "n"
    isthmus.save(networks()[1], path)
    header, body = split(path.read_bytes())
    values = json.loads(header["__metadata__"]["config"])
    header["__metadata__"]["config"] = json.dumps({**values, "dims": [2**24] * 3})
    path.write_bytes(forge(header, body))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FileFormatError, match="must have shape"):
        isthmus.load(path)
    with path.open("r+b") as handle:
        handle.truncate(2**43)
    with pytest.raises(DataError, match="max_bytes"):
        isthmus.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_file_that_shrinks_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "n"
    isthmus.save(isthmus.FullyConnected([300, 300]), path)  # larger than the reader's buffer
    real = files.read_header

    def shrink(*args):
        header = real(*args)
        with path.open("r+b") as handle:
            handle.truncate(100)
        return header

    monkeypatch.setattr(files, "read_header", shrink)
    with pytest.raises(FileFormatError, match="must hold all its bytes"):
        isthmus.load(path)


if __name__ == "__main__":
    main(int(sys.argv[1]))
