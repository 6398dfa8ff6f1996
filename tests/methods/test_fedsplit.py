"""FedSplit: which maps are sent, what the server makes of them, what it costs, and that it helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import undergrowth as ug
from tests.methods.test_fedft import digits, digits_task
from tests.methods.test_methods import play, same
from undergrowth.core import Context, Model, Packet, Shard, Task
from undergrowth.devices import Tracer
from undergrowth.learning import features_of
from undergrowth.methods import FedAvg, FedSplit
from undergrowth.models import builder
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.preview import price_devices

Run = Callable[..., ug.Result]
SMALL = {"clients": 6, "rounds": 3, "model": "cnn", "model_options": {"hidden": 16}, "partition": "dirichlet:1"}
FEW = {"train_samples": 500, "test_samples": 100}
SMALL["data_options"] = FEW
FAST = {"meta_epochs": 5, "clusters": 4}
CONTEXT = Context(3, "device-1", 0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def go(method: str = "fedsplit", settings: dict[str, Any] | None = None, **options: Any) -> ug.Result:
        given = {**FAST, **options} if method == "fedsplit" else options
        return ug.run(method, options=given, **{**SMALL, "out": str(tmp_path), **(settings or {})})

    return go


def sent(method: FedSplit, task: Task, shard: Shard, weights: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The maps of a device's upload, and their labels."""
    up, own = method.client.local(task, Packet.join({"model": Packet(weights)}), shard, {}, CONTEXT)
    assert own == {} and up.scalars == {"samples": len(shard)}
    assert up.part("model").tensors.keys() == weights.keys()
    return up.part("maps").tensors["maps"], up.part("maps").tensors["labels"]


@pytest.mark.parametrize("level", ["low", "mid", "up", "head"])
def test_kept_maps_are_real_ones_that_the_received_model_makes(level: str) -> None:
    task, shard = digits_task("wrn-10-1"), digits(150)
    weights = task.model.initial(0)
    maps, labels = sent(FedSplit(level=level, clusters=3), task, shard, weights)
    real = features_of(task, weights, shard.x, level)
    assert maps.shape == (30, *real.shape[1:])
    assert labels.bincount().tolist() == [3] * 10
    places = [next(at for at, each in enumerate(real) if torch.equal(each, one)) for one in maps]
    assert torch.equal(shard.y[places], labels) and len(set(places)) == 30


def counts_of(labels: Tensor) -> list[int]:
    return labels.bincount(minlength=10).tolist()


@pytest.mark.parametrize("selector", ["kmeans", "random", "all"])
def test_how_many_maps_of_a_class_are_kept(selector: str) -> None:
    task, shard = digits_task("mlp"), digits(60)
    few = shard.take(torch.cat([(shard.y == 3).nonzero().flatten(), (shard.y == 5).nonzero().flatten()[:2]]))
    there = counts_of(few.y)
    assert there[3] > 4 > there[5] == 2
    _, labels = sent(FedSplit(selector=selector, clusters=4), task, few, task.model.initial(0))
    assert counts_of(labels) == (there if selector == "all" else [0, 0, 0, 4, 0, 2, 0, 0, 0, 0])


@pytest.mark.parametrize("selector", ["kmeans", "random", "all"])
def test_one_sample_is_enough(selector: str) -> None:
    task, one = digits_task("mlp"), digits(1)
    maps, labels = sent(FedSplit(selector=selector), task, one, task.model.initial(0))
    assert len(maps) == 1 and labels.tolist() == one.y.tolist()


def test_a_model_that_makes_the_same_map_of_everything() -> None:
    task, shard = digits_task("mlp"), digits(100)
    dead = {name: torch.zeros_like(value) for name, value in task.model.initial(0).items()}
    maps, labels = sent(FedSplit(clusters=4), task, shard, dead)
    assert not maps.any() and counts_of(labels) == [4] * 10


def test_the_average_is_fedavgs_bit_for_bit() -> None:
    task, shards = digits_task("mlp"), {"a": digits(40), "b": digits(25, 100)}
    ours, _ = play(FedSplit(**FAST), task, shards, rounds=2)
    assert same(ours["model"], play(FedAvg(), task, shards, rounds=2)[0]["model"])


