"""Discovery: how many variables y = f(x) depends on, which they are, and the maps in and out."""

from isthmus.discovery.discover import discover
from isthmus.discovery.dynamics import Dynamics, dynamics_of
from isthmus.discovery.meaning import Sensitivity
from isthmus.discovery.profile import RankProfile
from isthmus.discovery.result import Discovery

__all__ = ["Discovery", "Dynamics", "RankProfile", "Sensitivity", "discover", "dynamics_of"]
