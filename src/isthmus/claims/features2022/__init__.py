"""Claims of features2022: attraction, repulsion and sparsity of representations."""
