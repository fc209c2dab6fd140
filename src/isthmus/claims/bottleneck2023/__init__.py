"""Claims of bottleneck2023: bottleneck structure in learned features."""
