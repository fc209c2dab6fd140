"""Does an autoencoder of low rank denoise? scikit-learn's digits, beside PCA and kernel PCA at equal dimension.

    python benchmarks/denoise.py [--quick] [--rank 10] [--noise 4] [--out benchmarks/results/denoise.json]

Everything is fitted on clean training digits. Kernel PCA's γ and α are chosen from a grid of 49 on noisy validation
digits and refitted; ours runs once at default arguments (units="common": pixels), and once with noise in its last fit,
0.3, the best of 0, 0.3 and 0.6 on digits that are not among the test digits. Judged on noisy test digits against the
clean ones, mean squared error per pixel (pixels are 0 … 16), with the standard error over digits of the difference to
ours.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, KernelPCA

from isthmus import BottleneckAutoencoder
from isthmus._provenance import provenance
from isthmus.files import write_json

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


def main() -> None:
    """One run: fit all, judge all on the same noisy digits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a third of the digits, a coarse grid, small networks")
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--noise", type=float, default=4.0, help="standard deviation, pixels being 0 to 16")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    started, rng = time.time(), np.random.default_rng(0)
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
        name = "BottleneckAutoencoder" + (f", noise={noise:g}" if noise else "")
        settings = {"rank": options.rank, "units": "common", "noise": noise, **small}
        judge(name, "defaults", lambda settings=settings: BottleneckAutoencoder(**settings).fit(train).reconstruct)
    own = errors["BottleneckAutoencoder"]
    for row in rows:
        difference = errors[row["method"]] - own
        row["above_ours"], row["standard_error"] = (
            float(difference.mean()),
            float(difference.std(ddof=1) / len(difference) ** 0.5),
        )
    print(f"{'method':36} {'error':>7} {'above ours':>18} {'clean':>7} {'seconds':>8}")
    for row in rows:
        beside = f"{row['above_ours']:+.2f} ± {row['standard_error']:.2f}"
        print(
            f"{row['method']:36} {row['error']:7.3f} {beside:>18} {row['without_noise']:7.3f} {row['seconds']:8.1f}  "
            f"{row['settings']}"
        )
    if options.out:
        settings = {"rank": options.rank, "noise": options.noise, "train": len(train), "test": len(test)}
        about = provenance(seed=0, dtype="float64", started=started, seconds=time.time() - started)
        write_json(options.out, {"settings": settings, "rows": rows, "provenance": about})


if __name__ == "__main__":
    main()
