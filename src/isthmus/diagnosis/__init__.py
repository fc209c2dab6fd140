"""What a trained network really uses: spectra, ranks and Jacobians at every layer of any PyTorch module."""

from isthmus.diagnosis._diagnose import diagnose
from isthmus.diagnosis._history import History, LayerSnapshot, Snapshot, SpectrumSnapshot
from isthmus.diagnosis._monitor import Monitor, diagnose_checkpoints
from isthmus.diagnosis._ranks import Evidence, Isthmus
from isthmus.diagnosis._result import Diagnosis, LayerDiagnosis, Spectrum, WeightDiagnosis
from isthmus.diagnosis._symmetry import LayerOrbits, Symmetry, symmetry
from isthmus.diagnosis._weights import WeightedLayer, weight_spectrum, weighted_layers

__all__ = [
    "Diagnosis",
    "Evidence",
    "History",
    "Isthmus",
    "LayerDiagnosis",
    "LayerOrbits",
    "LayerSnapshot",
    "Monitor",
    "Snapshot",
    "Spectrum",
    "SpectrumSnapshot",
    "Symmetry",
    "WeightDiagnosis",
    "WeightedLayer",
    "diagnose",
    "diagnose_checkpoints",
    "symmetry",
    "weight_spectrum",
    "weighted_layers",
]
