"""Smaller or better-scaled networks that compute the same function."""

from isthmus.compression._certificate import Certificate, Compressed, LayerChange
from isthmus.compression._compress import compress
from isthmus.compression._rebalance import Rebalanced, rebalance

__all__ = ["Certificate", "Compressed", "LayerChange", "Rebalanced", "compress", "rebalance"]
