"""The settings of discover: their names and defaults, what is allowed, and a line of help for each.

The function, the estimators, the command line and sweeps take theirs from here. Nothing heavy is imported: the command
line shows them in its help.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, fields
from typing import Any, Self

#: λ where `resolution` is "auto" and nothing is chosen: of autoencoders, whose rank is one at a resolution.
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
    """How :func:`isthmus.discover` looks for the rank: each is one of its arguments.

    Parameters
    ----------
    rank : "auto" or int
        A number fixes the rank; the verdict is then ``"given"``.
    max_rank : int, optional
        The largest rank to look for; by default what the data allow, at most 15.
    depth, width : int
        Layers of the network, an even number, and neurons in each.
    activation : {"auto", "smooth", "kinked"}
        SiLU, or ReLU; "auto" is SiLU, but ReLU for classes, whose boundaries have kinks. Where the reference learners
        predict clearly better, the other one is tried too.
    resolution : "auto" or float
        A coordinate must explain at least about this share of the outputs' variance (the labels' entropy): λ, relative
        to the cost of the best constant. "auto" is 0.01 for an autoencoder, and otherwise what predicts held-out rows
        best: of numbers 0.001, then 0.0001 and 0.00001 as long as the error falls by a tenth, or 0.01; of classes the
        largest of 0.1, 0.03 and 0.01 that does about as well as any. A note says which. Networks are trained with a
        ridge of λ, autoencoders with 0.4 of it, in the last fit with a tenth: held-out rows can choose none.
    replicas : int
        Further trainings from other seeds, on other divisions, at other depths, of the ranks on which the answer hangs;
        the verdict needs them to agree.
    steps : int
        Quasi-Newton steps after each narrowing, and the measure of all others; training goes on to 2.5 times as many
        where the loss still falls. Before them, from random weights, 1.2 times as many passes of Adam over the rows.
    learning_rate, init_scale : float
        Of the Adam steps before, and of the initial weights. The answer does not depend on them.
    max_samples : int
        Training rows beyond this number are used only for the last fit.
    missing : {"error", "median"}
        What to do with NaN, and masked entries, in X; the medians are kept for new rows, and a note says how many were
        filled in.
    loss : {"mse", "cross_entropy"}
        Squared error, or log loss of class labels. Held-out errors are relative to the variance of the outputs, or to
        the entropy of the labels, and so is the resolution. Each class is divided for itself. The probabilities of the
        answer are calibrated: logits are divided by a temperature fitted on the rows held out.
    units : {"auto", "own", "common"}
        Columns divided by their own standard deviation, or all by one number: for columns of one unit (pixels, a
        spectrum), where a column that hardly varies should hardly count. "auto" is "own", and where many columns vary
        about as much as their neighbours, or more than 256 inputs are given, what a quick kernel regression predicts
        best with; of these inputs it may keep a part. A note says so. Autoencoders are scaled with "own".
    input_noise : float
        Noise that is added to the inputs in the last fit, to up to four copies of each row, while outputs are left
        alone: the maps learn to undo it, the rank is not touched. In units of what one coordinate carries: its
        standard deviation in every direction is this many times (variance/rank)^½. For autoencoders.
    seed : int
        Of weights and divisions.
    """

    rank: int | str = _setting("auto", int, "Do not look for the rank: take this one.", low=1)
    max_rank: int | None = _setting(None, int, "The largest rank to look for; by default at most 15.", low=1)
    depth: int = _setting(6, int, "Layers of the network, an even number.", low=4, high=200)
    width: int = _setting(128, int, "Neurons in each layer.", low=2)
    activation: str = _setting(
        "auto", str, "SiLU, or ReLU; auto: SiLU but for classes.", choices=("auto", "smooth", "kinked")
    )
    resolution: float | str = _setting(
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
        """λ, or where it is chosen from the data the first that is tried."""
        if isinstance(self.resolution, str):
            return FIRST_STRENGTH if self.smooth else STRENGTH
        return self.resolution

    @property
    def passes(self) -> int:
        """Passes over the rows by Adam, from random weights, if that is not more than 30 times ``steps`` steps."""
        return max(1, round(1.2 * self.steps))

    @property
    def first(self) -> int:
        """Quasi-Newton steps after the Adam steps, from random weights."""
        return 2 * self.steps


#: Names of the version before.
_FORMER = {"ridge": "resolution"}


def present_name(who: str, name: str) -> str:
    """The present name of a setting; a name of the version before gives a warning."""
    if name not in _FORMER:
        return name
    now = _FORMER[name]
    warnings.warn(f"{who}: `{name}` is now called `{now}`; the old name goes in the next version.", FutureWarning, 3)
    return now


_FIELDS = {one.name: one for one in fields(Settings)}

#: Name of every setting → type of its values.
KINDS: dict[str, type] = {name: one.metadata["kind"] for name, one in _FIELDS.items()}

#: Name of every setting → a line of help.
HELP: dict[str, str] = {name: one.metadata["help"] for name, one in _FIELDS.items()}
