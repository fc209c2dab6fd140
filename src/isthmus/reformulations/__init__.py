"""The regularised loss minimised over representations, or over covariances, instead of weights."""

from isthmus.reformulations._over_covariances import KOptimum, LayerCertificate, certify_layer, optimise_covariances
from isthmus.reformulations._over_representations import ZOptimum, optimise_representations

__all__ = [
    "KOptimum",
    "LayerCertificate",
    "ZOptimum",
    "certify_layer",
    "optimise_covariances",
    "optimise_representations",
]
