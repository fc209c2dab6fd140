"""Smaller within a tolerance on the data: fewer neurons refitted, and layers of low rank as two factors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.optimize import minimize
from torch import Tensor

from isthmus._checks import as_tensor, check_integer, check_number, fail
from isthmus.compression._draft import Draft
from isthmus.linalg import CHUNK_BYTES, chunk_rows, matrix, thin_svd
from isthmus.measures._identity_cost import fewer_columns
from isthmus.trace import activation_derivative

#: Errors of single factors that are tried, in units of the tolerance of the outputs.
ERRORS = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03)


def approximate(draft: Draft, outputs: Tensor, X: Tensor, tolerance: float) -> Draft | None:
    """The smallest of what is found within ``tolerance``·max|outputs| of ``outputs`` on X; None if nothing is smaller.

    Fewer neurons, these with factors in what is left of the tolerance, and factors alone are tried: which is smallest
    depends on the network.
    """
    fewer = with_fewer_neurons(draft, X, tolerance).draft
    tried = [fewer, with_factors(fewer, outputs, X, tolerance), with_factors(draft, outputs, X, tolerance)]
    scale = float(outputs.abs().max())
    serve = [one for one in tried if float((one(X) - outputs).abs().max()) <= tolerance * scale]
    best = min(serve, key=lambda one: one.parameters, default=draft)
    return best if best.parameters < draft.parameters else None


def with_factors(draft: Draft, outputs: Tensor, X: Tensor, tolerance: float) -> Draft:
    """The draft with layers of low rank on the data as two factors, where r(m + n) < mn; itself if nothing serves."""
    allowed = tolerance * float(outputs.abs().max())
    best = draft
    for error in ERRORS:
        trial = _factored(draft, X, error * tolerance)
        near = float((trial(X) - outputs).abs().max()) <= allowed
        if near and trial.parameters < best.parameters:
            best = trial
            break
    return best


def _factored(draft: Draft, X: Tensor, error: float) -> Draft:
    """All layers factored that can be within this error each, activations being those of the factored draft."""
    made = draft.copy()
    made.Ws, made.bs, made.biased, made.slopes, made.linear, made.names = [], [], [], [], [], []
    S = X
    for i, (W, b) in enumerate(zip(draft.Ws, draft.bs)):
        found = factor(W, S.mT, b, tolerance=error, offset=draft.biased[i])
        if found is not None and found.b is not None:
            made.Ws += [found.B, found.A]
            made.bs += [torch.zeros(found.rank, dtype=torch.float64), found.b]
            made.biased += [False, draft.biased[i]]
            made.slopes.append(1.0)
            made.linear.append(torch.ones(found.rank, dtype=torch.bool))
            made.names.append(f"factors of weight {i + 1}")
            Z = S @ found.B.mT @ found.A.mT + found.b
        else:
            made.Ws.append(W)
            made.bs.append(b)
            made.biased.append(draft.biased[i])
            Z = S @ W.mT + b
        if i < len(draft.Ws) - 1:
            made.slopes.append(draft.slopes[i])
            made.linear.append(draft.linear[i])
            made.names.append(draft.names[i])
            S = draft.sigma(i, Z)
    return made


# ---- Low-rank factoring of a weight where it saves parameters, best for the data that it sees


@dataclass(frozen=True, eq=False)
class Factors:
    """W ≈ A·B with r columns and rows, AᵀA = BBᵀ; A(Bx) + b in place of Wx + b.

    Attributes
    ----------
    A, B : Tensor (m, r), (r, n)
    b : Tensor (m,) or None
        What is added; changed by the mean of what was left out.
    rank : int
    error : float
        ‖(W − AB)S + …‖ / ‖W S‖ over the data, after the best constant if there are biases.
    """

    A: Tensor
    B: Tensor
    b: Tensor | None
    rank: int
    error: float


def saves(m: int, n: int, rank: int) -> bool:
    """Whether r(m + n) < mn."""
    return rank * (m + n) < m * n


def factor(
    W: Any, S: Any, b: Any = None, *, rank: int | None = None, tolerance: float | None = None, offset: bool = True
) -> Factors | None:
    """The best W_r = A·B of rank r in ‖(W − W_r)S‖, or None where r(m + n) ≥ mn.

    With WS = UΣVᵀ the best is U_rU_rᵀW: the data's second moments SSᵀ decide what may be left out, not the singular
    values of W. The factors are balanced: A = P√s, B = √sQᵀ from W_r = PsQᵀ, of the least norm.

    Parameters
    ----------
    W : array (m, n)
    S : array (n, N)
        Activations before W, samples as columns.
    b : array (m,), optional
        What is added to W·S, corrected by the mean of (W − W_r)S if ``offset``.
    rank : int, optional
        r; otherwise ``tolerance`` is needed.
    tolerance : float, optional
        The least r whose relative error over the data is at most this.
    offset : bool
        Whether a constant may be moved into ``b``. False without ``b``.
    """
    who = "factor"
    M, A = matrix(who, "W", W), matrix(who, "S", S)
    m, n = M.shape
    if A.shape[0] != n:
        fail(who, f"`S` must have {n} rows, one for each column of `W`", tuple(A.shape), "Pass samples as columns.")
    if (rank is None) == (tolerance is None):
        fail(who, "one of `rank` and `tolerance` must be given", (rank, tolerance), "Pass one of them.")
    shift = None if b is None else as_tensor(who, "b", b)
    moved = offset and shift is not None
    mean = A.mean(1) if moved else A.new_zeros(n)
    # Inner products over samples are all that counts: as many columns as neurons hold them.
    R = fewer_columns([A - mean[:, None]])
    U, s, _ = thin_svd(M @ R)
    whole = float(s.norm())
    tails = s.square().flip(0).cumsum(0).flip(0).sqrt()
    if rank is not None:
        r = check_integer(who, "rank", rank, low=1, high=min(m, n))
    else:
        allowed = check_number(who, "tolerance", tolerance, low=0.0) * whole
        # tails[r] is what r values leave out.
        r = max(1, int((tails > allowed).sum()))
    r = min(r, len(s))
    if not saves(m, n, r):
        return None
    left = U[:, :r]
    P, t, Qh = thin_svd(left.mT @ M)
    root = t.sqrt()
    first, second = (left @ P) * root, root[:, None] * Qh
    if moved:
        assert shift is not None
        shift = shift + (M - first @ second) @ mean
    error = float(tails[r]) / whole if r < len(s) and whole > 0 else 0.0
    return Factors(first, second, shift, r, error)


# ---- Fewer neurons within a tolerance: a greedy choice in each layer, and the next weights refitted to the original


#: Weights as large as the original ones may cost this share of the squared error that τ allows.
RIDGE = 0.01

#: Thresholds tried: powers of ten first, then halvings of the interval between the last that serves and the next.
DECADES = 10

HALVINGS = 6

#: A draft that deviates by at most this many times the tolerance is worth polishing.
REACH = 30.0

#: Iterations of it, and what they may cost: iterations × samples × parameters.
STEPS, WORK = 300, 2e10


@dataclass(frozen=True, eq=False)
class Reduced:
    """A draft with fewer neurons.

    Attributes
    ----------
    draft : Draft
    kept : list of Tensor (n_{i+1},) of int64
        Of each hidden layer, which of its neurons.
    threshold : float
        τ; 0 if nothing smaller served.
    deviation : float
        max|Δoutput| / max|output| on the data.
    state : str
        ``"refitted"`` layer by layer; ``"polished"`` if then all weights were fitted together; ``"unchanged"`` when no
        smaller draft was found within the tolerance.
    """

    draft: Draft
    kept: list[Tensor]
    threshold: float
    deviation: float
    state: str


@torch.no_grad()
def with_fewer_neurons(draft: Draft, X: Any, tolerance: float, *, steps: int = STEPS) -> Reduced:
    """Fewer neurons in every hidden layer with max|Δoutput| ≤ tolerance·max|output| on X.

    Front to back: neurons of the current network are chosen by :func:`choose_neurons` until they explain the original
    next pre-activations up to τ, and the next weights are refitted to these. The error of a layer is measured where it
    counts: weighted by E[JᵀJ], J the derivative of the outputs, it is to first order the relative error of the outputs.
    If they deviate by a little more than allowed, all weights are fitted to them together (:func:`fit_together`), where
    there are two numbers to match, samples × outputs, for each weight. The one τ is the largest that stays within the
    tolerance, by halving; of all that did, the one with the fewest parameters is polished to the end.

    Parameters
    ----------
    draft : Draft
        Not modified. A layer without biases gets none.
    X : array (N, n_0)
        Samples as rows. The tolerance is promised on these alone.
    tolerance : float
    steps : int
        Of each polishing; 0 for none.
    """
    who = "with_fewer_neurons"
    check_number(who, "tolerance", tolerance, low=0.0)
    first = _Original(draft, matrix(who, "X", X))
    best = Reduced(draft, [torch.arange(n) for n in draft.widths], 0.0, 0.0, "unchanged")
    if first.scale == 0.0 or not draft.hidden or tolerance == 0.0:
        return best

    def within(threshold: float) -> bool:
        nonlocal best
        found = first.reduced(threshold)
        smaller = found.draft.parameters < best.draft.parameters
        if tolerance < found.deviation <= REACH * tolerance and smaller:
            found = first.polished(found, steps, stop=tolerance)
        serves = found.deviation <= tolerance
        if serves and smaller:
            best = found
        return serves

    high = 1.0
    low = min(1.0, REACH * tolerance)
    for _ in range(DECADES):
        if within(low):
            break
        high, low = low, low / 10.0
    else:
        return best
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if within(middle) else (low, middle)
    # The search stops at the tolerance; what these neurons can do is usually better, also off the data.
    nearer = first.polished(best, steps, stop=0.0) if best.state != "unchanged" else best
    return nearer if nearer.deviation < best.deviation else best


class _Original:
    """The draft as it was, its pre-activations on the data, and how much these matter; samples as columns."""

    def __init__(self, draft: Draft, X: Tensor) -> None:
        self.draft, self.X = draft, X.mT
        self.targets = preactivations(draft, self.X)
        self.scale = float(self.targets[-1].abs().max())
        self.weights = self._sensitivities()

    def _sensitivities(self) -> list[Tensor]:
        """Square roots of E[JᵀJ] at each layer's pre-activations, J the derivative of the outputs."""
        Ws = self.draft.Ws
        d, N = len(Ws[-1]), self.X.shape[1]
        widest = max(max(W.shape) for W in Ws)
        size = chunk_rows(N, 16.0 * d * widest, CHUNK_BYTES)
        sums = [torch.zeros(len(W), len(W), dtype=torch.float64) for W in Ws]
        for start in range(0, N, size):
            rows = slice(start, start + size)
            J = torch.eye(d, dtype=torch.float64).expand(min(size, N - start), d, d)
            for i in range(len(Ws) - 1, -1, -1):
                flat = J.reshape(-1, J.shape[2])
                sums[i] += flat.mT @ flat
                if i:
                    D = activation_derivative(self.targets[i - 1][:, rows], self.draft.slopes[i - 1])
                    D = torch.where(self.draft.linear[i - 1][:, None], 1.0, D)
                    J = (J @ Ws[i]) * D.mT[:, None, :]
        roots = []
        for M in sums:
            values, vectors = torch.linalg.eigh(M / N)
            roots.append(values.clamp_min(0.0).sqrt()[:, None] * vectors.mT)
        return roots

    def reduced(self, threshold: float) -> Reduced:
        """One pass from the inputs to the outputs at this τ."""
        made, kept = self.draft.copy(), []
        S = self.X
        for i in made.hidden:
            A = made.sigma(i, _affine(made, i, S).mT).mT
            T, biased = self.targets[i + 1], made.biased[i + 1]
            seen = self.weights[i + 1] @ (T - T.mean(1, keepdim=True) if biased else T)
            # Directions of the activations that are too small to matter off the data are not blown up for less than τ.
            size = float((self.weights[i + 1] @ self.draft.Ws[i + 1]).square().sum())
            ridge = RIDGE * threshold**2 * float(seen.square().sum()) / max(size, torch.finfo(torch.float64).tiny)
            J = choose_neurons(A, seen, bias=biased, tolerance=threshold, ridge=ridge).least(threshold)
            if len(J) < len(A):
                made.note(i, "refitted within the tolerance", len(A) - len(J))
            made.Ws[i], made.bs[i], made.linear[i] = made.Ws[i][J], made.bs[i][J], made.linear[i][J]
            S = A[J]
            made.Ws[i + 1], made.bs[i + 1] = refit(S, T, bias=biased, ridge=ridge)
            kept.append(J)
        error = _affine(made, len(kept), S) - self.targets[-1]
        return Reduced(made, kept, threshold, float(error.abs().max()) / self.scale, "refitted")

    def polished(self, found: Reduced, steps: int, *, stop: float) -> Reduced:
        """The same neurons with all weights fitted together, until the outputs deviate by at most ``stop``."""
        size = found.draft.parameters
        count = min(steps, int(WORK / (self.X.shape[1] * size)))
        # With nearly as many weights as numbers to match, they would follow the samples and nothing else.
        if count < 1 or 2 * size > self.targets[-1].numel():
            return found
        made, deviation = fit_together(found.draft, self.X, self.targets[-1], steps=count, stop=stop)
        return Reduced(made, found.kept, found.threshold, deviation, "polished")


