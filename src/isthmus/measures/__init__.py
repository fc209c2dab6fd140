"""Measures: plain functions of networks, traces and tensors; float64 unless said otherwise."""

from isthmus.linalg import log_pseudo_determinant, numerical_rank, schatten, singular_values
from isthmus.measures.bottleneck import BottleneckRank, Evidence, bottleneck_rank
from isthmus.measures.dimension import TwoNN, flattening_loss, two_nn
from isthmus.measures.gaps import GapRule, Reading, read_spectrum
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
from isthmus.measures.representation_cost import (
    Expansion,
    diagonal_cost,
    diagonal_expansion,
    linear_cost,
    linear_expansion,
)
from isthmus.measures.spectra import (
    participation_ratio,
    representation_spectra,
    stable_rank,
    weight_spectra,
)

__all__ = [
    "Balance",
    "BottleneckRank",
    "Eigenvalue",
    "Evidence",
    "Expansion",
    "GapRule",
    "JacobianRank",
    "LargeSpectrum",
    "Norms",
    "Operator",
    "Reading",
    "TraceEstimate",
    "TwoNN",
    "agop",
    "balance",
    "bottleneck_rank",
    "diagonal_cost",
    "diagonal_expansion",
    "flattening_loss",
    "hessian_top_eigenvalue",
    "hessian_trace",
    "jacobian",
    "jacobian_of_trace",
    "jacobian_rank",
    "jacobian_spectra",
    "large_spectrum",
    "largest_stable_step",
    "linear_cost",
    "linear_expansion",
    "log_pseudo_determinant",
    "ntk_top_eigenvalue",
    "ntk_trace",
    "numerical_rank",
    "parameter_norms",
    "participation_ratio",
    "read_spectrum",
    "representation_spectra",
    "schatten",
    "singular_values",
    "stable_rank",
    "top_eigenvalue",
    "two_nn",
    "weight_spectra",
]
