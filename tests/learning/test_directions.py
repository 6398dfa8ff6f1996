"""Directions: the same bits everywhere, independent of how they are divided, and normally distributed."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import Tensor

from tests.learning.streams import normals
from undergrowth.learning.directions import GAMMA, LEVELS, derive, divide, mix, signed, streams, table

CPU = torch.device("cpu")
KEY = torch.tensor(1234567)


def digest(values: Tensor) -> str:
    return hashlib.sha256(values.numpy().astype("<f4").tobytes()).hexdigest()[:16]


def test_words_are_those_of_splitmix64() -> None:
    # The first outputs of the published generator for the seed 1234567.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    states = torch.tensor([signed(1234567 + (number + 1) * GAMMA) for number in range(4)])
    assert mix(states).tolist() == [signed(number) for number in published]


def test_the_bits_are_these_on_every_machine() -> None:
    assert digest(table(CPU)) == "8babbcaf96568f10"
    assert digest(normals(KEY, 0, 1000)) == "7759b8bc2f7b2bba"
    assert derive(KEY, 3).item() == -4983979417304156754


def test_no_entry_of_the_table_depends_on_the_last_digits_of_float64() -> None:
    for change in (1 - 2e-13, 1 + 2e-13):
        lower = torch.special.ndtri((torch.arange(LEVELS // 2, dtype=torch.float64) + 0.5) / LEVELS)
        lower /= lower.square().mean().sqrt()
        assert torch.equal((lower * change).float(), table(CPU)[: LEVELS // 2])


def test_numbers_do_not_depend_on_chunks_streams_and_threads() -> None:
    whole = normals(KEY, 0, 1003)
    assert torch.equal(torch.cat([normals(KEY, 0, 400), normals(KEY, 400, 600), normals(KEY, 1000, 3)]), whole)
    assert torch.equal(normals(torch.stack([KEY + 1, KEY]), 0, 1003)[1], whole)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(normals(KEY, 0, 200_000)[:1003], whole)
    finally:
        torch.set_num_threads(before)


def test_streams_that_are_generated_together_have_the_numbers_of_each() -> None:
    sizes = [(0, 3), (1, 50), (3, 0), (4, 1), (2, 8)]  # stream 2 comes last, and stream 3 is empty
    keys = streams(torch.stack([KEY, KEY + 1]), 5)
    assert torch.equal(keys[:, 3], torch.stack([derive(KEY, 3), derive(KEY + 1, 3)]))
    parts: dict[int, list[Tensor]] = {stream: [] for stream, _ in sizes}
    for chunk in divide(sizes, 16, CPU):
        numbers = chunk.normals(keys)
        assert numbers.shape[1] <= 16
        for piece, part in zip(chunk.pieces, chunk.split(numbers), strict=True):
            parts[piece.stream].append(part)
    assert not parts.pop(3)
    for stream, size in sizes:
        if size:
            assert torch.equal(torch.cat(parts[stream], 1), normals(keys[:, stream], 0, size))


def test_the_table_has_the_moments_of_a_normal_distribution() -> None:
    values = table(CPU).double()
    assert values.mean().abs() < 1e-12
    assert values.square().mean().item() == pytest.approx(1, abs=1e-7)
    assert values.pow(4).mean().item() == pytest.approx(3, abs=1e-3)
    assert values.max().item() == pytest.approx(4.325, abs=1e-3)


def test_streams_are_normal_and_independent() -> None:
    count = 200_000
    found = torch.stack([normals(derive(KEY, number), 0, count) for number in range(4)]).double()
    assert found.mean(1).abs().max() < 5 / count**0.5
    assert (found.var(1) - 1).abs().max() < 5 * (2 / count) ** 0.5
    correlations = torch.corrcoef(torch.cat([found[:, :-1], found[:, 1:]]))  # also with their successors
    assert (correlations - torch.eye(8)).abs().max() < 5 / count**0.5
    expected = torch.special.ndtr(found[0].sort().values)
    steps = (torch.arange(count) + 0.5) / count
    assert (expected - steps).abs().max() < 2 / count**0.5  # Kolmogorov and Smirnov: 1.36 in 95 of 100 cases


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_has_the_same_bits() -> None:
    assert torch.equal(normals(KEY.cuda(), 4, 1_000_001).cpu(), normals(KEY, 4, 1_000_001))
