"""The import ladder: a module may import from lines below its own, never from above."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from torch import nn

import isthmus
from isthmus import Network, networks
from isthmus.networks import Layer

ROOT = Path(isthmus.__file__).parent

#: From the top. Within a line only along an arrow (importer, imported).
LADDER = (
    ("cli", "__main__"),
    ("report", "serving", "sweeps", "engines"),
    ("experiments", "runs"),
    ("estimators", "discovery", "integrations"),
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


#: Every class of networks, and of layers that only one of them has.
FAMILIES = {
    name
    for name, one in vars(networks).items()
    if name in networks.__all__ and isinstance(one, type) and issubclass(one, nn.Module) and one not in (Network, Layer)
}
#: What a family is called: comparing with these is asking, too.
WORDS = FAMILIES | {getattr(networks, name).kind for name in FAMILIES if hasattr(getattr(networks, name), "kind")}


def mentioned(node: ast.AST) -> set[str]:
    """Names in an expression, other than those that it calls: a network is not its class."""
    if isinstance(node, ast.Name):
        return {node.id}
    parts = [*node.args, *node.keywords] if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    own = {node.attr} & FAMILIES if isinstance(node, ast.Attribute) else set()
    return own.union(*map(mentioned, parts))


def bindings(tree: ast.AST) -> list[tuple[set[str], set[str]]]:
    """(Names, names in their value) of everything that names a value: constants, loops, defaults of arguments."""
    found: list[tuple[ast.AST, ast.AST]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            found += [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            found.append((node.target, node.value))
        elif isinstance(node, ast.For | ast.comprehension):
            found.append((node.target, node.iter))
        elif isinstance(node, ast.arguments):
            found += zip([*node.posonlyargs, *node.args][::-1], node.defaults[::-1])
            found += [(one, value) for one, value in zip(node.kwonlyargs, node.kw_defaults) if value is not None]
    return [(bound_by(target), mentioned(value)) for target, value in found]


def bound_by(target: ast.AST) -> set[str]:
    """Names that an assignment to ``target`` binds: none for ``self.x`` and ``x[0]``."""
    stored = {part.id for part in ast.walk(target) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    return stored | ({target.arg} if isinstance(target, ast.arg) else set())


def holders(sources: dict[str, ast.AST]) -> dict[str, set[str]]:
    """For each module the names that stand for a family or hold one, whether bound there or in another module."""
    bound = {name: bindings(tree) for name, tree in sources.items()}
    imported = {
        name: [
            (node.module or "", alias.name, alias.asname or alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        ]
        for name, tree in sources.items()
    }
    held = {name: set(FAMILIES) for name in sources}
    before = 0
    while (size := sum(map(len, held.values()))) > before:
        before = size
        for name, names in held.items():
            for there, old, new in imported[name]:
                if old in held.get(there, FAMILIES):
                    names.add(new)
            for targets, values in bound[name]:
                if values & names:
                    names |= targets
    return held


def families_asked_for(sources: dict[str, str]) -> list[str]:
    """Places, "module:line", where a module finds out which family a network is of: by its type, or by its name."""
    trees: dict[str, ast.AST] = {name: ast.parse(source) for name, source in sources.items()}
    found = []
    for name, held in holders(trees).items():
        for node in ast.walk(trees[name]):
            asked: list[ast.AST] = []
            words = False
            if isinstance(node, ast.Call):
                called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                if called in ("isinstance", "issubclass"):
                    asked += node.args[1:]
                elif called == "register" and isinstance(node.func, ast.Attribute):
                    asked += node.args
            elif isinstance(node, ast.Compare):
                # Whether something is None is no question of its family.
                if not any(isinstance(one, ast.Constant) and one.value is None for one in node.comparators):
                    asked += [node.left, *node.comparators]
                words = any(isinstance(part, ast.Constant) and part.value in WORDS for part in ast.walk(node))
            elif isinstance(node, ast.MatchClass):
                asked.append(node.cls)
            elif isinstance(node, ast.Dict):
                asked += [key for key in node.keys if key is not None]
            if words or any(mentioned(one) & held for one in asked):
                found.append(f"{name}:{node.lineno}")
    return found


def test_nobody_asks_which_family_a_network_is_of():
    assert {"FullyConnected", "LeakyResNet", "LeakyStep", "ConvolutionalNet", "Standardized"} <= FAMILIES
    sources = {name: path.read_text(encoding="utf-8") for name, path in modules()}
    assert len(sources) == len(modules())
    asked = families_asked_for({name: text for name, text in sources.items() if name.split(".")[1:2] != ["networks"]})
    assert not asked, "\n".join(asked)
    # The same check sees where a family asks it of itself.
    assert families_asked_for({"_fully_connected": sources["isthmus.networks._fully_connected"]})


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(net, FullyConnected)",
        "isinstance(a, (int, Standardized))",
        "isinstance(a, int | networks.Standardized)",
        "type(net) is nets.LeakyResNet",
        "type(net) == LeakyResNet",
        "LeakyResNet != type(net)",
        "type(net) in (FullyConnected, LeakyResNet)",
        "type(net) not in {FullyConnected}",
        "type(net).__name__ == 'FullyConnected'",
        "net.kind == 'a leaky ResNet'",
        "kind(f) == kind(g) == FullyConnected.kind",
        "KINDS = (FullyConnected,)\nisinstance(net, KINDS)",
        "KINDS: tuple = (int, FullyConnected)\ndef f(net):\n    return isinstance(net, KINDS[1:])",
        "A = (LeakyStep,)\nB = (('step', A),)\nnext(kind for kind, types in B if isinstance(net, types))",
        "from isthmus.networks import FullyConnected as Plain\nisinstance(net, Plain)",
        "def f(net, family=FullyConnected):\n    return isinstance(net, family)",
        "for family in [FullyConnected]:\n    type(net) is family",
        "{FullyConnected: 1}[type(net)]",
        "match net:\n    case FullyConnected():\n        pass",
        "@size.register(FullyConnected)\ndef f(net): ...",
    ],
)
def test_asking_for_a_family_is_seen(source):
    assert families_asked_for({"one": source})


def test_asking_through_a_constant_of_another_module_is_seen():
    constants = "KINDS = {'plain': FullyConnected}"
    through = {"a": constants, "b": "from a import KINDS as K", "c": "from b import K\nisinstance(net, K['plain'])"}
    assert families_asked_for(through) == ["c:2"]
    # Of equal names none hides another.
    assert families_asked_for({"x._same": "isinstance(net, FullyConnected)", "y._same": ""}) == ["x._same:1"]


@pytest.mark.parametrize(
    "source",
    [
        "FullyConnected([2, 3])",
        "isinstance(net, Network)",
        "net = FullyConnected.from_weights(Ws)\nif net is other or net == None: pass",
        "def f(net: FullyConnected | LeakyResNet) -> FullyConnected: return net",
        "KINDS = (FullyConnected,)\n[kind([2, 3]) for kind in KINDS]",
        "claim('C-1', about=LeakyResNet.kind)",
    ],
)
def test_making_and_naming_a_family_is_not_asking_for_it(source):
    assert not families_asked_for({"one": source})
