"""Experiments: parameters, discovery, and E-linear with its failing twins."""

import dataclasses
import importlib
import io
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from isthmus import IsthmusError, Run
from isthmus._progress import duration, progress, silent
from isthmus.experiments import (
    Experiment,
    Outcome,
    find_experiment,
    find_experiments,
    parameter,
    parse_overrides,
)
from isthmus.experiments.bottleneck2023._linear_expansion import LinearExpansion
from isthmus.plotting.style import PALETTE, new_figure, render


@dataclass(frozen=True, kw_only=True)
class Small(Experiment):
    """All types of parameters."""

    id: ClassVar[str] = "E-small"
    title: ClassVar[str] = "small"
    paper: ClassVar[str] = "rank2023"
    where: ClassVar[str] = "nowhere"
    convention: ClassVar[str] = "none"
    quick_seconds: ClassVar[float] = 0.1
    full_seconds: ClassVar[float] = 0.1

    depth: int = parameter(10, "depth", source="paper", low=1, high=100)
    slope: float = parameter(0.0, "slope", low=-1, high=1)
    biased: bool = parameter(True, "with bias")
    loss: str = parameter("mse", "the cost", choices=("mse", "cross_entropy"))
    scales: tuple[float, ...] = parameter((1.0, 2.0), "scales")
    status: str = parameter("agrees", "what it will say")

    @classmethod
    def quick(cls):
        return cls(depth=2)

    def compute(self, progress) -> dict[str, np.ndarray]:
        with progress(self.depth, "working") as bar:
            for step in range(self.depth):
                bar.advance(loss=1.0 / (step + 1))
        return {"x": np.arange(self.depth)}

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        return [Outcome("it counts", self.status, len(arrays["x"]), self.depth, "because")]

    def plot(self, arrays, figure) -> None:
        figure.subplots().plot(arrays["x"])


def test_values_take_the_type_of_their_field():
    small = Small(depth=np.int64(3), slope=1, scales=[1, 2])
    assert (type(small.depth), type(small.slope), small.scales) == (int, float, (1.0, 2.0))
    assert small.key == Small(depth=3, slope=1.0, scales=(1.0, 2.0)).key
    assert small.key != small.replace(seed=1).key


@pytest.mark.parametrize(
    "wrong",
    [
        {"depth": 2.5},
        {"depth": True},
        {"depth": 0},
        {"depth": "3"},
        {"slope": float("nan")},
        {"slope": 2.0},
        {"biased": 1},
        {"loss": "hinge"},
        {"loss": 3},
        {"scales": 1.0},
        {"scales": ()},
        {"scales": "12"},
        {"scales": (1.0, "x")},
        {"seed": -1},
    ],
)
def test_mistyped_values_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(IsthmusError, match=name):
        Small(**wrong)
    with pytest.raises(IsthmusError, match=name):
        Small().replace(**wrong)


def test_unknown_fields_list_the_valid_ones():
    valid = "seed, depth, slope, biased, loss, scales, status"
    for make in (
        lambda: Small(dept=3),
        lambda: Small().replace(dept=3),
        lambda: parse_overrides(Small, ["dept=3"]),
    ):
        with pytest.raises(IsthmusError, match=valid):
            make()
    with pytest.raises(dataclasses.FrozenInstanceError):
        Small().depth = 3


def test_overrides_are_parsed_by_type():
    texts = ["depth=12", " slope = 1e-1", "biased=false", "loss=mse", "scales=1, 2.5,3", "status=a=b"]
    assert parse_overrides(Small, texts) == {
        "depth": 12,
        "slope": 0.1,
        "biased": False,
        "loss": "mse",
        "scales": (1.0, 2.5, 3.0),
        "status": "a=b",
    }
    assert parse_overrides(Small, []) == {}


@pytest.mark.parametrize(
    "text",
    [
        "depth",
        "depth=",
        "depth=1.5",
        "depth=__import__('os')",
        "slope=1+1",
        "biased=maybe",
        "scales=1,x",
        "=3",
    ],
)
def test_wrong_overrides(text):
    with pytest.raises(IsthmusError, match="E-small"):
        parse_overrides(Small, [text])