def preactivations(draft: Draft, S: Tensor) -> list[Tensor]:
    """Of all layers on inputs S (n_0, N): samples as columns; the last are the outputs."""
    found = []
    for i in range(len(draft.Ws)):
        found.append(_affine(draft, i, S))
        S = draft.sigma(i, found[-1].mT).mT if i < len(draft.hidden) else S
    return found


def _affine(draft: Draft, i: int, S: Tensor) -> Tensor:
    return draft.Ws[i] @ S + draft.bs[i][:, None]


# ---- Which neurons of a layer explain the next one, and the weights after them refitted: orthogonal least squares


#: Directions of the chosen activations below this share of the largest are not used in a refit.
CUT = 1e-10


@dataclass(frozen=True, eq=False)
class Ordered:
    """Neurons of a layer in the order in which they explain the next one.

    Attributes
    ----------
    order : Tensor (k,) of int64
    errors : Tensor (k + 1,)
        Relative error of the best fit with the first 0, 1, … k of them.
    floor : float
        The error with all neurons, which is what layers before have left.
    """

    order: Tensor
    errors: Tensor
    floor: float

    def least(self, tolerance: float) -> Tensor:
        """The fewest of the first neurons, at least one, with error² ≤ floor² + tolerance²; in their own order."""
        enough = torch.nonzero(self.errors <= _allowed(self.floor, tolerance))[:, 0]
        count = int(enough[0]) if len(enough) else len(self.order)
        return self.order[: max(1, count)].sort().values


