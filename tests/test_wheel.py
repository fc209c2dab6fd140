"""The wheel holds the package and nothing else, and works outside the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import isthmus

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    # Without isolation: an isolated build would fetch hatchling, which the test set-up has installed.
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (path,) = out.glob("*.whl")
    return path


def test_contents(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "isthmus/py.typed" in names
    assert "isthmus/experiments/rank2023/_bottleneck.py" in names
    assert all(name.startswith(("isthmus/", f"isthmus-{isthmus.__version__}.dist-info/")) for name in names)


def test_works_outside_the_checkout(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        "import isthmus, torch; print(isthmus.__file__); net = isthmus.FullyConnected([3, 4, 2]);"
        "isthmus.save(net, 'net.safetensors'); print(isthmus.load('net.safetensors').dims)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    where, dims = done.stdout.splitlines()
    assert where.startswith(str(site))
    assert dims == "(3, 4, 2)"
