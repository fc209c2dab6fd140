"""Figures of hamiltonian2024: leaky ResNets and their mechanics."""
