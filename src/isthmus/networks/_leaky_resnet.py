"""M-leaky: leaky ResNets α_ℓ = (1 − ρ_ℓL̃)α_{ℓ-1} + ρ_ℓW_ℓσ(α_{ℓ-1}), from ResNets (L̃ = 0) to fully connected nets."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from isthmus._activations import Rounding
from isthmus._checks import as_matrix, check_choice, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus._errors import DataError, IsthmusError, NumericalWarning
from isthmus.measures import Mechanics, mechanics, output_depth
from isthmus.measures._identity_cost import GAMMA_SHARE
from isthmus.measures._mechanics import TOLERANCE
from isthmus.networks._direct import Direct, Shares, activate_, add_product, multiply, pull_back_
from isthmus.networks._metric import KroneckerMetric, Slot
from isthmus.networks._network import Layer, Network
from isthmus.trace import LeakyTrace, activate, activation_derivative

MAX_WIDTH = 2**20

MAX_LAYERS = 100_000

EMBEDDINGS = ("fixed", "learned")

INITS = ("identity", "gaussian")

#: Size of the Gaussian part beside the identity.
SMALL = 0.02

#: Rows on which the speed of the path is measured for adaptive steps.
ADAPT_ROWS = 1000


class LeakyStep(Layer):
    """One step α ↦ (1 − ρL̃)α + ρ(Wσ(α) + b), with parameters ``weight`` = √ρ·W and ``bias`` = √ρ·b.

    So parametrised, plain weight decay on the parameters is the regulariser Σρ‖W‖² of the papers, whatever the steps.
    """

    kind: ClassVar[str] = "leaky step"
    reading: ClassVar[str] = "the parameter √ρ·W divided by √ρ, its bias left out"
    rho: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None, rho: float, effective_depth: float, slope: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        # A buffer in double precision: 1 − ρL̃ is raised to the power L.
        self.register_buffer("rho", torch.tensor(rho, dtype=torch.float64, device=weight.device))
        self.effective_depth, self.slope = effective_depth, slope

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `.half()` and its like convert every buffer; a rounded ρ would be another network.
        length = self.rho
        super()._apply(fn, recurse)
        self.rho = length.to(self.rho.device)
        return self

    def forward(self, A: Tensor) -> Tensor:
        """The next representation, (..., w) from (..., w)."""
        rho = float(self.rho)
        branch = activate(A, self.slope) @ self.weight.mT
        if self.bias is not None:
            branch = branch + self.bias
        return (1.0 - rho * self.effective_depth) * A + math.sqrt(rho) * branch

    @property
    def W(self) -> Tensor:
        """W as the papers print it, (w, w + 1) with the bias as its last column; (w, w) without bias."""
        parameters = self.weight if self.bias is None else torch.cat([self.weight, self.bias[:, None]], 1)
        return parameters / torch.sqrt(self.rho).to(parameters)

    def as_printed(self, name: str) -> Tensor:
        """A parameter divided by √ρ: the papers' W is what steps of other lengths can be compared by."""
        parameter = self.get_parameter(name)
        return parameter / torch.sqrt(self.rho).to(parameter)

    @torch.no_grad()
    def move(self, rho: float) -> float:
        """Set another length at the same W; gives the factor by which the parameters change."""
        factor = math.sqrt(rho / float(self.rho))
        self.weight.mul_(factor)
        if self.bias is not None:
            self.bias.mul_(factor)
        self.rho.fill_(rho)
        return factor

    def extra_repr(self) -> str:
        """Shown by ``print(net)``: no length, which training may change."""
        return f"width={self.weight.shape[0]}, bias={self.bias is not None}"


