"""Training: one loop, whose result says why it stopped."""

from isthmus.training.inputs import TrainingEvent
from isthmus.training.loop import train
from isthmus.training.phases import Phase
from isthmus.training.plans import default_plan
from isthmus.training.result import Criteria, TrainingResult
from isthmus.training.together import train_together

__all__ = ["Criteria", "Phase", "TrainingEvent", "TrainingResult", "default_plan", "train", "train_together"]
