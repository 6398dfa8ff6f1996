"""Runs of the methods that prune: what their devices get, send and are priced at, and what pages say about them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import undergrowth as ug
from tests.fleet_files import fleet_file
from undergrowth.core import InputError, Model
from undergrowth.data import Dataset
from undergrowth.devices.inference import count_products
from undergrowth.learning.pruning import prune, pruned_copy
from undergrowth.models import builder
from undergrowth.reproduce.metrics import measure
from undergrowth.runs import Store

COMMON: dict[str, Any] = {"clients": 5, "partition": "iid", "rounds": 1, "batch": 64, "public": 0.05, "fleet": "reft-5"}
COMMON |= {"model": "mlp", "model_options": {"hidden": [40, 30]}}
OPTIONS = {"server_epochs": 1, "server_batch": 64, "f_lambda": 100}
REMOVED = {"reft-10": 0.9, "reft-20": 0.8, "reft-40": 0.6, "reft-60": 0.4, "reft-100": 0.0}


def run(folder: Path, method: str, options: dict[str, Any], **more: Any) -> ug.Result:
    settings = {**COMMON, "data_options": {"train_samples": 300}, "progress": False, **more}
    if "model" in more:
        del settings["model_options"]
    return ug.run(method=method, options=options, **settings, out=str(folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pruned")


@pytest.fixture(scope="module")
def pruned(folder: Path) -> ug.Result:
    with pytest.warns(ug.RunWarning):  # one epoch is no better than guessing
        return run(folder, "reft", OPTIONS)


def sizes(fraction: float) -> int:
    """Bytes of the model without this fraction of its channels."""
    model = Model(builder("mlp", (1, 8, 8), 10, hidden=[40, 30]))
    return 4 * sum(value.numel() for value in prune(model, model.initial(0), fraction).values())


def test_a_device_gets_the_model_that_fits_its_speed_and_sends_logits_once(pruned: ug.Result) -> None:
    tiers = {facts["device"]: facts["tier"] for facts in pruned.clients}
    rows = list(pruned.ledger.rows())
    assert len(rows) == 5
    for row in rows:
        assert row.bytes_down == sizes(REMOVED[tiers[row.child]])
        assert row.bytes_up == 4 * (15 * 10 + 10) + 8, "15 public samples, 10 classes, the counts, n_k"
    flops = {tiers[row.child]: row.flops for row in rows}
    assert sorted(flops, key=flops.__getitem__) == list(REMOVED), "less of the model, less work"
    assert pruned.history[-1]["accuracy/devices"] > 0
    assert all(facts["accuracy"] is not None for facts in pruned.clients)


def test_the_plan_has_the_bytes_and_flops_of_the_ledger(pruned: ug.Result) -> None:
    settings = {key: value for key, value in COMMON.items() if key != "rounds"}
    rows = ug.plan("reft", **settings, data_options={"train_samples": 300})
    tiers = {facts["device"]: facts["tier"] for facts in pruned.clients}
    booked = {tiers[row.child]: (row.bytes_down, row.bytes_up, row.flops) for row in pruned.ledger.rows()}
    assert {row["device"]: (row["bytes_down"], row["bytes_up"], row["flops"]) for row in rows} == booked


def test_pages_say_what_each_model_costs_and_how_long_it_takes(pruned: ug.Result, folder: Path, tmp_path: Path) -> None:
    numbers = ug.report.analyse([pruned.run], ["pruning"], folder)
    models = numbers["pruning"][pruned.run]["models"]
    assert [4 * row["parameters"] for row in models] == [sizes(fraction) for fraction in REMOVED.values()]
    assert all(row["utilisation"] == pytest.approx(1) and row["inference_ms"] > 0 for row in models)
    page = ug.report.write_report([pruned.run], folder, tmp_path / "page.html", analyses=numbers)
    assert "utilisation U" in page.read_text(encoding="utf-8")
    with closing(Store(folder)) as store:
        down = sum(sizes(fraction) for fraction in REMOVED.values()) / 5 / 2**20
        up = (4 * 160 + 8) / 2**20
        assert measure(store, pruned.run, "down") == pytest.approx(down)
        assert measure(store, pruned.run, "traffic GB") == pytest.approx((down + up) / 2**10)
        seconds = [facts["compute_seconds"] for facts in store.costs_by_device(pruned.run).values()]
        assert measure(store, pruned.run, "computing") == pytest.approx(sum(seconds) / 5)
        (facts,) = [each for each in store.devices(pruned.run) if each["tier"] == "reft-60"]
        assert measure(store, pruned.run, "tier reft-60") == pytest.approx(100 * facts["accuracy"])


@pytest.mark.filterwarnings("ignore::undergrowth.RunWarning")
def test_one_level_for_all_leaves_fast_devices_idle(folder: Path) -> None:
    result = run(folder, "reft", {**OPTIONS, "ratio": 0.6, "logits": "int8"})
    assert {row.bytes_down for row in result.ledger.rows()} == {sizes(0.6)}
    assert {row.bytes_up for row in result.ledger.rows()} == {15 * 10 + 4 * 10 + 4 * 10 + 8}
    with closing(Store(folder)) as store:
        # (1 − 0.6)·100 GFLOPS of 10, 20, 40, 60 and 100
        assert measure(store, result.run, "utilisation") == pytest.approx(100 * (1 + 1 + 1 + 40 / 60 + 40 / 100) / 5)
        assert measure(store, result.run, "parameters") == pytest.approx(sizes(0.6) / 4e6)
        assert measure(store, result.run, "model size") == pytest.approx(sizes(0.6) / 2**20)
        assert measure(store, result.run, "inference time") > 0
        whole, less = (run_products(fraction) for fraction in (0.0, 0.6))
        assert measure(store, result.run, "model products") == pytest.approx(less / 1e9) and less < whole


def run_products(fraction: float) -> int:
    whole = builder("mlp", (1, 8, 8), 10, hidden=[40, 30])()
    return count_products(pruned_copy(whole, fraction), torch.zeros(1, 1, 8, 8))


class Own(nn.Module):
    """A user's module whose pooling only torch-pruning follows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 12, 3), nn.Linear(12 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.second(functional.relu(self.first(x)))), 2)
        return self.head(x.reshape(len(x), -1))


