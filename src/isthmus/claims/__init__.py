"""Executable theorems: each with both sides, its hypotheses checked, and its slack."""

# Importing these registers their claims.
from isthmus.claims import (  # noqa: F401
    balanced,
    bn_families,
    curvature,
    domains,
    feature_bipartite,
    feature_cones,
    feature_forces,
    feature_maps,
    feature_merging,
    feature_minima,
    feature_widths,
    flow_claims,
    identity_claims,
    inside_bottleneck,
    jacobian_bounds,
    least_norm,
    linear_costs,
    rank_applications,
    rank_families,
    rank_one_fits,
    rank_one_layer,
    rank_recovery,
    second_corrections,
    symmetry_claims,
    time_scales,
    two_functions,
)
from isthmus.claims.base import CLAIMS, Claim, Hypothesis, Subject, Verdict, in_order
from isthmus.claims.verify import Verdicts, verify, verify_samples

in_order()

__all__ = ["CLAIMS", "Claim", "Hypothesis", "Subject", "Verdict", "Verdicts", "verify", "verify_samples"]
