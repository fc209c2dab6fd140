"""isthmus: the bottleneck rank of deep networks.

Public names load on first use, so that ``isthmus --help`` does not wait for PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from isthmus._errors import (
    ConvergenceWarning,
    DataError,
    FileFormatError,
    IsthmusError,
    NumericalWarning,
)

if TYPE_CHECKING:
    from isthmus import (
        claims,
        compression,
        constructions,
        datasets,
        diagnosis,
        discovery,
        experiments,
        linalg,
        measures,
        networks,
        objective,
        problems,
        reformulations,
        sweeps,
        training,
    )
    from isthmus.claims import Verdicts, verify
    from isthmus.compression import Compressed, compress, rebalance
    from isthmus.diagnosis import Diagnosis, History, Monitor, Symmetry, diagnose, diagnose_checkpoints, symmetry
    from isthmus.discovery import (
        DepthRange,
        Discovery,
        Dynamics,
        Plateau,
        RankProfile,
        depth_range,
        discover,
        dynamics_of,
        loss_plateau,
    )
    from isthmus.estimators import BottleneckAutoencoder, BottleneckClassifier, BottleneckRegressor
    from isthmus.files import load, save
    from isthmus.measures import Mechanics, mechanics
    from isthmus.networks import (
        ConvolutionalNet,
        FullyConnected,
        LeakyResNet,
        Network,
        SmoothNetwork,
        Standardized,
        from_torch,
    )
    from isthmus.objective import cost, ridge_from
    from isthmus.report import save_report
    from isthmus.runs import Run
    from isthmus.sweeps import SweepResult, sweep
    from isthmus.trace import Trace
    from isthmus.training import TrainingResult, train

__version__ = "0.1.0.dev0"

_MODULES = (
    "claims",
    "compression",
    "constructions",
    "datasets",
    "diagnosis",
    "discovery",
    "experiments",
    "linalg",
    "measures",
    "networks",
    "objective",
    "problems",
    "reformulations",
    "sweeps",
    "training",
)

_NAMES = {
    "BottleneckAutoencoder": "isthmus.estimators",
    "BottleneckClassifier": "isthmus.estimators",
    "BottleneckRegressor": "isthmus.estimators",
    "Network": "isthmus.networks",
    "SmoothNetwork": "isthmus.networks",
    "Standardized": "isthmus.networks",
    "ConvolutionalNet": "isthmus.networks",
    "Compressed": "isthmus.compression",
    "DepthRange": "isthmus.discovery",
    "Diagnosis": "isthmus.diagnosis",
    "Discovery": "isthmus.discovery",
    "Dynamics": "isthmus.discovery",
    "FullyConnected": "isthmus.networks",
    "History": "isthmus.diagnosis",
    "LeakyResNet": "isthmus.networks",
    "Mechanics": "isthmus.measures",
    "Monitor": "isthmus.diagnosis",
    "Plateau": "isthmus.discovery",
    "RankProfile": "isthmus.discovery",
    "Run": "isthmus.runs",
    "SweepResult": "isthmus.sweeps",
    "Symmetry": "isthmus.diagnosis",
    "Trace": "isthmus.trace",
    "Verdicts": "isthmus.claims",
    "TrainingResult": "isthmus.training",
    "compress": "isthmus.compression",
    "cost": "isthmus.objective",
    "depth_range": "isthmus.discovery",
    "diagnose": "isthmus.diagnosis",
    "diagnose_checkpoints": "isthmus.diagnosis",
    "discover": "isthmus.discovery",
    "dynamics_of": "isthmus.discovery",
    "from_torch": "isthmus.networks",
    "load": "isthmus.files",
    "loss_plateau": "isthmus.discovery",
    "mechanics": "isthmus.measures",
    "rebalance": "isthmus.compression",
    "ridge_from": "isthmus.objective",
    "save": "isthmus.files",
    "save_report": "isthmus.report",
    "sweep": "isthmus.sweeps",
    "symmetry": "isthmus.diagnosis",
    "train": "isthmus.training",
    "verify": "isthmus.claims",
}

__all__ = [
    "BottleneckAutoencoder",
    "BottleneckClassifier",
    "BottleneckRegressor",
    "Network",
    "SmoothNetwork",
    "Standardized",
    "Compressed",
    "ConvergenceWarning",
    "ConvolutionalNet",
    "DataError",
    "DepthRange",
    "Diagnosis",
    "Discovery",
    "Dynamics",
    "FileFormatError",
    "FullyConnected",
    "History",
    "IsthmusError",
    "LeakyResNet",
    "Mechanics",
    "Monitor",
    "NumericalWarning",
    "Plateau",
    "RankProfile",
    "Run",
    "SweepResult",
    "Symmetry",
    "Trace",
    "TrainingResult",
    "Verdicts",
    "__version__",
    "claims",
    "compress",
    "compression",
    "constructions",
    "cost",
    "datasets",
    "depth_range",
    "diagnose",
    "diagnose_checkpoints",
    "diagnosis",
    "discover",
    "discovery",
    "dynamics_of",
    "experiments",
    "from_torch",
    "linalg",
    "load",
    "loss_plateau",
    "measures",
    "mechanics",
    "networks",
    "objective",
    "problems",
    "rebalance",
    "reformulations",
    "ridge_from",
    "save",
    "save_report",
    "sweep",
    "sweeps",
    "symmetry",
    "train",
    "training",
    "verify",
]


def __getattr__(name: str) -> object:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"isthmus.{name}")
    raise AttributeError(f"module 'isthmus' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
