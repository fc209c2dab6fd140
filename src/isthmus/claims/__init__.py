"""Executable theorems: each with both sides, its hypotheses checked, and its slack. One folder for each paper."""

import importlib
import pkgutil

from isthmus.claims._base import CLAIMS, Check, Claim, Hypothesis, Subject, Verdict, in_order
from isthmus.claims._verify import Verdicts, verify, verify_samples

# Importing a module registers its claims.
for _found in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_found.name)
in_order()

__all__ = ["CLAIMS", "Check", "Claim", "Hypothesis", "Subject", "Verdict", "Verdicts", "verify", "verify_samples"]
