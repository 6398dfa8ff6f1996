"""Analyses of finished runs: numbers compared with direct computations, sections, and runs that cannot be analysed."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from torch import Tensor, nn

import undergrowth as ug
from tests.packed_pages import figures_of
from tests.typed_commands import invoke
from undergrowth.core import InputError
from undergrowth.data import Dataset, load, partition_dataset
from undergrowth.report.analyses import ANALYSES
from undergrowth.runs import Store

FEW = {"train_samples": 800}
ARGUMENTS = {"clients": 12, "rounds": 3, "data_options": FEW, "progress": False}
LEVELS = ["low", "mid", "up", "head"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("analysed")


@pytest.fixture(scope="session")
def plain(folder: Path) -> ug.Result:
    return ug.run(**ARGUMENTS, out=str(folder))


@pytest.fixture(scope="session")
def tuned(folder: Path, plain: ug.Result) -> ug.Result:
    """A run that trains only the layers above `mid`, from the same initial model as the plain run."""
    return ug.run(method="fedft", options={"epochs": 2}, **ARGUMENTS, out=str(folder))


@pytest.fixture(scope="session")
def found(folder: Path, plain: ug.Result, tuned: ug.Result) -> dict[str, Any]:
    return ug.report.analyse([plain.run, tuned.run], out_folder=folder, devices=4)


def digits_population() -> Any:
    return partition_dataset(load("digits", **FEW), "dirichlet:0.1", 12, 0)


def largest(count: int) -> list[str]:
    population = digits_population()
    return sorted(population.devices, key=lambda name: (-population.size(name), name))[:count]


def test_the_same_run_gives_the_same_numbers(found, folder: Path, tuned: ug.Result) -> None:
    again = ug.report.analyse(["last"], ["tsne", "cka", "bias"], folder, devices=4)
    assert again == {name: {tuned.run: found[name][tuned.run]} for name in ("tsne", "cka", "bias")}


def test_models_are_equal_below_the_split(found, plain: ug.Result, tuned: ug.Result) -> None:
    grids = found["cka"][tuned.run]["similarity"]
    assert list(grids) == LEVELS
    assert np.array(grids["low"]).min() == np.array(grids["mid"]).min() == 1
    assert found["cka"][tuned.run]["mean"]["head"] < 0.999
    numbers = found["cka"][plain.run]
    assert numbers["devices"] == largest(4) and numbers["trained_by"] == "the method's client"
    for level in LEVELS:
        grid = np.array(numbers["similarity"][level])
        assert grid.shape == (4, 4) and (grid == grid.T).all() and (grid.diagonal() == 1).all() and grid.max() <= 1
        assert numbers["mean"][level] == pytest.approx(grid[np.triu_indices(4, 1)].mean())
    assert numbers["mean"]["head"] < numbers["mean"]["low"] < 1


def test_bias_counts_predictions(found, plain: ug.Result) -> None:
    numbers = found["bias"][plain.run]
    assert numbers["before"]["accuracy"] == [pytest.approx(plain.accuracy)]
    for update in ("full", "few_shot"):
        predicted = np.array(numbers[update]["predicted"])
        assert predicted.shape == (4, 10) and predicted.sum(1) == pytest.approx(1, abs=1e-3)
        expected = np.abs(predicted - np.array(numbers["true"])).sum(1) / 2
        assert numbers[update]["bias"] == pytest.approx(expected, abs=1e-3)
        # The error is at least the bias.
        wrong = 1 - np.array(numbers[update]["accuracy"])
        assert (wrong >= np.array(numbers[update]["bias"]) - 1e-9).all()
    assert np.mean(numbers["full"]["bias"]) > numbers["before"]["bias"][0]
    test = load("digits").central_test()
    logits = plain.model(test.x).detach()
    means = [logits[test.y == label].mean(0).tolist() for label in range(10)]
    assert np.array(numbers["before"]["mean_logits"]) == pytest.approx(np.array(means), abs=2e-3)


def to_bytes(values: Tensor) -> np.ndarray:
    return ((values - values.min()) / (values.max() - values.min()) * 255).round().numpy()


def test_attention_maps(found, plain: ug.Result) -> None:
    numbers = found["attention"][plain.run]
    assert numbers["classes"] == [str(label) for label in range(8)]
    assert numbers["sizes"] == {"low": [4, 4], "mid": [4, 4], "up": [2, 2]}  # `head` has no pixels
    test, model = load("digits").central_test(), plain.model
    features = model[: model.position("low")](test.x).detach()
    maps = features.square().sum(1).flatten(1)
    fractions = maps / maps.sum(1, keepdim=True)
    spread = (-(fractions * fractions.log()).nan_to_num().sum(1) / math.log(16)).mean()
    assert numbers["spread"]["low"] == pytest.approx(float(spread), rel=1e-5)
    # The shown sample of class 0 is random; find it by its image and compare its map.
    shown = np.array(numbers["inputs"][0])[..., 0]
    (index,) = [place for place in range(len(test)) if np.abs(to_bytes(test.x[place, 0]) - shown).max() <= 1]
    assert np.abs(to_bytes(maps[index].view(4, 4)) - np.array(numbers["maps"]["low"][0])).max() <= 1
    assert test.y[index] == 0


def test_entropies_are_those_of_the_final_model(found, plain: ug.Result) -> None:
    numbers = found["entropy"][plain.run]
    assert list(numbers["devices"]) == largest(4) and numbers["highest"] == pytest.approx(math.log(10))
    device, shard = largest(1)[0], digits_population().train(largest(1)[0])
    for row in numbers["devices"][device]:
        p = (plain.model(shard.x).detach().double() / row["temperature"]).softmax(1).numpy()
        entropy = -np.where(p > 0, p * np.log(np.maximum(p, 1e-300)), 0).sum(1)
        assert row["samples"] == len(shard) and row["mean"] == pytest.approx(entropy.mean(), rel=1e-4)
        assert row["certain"] == pytest.approx((entropy < 0.1 * math.log(10)).mean(), abs=0.01)
        assert sum(row["fractions"]) == pytest.approx(1, abs=2e-3)
    means = [row["mean"] for row in numbers["devices"][device]]
    assert means == sorted(means, reverse=True)  # a lower temperature lowers the entropy


def test_tsne_of_the_largest_device(found, plain: ug.Result, tuned: ug.Result) -> None:
    assert found["tsne"][tuned.run]["level"] == "mid" and found["tsne"][plain.run]["level"] == "up"
    numbers, (device,) = found["tsne"][plain.run], largest(1)
    shard = digits_population().train(device)
    assert numbers["device"] == device and numbers["samples"] == min(500, len(shard)) == len(numbers["points"])
    labels = [int(numbers["classes"][place]) for place in numbers["labels"]]
    assert labels == shard.y.tolist()
    p = (plain.model(shard.x).detach() / 0.1).softmax(1)
    entropy = torch.special.entr(p).sum(1)
    chosen = numbers["selected"]["entropy"]
    assert len(chosen) == round(0.1 * len(shard))
    others = [place for place in range(len(shard)) if place not in chosen]
    assert entropy[chosen].min() >= entropy[others].max()
    of_clusters = [labels[place] for place in numbers["selected"]["clusters"]]
    assert set(of_clusters) == set(labels)  # clusters are computed per class
    # Neighbours in the map are neighbours in feature space, so most have the same class.
    points = torch.tensor(numbers["points"])
    nearest = torch.cdist(points, points).fill_diagonal_(torch.inf).argmin(1)
    same_class = float((shard.y[nearest] == shard.y).double().mean())
    assert same_class == pytest.approx(numbers["same_class_neighbours"], abs=0.1) and same_class > 0.8


def test_efficiency_needs_only_the_store(found, folder: Path, plain: ug.Result, tmp_path: Path) -> None:
    best = max(row["accuracy"] for row in plain.history)
    seconds = sum(row.seconds_compute for row in plain.ledger.rows())
    assert found["efficiency"][plain.run]["learning_efficiency"] == pytest.approx(best / seconds)
    copied = shutil.copytree(folder, tmp_path / "runs")
    (copied / plain.run / "model.safetensors").unlink()
    again = ug.report.analyse([plain.run], ["efficiency", "entropy"], copied)
    assert again["efficiency"] == {plain.run: found["efficiency"][plain.run]}
    assert "cannot be read" in again["entropy"][plain.run]["problem"]


def test_the_page_and_the_command(found, folder: Path, plain: ug.Result, tuned: ug.Result, tmp_path: Path) -> None:
    path = ug.report.write_report([plain.run, tuned.run], folder, tmp_path / "page.html", analyses=found)
    text = path.read_text(encoding="utf-8")
    path = ug.report.write_report([plain.run, tuned.run], folder, tmp_path / "without.html")
    without = path.read_text(encoding="utf-8")
    for analysis in ANALYSES.values():
        heading = f"<h2>{analysis.title.replace(chr(39), '&#x27;')}</h2>"
        assert heading in text and heading not in without
    assert len(text) - len(without) < 100_000
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", text)
    figures = figures_of(text)
    for figure in figures.values():
        go.Figure(figure)
    command = ["report", plain.run, "--out", str(folder), "-o", str(tmp_path / "again.html"), "--json"]
    done = invoke(*command, "--with", "cka", "--with", "efficiency", "--devices", "2")
    printed = json.loads(done.stdout)
    assert list(printed["analyses"]) == ["cka", "efficiency"]
    assert printed["analyses"]["cka"][plain.run]["devices"] == largest(2)
    assert "highest at low" in Path(printed["report"]).read_text(encoding="utf-8")


def test_unknown_analyses_are_rejected_first(folder: Path, plain: ug.Result, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'entropy'"):
        ug.report.write_report([plain.run], folder, tmp_path / "page.html", analyses=["cka", "entrpy"])
    for odd in (0, "10"):
        with pytest.raises(InputError, match=f"devices {odd!r} must be a whole number of at least 1"):
            ug.report.analyse([plain.run], out_folder=folder, devices=odd)  # type: ignore[arg-type]
    assert ug.report.analyse(plain.run, "efficiency", folder) == ug.report.analyse([plain.run], ["efficiency"], folder)
    assert not (tmp_path / "page.html").exists()


class Text(nn.Module):
    """A model that is not a chain of stages."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(9, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x).mean(1))


