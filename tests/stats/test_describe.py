"""One question to torch for a whole list gives what asking each tensor gives, or says no."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import Parameter

from torchvitals.record import UnsupportedTensor
from torchvitals.stats.native import describe as room
from torchvitals.stats.native.library import kernel
from torchvitals.stats.native.tables import CODES, FixedTensors, Table

pytestmark = pytest.mark.skipif(kernel() is None, reason="no C kernel was built")


def places_of(*columns):
    return room.Places(*(column.ctypes.data for column in columns))


def asked(tensors):
    columns = [np.zeros(len(tensors), kind) for kind in (np.uint64, np.int64, np.uint8, np.uint64)]
    return room.describe(tensors, places_of(*columns)), *columns


def readable():
    base = torch.randn(40)
    return [
        torch.randn(3, 4),
        Parameter(torch.randn(7)),
        torch.randn(5, requires_grad=True) * 2,
        torch.tensor(1.0),
        torch.empty(0),
        torch.empty(0, 5).t(),
        torch.randn(4, 1, 6).transpose(0, 1),
        base[8:20],
        *(torch.ones(6, dtype=dtype) for dtype in CODES),
    ]


@pytest.mark.parametrize("kind", [list, tuple])
def test_addresses_sizes_and_dtypes_are_those_of_the_tensors(kind):
    tensors = kind(readable())
    good, data, sizes, codes, shapes = asked(tensors)
    assert good
    assert data.tolist() == [tensor.data_ptr() for tensor in tensors]
    assert sizes.tolist() == [tensor.numel() for tensor in tensors]
    assert codes.tolist() == [CODES[tensor.dtype] for tensor in tensors]
    assert len(set(shapes.tolist())) == len({tuple(tensor.shape) for tensor in tensors})


class Own(torch.Tensor):
    """May say anything of itself."""


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 6).t(),
        torch.randn(8)[::2],
        torch.randn(1, 3).expand(2, 3),
        torch.arange(4),
        torch.ones(3, dtype=torch.complex64),
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
        torch.ones(3).as_subclass(Own),
        None,
        "text",
    ],
)
def test_what_the_kernel_can_not_read_as_it_is_gets_a_no(tensor):
    good, *_ = asked([torch.ones(2), tensor, torch.ones(2)])
    assert not good
    # No exception is left behind for the next call to trip over.
    assert asked([torch.ones(2)])[0]


def test_memory_that_was_given_back_gets_a_no():
    gone = torch.randn(10)
    gone.untyped_storage().resize_(0)
    assert not asked([gone])[0]
    with pytest.raises(UnsupportedTensor, match="memory was given back"):
        Table([gone])


def test_any_other_sequence_gets_a_no():
    assert not room.describe(iter([torch.ones(1)]), room.Places(0, 0, 0, 0))


def test_known_sizes_must_be_the_same():
    tensors = [torch.ones(3), torch.ones(4)]
    _, *columns = asked(tensors)
    places = places_of(*columns)
    assert room.describe([torch.ones(3), torch.ones(4)], places, known=True)
    for other in (torch.ones(5), torch.ones(2, 2), torch.ones(4, dtype=torch.float16)):
        assert not room.describe([torch.ones(3), other], places, known=True)
    assert columns[1].tolist() == [3, 4]


def test_an_older_torch_is_asked_tensor_by_tensor(monkeypatch):
    tensors = readable()
    quick = Table(tensors)
    monkeypatch.setattr(room, "_asked", lambda: None)
    slow = Table(tensors)
    for name in ("pointers", "counts", "codes"):
        np.testing.assert_array_equal(getattr(quick, name), getattr(slow, name))


@pytest.mark.parametrize("at_once", [True, False])
def test_a_fixed_list_follows_tensors_that_move_and_change(monkeypatch, at_once):
    if not at_once:
        monkeypatch.setattr(room, "_asked", lambda: None)
    layer = nn.Linear(4, 3)
    fixed = FixedTensors(layer.parameters())
    before = fixed.table()
    assert fixed.table() is before
    layer.weight.data = torch.ones(3, 4)
    assert fixed.table() is before
    assert before.pointers.tolist() == [p.data_ptr() for p in layer.parameters()]
    layer.weight.data = torch.ones(3, 4, dtype=torch.float64)
    after = fixed.table()
    assert after.codes.tolist() == [1, 0]
    assert after.pointers.tolist() == [p.data_ptr() for p in layer.parameters()]
