"""Figures of rank2023, one file each."""
