"""The import ladder: a module may import from lines below its own, never from above."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import isthmus
from isthmus import networks

ROOT = Path(isthmus.__file__).parent

#: From the top. Within a line only along an arrow (importer, imported).
LADDER = (
    ("cli", "__main__"),
    ("report", "serving", "sweeps", "engines"),
    ("experiments", "runs"),
    ("estimators", "discovery"),
    ("diagnosis",),
    ("claims",),
    ("compression", "reformulations", "training"),
    ("constructions",),
    ("networks", "measures", "problems", "datasets"),
    ("plotting",),
    ("linalg", "trace", "objective", "files", "tables"),  # and every top-level module whose name starts with "_"
)
#: What the face itself holds, without importing anything.
FACE = {name for name in vars(isthmus) if name == "__version__" or name.endswith(("Error", "Warning"))}
ARROWS = {
    ("experiments", "runs"),
    ("estimators", "discovery"),
    ("networks", "measures"),
    ("__main__", "cli"),
    ("serving", "report"),
    ("sweeps", "engines"),
    ("report", "sweeps"),
}


def line(top: str) -> int:
    """The line of a top-level name, 0 the highest."""
    if top.startswith("_") and top != "__main__":
        return len(LADDER) - 1
    for index, names in enumerate(LADDER):
        if top in names:
            return index
    raise LookupError(f"isthmus.{top} has no line in the ladder: give it one")


def imports(source: str, package: str) -> set[str]:
    """Absolute names of the isthmus modules that ``source``, a module inside ``package``, imports anywhere in
    it.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name != "isthmus"}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "isthmus":
            # `import isthmus` alone is no edge; what is taken from the face is.
            found.add(isthmus._NAMES.get(node.attr, f"isthmus.{node.attr}"))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            # `from isthmus import x` imports isthmus.x; `from isthmus.a import b` at least isthmus.a.
            if base == "isthmus":
                found |= {isthmus._NAMES.get(alias.name, f"isthmus.{alias.name}") for alias in node.names}
            else:
                found.add(base)
    return {name for name in found if name.split(".")[0] == "isthmus"}


def violations(importer: str, imported: set[str]) -> list[str]:
    """Edges from the module ``importer`` that go up, or sideways without an arrow."""
    here = importer.split(".")[1]
    bad = []
    for name in sorted(imported):
        there = name.split(".")[1]
        if there in FACE or there == here:
            continue
        bottom = line(here) == line(there) == len(LADDER) - 1
        if line(there) < line(here) or (line(there) == line(here) and (here, there) not in ARROWS and not bottom):
            bad.append(f"{importer} → {name}")
    return bad


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = ["isthmus", *path.relative_to(ROOT).with_suffix("").parts]
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def test_no_upward_edge():
    bad = []
    for name, path in modules():
        if name == "isthmus":
            continue  # the public face names everything, lazily
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        bad += violations(name, imports(path.read_text(encoding="utf-8"), package))
    assert not bad, "upward imports:\n" + "\n".join(bad)


@pytest.mark.parametrize(
    ("importer", "source", "caught"),
    [
        ("isthmus.measures._norms", "from isthmus.compression import rebalance", True),
        ("isthmus.measures._norms", "import isthmus.runs", True),
        ("isthmus.measures._norms", "from isthmus import claims", True),
        ("isthmus.measures._norms", "from ..training import fit", True),
        ("isthmus.measures._norms", "def f():\n    from isthmus.cli import main", True),
        (
            "isthmus.measures._norms",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from isthmus.runs import Run",
            True,
        ),
        ("isthmus.measures._norms", "from isthmus.networks import FullyConnected", True),  # sideways
        ("isthmus.trace", "from isthmus.networks import FullyConnected", True),
        ("isthmus.runs", "from isthmus.experiments import base", True),  # against the arrow
        ("isthmus._checks", "from isthmus.plotting import style", True),
        ("isthmus.measures._norms", "import isthmus\nisthmus.rebalance", True),
        ("isthmus.measures._norms", "from isthmus import Run", True),
        ("isthmus.measures._norms", "import isthmus\nisthmus.__version__\nisthmus.Trace", False),
        ("isthmus.experiments._experiment", "from isthmus.runs import Run", False),
        (
            "isthmus.measures._norms",
            "from isthmus.trace import Trace\nfrom isthmus.measures import gaps",
            False,
        ),
        ("isthmus.measures._norms", "from . import gaps\nfrom .gaps import GapRule\nimport torch", False),
        ("isthmus.trace", "from isthmus._checks import fail\nfrom isthmus.files import save", False),
        ("isthmus.cli", "from isthmus.measures import bottleneck_rank", False),
    ],
)
def test_the_check_can_fail(importer, source, caught):
    assert bool(violations(importer, imports(source, importer.rpartition(".")[0]))) == caught


def test_unknown_module_must_be_placed():
    with pytest.raises(LookupError, match="has no line"):
        line("novelty")


def test_names():
    for name, _ in modules():
        assert "utils" not in name.split("."), f"{name}: say what it is for"


def test_importing_changes_no_global_state():
    script = textwrap.dedent("""
        import random, sys, warnings
        import numpy as np, torch
        before = (torch.get_default_dtype(), torch.get_rng_state().tolist(), repr(np.random.get_state()),
                  random.getstate(), torch.get_num_threads(), torch.is_grad_enabled(), list(warnings.filters),
                  torch.are_deterministic_algorithms_enabled(), repr(np.geterr()))
        import isthmus, importlib, pkgutil
        assert "matplotlib" not in sys.modules
        for name in ("measures", "networks", "compression", "problems", "linalg", "trace", "objective",
        "files"):
            importlib.import_module(f"isthmus.{name}")
        after = (torch.get_default_dtype(), torch.get_rng_state().tolist(), repr(np.random.get_state()),
                 random.getstate(), torch.get_num_threads(), torch.is_grad_enabled(), list(warnings.filters),
                 torch.are_deterministic_algorithms_enabled(), repr(np.geterr()))
        assert before[:6] == after[:6], "state"
        assert before[7:] == after[7:], "state"
        own = [f for f in after[6] if f not in before[6]]
        assert not any("isthmus" in repr(f) for f in own), own
        assert "matplotlib" not in sys.modules and "matplotlib.pyplot" not in sys.modules
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_face_is_light():
    script = "import isthmus, sys; assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules), 'heavy'"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def families_asked_for(source: str, families: set[str]) -> list[str]:
    """Names of network families that ``source`` compares types with."""
    found = []
    for node in ast.walk(ast.parse(source)):
        asked = []
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            asked = node.args[1:]
        elif isinstance(node, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot, ast.In)) for op in node.ops):
            asked = node.comparators
        names = {part.id for one in asked for part in ast.walk(one) if isinstance(part, ast.Name)}
        names |= {part.attr for one in asked for part in ast.walk(one) if isinstance(part, ast.Attribute)}
        found += sorted(names & families)
    return found


def test_nobody_asks_which_family_a_network_is_of():
    families = {"FullyConnected", "LeakyResNet", "LeakyStep", "ConvolutionalNet", "Standardized"}
    assert families <= {*networks.__all__}
    asked = {}
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] != "networks":
            asked[path.name] = families_asked_for(path.read_text(encoding="utf-8"), families)
    assert not any(asked.values()), {name: found for name, found in asked.items() if found}
    for text in (
        "isinstance(net, FullyConnected)",
        "type(net) is nets.LeakyResNet",
        "isinstance(a, (int, Standardized))",
    ):
        assert families_asked_for(text, families)
    assert not families_asked_for("FullyConnected([2, 3])", families)
