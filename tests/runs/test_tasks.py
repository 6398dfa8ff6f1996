"""Runs of every task: against plain loops, on every engine, with a loss and metrics of the user, and bad input."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undergrowth as ug
from tests.conformance import weights
from tests.double_precision import ATOL, RTOL, DoubleDataset
from undergrowth.callbacks import BestModel
from undergrowth.callbacks.best_model import BEST_FILE
from undergrowth.core import Context, InputError, Model
from undergrowth.data import Dataset, partition_dataset
from undergrowth.methods import FedAvg, FedProx, FSCProx
from undergrowth.runs import Store

SEED, LR, MU, BATCH, ROUNDS = 3, 0.05, 0.3, 4, 2
GENERATOR = np.random.default_rng(1)
X = GENERATOR.normal(size=(44, 5))
MIXED = X @ GENERATOR.normal(size=(5, 3))
TOKENS = GENERATOR.integers(0, 6, (44, 8))
FOLLOWING = np.where(GENERATOR.random((44, 7)) < 0.2, -1, TOKENS[:, 1:])  # some positions do not count


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def per_position() -> nn.Module:
    return nn.Sequential(nn.Embedding(6, 4), nn.Tanh(), nn.Linear(4, 6)).double()


@dataclass(frozen=True)
class Example:
    """A task with data, a model, and its loss as a plain formula."""

    task: str
    x: np.ndarray
    y: np.ndarray
    outputs: int
    model: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]

    @property
    def data(self) -> Dataset:
        x, y = self.x, self.y
        kind = Dataset if self.task == "next-token" else DoubleDataset
        return kind(self.task, x[:36], y[:36], x[36:], y[36:], self.outputs, task=self.task)


def squared(z: Tensor, y: Tensor) -> Tensor:
    return ((z - y) ** 2).sum() / z.numel()


def binary(z: Tensor, y: Tensor) -> Tensor:
    p = 1 / (1 + (-z).exp())
    return -(y * p.log() + (1 - y) * (1 - p).log()).sum() / z.numel()


def tokens(z: Tensor, y: Tensor) -> Tensor:
    positions = [(i, t) for i in range(y.shape[0]) for t in range(y.shape[1]) if y[i, t] >= 0]
    return -torch.stack([z[i, t].log_softmax(0)[y[i, t]] for i, t in positions]).mean()


EXAMPLES = {
    each.task: each
    for each in (
        Example("regression", X, MIXED, 3, linear, squared),
        Example("multi-label", X, (MIXED > 0).astype(int), 3, linear, binary),
        Example("next-token", TOKENS[:, :-1], FOLLOWING, 6, per_position, tokens),
    )
}


def run(example: Example, out: Path, **settings: Any) -> ug.Result:
    small = {"rounds": ROUNDS, "clients": 3, "partition": "iid", "seed": SEED, "batch": BATCH, "lr": LR}
    return ug.run(data=example.data, model=example.model, out=out, progress=False, **{**small, **settings})


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=RTOL, atol=ATOL)


def plain_loop(example: Example, mu: float) -> dict[str, Tensor]:
    """FedAvg, and FedProx if mu > 0, in plain PyTorch, on the devices and from the start of `run`."""
    devices = partition_dataset(example.data, "iid", 3, SEED)
    server = Model(example.model).initial(Context(SEED, "server", 0).key("model"))
    for number in range(ROUNDS):
        total = {name: torch.zeros_like(value) for name, value in server.items()}
        for device in devices.devices:
            shard, module = devices.train(device), example.model()
            module.load_state_dict(server)
            generator = Context(SEED, device, number, number).generator("order")
            for rows in torch.randperm(len(shard), generator=generator).split(BATCH):
                loss = example.loss(module(shard.x[rows]), shard.y[rows])
                loss = loss + mu / 2 * sum(((p - server[n]) ** 2).sum() for n, p in module.named_parameters())
                module.zero_grad()
                loss.backward()
                with torch.no_grad():
                    for parameter in module.parameters():
                        parameter -= LR * parameter.grad
            for name, value in module.state_dict().items():
                total[name] += len(shard) * value
        samples = sum(devices.size(device) for device in devices.devices)
        server = {name: value / samples for name, value in total.items()}
    return server


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_run_is_the_plain_loop_and_engines_agree(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    for method, mu in ((FedAvg(), 0.0), (FedProx(mu=MU), MU)):
        serial = run(example, tmp_path, method=method, engine="serial")
        assert_same(weights(serial), plain_loop(example, mu))
    stacked = run(example, tmp_path, method=FedProx(mu=MU), engine="vector")
    assert stacked.history[-1]["stacked"] == 3
    assert_same(weights(stacked), weights(serial))
    assert stacked.metrics == pytest.approx(serial.metrics) and stacked.loss == pytest.approx(serial.loss)


def test_without_few_shot_updates_fscprox_works_with_every_task(tmp_path: Path) -> None:
    example = EXAMPLES["regression"]
    found, plain = (run(example, tmp_path, method=each) for each in (FSCProx(towards="base", mu=0.0), FedAvg()))
    assert_same(weights(found), weights(plain))


@pytest.mark.parametrize("name", EXAMPLES)
def test_scores_are_those_of_the_final_model(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    result, test = run(example, tmp_path, rounds=1), example.data.central_test()
    with torch.no_grad():
        loss = example.loss(result.model(test.x), test.y)
    assert result.loss == pytest.approx(loss.item())
    assert result.history[-1].items() >= result.metrics.items()
    assert ("accuracy" in result.history[-1]) == ("accuracy" in result.metrics)
    assert result.summary["metrics"] == result.metrics and result.summary["task"] == name
    assert all(device.keys() >= result.metrics.keys() for device in result.clients)
    assert ug.load(result.run, tmp_path, model=example.model).metrics == result.metrics


def huber(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.huber_loss(outputs, labels, reduction="none")


def spread(outputs: Tensor, labels: Tensor) -> float:
    return float((outputs - labels).abs().max())


def test_a_loss_and_metrics_of_the_user(tmp_path: Path) -> None:
    example = EXAMPLES["regression"]
    mine = {"metrics": {"spread": spread}, "task": {"main": "spread", "better": "lower"}, "stop": {"metric": 100.0}}
    serial = run(example, tmp_path, loss=huber, engine="serial", **mine)
    assert serial.summary["stopped"] == "metric" and len(serial.history) == 1
    assert "stopped after round 1: spread" in serial.notes[-1]
    plain = Example("regression", X, MIXED, 3, linear, lambda z, y: F.huber_loss(z, y.double()))
    for engine in ("serial", "vector", "processes"):
        workers = {"workers": 2} if engine == "processes" else {}
        found = run(example, tmp_path, loss=huber, metrics={"spread": spread}, engine=engine, **workers)
        assert_same(weights(found), plain_loop(plain, 0.0))
    test = example.data.central_test()
    with torch.no_grad():
        assert found.metrics["spread"] == pytest.approx(spread(found.model(test.x), test.y))
        assert found.loss == pytest.approx(F.huber_loss(found.model(test.x), test.y.double()).item())
    with closing(Store(tmp_path)) as store:
        kept = store.run(found.run)["experiment"]
    assert kept["settings"]["task"]["loss"] == "tests.runs.test_tasks:huber"
    assert [each["name"] for each in kept["sources"]] == ["huber", "spread"]


def test_a_function_that_cannot_be_imported_is_needed_again(tmp_path: Path) -> None:
    example = EXAMPLES["regression"]
    own: dict[str, Any] = {"metrics": {"half": lambda outputs, labels: 0.5}}

    class Killer(ug.callbacks.Callback):
        def on_round(self, row: Any, run: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(example, tmp_path, callbacks=[Killer()], **own)
    objects = {"data": example.data, "model": example.model}
    with pytest.raises(InputError, match=r"was given a metrics object \(half\)"):
        ug.resume("last", tmp_path, progress=False, **objects)
    resumed = ug.resume("last", tmp_path, progress=False, **objects, **own)
    assert resumed.metrics["half"] == 0.5
    whole = run(example, tmp_path, **own)
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(resumed).items())


def test_the_best_model_is_that_of_the_lowest_perplexity(tmp_path: Path) -> None:
    result = run(EXAMPLES["next-token"], tmp_path, rounds=4, lr=3.0, callbacks=[BestModel()])
    with safetensors.safe_open(result.folder / BEST_FILE, framework="pt") as file:
        facts = file.metadata()
    best = min(result.history, key=lambda row: row["perplexity"])
    assert (facts["metric"], int(facts["round"])) == ("perplexity", best["round"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"method": "fedfsc"},
            "method fedfsc: its few-shot update draws the same number of samples of every class, so",
        ),
        (
            {"method": "fedkad", "public": 0.2},
            "so it works with the task classification only, and the task is regression",
        ),
        ({"method": "fedft-eds"}, "method fedft-eds: it selects samples by the entropy"),
        ({"method": "heterofl", "options": {"masked": True}}, "method.masked leaves out the classes"),
        ({"selector": "few-shot:2"}, "train.selector: it selects samples by their classes"),
        ({"task": "ranking"}, "task.name 'ranking' should be 'classification', 'regression'"),
        ({"task": "next-token"}, "the task next-token needs a token for each of the 5 positions"),
        (
            {"loss": lambda z, y: F.mse_loss(z, y)},
            "it must return a loss for each sample, a float, as the functions of torch do",
        ),
        ({"loss": lambda z, y: torch.ones(len(y))}, "task.loss has no gradient; compute it from the outputs"),
        ({"loss": lambda z: z}, "task.loss failed with outputs of shape (2, 3) and labels of shape (2, 3): TypeError"),
        ({"loss": "tests.runs.test_tasks:missing"}, "module 'tests.runs.test_tasks' has no 'missing'"),
        ({"loss": 3}, "task.loss is a int; it must be a function"),
        ({"metrics": {"mine": lambda z, y: z}}, "task.metrics.mine returns a Tensor; it must return one number"),
        ({"metrics": {3: lambda z, y: 0.0}}, "metrics: the name 3 must be a word, such as mae"),
        ({"metrics": {3: spread}}, "task.metrics: the key 3 must be a word"),
        ({"metrics": {"mse": spread}}, "task.metrics.mse: a run has that figure already"),
        ({"metrics": {"round": spread}}, "task.metrics.round: a run has that figure already"),
        ({"task": {"main": "ma"}}, "task.main 'ma' is not a metric of the run; did you mean 'mae'?"),
        ({"task": {"main": "own"}, "metrics": {"own": spread}}, "task.better is missing"),
        ({"task": {"main": "mae", "better": "higher"}}, "task.better 'higher': of mae, lower is better"),
        ({"task": {"padding": 0}}, "task.padding 0 is for the task next-token"),
        ({"stop": {"accuracy": 0.9}}, "stop.accuracy 0.9: regression has no accuracy; write stop.metric (r2)"),
        ({"model": lambda: nn.Linear(5, 2).double()}, "the data needs (3,), one value for each target"),
    ],
)
def test_bad_input(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        ug.run(**{
            "data": EXAMPLES["regression"].data, "model": linear, "partition": "iid", "clients": 3, "out": tmp_path,
            "progress": False, **settings,
        })  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_a_named_data_set_keeps_its_task() -> None:
    with pytest.raises(InputError, match="task 'regression': data set 'digits' is for classification"):
        ug.run(data="digits", task="regression")


def test_a_plan_names_the_methods_that_need_classes() -> None:
    with pytest.warns(ug.RunWarning, match="left out: fedft-eds: the method: it selects samples by"):
        rows = ug.plan(data="diabetes", model="mlp", clients=3, partition="iid")
    assert {"fedavg", "scaffold"} <= {row["method"] for row in rows}


def test_a_sweep_compares_by_the_main_metric(tmp_path: Path) -> None:
    raw = {"data": {"name": "diabetes", "clients": 3}, "model": "logistic", "train": {"rounds": 2, "lr": [0.01, 0.05]}}
    swept = ug.sweep(raw, out=tmp_path, metric=-100.0, progress=False)
    assert swept.metric.name == "r2" and swept.goal == -100 and swept.rows[0]["rounds_to_r2"] == 1
    assert "accuracy" not in swept.rows[0]
    with pytest.raises(InputError, match="these runs are compared by r2; write metric instead"):
        ug.sweep(raw, out=tmp_path, accuracy=0.5, progress=False)
    page = swept.page(tmp_path / "page.html").read_text()
    assert "R2 against simulated time" in page and "ccuracy" not in page.partition("<nav")[2].partition("Settings")[0]
    table = ug.report.export(swept.runs, "latex", tmp_path).decode()
    assert "R2" in table and "Accuracy" not in table
