"""The live page: a folder of runs, watched without changing it, on a loopback address of this machine."""

from isthmus.serving.server import serve
from isthmus.serving.watcher import Watcher

__all__ = ["Watcher", "serve"]
