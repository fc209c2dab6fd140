"""Engines: where the configurations of a sweep are computed. They compute; the sweep alone writes."""

from isthmus.engines.base import Engine, Failure, Finished, Task, alone, execute

__all__ = ["Engine", "Failure", "Finished", "Task", "alone", "execute"]
