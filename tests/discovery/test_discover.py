"""discover, end to end on small problems: the right rank, or the right doubt; data as people have them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from isthmus import DataError, IsthmusError, discover, problems
from made import QUICK, SMALL
from tools import SEED, assert_close, gaussian


@pytest.fixture(scope="module")
def task():
    return problems.teacher(d_in=5, rank=2, d_out=6, samples=240, seed=SEED)


@pytest.fixture(scope="module")
def found(task):
    return discover(task.X, task.Y, **{**SMALL, "replicas": 1})


@pytest.fixture(scope="module")
def line():
    """Quick, and of rank 2."""
    return problems.linear(d_in=4, d_out=4, rank=2, samples=60, seed=SEED)


@pytest.fixture(scope="module")
def quick(line):
    return discover(line.X, line.Y, **QUICK)


# --- known answers


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("norms", {"blocks": 1, "block_size": 3, "d_out": 4}),
        ("linear", {"d_in": 6, "d_out": 6, "rank": 3}),
        ("linear", {"d_in": 6, "d_out": 6, "rank": 2, "noise": 0.2}),
    ],
)
def test_small_problems(name, options):
    problem = getattr(problems, name)(samples=200, seed=SEED, **options)
    answer = discover(problem.X, problem.Y, **SMALL)
    assert (answer.rank, answer.verdict) == (problem.rank, "determined"), answer.reasons
    assert answer.sentence.endswith(f"through {problem.rank} variable{'s' * (problem.rank > 1)} (determined).")


def test_a_teacher(found, task):
    assert (found.rank, found.verdict) == (2, "determined"), found.reasons
    assert found.error < 0.15
    assert found.profile.chosen == 2
    assert found.profile.row(1) is not None
    assert [replica.depth for replica in found.replicas] == [4]
    assert found.coordinates.shape == (240, 2)
    names = [clue.name for clue in found.evidence]
    assert len(names) == len(set(names)) == 9
    assert found.settings["held_out"] == "a quarter at random of the rows"


def test_constant_outputs():
    X = gaussian(30, 3).numpy()
    answer = discover(X, np.full((30, 2), 0.1))
    assert (answer.rank, answer.verdict) == (0, "trivial")
    assert "constant" in answer.sentence
    assert answer.transform(X).shape == (30, 0)
    assert_close(answer.predict(X), np.full((30, 2), 0.1))
    assert np.array_equal(answer.decode(answer.transform(X)), answer.predict(X))
    assert answer.encoder.to_torch() is answer.encoder
    assert discover(X, np.zeros(30)).sentence.startswith("The output depends on no variable")


def test_constant_inputs():
    answer = discover(np.ones((30, 3)), gaussian(30, 2).numpy())
    assert (answer.rank, answer.verdict) == (0, "trivial")
    assert "X is constant" in answer.reasons[0]


def test_one_output_is_trivial_with_a_linear_substitute(line):
    answer = discover(line.X, line.Y[:, 0], **SMALL)
    assert (answer.rank, answer.verdict) == (1, "trivial")
    assert "one output" in answer.reasons[0]
    assert any("1 linear direction of the inputs (AGOP)" in reason for reason in answer.reasons)
    assert any("several outputs" in reason for reason in answer.reasons)
    assert answer.sentence.startswith("The output depends on the 4 inputs through 1 variable (trivial")


def test_outputs_that_are_multiples_of_each_other_are_one(line):
    y = line.Y[:, :1]
    answer = discover(line.X, np.hstack([y, -3.3 * y + 7.0, 1e6 * y, np.ones_like(y)]), **QUICK)
    assert (answer.rank, answer.verdict) == (1, "trivial")
    assert "span 1 dimension" in answer.reasons[0]
    assert any(note.startswith("1 constant output column set aside: ") for note in answer.notes)


def test_a_column_that_varies_like_rounding_is_set_aside_and_said_to_vary(line):
    X = np.hstack([line.X, 1e15 + line.X[:, :1], np.full((len(line.X), 1), 7.0)])
    notes = discover(X, line.Y[:, 0], **SMALL).notes
    told = next(note for note in notes if note.startswith("2 constant input columns set aside: "))
    assert "1 of them varies by less than 1e-13 of its size" in told and "subtract the offset" in told


def test_one_input_is_trivial():
    x = gaussian(60, 1).numpy()
    answer = discover(x, np.hstack([x, x**2, np.sin(x)]), **QUICK)
    assert (answer.rank, answer.verdict) == (1, "trivial")
    assert "one input" in answer.reasons[0]


# --- doubts


def test_pure_noise():
    problem = problems.pure_noise(d_in=4, d_out=4, samples=120, seed=SEED)
    answer = discover(problem.X, problem.Y, **SMALL)
    assert answer.verdict == "undetermined"
    assert "nothing of Y is predicted" in answer.reasons[0]
    assert answer.sentence.startswith("Undetermined")


def test_too_few_samples_for_the_rank():
    problem = problems.teacher(d_in=8, rank=4, d_out=8, samples=25, seed=SEED)
    answer = discover(problem.X, problem.Y, **SMALL)
    assert answer.verdict == "undetermined"
    assert any("at least 10 are needed" in reason for reason in answer.reasons)


def test_networks_that_have_not_learned(task):
    answer = discover(task.X, task.Y, **{**QUICK, "steps": 1})
    assert answer.verdict == "undetermined"
    assert "the network underfits" in answer.reasons[0]


def test_max_rank_too_small(task):
    answer = discover(task.X, task.Y, max_rank=1, **SMALL)
    assert (answer.rank, answer.verdict) == (1, "undetermined")
    assert "raise `max_rank`" in answer.reasons[0]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_tiny_samples(n):
    X, Y = gaussian(n, 4).numpy(), gaussian(n, 5, seed=1).numpy()
    answer = discover(X, Y, **QUICK)
    assert answer.verdict == "undetermined"
    assert answer.predict(X).shape == (n, 5)
    with pytest.raises(DataError, match="at least 2 rows"):
        discover(X[:1], Y[:1])


def test_repeated_rows_do_not_leak():
    """Ten copies of each row of pure noise: a network that knows them by heart has found nothing."""
    X, Y = np.repeat(gaussian(30, 3).numpy(), 10, axis=0), np.repeat(gaussian(30, 4, seed=1).numpy(), 10, axis=0)
    answer = discover(X, Y, **SMALL)
    assert answer.verdict == "undetermined"
    assert answer.error > 0.5
    assert answer.settings["held_out"].endswith("of the distinct inputs")
    assert "270 rows repeat the inputs of another" in answer.notes


def test_a_given_rank(line):
    for rank in (1, 2):
        answer = discover(line.X, line.Y, rank=rank, **QUICK)
        assert (answer.rank, answer.verdict) == (rank, "given")
        assert answer.coordinates.shape == (60, rank)
        assert answer.encoder(torch.zeros(1, 4, dtype=torch.float64)).shape == (1, rank)
        assert "was given" in answer.reasons[0]
    with pytest.raises(IsthmusError, match=r"`rank` must be an integer in \[1, 2\]"):
        discover(line.X, line.Y, rank=3, **QUICK)


def test_a_given_rank_beyond_the_width(task):
    answer = discover(task.X, task.Y, rank=4, **{**QUICK, "width": 2})
    assert answer.coordinates.shape == (240, 4)
    assert answer.decoder.dims[0] == answer.encoder.network.dims[-1] == 4


# --- maps and coordinates


def test_maps(found, task):
    Z = found.transform(task.X)
    assert np.array_equal(found.decode(Z), found.predict(task.X))
    assert np.array_equal(Z, found.coordinates)
    rows = torch.from_numpy(np.array(task.X))
    assert_close(found.encoder.to_torch()(rows), Z)
    assert_close(found.decoder.to_torch()(torch.from_numpy(Z)), found.predict(task.X))
    assert not any(p.requires_grad for p in [*found.encoder.parameters(), *found.decoder.parameters()])
    with pytest.raises(IsthmusError, match="5 columns"):
        found.predict(task.X[:, :4])
    with pytest.raises(IsthmusError, match="2 columns"):
        found.decode(Z[:, :1])


def test_coordinates_are_standard_ordered_and_signed(found, task):
    Z = found.coordinates
    assert_close(Z.mean(axis=0), np.zeros(2), rtol=0, atol=1e-6, reason="measured on rows in float32")
    assert_close(Z.T @ Z / 240, np.eye(2), rtol=1e-6, atol=1e-6, reason="measured on rows in float32")
    # A small move of the first coordinate moves the outputs, each in its own deviation, more than one of the second.
    scale = task.Y.std(axis=0)
    moved = [((found.decode(Z + 1e-4 * np.eye(2)[j]) - found.decode(Z)) / scale / 1e-4) ** 2 for j in range(2)]
    assert moved[0].sum(axis=1).mean() > moved[1].sum(axis=1).mean()
    C = Z.T @ ((task.Y - task.Y.mean(axis=0)) / task.Y.std(axis=0))
    assert (C[np.arange(2), np.abs(C).argmax(axis=1)] > 0).all()


# --- data as people have them


def test_row_order_does_not_matter(task, found):
    order = np.random.default_rng(SEED).permutation(240)
    other = discover(task.X[order], task.Y[order], **{**SMALL, "replicas": 1})
    assert (other.rank, other.verdict, other.reasons) == (found.rank, found.verdict, found.reasons)
    assert other.profile.to_dict() == found.profile.to_dict()
    assert_close(other.predict(task.X), found.predict(task.X))
    assert_close(other.coordinates, found.coordinates[order])


def test_forms_of_the_same_numbers(line, quick):
    forms = {
        "lists": (line.X.tolist(), line.Y.tolist()),
        "torch": (torch.from_numpy(np.array(line.X)), torch.from_numpy(np.array(line.Y))),
        "pandas": (pd.DataFrame(line.X), pd.DataFrame(line.Y)),
        "object": (line.X.astype(object), line.Y.astype(object)),
        "strided": (np.asfortranarray(line.X), np.ascontiguousarray(line.Y[:, ::-1])[:, ::-1]),
        "nullable": (pd.DataFrame(line.X).convert_dtypes(), pd.DataFrame(line.Y).convert_dtypes()),
    }
    for name, (X, Y) in forms.items():
        other = discover(X, Y, **QUICK)
        assert np.array_equal(other.predict(line.X), quick.predict(line.X)), name
        assert (other.rank, other.verdict) == (quick.rank, quick.verdict)


def test_names(line, quick):
    assert quick.feature_names == ("x0", "x1", "x2", "x3")
    assert quick.target_names == ("y0", "y1", "y2", "y3")
    X, Y = pd.DataFrame(line.X, columns=list("abcd")), pd.DataFrame(line.Y, columns=list("pqrs"))
    other = discover(X, Y, **{**QUICK, "steps": 1})
    assert (other.feature_names, other.target_names) == (tuple("abcd"), tuple("pqrs"))
    other = discover(X, Y["q"], feature_names=list("wxyz"), **{**QUICK, "steps": 1})
    assert (other.feature_names, other.target_names) == (tuple("wxyz"), ("q",))
    for bad in (list("abc"), list("aabc")):
        with pytest.raises(IsthmusError, match="4 different texts"):
            discover(X, Y, feature_names=bad, **QUICK)


AMPLIFIED = {"rtol": 5e-2, "atol": 5e-2, "reason": "training in float32 amplifies the rounding of the units"}


@pytest.mark.parametrize("unit", [1e-9, 1e9, "mixed"])
def test_units(line, quick, unit):
    units = np.array([1e-9, 1.0, 1e9, 1e3]) if unit == "mixed" else unit
    other = discover(line.X * units, line.Y * units, **QUICK)
    assert (other.rank, other.verdict) == (quick.rank, quick.verdict)
    assert_close(other.predict(line.X * units) / units, quick.predict(line.X), **AMPLIFIED)


def test_columns_far_from_zero(line, quick):
    """As years and sums of money are."""
    shifted = discover(line.X + 1e6, line.Y - 1e6, **QUICK)
    assert shifted.rank == quick.rank
    assert_close(shifted.predict(line.X + 1e6) + 1e6, quick.predict(line.X), **AMPLIFIED)


def test_constant_and_repeated_columns(line, quick):
    n = len(line.X)
    X = np.hstack([line.X, np.full((n, 2), 3.3), line.X[:, :1]])
    other = discover(X, np.hstack([line.Y, np.full((n, 1), 0.7)]), **QUICK)
    assert other.rank == quick.rank
    assert any(note.startswith("2 constant input columns set aside: ") for note in other.notes)
    assert any(note.startswith("1 constant output column set aside: ") for note in other.notes)
    assert_close(other.predict(X)[:, -1], np.full(n, 0.7))
    # Another value in a constant column changes nothing, and has no meaning.
    moved = X.copy()
    moved[:, 4] = 1e6
    assert np.array_equal(other.predict(moved), other.predict(X))
    assert not other.sensitivity.value[:, 4:6].any()
    assert not other.sensitivity.high[:, 4:6].any()


def test_more_columns_than_rows():
    problem = problems.linear(d_in=300, d_out=5, rank=1, samples=60, seed=SEED)
    answer = discover(problem.X, problem.Y, **QUICK)
    assert answer.predict(problem.X).shape == (60, 5)
    assert any("300 input columns rotated onto" in note for note in answer.notes)
    assert answer.sensitivity.value.shape == (answer.rank, 300)
    answer = discover(problem.Y, problem.X, **QUICK)
    assert answer.predict(problem.Y).shape == (60, 300)
    assert (answer.rank, answer.verdict) == (1, "trivial")


def test_missing_values(line):
    X = np.array(line.X)
    X[[1, 5, 9], 2] = np.nan
    with pytest.raises(DataError, match="3 NaN or infinite of 240"):
        discover(X, line.Y, **QUICK)
    with pytest.raises(DataError, match="1 NaN or infinite of 240"):
        discover(line.X, np.where(np.arange(240).reshape(60, 4) == 7, np.inf, line.Y), **QUICK)
    answer = discover(X, line.Y, missing="median", **QUICK)
    filled = np.where(np.isnan(X), np.nanmedian(X, axis=0), X)
    assert np.array_equal(answer.fill, np.nanmedian(X, axis=0))
    assert answer.notes[0] == "replaced 3 missing values by the median of 1 column: 'x2'"
    assert not any("median" in note for note in discover(line.X, line.Y, missing="median", **QUICK).notes)
    assert np.array_equal(answer.predict(X), discover(filled, line.Y, **QUICK).predict(filled))
    assert np.array_equal(answer.transform(pd.DataFrame(X).convert_dtypes()), answer.transform(filled))
    holes = pd.DataFrame(X).convert_dtypes()
    assert np.array_equal(discover(holes, line.Y, missing="median", **QUICK).predict(X), answer.predict(X))
    for bad in ([["a"] * 4], [[np.inf] * 4], [[1.0] * 3]):
        with pytest.raises(IsthmusError, match="`X` must"):
            answer.transform(bad)
    X[:, 1] = np.nan
    with pytest.raises(DataError, match=r"none in columns \[1\]"):
        discover(X, line.Y, missing="median", **QUICK)


def test_columns_that_are_no_numbers_are_named(line):
    frame = pd.DataFrame(line.X, columns=[*"abcd"])
    frame["site"], frame["price"], frame["day"] = "north", "3,14", pd.date_range("2020", periods=60, tz="UTC")
    for missing in ("error", "median"):
        with pytest.raises(DataError, match=r"text in column 'site' \(such as 'north'\), column 'price'") as caught:
            discover(frame, line.Y, missing=missing, **QUICK)
        assert "get_dummies" in str(caught.value)
        assert "comma of '3,14' is a decimal mark, read the file with pandas.read_csv" in str(caught.value)
        with pytest.raises(DataError, match="dates in column 'day'. .*`time=`"):
            discover(frame.drop(columns=["site", "price"]), line.Y, missing=missing, **QUICK)
        with pytest.raises(DataError, match="dates in column 0. .*`time=`"):
            discover(frame["day"].to_numpy("M8[s]")[:, None], line.Y, missing=missing, **QUICK)
    frame = frame[[*"abcd"]].astype(object)
    frame.iloc[4, 1] = None
    with pytest.raises(DataError, match=r"1 NaN or infinite of 240 values \(column 'b': 1 NaN\). Pass missing="):
        discover(frame, line.Y, **QUICK)
    with pytest.raises(DataError, match="`Y` must be finite.*Drop these rows"):
        discover(line.X, frame, **QUICK)
    with pytest.raises(DataError, match="`Y` must be numbers. Got text in column 1 .*loss='cross_entropy'"):
        discover(line.X, [[1.0, "a"]] * 60, **QUICK)


def test_groups_and_time(line):
    groups = [f"patient {i // 6}" for i in range(60)]
    answer = discover(line.X, line.Y, groups=groups, **QUICK)
    assert answer.settings["held_out"] == "a quarter at random of the groups"
    assert any("only 2 rows or groups" in reason for reason in answer.reasons)
    answer = discover(line.X, line.Y, time=np.arange(60)[::-1], **{**QUICK, "steps": 1})
    assert "in time" in answer.settings["held_out"]
    for name, bad in [("groups", groups[:5]), ("groups", [None, *groups[1:]]), ("time", [np.nan] * 60), ("time", [1])]:
        with pytest.raises(DataError, match=f"`{name}` must"):
            discover(line.X, line.Y, **{name: bad}, **QUICK)


@pytest.mark.parametrize(
    "bad",
    [
        {"rank": 0}, {"rank": "two"}, {"rank": True}, {"max_rank": 0}, {"depth": 3}, {"depth": 5}, {"width": 1},
        {"resolution": 0.0}, {"resolution": 2.0}, {"resolution": "small"}, {"steps": 0}, {"replicas": -1}, {"seed": -1},
        {"missing": "drop"}, {"max_samples": 1}, {"learning_rate": 0.0}, {"init_scale": float("nan")},
        {"init_scale": 1e12},
    ],
)  # fmt: skip
def test_arguments_out_of_range(line, bad):
    with pytest.raises(IsthmusError, match=f"discover: .*{next(iter(bad))}"):
        discover(line.X, line.Y, **{**QUICK, **bad})


def test_rows_that_do_not_match(line):
    with pytest.raises(DataError, match="as many rows.*60 and 59"):
        discover(line.X, line.Y[:59])
    with pytest.raises(DataError, match="must not be empty"):
        discover(line.X[:0], line.Y[:0])


def test_more_rows_than_samples_to_learn_from():
    problem = problems.linear(d_in=4, d_out=4, rank=2, samples=400, seed=SEED)
    answer = discover(problem.X, problem.Y, max_samples=100, **QUICK)
    assert any("mini-batches" in note for note in answer.notes)
    assert answer.coordinates.shape == (400, 2)


def test_nothing_global_is_touched(line):
    torch.manual_seed(5)
    state, own = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    X, Y = np.array(line.X), np.array(line.Y)
    discover(X, Y, **{**QUICK, "steps": 1})
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], own)  # noqa: NPY002
    assert np.array_equal(X, line.X)
    assert np.array_equal(Y, line.Y)