def test_the_lower_part_is_what_made_the_maps_and_the_upper_part_is_trained_on_them() -> None:
    """Against a plain loop over the maps of both devices; a net with BatchNorm, whose statistics are trained too."""
    task, shards = digits_task("wrn-10-1"), {"a": digits(40), "b": digits(25, 100)}
    method = FedSplit(level="mid", clusters=2, meta_epochs=3, meta_batch=8, meta_lr=0.05)
    received = play(method, task, shards, rounds=1)[0]["model"]
    state, own = play(method, task, shards, rounds=2)
    composed = method.models(task, state, own)["global"]
    upper = {*task.model.trainable("mid"), *task.model.upper_buffers("mid")}
    lower = composed.keys() - upper
    assert "group2.0.norm1.running_mean" in lower and "group3.0.norm1.running_mean" in upper
    assert all(torch.equal(composed[name], received[name]) for name in lower)
    assert not any(torch.equal(state["model"][name], received[name]) for name in lower)

    down, made = Packet.join({"model": Packet(received)}), []
    for device, shard in shards.items():
        up, _ = method.client.local(task, down, shard, {}, Context(9, device, 1, 1))
        made.append(up.part("maps").tensors)
    maps, labels = (torch.cat([each[name] for each in made]) for name in ("maps", "labels"))
    root = Context(9, "root", 1)
    net = task.model.build()
    net.load_state_dict(task.model.initial(root.key("upper part")))
    above = torch.nn.Sequential(*list(net)[list(net._modules).index(task.model.levels["mid"]) :])
    optimiser, order = torch.optim.SGD(above.parameters(), 0.05), root.generator("order")
    for _ in range(3):
        for rows in torch.randperm(len(maps), generator=order).split(8):
            optimiser.zero_grad()
            functional.cross_entropy(above(maps[rows]), labels[rows]).backward()
            optimiser.step()
    expected = net.state_dict()
    for name in upper:
        torch.testing.assert_close(composed[name], expected[name], rtol=1e-5, atol=1e-6)
    assert method.personal(task, state, {}, "a") is composed


class TwoClasses:
    """Two devices with 1 250 samples of each of two classes."""

    devices, classes, shape, name = ("a", "b"), 2, (6,), "clouds"

    def train(self, device: str) -> Shard:
        y = torch.arange(self.size(device)) % 2
        noise = torch.randn(len(y), 6, generator=torch.Generator().manual_seed(ord(device)))
        return Shard(noise + 3 * y[:, None], y)

    def test(self, device: str) -> Shard:
        return self.train(device).take(torch.arange(50))

    def central_test(self) -> Shard:
        return self.test("a")

    def size(self, device: str) -> int:
        return 2500


def test_forty_of_2500_maps_are_one_point_six_percent_of_the_bytes(run: Run) -> None:
    """The figures of the source's table 6.2."""
    settings = {
        "data": TwoClasses(), "data_options": None, "clients": None, "model": "mlp",
        "model_options": {"hidden": [7, 5]}, "rounds": 1, "batch": 500,
    }  # fmt: skip

    def uploads(method: str, **options: Any) -> int:
        rows = list(run(method, {**settings, "partition": None}, **options).ledger.rows())
        (size,) = {row.bytes_up for row in rows}
        assert len(rows) == 2
        return size

    model = uploads("fedavg")
    few, every = (uploads("fedsplit", selector=each, clusters=20) - model for each in ("kmeans", "all"))
    assert every == 2500 * (5 * 4 + 8), "a map of five numbers and a label for every sample"
    assert few / every == 40 / 2500 == 0.016


@pytest.mark.parametrize(("selector", "links"), [("kmeans", {}), ("random", {"up": "int8"}), ("all", {"up": "int8"})])
def test_the_price_knows_how_much_will_be_sent(run: Run, selector: str, links: dict[str, str]) -> None:
    """Devices have other classes and other numbers of samples; the upload's seconds are those of its bytes."""
    settings = {"links": links, "fleet": "mixed-edge", "rounds": 1, "clients": 12, "partition": "dirichlet:0.3"}
    result = run(settings=settings, selector=selector)
    rows = {row.child: row.bytes_up for row in result.ledger.rows()}
    described = {
        "method": {"name": "fedsplit", "selector": selector, **FAST}, "links": links, "fleet": "mixed-edge",
        "data": {"clients": 12, "partition": "dirichlet:0.3", **FEW}, "model": {"name": "cnn", "hidden": 16},
    }  # fmt: skip
    foreseen = {each.device: each.bytes_up for each in price_devices(federate(parse_experiment(described)))}
    assert foreseen == rows and len(set(rows.values())) > 3


