"""Figures of talk2023, the slides: a ball under gravity, and kernel methods against the dimension."""
