"""Measures: plain functions of networks, traces and tensors; float64 unless said otherwise."""

from isthmus.linalg import log_pseudo_determinant, numerical_rank, schatten, singular_values
from isthmus.measures.bottleneck import BottleneckRank, Evidence, bottleneck_rank
from isthmus.measures.denoise import Denoising, denoising, distance_to_data, projection_defect, tangent_defect
from isthmus.measures.dimension import TwoNN, flattening_loss, two_nn
from isthmus.measures.energies import StepEnergies, flow, hamiltonian, lagrangian_weights, momenta, step_energies
from isthmus.measures.gaps import GapRule, Reading, read_spectrum
from isthmus.measures.geodesic import (
    KernelPath,
    kernel_path,
    kernels,
    linear_geodesic,
    linear_kernel,
    linear_representation,
    planarity,
)
from isthmus.measures.identity_cost import IdentityCosts, cost_of_identity, identity_cost_bounds, identity_costs
from isthmus.measures.jacobian import (
    JacobianRank,
    agop,
    jacobian,
    jacobian_of_trace,
    jacobian_rank,
    jacobian_spectra,
)
from isthmus.measures.kernel_norms import KernelNorm, fewer_columns
from isthmus.measures.kinks import on_kinks, resolved_momenta
from isthmus.measures.large_spectra import LargeSpectrum, Operator, large_spectrum
from isthmus.measures.mechanics import mechanics
from isthmus.measures.mechanics_result import Mechanics, MechanicsArrays
from isthmus.measures.norms import Balance, Norms, balance, parameter_norms
from isthmus.measures.ntk import (
    Eigenvalue,
    TraceEstimate,
    hessian_top_eigenvalue,
    hessian_trace,
    largest_stable_step,
    ntk_top_eigenvalue,
    ntk_trace,
    top_eigenvalue,
)
from isthmus.measures.positivity import Positivity, is_completely_positive
from isthmus.measures.representation_cost import (
    CostEstimate,
    Estimate,
    Expansion,
    diagonal_cost,
    diagonal_expansion,
    estimate_costs,
    linear_cost,
    linear_expansion,
)
from isthmus.measures.spectra import (
    participation_ratio,
    representation_spectra,
    stable_rank,
    weight_spectra,
)
from isthmus.measures.topology import Topology, tripoints
from isthmus.measures.tsp import PathLength, diameter, path_lower_bound, path_upper_bound, shortest_path

__all__ = [
    "Balance",
    "BottleneckRank",
    "CostEstimate",
    "Denoising",
    "Eigenvalue",
    "Estimate",
    "Evidence",
    "Expansion",
    "GapRule",
    "IdentityCosts",
    "JacobianRank",
    "KernelNorm",
    "KernelPath",
    "LargeSpectrum",
    "Mechanics",
    "MechanicsArrays",
    "Norms",
    "Operator",
    "PathLength",
    "Positivity",
    "Reading",
    "StepEnergies",
    "Topology",
    "TraceEstimate",
    "TwoNN",
    "agop",
    "balance",
    "bottleneck_rank",
    "cost_of_identity",
    "denoising",
    "diagonal_cost",
    "diagonal_expansion",
    "diameter",
    "distance_to_data",
    "estimate_costs",
    "fewer_columns",
    "flattening_loss",
    "flow",
    "hamiltonian",
    "hessian_top_eigenvalue",
    "hessian_trace",
    "identity_cost_bounds",
    "identity_costs",
    "is_completely_positive",
    "jacobian",
    "jacobian_of_trace",
    "jacobian_rank",
    "jacobian_spectra",
    "kernel_path",
    "kernels",
    "lagrangian_weights",
    "large_spectrum",
    "largest_stable_step",
    "linear_cost",
    "linear_expansion",
    "linear_geodesic",
    "linear_kernel",
    "linear_representation",
    "log_pseudo_determinant",
    "mechanics",
    "momenta",
    "ntk_top_eigenvalue",
    "ntk_trace",
    "numerical_rank",
    "on_kinks",
    "parameter_norms",
    "participation_ratio",
    "path_lower_bound",
    "path_upper_bound",
    "planarity",
    "projection_defect",
    "read_spectrum",
    "representation_spectra",
    "resolved_momenta",
    "schatten",
    "shortest_path",
    "singular_values",
    "stable_rank",
    "step_energies",
    "tangent_defect",
    "top_eigenvalue",
    "tripoints",
    "two_nn",
    "weight_spectra",
]
