"""Networks of tokens: dimensions are counted at each position, from the embedding on."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from architectures import ARCHITECTURES
from isthmus.diagnosis import Diagnosis, diagnose


class Tagger(nn.Module):
    """Tokens → a row of outputs at each position, through ``waist`` numbers at each."""

    def __init__(self, waist: int, *, normed: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 24)
        self.mix = nn.TransformerEncoderLayer(24, 2, 32, batch_first=True, dropout=0.0)
        self.down, self.up = nn.Linear(24, waist), nn.Linear(waist, 24)
        self.norm = nn.LayerNorm(24) if normed else nn.Identity()
        self.out = nn.Linear(24, 30)

    def forward(self, ids):
        return self.out(self.norm(torch.relu(self.up(self.down(self.mix(self.embed(ids)))))))


def tokens(samples: int, length: int = 8) -> torch.Tensor:
    return torch.randint(100, (samples, length), generator=torch.Generator().manual_seed(samples))


def made(waist: int, **options: bool) -> Tagger:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Tagger(waist, **options)


def test_a_waist_at_each_position_is_found():
    found = diagnose(made(5), tokens(40), jacobian_samples=0)
    assert (found.verdict, found.rank, found.isthmus.per) == ("determined", 5, "position")
    assert "down" in found.isthmus.layers
    assert "at each position" in found.sentence
    assert found["down"].whole is None
    assert Diagnosis.from_dict(found.to_dict()).sentence == found.sentence


@pytest.mark.parametrize("normed", [False, True])
def test_without_one_there_is_none_and_a_layer_norm_is_no_waist(normed):
    found = diagnose(made(24, normed=normed), tokens(40), jacobian_samples=0)
    assert found.verdict == "none", found.reasons
    # The layers of the encoder end in norms.
    assert "23 dimensions at each position" in found.reasons[0]
    assert found.narrowest is not None


def test_few_samples_say_how_many_suffice():
    found = diagnose(made(24), tokens(2, 4), jacobian_samples=0)
    assert found.verdict == "undetermined"
    needed = int(re.search(r"supply at least (\d+)", found.sentence)[1])
    assert 4 <= needed < 40
    assert diagnose(made(24), tokens(needed, 4), jacobian_samples=0).verdict == "none"


def test_a_head_of_fewer_outputs_than_the_embedding_has():
    module, X = ARCHITECTURES["transformer"]()
    found = diagnose(module, X, jacobian_samples=0)
    # Four outputs for the whole sample: a half bottleneck, or none before it.
    assert found.rank in (None, 4)
    assert found.isthmus.per == "sample"
