"""What a trained network really uses: spectra, ranks and Jacobians at every layer of any PyTorch module."""

from isthmus.diagnosis.agreement import Evidence
from isthmus.diagnosis.checkpoints import diagnose_checkpoints
from isthmus.diagnosis.diagnose import diagnose
from isthmus.diagnosis.history import History
from isthmus.diagnosis.monitor import Monitor
from isthmus.diagnosis.ranks import Isthmus
from isthmus.diagnosis.result import Diagnosis, LayerDiagnosis, Spectrum, WeightDiagnosis
from isthmus.diagnosis.snapshot import LayerSnapshot, Snapshot, SpectrumSnapshot
from isthmus.diagnosis.symmetry import symmetry
from isthmus.diagnosis.symmetry_result import LayerOrbits, Symmetry

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
    "diagnose",
    "diagnose_checkpoints",
    "symmetry",
]
