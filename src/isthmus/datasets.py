"""Real data: found in a folder of the user's, checked against its known checksum, never fetched and never pickled."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus._atomic import open_checked, shown, write_atomic
from isthmus._checks import check_integer, check_seed, fail
from isthmus._errors import DataError, FileFormatError

#: Environment variable that names the folder of data sets.
FOLDER = "ISTHMUS_DATA"
#: Images in MNIST's test part, and pixels of each side.
COUNT, SIDE = 10_000, 28


@dataclass(frozen=True)
class _Part:
    """One IDX file: its name, its header, and the SHA-256 of what follows it."""

    name: str
    header: bytes
    size: int
    sha256: str


_IMAGES = _Part(
    "t10k-images-idx3-ubyte",
    bytes.fromhex("00000803") + b"".join(n.to_bytes(4, "big") for n in (COUNT, SIDE, SIDE)),
    COUNT * SIDE * SIDE,
    "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
)
_LABELS = _Part(
    "t10k-labels-idx1-ubyte",
    bytes.fromhex("00000801") + COUNT.to_bytes(4, "big"),
    COUNT,
    "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
)


@dataclass(frozen=True, eq=False)
class Images:
    """Grey images with a class each.

    Attributes
    ----------
    name : str
    pixels : ndarray (N, rows·columns) of uint8
        Read-only; 0 is the background.
    labels : ndarray (N,) of int64
        Read-only.
    shape : (int, int)
        Rows and columns of an image.
    """

    name: str
    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        self.pixels.flags.writeable = False
        self.labels.flags.writeable = False

    def take(self, rows: Any) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Images as floats in [0, 1] and their labels: copies of the given rows only."""
        chosen = np.asarray(rows)
        return self.pixels[chosen] / 255.0, self.labels[chosen].copy()


def mnist(folder: str | os.PathLike[str] | None = None) -> Images:
    """MNIST's 10,000 test images of handwritten digits, 28 × 28, from files of the user's.

    Looked for in ``folder``, or in the folder that the environment variable ISTHMUS_DATA names, and nowhere else. It
    may hold the two files of the test part, as published or unpacked (``t10k-images-idx3-ubyte[.gz]``,
    ``t10k-labels-idx1-ubyte[.gz]``), or a folder ``mnist`` with them.

    Nothing is allocated by what a file declares: its header and its content must be those of MNIST, bit for bit.

    Parameters
    ----------
    folder : path, optional
        Looked into alone if given.
    """
    place = _find(folder)
    pixels = np.frombuffer(_read(place, _IMAGES), dtype=np.uint8).reshape(COUNT, SIDE * SIDE)
    labels = np.frombuffer(_read(place, _LABELS), dtype=np.uint8).astype(np.int64)
    return Images("mnist", pixels, labels, (SIDE, SIDE))


def keep_mnist(pixels: Any, labels: Any, folder: str | os.PathLike[str]) -> Path:
    """Write MNIST's test images, had from elsewhere, where :func:`mnist` finds them; gives their folder.

    Parameters
    ----------
    pixels : array (70000, 784) or (10000, 784)
        Of values 0 … 255. Of 70,000 rows the last 10,000 are the test part, as in scikit-learn's copy.
    labels : array (70000,) or (10000,)
        Digits, as numbers or as text.
    folder : path
        An existing folder, such as the one that ISTHMUS_DATA names; ``mnist`` is made in it.
    """
    who = "keep_mnist"
    images, digits = np.asarray(pixels)[-COUNT:], np.asarray(labels).reshape(-1)[-COUNT:]
    contents = []
    for part, values in ((_IMAGES, images), (_LABELS, digits)):
        try:
            data = np.asarray(values).astype(np.float64).astype(np.uint8).tobytes()
        except (TypeError, ValueError):
            fail(who, f"{part.name} must be numbers", f"dtype {np.asarray(values).dtype}", "Pass an array of them.")
        if hashlib.sha256(data).hexdigest() != part.sha256:
            must = f"the values for {part.name} must be MNIST's, in their order"
            fail(who, must, f"shape {np.shape(values)} of other values", "Do not shuffle or scale them.")
        contents.append((part, data))
    place = Path(folder) / "mnist"
    if not place.parent.is_dir():
        fail(who, "`folder` must be an existing folder", shown(place.parent), "Make it first.")
    place.mkdir(exist_ok=True)
    for part, data in contents:
        # Without a time stamp equal data is an equal file.
        write_atomic(place / f"{part.name}.gz", gzip.compress(part.header + data, 6, mtime=0))
    return place


