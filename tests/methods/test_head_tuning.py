"""FedNCM, LP, FT and FedNCM+FT: reference loops, pooled data, what is sent, and the phases one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import undergrowth as ug
from tests.double_precision import DoubleDataset, double_data, double_model
from tests.methods import tiny_federation as tiny
from tests.runs.objects import Own, normed
from undergrowth.core import Answer, Ask, AskId, Context, InputError, Node, Packet, Shard
from undergrowth.methods import FT, LP, FedNCM, FedNCMFT
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.federation_builder import federate


def pooled_head(module: nn.Sequential, x: torch.Tensor, y: torch.Tensor, classes: int) -> torch.Tensor:
    """The rows of a nearest class mean on data in one place; zeros for a class without samples."""
    with torch.no_grad():
        features = module.eval()[:-1](x)
    rows = torch.zeros(classes, features.shape[1], dtype=features.dtype)
    for number in y.unique().tolist():
        middle = features[y == number].mean(0)
        rows[number] = middle / middle.norm()
    return rows


def test_fedncm() -> None:
    x, y = (torch.cat([getattr(shard, part) for shard in tiny.SHARDS.values()]) for part in ("x", "y"))
    expected = tiny.initial()
    rows = pooled_head(tiny.module_with(tiny.initial()), x, y, 3)
    expected |= {"head.weight": rows, "head.bias": torch.zeros(3, dtype=torch.float64)}
    tiny.assert_same(tiny.simulate(FedNCM(), 1)[0]["model"], expected)
    tiny.assert_same(tiny.simulate(FedNCM(), 3)[0]["model"], expected)  # nobody is asked, and nothing counted, twice


def test_lp() -> None:
    """Only the last layer is trained, on features in evaluation mode."""
    model = tiny.initial()
    for number in range(2):
        tuned: list[tiny.Weights] = []
        for device, shard in tiny.SHARDS.items():
            module = tiny.module_with(model)
            with torch.no_grad():
                features = module.eval()[:-1](shard.x)
            orders = tiny.shuffles(tiny.device_context(device, number), len(shard))
            tiny.descend(
                module.head,
                orders,
                lambda head, rows, f=features, y=shard.y: functional.cross_entropy(head(f[rows]), y[rows]),  # type: ignore[misc]
            )
            tuned.append(tiny.weights_of(module))
        model = tiny.mean(tuned, tiny.SIZES)
    for cached in (True, False):
        tiny.assert_same(tiny.simulate(LP(cache_features=cached), 2)[0]["model"], model)


def fine_tuned(model: tiny.Weights) -> tiny.Weights:
    for number in range(2):
        trained = [
            tiny.train(
                model, device, tiny.device_context(device, number), tiny.cross_entropy(shard), epochs=tiny.EPOCHS
            )
            for device, shard in tiny.SHARDS.items()
        ]
        model = tiny.mean(trained, tiny.SIZES)
    return model


def test_ft() -> None:
    """The rounds of both are FedAvg's; fedncm-ft has a phase before them, see below."""
    expected = fine_tuned(tiny.initial())
    for method in (FT(), FedNCMFT()):
        tiny.assert_same(tiny.simulate(method, 2)[0]["model"], expected)


# Runs --------------------------------------------------------------------------------------------------------

CNN = {"name": "cnn", "hidden": 16}


@pytest.fixture(scope="module")
def data() -> DoubleDataset:
    whole = double_data("digits", train_samples=300, test_samples=100)
    keep = np.asarray(whole.y) != 7  # a class that nobody holds
    return DoubleDataset("no-seven", whole.x[keep], whole.y[keep], whole.test_x, whole.test_y, 10)


def run(data: DoubleDataset, out: Path, method: str = "fedncm", **settings: Any) -> ug.Result:
    given = {"clients": 6, "rounds": 1, "engine": "serial", "holdout": 0.0, **settings}
    holdout = given.pop("holdout")
    with pytest.warns(ug.RunWarning, match="no device has a training sample of class 7"):
        return ug.run(
            method, data, model=double_model(data, **CNN), data_options={"holdout": holdout}, out=str(out), **given
        )


def test_a_class_that_no_device_of_an_own_population_holds_is_noted() -> None:
    """Such a population may have no `counts`, so that its labels are read."""
    population = Own(changes={f"phone-{number}": lambda shard: Shard(shard.x, shard.y % 2) for number in range(4)})
    assert not hasattr(population, "counts")
    notes = federate(parse_experiment({"method": "fedncm"}), None, population, normed).notes
    assert "no device has a training sample of class 2, so the model cannot learn it" in notes


@pytest.mark.parametrize(
    "settings",
    [
        {"partition": "classes:1", "clients": 9},
        {"partition": "dirichlet:0.1", "topology": "tree:2x3", "engine": "vector"},
        {"partition": "iid", "sample": 0.2, "fleet": "mixed-edge"},
    ],
    ids=lambda each: str(each["partition"]),
)
def test_fedncm_is_the_pooled_classifier_for_any_partition(
    data: DoubleDataset, settings: dict[str, Any], tmp_path: Path
) -> None:
    result = run(data, tmp_path, **settings)
    module = result.model.double()
    pooled = data.shard(np.arange(len(data)))
    torch.testing.assert_close(module[-1].weight.detach(), pooled_head(module, pooled.x, pooled.y, 10))
    assert not module[-1].weight[7].any() and not module[-1].bias.any()
    row = next(row for row in result.ledger.rows() if row.child.startswith("device"))
    assert row.bytes_up == 10 * (module[-1].in_features * 8 + 4), "C·d numbers, here in float64, and C whole numbers"


