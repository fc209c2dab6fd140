"""Measures: plain functions of networks, traces and tensors; float64 unless said otherwise."""

from isthmus.linalg import log_pseudo_determinant, numerical_rank, schatten, singular_values
from isthmus.measures.bottleneck import BottleneckRank, Evidence, bottleneck_rank
from isthmus.measures.denoise import Denoising, denoising, distance_to_data, projection_defect, tangent_defect
from isthmus.measures.dimension import TwoNN, flattening_loss, two_nn
from isthmus.measures.energies import StepEnergies, flow, hamiltonian, lagrangian_weights, momenta, step_energies
from isthmus.measures.filter_spectra import filter_spectra, signal_spectra
from isthmus.measures.forces import Forces, forces, stationarity_of_representations
from isthmus.measures.frequency_spectrum import FrequencyReading, FrequencySpectrum, KeptFrequency
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
from isthmus.measures.kept_frequencies import KeptFrequencies, kept_frequencies
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
from isthmus.measures.orbits import OrbitDistance, distance_matrix, orbit_distance, rotations_about
from isthmus.measures.positivity import Positivity, is_completely_positive
from isthmus.measures.rays import class_separation, ray_concentration, ray_groups
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
from isthmus.measures.representation_maps import (
    covariance_loss,
    covariances,
    inadmissibility,
    minimal_weights,
    representation_cost_terms,
    representation_loss,
    representations,
    useless_part,
)
from isthmus.measures.sigma_rank import SigmaRank, cp_rank_bound, sigma_rank_bounds
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
    "Forces",
    "FrequencyReading",
    "FrequencySpectrum",
    "GapRule",
    "IdentityCosts",
    "JacobianRank",
    "KernelNorm",
    "KernelPath",
    "KeptFrequencies",
    "KeptFrequency",
    "LargeSpectrum",
    "Mechanics",
    "MechanicsArrays",
    "Norms",
    "Operator",
    "OrbitDistance",
    "PathLength",
    "Positivity",
    "Reading",
    "SigmaRank",
    "StepEnergies",
    "Topology",
    "TraceEstimate",
    "TwoNN",
    "agop",
    "balance",
    "bottleneck_rank",
    "class_separation",
    "cost_of_identity",
    "covariance_loss",
    "covariances",
    "cp_rank_bound",
    "denoising",
    "diagonal_cost",
    "diagonal_expansion",
    "diameter",
    "distance_matrix",
    "distance_to_data",
    "estimate_costs",
    "fewer_columns",
    "filter_spectra",
    "flattening_loss",
    "flow",
    "forces",
    "hamiltonian",
    "hessian_top_eigenvalue",
    "hessian_trace",
    "identity_cost_bounds",
    "identity_costs",
    "inadmissibility",
    "is_completely_positive",
    "jacobian",
    "jacobian_of_trace",
    "jacobian_rank",
    "jacobian_spectra",
    "kernel_path",
    "kernels",
    "kept_frequencies",
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
    "minimal_weights",
    "momenta",
    "ntk_top_eigenvalue",
    "ntk_trace",
    "numerical_rank",
    "on_kinks",
    "orbit_distance",
    "parameter_norms",
    "participation_ratio",
    "path_lower_bound",
    "path_upper_bound",
    "planarity",
    "projection_defect",
    "ray_concentration",
    "ray_groups",
    "read_spectrum",
    "representation_cost_terms",
    "representation_loss",
    "representation_spectra",
    "representations",
    "resolved_momenta",
    "rotations_about",
    "schatten",
    "shortest_path",
    "signal_spectra",
    "sigma_rank_bounds",
    "singular_values",
    "stable_rank",
    "stationarity_of_representations",
    "step_energies",
    "tangent_defect",
    "top_eigenvalue",
    "tripoints",
    "two_nn",
    "useless_part",
    "weight_spectra",
]
