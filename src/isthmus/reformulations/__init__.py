"""The regularised loss minimised over representations, covariances or paths instead of weights."""

from isthmus.reformulations._over_covariances import KOptimum, LayerCertificate, certify_layer, optimise_covariances
from isthmus.reformulations._over_paths import PathOptimum, optimise_path
from isthmus.reformulations._over_representations import ZOptimum, optimise_representations

__all__ = [
    "KOptimum",
    "LayerCertificate",
    "PathOptimum",
    "ZOptimum",
    "certify_layer",
    "optimise_covariances",
    "optimise_path",
    "optimise_representations",
]
