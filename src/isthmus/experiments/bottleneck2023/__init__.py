"""Bottleneck structure in learned features: low-dimension vs regularity."""
