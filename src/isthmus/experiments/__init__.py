"""Experiments: one folder per paper, one file per figure. ``isthmus reproduce --list`` shows them."""

from isthmus.experiments._experiment import Experiment, find_experiment, find_experiments, parameter, parse_overrides
from isthmus.runs import Outcome

__all__ = ["Experiment", "Outcome", "find_experiment", "find_experiments", "parameter", "parse_overrides"]
