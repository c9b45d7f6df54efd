"""What several test modules build: records of a board, and an encoder with every kind of state."""

import numpy as np
import torch
from torch import nn

from evalharness.records import make_record


def record(encoder="a", value=0.5, **fields):
    base = {
        "suite": "s",
        "task": "t",
        "task_version": 1,
        "encoder": encoder,
        "dataset_fingerprint": "f",
        "selection": "test",
        "fit": "all",
        "shift": "clean",
        "severity": 0,
        "codec": "float32",
        "evaluator": "e",
        "params": {},
        "protocols": {"evaluator": "1"},
        "metric": "accuracy",
        "statistic": "value",
        "value": value,
        "low": None if value is None else value - 0.1,
        "high": None if value is None else value + 0.1,
        "level": 0.95,
        "method": "wilson",
        "scope": "test items",
        "n": 100,
        "n_units": 100,
        "higher_is_better": True,
        "main": True,
        "status": "measured",
        "seed": 0,
        "unit": "u",
    }
    return make_record(**(base | fields))


class Noisy(nn.Module):
    """An encoder whose vectors depend on every kind of state that a further call could change."""

    dim = 8

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.1)
        self.torch_draws = torch.Generator().manual_seed(1)
        self.numpy_draws = np.random.default_rng(1)
        self.calls = 0
        self.train()

    def encode(self, batch, *, role="document", layers=None):
        self.calls += 1
        noise = torch.randn(8, generator=self.torch_draws) + float(self.numpy_draws.normal()) + float(np.random.normal()) + torch.randn(8)
        return self.drop(self.norm(batch @ self.weight)) + 0.01 * noise + 0.01 * self.calls
