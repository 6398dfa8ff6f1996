"""HeteroFL, FjORD and FedRolex: what each must equal, what it leaves alone, what it costs, and whom it keeps in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import undergrowth as ug
from tests.double_precision import ATOL, RTOL, double_data, double_model
from undergrowth.core import Answer, Ask, Context, InputError, Method, Model, Node, Packet, Receipt, Shard, Task, Train
from undergrowth.learning import widths_of
from undergrowth.methods import METHODS, FedRolex, FjORD, HeteroFL
from undergrowth.models import builder
from undergrowth.runs.execution import start

from ..conformance import weights
from ..fleet_files import fleet_file

THREE = pytest.mark.parametrize("method", ["heterofl", "fjord", "fedrolex"])
CNN = {"name": "cnn", "hidden": 16}
RESNET = {"name": "resnet-8"}
WRN = {"name": "wrn-10-1", "norm": "group"}
DATA = {"clients": 4, "train_samples": 400}


@pytest.fixture
def out(tmp_path: Path) -> str:
    return str(tmp_path / "runs")


def run(
    out: str, method: str, model: dict[str, Any] = CNN, ratios: Any = None, options: Any = (), **sections: Any
) -> ug.Result:
    """A small run; sections of the experiment take the place of single settings."""
    train = {"rounds": 2, "batch": 64, "momentum": 0.5, **sections.pop("train", {})}
    options = {**dict(options), **({} if ratios is None else {"ratios": ratios})}
    tree = {"method": {"name": method, **options}, "model": model, "data": DATA, "train": train}
    return start({**tree, **sections, "run": {"seed": 3, "out": out, **sections.get("run", {})}})


@pytest.mark.parametrize(
    ("method", "model"),
    [
        *[(method, CNN) for method in ("heterofl", "fjord", "fedrolex")],
        ("heterofl", RESNET),  # with running statistics, which all three average alike
        *[pytest.param(method, RESNET, marks=pytest.mark.slow) for method in ("fjord", "fedrolex")],
    ],
)
def test_with_the_whole_model_for_all_it_is_fedavg_bit_for_bit(method, model, out) -> None:
    settings = {"data": {**DATA, "partition": "dirichlet:1"}, "train": {"rounds": 2 if model is CNN else 1}}
    average = run(out, "fedavg", model, **settings)
    sliced = run(out, method, model, [1.0], {"statistics": False}, **settings)
    assert sliced.summary["model_digest"] == average.summary["model_digest"]
    assert sliced.ledger.flops == average.ledger.flops
    jobs = 4 * len(average.history)
    assert sliced.ledger.bytes_down == average.ledger.bytes_down + 16 * jobs
    assert sliced.ledger.bytes_up == average.ledger.bytes_up + 16 * jobs


def task(name: str = "cnn", **options: Any) -> Task:
    return Task(Model(builder(name, (1, 8, 8), 3, **options)), classes=3, train=Train(rounds=3, batch=8, lr=0.1))


def shard(seed: int, count: int) -> Shard:
    generator = torch.Generator().manual_seed(seed)
    return Shard(torch.rand(count, 1, 8, 8, generator=generator), torch.randint(0, 3, (count,), generator=generator))


def one_round(method: Method, task: Task, rounds_before: int = 0) -> tuple[Any, Any, dict[str, Packet]]:
    """The model before and after a round of three devices, and what each sent."""
    root = Node("root", method.server, task, ("a", "b", "c"), 99, seed=9, round=rounds_before)
    root.start()
    before, sent = root.state["model"], {}
    for place, send in enumerate([command for command in root.advance() if isinstance(command, Ask)]):
        context = Context(9, send.child, send.id.round, send.id.turn)
        own_shard = shard(place, 10 + 5 * place)
        sent[send.child], _ = method.client.local(task, send.packet, own_shard, {}, context)
        assert root.receive(Answer(send.id, sent[send.child])) is Receipt.TAKEN
    root.advance()
    return before, root.state["model"], sent


@pytest.mark.parametrize("name", ["cnn", "resnet-8"])
@pytest.mark.parametrize(("kind", "offset"), [(HeteroFL, 0), (FjORD, 0), (FedRolex, 13)])
def test_each_coordinate_is_the_mean_of_those_who_trained_it_and_else_stays(kind, offset, name) -> None:
    given = task(name)
    method = kind(ratios=(0.5, 0.25, 0.1), statistics=False)
    before, after, sent = one_round(method, given, rounds_before=offset)
    widths = widths_of(given.model)
    untouched = 0
    for key, old in before.items():
        total, count = torch.zeros(old.shape, dtype=torch.float64), torch.zeros(old.shape, dtype=torch.float64)
        for up in sent.values():
            values, masks = widths.spread({key: up.tensors[key]}, up.scalars["ratio"], int(up.scalars["offset"]))
            total += up.scalars["samples"] * values[key].double()
            count += up.scalars["samples"] * masks[key]
        nobody = count == 0
        untouched += int(nobody.sum())
        assert torch.equal(after[key][nobody], old[nobody]), "bit for bit"
        if old.is_floating_point():
            mean = (total / count)[~nobody].float()
            torch.testing.assert_close(after[key][~nobody], mean, rtol=1e-5, atol=1e-6)
        else:
            assert after[key] == max(up.tensors[key] for up in sent.values())
    assert untouched > 0.5 * sum(value.numel() for value in before.values())
    assert {up.scalars["ratio"] for up in sent.values()} == {0.5, 0.25, 0.1}
    assert {up.scalars["offset"] for up in sent.values()} == {float(offset)}


def test_fedrolex_trains_every_channel_in_one_cycle_and_heterofl_never(out) -> None:
    first = Model(builder("mlp", (1, 8, 8), 10, hidden=[16])).initial(Context(3, "server", 0).key("model"))

    def moved(method: str) -> Tensor:
        result = run(out, method, {"name": "mlp", "hidden": [16]}, [0.125], train={"rounds": 16})
        return (weights(result)["head.weight"] != first["head.weight"]).any(0)

    assert moved("fedrolex").all()
    assert moved("heterofl").tolist() == [True] * 2 + [False] * 14


def test_the_price_shrinks_with_the_ratio(out) -> None:
    totals = {}
    for ratio in (1.0, 0.5, 0.25):
        ledger = run(out, "heterofl", WRN, [ratio], train={"rounds": 1}).ledger
        totals[ratio] = ledger.bytes_down, ledger.bytes_up, ledger.flops, ledger.peak_device_bytes
    for ratio in (0.5, 0.25):
        down, up, flops, memory = (part / whole for part, whole in zip(totals[ratio], totals[1.0], strict=False))
        assert down == pytest.approx(ratio**2, rel=0.15) and up == pytest.approx(ratio**2, rel=0.15)
        assert flops == pytest.approx(ratio**2, rel=0.15), "all but the first and the last layer: the square"
        assert memory < 1.2 * ratio


def test_devices_with_one_slice_share_one_packet_and_nodes_get_the_whole_model() -> None:
    given = task()
    root = Node("root", HeteroFL().server, given, tuple("abcdefghijk"), 1, seed=9, nodes=frozenset("k"))
    root.start()
    sends = {command.child: command.packet for command in root.advance() if isinstance(command, Ask)}
    assert list(sends) == list("kafbgchdiej"), "the whole model first, and those with the same slice side by side"
    assert sends["a"] is sends["f"] and sends["b"] is sends["g"] and len({id(p) for p in sends.values()}) == 6
    assert dict(sends["k"].tensors) == dict(root.state["model"]) and not sends["k"].scalars


@THREE
def test_a_tree_gives_what_a_star_gives(method, out) -> None:
    star, tree = (run(out, method, ratios=[1.0, 0.25], topology=shape) for shape in ("star", "tree:2x2"))
    torch.testing.assert_close(weights(tree), weights(star), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@THREE
def test_vector_and_serial_agree_also_with_samples_of_devices_and_codecs(method, out) -> None:
    sections = {
        "data": {"clients": 6},
        "fleet": {"name": "mixed-edge", "deadline": 2.0},
        "train": {"rounds": 2, "sample": 0.7, "batch": 32, "momentum": 0.9, "sampler": "fedcs"},
        "links": {"up": "fp16", "down": "bf16", "feedback": False},
    }
    data = double_data("digits")  # in float32, a codec that rounds one last digit to the other side decides
    objects = {"data": data, "model": double_model(data, **WRN)}
    raw = {"method": {"name": method, "ratios": [1.0, 0.5, 0.2]}, **sections}
    serial, vector = (
        start({**raw, "run": {"seed": 3, "out": out, "engine": engine}}, **objects) for engine in ("serial", "vector")
    )
    torch.testing.assert_close(weights(vector), weights(serial), rtol=RTOL, atol=ATOL)
    assert sorted(vector.ledger.rows()) == sorted(serial.ledger.rows())


def test_fjord_draws_for_every_step_from_the_ladder_below_its_own_ratio() -> None:
    given, client = task(), FjORD(ratios=(1.0, 0.5, 0.25, 0.125)).client.training
    widths = widths_of(given.model)
    down = Packet(widths.cut(given.model.initial(0), 0.5), {"ratio": 0.5, "offset": 0.0})

    def drawn(node: str, round: int = 0) -> list[list[int]]:
        carry, steps = client.begin(given, down, shard(0, 200), {}, Context(1, node, round))
        assert len(steps) == 25 and len(carry["kept"]) == 32
        return carry["kept"].tolist()

    ladder = [[channels.kept(ratio) for channels in widths.channels] for ratio in (0.5, 0.25, 0.125)]
    rows = drawn("a")
    assert all(row in ladder for row in rows) and all(rows.count(row) >= 4 for row in ladder)
    assert drawn("a") == rows and drawn("b") != rows and drawn("a", 1) != rows


@pytest.mark.parametrize(("name", "options"), [("cnn", {}), ("resnet-8", {}), ("wrn-10-1", {"norm": "group"})])
def test_a_narrow_step_of_fjord_is_a_step_of_the_narrow_slice(name, options) -> None:
    given = task(name, **options)
    widths, context = widths_of(given.model), Context(1, "a", 0)
    whole = given.model.initial(0)
    narrow = Packet(widths.cut(whole, 0.25), {"ratio": 0.25, "offset": 0.0})
    expected, _ = HeteroFL(statistics=False).client.local(given, narrow, shard(0, 24), {}, context)

    client = FjORD(ratios=(1.0, 0.25), statistics=False).client.training
    down = Packet(whole, {"ratio": 1.0, "offset": 0.0})
    carry, steps = client.begin(given, down, shard(0, 24), {}, context)
    carry["kept"] = torch.tensor([[channels.kept(0.25) for channels in widths.channels]] * 4)
    for batch in steps:
        carry = client.step(given, carry, batch)
    found, _ = client.finish(given, down, carry, shard(0, 24), {}, context)
    torch.testing.assert_close(dict(widths.cut(found.tensors, 0.25)), dict(expected.tensors), rtol=1e-4, atol=1e-5)
    _, masks = widths.spread(expected.tensors, 0.25)
    assert all(torch.equal(found.tensors[key][~masks[key]], whole[key][~masks[key]]) for key in whole)


@pytest.mark.slow
def test_weak_devices_stay_in_and_bring_their_classes(tmp_path, out) -> None:
    """60 % of the devices are ten times slower, and the whole model is too much for those with many samples."""
    fast = {"down": 1e8, "up": 1e8}
    fleet = fleet_file(
        tmp_path, strong={"flops": 1e10, "share": 0.4, **fast}, weak={"flops": 1e9, "share": 0.6, **fast}
    )
    sections = {
        "data": {"clients": 10, "partition": "dirichlet:0.1"},
        "fleet": {"name": fleet, "deadline": 0.008},
        "train": {"rounds": 10, "epochs": 2, "batch": 16, "momentum": 0.0},
    }
    accuracy = {}
    for method in ("fedavg", "heterofl", "fedrolex"):
        results = [run(out, method, {"name": "mlp"}, run={"seed": seed}, **sections) for seed in range(3)]
        late = sum(row.outcome == "late" for result in results for row in result.ledger.rows())
        assert late >= 100 if method == "fedavg" else late == 0
        accuracy[method] = sum(result.accuracy for result in results) / 3
    assert accuracy["heterofl"] > accuracy["fedavg"] + 0.08
    assert accuracy["fedrolex"] > accuracy["fedavg"] + 0.08


@THREE
@pytest.mark.parametrize("ratios", [[0.5, 1.0], [], [1.0, 1.0], [1.5], [1.0, 0.0], [-0.5]])
def test_ratios_that_are_no_ladder_are_refused(method, ratios, out) -> None:
    with pytest.raises(InputError, match=r"method\.ratios"):
        run(out, method, ratios=ratios)


@THREE
def test_a_model_that_cannot_be_sliced_is_refused_before_anything_starts(method, out) -> None:
    def odd() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Unflatten(2, (4, 2)), torch.nn.Flatten(), torch.nn.Linear(64, 10))

    with pytest.raises(InputError, match="cannot be sliced by width"):
        ug.run(method, model=odd, out=out)
    assert METHODS[method]().ratios == (1.0, 0.5, 0.25, 0.125, 0.0625)  # type: ignore[attr-defined]


@THREE
def test_a_fast_device_with_a_slow_link_gets_a_slice_that_arrives_by_the_deadline(method, out, tmp_path) -> None:
    """Its speed alone would give it the whole model, which its link cannot carry in time."""
    near, far = {"flops": 17e9, "down": 10e6, "up": 4e6}, {"flops": 46e9, "down": 0.2e6, "up": 0.05e6}
    fleet = fleet_file(tmp_path, near={**near, "share": 0.5}, far={**far, "share": 0.5})
    free = run(out, method, fleet=fleet, train={"rounds": 1})
    pressed = run(out, method, fleet={"name": fleet, "deadline": 1.0}, train={"rounds": 1})
    late = {row.child for row in free.ledger.rows() if row.end - row.start > 1.0}
    assert len(late) == 2 and {row.outcome for row in pressed.ledger.rows()} == {"arrived"}
    before, after = ({row.child: row.bytes_down for row in each.ledger.rows()} for each in (free, pressed))
    assert late == {device for device in before if after[device] < before[device]}
    assert all(before[device] == after[device] for device in before.keys() - late)


def test_a_device_gets_a_slice_that_fits_beside_its_runtime(out, tmp_path) -> None:
    fast, slow, iid = {"flops": 2e9, "share": 0.5}, {"share": 0.5}, {"data": {**DATA, "partition": "iid"}}
    free = run(out, "heterofl", fleet=fleet_file(tmp_path, fast=fast, slow=slow), **iid)
    small, large = sorted({row.memory for row in free.ledger.rows()})
    full = {**fast, "runtime": 1_000_000, "memory": 1_000_000 + large - 1}
    rows = list(run(out, "heterofl", fleet=fleet_file(tmp_path, full=full, slow=slow), **iid).ledger.rows())
    assert {row.outcome for row in rows} == {"arrived"} and {row.memory for row in rows} == {small}
