"""Training: one loop, whose result says why it stopped."""

from isthmus.training._inputs import TrainingEvent
from isthmus.training._loop import train
from isthmus.training._phases import Phase
from isthmus.training._plans import default_plan
from isthmus.training._result import Criteria, TrainingResult
from isthmus.training._together import train_together

__all__ = ["Criteria", "Phase", "TrainingEvent", "TrainingResult", "default_plan", "train", "train_together"]
