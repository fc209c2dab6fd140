"""Real data: found or asked for with a remedy, refused when it is not bit for bit what it should be."""

from __future__ import annotations

import gzip
import hashlib

import numpy as np
import pytest

from isthmus import DataError, FileFormatError, IsthmusError, datasets
from isthmus.datasets import balanced_subset, keep_mnist, mnist

IMAGES, LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


@pytest.fixture(scope="module")
def images():
    try:
        return mnist()
    except FileFormatError:
        raise
    except DataError:
        pytest.skip("MNIST's images are not on this machine (ISTHMUS_DATA)")


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Files in the place of MNIST's, with checksums to match: what they hold, and a function that writes them."""
    monkeypatch.delenv(datasets.FOLDER, raising=False)
    pixels = np.arange(10_000 * 784, dtype=np.uint64).astype(np.uint8)
    labels = (np.arange(10_000) % 10).astype(np.uint8)
    contents = {}
    for name, values in (("_IMAGES", pixels), ("_LABELS", labels)):
        part = getattr(datasets, name)
        digest = hashlib.sha256(values.tobytes()).hexdigest()
        monkeypatch.setattr(datasets, name, datasets._Part(part.name, part.header, part.size, digest))
        contents[part.name] = part.header + values.tobytes()

    def write(folder, packed=True, **changes):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            given = changes.get(name.split("-")[1], data)
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(given, 1) if packed else given)
        return folder

    return contents, write


def test_real_images(images):
    assert images.pixels.shape == (10_000, 784) and images.pixels.dtype == np.uint8 and images.shape == (28, 28)
    assert np.bincount(images.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    X, y = images.take([0, 1])
    assert X.min() == 0.0 and X.max() == 1.0 and y.tolist() == [7, 2]
    with pytest.raises(ValueError, match="read-only"):
        images.pixels[0] = 0
    X[0] = 0.0
    assert images.pixels[0].any()


def test_a_copy_from_elsewhere_is_kept(images, tmp_path):
    # As scikit-learn has them: 70,000 rows of floats, labels as text.
    pixels = np.zeros((70_000, 784), dtype=np.float32)
    pixels[60_000:] = images.pixels
    labels = np.concatenate([np.full(60_000, "0"), images.labels.astype(str)])
    keep_mnist(pixels, labels, tmp_path)
    again = mnist(tmp_path)
    assert np.array_equal(again.pixels, images.pixels) and np.array_equal(again.labels, images.labels)
    with pytest.raises(IsthmusError, match="must be MNIST's, in their order"):
        keep_mnist(pixels[::-1], labels, tmp_path)
    with pytest.raises(IsthmusError, match="existing folder"):
        keep_mnist(pixels, labels, tmp_path / "absent")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("inner", ["mnist", "."])
def test_where_it_is_looked_for(fake, tmp_path, monkeypatch, packed, inner):
    fake[1](tmp_path / "one" / inner, packed)
    assert mnist(tmp_path / "one").labels[:3].tolist() == [0, 1, 2]
    monkeypatch.setenv(datasets.FOLDER, str(tmp_path / "one"))
    assert mnist().pixels[0, 5] == 5


def test_no_folder_is_searched_that_nobody_named(fake, tmp_path, monkeypatch):
    fake[1](tmp_path / "shared" / "data" / "mnist")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv(datasets.FOLDER, raising=False)
    with pytest.raises(DataError, match="is not set"):
        mnist()


def test_absent_files_say_what_to_do(fake, tmp_path, monkeypatch):
    monkeypatch.setenv(datasets.FOLDER, str(tmp_path))
    with pytest.raises(DataError, match=r"ISTHMUS_DATA.*fetch_openml.*keep_mnist"):
        mnist(tmp_path)
    fake[1](tmp_path)
    (tmp_path / f"{LABELS}.gz").unlink()
    with pytest.raises(DataError, match="must hold"):
        mnist(tmp_path)


def test_what_is_not_mnist_is_refused(fake, tmp_path):
    contents, write = fake
    whole = contents[IMAGES]
    wrong = bytearray(whole)
    wrong[-1] ^= 1
    cases = {
        "SHA-256": bytes(wrong),
        "header": whole[:4] + (2**31 - 1).to_bytes(4, "big") + whole[8:],
        "7839999 bytes": whole[:-17],
        "more than": whole + b"\0" * 50_000_000,
    }
    for words, data in cases.items():
        with pytest.raises(FileFormatError, match=words):
            mnist(write(tmp_path, images=data))
    write(tmp_path)
    path = tmp_path / f"{IMAGES}.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FileFormatError, match="damaged"):
        mnist(tmp_path)
    path.write_bytes(b"\x80\x04" + bytes(9_000_000))
    with pytest.raises(DataError, match="at most"):
        mnist(tmp_path)


def test_balanced_subset():
    labels = np.random.default_rng(0).integers(10, size=500)
    rows = balanced_subset(labels, classes=(7, 8, 9), per_class=14)
    assert labels[rows].tolist() == [7] * 14 + [8] * 14 + [9] * 14 and len(set(rows.tolist())) == 42
    assert np.array_equal(rows, balanced_subset(labels, classes=(7, 8, 9), per_class=14))
    assert not np.array_equal(rows, balanced_subset(labels, classes=(7, 8, 9), per_class=14, seed=1))
    # A class alone, and more of it: the same rows first.
    assert np.array_equal(rows[14:28], balanced_subset(labels, classes=(8,), per_class=20)[:14])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classes": (0, 1), "per_class": 3}, "at least 3 samples"),
        ({"classes": (1, 1), "per_class": 1}, "different classes"),
        ({"classes": (), "per_class": 1}, "different classes"),
        ({"classes": (0,), "per_class": 0}, "per_class"),
        ({"classes": (0,), "per_class": 1, "seed": -1}, "seed"),
    ],
)
def test_subsets_that_are_not_there(options, words):
    with pytest.raises(IsthmusError, match=words):
        balanced_subset([0, 0, 1, 1], **options)
