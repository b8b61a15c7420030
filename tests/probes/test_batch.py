"""Sizes of batches of any make."""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from torchvitals.probes.batch import size_of


@dataclass
class Sample:
    label: str
    images: torch.Tensor


Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(8, 3, 32, 32), (8, 0)),
        (torch.zeros(8, 128, dtype=torch.int64), (8, 1024)),
        (torch.zeros(8, 128, dtype=torch.bool), (8, 0)),
        ((torch.zeros(4, 5), torch.zeros(4, dtype=torch.int64)), (4, 0)),
        ([torch.zeros(4, 5)], (4, 0)),
        ({"label": torch.zeros(3), "input_ids": torch.zeros(3, 7, dtype=torch.int32)}, (3, 21)),
        ({"x": {"deep": [torch.zeros(6, 2)]}}, (6, 0)),
        (np.zeros((5, 9), dtype=np.int64), (5, 45)),
        (Pair(torch.zeros(2, 2), 3), (2, 0)),
        (Sample("a", torch.zeros(7, 1)), (7, 0)),
        (torch.tensor(3.0), (0, 0)),
        ("text", (0, 0)),
        (None, (0, 0)),
        ([], (0, 0)),
        ((), (0, 0)),
        (["a", "b"], (0, 0)),
    ],
)
def test_samples_and_tokens(batch, size):
    assert size_of(batch) == size