def tokens() -> Dataset:
    generator = np.random.default_rng(0)
    x = generator.integers(0, 9, (80, 6))
    y = (x.mean(1) > 4).astype(np.int64)
    return Dataset("words", x[:60], y[:60], x[60:], y[60:], classes=2)


def test_impossible_analyses_give_a_reason(tmp_path: Path) -> None:
    data, out = tokens(), str(tmp_path)
    run = ug.run(data=data, model=Text, partition="iid", clients=3, rounds=1, out=out).run
    found = ug.report.analyse([run], out_folder=out, data=data, model=Text)
    problems = {name: by_run[run]["problem"] for name, by_run in found.items() if "problem" in by_run[run]}
    assert sorted(problems) == ["attention"] and "need images" in problems["attention"]
    assert list(found["cka"][run]["similarity"])[-1] == "head"
    text = ug.report.write_report([run], out, tmp_path / "page.html", found).read_text(encoding="utf-8")
    assert text.count("Not possible: ") == 1 and "Entropy of samples" in text
    without = ug.report.analyse([run], ["bias"], out)
    assert "was given a data object (Dataset)" in without["bias"][run]["problem"]


def test_runs_that_cannot_be_reopened(tmp_path: Path) -> None:
    digits = load("digits")
    file = tmp_path / "my.npz"
    np.savez(file, x=digits.x[:200], y=digits.y[:200], x_test=digits.test_x[:50], y_test=digits.test_y[:50])
    out = str(tmp_path / "runs")
    gone = ug.run(data="npz", path=str(file), model="mlp", clients=2, rounds=1, out=out).run
    alone = ug.run(method="central", model="mlp", clients=2, rounds=1, out=out).run
    stopped = ug.run(model="mlp", clients=2, rounds=1, out=out).run
    file.unlink()
    store = Store(out, write=True)
    store.set_status(stopped, "interrupted")
    store.close()
    found = ug.report.analyse([gone, alone, stopped], ["cka", "bias", "efficiency"], out)
    assert "my.npz" in found["bias"][gone]["problem"]
    assert "needs two devices" in found["cka"][alone]["problem"] and "full" in found["bias"][alone]
    assert "interrupted" in found["cka"][stopped]["problem"] and "resume" in found["cka"][stopped]["problem"]
    assert all("learning_efficiency" in numbers for numbers in found["efficiency"].values())


def test_the_frozen_layers_are_those_of_the_run(tmp_path: Path) -> None:
    start, lora = {"data": {"name": "digits", **FEW}, "epochs": 5}, {"lora": {"rank": 1}}
    settings = {"clients": 2, "rounds": 1, "data_options": FEW, "out": str(tmp_path)}
    result = ug.run(model="mlp", model_options=lora, start=start, **settings)
    numbers = ug.report.analyse([result.run], ["bias"], tmp_path, devices=1)["bias"][result.run]
    assert numbers["before"]["accuracy"] == [pytest.approx(result.accuracy)]
    assert result.accuracy > 0.3, "far above that of a random model"


@pytest.mark.parametrize("method", ["fedbuff", "heterofl", "local"])
def test_clients_without_model_uploads_are_replaced_by_gradient_descent(method: str, tmp_path: Path) -> None:
    run = ug.run(method=method, model="mlp", clients=3, rounds=1, out=str(tmp_path)).run
    numbers = ug.report.analyse([run], ["cka"], tmp_path, devices=2)["cka"][run]
    assert numbers["trained_by"] == "gradient descent"
    assert 0 < numbers["mean"]["head"] < 1
