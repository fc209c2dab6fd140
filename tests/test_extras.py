"""What an extra brings is asked for by name, in one line, and nothing else needs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.cli import main


@pytest.mark.parametrize(
    ("module", "extra", "arguments", "code"),
    [
        ("pyarrow", "parquet", ["discover", "t.parquet", "--target", "y"], 3),
        ("aiohttp", "serve", ["serve", "."], 2),
        ("ray", "ray", ["sweep", "F-bn-1", "--quick", "--engine", "ray", "--out", "swept"], 2),
    ],
)
def test_the_error_names_the_extra(module, extra, arguments, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("t.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith("isthmus.serving")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(arguments) == code
    message = capsys.readouterr().err.replace("\n", " ")
    assert f"isthmus[{extra}]" in message and "Traceback" not in message


def test_the_core_imports_none_of_them():
    script = (
        "import sys; sys.modules.update(dict.fromkeys(('pyarrow', 'aiohttp', 'ray', 'safetensors', 'plotly')));"
        "import isthmus, isthmus.cli, isthmus.report, isthmus.sweeps, isthmus.tables;"
        "[getattr(isthmus, name) for name in isthmus.__all__]"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
