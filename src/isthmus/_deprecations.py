"""Parameters under their names of the version before: accepted for one version, with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def renamed(**names: str) -> Callable[[_Function], _Function]:
    """Accept keyword arguments under former names: ``renamed(old="new")``, with a FutureWarning for each.

    A FutureWarning, because Python shows DeprecationWarnings only to those who run their code as the main program.

    Examples
    --------
    >>> import warnings
    >>> @renamed(show="progress")
    ... def f(progress=False):
    ...     return progress
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     f(show=True), str(caught[0].message)
    (True, 'f: `show` is now called `progress`; the old name goes in the next version.')
    """

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            for old, new in names.items():
                if old in options:
                    who = function.__qualname__.removesuffix(".__init__")
                    if new in options:
                        raise TypeError(f"{who}: got both `{new}` and `{old}`, its former name.")
                    message = f"{who}: `{old}` is now called `{new}`; the old name goes in the next version."
                    warnings.warn(message, FutureWarning, stacklevel=2)
                    options[new] = options.pop(old)
            return function(*args, **options)

        return call  # type: ignore[return-value]

    return decorate