@pytest.mark.parametrize("codec", ["int8", "fp16", "topk:0.2"])
def test_a_lossy_link_does_not_change_the_counts_of_fedncm(data: DoubleDataset, codec: str, tmp_path: Path) -> None:
    """So the server knows when it has heard of all samples, and asks nobody again."""
    result = run(data, tmp_path, partition="dirichlet:0.1", topology="tree:2x3", rounds=3, links={"up": codec})
    asked = [(row.round, row.child) for row in result.ledger.rows()]
    assert len(asked) == 2 + 6 and {number for number, _ in asked} == {1}


def test_a_device_that_failed_is_asked_again(data: DoubleDataset, tmp_path: Path) -> None:
    whole = run(data, tmp_path)
    again = run(data, tmp_path, rounds=12, failure=0.5)
    rows = [row.outcome for row in again.ledger.rows()]
    assert rows.count("arrived") == 6 < len(rows)
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], value)


def test_sums_of_a_node_that_came_too_late_are_sent_again(data: DoubleDataset, tmp_path: Path) -> None:
    tree: dict[str, Any] = {"topology": "tree:2x3", "fleet": "mixed-edge", "server_link": "wan", "seed": 3}
    whole = run(data, tmp_path, **tree)
    late = run(
        data, tmp_path, **tree, rounds=3, node_deadlines={"server": 0.95 * whole.history[0]["simulated_seconds"]}
    )
    nodes = [(row.round, row.child, row.outcome) for row in late.ledger.rows() if row.child.startswith("edge")]
    assert nodes == [
        (1, "edge-00", "arrived"),
        (1, "edge-01", "late"),
        (2, "edge-00", "lost"),
        (2, "edge-01", "arrived"),
    ]
    assert sum(row.child.startswith("device") for row in late.ledger.rows()) == 6  # each device sent its sums once
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(late.model.state_dict()[name], value)


def test_a_device_whose_round_was_given_up_is_asked_again() -> None:
    """The sums of a arrive, and the parent asks again before those of b do: a is not counted yet."""
    node = Node("edge", FedNCM().server, tiny.TASK, ("a", "b"), 1, is_root=False)
    down = Packet(tiny.initial(), {"number": -1.0})
    node.start(Ask(AskId("edge", 0, 0), down))
    ask, _ = (command for command in node.advance() if isinstance(command, Ask))
    up, _ = FedNCM().client.local(tiny.TASK, ask.packet, tiny.SHARDS["a"], {}, Context(0, "a", 0))
    node.receive(Answer(ask.id, up))
    node.start(Ask(AskId("edge", 1, 1), down))
    assert [command.child for command in node.advance() if isinstance(command, Ask)] == ["a", "b"]


def test_fedncm_ft_starts_where_fedncm_ends(data: DoubleDataset, tmp_path: Path) -> None:
    alone = run(data, tmp_path)
    tuned = run(data, tmp_path, "fedncm-ft")
    first = tuned.start["fedncm"]
    assert first.summary["model_digest"] == alone.summary["model_digest"] and first.accuracy == alone.accuracy
    assert tuned.ledger.bytes_up > first.ledger.bytes_up == alone.ledger.bytes_up
    # One round of fine-tuning from that model, whatever made it.
    weights = {"weights": str(first.folder / "model.safetensors")}
    again = ug.run("ft", data, model=double_model(data, **CNN), start=weights, data_options={"holdout": 0.0},
                   clients=6, rounds=1, engine="serial", out=str(tmp_path))  # fmt: skip
    assert again.summary["model_digest"] == tuned.summary["model_digest"]


def test_a_linear_probe_before_another_method(tmp_path: Path) -> None:
    small = {"model": "mlp", "clients": 3, "rounds": 1, "out": str(tmp_path), "engine": "serial"}
    result = ug.run("fedadam", start={"method": "lp", "rounds": 2, "lr": 0.5}, **small)
    probe = result.start["lp"]
    assert [row["round"] for row in probe.history] == [1, 2] and probe.summary["method"] == "lp"
    assert result.summary["start"]["bytes_up"] == probe.ledger.bytes_up > 0


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        ({"method": "fedavg"}, "start.method: rounds of fedavg before the first round are start.warm_rounds"),
        ({"method": "local"}, "start.method: 'local' must be a method of the catalogue that trains one model"),
        ({"method": {"name": "lp", "split": "hat"}}, "start.method: split 'hat' is not a level"),
        ({"method": "fedncmm"}, "start.method: method 'fedncmm' is not known; did you mean 'fedncm'"),
    ],
)
def test_a_method_that_cannot_come_first_is_refused(start: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        ug.run("fedavg", model="mlp", clients=2, start=start, out=str(tmp_path))


def test_a_model_without_a_linear_head_is_refused(tmp_path: Path) -> None:
    class Frozen(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))
            self[-1].requires_grad_(False)

    with pytest.raises(InputError, match=r"method fedncm: .* it must be one linear layer that is not frozen"):
        ug.run("fedncm", model=Frozen, clients=2, out=str(tmp_path))