def test_override_given_twice_or_out_of_range():
    with pytest.raises(IsthmusError, match="once"):
        parse_overrides(Small, ["depth=1", "depth=2"])
    with pytest.raises(IsthmusError, match=r"\[1, 100\]"):
        Small().replace(**parse_overrides(Small, ["depth=1000"]))


def test_abstract_experiments_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        Experiment()


def test_run_glues(tmp_path):
    run = Small(seed=5).run(command=["x"])
    assert (run.experiment, run.status, run.provenance["seed"]) == ("E-small", "agrees", 5)
    assert run.provenance["seconds"] >= 0
    assert run.figures["figure.png"].startswith(b"\x89PNG")
    assert b"<svg" in run.figures["figure.svg"]
    run.write(tmp_path / "run")
    again = Run.read(tmp_path / "run")
    assert again.key == run.key == Small(seed=5).key
    assert dict(again.parameters) == {**Small(seed=5).parameters, "scales": [1.0, 2.0]}
    # What was read back makes the same experiment again.
    assert Small(**again.parameters) == Small(seed=5)


def test_find_experiments():
    found = find_experiments()
    assert list(found) == sorted(found)
    assert found["E-linear"] is LinearExpansion
    assert find_experiment("E-linear") is LinearExpansion
    with pytest.raises(IsthmusError, match="'E-linear'.*Got 'E-liner'"):
        find_experiment("E-liner")


def test_descriptions_are_complete():
    for kind in find_experiments().values():
        described = kind.describe()
        assert all(described[key] for key in ("id", "title", "paper", "where", "convention"))
        assert all(item["help"] for item in described["parameters"])
        assert kind.__doc__


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of experiments written by somebody else."""

    def write(name, **files):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        for stem, text in files.items():
            (tmp_path / name / f"{stem}.py").write_text(textwrap.dedent(text))
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    return write


STRANGER = """
    from dataclasses import dataclass
    from typing import ClassVar
    from isthmus.experiments.bottleneck2023._linear_expansion import LinearExpansion

    @dataclass(frozen=True, kw_only=True)
    class Mine(LinearExpansion):
        id: ClassVar[str] = "E-mine"