def test_the_work_is_that_of_real_execution() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    task, shard = digits_task("cnn"), digits(130)
    down = Packet.join({"model": Packet(task.model.initial(0))})
    client = FedSplit(clusters=4).client
    with FlopCounterMode(display=False) as counter:
        client.local(task, down, shard, {}, CONTEXT)
    work = Tracer(task, client, (1, 8, 8)).work(down, 130, labels=lambda: tuple(shard.y.bincount().tolist()))
    assert work.flops == pytest.approx(counter.get_total_flops(), rel=1e-3)
    plain = replace(down, tags={"plain": "1"})
    assert Tracer(task, client, (1, 8, 8)).work(plain, 130).flops < 0.8 * work.flops


@pytest.mark.parametrize("topology", ["star", "tree:2x3"])
def test_maps_only_travel_when_they_are_used(run: Run, topology: str) -> None:
    settings = {"rounds": 5, "topology": topology, "data_options": None}  # enough test samples to tell models apart
    result = run(settings=settings, meta_every=2)
    model = next(run("fedavg", {"rounds": 1}).ledger.rows()).bytes_up
    rows = [row for row in result.ledger.rows() if row.child.startswith("device")]
    with_maps = {number for number in range(1, 6) if all(row.bytes_up > model for row in rows if row.round == number)}
    without = {number for number in range(1, 6) if all(row.bytes_up == model for row in rows if row.round == number)}
    assert (with_maps, without) == ({2, 4, 5}, {1, 3}), "every second round, and the last"
    flops = [sum(row.flops for row in rows if row.round == number) for number in (1, 2)]
    assert flops[0] < flops[1]
    accuracy = [row["accuracy"] for row in result.history]
    assert accuracy[1] == accuracy[2] and len({row["accuracy/average"] for row in result.history}) == 5


def test_clients_are_stacked(run: Run) -> None:
    serial, vector = (run(settings={"engine": engine}) for engine in ("serial", "vector"))
    assert [row["not_stacked"] for row in vector.history] == [0, 0, 0]
    torch.testing.assert_close(vector.model.state_dict(), serial.model.state_dict(), rtol=1e-3, atol=1e-4)


def test_a_link_sends_what_changed_of_the_model(run: Run) -> None:
    """Top-k of the weights themselves would leave no model; of their changes it is what FedAvg's link sends."""
    sparse = {"links": {"up": "topk:0.1"}, "rounds": 2}
    average = run(settings=sparse).history[-1]["accuracy/average"]
    assert average == run("fedavg", sparse).accuracy


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": "upper"}, "split 'upper' is not a level of this model; did you mean 'up'"),
        ({"selector": "k-means"}, "method.selector 'k-means' is not known; did you mean 'kmeans'"),
        ({"clusters": 0}, "method.clusters 0 must be a finite number at least 1"),
    ],
)
def test_what_cannot_be_is_refused(run: Run, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ug.InputError, match=words):
        run(**options)


@pytest.mark.slow
def test_the_composed_model_is_ahead_of_the_average_and_all_maps_are_better_than_some(run: Run) -> None:
    """Two classes a device, the source's hard case: averages are slow to learn, and maps of all classes are not."""
    settings = {"clients": 10, "partition": "classes:2", "rounds": 3, "engine": "vector", "evaluate_every": 3}
    settings |= {"model_options": {"hidden": 64}, "data_options": None}
    accuracy: dict[str, list[float]] = {"kmeans": [], "all": [], "average": []}
    for seed in (0, 1):
        for selector in ("kmeans", "all"):
            result = run(
                settings={**settings, "seed": seed}, selector=selector, clusters=8, meta_epochs=40, meta_every=3
            )
            accuracy[selector].append(result.accuracy)
        accuracy["average"].append(result.history[-1]["accuracy/average"])
    assert min(accuracy["kmeans"]) > max(accuracy["average"]) + 0.1
    assert sum(accuracy["all"]) > sum(accuracy["kmeans"])


@pytest.mark.parametrize("section", ["start", "model"])
def test_the_new_upper_part_is_random_also_if_the_run_starts_from_a_file(section: str, run: Run) -> None:
    """With a rate of almost 0 it stays as it starts."""
    first = run("fedavg", {"rounds": 1})
    file = str(first.folder / "model.safetensors")
    options = {**SMALL["model_options"], **({"weights": file} if section == "model" else {})}
    settings = {"rounds": 1, "model_options": options, **({"start": {"weights": file}} if section == "start" else {})}
    found = run("fedsplit", settings, meta_lr=1e-30, meta_epochs=1).model.state_dict()
    model = Model(builder("cnn", (1, 8, 8), 10, hidden=16))
    random, upper = model.initial(Context(0, "server", 0).key("upper part")), set(model.trainable("up"))
    expected = {name: (random if name in upper else first.model.state_dict())[name] for name in found}
    torch.testing.assert_close(dict(found), expected, rtol=0, atol=1e-20)
