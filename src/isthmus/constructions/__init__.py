"""Networks written down by hand, with what is known about them."""

from isthmus.constructions.compose import compose, pad, parallel
from isthmus.constructions.constant_identity_path import IdentityPath, constant_identity_path
from isthmus.constructions.construction import Construction, Domain, Known
from isthmus.constructions.divergent import divergent
from isthmus.constructions.graphs import (
    bipartite_data,
    bipartite_narrow,
    bipartite_optimum,
    complete_bipartite,
    incidence,
    is_triangle_free,
    one_hot_data,
    one_hot_optimum,
)
from isthmus.constructions.hamiltonian_flow import FlowNetwork, HamiltonianFlow, flow_network, hamiltonian_flow
from isthmus.constructions.interpolant import interpolant_1d
from isthmus.constructions.leaky import relu_to_leaky
from isthmus.constructions.leaky_symmetries import refine_steps, rescale_range, shift_leak
from isthmus.constructions.linear import linear_network, positive_linear_network
from isthmus.constructions.minimal_network import minimal_network
from isthmus.constructions.rank_one import rank_one
from isthmus.constructions.saddle import Saddle, saddle
from isthmus.constructions.steady_path import steady_path
from isthmus.constructions.three_part import three_part

__all__ = [
    "Construction",
    "Domain",
    "FlowNetwork",
    "HamiltonianFlow",
    "IdentityPath",
    "Known",
    "Saddle",
    "bipartite_data",
    "bipartite_narrow",
    "bipartite_optimum",
    "complete_bipartite",
    "compose",
    "constant_identity_path",
    "divergent",
    "flow_network",
    "hamiltonian_flow",
    "incidence",
    "interpolant_1d",
    "is_triangle_free",
    "linear_network",
    "minimal_network",
    "one_hot_data",
    "one_hot_optimum",
    "pad",
    "parallel",
    "positive_linear_network",
    "rank_one",
    "refine_steps",
    "relu_to_leaky",
    "rescale_range",
    "saddle",
    "shift_leak",
    "steady_path",
    "three_part",
]
