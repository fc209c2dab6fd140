"""Measures: plain functions of networks, traces and tensors; float64 unless said otherwise."""

from isthmus.linalg import log_pseudo_determinant, numerical_rank, schatten, singular_values
from isthmus.measures.bottleneck import BottleneckRank, Evidence, bottleneck_rank
from isthmus.measures.denoise import Denoising, denoising, distance_to_data, projection_defect, tangent_defect
from isthmus.measures.dimension import TwoNN, flattening_loss, two_nn
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
from isthmus.measures.jacobian import (
    JacobianRank,
    agop,
    jacobian,
    jacobian_of_trace,
    jacobian_rank,
    jacobian_spectra,
)
from isthmus.measures.large_spectra import LargeSpectrum, Operator, large_spectrum
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
    "JacobianRank",
    "KernelPath",
    "LargeSpectrum",
    "Norms",
    "Operator",
    "PathLength",
    "Positivity",
    "Reading",
    "Topology",
    "TraceEstimate",
    "TwoNN",
    "agop",
    "balance",
    "bottleneck_rank",
    "denoising",
    "diagonal_cost",
    "diagonal_expansion",
    "diameter",
    "distance_to_data",
    "estimate_costs",
    "flattening_loss",
    "hessian_top_eigenvalue",
    "hessian_trace",
    "is_completely_positive",
    "jacobian",
    "jacobian_of_trace",
    "jacobian_rank",
    "jacobian_spectra",
    "kernel_path",
    "kernels",
    "large_spectrum",
    "largest_stable_step",
    "linear_cost",
    "linear_expansion",
    "linear_geodesic",
    "linear_kernel",
    "linear_representation",
    "log_pseudo_determinant",
    "ntk_top_eigenvalue",
    "ntk_trace",
    "numerical_rank",
    "parameter_norms",
    "participation_ratio",
    "path_lower_bound",
    "path_upper_bound",
    "planarity",
    "projection_defect",
    "read_spectrum",
    "representation_spectra",
    "schatten",
    "shortest_path",
    "singular_values",
    "stable_rank",
    "tangent_defect",
    "top_eigenvalue",
    "tripoints",
    "two_nn",
    "weight_spectra",
]
