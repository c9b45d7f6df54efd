"""Every built-in encoder passes the checks, and references find code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evalharness.errors import UnknownNameError, UsageError
from evalharness.stamp import use_encoder
from evalharness.testing import check_encoder, sample_batch

BUILT_IN = ["colour-histogram", "colour-words", "hashed-ngrams", "identity", "pixels", "random-conv", "random-projection"]


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_encoders_pass_the_checks(registry, name):
    check_encoder(registry.get("encoder", name))


def test_the_list_above_is_complete(registry):
    assert sorted(set(registry.specs("encoder")) - {"wordllama"}) == BUILT_IN


@pytest.mark.parametrize("size", [8, 28, 224])
@pytest.mark.parametrize("name", ["colour-histogram", "colour-words", "pixels", "random-conv", "random-projection"])
def test_image_encoders_take_every_size(registry, name, size):
    check_encoder(registry.get("encoder", name), batch=sample_batch("image", 3, size=size))


@pytest.mark.real
def test_wordllama_passes_the_checks(registry):
    pytest.importorskip("wordllama")
    spec = registry.get("encoder", "wordllama")
    check_encoder(spec)
    vectors = spec.build(device=torch.device("cpu"), dtype=torch.float32, dim=256).encode(["", "word", " "])
    assert vectors.norm(dim=1).numpy() == pytest.approx(1, abs=1e-3)
    assert use_encoder(registry, "wordllama").identity.kind == "weights"


def test_a_text_without_letters_has_a_direction(registry):
    encoder = registry.get("encoder", "hashed-ngrams").build(device="cpu", dtype=torch.float32, dim=64, low=3, high=5)
    assert encoder.encode(["", "abc"]).norm(dim=1).numpy() == pytest.approx(1)


def test_two_towers_stand_in_one_space(registry):
    spec = registry.get("encoder", "colour-words")
    encoder = spec.build(device=torch.device("cpu"), dtype=torch.float32)
    image = torch.full((2, 3, 32, 32), 0.5)
    image[0, :, 10:22, 2:10] = torch.tensor([0.85, 0.15, 0.15])[:, None, None]
    image[1, :, 10:22, 22:30] = torch.tensor([0.15, 0.35, 0.85])[:, None, None]
    texts = encoder.encode(["a red mug on the left", "a blue mug on the right"])
    similarity = torch.nn.functional.cosine_similarity(encoder.encode(image)[:, None], texts[None], dim=2)

    assert similarity.argmax(dim=1).tolist() == [0, 1]


def test_random_projection_keeps_distances(registry):
    encoder = registry.get("encoder", "random-projection").build(device="cpu", dtype=torch.float32, dim=2000, seed=0)
    vectors = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 50))).float()
    ratio = torch.pdist(encoder.encode(vectors)) / torch.pdist(vectors)

    assert ratio.numpy() == pytest.approx(1, abs=0.12)


def test_parameters_change_the_identity_and_are_checked(registry):
    assert use_encoder(registry, "random-projection?dim=8").identity != use_encoder(registry, "random-projection").identity
    with pytest.raises(UsageError, match="encoder `random-projection` has no parameter `dims`; did you mean `dim`?"):
        use_encoder(registry, "random-projection?dims=8")
    with pytest.raises(UnknownNameError, match="unknown encoder `pixel`; did you mean `pixels`?"):
        use_encoder(registry, "pixel")


SOURCE = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 5))

class Words:
    def encode(self, texts):
        return [[len(text), text.count(" "), 1.0] for text in texts]
"""


def test_a_callable_of_a_file_is_an_encoder(registry, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    spec = registry.get("encoder", f"python:{path}:Words")

    assert check_encoder(spec, modality="text").dim == 3
    first = use_encoder(registry, f"python:{path}:make").identity
    path.write_text(SOURCE + "# changed\n")
    assert use_encoder(registry, f"python:{path}:make").identity != first


def test_a_callable_of_a_module_is_an_encoder(registry):
    spec = registry.get("encoder", "torch:torch.nn:Flatten")

    assert check_encoder(spec, modality="image").dim == 3 * 64 * 64


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("python:nowhere.py:make", "`nowhere.py` is no file"),
        ("torch:no_such_module:make", "module `no_such_module` of encoder `torch:no_such_module:make` cannot be found"),
    ],
)
def test_references_to_nothing_are_one_line(registry, reference, message):
    with pytest.raises(UsageError, match=message):
        use_encoder(registry, reference)


def test_an_unknown_callable_offers_near_matches(registry, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    spec = registry.get("encoder", f"python:{path}:mak")

    with pytest.raises(UnknownNameError, match="unknown callable `mak`; did you mean `make`?"):
        spec.build(device="cpu", dtype=torch.float32, modality="image")
