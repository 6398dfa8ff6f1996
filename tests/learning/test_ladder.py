"""Ladders of models: who gets which, that it stays so, that clients train their own, and what does not go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from undergrowth.core import Collect, Context, InputError, Model, Packet, Shard, Task, Train, View, add_upload
from undergrowth.core.names import RUNG
from undergrowth.core.samplers import NoKnowledge
from undergrowth.learning import AveragingServer, GradientClient
from undergrowth.learning.distillation import check_same_shapes, public_data, shared_levels
from undergrowth.learning.ladder import assign_counts, assign_models
from undergrowth.learning.own_models import uploads_by_path
from undergrowth.learning.planning import ask_each
from undergrowth.models import builder

NAMES = ("small", "large", "middle")  # in this order on purpose


def model(hidden: int) -> Model:
    return Model(builder("mlp", (1, 4, 4), 3, hidden=[hidden, 5]))


def task(deadline: float | None = None, **changes: Any) -> Task:
    ladder = {"small": model(4), "large": model(64), "middle": model(16)}
    return replace(Task(model(128), 3, Train(batch=8, deadline=deadline), ladder=ladder), **changes)


def packets(given: Task) -> Callable[[str], Packet]:
    return cache(lambda name: Packet(given.ladder[name].initial(0), tags={"model": name}))


@dataclass
class Rates(NoKnowledge):
    """Devices that differ in the bytes they can do in a second."""

    rates: dict[str, float]

    def seconds(self, device: str, down: Packet) -> float:
        return down.nbytes / self.rates[device]


def test_a_device_gets_the_largest_model_that_it_can_do_by_the_deadline() -> None:
    given = task(deadline=10.0)
    sizes = {name: packets(given)(name).nbytes for name in NAMES}
    assert sizes["small"] < sizes["middle"] < sizes["large"]
    rates = {"a": sizes["large"] / 10, "b": sizes["large"] / 10.1, "c": sizes["small"] / 10, "d": sizes["small"] / 99}
    view = View(tuple(rates), knowledge=Rates(rates))
    assert assign_models(given, view, packets(given)) == {"a": "large", "b": "middle", "c": "small", "d": "small"}


def test_without_a_deadline_models_are_dealt_in_turn_as_they_are_written() -> None:
    view = View(tuple("abcde"))
    assert list(assign_models(task(), view, packets(task())).values()) == ["small", "large", "middle", "small", "large"]
    alone = replace(task(), ladder={})
    assert set(assign_models(alone, view, packets(task())).values()) == {""}, (
        "without a ladder, all have the run's model"
    )


def test_a_device_keeps_the_model_that_it_has_whatever_is_known_of_it_now() -> None:
    given = task(deadline=1.0)
    heard = {"b": {RUNG: 1.0}, "c": {RUNG: 2.0}}
    view = View(("c", "b"), knowledge=Rates({"b": 1.0, "c": 1e9}), heard=heard)
    assert assign_models(given, view, packets(given)) == {"c": "middle", "b": "large"}


def test_with_counts_slower_devices_get_smaller_models() -> None:
    ladder, speeds = task().ladder, {"a": 5.0, "b": 1.0, "c": 4.0, "d": 2.0, "e": 3.0}
    counts = {"large": 1, "small": 2, "middle": 2}
    assigned = assign_counts(ladder, counts, speeds, seed=0)
    assert assigned == {"b": "small", "d": "small", "e": "middle", "c": "middle", "a": "large"}
    given = replace(task(deadline=1.0), assigned=assigned)
    view = View(("a", "e", "b"), knowledge=Rates(dict.fromkeys(speeds, 1e9)), heard={"a": {RUNG: 0.0}})
    assert assign_models(given, view, packets(given)) == {"a": "large", "e": "middle", "b": "small"}


def test_with_counts_equal_devices_get_models_at_random() -> None:
    speeds, counts = dict.fromkeys("abcdefgh", 1.0), {"small": 5, "large": 3}
    drawn = [assign_counts(task().ladder, counts, speeds, seed) for seed in range(20)]
    for assigned in drawn:
        assert sorted(assigned) == list("abcdefgh")
        assert list(assigned.values()).count("small") == 5
    assert drawn[0] == assign_counts(task().ladder, counts, dict(reversed(speeds.items())), 0)
    assert len({tuple(sorted(assigned.items())) for assigned in drawn}) > 10
    with pytest.raises(InputError, match=r"model\.ladder: the counts 5 \+ 3 add up to 8, and there are 7 devices"):
        assign_counts(task().ladder, counts, dict.fromkeys("abcdefg", 1.0), 0)


def test_packets_of_one_kind_are_sent_one_after_the_other() -> None:
    given, made = task(), packets(task())
    chosen = assign_models(given, View(tuple("abcdef")), made)
    sends = {device: made(name) for device, name in chosen.items()}
    plan = ask_each(AveragingServer(), given, View(tuple("abcdef")), Context(0, "root", 0), sends)
    assert list(plan.packets) == list("adbecf") and plan.packets["a"] is plan.packets["d"]
    everybody = ask_each(
        AveragingServer(), task(5.0), View(tuple("abcdef")), Context(0, "root", 0), sends, everybody=True
    )
    assert everybody.deadline is None and len(everybody.packets) == 6


def shard(count: int = 20) -> Shard:
    generator = torch.Generator().manual_seed(0)
    return Shard(torch.randn(count, 1, 4, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator))


def test_a_client_trains_the_model_that_it_was_sent() -> None:
    given, context = task(), Context(0, "a", 0)
    down = packets(given)("middle")
    up, _ = GradientClient().local(given, down, shard(), {}, context)
    plain, _ = GradientClient().local(replace(given, model=given.ladder["middle"]), down, shard(), {}, context)
    assert all(torch.equal(up.tensors[name], value) for name, value in plain.tensors.items())
    assert up.scalars == {**plain.scalars, RUNG: 2.0}


def conv(channels: int, pool: int = 2, **levels: str) -> Model:
    class Net(nn.Sequential):
        def __init__(self) -> None:
            first = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), nn.MaxPool2d(pool))
            super().__init__(first, nn.Flatten(), nn.Linear(channels * (4 // pool) ** 2, 3))
            self.levels = levels or {"low": "1", "head": "2"}

    return Model(Net)


@pytest.mark.parametrize(
    ("odd", "levels", "outlines", "words"),
    [
        (conv(8), ["low"], [], "its maps at level 'low' are 8×2×2 and those of the run's model 4×2×2"),
        (conv(4, pool=1), [], ["low"], "its maps at level 'low' are 4×4 and those of the run's model 2×2"),
        (conv(4, head="2"), ["low"], [], "split 'low' is not a level of this model"),
        (Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5))), [], [], "its outputs are 5 and those"),
    ],
)
def test_models_that_do_not_go_together_are_refused(odd, levels, outlines, words) -> None:
    given = Task(conv(4), 3, ladder={"fine": conv(4), "odd": odd})
    with pytest.raises(InputError) as caught:
        check_same_shapes(given, shard().x, levels, outlines)
    assert words in str(caught.value) and str(caught.value).startswith("model.ladder 'odd': ")
    check_same_shapes(replace(given, ladder={"fine": conv(4), "wide": conv(8)}), shard().x, [], ["low"])


def test_levels_are_those_that_all_models_name() -> None:
    assert shared_levels(Task(conv(4), 3, ladder={"other": conv(4)})) == ("low",)
    assert shared_levels(Task(conv(4), 3, ladder={"other": conv(4, up="1", head="2")})) == ()


def test_data_that_a_method_needs_is_asked_for() -> None:
    with pytest.raises(InputError, match=r"public: fedat needs data that the server holds; add public: 0\.1"):
        public_data(task(), "fedat")
    hidden = Shard(torch.zeros(2, 1), torch.tensor([-1, -1]))
    assert public_data(task(public=hidden), "fedkad") is hidden
    with pytest.raises(InputError, match=r"public\.labelled false: fedat learns from the labels"):
        public_data(task(public=hidden), "fedat", labelled=True)


def test_uploads_are_found_by_their_way_through_a_tree() -> None:
    def up(value: float) -> Packet:
        return Packet({"w": torch.tensor([value]), "metadata/maps": torch.zeros(2)}, {RUNG: 0.0})

    reducer = Collect()
    edge = add_upload(reducer, add_upload(reducer, None, "c", up(3)), "b", up(2))
    level = add_upload(reducer, None, "edge-00", edge)
    total = add_upload(reducer, add_upload(reducer, None, "a", up(1)), "level-00", level)
    found = uploads_by_path(total)
    assert {path: float(sent.tensors["w"]) for path, sent in found.items()} == {
        "a": 1.0, "level-00/edge-00/b": 2.0, "level-00/edge-00/c": 3.0,
    }  # fmt: skip
    assert found["a"].part("metadata").tensors["maps"].shape == (2,)
