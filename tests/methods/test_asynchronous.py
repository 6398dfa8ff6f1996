"""FedBuff and FedAsync: what each event does to the model, in the order that simulated time gives them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn

from undergrowth.core import Answer, Client, Context, InputError, Method, Model, Node, Packet, Shard, State, Task, Train
from undergrowth.engines import SerialEngine, World
from undergrowth.methods import FedAsync, FedAvg, FedBuff
from undergrowth.simulation import Simulation

from ..simulation.federations import Given

PACES = {"a": 1.0, "b": 2.5, "c": 4.0}
TASK = Task(Model(lambda: nn.Linear(4, 3)), classes=3, train=Train(epochs=2, batch=4, lr=0.1))
SIZES = {"a": 8, "b": 15, "c": 5}
SEED = 9


class Shards:
    def train(self, device: str) -> Shard:
        generator = torch.Generator().manual_seed(ord(device))
        count = SIZES.get(device, 6)
        return Shard(torch.randn(count, 4, generator=generator), torch.arange(count) % 3)


def simulate(
    method: Method, rounds: int, seconds: Mapping[str, float] = PACES, client: Client | None = None, task: Task = TASK
) -> Simulation:
    root = Node("root", method.server, task, tuple(seconds), rounds, seed=SEED)
    world = World(task, client or method.client, {"root": method.server}, Shards())
    simulation = Simulation({"root": root}, {}, SerialEngine(), world, Given(seconds))
    simulation.start()
    return simulation


def versions(simulation: Simulation) -> list[dict[str, Tensor]]:
    """The model after every version."""
    return [dict(simulation.root.state["model"]) for _ in simulation.rounds()]


def start() -> dict[str, Tensor]:
    return TASK.model.initial(Context(SEED, "root", 0).key("model"))


@dataclass
class Constant:
    """Sends the change that a test gives, and keeps who was asked when."""

    change: Mapping[str, float]
    samples: Mapping[str, float]
    asked: list[tuple[str, int, int]] = field(default_factory=list)

    def local(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Packet, State]:
        self.asked.append((context.node, context.round, context.turn))
        change = {name: torch.full_like(value, self.change[context.node]) for name, value in down.tensors.items()}
        count = {"samples": self.samples[context.node]}
        return Packet.join({"change": Packet(change, count), "count": Packet(scalars=count)}), own


# With K = 2 and all three at work: at 1 and 2 comes a; at 2.5 b, of the first version; at 3 a; at 4 c, of the first
# version, and a; at 5 b, of the second version, and a. Each line: who counts in a version, and how old the change is.
BUFFERED = [[("a", 0), ("a", 0)], [("b", 1), ("a", 0)], [("c", 2), ("a", 0)], [("b", 2), ("a", 0)]]


@pytest.mark.parametrize("staleness", ["constant", "polynomial:0.5", "hinge:2:1"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedbuff_steps_as_computed_by_hand(staleness, weighting):
    change, samples = {"a": 1.0, "b": 10.0, "c": 100.0}, {"a": 1.0, "b": 2.0, "c": 3.0}
    share = {
        "constant": {0: 1.0, 1: 1.0, 2: 1.0},
        "polynomial:0.5": {0: 1.0, 1: 2**-0.5, 2: 3**-0.5},
        "hinge:2:1": {0: 1.0, 1: 1.0, 2: 1 / 3},
    }[staleness]
    method = FedBuff(buffer=2, concurrency=3, server_lr=0.5, staleness=staleness, weighting=weighting)
    client = Constant(change, samples)
    simulation = simulate(method, 4, client=client)
    expected = 0.0
    for model, buffer in zip(versions(simulation), BUFFERED, strict=True):
        weight = samples if weighting == "samples" else dict.fromkeys(samples, 1.0)
        total = sum(weight[name] for name, _ in buffer)
        expected += 0.5 * sum(weight[name] * share[age] * change[name] for name, age in buffer) / total
        for name, value in start().items():
            torch.testing.assert_close(model[name] - value, torch.full_like(value, expected))
    assert simulation.now == 5.0


def test_fedbuff_asks_in_the_order_of_events_and_takes_ages_from_versions():
    client = Constant(dict.fromkeys(PACES, 0.0), dict.fromkeys(PACES, 1.0))
    simulation = simulate(FedBuff(buffer=2, concurrency=3), 4, client=client)
    ends = [end for some in simulation.rounds() for end in some]
    assert [end.arrived for end in ends] == [tuple(name for name, _ in buffer) for buffer in BUFFERED]
    # Device, version it was sent, how often it was asked before. Work is done when a result is first needed.
    assert sorted(client.asked) == [
        ("a", 0, 0), ("a", 0, 1), ("a", 1, 2), ("a", 2, 3), ("a", 3, 4), ("b", 0, 0), ("b", 1, 1), ("c", 0, 0),
        ("c", 3, 1),
    ]  # fmt: skip
    assert {entry.child for entry in simulation.ledger.take() if entry.outcome == "late"} == {"c"}


# Every line is an instant: who comes, of which version it was sent, how often it was asked before.
MIXED = [
    [("a", 0, 0)], [("a", 1, 1)], [("b", 0, 0)], [("a", 2, 2)], [("a", 4, 3), ("c", 0, 0)], [("a", 5, 4), ("b", 3, 1)],
]  # fmt: skip


def share_of(staleness: str, age: int) -> float:
    kind, *numbers = staleness.split(":")
    if kind == "polynomial":
        return (1 + age) ** -float(numbers[0])
    if kind == "hinge" and age > float(numbers[1]):
        return 1 / (1 + float(numbers[0]) * (age - float(numbers[1])))
    return 1.0


@pytest.mark.parametrize("staleness", ["constant", "polynomial:0.5", "hinge:10:2"])
@pytest.mark.parametrize(("alpha", "mu"), [(0.6, 0.0), (1.0, 0.5)])
def test_fedasync_is_the_loop_over_the_known_events(staleness, alpha, mu):
    method = FedAsync(alpha=alpha, staleness=staleness, concurrency=3, mu=mu)
    models = [start()]
    for version, instant in enumerate(MIXED):
        model = models[-1]
        for name, sent, turn in instant:
            context = Context(SEED, name, sent, turn)
            up, _ = method.client.local(TASK, Packet(models[sent]), Shards().train(name), {}, context)
            rate = alpha * share_of(staleness, version - sent)
            model = {k: (1 - rate) * v + rate * up.tensors[k] for k, v in model.items()}
        models.append(model)
    found = versions(simulate(method, len(MIXED)))
    assert len(found) == len(MIXED)
    for model, expected in zip(found, models[1:], strict=False):
        torch.testing.assert_close(model, expected)


@pytest.mark.parametrize("rounds", [1, 5])
@pytest.mark.parametrize("staleness", ["constant", "polynomial:3"])
def test_fedbuff_of_everybody_at_one_pace_is_fedavg(rounds, staleness):
    equal = dict.fromkeys(SIZES, 2.0)
    average = versions(simulate(FedAvg(), rounds, equal))
    buffered = versions(simulate(FedBuff(buffer=3, concurrency=3, staleness=staleness), rounds, equal))
    assert len(average) == len(buffered) == rounds
    for one, other in zip(average, buffered, strict=False):
        torch.testing.assert_close(other, one)


@pytest.mark.parametrize("lr", [0.5, 1.0, 3.0])
def test_fedbuff_leaves_statistics_out_of_the_servers_rate(lr):
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    train = replace(TASK.train, batch=100)  # no batch of one sample
    task, equal = replace(TASK, model=Model(build), train=train), dict.fromkeys(SIZES, 2.0)
    average = versions(simulate(FedAvg(server_lr=lr), 3, equal, task=task))
    buffered = versions(simulate(FedBuff(buffer=3, concurrency=3, server_lr=lr), 3, equal, task=task))
    for one, other in zip(average, buffered, strict=True):
        torch.testing.assert_close(other, one)
        assert one["1.num_batches_tracked"] > 0


def test_an_old_update_moves_statistics_towards_its_own_and_makes_no_counter_smaller():
    task = replace(TASK, model=Model(lambda: nn.BatchNorm1d(2)))
    server, model = FedBuff(staleness="polynomial:0.5").server, task.model.initial(0)
    model = {**model, "num_batches_tracked": torch.tensor(9)}
    change = {name: torch.full_like(value, -2) for name, value in model.items()}
    change |= {"running_var": torch.tensor([0.25, 4.0]), "num_batches_tracked": torch.tensor(4)}
    one = {"samples": 1.0}
    up = Packet.join({"change": Packet(change, one), "count": Packet(scalars=one)})
    after = server.step(task, {"model": model}, server.reducer.lift("a", up, 3), Context(0, "root", 1))["model"]
    assert after["weight"].tolist() == [0, 0] and after["running_mean"].tolist() == [-1, -1]
    assert after["running_var"].tolist() == [0.625, 2.5] and after["num_batches_tracked"] == 9


def test_stale_updates_leave_statistics_between_those_of_devices_and_the_model_usable():
    """With changes of statistics in place of their means, variances fell to 0."""
    layers = (nn.Flatten(), nn.AvgPool1d(4), nn.BatchNorm1d(1), nn.Linear(1, 3))  # means of 4 have variance 1/4
    train = replace(TASK.train, batch=3, epochs=10)
    task = replace(TASK, model=Model(lambda: nn.Sequential(*copy.deepcopy(layers))), train=train)
    paces = {name: 1.0 + 0.3 * number for number, name in enumerate("defghijk")}
    found = versions(simulate(FedBuff(buffer=2, concurrency=8, staleness="constant"), 12, paces, task=task))
    assert all(0.05 < float(model["2.running_var"]) <= 1 for model in found)


def test_fedasync_leaves_out_a_model_that_was_trained_on_no_sample():
    """c has no sample to train on, so it returns the model as it was sent, a version ago."""
    root = Node("root", FedAsync(concurrency=2).server, TASK, ("a", "c"), 2, seed=SEED)
    root.start()
    first, second = root.advance()
    up, _ = FedAsync().client.local(TASK, first.packet, Shards().train("a"), {}, Context(SEED, *first.id))
    root.receive(Answer(first.id, up))
    root.advance()
    before = dict(root.state["model"])
    none = Shard(torch.ones(0, 4), torch.zeros(0, dtype=torch.int64))
    up, _ = FedAsync().client.local(TASK, second.packet, none, {}, Context(SEED, *second.id))
    root.receive(Answer(second.id, up))
    root.advance()
    assert root.done and all(torch.equal(root.state["model"][name], value) for name, value in before.items())


def test_fedbuff_of_a_cohort_at_one_pace_is_fedavg_of_that_sample():
    equal = dict.fromkeys("abcdef", 1.0)
    sampling = replace(TASK, train=replace(TASK.train, sample=0.5))
    average = versions(simulate(FedAvg(), 4, equal, task=sampling))
    for task in (TASK, sampling):  # how many are at work is the method's own option: the run's share changes nothing
        buffered = versions(simulate(FedBuff(buffer=3, concurrency=3), 4, equal, task=task))
        for one, other in zip(average, buffered, strict=True):
            torch.testing.assert_close(other, one)


@pytest.mark.parametrize("method", [FedBuff(buffer=3, concurrency=4), FedAsync(concurrency=4)])
def test_never_more_devices_are_at_work_than_said_and_as_many_as_can_be(method):
    simulation = simulate(method, 12, {name: 1.0 + 0.37 * place for place, name in enumerate("abcdefg")})
    entries = [entry for _ in simulation.rounds() for entry in simulation.ledger.take()]
    moments = [entry.start for entry in entries]
    at_work = [sum(entry.start <= moment < entry.end for entry in entries) for moment in moments]
    assert max(at_work) == 4
    assert all(count == 4 for count, moment in zip(at_work, moments, strict=False) if moment < max(moments))


@pytest.mark.parametrize("buffer", [1, 2, 7])
def test_a_buffer_may_be_smaller_or_larger_than_the_number_of_devices(buffer):
    simulation = simulate(FedBuff(buffer=buffer, concurrency=3), 4)
    ends = [end for some in simulation.rounds() for end in some]
    assert [len(end.arrived) >= buffer for end in ends] == [True] * 4
    assert all(len(end.arrived) < buffer + 3 for end in ends)


@pytest.mark.parametrize("method", [FedBuff, FedAsync])
@pytest.mark.parametrize("text", ["linear", "polynomial", "polynomial:-1", "hinge:1", "constant:1", "polynomial:x", ""])
def test_a_wrong_staleness_is_refused_by_name(method, text):
    with pytest.raises(InputError, match=rf"method\.staleness '{text}' (is not known; |must be )"):
        method(staleness=text).check()


class SomeAlwaysFail(Given):
    """Devices that fail in the instant in which they are asked, whatever for."""

    def __init__(self, seconds: Mapping[str, float], failing: Sequence[str]) -> None:
        super().__init__(seconds)
        self.failing = failing

    def timing(self, device, *arguments):
        timing = super().timing(device, *arguments)
        return timing.cut(0.0)._replace(lost="it cannot") if device in self.failing else timing


@pytest.mark.parametrize("method", [FedBuff(buffer=2, concurrency=2), FedAsync(concurrency=2), FedAvg()])
@pytest.mark.parametrize("failing", ["a", "abc", "bcd", "abcd"])
def test_devices_that_fail_at_once_are_asked_once_a_version_and_hold_up_nobody(method, failing):
    simulation = simulate(method, 5, dict.fromkeys("abcd", 1.0))
    simulation.clock = SomeAlwaysFail(dict.fromkeys("abcd", 1.0), failing)
    ends = [end for some in simulation.rounds() for end in some]
    assert len(ends) == 5
    assert all(end.abandoned == (failing == "abcd") for end in ends)
    assert all(set(end.lost) <= set(failing) for end in ends)
    lost = [(entry.child, entry.round) for entry in simulation.ledger.take() if entry.outcome == "lost"]
    assert len(lost) == len(set(lost))


@pytest.mark.parametrize("method", [FedBuff(buffer=2, concurrency=3), FedAsync(concurrency=3)])
def test_a_deadline_means_nothing_where_there_are_no_rounds(method):
    hurried = replace(TASK, train=replace(TASK.train, deadline=0.01, quorum=0.5))
    plain, with_deadline = simulate(method, 5), simulate(method, 5, task=hurried)
    most = 0
    found = []
    for _ in with_deadline.rounds():
        found.append(dict(with_deadline.root.state["model"]))
        most = max(most, len(with_deadline.snapshot()["events"]))
    for one, other in zip(versions(plain), found, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0)
    assert most <= 3  # what is under way, and no alarms
