"""A GPU for every test of this folder: a pretended one, and a real one under the marker `gpu`."""

from __future__ import annotations

import pytest
import torch
from pretend import pretended_gpu


@pytest.fixture(params=["pretended", pytest.param("cuda", marks=pytest.mark.gpu)])
def gpu(request):
    if request.param == "cuda":
        yield torch.device("cuda")
        return
    with pretended_gpu() as device:
        yield device
