"""The errors and warnings a user can meet. No heavy import: the command line reads this file alone."""

from __future__ import annotations


class IsthmusError(ValueError):
    """Every error raised on purpose by this library."""


class DataError(IsthmusError):
    """The data, or a file that holds it, cannot be used as it is."""


class FileFormatError(DataError):
    """A file is damaged, hostile, or not of the kind expected."""


class NumericalWarning(UserWarning):
    """A result was obtained, but a computation behind it met a named difficulty."""


class ConvergenceWarning(UserWarning):
    """An iteration stopped before its criterion was met; the result says so in its ``state``."""
