"""Compare few-shot episodes with easyfsl's ProtoNet over a feature data set: equal accuracies on equal episodes first, then time and memory.

The peer is written here after easyfsl 1.5 (its ``TaskSampler``, ``FeaturesDataset`` and ``PrototypicalNetworks`` in a ``DataLoader``, one episode a batch),
since that package imports torchvision and its sampler does not start with torch 2.13.
Per episode it does the same work: draw classes and items by ``random.sample``, fetch each item by the data set, check, stack and split them,
subtract a centre of 0, average the support class by class, and take distances from ``torch.cdist``.
``tests/numerics/test_episode_heads.py`` compares accuracies with the package itself.

Run ``python benchmarks/episodes.py`` or ``python -m benchmarks.episodes``; it prints a table and writes its section of ``benchmarks/RESULTS.md``.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from torch.utils.data import DataLoader, Dataset, Sampler

from benchmarks._report import Case, run
from evalharness.numerics import Episodes, sample_episodes, score_episodes

CLASSES, PER_CLASS, DIMENSIONS = 20, 600, 640  # the size of miniImageNet's test split, as a ResNet-12 encodes it
WAY, QUERIES = 5, 15
SCIKIT_EPISODES = 50

Array = np.ndarray
Features = tuple[torch.Tensor, torch.Tensor]


# --- the peer -------------------------------------------------------------------------------------------------------


class FeaturesOf(Dataset[tuple[torch.Tensor, int]]):
    """Give one vector and its label at a time."""

    def __init__(self, vectors: torch.Tensor, labels: list[int]) -> None:
        self.vectors = vectors
        self.labels = labels

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        """Return an item."""
        return self.vectors[at], self.labels[at]

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.labels)


class TaskSampler(Sampler[list[int]]):
    """Draw an episode's items class by class; ``given`` rows stand in for the draws where accuracies are compared."""

    def __init__(self, labels: list[int], shot: int, episodes: int, given: Array | None = None) -> None:
        self.shot, self.episodes, self.given = shot, episodes, given
        self.items: dict[int, list[int]] = {}
        for item, label in enumerate(labels):
            self.items.setdefault(label, []).append(item)

    def __len__(self) -> int:
        """Return the number of episodes."""
        return self.episodes

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the items of each episode."""
        for at in range(self.episodes):
            if self.given is not None:
                yield self.given[at].ravel().tolist()
                continue
            classes = random.sample(sorted(self.items), WAY)
            yield torch.cat([torch.tensor(random.sample(self.items[label], self.shot + QUERIES)) for label in classes]).tolist()

    def collate(self, items: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, ...]:
        """Return support and its labels, queries and theirs."""
        for vector, label in items:
            if not isinstance(vector, torch.Tensor) or not isinstance(label, int):
                raise TypeError("expected pairs of a vector and a label")
        cast = [(vector, int(label)) for vector, label in items]
        names = list({label for _, label in cast})
        vectors = torch.cat([vector.unsqueeze(0) for vector, _ in cast]).reshape(WAY, self.shot + QUERIES, -1)
        labels = torch.tensor([names.index(label) for _, label in cast]).reshape(WAY, self.shot + QUERIES)
        support, queries = vectors[:, : self.shot].flatten(0, 1), vectors[:, self.shot :].flatten(0, 1)
        return support, labels[:, : self.shot].flatten(), queries, labels[:, self.shot :].flatten()


class Prototypes(torch.nn.Module):
    """Classify by the distance to the mean of each class."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.centre = torch.nn.Identity(), torch.tensor(0)

    def learn(self, support: torch.Tensor, labels: torch.Tensor) -> None:
        """Keep the prototypes of a support set."""
        features = self.backbone(support) - self.centre
        ways = range(len(torch.unique(labels)))
        self.prototypes = torch.cat([features[torch.nonzero(labels == way)].mean(0) for way in ways])

    def forward(self, queries: torch.Tensor) -> torch.Tensor:
        """Return negative distances."""
        return -torch.cdist(self.backbone(queries) - self.centre, self.prototypes)


def prototype_accuracies(features: Features, shot: int, episodes: int, given: Array | None = None) -> Array:
    """Return the accuracy of every episode, one after another."""
    vectors, labels = features
    sampler = TaskSampler(labels.tolist(), shot, episodes, given)
    loader = DataLoader(FeaturesOf(vectors, labels.tolist()), batch_sampler=sampler, collate_fn=sampler.collate)
    model, found = Prototypes().eval(), []
    with torch.no_grad():
        for support, support_labels, queries, query_labels in loader:
            model.learn(support, support_labels)
            found.append((torch.max(model(queries), 1)[1] == query_labels).sum().item() / len(query_labels))
    return np.array(found)