"""


def test_one_file_adds_an_experiment(package):
    assert list(find_experiments(package("strangers_one", a=STRANGER))) == ["E-mine"]


def test_duplicate_ids_are_an_error(package):
    with pytest.raises(IsthmusError, match="'E-mine' must be used once"):
        find_experiments(package("strangers_two", a=STRANGER, b=STRANGER))


def test_missing_class_attributes_are_named(package):
    text = """
        from dataclasses import dataclass
        from isthmus.experiments import Experiment

        @dataclass(frozen=True, kw_only=True)
        class Bare(Experiment):
            def quick(cls): ...
            def compute(self, progress): ...
            def outcomes(self, arrays): ...
            def plot(self, arrays, figure): ...
    """
    with pytest.raises(IsthmusError, match="Bare must define id, title, paper, where, convention"):
        find_experiments(package("strangers_three", a=text))


# E-linear


@pytest.fixture(scope="module")
def linear():
    return LinearExpansion.quick(), LinearExpansion.quick().compute(silent)


def test_linear_agrees(linear):
    experiment, arrays = linear
    outcomes = experiment.outcomes(arrays)
    assert [o.status for o in outcomes] == ["agrees"] * 5
    # By another route than the library's measures.
    s, L = np.array(experiment.singular_values), np.array(experiment.depths)
    np.testing.assert_allclose(arrays["cost"], [ell * np.sum(s ** (2 / ell)) for ell in L], rtol=1e-13)
    np.testing.assert_allclose(
        arrays["expansion"], [len(s), 2 * np.log(s).sum(), 2 * (np.log(s) ** 2).sum()], rtol=1e-13
    )
    np.testing.assert_allclose(np.linalg.svd(arrays["A"])[1][: len(s)], np.sort(s)[::-1], rtol=1e-12)


@pytest.mark.parametrize(
    ("corrupt", "index"),
    [
        (lambda a: {**a, "built_norm": a["built_norm"] * (1 + 1e-9)}, 0),
        (lambda a: {**a, "built_error": a["built_error"] + 1e-9}, 1),
        (lambda a: {**a, "expansion": a["expansion"] + np.array([1.0, 0, 0])}, 2),
        (lambda a: {**a, "approximations": a["approximations"] + np.array([[0], [0.5], [0]])}, 3),
        (lambda a: {**a, "approximations": a["approximations"] + np.array([[0], [0], [0.5]])}, 4),
    ],
)
def test_linear_failing_twins(linear, corrupt, index):
    experiment, arrays = linear
    statuses = [o.status for o in experiment.outcomes(corrupt(arrays))]
    assert statuses[index] == "fails"
    assert statuses.count("fails") == 1


def test_linear_outcomes_that_differ_say_why():
    # log s and −log s: the L⁻² term cancels, and the remainder is L⁻³.
    cancelling = LinearExpansion.quick().replace(singular_values=(2.0, 0.5))
    outcome = cancelling.outcomes(cancelling.compute(silent))[-1]
    assert outcome.status == "differs"
    assert "faster" in outcome.reason
    # Singular values 1: no remainder at all.
    flat = LinearExpansion.quick().replace(singular_values=(1.0, 1.0))
    assert [o.status for o in flat.outcomes(flat.compute(silent))] == ["agrees"] * 5


@pytest.mark.parametrize(("seed", "values"), [(1, (0.3,)), (2, (5.0, 5.0, 0.2)), (3, (1e-3, 40.0))])
def test_linear_never_fails(seed, values):
    experiment = LinearExpansion.quick().replace(seed=seed, singular_values=values)
    assert all(o.status != "fails" for o in experiment.outcomes(experiment.compute(silent)))


def test_linear_is_reproducible_and_seeded(linear):
    experiment, arrays = linear
    np.testing.assert_array_equal(experiment.compute(silent)["A"], arrays["A"])
    assert not np.array_equal(experiment.replace(seed=1).compute(silent)["A"], arrays["A"])


def test_linear_refuses_impossible_settings():
    with pytest.raises(IsthmusError, match="at least the number of singular values"):
        LinearExpansion(width=3)
    with pytest.raises(IsthmusError, match="increasing"):
        LinearExpansion(depths=(2, 4, 3, 8, 9))


def test_figure_is_drawn_without_pyplot():
    code = """
        import sys
        from isthmus.experiments.bottleneck2023._linear_expansion import LinearExpansion
        import matplotlib
        before = matplotlib.rcParams.copy()
        run = LinearExpansion.quick().run(command=[])
        assert run.figures["figure.png"].startswith(bytes([0x89]) + b"PNG")
        assert "matplotlib.pyplot" not in sys.modules
        assert matplotlib.rcParams.copy() == before
    """
    subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(code)], check=True)


def test_style_is_deterministic():
    def draw():
        figure = new_figure(3, 2)
        figure.subplots().plot([0, 1], color=PALETTE["blue"])
        return render(figure, "png")

    assert draw() == draw()


# Progress


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_progress_off_a_terminal_is_few_lines():
    out, clock = io.StringIO(), Clock()
    with progress(100, "training", stream=out, every=5.0, clock=clock) as bar:
        for _ in range(100):
            clock.now += 0.25
            bar.advance(loss=0.25)
    assert out.getvalue().splitlines() == [
        "training: 20/100, loss 0.25, 0:20 left",
        "training: 40/100, loss 0.25, 0:15 left",
        "training: 60/100, loss 0.25, 0:10 left",
        "training: 80/100, loss 0.25, 0:05 left",
        "training: 100/100, loss 0.25, 0:00 left",
        "training: 100/100, loss 0.25, done in 0:25",
    ]


def test_progress_of_quick_or_unbounded_work():
    out, clock = io.StringIO(), Clock()
    with progress(3, "quick", stream=out, clock=clock) as bar:
        bar.advance(3)
    assert out.getvalue() == ""
    with progress(None, "open", stream=out, clock=clock) as bar:
        clock.now += 6
        bar.advance(2)
    assert out.getvalue().splitlines()[0] == "open: 2"


def test_progress_on_a_terminal_is_a_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    with progress(10, "training", stream=out) as bar:
        bar.advance(10, loss=0.5)
    assert "training" in out.getvalue()
    assert "\r" in out.getvalue()


def test_duration():
    assert [duration(x) for x in (0, 59.6, 3599, 3600)] == ["0:00", "1:00", "59:59", "1:00:00"]
