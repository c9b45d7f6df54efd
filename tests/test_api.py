"""The Python side: live objects of every kind, and a training that does not notice."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import evalharness
from evalharness import EncoderSpec, evaluate
from evalharness.errors import UsageError
from evalharness.identify import hash_tensor, identify_live

TASK = """task: small
version: 1
modality: image
data: {dataset: digits, target: label}
evaluators:
  knn: {use: knn, k: [1, 5]}
groups: [label]
main: knn.accuracy
"""
TEXT = """task: words
version: 1
modality: text
data: {dataset: sentences, params: {train: 80, validation: 20, test: 60}, target: label}
evaluators:
  knn: {use: knn, k: 1}
main: knn.accuracy
"""


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(TASK)
    return str(path)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(192, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, images):
        return self.drop(torch.relu(self.norm(self.first(images.flatten(1)))))


def test_a_module_is_evaluated_and_left_as_it_was(task):
    net = Net().train()
    net.norm.eval()
    before = copy.deepcopy(net.state_dict())
    results = evaluate(net, task, modality="image")

    assert (net.training, net.norm.training, net.drop.training) == (True, False, True)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert 0.5 < results.main()["small"] <= 1
    assert "Net" in results.table()
    assert set(results.to_pandas()["encoder"]) == {"Net"}


def test_a_changed_buffer_gives_new_scores_and_a_new_identity(task):
    net = Net().eval()
    first, identity = evaluate(net, task, modality="image"), identify_live(net)
    net.norm.running_mean += torch.randn(16, generator=torch.Generator().manual_seed(0)) * 5
    second = evaluate(net, task, modality="image")

    assert first.digest() != second.digest()
    assert identity != identify_live(net)


def train(task, *, evaluating):
    net = Net().train()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(11)
    np.random.seed(11)
    losses = []
    for _ in range(3):
        images, labels = torch.rand(32, 3, 8, 8), torch.from_numpy(np.random.randint(0, 16, 32))
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if evaluating:
            evaluate(net, task, modality="image", limit=50)
    return losses


def test_losses_of_a_training_are_equal_bit_for_bit_with_and_without(task):
    assert train(task, evaluating=True) == train(task, evaluating=False)


def test_nothing_is_written_without_out(task, cache, tmp_path):
    evaluate(Net(), task, modality="image")
    evaluate("pixels", task)

    assert list(cache.rglob("*")) == []
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


def test_results_are_kept_and_reused_with_out(task, tmp_path):
    net = Net().eval()
    first = evaluate(net, task, modality="image", out=tmp_path / "out")
    again = evaluate(net, task, modality="image", out=tmp_path / "out")

    assert first.counts == {"measured": 1}
    assert again.counts == {}
    assert first.digest() == again.digest()


def test_a_callable_and_a_spec_and_a_name_are_encoders(task):
    by_callable = evaluate(lambda images: images.flatten(1), task, modality="image", name="flat")
    spec = EncoderSpec(
        name="flat",
        summary="flat",
        modalities=("image",),
        build=lambda *, device, dtype: evalharness.as_encoder(lambda images: images.flatten(1)),
    )
    by_spec = evaluate(spec, task)
    by_name = evaluate("pixels", task)

    assert by_callable.main() == by_spec.main() == by_name.main()
    assert set(evaluate(["pixels", "random-conv"], task).main()) == {"pixels/small", "random-conv/small"}


def test_an_object_that_encodes_texts_is_an_encoder(tmp_path):
    class Lengths:
        def encode(self, texts, show_progress_bar=True):
            assert show_progress_bar is False
            return np.array([[len(text), text.count("e"), text.count(" ")] for text in texts], dtype=np.float64)

    path = tmp_path / "words.yaml"
    path.write_text(TEXT)
    results = evaluate(Lengths(), str(path), modality="text")

    assert results.counts == {"measured": 1}


def test_the_same_session_can_evaluate_twice_under_one_name(task):
    registry = evalharness.registry.load_registry()
    one = evaluate(lambda images: images.flatten(1), task, modality="image", name="x", registry=registry)
    two = evaluate(lambda images: images.flatten(1)[:, :3], task, modality="image", name="x", registry=registry)

    assert one.main() != two.main()


def test_a_file_of_vectors_is_an_encoder(tmp_path):
    from sklearn.datasets import load_wine

    features = load_wine().data.astype(np.float32)
    np.savez(tmp_path / "v.npz", ids=np.array([f"row/{at}" for at in range(len(features))]), vectors=features)
    path = tmp_path / "w.yaml"
    path.write_text(TASK.replace("image", "vector").replace("digits", "wine"))

    assert evaluate(tmp_path / "v.npz", str(path)).main() == evaluate("identity", str(path)).main()
    encoder = evalharness.as_encoder(tmp_path / "v.npz")
    assert encoder.lookup(["row/3"]).numpy() == pytest.approx(features[3:4])


def test_a_failure_is_a_row_not_an_exception(task):
    results = evaluate(lambda images: images, task, modality="image", name="wrong")

    assert results.counts == {"failed": 1}
    assert "expected vectors of shape (B, D)" in results.failures[0]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (Net(), {}, "expected `modality` of a live object: image, text, audio or vector"),
        (3, {"modality": "image"}, "expected a torch module, a callable or an object with `encode`, got int"),
        ("identity", {}, "encoder `identity` takes vector, but the tasks named need image; choose another suite"),
    ],
)
def test_mistakes_are_one_line(task, model, options, message):
    with pytest.raises(UsageError, match=message):
        evaluate(model, task, **options)


def test_a_module_that_never_ran_is_named(task):
    lazy = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(4))
    with pytest.raises(UsageError, match="run one batch through it first"):
        evaluate(lazy, task, modality="image")


def test_tensor_hashes_depend_on_values_places_and_types():
    tensor = torch.arange(10.0)
    assert hash_tensor(tensor) == hash_tensor(tensor.clone())
    assert hash_tensor(tensor) != hash_tensor(tensor.flip(0))
    assert hash_tensor(torch.zeros(3)) != hash_tensor(torch.zeros(3) + 1e-30)
    assert isinstance(hash_tensor(torch.ones(5, dtype=torch.bfloat16)), int)
    assert isinstance(hash_tensor(torch.tensor(3)), int)
