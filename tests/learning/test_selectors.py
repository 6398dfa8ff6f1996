"""On which samples a device trains, against direct computations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from undergrowth.core import InputError, Model, Shard, Task
from undergrowth.learning import (
    AllSelector,
    EntropySelector,
    FewShotSelector,
    HighestLossSelector,
    KMeansSelector,
    RandomSelector,
    Selector,
)
from undergrowth.learning.clustering import nearest_to_centres, principal
from undergrowth.learning.gradient_client import shuffled_steps
from undergrowth.learning.selectors import build_selector as by_name


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def many(count: int) -> Shard:
    g = generator(1)
    return Shard(torch.randn(count, 4, generator=g) * 3, torch.randint(0, 3, (count,), generator=g))


def test_all_is_all(task: Task, weights: dict[str, Tensor], shard: Shard) -> None:
    assert AllSelector().pick(task, weights, shard, generator()).tolist() == list(range(23))


@pytest.mark.parametrize(("fraction", "count"), [(0.001, 1), (0.1, 2), (0.5, 12), (1.0, 23)])
def test_a_fraction_is_so_many_different_samples(
    task: Task, weights: dict[str, Tensor], shard: Shard, fraction: float, count: int
) -> None:
    for selector in (RandomSelector(fraction), EntropySelector(fraction), HighestLossSelector(fraction)):
        picked = selector.pick(task, weights, shard, generator())
        assert len(picked) == len(picked.unique()) == count
        assert picked.tolist() == sorted(picked.tolist()) and picked.min() >= 0 and picked.max() < 23


def test_a_random_fraction_hangs_on_the_generator(task: Task, weights: dict[str, Tensor], shard: Shard) -> None:
    first, again, other = (RandomSelector(0.5).pick(task, weights, shard, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_entropy_picks_what_a_direct_computation_picks(task: Task, weights: dict[str, Tensor]) -> None:
    shard = many(700)  # more than one evaluation batch
    net = task.model.build().eval()
    net.load_state_dict(weights)
    with torch.no_grad():
        chances = (net(shard.x).double() / 0.1).softmax(1)
    entropy = -(chances * chances.clamp_min(1e-300).log()).sum(1)
    picked = EntropySelector(0.1).pick(task, weights, shard, generator())
    assert len(picked) == 70
    rest = torch.ones(700, dtype=torch.bool)
    rest[picked] = False
    assert entropy[picked].min() >= entropy[rest].max() - 1e-6


def test_highest_loss_picks_what_a_direct_computation_picks(task: Task, weights: dict[str, Tensor]) -> None:
    shard = many(40)
    net = task.model.build().eval()
    net.load_state_dict(weights)
    with torch.no_grad():
        losses = functional.cross_entropy(net(shard.x), shard.y, reduction="none")
    assert HighestLossSelector(0.25).pick(task, weights, shard, generator()).tolist() == sorted(
        losses.topk(10).indices.tolist()
    )


def test_k_means_picks_a_fraction_of_every_class_as_a_direct_computation_does(
    task: Task, weights: dict[str, Tensor]
) -> None:
    shard = many(200)
    net = task.model.build().eval()
    net.load_state_dict(weights)
    with torch.no_grad():
        features = net.second(net.first(shard.x))
    draws, expected = generator(6), []
    for label in range(3):
        places = (shard.y == label).nonzero().flatten()
        points, wanted = principal(features[places], 200), round(0.1 * len(places))
        expected += places[nearest_to_centres(points, wanted, draws)].tolist()
    picked = KMeansSelector(0.1).pick(task, weights, shard, generator(6))
    assert picked.tolist() == sorted(expected)
    counts = [round(0.1 * int(count)) for count in shard.y.bincount()]
    assert shard.y[picked].bincount().tolist() == counts and sum(counts) == pytest.approx(20, abs=2)


def test_among_equals_the_earlier_sample_wins(task: Task, weights: dict[str, Tensor]) -> None:
    shard = Shard(torch.ones(8, 4), torch.zeros(8, dtype=torch.int64))
    assert EntropySelector(0.5).pick(task, weights, shard, generator()).tolist() == [0, 1, 2, 3]


def test_few_shots_are_the_same_number_of_every_class(task: Task, weights: dict[str, Tensor]) -> None:
    shard = Shard(torch.randn(30, 4, generator=generator()), torch.tensor([0] * 20 + [2] * 8 + [1] * 2))
    picked = FewShotSelector(4).pick(task, weights, shard, generator())
    assert len(picked.unique()) == len(picked)
    assert shard.y[picked].bincount().tolist() == [4, 2, 4], "a class with fewer gives what it has"


def test_few_shots_are_drawn_anew_each_epoch_and_a_fraction_is_not(task: Task, weights: dict[str, Tensor]) -> None:
    shard = many(60)

    def epochs(selector: Selector) -> list[tuple[int, ...]]:
        steps = shuffled_steps(task, weights, shard, selector, 5, 4, generator())
        return [tuple(order.tolist()) for order in steps.epochs]

    few, half = epochs(FewShotSelector(3)), epochs(RandomSelector(0.5))
    assert len({frozenset(order) for order in few}) > 1 and all(len(order) == 9 for order in few)
    assert len({frozenset(order) for order in half}) == 1, "picked once"
    assert len(set(half)) == 5, "but in a fresh order each epoch"


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.01, float("nan")])
def test_a_fraction_out_of_range_is_refused(
    task: Task, weights: dict[str, Tensor], shard: Shard, fraction: float
) -> None:
    for selector in (
        RandomSelector(fraction),
        EntropySelector(fraction),
        HighestLossSelector(fraction),
        KMeansSelector(fraction),
    ):
        with pytest.raises(InputError, match=f"fraction {fraction} must be above 0"):
            selector.pick(task, weights, shard, generator())


@pytest.mark.parametrize(
    "selector",
    [
        AllSelector(),
        RandomSelector(0.1),
        EntropySelector(0.1),
        HighestLossSelector(0.1),
        KMeansSelector(0.1),
        FewShotSelector(2),
    ],
    ids=repr,
)
@pytest.mark.parametrize("count", [0, 1])
def test_a_tiny_shard_gives_what_it_has(task: Task, weights: dict[str, Tensor], selector: Selector, count: int) -> None:
    assert selector.pick(task, weights, many(count), generator()).tolist() == list(range(count))


def test_picking_leaves_the_weights_and_the_global_generator_alone(
    task: Task, weights: dict[str, Tensor], shard: Shard
) -> None:
    before = {name: value.clone() for name, value in weights.items()}
    state = torch.random.get_rng_state()
    for selector in (
        RandomSelector(0.3),
        EntropySelector(0.3),
        HighestLossSelector(0.3),
        KMeansSelector(0.3),
        FewShotSelector(),
    ):
        selector.pick(task, weights, shard, generator())
    assert all(torch.equal(weights[name], before[name]) for name in before)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_selector_that_picks_nothing_says_so(task: Task, weights: dict[str, Tensor], shard: Shard) -> None:
    with pytest.raises(NotImplementedError, match="pick"):
        Selector().pick(task, weights, shard, generator())


NAMED = {
    "all": AllSelector(),
    "random:0.25": RandomSelector(0.25),
    "random:1": RandomSelector(1.0),
    "entropy:0.5": EntropySelector(0.5),
    "entropy:0.5:2": EntropySelector(0.5, 2.0),
    "loss:0.1": HighestLossSelector(0.1),
    "kmeans:0.02": KMeansSelector(0.02),
    "few-shot:4": FewShotSelector(4),
}


@pytest.mark.parametrize("text", NAMED)
def test_a_selector_by_name(text: str) -> None:
    assert by_name(text) == NAMED[text]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("entropi:0.5", "is not known; did you mean 'entropy'?"),
        ("all:1", "must be all"),
        ("random", "must be random:FRACTION with FRACTION a finite number above 0 and of at most 1"),
        ("random:0", "must be random:FRACTION with FRACTION a finite number above 0 and of at most 1"),
        ("random:1.5", "must be random:FRACTION"),
        ("random:nan", "must be random:FRACTION"),
        ("random:half", "must be random:FRACTION"),
        ("random:0.5:1", "must be random:FRACTION"),
        ("entropy:0.5:0", "must be entropy:FRACTION[:TEMPERATURE]"),
        ("entropy:0.5:1:1", "must be entropy:FRACTION["),
        ("kmeans:", "must be kmeans:FRACTION"),
        ("few-shot:99999999999999999999", "must be few-shot:N"),
        ("few-shot:2.5", "must be few-shot:N"),
        ("few-shot:0", "must be few-shot:N with N a whole number of at least 1 and of at most 1e+09"),
        ("few-shot", "must be few-shot:N"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        by_name(text)
    assert str(caught.value).startswith(f"train.selector '{text}' {words}") and "\n" not in str(caught.value)


def test_samples_that_a_model_is_sure_of_are_still_ranked() -> None:
    """At a temperature of 0.1 single precision knows no entropy of a sample whose first two logits are 10 apart."""
    task = Task(Model(lambda: nn.Linear(10, 10, bias=False)), 10)
    margins = torch.arange(30.0, 20.0, -1)
    shard = Shard(margins.unsqueeze(1) * torch.eye(10)[0], torch.zeros(10, dtype=torch.int64))
    picked = EntropySelector(0.5).pick(task, {"weight": torch.eye(10)}, shard, generator())
    assert picked.tolist() == [5, 6, 7, 8, 9]
