"""Networks written down by hand, with what is known about them."""

from isthmus.constructions._construction import (
    Construction,
    Domain,
    Known,
    compose,
    pad,
    parallel,
    relu_to_leaky,
    three_part,
)
from isthmus.constructions._graphs import (
    bipartite_data,
    bipartite_narrow,
    bipartite_optimum,
    complete_bipartite,
    incidence,
    is_triangle_free,
    one_hot_data,
    one_hot_optimum,
)
from isthmus.constructions._linear import divergent, linear_network, minimal_network, positive_linear_network
from isthmus.constructions._paths import (
    FlowNetwork,
    HamiltonianFlow,
    IdentityPath,
    constant_identity_path,
    flow_network,
    hamiltonian_flow,
    refine_steps,
    rescale_range,
    shift_leak,
    steady_path,
)
from isthmus.constructions._rank_one import interpolant_1d, rank_one
from isthmus.constructions._saddle import Saddle, saddle

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