def choose_neurons(S: Any, T: Any, *, bias: bool = True, tolerance: float = 0.0, ridge: float = 0.0) -> Ordered:
    """Neurons by orthogonal least squares: each next one lowers ‖T − W'[S_J; 1]‖² + γ‖W'‖² most.

    The gain of neuron i is ‖R s̃_iᵀ‖² / ‖s̃_i‖², R the residual and s̃_i what is left of its activations beside the chosen
    ones; both are kept up to date by one rank-one step, O((n + m)·min(N, n + m)) for each neuron.

    Parameters
    ----------
    S : array (n, N)
        Activations, neurons as rows.
    T : array (m, N)
        What the next layer should see; weighted by what its coordinates matter, if they do not matter alike.
    bias : bool
        Whether a constant comes for free. Errors are relative to what it cannot explain.
    tolerance : float
        Stop at this error beyond that with all neurons, or at rounding.
    ridge : float
        γ.
    """
    A, B = matrix("choose_neurons", "S", S), matrix("choose_neurons", "T", T)
    if A.shape[1] != B.shape[1]:
        got = f"{tuple(A.shape)} and {tuple(B.shape)}"
        fail("choose_neurons", "`S` and `T` must have the same samples as columns", got, "Use the same data for both.")
    if bias:
        A, B = A - A.mean(1, keepdim=True), B - B.mean(1, keepdim=True)
    whole = float(B.norm())
    if whole == 0.0:
        return Ordered(torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.float64), 0.0)
    A, B = _with_ridge(A, B, ridge)
    fitted = torch.linalg.lstsq(A.mT, B.mT, rcond=CUT, driver="gelsd").solution.mT @ A
    floor = float((B - fitted).norm()) / whole
    stop = max(_allowed(floor, tolerance), 1e-14)
    sizes = A.square().sum(1)
    rounding = CUT**2 * sizes
    free = sizes > 0
    order: list[int] = []
    errors = [1.0]
    while errors[-1] > stop and bool(free.any()):
        gains = (A @ B.mT).square().sum(1) / sizes.clamp_min(torch.finfo(torch.float64).tiny)
        best = int(torch.where(free, gains, -1.0).argmax())
        q = A[best] / A[best].norm()
        A = A - torch.outer(A @ q, q)
        B = B - torch.outer(B @ q, q)
        sizes = A.square().sum(1)
        order.append(best)
        free[best] = False
        # What is left of a neuron within the span of the chosen ones is rounding, and no direction.
        free &= sizes > rounding
        errors.append(float(B.norm()) / whole)
    # Without any neuron that moves, one stands for all.
    return Ordered(torch.tensor(order or [0], dtype=torch.int64), torch.tensor(errors, dtype=torch.float64), floor)


