"""Claims of rank2023: implicit bias of large depth networks, a notion of rank for nonlinear functions."""
