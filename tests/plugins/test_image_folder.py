import numpy as np
import PIL.Image
import pytest
import torch

from evalharness.errors import DataError, UnknownNameError
from evalharness.plugins import image_folder


def save(path, colour, size=(4, 3), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new(mode, size, colour).save(path)


def resolve(path):
    return image_folder.evalharness_resolve("dataset", f"folder:{path}")


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "dog" / "1.png", (255, 0, 0))
    save(tmp_path / "cat" / "2.PNG", (0, 0, 51))
    save(tmp_path / "cat" / "deep" / "1.png", 102, mode="L")
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    return tmp_path


def test_sub_folders_are_classes(folder):
    spec = resolve(folder)
    samples = spec.load("all").parts["items"]
    assert spec.splits == ("all",)
    assert samples.ids.tolist() == ["cat/2.PNG", "cat/deep/1.png", "dog/1.png"]
    assert samples.columns["label"].labels().tolist() == ["cat", "cat", "dog"]
    images = samples.read(np.array([2, 1]))
    assert images.shape == (2, 3, 3, 4)
    assert images.dtype == torch.float32
    np.testing.assert_allclose(images[:, :, 0, 0], [[1, 0, 0], [0.4, 0.4, 0.4]])


def test_split_folders_are_found(tmp_path):
    save(tmp_path / "train" / "a" / "1.png", 0, mode="L")
    save(tmp_path / "test" / "a" / "1.png", 0, mode="L")
    assert resolve(tmp_path).splits == ("test", "train")
    assert resolve(tmp_path).load("test").parts["items"].ids.tolist() == ["test/a/1.png"]


def test_images_of_different_sizes_are_a_list(folder):
    save(folder / "cat" / "3.png", 0, size=(5, 5))
    images = resolve(folder).load("all").parts["items"].read(np.array([0, 1]))
    assert [image.shape for image in images] == [(3, 3, 4), (3, 5, 5)]


def test_sixteen_bits_and_palettes_keep_their_values(tmp_path):
    (tmp_path / "a").mkdir()
    PIL.Image.fromarray(np.full((2, 2), 32768, dtype=np.uint16)).save(tmp_path / "a" / "1.png")
    palette = PIL.Image.new("P", (2, 2))
    palette.putpalette([255, 0, 0] * 256)
    palette.save(tmp_path / "a" / "2.png", transparency=bytes([0, 255]))
    images = resolve(tmp_path).load("all").parts["items"].read(np.arange(2))
    np.testing.assert_allclose(images[:, :, 0, 0], [[0.5, 0.5, 0.5], [1, 0, 0]], atol=1e-4)


def test_images_are_decoded_when_read(folder, monkeypatch):
    def refuse(*args, **kwargs):
        pytest.fail("decoded too early")

    monkeypatch.setattr(PIL.Image, "open", refuse)
    assert resolve(folder).load("all").parts["items"].size == 3


def test_unreadable_image_is_named(folder):
    (folder / "cat" / "bad.png").write_bytes(b"no image")
    samples = resolve(folder).load("all").parts["items"]
    with pytest.raises(DataError, match=r"cat/bad.png cannot be read as an image"):
        samples.read(np.arange(samples.size))


def test_identity_and_fingerprint_follow_the_files(folder):
    before = resolve(folder).identity("all"), resolve(folder).load("all").parts["items"].fingerprint
    save(folder / "dog" / "1.png", (254, 0, 0), size=(5, 3))
    after = resolve(folder).identity("all"), resolve(folder).load("all").parts["items"].fingerprint
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_wrong_folders_and_splits_are_named(folder, tmp_path_factory):
    with pytest.raises(UnknownNameError, match=r"unknown split of `folder:.*` `test`; known: all"):
        resolve(folder).load("test")
    with pytest.raises(DataError, match=r"`folder:.*/nowhere` names no folder"):
        resolve(folder / "nowhere").load("all")
    with pytest.raises(DataError, match="holds no images in class sub-folders; lay it out as"):
        resolve(tmp_path_factory.mktemp("empty")).load("all")


def test_other_references_are_left_alone():
    assert image_folder.evalharness_resolve("encoder", "folder:x") is None
    assert image_folder.evalharness_resolve("dataset", "csv:x") is None
