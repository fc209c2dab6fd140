"""Discovery: how many variables y = f(x) depends on, which they are, and the maps in and out."""

from isthmus._settings import Settings
from isthmus.discovery._depths import DepthRange, depth_range
from isthmus.discovery._discover import discover
from isthmus.discovery._dynamics import Dynamics, dynamics_of, explained
from isthmus.discovery._maps import Sensitivity
from isthmus.discovery._plateau import Plateau, loss_plateau
from isthmus.discovery._profile import RankProfile
from isthmus.discovery._result import Discovery

__all__ = [
    "DepthRange",
    "Discovery",
    "Dynamics",
    "Plateau",
    "RankProfile",
    "Sensitivity",
    "Settings",
    "depth_range",
    "discover",
    "dynamics_of",
    "explained",
    "loss_plateau",
]
