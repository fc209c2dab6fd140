"""Input checks. One error pattern: who, what must hold, what came, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from isthmus._errors import DataError, IsthmusError

#: Numbers beyond have no square in float64, with room for sums of many.
LARGEST = 1e150
#: torch takes 64 bits; offsets are added to it.
MAX_SEED = 2**62


def fail(who: str, must: str, got: object, do: str, *, error: type[IsthmusError] = IsthmusError) -> NoReturn:
    """Raise ``error`` with the one message pattern of the library.

    Examples
    --------
    >>> fail("compress", "`rank` must be in [1, 64]", 80, "Lower `rank`.")
    Traceback (most recent call last):
        ...
    isthmus._errors.IsthmusError: compress: `rank` must be in [1, 64]. Got 80. Lower `rank`.
    """
    text = str(got)
    if len(text) > 300:
        text = text[:300] + "…"
    raise error(f"{who}: {must}. Got {text}. {do}")


def check_choice(who: str, name: str, value: object, valid: Iterable[object]) -> None:
    """Fail unless ``value`` is one of ``valid``; the message lists them."""
    valid = list(valid)
    if value not in valid:
        shown = ", ".join(repr(v) for v in valid)
        fail(who, f"`{name}` must be one of {shown}", repr(value), "Choose one of these.")


def check_number(
    who: str,
    name: str,
    value: object,
    *,
    low: float = -float("inf"),
    high: float = float("inf"),
    low_open: bool = False,
) -> float:
    """Return ``value`` as a finite float in [low, high] (or (low, high]), or fail."""
    left = "(" if low_open else "["
    must = f"`{name}` must be a finite number in {left}{low:g}, {high:g}]"
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        fail(who, must, f"{type(value).__name__} {value!r}", "Pass a number.")
    number = float(value)
    if not np.isfinite(number) or number > high or number < low or (low_open and number == low):
        fail(who, must, repr(value), f"Choose `{name}` within that range.")
    return number


def check_integer(who: str, name: str, value: object, *, low: int, high: int | None = None) -> int:
    """Return ``value`` as an int in [low, high], or fail."""
    top = "∞" if high is None else str(high)
    must = f"`{name}` must be an integer in [{low}, {top}]"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        fail(who, must, f"{type(value).__name__} {value!r}", "Pass an integer.")
    number = int(value)
    if number < low or (high is not None and number > high):
        fail(who, must, repr(value), f"Choose `{name}` within that range.")
    return number


def check_seed(who: str, value: object) -> int:
    """Return ``value`` as a seed that every generator takes, small offsets added, or fail."""
    return check_integer(who, "seed", value, low=0, high=MAX_SEED)


def as_matrix(
    who: str,
    name: str,
    value: Any,
    *,
    columns: int | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    any_size: bool = False,
) -> Tensor:
    """Return a 2-D floating tensor (samples × features) from NumPy, pandas, torch or nested lists.

    A 1-D input is one column. Non-numeric, non-finite or empty input fails, and the message counts what is
    wrong. So do numbers whose squares overflow, unless they may be of ``any_size``.
    """
    tensor = as_tensor(who, name, value, dtype=dtype, device=device, any_size=any_size)
    if tensor.ndim == 1:
        tensor = tensor[:, None]
    if tensor.ndim != 2:
        fail(who, f"`{name}` must be 2-D (samples × features)", f"shape {tuple(tensor.shape)}", "Reshape it.")
    if 0 in tensor.shape:
        fail(
            who,
            f"`{name}` must not be empty",
            f"shape {tuple(tensor.shape)}",
            "Pass at least one row and one column.",
            error=DataError,
        )
    if columns is not None and tensor.shape[1] != columns:
        fail(
            who,
            f"`{name}` must have {columns} columns",
            f"shape {tuple(tensor.shape)}",
            "Pass samples as rows and features as columns.",
        )
    return tensor


def without_mask(value: Any) -> Any:
    """A masked array as a plain one with NaN where it is masked; anything else as it is."""
    if not np.ma.is_masked(value):
        return value
    return np.where(np.ma.getmaskarray(value), np.nan, np.ma.getdata(value).astype(np.float64))


def as_tensor(
    who: str,
    name: str,
    value: Any,
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    any_size: bool = False,
) -> Tensor:
    """Return a detached, finite floating tensor of ``dtype`` from anything array-like."""
    if isinstance(value, Tensor):
        given = value.detach()
        if given.is_complex():
            fail(who, f"`{name}` must be real", f"dtype {given.dtype}", "Pass its real and imaginary parts.")
    else:
        try:
            array = np.asarray(without_mask(value))
        except ValueError:
            fail(
                who,
                f"`{name}` must be an array",
                "rows of unequal length",
                "Make it rectangular.",
                error=DataError,
            )
        if array.dtype.kind in "OUS":
            try:
                array = array.astype(np.float64)
            except (TypeError, ValueError):
                fail(
                    who,
                    f"`{name}` must be numeric",
                    f"dtype {array.dtype}",
                    "Encode text columns as numbers or drop them.",
                    error=DataError,
                )
        if array.dtype.kind not in "fiub":
            fail(
                who,
                f"`{name}` must be real numbers",
                f"dtype {array.dtype}",
                "Convert it to float.",
                error=DataError,
            )
        # A copy: read-only and negatively strided arrays are legal NumPy and not legal torch.
        given = torch.from_numpy(np.array(array, dtype=np.float64))
    tensor = given.to(dtype=dtype, device=device)
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        overflowing = bad - int((~torch.isfinite(given)).sum())
        what = f"beyond the largest number of {str(dtype).removeprefix('torch.')}" if overflowing else "NaN or infinite"
        fail(
            who,
            f"`{name}` must be finite",
            f"{overflowing or bad} {what} of {tensor.numel()} values",
            "Change its unit, or mend what stands for missing." if overflowing else "Impute, clip or drop them.",
            error=DataError,
        )
    if not any_size:
        check_size(who, name, tensor)
    return tensor


def check_size(who: str, name: str, tensor: Tensor) -> None:
    """Fail if numbers are so large that sums of their squares overflow."""
    largest = float(tensor.abs().max()) if tensor.numel() and tensor.dtype == torch.float64 else 0.0
    if largest > LARGEST:
        must, do = f"`{name}` must be at most {LARGEST:g} in size", "Change its unit, or mend what stands for missing."
        fail(who, must, f"{largest:.3g}, whose square overflows", do, error=DataError)
