"""Smaller or better-scaled networks that compute the same function."""

from isthmus.compression.rebalance import Rebalanced, rebalance

__all__ = ["Rebalanced", "rebalance"]
