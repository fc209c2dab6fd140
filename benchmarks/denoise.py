"""Does an autoencoder of low rank denoise? scikit-learn's digits, beside PCA and kernel PCA at equal dimension.

    python benchmarks/denoise.py [--quick] [--rank 10] [--noise 4] [--out benchmarks/results/denoise.json]

Everything is fitted on clean training digits. Kernel PCA's γ and α are chosen from a grid of 49 on noisy validation
digits and refitted; ours runs once at default arguments (units="common": pixels), and once with noise in its last fit,
0.3, the best of 0, 0.3 and 0.6 on digits that are not among the test digits. Judged on noisy test digits against the
clean ones, mean squared error per pixel (pixels are 0 … 16), with the standard error over digits of the difference to
ours.
"""

from __future__ import annotations

import itertools
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _bench import arguments, report
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, KernelPCA

from isthmus import BottleneckAutoencoder

QUESTION = "Does an autoencoder of low rank denoise better than PCA and kernel PCA of equal dimension?"
COLUMNS = ("method", "settings", "error", "above_ours", "standard_error", "without_noise", "seconds")
OURS = "BottleneckAutoencoder"
GAMMAS = tuple(10.0**e for e in (-5.0, -4.5, -4.0, -3.5, -3.0, -2.5, -2.0))
ALPHAS = tuple(10.0**e for e in (-6, -5, -4, -3, -2, -1, 0))


def kernel_pca(rank: int, train: np.ndarray, noisy: np.ndarray, clean: np.ndarray, quick: bool) -> dict:
    """The best γ and α on validation digits."""
    best = {"error": np.inf}
    for gamma, alpha in itertools.product(GAMMAS[::3] if quick else GAMMAS, ALPHAS[::3] if quick else ALPHAS):
        model = KernelPCA(rank, kernel="rbf", gamma=gamma, alpha=alpha, fit_inverse_transform=True, random_state=0)
        with warnings.catch_warnings():
            # Badly conditioned corners of the grid lose by their error.
            warnings.simplefilter("ignore")
            error = float(((model.fit(train).inverse_transform(model.transform(noisy)) - clean) ** 2).mean())
        if error < best["error"]:
            best = {"error": error, "gamma": gamma, "alpha": alpha}
    return best


def result(settings: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Question, answer and table."""
    ours = next(row for row in rows if row["method"] == OURS)
    told = "; ".join(
        f"{row['method']} {row['error']:.2f}, {row['above_ours']:+.2f} ± {row['standard_error']:.2f} from ours"
        for row in rows
        if row is not ours
    )
    answer = (
        f"At rank {settings['rank']} and noise {settings['noise']:g}, squared error per pixel on {settings['test']} "
        f"test digits: ours at default arguments {ours['error']:.2f}; {told}."
    )
    details = {"settings": settings}
    return {"question": QUESTION, "answer": answer, "columns": COLUMNS, "rows": rows, "details": details}


def main() -> None:
    """One run: fit all, judge all on the same noisy digits."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--noise", type=float, default=4.0, help="standard deviation, pixels being 0 to 16")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rng = np.random.default_rng(0)
    X = load_digits(return_X_y=True)[0]
    X = X[rng.permutation(len(X))][: 600 if options.quick else None]
    fit, validation, test = np.split(X, [int(0.55 * len(X)), int(0.75 * len(X))])
    train = X[: len(fit) + len(validation)]
    noisy_validation, noisy = (A + options.noise * rng.standard_normal(A.shape) for A in (validation, test))
    small = {"depth": 4, "width": 32, "steps": 15, "replicas": 0} if options.quick else {}
    rows, errors = [], {}

    def judge(name: str, told: str, make: Callable[[], Callable[[np.ndarray], np.ndarray]]) -> None:
        began = time.process_time()
        reconstruct = make()
        errors[name] = ((reconstruct(noisy) - test) ** 2).mean(axis=1)
        clean = float(((reconstruct(test) - test) ** 2).mean())
        row = {"method": name, "settings": told, "error": float(errors[name].mean()), "without_noise": clean}
        rows.append(row | {"seconds": round(time.process_time() - began, 1)})
        print(rows[-1], file=sys.stderr, flush=True)

    def linear() -> Callable[[np.ndarray], np.ndarray]:
        model = PCA(options.rank).fit(train)
        return lambda A: model.inverse_transform(model.transform(A))

    judge("PCA", "", linear)
    best = kernel_pca(options.rank, fit, noisy_validation, validation, options.quick)

    def kernel() -> Callable[[np.ndarray], np.ndarray]:
        settings = {"gamma": best["gamma"], "alpha": best["alpha"]}
        model = KernelPCA(options.rank, kernel="rbf", fit_inverse_transform=True, random_state=0, **settings).fit(train)
        return lambda A: model.inverse_transform(model.transform(A))

    judge("KernelPCA", f"rbf, gamma={best['gamma']:.3g}, alpha={best['alpha']:.3g}", kernel)
    for noise in (0.0, 0.3):
        name = OURS + (f", noise={noise:g}" if noise else "")
        settings = {"rank": options.rank, "units": "common", "noise": noise, **small}
        judge(name, "defaults", lambda settings=settings: BottleneckAutoencoder(**settings).fit(train).reconstruct)
    own = errors[OURS]
    for row in rows:
        difference = errors[row["method"]] - own
        row["above_ours"], row["standard_error"] = (
            float(difference.mean()),
            float(difference.std(ddof=1) / len(difference) ** 0.5),
        )
    settings = {"rank": options.rank, "noise": options.noise, "train": len(train), "test": len(test)}
    report(options, name="denoise", peers=("scikit-learn",), **result(settings, rows))


if __name__ == "__main__":
    main()