@pytest.mark.filterwarnings("ignore::undergrowth.RunWarning")
@pytest.mark.parametrize("method", ["reft", "fl-pqsu", "prunefl"])
def test_modules_of_the_user_are_pruned_too(method: str, folder: Path) -> None:
    pytest.importorskip("torch_pruning")
    options = {"reft": OPTIONS, "fl-pqsu": {"ratio": 0.5}, "prunefl": {}}[method]
    result = run(folder, method, options, model=Own, rounds=2)
    whole = 4 * sum(value.numel() for value in Own().parameters())
    assert min(row.bytes_down for row in result.ledger.rows()) < 0.7 * whole
    assert result.model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.filterwarnings("ignore::undergrowth.RunWarning")
@pytest.mark.parametrize("selector", ["all", "random:0.5", "few-shot:2", "entropy:0.5"])
def test_fl_pqsu_is_priced_with_its_upload_and_books_what_was_sent(selector: str, folder: Path) -> None:
    """Also with a selector that reads labels or values, and on devices of which all inputs are 0."""
    digits = ug.data.load("digits", train_samples=300)
    blank = Dataset("blank", 0 * digits.x, digits.y, digits.test_x, digits.test_y, 10)
    settings = {"data": blank, "data_options": {}, "public": None, "selector": selector}
    every, none = (
        list(run(folder, "fl-pqsu", {"threshold": threshold}, **settings).ledger.rows()) for threshold in (0.0, 100.0)
    )
    assert {row.bytes_up for row in none} == {8} and all(row.bytes_up > sizes(0.3) / 4 for row in every)
    assert [row.seconds_up for row in none] == [row.seconds_up for row in every]  # those of the priced upload


def test_a_model_without_channels_and_one_that_cannot_be_pruned_are_told(folder: Path) -> None:
    result = run(folder, "reft", {**OPTIONS, "server_lr": 0.05}, model="logistic", rounds=2)
    assert any("no hidden channels" in note for note in result.notes)
    assert any("the published method has one round" in note for note in result.notes)

    class Attentive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.LSTM(8, 4, batch_first=True)
            self.head = nn.Linear(4, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rows(x[:, 0])[0][:, -1])

    with pytest.raises(InputError, match="model: it cannot be sliced by width"):
        run(folder, "reft", OPTIONS, model=Attentive)


@pytest.mark.parametrize("topology", ["star", "tree:2x4"])
def test_prunefl_does_not_wait_for_devices_that_cannot_hold_the_model(topology: str, folder: Path) -> None:
    """The faster half of the devices cannot hold the model. A device that is asked has one ledger entry a round."""
    fleet = fleet_file(folder, small={"share": 0.5, "memory": 1e4}, slow={"share": 0.5, "flops": 1e8})
    with pytest.warns(ug.RunWarning, match="cannot hold the work"):
        result = run(folder, "prunefl", {"every": 2}, clients=8, rounds=3, fleet=fleet, public=None, topology=topology)
    tiers = {facts["device"]: facts["tier"] for facts in result.clients}
    rows = list(result.ledger.rows())
    first = [row for row in rows if row.child in tiers and row.round == 1]
    assert [(tiers[row.child], row.outcome) for row in first] == [("slow", "arrived")]
    assert len({(row.round, row.parent, row.child) for row in rows}) == len(rows)
    assert all(row["arrived"] > 0 for row in result.history)
    by_round = {row.round: row.bytes_down for row in rows if row.child in tiers}
    assert by_round[2] < by_round[1], "pruned after the first round"


def test_bad_options_are_refused_before_anything_starts(folder: Path) -> None:
    for method, options, said in (
        ("reft", {"f_lambda": 0}, r"method\.f_lambda 0.* must be a finite number above 0"),
        ("reft", {"ratio": 0.99}, r"method\.ratio 0.99 must be a finite number at least 0 and at most 0.95"),
        ("reft", {"distill": "l3"}, r"method\.distill 'l3' is not known"),
        ("fedkd", {"logits": "int4"}, r"method\.logits 'int4' is not known"),
        ("fl-pqsu", {"threshold": -1}, r"method\.threshold -1.* must be a finite number at least 0"),
        ("prunefl", {"ratio": 1}, r"method\.ratio 1.* must be a finite number at least 0 and below 1"),
    ):
        with pytest.raises(InputError, match=said):
            run(folder, method, options)
    with pytest.raises(InputError, match=r"public: reft needs data that the server holds; add public: 0\.1"):
        run(folder, "reft", OPTIONS, public=None)
