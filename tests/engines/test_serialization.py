"""Serialized objects come back as they were, with their tensors outside of the pickle."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("ray")

from undergrowth.core import Model, Packet
from undergrowth.engines.ray_cluster.serialization import SerializedObject, deserialize, serialize
from undergrowth.engines.ray_cluster.worker_pool import gpu_fraction

TENSORS = {
    "matrix": torch.arange(6.0).reshape(2, 3),
    "number": torch.tensor(3.5),
    "half": torch.arange(3).to(torch.bfloat16),
    "flags": torch.tensor([True, False]),
    "nothing": torch.empty(0, 4),
    "turned": torch.arange(6).reshape(2, 3).T,
    "every second": torch.arange(6)[::2],
}


def over_a_link(serialized: SerializedObject) -> SerializedObject:
    """Makes the buffers read-only, as an object store does."""
    return SerializedObject(
        serialized.pickled, [np.asarray(memoryview(bytes(buffer))) for buffer in serialized.buffers]
    )


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("value", TENSORS.values(), ids=TENSORS.keys())
def test_tensors(value: Tensor, copy: bool):
    back = deserialize(over_a_link(serialize(value)), copy=copy)
    assert (back.dtype, back.shape) == (value.dtype, value.shape)
    assert torch.equal(back, value)


def test_large_values_are_outside_of_the_pickle():
    serialized = serialize({"packet": Packet({"w": torch.zeros(10_000)}), "array": np.zeros(10_000)})
    assert len(serialized.pickled) < 1000
    assert [len(buffer) for buffer in serialized.buffers] == [40_000, 80_000]


def test_empty_arrays():
    assert deserialize(over_a_link(serialize(np.zeros((0, 3))))).shape == (0, 3)


def test_a_copy_may_be_written_into_and_is_aligned_like_other_tensors():
    tensor, array = deserialize(over_a_link(serialize((torch.zeros(3), np.zeros(3)))))
    tensor += 1
    array += 1
    assert tensor.data_ptr() % 64 == 0


def test_an_object_that_occurs_twice_is_serialized_once():
    one = torch.zeros(3)
    first, second = deserialize(serialize([one, one]))
    assert first is second


def test_models_made_by_closures():
    width = 5
    model = Model(lambda: nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2)))
    back = deserialize(over_a_link(serialize(model)))
    x, weights = torch.randn(4, 3), model.initial(3)
    assert torch.equal(back(weights, x), model(weights, x))
    assert all(torch.equal(value, weights[name]) for name, value in back.initial(3).items())
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(model)


@pytest.mark.parametrize(
    ("workers", "there", "each"), [(None, 4, 1), (4, 4, 1), (2, 4, 1), (8, 4, 0.5), (9, 4, 1 / 3), (8, 0, 1)]
)
def test_the_fraction_of_a_gpu_that_a_worker_gets(workers, there, each):
    assert gpu_fraction(workers, there) == each
