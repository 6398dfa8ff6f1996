"""A population of the user whose attributes or functions are wrong is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from undergrowth.core import InputError, Shard

from .objects import Own, digest, linear


def raise_error(*_):
    raise OSError("no such disk")


OWN_POPULATIONS = [
    ({"devices": 3}, "data 'own': devices is a int; it must be a tuple or list of names"),
    ({"devices": {"a", "b"}}, "data 'own': devices is a set; it must be a tuple or list of names"),
    ({"devices": (1, 2)}, "data 'own': the device name 1 must be a text"),
    ({"shape": 6}, "data 'own': shape is 6; it must be the shape of one sample"),
    ({"shape": (5,)}, "data 'own': a sample of train('phone-0') has shape (6,), but shape is (5,)"),
    ({"classes": None}, "data 'own': classes is None; it must be a whole number of at least 1"),
    ({"size": lambda _: "8"}, "data 'own': size('phone-0') is '8'; it must be a whole number of at least 0"),
    ({"size": lambda _: -1}, "data 'own': size('phone-0') is -1; it must be a whole number of at least 0"),
    ({"train": lambda _: None}, "data 'own': train('phone-0') is a NoneType; it must be a Shard"),
    ({"train": lambda _: Shard([1], [2])}, "data 'own': train('phone-0') must hold x and y as tensors"),
    (
        {"train": lambda _: Shard(torch.zeros(8, 6), torch.zeros(3, dtype=torch.int64))},
        "data 'own': train('phone-0') has 8 inputs and 3 labels; they must be equal",
    ),
    ({"train": raise_error}, "data 'own': train('phone-0') failed: OSError: no such disk"),
    ({"test": lambda _: None}, "data 'own': test('phone-0') is a NoneType; it must be a Shard"),
    ({"central_test": raise_error}, "data 'own': central_test() failed: OSError: no such disk"),
    ({"public": 3}, "data 'own': public is a int; it must be a Shard"),
]


@pytest.mark.parametrize(("attributes", "words"), OWN_POPULATIONS, ids=range(len(OWN_POPULATIONS)))
def test_a_population_with_attributes_of_a_wrong_type_is_refused(run, out, attributes, words):
    kind = type("Wrong", (Own,), dict.fromkeys(attributes))
    found = kind()
    for name, value in attributes.items():
        setattr(found, name, value)
    with pytest.raises(InputError) as caught:
        run(data=found, model=linear)
    assert words in str(caught.value)
    assert not Path(out).exists()


def test_sizes_of_numpy_give_the_same_run(run):
    class Counted(Own):
        def size(self, device):
            return np.int64(super().size(device))

    found, expected = run(data=Counted(), model=linear), run(data=Own(), model=linear)
    assert digest(found) == digest(expected) and found.clients == expected.clients
    assert list(found.ledger.rows()) == list(expected.ledger.rows())
