"""Claims of hamiltonian2024: Hamiltonian mechanics of leaky ResNets."""
