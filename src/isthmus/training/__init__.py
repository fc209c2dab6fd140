"""Training: one core, whose result says why it stopped."""

from isthmus.training._core import TrainingEvent
from isthmus.training._phases import Phase, default_plan, finishing_plan
from isthmus.training._result import Criteria, TrainingResult
from isthmus.training._train import minimise, minimise_together, train, train_together

__all__ = [
    "Criteria",
    "Phase",
    "TrainingEvent",
    "TrainingResult",
    "default_plan",
    "finishing_plan",
    "minimise",
    "minimise_together",
    "train",
    "train_together",
]
