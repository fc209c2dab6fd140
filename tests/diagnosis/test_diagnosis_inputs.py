"""Inputs: everything a user may hold becomes batches of arguments, or is refused by name."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from architectures import mlp, transformer
from isthmus import DataError, IsthmusError
from isthmus.diagnosis._inputs import batches
from tools import gaussian

X = gaussian(10, 8, dtype=torch.float32)
MLP, TOKENS = mlp()[0], transformer()[0]


def joined(source) -> Tensor:
    return torch.cat([args[0] for args, _ in source])


@pytest.mark.parametrize(
    "given",
    [
        X,
        X.double(),
        X.clone().requires_grad_(),
        X.numpy(),
        X.numpy().astype(">f8"),
        np.asfortranarray(X.numpy())[::-1][::-1],
        X.tolist(),
        pd.DataFrame(X.numpy()),
        pd.DataFrame(X.numpy()).astype(object),
        np.broadcast_to(X.numpy(), X.shape),  # read-only
    ],
)
def test_arrays(given):
    source = batches("test", given, MLP, batch_size=4)
    assert [len(args[0]) for args, _ in source] == [4, 4, 2] and source.samples == 10
    assert torch.equal(joined(source), X) and torch.equal(joined(source), X), "may be iterated again"
    assert not joined(source).requires_grad
    assert source.notes == []


def test_tuples_are_positional_and_dicts_are_keywords():
    source = batches("test", (X, X.numpy()[:, 0]), MLP, batch_size=6)
    args, kwargs = next(iter(source))
    assert [a.shape for a in args] == [(6, 8), (6,)] and kwargs == {}
    args, kwargs = next(iter(batches("test", {"x": X, "t": X[:, 1]}, MLP, batch_size=6)))
    assert args == () and torch.equal(kwargs["x"], X[:6]) and torch.equal(kwargs["t"], X[:6, 1])


def test_dtypes_follow_the_module():
    assert next(iter(batches("test", X, mlp()[0].double())))[0][0].dtype == torch.float64
    assert next(iter(batches("test", X, MLP, dtype=torch.bfloat16)))[0][0].dtype == torch.bfloat16
    assert next(iter(batches("test", X.double(), nn.ReLU())))[0][0].dtype == torch.float32


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint16, np.int64, bool])
def test_integers(dtype):
    ids = np.arange(12).reshape(6, 2).astype(dtype)
    source = batches("test", ids, TOKENS)
    value = next(iter(source))[0][0]
    assert value.dtype == (torch.bool if dtype is bool else torch.int64) and source.notes == []
    assert torch.equal(value.long(), torch.from_numpy(ids.astype(np.int64)))
    source = batches("test", ids, MLP)
    assert next(iter(source))[0][0].dtype == torch.float32
    assert source.notes == ["integers of `X` are cast to float32: the module has no embedding"]


def test_masks_beside_other_arguments_stay_boolean():
    args, _ = next(iter(batches("test", (X, X > 0), MLP)))
    assert args[1].dtype == torch.bool


def test_a_vector_is_a_column_unless_it_is_indices():
    source = batches("test", X[:, 0], MLP)
    assert next(iter(source))[0][0].shape == (10, 1) and "one column" in source.notes[0]
    assert next(iter(batches("test", torch.arange(5), TOKENS)))[0][0].shape == (5,)


def test_the_first_of_arrays_are_evenly_spaced():
    source = batches("test", torch.arange(100.0)[:, None], MLP)
    assert source.first(4)[0][0].flatten().tolist() == [0, 25, 50, 75]
    assert len(source.first(1000)[0][0]) == 100


def test_loaders():
    pairs = TensorDataset(X, torch.arange(10))
    source = batches("test", DataLoader(pairs, batch_size=4), MLP)
    assert source.samples is None
    assert torch.equal(joined(source), X) and torch.equal(joined(source), X)
    assert source.samples == 10
    assert source.notes == ["a batch of two is (inputs, targets): the targets are not used"]
    assert torch.equal(source.first(5)[0][0], X[:5]) and torch.equal(source.first(99)[0][0], X)
    alone = batches("test", DataLoader(TensorDataset(X), batch_size=4), MLP)
    assert torch.equal(joined(alone), X) and alone.notes == []
    assert torch.equal(joined(batches("test", [X[:3], X[3:]], MLP)), X)
    assert torch.equal(joined(batches("test", [(X[:3].numpy(), 1), (X[3:].numpy(), 2)], MLP)), X)


def test_loaders_of_dicts_and_of_several_inputs():
    items = [{"x": X[:4], "mask": X[:4] > 0}, {"x": X[4:8], "mask": X[4:8] > 0}]
    source = batches("test", items, MLP)
    assert [sorted(kwargs) for _, kwargs in source] == [["mask", "x"]] * 2
    assert source.first(6)[1]["x"].shape == (6, 8) and source.samples == 8
    args, _ = next(iter(batches("test", [((X, X), None)], MLP)))
    assert len(args) == 2


def test_a_shuffling_loader_has_one_order_and_leaves_its_generators():
    own = torch.Generator().manual_seed(3)
    for loader in (DataLoader(X, 4, shuffle=True), DataLoader(X, 4, shuffle=True, generator=own)):
        states = torch.get_rng_state(), own.get_state()
        source = batches("test", loader, MLP)
        first = joined(source)
        assert torch.equal(first, joined(source)) and torch.equal(source.first(5)[0][0], first[:5])
        assert torch.equal(first.sort(0).values, X.sort(0).values)
        assert torch.equal(torch.get_rng_state(), states[0]) and torch.equal(own.get_state(), states[1])


def test_unpack():
    triples = [(X[:5], torch.arange(5), "a"), (X[5:], torch.arange(5), "b")]
    source = batches("test", triples, MLP, unpack=lambda batch: batch[0].double())
    assert torch.equal(joined(source), X)
    source = batches("test", triples, MLP, unpack=lambda batch: ((batch[0],), {"t": batch[1], "label": batch[2]}))
    args, kwargs = source.first(7)
    assert args[0].shape == (7, 8) and kwargs["t"].dtype == torch.int64 and kwargs["label"] == "a"


def test_the_first_of_a_loader_end_where_shapes_change():
    source = batches("test", [gaussian(3, 8), gaussian(3, 9)], MLP)
    assert source.first(5)[0][0].shape == (3, 8) and any("shape" in note for note in source.notes)


def test_a_loader_that_changes_is_noted():
    class Growing:
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter([X] * self.passes)

    source = batches("test", Growing(), MLP)
    assert len(list(source)) == 1 and len(list(source)) == 2
    assert source.notes == ["`X` gave 10 samples on one pass and 20 on another"]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(X)


BAD = X.clone()
BAD[2, 3], BAD[9, 0] = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((row for row in X), "used up after one pass.*Pass a list"),
        (iter([X]), "used up"),
        (TensorDataset(X), "single samples.*DataLoader"),
        (Stream(), "single samples"),
        ("data.csv", "must be an array.*Got str"),
        (None, "Got NoneType"),
        (3, "Got int"),
        ((), "without arrays"),
        ({}, "without arrays"),
        ([], "must have samples"),
        (X[:0], r"must have samples. Got shape \(0, 8\)"),
        (torch.tensor(3.0), "must have samples"),
        ((X, X[:3]), r"as many samples. Got `X\[0\]` \(10, 8\), `X\[1\]` \(3, 8\)"),
        ({"a": X, "b": X[:3]}, r"`X\['b'\]` \(3, 8\)"),
        (BAD, "2 NaN or infinite of 80 values in `X`"),
        (BAD.numpy(), "2 NaN or infinite of 80"),
        ((X, BAD), r"values in `X\[1\]`"),
        ([[1.0, 2.0], [3.0]], "unequal length"),
        (pd.DataFrame({"a": ["x", "y"]}), "numeric|real numbers"),
        (np.zeros(3, dtype=complex), "real numbers"),
        (X.to_sparse(), "dense"),
    ],
)
def test_what_cannot_be_used_is_refused(given, message):
    with pytest.raises(IsthmusError, match=message):
        batches("test", given, MLP)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([(X, X, X)], "Got a tuple of 3. Pass `unpack`"),
        ([{"x": X, "text": "a"}], r"str in batch 0\['text'\]"),
        ([X, BAD], "2 NaN or infinite of 80 values in batch 1"),
        (DataLoader(TensorDataset(X[:0])), "must not be empty"),
        ([X.to(torch.complex64)], "must be real"),
        ([torch.full((2, 8), 1e300, dtype=torch.float64)], "infinite of 16 .*as float32"),
    ],
)
def test_bad_batches_are_refused_when_they_come(given, message):
    source = batches("test", given, MLP)
    with pytest.raises(IsthmusError, match=message):
        list(source)


def test_a_loader_used_up_inside_is_noticed():
    class Hidden:
        def __init__(self):
            self.once = iter([X])

        def __iter__(self):
            return self.once

    source = batches("test", Hidden(), MLP)
    assert torch.equal(joined(source), X)
    with pytest.raises(DataError, match="more than once"):
        list(source)


def test_wrong_options():
    with pytest.raises(IsthmusError, match="`batch_size`"):
        batches("test", X, MLP, batch_size=0)
    with pytest.raises(IsthmusError, match="for batches of a loader"):
        batches("test", X, MLP, unpack=lambda batch: batch)
    with pytest.raises(IsthmusError, match="`unpack` must return"):
        list(batches("test", [X], MLP, unpack=lambda batch: [batch]))
    with pytest.raises(IsthmusError, match="`n`"):
        batches("test", X, MLP).first(0)
