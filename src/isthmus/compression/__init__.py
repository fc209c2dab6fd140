"""Smaller or better-scaled networks that compute the same function."""

from isthmus.compression.certificate import Certificate, Compressed, LayerChange
from isthmus.compression.compress import compress
from isthmus.compression.rebalance import Rebalanced, rebalance

__all__ = ["Certificate", "Compressed", "LayerChange", "Rebalanced", "compress", "rebalance"]