@cites("hamiltonian2024", "§1.1, §3", ids=("M-leaky",))
class LeakyResNet(Network):
    """Leaky ResNet: the path ∂_pα = −L̃α + W_pσ(α), p ∈ [0, 1], on L steps, between two linear maps.

    Parameters
    ----------
    d_in, d_out : int
    width : int, default 200
        w, of every representation on the path.
    layers : int, default 20
        L, the number of steps.
    effective_depth : float, default 3.0
        L̃ ≥ 0: 0 is the plain ResNet; the larger, the more the path forgets what it does not rebuild.
    steps : {"equidistant", "irregular", "adaptive"}, default "equidistant"
        How [0, 1] is divided. Adaptive steps start equidistant and follow the speed of the path:
        :func:`isthmus.train` updates them in its first-order phases; in a loop of your own call :meth:`adapt`.
    embed : {"fixed", "learned"}, default "fixed"
        The maps R^d_in → R^w and R^w → R^d_out: random isometries that stay, or parameters that are trained (and
        count in ‖θ‖²). Fixed ones need ``width`` ≥ d_in and d_out.
    slope : float, default 0.0
        a in σ_a: 0 is ReLU, 1 a linear network.
    bias : float, default 1.0
        1: σ appends a one, so that W has a last column; 0: no bias.
    irregularity : float in [0, 1], default 0.9
        a of ``steps="irregular"``.
    adapt_every : int, default 20
        First-order steps of training between two updates of adaptive steps.
    init : {"identity", "gaussian"}, default "identity"
        ``"identity"``: W = L̃·I, which rebuilds what is positive in a representation, plus a small Gaussian part:
        ‖θ‖² begins near w·L̃², not 4L/L̃ − 2 times that (ReLU). ``"gaussian"``: the variance that keeps the size of
        representations along the path.
    init_scale : float, default 1.0
        Multiplies the Gaussian part.
    dtype, device : optional
    generator : torch.Generator, optional
        Source of the maps and the initial weights.

    Notes
    -----
    The parameters are √ρ_ℓW_ℓ, so ``ridge``·‖θ‖² is the papers' (λ/2L̃)Σρ_ℓ‖W_ℓ‖² with λ = 2L̃·ridge:
    ``ridge_from("hamiltonian2024", lam, effective_depth=…)``. A step with ρL̃ ≥ 1 turns the sign of what it leaks: this
    is named in a :class:`~isthmus.NumericalWarning`, in ``print(net)`` and in :func:`isthmus.mechanics`.

    Examples
    --------
    >>> import torch, isthmus
    >>> net = isthmus.LeakyResNet(4, 2, width=16, layers=10, generator=torch.Generator().manual_seed(0))
    >>> net(torch.ones(3, 4)).shape
    torch.Size([3, 2])
    >>> len(net.trace(torch.ones(3, 4)).representations)
    11
    """

    kind: ClassVar[str] = "a leaky ResNet"
    d_in: int
    d_out: int
    W_in: Tensor
    W_out: Tensor

    def __init__(
        self,
        d_in: int,
        d_out: int,
        width: int = 200,
        layers: int = 20,
        effective_depth: float = 3.0,
        *,
        steps: str = "equidistant",
        embed: str = "fixed",
        slope: float = 0.0,
        bias: float = 1.0,
        irregularity: float = 0.9,
        adapt_every: int = 20,
        init: str = "identity",
        init_scale: float = 1.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        who = "LeakyResNet"
        self.d_in = check_integer(who, "d_in", d_in, low=1, high=MAX_WIDTH)
        self.d_out = check_integer(who, "d_out", d_out, low=1, high=MAX_WIDTH)
        self.width = check_integer(who, "width", width, low=1, high=MAX_WIDTH)
        check_integer(who, "layers", layers, low=1, high=MAX_LAYERS)
        self.effective_depth = check_number(who, "effective_depth", effective_depth, low=0.0)
        check_choice(who, "steps", steps, RULES)
        check_choice(who, "embed", embed, EMBEDDINGS)
        self.steps, self.embed = steps, embed
        self.slope = check_number(who, "slope", slope, low=-1.0, high=1.0)
        self.bias = float(check_integer(who, "bias", int(bias) if bias in (0, 1) else bias, low=0, high=1))
        self.irregularity = check_number(who, "irregularity", irregularity, low=0.0, high=1.0)
        self.adapt_every = check_integer(who, "adapt_every", adapt_every, low=1)
        check_choice(who, "init", init, INITS)
        check_number(who, "init_scale", init_scale, low=0.0)
        if dtype is not None and not dtype.is_floating_point:
            fail(who, "`dtype` must be a real floating dtype", dtype, "Use torch.float32 or torch.float64.")
        empty = torch.device("cpu" if device is None else device).type == "meta"
        # A path made by `from_weights` can have any fixed maps, and comes back from a file as what it was.
        if embed == "fixed" and not empty and self.width < max(self.d_in, self.d_out):
            must = f"`width` must be at least {max(self.d_in, self.d_out)} (inputs and outputs) for fixed maps"
            fail(who, must, width, 'Widen the path, or pass embed="learned".')
        options: dict[str, Any] = {"dtype": dtype or torch.get_default_dtype(), "device": device}
        for name, inner in (("W_in", self.d_in), ("W_out", self.d_out)):
            Q = torch.empty(self.width, inner, **options) if empty else random_isometry(self.width, inner, generator)
            Q = (Q if name == "W_in" else Q.mT).to(**options).contiguous()
            if embed == "learned":
                self.register_parameter(name, nn.Parameter(Q))
            else:
                self.register_buffer(name, Q)
        rho = irregular(layers, self.irregularity) if steps == "irregular" else equidistant(layers)
        self.path = nn.ModuleList()
        for length in rho.tolist():
            V = torch.zeros(self.width, self.width, **options)
            scale = init_scale * self._initial_scale(length) * (1.0 if init == "gaussian" else SMALL)
            if scale > 0.0:
                V.normal_(0.0, scale, generator=generator)
            if init == "identity":
                V.diagonal().add_(math.sqrt(length) * self.effective_depth)
            b = torch.zeros(self.width, **options) if self.bias else None
            self.path.append(LeakyStep(V, b, length, self.effective_depth, self.slope))
        if not empty and self.reversing:
            warnings.warn(f"{who}: {self._reversal()}", NumericalWarning, stacklevel=2)

    def _initial_scale(self, rho: float) -> float:
        """Standard deviation of the entries of √ρW: E‖α‖² stays, with E‖σ(α)‖² = (1+a²)/2·‖α‖².

        (1−r)² + ρs²(1+a²)/2 = 1 for r = ρL̃ and entries of √ρW of variance s²/w. Without leak nothing needs to be
        rebuilt; there each step adds 1/L of the variance.
        """
        r = rho * self.effective_depth
        gain = 2.0 / (1.0 + self.slope**2)
        lost = 1.0 - (1.0 - r) ** 2 if 0.0 < r < 2.0 else rho
        return math.sqrt(gain * max(lost, rho) / rho / self.width)

    @classmethod
    def from_weights(
        cls,
        Ws: Sequence[Any],
        rho: Any,
        *,
        effective_depth: float,
        W_in: Any = None,
        W_out: Any = None,
        slope: float = 0.0,
        bias: float = 1.0,
        steps: str = "equidistant",
        embed: str = "fixed",
    ) -> Self:
        """A network with copies of the weights W_1 … W_L as printed, (w, w + ``bias``), and lengths ρ_1 … ρ_L.

        ``W_in`` and ``W_out`` are the identity of R^w by default.
        """
        who = "LeakyResNet.from_weights"
        tensors = [torch.as_tensor(W) for W in Ws]
        lengths = torch.as_tensor(rho, dtype=torch.float64)
        if not tensors or any(W.ndim != 2 for W in tensors):
            fail(who, "`Ws` must be one or more matrices", f"{len(tensors)} entries", "Pass W_1 … W_L.")
        width, own = tensors[0].shape[0], tensors[0]
        for index, W in enumerate(tensors):
            if tuple(W.shape) != (width, width + int(bias)):
                must = f"`Ws[{index}]` must have shape {(width, width + int(bias))}"
                fail(who, must, tuple(W.shape), "The last column is the bias.")
        if lengths.shape != (len(tensors),) or not bool(((lengths > 0) & lengths.isfinite()).all()):
            fail(who, f"`rho` must be {len(tensors)} positive lengths", f"{lengths.tolist()!r:.80}", "One for each W.")
        maps = [torch.eye(width, dtype=own.dtype) if M is None else torch.as_tensor(M) for M in (W_in, W_out)]
        for name, M, axis in (("W_in", maps[0], 0), ("W_out", maps[1], 1)):
            if M.ndim != 2 or M.shape[axis] != width:
                fail(who, f"`{name}` must be a matrix with {width} {('rows', 'columns')[axis]}", tuple(M.shape), "")
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)
            net = cls(
                maps[0].shape[1],
                maps[1].shape[0],
                width,
                len(tensors),
                effective_depth,
                steps=steps,
                embed="learned",  # without its condition on the width; changed below
                slope=slope,
                bias=bias,
                init_scale=0.0,
                dtype=own.dtype,
                device=own.device,
            )
        check_choice(who, "embed", embed, EMBEDDINGS)
        net.embed = embed
        with torch.no_grad():
            for name, M in zip(("W_in", "W_out"), maps):
                value = M.to(own).clone()
                if embed == "fixed":
                    delattr(net, name)
                    net.register_buffer(name, value)
                else:
                    getattr(net, name).copy_(value)
            for step, W, length in zip(net.stages, tensors, lengths.tolist()):
                step.rho.fill_(length)
                step.weight.copy_(math.sqrt(length) * W[:, :width])
                if step.bias is not None:
                    step.bias.copy_(math.sqrt(length) * W[:, width])
        return net

    @classmethod
    @cites("hamiltonian2024", "§1.1, traditional ResNet", ids=("M-resnet",))
    def from_resnet(
        cls,
        Vs: Sequence[Any],
        bs: Sequence[Any] | None = None,
        *,
        W_in: Any = None,
        W_out: Any = None,
        slope: float = 0.0,
    ) -> Self:
        """The plain ResNet α_ℓ = α_{ℓ-1} + V_ℓσ(α_{ℓ-1}) + b_ℓ: L̃ = 0, equidistant steps, W_ℓ = L·V_ℓ.

        Its parameters are √L·V_ℓ: where ‖V‖² was penalised by ``ridge``, ``ridge``/L is the one of this network. Blocks
        of two matrices, α + Vσ(Uα), are not of this form.

        Parameters
        ----------
        Vs : sequence of arrays (w, w)
        bs : sequence of arrays (w,), optional
        W_in, W_out : array (w, d_in), (d_out, w), optional
            The identity by default.
        slope : float
        """
        L = len(Vs)
        Ws = [L * torch.as_tensor(V) for V in Vs]
        if bs is not None:
            Ws = [torch.cat([W, L * torch.as_tensor(b)[:, None]], 1) for W, b in zip(Ws, bs, strict=True)]
        options = {"W_in": W_in, "W_out": W_out, "slope": slope, "bias": 0.0 if bs is None else 1.0}
        return cls.from_weights(Ws, [1.0 / max(L, 1)] * L, effective_depth=0.0, **options)

    @property
    def stages(self) -> tuple[LeakyStep, ...]:
        """The steps as modules."""
        return tuple(step for step in self.path if isinstance(step, LeakyStep))

    @property
    def layers(self) -> int:
        """L, the number of steps."""
        return len(self.path)

    @property
    def rho(self) -> Tensor:
        """ρ_1 … ρ_L, (L,), a copy."""
        return torch.stack([step.rho for step in self.stages]).double()

    @property
    def Ws(self) -> tuple[Tensor, ...]:
        """W_1 … W_L as printed, (w, w + 1) with the bias as last column: functions of the parameters √ρW."""
        return tuple(step.W for step in self.stages)

    @property
    def reversing(self) -> tuple[int, ...]:
        """Steps ℓ (from 1) with ρ_ℓL̃ ≥ 1, where the leak turns the sign of the representation."""
        leak = self.rho * self.effective_depth
        return tuple(int(index) + 1 for index in torch.nonzero(leak >= 1.0 - 1e-12))

    def _reversal(self) -> str:
        worst = float((self.rho * self.effective_depth).max())
        return (
            f"ρ·L̃ ≥ 1 in {len(self.reversing)} of {self.layers} steps (largest {worst:.3g}): the factor 1 − ρL̃ is not "
            f"positive there. Take more than {math.floor(self.effective_depth)} layers, or a smaller effective_depth"
        )

    def forward(self, X: Tensor) -> Tensor:
        """f(X), (..., d_out) from (..., d_in)."""
        A = X @ self.W_in.mT
        for step in self.path:
            A = step(A)
        return A @ self.W_out.mT

    @torch.no_grad()
    def adapt(self, X: Tensor) -> dict[nn.Parameter, float]:
        """One update of adaptive steps by the speeds of the path on ``X``, at the same W; nothing for other rules.

        Returns
        -------
        dict
            The factors √(ρ_new/ρ_old) by which the parameters of each step were multiplied; empty without update.
        """
        if self.steps != "adaptive":
            return {}
        A = X[:: max(1, -(-len(X) // ADAPT_ROWS))] @ self.W_in.mT
        speeds = []
        for step in self.stages:
            last, A = A, step(A)
            size = float(A.norm())
            speeds.append(float((A - last).norm()) / (float(step.rho) * size) if size > 0 else math.inf)
        rho = self.rho
        new = adapted(rho, torch.tensor(speeds, dtype=torch.float64, device=rho.device), self.effective_depth)
        moved = [(step, step.move(length)) for step, length in zip(self.stages, new.tolist())]
        return {parameter: factor for step, factor in moved for parameter in step.parameters()}

    @torch.no_grad()
    def trace(self, X: Any, *, dtype: torch.dtype | None = torch.float64) -> LeakyTrace:
        """Weights and the path of representations on ``X``, in float64 by default (``dtype=None``: the module's)."""
        own = self.W_in
        kind = own.dtype if dtype is None else dtype
        inputs = as_matrix("trace", "X", X, columns=self.d_in, dtype=kind, device=own.device)
        if isinstance(X, Tensor) and inputs.data_ptr() == X.data_ptr():
            inputs = inputs.clone()
        Ws = tuple(step.W.detach().to(kind, copy=True) for step in self.stages)
        rho = self.rho
        path = [inputs @ self.W_in.to(kind).mT]
        for ell, (W, length) in enumerate(zip(Ws, rho.tolist()), start=1):
            A = path[-1]
            branch = activate(A, self.slope) @ W[:, : self.width].mT
            if self.bias:
                branch = branch + W[:, self.width]
            path.append((1.0 - length * self.effective_depth) * A + length * branch)
            if not bool(torch.isfinite(path[-1]).all()):
                fix = f"Check the weights up to step {ell}, or scale X."
                got = f"NaN or infinite values at step {ell}"
                fail("trace", "representations must be finite", got, fix, error=DataError)
        W_in, W_out = (M.detach().to(kind, copy=True) for M in (self.W_in, self.W_out))
        return LeakyTrace(
            Ws=Ws,
            rho=rho.to(kind),
            representations=tuple(path),
            effective_depth=self.effective_depth,
            W_in=W_in,
            W_out=W_out,
            inputs=inputs,
            outputs=path[-1] @ W_out.mT,
            slope=self.slope,
            bias=self.bias,
            source_eps=torch.finfo(own.dtype).eps,
        )

    def to_torch(self) -> nn.Module:
        """A copy of itself: PyTorch has no layer that leaks."""
        return copy.deepcopy(self)

    def config(self) -> dict[str, Any]:
        """What the constructor takes, except the initial weights."""
        names = ("d_in", "d_out", "width", "layers", "effective_depth", "steps", "embed", "slope", "bias")
        found = {name: getattr(self, name) for name in (*names, "irregularity", "adapt_every")}
        return {**found, "bias": int(self.bias)}

    @classmethod
    def upgrade(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Files once had lists of weights, biases and lengths of steps."""
        rho = tensors.get("rho")
        if rho is None or rho.ndim != 1:
            return config, tensors
        found = {name: T for name, T in tensors.items() if name.startswith("W_")}
        for name, T in tensors.items():
            kind, _, index = name.partition(".")
            if kind in ("weights", "biases"):
                found[f"path.{index}.{'weight' if kind == 'weights' else 'bias'}"] = T
        return config, found | {f"path.{i}.rho": length.clone() for i, length in enumerate(rho)}

    @classmethod
    def fewest_tensors(cls, config: Mapping[str, Any]) -> int:
        """Two for each step."""
        layers = config.get("layers", 20)
        return 2 * layers if isinstance(layers, int) else 0

    def check_state(self, who: str) -> None:
        """Lengths of steps are positive and sum to 1."""
        rho = self.rho
        if not bool(torch.isfinite(rho).all()) or not bool((rho > 0).all()) or abs(float(rho.sum()) - 1.0) > 1e-6:
            fail(
                who, "`rho` must be positive lengths that sum to 1", f"sum {float(rho.sum()):g}", "Divide by their sum."
            )

    # ---------------------------------------------------------------- hooks

    @property
    def _plain(self) -> bool:
        """Whether the forward pass is that of this class: a subclass may have another one."""
        return type(self).forward is LeakyResNet.forward and all(p.requires_grad for p in self.parameters())

    def direct(self, loss: str, values: Sequence[Tensor], gradients: Sequence[Tensor], rows: int) -> DirectLeaky | None:
        """Training steps without autograd, for one network with a slope in [0, 1]."""
        possible = self._plain and 0.0 <= self.slope <= 1.0 and values[0].ndim == 2
        return DirectLeaky(self, loss, values, gradients, rows) if possible else None

    def metric(self, loss: str) -> LeakyMetric | None:
        """A metric of all steps, and of the maps in and out where they are learned."""
        return LeakyMetric(self, loss) if self._plain else None

    def about(self) -> str:
        """Its number of steps, in words."""
        return f"a leaky ResNet of {self.layers} steps"

    def representations(self, X: Tensor) -> dict[int, Tensor]:
        """A_0 … A_L."""
        return dict(enumerate(self.trace(X).representations))

    def numbers(self, X: Tensor) -> dict[str, Any]:
        """The effective depth that corresponds to the outputs of a plain ResNet."""
        return {"output_depth": output_depth(self, X)} if self.effective_depth == 0.0 else {}

    def mechanics(self, X: Tensor, Y: Tensor, *, ridge: float, loss: str) -> Mechanics:
        """The Mechanics of the path; "not applicable", with the reason, where it cannot be computed."""
        try:
            return mechanics(self, X, Y, ridge=ridge, loss=loss)
        except IsthmusError as problem:
            reason = str(problem).removeprefix("mechanics: ").removeprefix("trace: ").rstrip(".")
            fixed = {"gamma_share": GAMMA_SHARE, "tolerance": TOLERANCE, "samples": len(X), "arrays": None}
            return Mechanics("not applicable", reason, self.effective_depth, ridge, **fixed)

    def carrying_norm(self) -> float:
        """‖θ‖² with which one dimension is carried from inputs to outputs: L̃², at least 1."""
        return max(1.0, self.effective_depth**2)

    def adapt_interval(self) -> int:
        """Training steps between two adaptations of the step lengths; 0 for none."""
        return self.adapt_every if self.steps == "adaptive" else 0

    def extra_repr(self) -> str:
        """Shown by ``print(net)``."""
        shown = (
            f"{self.d_in} → {self.width} → {self.d_out}, layers={self.layers}, "
            f"effective_depth={self.effective_depth:g}, steps={self.steps!r}, embed={self.embed!r}, "
            f"slope={self.slope:g}, bias={self.bias:g}"
        )
        return f"{shown}; {self._reversal()}" if self.reversing else shown


def random_isometry(width: int, inner: int, generator: torch.Generator | None) -> Tensor:
    """A random matrix (w, inner) with orthonormal columns, or rows where it is wide."""
    G = torch.randn(max(width, inner), min(width, inner), generator=generator, dtype=torch.float64)
    Q = torch.linalg.qr(G).Q
    return Q if width >= inner else Q.mT


# ---- How a leaky ResNet divides [0, 1] into steps ρ_1 … ρ_L: equidistant, irregular, adaptive


RULES = ("equidistant", "irregular", "adaptive")

#: An adaptive step is never shorter than this share of 1/L …
FLOOR = 0.1

#: … and never longer than this many times 1/L, or this share of 1/L̃, whichever is shorter.
CEILING = 4.0

LEAK = 0.9


@cites("hamiltonian2024", "§3, equidistant", ids=("M-leaky",))
def equidistant(layers: int) -> Tensor:
    """ρ_ℓ = 1/L."""
    check_integer("equidistant", "layers", layers, low=1)
    return torch.full((layers,), 1.0 / layers, dtype=torch.float64)


@cites("hamiltonian2024", "§3, irregular", ids=("M-leaky",))
def irregular(layers: int, irregularity: float = 0.9) -> Tensor:
    """ρ_ℓ = 1/L + (a/L)(1/4 − |ℓ/L − 1/2|), renormalised: short near the inputs and outputs, long in the middle.

    Departs from the paper: the printed sum is 1 only for even L, and 1 − a/(4L²) for odd L; here it is always 1.
    """
    check_integer("irregular", "layers", layers, low=1)
    check_number("irregular", "irregularity", irregularity, low=0.0, high=1.0)
    ell = torch.arange(1, layers + 1, dtype=torch.float64)
    rho = (1.0 + irregularity * (0.25 - (ell / layers - 0.5).abs())) / layers
    return rho / rho.sum()


def limits(layers: int, effective_depth: float) -> tuple[float, float]:
    """(floor, ceiling) of an adaptive step: the ceiling keeps ρ·L̃ < 1 wherever L steps can do so at all."""
    ceiling = CEILING / layers
    if effective_depth > 0:
        ceiling = min(ceiling, LEAK / effective_depth)
    # With few steps for a large L̃ no division has all ρ·L̃ < 1: then a little more than 1/L is the best there is.
    return FLOOR / layers, max(ceiling, 1.5 / layers)


def bounded(shares: Tensor, low: float, high: float) -> Tensor:
    """Positive ``shares`` scaled to the sum 1 with every entry in [low, high]: clip, and spread the rest.

    Parameters
    ----------
    shares : Tensor (L,), positive
    low, high : float
        L·low ≤ 1 ≤ L·high.
    """
    rho = shares / shares.sum()
    count = len(rho)
    if not low * count <= 1.0 <= high * count:
        fail("bounded", f"{count} steps must be able to sum to 1", f"limits {low:g} and {high:g}", "Widen the limits.")
    # clip(c·shares) has a sum that rises with c: bisection on log c, to the last bit.
    lower, upper = low / float(rho.max()), high / float(rho.min())
    values = rho.numpy(force=True)
    for _ in range(200):
        middle = (lower * upper) ** 0.5
        if middle in (lower, upper):
            break
        if np.clip(values * middle, low, high).sum() < 1.0:
            lower = middle
        else:
            upper = middle
    rho = (rho * upper).clamp(low, high)
    return rho / rho.sum()


@cites("hamiltonian2024", "§3, adaptive", ids=("M-leaky",))
def adapted(rho: Tensor, speeds: Tensor, effective_depth: float, *, damping: float = 0.5) -> Tensor:
    """New steps ρ_ℓ ∝ 1/c_ℓ for the speeds c_ℓ = ‖A_ℓ − A_{ℓ-1}‖/(ρ_ℓ‖A_ℓ‖), part of the way from the old ones.

    Departs from the paper: damped (a geometric mean of old and new, so that steps and weights do not chase each other)
    and bounded (c → 0 in a collapsed layer would otherwise take all of [0, 1]). Speeds that are not finite or all zero
    leave the steps as they are.

    Parameters
    ----------
    rho, speeds : Tensor (L,)
    damping : float in [0, 1)
        Share of the old logarithms kept.
    """
    if not bool(torch.isfinite(speeds).all()) or float(speeds.max()) <= 0.0:
        return rho
    old = rho.double()
    # A speed a million times below the largest says no more than "slow".
    target = 1.0 / (speeds.double() / float(speeds.max())).clamp_min(1e-6)
    shares = old**damping * (target / target.sum()) ** (1.0 - damping)
    low, high = limits(len(rho), effective_depth)
    return bounded(shares, low, high).to(rho)


# ---- Cost and gradient without a graph, and the metric


class DirectLeaky(Direct):
    """A leaky ResNet; parameters: the maps in and out where they are learned, then √ρW and √ρb of each step.

    (1 − ρL̃)α + √ρ(Vσ(α) + b) is one matrix product added to a multiple of α in place.
    """

    def __init__(
        self, net: LeakyResNet, loss: str, values: Sequence[Tensor], gradients: Sequence[Tensor], rows: int
    ) -> None:
        super().__init__(loss, values, rows, len(net.W_out))
        self.net = net
        self.memories = [self.take_memory(net.width) for _ in range(net.layers)]
        self.paths = [self.take_memory(net.width) for _ in range(2)]
        self.set_rounding(())
        self.bind(values, gradients)

    def set_rounding(self, rounded: Sequence[Rounding]) -> None:
        """Replace kinks by parabolas: one Rounding for each step, none restores the kinks."""
        self.round_off([self.net.slope] * self.net.layers, rounded)

    def bind(self, values: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """The maps where they are learned, then weight and bias of each step in turn."""
        net, repeat = self.net, self.rows.repeat
        own, each = 2 if net.embed == "learned" else 0, 2 if net.bias else 1
        kinds = gradients[:own], gradients[own::each], gradients[own + 1 :: each] if net.bias else []
        self.shares = Shares(kinds, self.blocks)
        self.W_in, self.W_out = (repeat(W) for W in values[:own] or (net.W_in, net.W_out))
        self.Vs, self.biases = [repeat(V) for V in values[own::each]], values[own + 1 :: each] if net.bias else []
        self.map_gradients, self.weight_gradients, biases = self.shares.kinds
        self.bias_gradients = [g[..., None, :] for g in biases]
        self.transposed = [V.mT for V in self.Vs]
        self.lengths: list[tuple[float, float]] = []
        # For the rows of a call: whole, and divided into blocks.
        self.X = self.like
        self.activations: list[tuple[Tensor, Tensor]] = []
        self.rooms: list[tuple[Tensor, Tensor]] = []

    def shape(self) -> None:
        """Activations and the two ends of a step."""
        width, total = self.net.width, self.rows.total
        whole = [[self.part(memory, width, total) for memory in kind] for kind in (self.memories, self.paths)]
        self.activations, self.rooms = ([(A, self.rows.divide(A)) for A in kind] for kind in whole)

    def take(self, X: Tensor) -> None:
        """Copy X (count, c) into blocks of rows."""
        self.X = self.rows.fill(X)

    def forward(self) -> None:
        """From the beginning of the path to its end."""
        net = self.net
        # Lengths can change between two calls.
        self.lengths = [(1.0 - rho * net.effective_depth, math.sqrt(rho)) for rho in net.rho.tolist()]
        A, divided = self.rooms[0]
        multiply(self.X, self.W_in.mT, divided)
        for index, (V, (S, inputs), (keep, root)) in enumerate(zip(self.transposed, self.activations, self.lengths)):
            rounding = self.rounded[index]
            if net.slope == 0.0 and rounding is None:
                torch.clamp_min(A, 0.0, out=S)
            else:
                activate_(S.copy_(A), net.slope, rounding)
            add_product(divided, inputs, V, beta=keep, alpha=root)
            if self.biases:
                A.add_(self.biases[index], alpha=root)
        multiply(divided, self.W_out.mT, self.divided)

    def backward(self, G: Tensor, *, beta: float) -> None:
        """From the end of the path to its beginning."""
        (whole, here), (other_whole, other) = self.rooms
        if self.map_gradients:
            add_product(self.map_gradients[1], G.mT, here, beta=beta)
        # The end of the path is not needed any more, and is overwritten.
        G = multiply(G, self.W_out, here)
        for index in range(len(self.Vs) - 1, -1, -1):
            (S, inputs), (keep, root) = self.activations[index], self.lengths[index]
            add_product(self.weight_gradients[index], G.mT, inputs, beta=beta, alpha=root)
            if self.bias_gradients:
                add_product(self.bias_gradients[index], self.ones, G, beta=beta, alpha=root)
            add_product(other, G, self.Vs[index], beta=0.0, alpha=root)
            pull_back_(other_whole, S, self.net.slope, self.rounded[index])
            other_whole.add_(whole, alpha=keep)
            (whole, G), (other_whole, other) = (other_whole, other), (whole, G)
        if self.map_gradients:
            add_product(self.map_gradients[0], G.mT, self.X, beta=beta)


class LeakyMetric(KroneckerMetric):
    """The metric of a leaky ResNet, its curvature multiplied by the number L of steps.

    Every step can correct the outputs alone; if each did, the correction would be L times too large. For any residual
    ‖Σ_ℓJ_ℓδ_ℓ‖² ≤ LΣ‖J_ℓδ_ℓ‖², so that L times the block diagonal bounds the Gauss–Newton matrix from above, and
    directions with nothing but the ridge keep their full step. Its Kronecker form is no bound any more (off by 4 to 6
    in docs/notes/criticality.md): a line search is needed.
    """

    def __init__(self, net: LeakyResNet, loss: str) -> None:
        super().__init__(loss)
        self.net = net
        self.coupling = float(net.layers + (2 if net.embed == "learned" else 0))
        self.shapes = [tuple(p.shape) for p in net.parameters()]

    def layout(self) -> list[Slot]:
        """The maps where they are learned, then weight and bias of each step in turn."""
        found, at = [], 0
        for index, shape in enumerate(self.shapes):
            if len(shape) == 2:
                biased = self.net.bias and index >= len(self.shapes) - 2 * self.net.layers
                found.append(Slot(shape[0], shape[1], at, at + math.prod(shape) if biased else None))
            at += math.prod(shape)
        return found

    def factors(
        self, theta: Tensor, X: Tensor, generators: Sequence[torch.Generator]
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """From the last step to the first."""
        matrices = self.matrices(theta)
        count = self.net.layers
        learned = len(matrices) - count
        W_in, W_out = matrices[:2] if learned else (self.net.W_in, self.net.W_out)
        L_tilde, width, slope = self.net.effective_depth, self.net.width, self.net.slope
        rho = self.net.rho.tolist()
        path, inputs = [X @ W_in.mT], []
        for M, length in zip(matrices[learned:], rho):
            S = activate(path[-1], slope)
            inputs.append(torch.cat([S, torch.ones_like(S[:, :1])], 1) if self.net.bias else S)
            path.append((1.0 - length * L_tilde) * path[-1] + math.sqrt(length) * (inputs[-1] @ M.mT))
        c = self.cotangents(path[-1] @ W_out.mT, generators)
        g = c @ W_out
        if learned:
            yield 2, path[-1], c
        for ell in range(count, 0, -1):
            length = rho[ell - 1]
            pulled = math.sqrt(length) * g
            yield learned + ell, inputs[ell - 1], pulled
            back = pulled @ matrices[learned + ell - 1][:, :width]
            g = (1.0 - length * L_tilde) * g + back * activation_derivative(path[ell - 1], slope)
        if learned:
            yield 1, X, g