def refit(S: Tensor, T: Tensor, *, bias: bool, ridge: float = 0.0) -> tuple[Tensor, Tensor]:
    """W', b' = argmin ‖T − W'S − b'1ᵀ‖² + γ‖W'‖²; directions of S below 1e-10 of the largest are left out.

    Without ``bias`` b' is 0.
    """
    mean_S, mean_T = (S.mean(1), T.mean(1)) if bias else (S.new_zeros(len(S)), T.new_zeros(len(T)))
    A, B = _with_ridge(S - mean_S[:, None], T - mean_T[:, None], ridge)
    W = torch.linalg.lstsq(A.mT, B.mT, rcond=CUT, driver="gelsd").solution.mT
    return W, mean_T - W @ mean_S


def _allowed(floor: float, tolerance: float) -> float:
    # Rounding of the floor itself must not ask for one neuron more.
    return (floor**2 + tolerance**2) ** 0.5 * (1 + 1e-9)


def _with_ridge(A: Tensor, B: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Fewer columns with the same inner products, and √γ for each neuron as a sample of its own, where B is 0."""
    if ridge > 0.0:
        A = torch.cat([A, ridge**0.5 * torch.eye(len(A), dtype=A.dtype)], 1)
        B = torch.cat([B, B.new_zeros(len(B), len(A))], 1)
    A, B = fewer_columns([A, B]).split([len(A), len(B)])
    return A, B


# ---- All weights of a smaller draft fitted together to the outputs of the original, until they are near enough


#: Pairs that L-BFGS remembers.
MEMORY = 30


def fit_together(draft: Draft, X: Tensor, Y: Tensor, *, steps: int, stop: float) -> tuple[Draft, float]:
    """Lower ‖f(X) − Y‖² over all weights by L-BFGS, from those given, until max|f(X) − Y| ≤ stop·max|Y|.

    Parameters
    ----------
    draft : Draft
        Not modified. Layers without biases stay so.
    X, Y : Tensor (n_0, N), (n_L, N)
        Samples as columns.
    steps : int
        At most so many iterations.
    stop : float

    Returns
    -------
    draft, deviation
        Of the iterate with the least max|f(X) − Y| / max|Y|.
    """
    tensors = [*draft.Ws, *(b for b, has in zip(draft.bs, draft.biased) if has)]
    sizes = [t.numel() for t in tensors]
    square, top = float(Y.square().mean()), float(Y.abs().max())
    best: tuple[float, Tensor | None] = (float("inf"), None)

    def at(vector: Tensor) -> Draft:
        parts = iter([part.reshape(t.shape) for part, t in zip(vector.split(sizes), tensors)])
        Ws = [next(parts) for _ in draft.Ws]
        return replace(draft, Ws=Ws, bs=[next(parts) if has else b for b, has in zip(draft.bs, draft.biased)])

    def value(point: object) -> tuple[float, object]:
        nonlocal best
        vector = torch.tensor(point, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            error = preactivations(at(vector), X)[-1] - Y
            loss = error.square().mean() / square
            loss.backward()
        found = float(error.detach().abs().max()) / top
        if found < best[0]:
            best = found, vector.detach()
        assert vector.grad is not None
        return float(loss.detach()), vector.grad.numpy()

    def enough(_: object) -> None:
        if best[0] <= stop:
            raise StopIteration

    start = torch.cat([t.reshape(-1) for t in tensors]).numpy()
    options = {"maxiter": steps, "maxfun": 2 * steps, "maxcor": MEMORY, "ftol": 0.0, "gtol": 0.0}
    minimize(value, start, jac=True, method="L-BFGS-B", callback=enough, options=options)
    # Without any finite value nothing was better than what was given.
    return (draft if best[1] is None else at(best[1])).copy(), best[0]