def balanced_subset(labels: Any, *, classes: Sequence[int], per_class: int, seed: int = 0) -> NDArray[np.int64]:
    """Rows of ``per_class`` samples of each of ``classes``, class after class, drawn without replacement.

    The rows of a class do not depend on which other classes are asked for, and a larger ``per_class`` adds to them.

    Examples
    --------
    >>> balanced_subset([0, 1, 0, 1, 2], classes=(1, 0), per_class=2).tolist()
    [1, 3, 0, 2]
    """
    who = "balanced_subset"
    found = np.asarray(labels).reshape(-1)
    check_integer(who, "per_class", per_class, low=1)
    check_seed(who, seed)
    if not classes or len(set(classes)) < len(classes):
        fail(who, "`classes` must be different classes, at least one", tuple(classes), "Name each once.")
    rows = []
    for one in classes:
        members = np.flatnonzero(found == one)
        if len(members) < per_class:
            must = f"each class must have at least {per_class} samples"
            fail(who, must, f"{len(members)} of class {one}", "Lower `per_class`.", error=DataError)
        rng = np.random.default_rng([seed, check_integer(who, "classes", one, low=0)])
        rows.append(rng.permutation(members)[:per_class])
    return np.concatenate(rows).astype(np.int64)


def _find(folder: str | os.PathLike[str] | None) -> Path:
    """The folder with both files."""
    if folder is not None:
        roots = [Path(folder)]
    else:
        own = os.environ.get(FOLDER)
        roots = [Path(own)] if own else []
    for root in roots:
        for place in (root / "mnist", root):
            if all(_file(place, part) is not None for part in (_IMAGES, _LABELS)):
                return place
    looked = f"not in {shown(roots[0])}" if roots else f"no folder, and {FOLDER} is not set"
    return fail(
        "mnist",
        f"a folder must hold {_IMAGES.name}.gz and {_LABELS.name}.gz",
        looked,
        f"Name the folder that holds them by the environment variable {FOLDER}. Or take scikit-learn's copy: "
        'X, y = sklearn.datasets.fetch_openml("mnist_784", version=1, return_X_y=True, as_frame=False), and then '
        "isthmus.datasets.keep_mnist(X, y, folder).",
        error=DataError,
    )


def _file(place: Path, part: _Part) -> Path | None:
    for name in (f"{part.name}.gz", part.name):
        if (place / name).is_file():
            return place / name
    return None


def _read(place: Path, part: _Part) -> bytes:
    """What follows the header; of a packed file no more is unpacked than there may be."""
    path = _file(place, part)
    assert path is not None
    expected = len(part.header) + part.size
    fix = "Fetch the file again."
    # A packed file is smaller, or a little larger if it cannot be packed.
    with open_checked("mnist", path, expected + 65_536) as (handle, _):
        try:
            source = gzip.GzipFile(fileobj=handle) if path.suffix == ".gz" else handle
            data = source.read(expected + 1)
        except (OSError, EOFError, zlib.error):
            fail("mnist", f"{shown(path)} must be a gzip file", "a damaged one", fix, error=FileFormatError)
    if not data.startswith(part.header) or len(data) != expected:
        got = (
            f"header {data[:16].hex()}, {'more than ' if len(data) > expected else ''}{min(len(data), expected)} bytes"
        )
        must = f"{shown(path)} must have the header of MNIST's test part and {expected} bytes unpacked"
        fail("mnist", must, got, fix, error=FileFormatError)
    content = data[len(part.header) :]
    found = hashlib.sha256(content).hexdigest()
    if found != part.sha256:
        fail("mnist", f"{shown(path)} must have SHA-256 {part.sha256}", found, fix, error=FileFormatError)
    return content
