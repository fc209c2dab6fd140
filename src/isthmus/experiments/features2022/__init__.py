"""Figures of features2022: forces on representations, and the loss against the width."""
