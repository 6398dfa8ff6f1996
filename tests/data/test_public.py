"""Public data: drawing the samples of the server and removing them from the devices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from undergrowth.core import InputError, Shard
from undergrowth.data import draw_public, hide_labels, partition_dataset, remove_samples

from .samples import table


def test_server_and_devices_share_no_sample_and_none_is_lost() -> None:
    data = table(200, fields={"ward": np.arange(200) % 7})
    taken = draw_public(data, 0.25, None, (), seed=3)
    rest = remove_samples(data, taken)
    assert len(taken) == 50 and len(rest) == 150
    numbers = {*data.shard(taken).x.flatten().tolist(), *rest.x.flatten().tolist()}
    assert numbers == set(range(200))
    assert all(rest.fields["ward"][place] == rest.x[place, 0] % 7 for place in range(150)), (
        "fields follow their samples"
    )
    population = partition_dataset(rest, "natural:ward", None, 3)
    assert sum(population.size(d) + len(population.test(d)) for d in population.devices) == 150


def test_the_draw_depends_only_on_the_seed() -> None:
    data = table(100)
    assert draw_public(data, 0.3, None, (), 1).tolist() == draw_public(data, None, 30, (), 1).tolist()
    assert draw_public(data, 0.3, None, (), 1).tolist() != draw_public(data, 0.3, None, (), 2).tolist()


def test_missing_classes_are_left_out_and_the_fraction_is_of_all_samples() -> None:
    data = table(200, classes=5)
    labels = data.labels[draw_public(data, 0.2, None, (1, 3), 0)]
    assert len(labels) == 40 and set(labels) == {0, 2, 4}
    assert len(draw_public(data, None, None, (1, 3), 0)) == (~np.isin(data.labels, (1, 3))).sum(), (
        "default: all samples"
    )


def test_hidden_labels_are_minus_one() -> None:
    hidden = hide_labels(Shard(torch.ones(3, 2), torch.tensor([0, 1, 2])))
    assert hidden.y.tolist() == [-1, -1, -1] and hidden.x.sum() == 6


@pytest.mark.parametrize(
    ("fraction", "samples", "missing", "words"),
    [
        (0.1, None, (7,), "public.missing 7 is not a class of data set 'table': it has 0 to 4"),
        (0.9, None, (0,), "public.share 0.9 is 54 samples, and data set 'table' has"),
        (None, 61, (), "public.samples 61 is 61 samples, and data set 'table' has 60"),
        (0.001, None, (), "public.share 0.001 is less than one of the 60 samples"),
        (0.1, None, (0, 1, 2, 3, 4), "has no other class"),
    ],
)
def test_an_impossible_draw_is_refused(fraction, samples, missing, words) -> None:
    with pytest.raises(InputError) as caught:
        draw_public(table(), fraction, samples, missing, 0)
    assert words in str(caught.value)


def test_devices_must_keep_samples() -> None:
    data = table()
    with pytest.raises(InputError, match="leave some to devices"):
        remove_samples(data, draw_public(data, 1.0, None, (), 0))
