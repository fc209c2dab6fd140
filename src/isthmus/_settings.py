"""The settings of discover: their names and defaults, what is allowed, and a line of help for each.

The function, the estimators, the command line and sweeps take theirs from here. Nothing heavy is imported: the command
line shows them in its help.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Self

#: λ where `ridge` is "auto" and nothing is chosen: of autoencoders, whose rank is one at a resolution.
STRENGTH = 0.01

#: The first λ that is tried where it is chosen by the held-out error.
FIRST_STRENGTH = 1e-3

#: The largest rank looked for unless `max_rank` asks for more.
MAX_RANK = 15


def _setting(default: Any, kind: type, help: str, **allowed: Any) -> Any:  # noqa: A002 - the word of every command line
    """A field whose values are of type ``kind``; a default of another type ("auto", None) is allowed too."""
    return field(default=default, metadata={"kind": kind, "help": help, "allowed": allowed})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How :func:`isthmus.discover` looks for the rank; each is one of its arguments, and explained there."""

    rank: int | str = _setting("auto", int, "Do not look for the rank: take this one.", low=1)
    max_rank: int | None = _setting(None, int, "The largest rank to look for; by default at most 15.", low=1)
    depth: int = _setting(6, int, "Layers of the network, an even number.", low=4, high=200)
    width: int = _setting(128, int, "Neurons in each layer.", low=2)
    activation: str = _setting(
        "auto", str, "SiLU, or ReLU; auto: SiLU but for classes.", choices=("auto", "smooth", "kinked")
    )
    ridge: float | str = _setting(
        "auto",
        float,
        "The share of variance a coordinate must explain; auto: what predicts best.",
        low=0.0,
        high=1.0,
        low_open=True,
    )
    replicas: int = _setting(1, int, "Further walks that must agree.", low=0)
    steps: int = _setting(50, int, "Quasi-Newton steps after each narrowing.", low=1)
    learning_rate: float = _setting(4e-3, float, "Of the Adam steps before.", low=0.0, low_open=True)
    init_scale: float = _setting(1.0, float, "Of the initial weights.", low=0.0, low_open=True)
    max_samples: int = _setting(5000, int, "Training rows beyond this number serve only for the last fit.", low=2)
    missing: str = _setting("error", str, "Gaps in X: refuse, or put medians.", choices=("error", "median"))
    loss: str = _setting("mse", str, "Squared error, or log loss of labels.", choices=("mse", "cross_entropy"))
    units: str = _setting(
        "auto",
        str,
        "Columns are scaled each by itself, or alike; auto: by what predicts.",
        choices=("auto", "own", "common"),
    )
    input_noise: float = _setting(0.0, float, "Noise that the last fit adds to copies of the inputs.", low=0.0)
    seed: int = _setting(0, int, "Of weights and divisions.", low=0, high=2**62)

    def __post_init__(self) -> None:
        for name in KINDS:
            # What the data allow is not known here: discover checks the rank itself.
            if name != "rank":
                object.__setattr__(self, name, self.check("discover", name, getattr(self, name)))

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """The settings of these names, or fail and list the valid ones."""
        from isthmus._checks import fail

        for name in given:
            if name not in KINDS:
                fail("discover", f"settings must be among {', '.join(KINDS)}", repr(name), "Choose one of these.")
        return cls(**given)

    @staticmethod
    def check(who: str, name: str, value: Any) -> Any:
        """``value`` if the setting ``name`` may have it, as a plain number where it is one, or fail."""
        from isthmus._checks import check_choice, check_integer, check_number, fail

        known = _FIELDS[name]
        if known.metadata["kind"] is str:
            check_choice(who, name, value, known.metadata["allowed"]["choices"])
            return value
        if (value is None or isinstance(value, str)) and value == known.default:
            return value
        checked = check_integer if known.metadata["kind"] is int else check_number
        value = checked(who, name, value, **known.metadata["allowed"])
        if name == "depth" and value % 2:
            fail(who, "`depth` must be even: half of the layers encode, half decode", value, f"Pass {value + 1}.")
        return value

    @property
    def smooth(self) -> bool:
        """Whether activations are SiLU: boundaries between classes have kinks, most functions of numbers have none."""
        return self.activation == "smooth" or (self.activation == "auto" and self.loss == "mse")

    @property
    def strength(self) -> float:
        """λ, or where it is chosen the first that is tried."""
        if isinstance(self.ridge, str):
            return FIRST_STRENGTH if self.smooth else STRENGTH
        return self.ridge

    @property
    def passes(self) -> int:
        """Passes over the rows by Adam, from random weights, if that is not more than 30 times ``steps`` steps."""
        return max(1, round(1.2 * self.steps))

    @property
    def first(self) -> int:
        """Quasi-Newton steps after these."""
        return 2 * self.steps


_FIELDS = {one.name: one for one in fields(Settings)}

#: Name of every setting → type of its values.
KINDS: dict[str, type] = {name: one.metadata["kind"] for name, one in _FIELDS.items()}

#: Name of every setting → a line of help.
HELP: dict[str, str] = {name: one.metadata["help"] for name, one in _FIELDS.items()}
