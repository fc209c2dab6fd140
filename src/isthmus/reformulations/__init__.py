"""The regularised loss minimised over representations, or over covariances, instead of weights."""

from isthmus.reformulations.certificate import LayerCertificate, certify_layer
from isthmus.reformulations.over_covariances import KOptimum, optimise_covariances
from isthmus.reformulations.over_representations import ZOptimum, optimise_representations

__all__ = [
    "KOptimum",
    "LayerCertificate",
    "ZOptimum",
    "certify_layer",
    "optimise_covariances",
    "optimise_representations",
]
