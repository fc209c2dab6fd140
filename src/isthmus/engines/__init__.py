"""Where the configurations of a sweep are computed: on executors of ``concurrent.futures``. The sweep alone writes."""

from isthmus.engines.base import Failure, Finished, Task, computed, execute
from isthmus.engines.local import Processes

__all__ = ["Failure", "Finished", "Processes", "Task", "computed", "execute"]