def linear_accuracies(features: Features, drawn: Episodes, make: Callable[[], Any]) -> Array:
    """Return the accuracy of every episode of a scikit-learn classifier on unit vectors."""
    vectors = torch.nn.functional.normalize(features[0]).numpy()
    codes = np.arange(WAY)
    found = []
    for support, query in zip(drawn.support.numpy(), drawn.query.numpy(), strict=True):
        model = make().fit(vectors[support.ravel()], codes.repeat(support.shape[1]))
        found.append((model.predict(vectors[query.ravel()]) == codes.repeat(query.shape[1])).mean())
    return np.array(found)


# --- cases ----------------------------------------------------------------------------------------------------------


def make_features() -> Features:
    """Return vectors (N, D) float32 that episodes tell apart in part, and their labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES * PER_CLASS) % CLASSES
    centres = 0.12 * torch.randn(CLASSES, DIMENSIONS, generator=generator)
    return (torch.randn(len(labels), DIMENSIONS, generator=generator) + centres[labels]).relu(), labels


def draw(features: Features, shot: int, episodes: int) -> Episodes:
    """Return episodes of a fixed seed."""
    sizes = {"way": WAY, "shot": shot, "query": QUERIES, "episodes": episodes}
    return sample_episodes(features[1], generator=torch.Generator().manual_seed(1), **sizes)


def prototype_case(features: Features, shot: int, episodes: int, target: float | None) -> Case:
    """Return nearest centroids, episodes drawn and scored."""

    def check() -> None:
        drawn = draw(features, shot, episodes)
        rows = torch.cat([drawn.support, drawn.query], dim=2).numpy()
        mine, reference = score_episodes(features[0], drawn).accuracy.numpy(), prototype_accuracies(features, shot, episodes, rows)
        # A query between two centroids may fall either way by rounding; everything else must agree.
        assert np.count_nonzero(np.abs(mine - reference) > 1e-9) <= episodes / 500
        np.testing.assert_allclose(mine, reference, atol=1.01 / (WAY * QUERIES))

    return Case(
        name=f"{episodes:,} episodes {WAY}-way {shot}-shot {QUERIES}-query, {DIMENSIONS}-d, nearest centroid",
        peer="ProtoNet as in easyfsl",
        target=target,
        check=check,
        ours=lambda: score_episodes(features[0], draw(features, shot, episodes)),
        theirs=lambda: prototype_accuracies(features, shot, episodes),
    )


def linear_case(features: Features, head: str, make: Callable[[], Any], peer: str, episodes: int = 1000) -> Case:
    """Return a linear head on the same episodes; the peer does a part of them."""
    drawn = draw(features, 5, episodes)
    part = Episodes(*(each[:SCIKIT_EPISODES] for each in drawn))

    def check() -> None:
        mine = score_episodes(features[0], part, head=head)
        assert bool(mine.converged.all())
        np.testing.assert_allclose(mine.accuracy, linear_accuracies(features, part, make), atol=1.01 / (WAY * QUERIES))

    return Case(
        name=f"{episodes:,} episodes {WAY}-way 5-shot {QUERIES}-query, {DIMENSIONS}-d, {head}",
        peer=f"{peer} in a loop (timed on {SCIKIT_EPISODES} episodes)",
        target=None,
        check=check,
        ours=lambda: score_episodes(features[0], drawn, head=head),
        theirs=lambda: linear_accuracies(features, part, make),
        scale=episodes / SCIKIT_EPISODES,
    )


def cases() -> list[Case]:
    """Return all comparisons, the one with a target first."""
    features = make_features()
    return [
        prototype_case(features, 5, 1000, 20),
        prototype_case(features, 1, 1000, None),
        linear_case(features, "ridge", lambda: RidgeClassifier(alpha=1.0), "`sklearn.linear_model.RidgeClassifier`"),
        linear_case(features, "logistic", lambda: LogisticRegression(C=1.0), "`sklearn.linear_model.LogisticRegression`"),
    ]


NOTES = [
    f"{CLASSES} classes of {PER_CLASS} vectors; accuracies are asserted equal on equal episodes.",
    "Nearest centroids are timed with the draw of the episodes, the other heads without.",
]

if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    run("episodes", __doc__, cases, NOTES)
