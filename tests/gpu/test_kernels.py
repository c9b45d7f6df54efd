"""Every kernel on a GPU gives what it gives on the CPU, and gives it there; without a GPU a pretended one finds tensors on the wrong device."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from pretend import pretended_gpu

from evalharness import numerics
from evalharness.numerics import sample_episodes


def data(rows=80, dim=10, classes=4, seed=0):
    draw = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    vectors = draw.normal(size=(rows, dim)) + 2 * np.eye(classes, dim)[labels]
    return torch.from_numpy(vectors.astype(np.float32)), torch.from_numpy(labels)


def seeded():
    return torch.Generator().manual_seed(0)


VECTORS, LABELS = data()
SEVERAL = torch.stack([data(seed=seed)[0] for seed in range(3)])
NUMBERS = VECTORS[:, :2] @ torch.tensor([[1.0], [2.0]]) + 0.1 * VECTORS[:, 2:3]
CARRIED = torch.stack([LABELS == 0, LABELS < 2, VECTORS[:, 4] > 0, torch.zeros(80, dtype=torch.bool)], 1)
WEIGHT = torch.linspace(0.5, 2.0, 80, dtype=torch.float64)
EPISODES = sample_episodes(LABELS, way=3, shot=2, query=4, episodes=30, generator=seeded())
GRID = [1e-2, 1.0]
# What is asked of each kernel: a function of a function that brings tensors to a device.
KERNELS = {
    "logistic_path": lambda to: numerics.logistic_path(to(VECTORS), to(LABELS), GRID),
    "logistic_path, float64": lambda to: numerics.logistic_path(to(VECTORS.double()), to(LABELS), GRID),
    "logistic_path, weights": lambda to: numerics.logistic_path(
        to(VECTORS), to(LABELS), GRID, sample_weight=to(WEIGHT), class_weight="balanced"
    ),
    "logistic_path, tasks": lambda to: numerics.logistic_path(to(SEVERAL), to(LABELS), GRID),
    "logistic_path, targets": lambda to: numerics.logistic_path(to(VECTORS), to(torch.stack([LABELS, LABELS.flip(0)])), GRID),
    "logistic_path, two classes": lambda to: numerics.logistic_path(to(VECTORS), to((LABELS > 1).long()), GRID),
    "logistic_path, streamed": lambda to: numerics.logistic_path(to(VECTORS), to(LABELS), [1.0], memory_bytes=4096),
    "logistic_path, few rows": lambda to: numerics.logistic_path(to(VECTORS[:8]), to(LABELS[:8]), [1.0]),
    "one_vs_rest_path": lambda to: numerics.one_vs_rest_path(to(VECTORS), to(CARRIED), GRID),
    "ridge_path": lambda to: numerics.ridge_path(to(VECTORS), to(NUMBERS), [0.1, 1.0, 10.0]),
    "ridge_path, few rows": lambda to: numerics.ridge_path(to(VECTORS[:8]), to(NUMBERS[:8]), [0.1, 1.0]),
    "top_k, cosine": lambda to: numerics.top_k(to(VECTORS), to(VECTORS), 5),
    "top_k, dot": lambda to: numerics.top_k(to(VECTORS[:7]), to(VECTORS), 5, metric="dot"),
    "top_k, l2, itself left out": lambda to: numerics.top_k(
        to(VECTORS), to(VECTORS), 5, metric="l2", exclude=to(torch.arange(80)[:, None])
    ),
    "top_k, small blocks": lambda to: numerics.top_k(to(VECTORS), to(VECTORS), 3, block_bytes=2000),
    "top_k, ties": lambda to: numerics.top_k(to(VECTORS), to(VECTORS[:1].repeat(40, 1)), 3),
    "k_means": lambda to: numerics.k_means(to(VECTORS), 4, num_seeds=3, generator=seeded()),
    "sample_episodes": lambda to: sample_episodes(to(LABELS), way=3, shot=2, query=4, episodes=30, generator=seeded()),
    "best_threshold": lambda to: numerics.best_threshold(to(VECTORS[:, :4]), to(CARRIED)),
    "label_columns": lambda to: numerics.label_columns(to(VECTORS[:, :4]), to(CARRIED), 0.1),
    "keyed_normal": lambda to: numerics.keyed_normal(to(torch.arange(9)), (3, 2)),
    "keyed_uniform": lambda to: numerics.keyed_uniform(to(torch.arange(9)), (3, 2)),
    "normalise_rows": lambda to: numerics.normalise_rows(to(VECTORS)),
    "alignment": lambda to: numerics.alignment(to(VECTORS[:40]), to(VECTORS[40:])),
    "uniformity": lambda to: numerics.uniformity(to(VECTORS)),
    "uniformity, subsets": lambda to: numerics.uniformity(to(VECTORS), weights=to(torch.rand(5, 80, generator=seeded()) < 0.5)),
    **{
        name: lambda to, name=name: getattr(numerics, name)(to(VECTORS))
        for name in ("effective_rank", "rankme", "participation_ratio", "stable_rank", "isoscore", "singular_values")
    },
    **{
        f"score_episodes, {head}": lambda to, head=head: numerics.score_episodes(
            to(VECTORS), numerics.Episodes(*map(to, EPISODES)), head=head, base_mean=to(VECTORS.mean(0))
        )
        for head in ("nearest-centroid", "simpleshot-cl2n", "ridge", "logistic")
    },
}


def parts_of(result):
    """Return the tensors and numbers of a result, by name."""
    if isinstance(result, dict):
        return result
    if isinstance(result, tuple):
        return dict(zip(getattr(result, "_fields", range(len(result))), result, strict=True))
    if dataclasses.is_dataclass(result):
        return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return {"result": result}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_on_a_gpu_gives_there_what_it_gives_on_the_cpu(gpu, name):
    expected = parts_of(KERNELS[name](lambda tensor: tensor))
    found = parts_of(KERNELS[name](lambda tensor: tensor.to(gpu)))

    assert found.keys() == expected.keys()
    for part, value in expected.items():
        if not isinstance(value, torch.Tensor):
            assert found[part] == pytest.approx(value, rel=1e-3)
            continue
        assert found[part].device.type == "cuda", f"{part} is not on the GPU"
        if part == "iterations":
            continue
        own = found[part].cpu()
        assert own.dtype == value.dtype
        np.testing.assert_allclose(own, value, rtol=2e-3, atol=2e-3)


def test_a_path_predicts_on_a_gpu(gpu):
    path = numerics.logistic_path(VECTORS.to(gpu), LABELS.to(gpu), GRID)

    assert path.predict(VECTORS.to(gpu)).device.type == "cuda"
    assert torch.equal(path.predict(VECTORS.to(gpu)).cpu(), numerics.logistic_path(VECTORS, LABELS, GRID).predict(VECTORS))
    assert isinstance(path.predict(VECTORS.numpy()), np.ndarray)


def test_a_pretended_gpu_refuses_what_a_real_one_would():
    with pretended_gpu() as device:
        vectors = VECTORS.to(device)
        assert vectors.device.type == "cuda"
        assert (vectors @ vectors.T).is_cuda
        assert not vectors.cpu().is_cuda
        with pytest.raises(RuntimeError, match="on the same device, got cuda:0 and cpu"):
            vectors + torch.ones(10)
        with pytest.raises(TypeError, match="can't convert cuda:0"):
            np.asarray(vectors)
        with pytest.raises(RuntimeError, match="for generator"):
            torch.rand(3, generator=seeded(), device=device)
