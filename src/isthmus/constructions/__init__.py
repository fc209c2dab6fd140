"""Networks written down by hand, with what is known about them."""

from isthmus.constructions.compose import compose, pad, parallel
from isthmus.constructions.construction import Construction, Domain, Known
from isthmus.constructions.divergent import divergent
from isthmus.constructions.interpolant import interpolant_1d
from isthmus.constructions.leaky import relu_to_leaky
from isthmus.constructions.linear import linear_network, positive_linear_network
from isthmus.constructions.rank_one import rank_one
from isthmus.constructions.three_part import three_part

__all__ = [
    "Construction",
    "Domain",
    "Known",
    "compose",
    "divergent",
    "interpolant_1d",
    "linear_network",
    "pad",
    "parallel",
    "positive_linear_network",
    "rank_one",
    "relu_to_leaky",
    "three_part",
]
