"""The phase after the last round: every device alone, the federated model, and adapted ones."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import undergrowth as ug
from undergrowth.engines import states
from undergrowth.runs import Store, opening
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.engine_choice import Choice
from undergrowth.runs.execution import start
from undergrowth.runs.final_models import FinalModels
from undergrowth.runs.personal_phase import PersonalPhase

from .objects import digest

SMALL = {
    "model": "logistic",
    "data": {"clients": 5, "partition": "dirichlet:0.3", "train_samples": 250, "holdout": 0.2},
    "train": {"rounds": 2, "batch": 16},
    "fleet": "mixed-edge",
}
PERSONAL = {"adapt": ["fine-tune", "freeze"], "epochs": 3, "validation": 0.2}


def raw(out: Path, **sections: Any) -> dict[str, Any]:
    return {**SMALL, **sections, "run": {"out": str(out), "seed": 3, "engine": "serial", **sections.get("run", {})}}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ug.Result:
    return start(raw(tmp_path_factory.mktemp("personal"), personal=PERSONAL))


def test_every_device_has_every_accuracy(result: ug.Result) -> None:
    found = result.personal
    assert found is not None and found.models == ("local", "federated", "fine-tune", "freeze")
    assert list(found.devices) == [each["device"] for each in result.clients]
    assert list(found.tiers) == [each["tier"] for each in result.clients]
    # FedAvg has no models of devices, so their accuracy is that of the federated model.
    assert found.by_device("federated") == {each["device"]: each["accuracy"] for each in result.clients}
    assert ug.load(result.run, result.folder.parent).personal == found


def test_adaptation_changes_neither_the_model_nor_the_costs_of_the_run(result: ug.Result, tmp_path: Path) -> None:
    plain = start(raw(tmp_path))
    assert digest(plain) == digest(result)
    assert plain.personal is None and plain.ledger.personal == {}
    for cost in ("bytes_down", "bytes_up", "flops", "joules", "simulated_seconds", "peak_device_bytes"):
        assert getattr(plain.ledger, cost) == getattr(result.ledger, cost)


def test_models_that_are_final_are_scored_at_once_and_not_kept(
    result: ug.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One model at a time, after its device stopped early or in the last epoch: the same accuracies."""
    final, take = dict[str, int](), FinalModels.take

    def watched(self: FinalModels, device: str, own: Any) -> bool:
        self._most = 1
        is_final = take(self, device, own)
        final[device] = final.get(device, 0) + is_final
        return is_final

    monkeypatch.setattr(FinalModels, "take", watched)
    assert start(raw(tmp_path, personal=PERSONAL)).personal == result.personal
    assert set(final.values()) == {3}  # one model of each device in each of three steps
    monkeypatch.setattr(FinalModels, "take", lambda *_: False)
    assert start(raw(tmp_path, personal=PERSONAL)).personal == result.personal


def test_the_costs_of_the_phase_are_booked_apart(result: ug.Result) -> None:
    costs, model = result.ledger.personal, load_file(result.folder / "model.safetensors")
    assert list(costs) == ["local", "fine-tune", "freeze"]
    weights = sum(value.nbytes for value in model.values())
    assert costs["local"].bytes_down == 5 * 8  # a seed for each device
    assert costs["fine-tune"].bytes_down == 5 * weights  # the model once, however many epochs
    assert costs["local"].flops > 0 and result.summary["personal"]["local"] == asdict(costs["local"])


def test_the_local_models_are_those_that_devices_train_alone(tmp_path: Path) -> None:
    """Without early stopping they are the models of the method `adapt` with `alone`, and nothing of the federation."""
    settings = {"adapt": [], "epochs": 2, "validation": 0.0, "lr": 0.05}
    one, other = (
        start(raw(tmp_path, personal=settings, method=method)).personal for method in ("fedavg", {"name": "fedprox"})
    )
    assert one is not None and other is not None
    assert one.accuracies["local"] == other.accuracies["local"]


def test_the_local_models_start_from_the_weights_of_the_federation(tmp_path: Path) -> None:
    """With a learning rate that changes nothing, both have the same accuracy on every device."""
    settings = {"adapt": [], "epochs": 1, "validation": 0.0}
    found = start(raw(tmp_path, model="mlp", personal=settings, train={"rounds": 1, "lr": 1e-30})).personal
    assert found is not None and found.accuracies["local"] == found.accuracies["federated"]


def test_an_interrupted_phase_is_resumed(result: ug.Result, tmp_path: Path) -> None:
    seen: list[str] = []

    def stop_in_second_step(step: str, done: int, rounds: int) -> None:
        seen.append(step)
        if step == "fine-tune" and done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(raw(tmp_path, personal=PERSONAL), on_phase=stop_in_second_step)
    with pytest.raises(ug.InputError, match="is interrupted"):
        ug.load("last", tmp_path)
    again = ug.resume("last", tmp_path, progress=False)
    assert again.personal == result.personal and digest(again) == digest(result)
    assert "local" in seen and "freeze" not in seen
    assert again.notes == result.notes and notes_of_steps(again) == notes_of_steps(result)


def notes_of_steps(result: ug.Result) -> list[list[str]]:
    with closing(Store(result.folder / "personal")) as store:
        return [row["notes"] for row in store.runs()]


def test_only_devices_below_their_local_model_adapt(tmp_path: Path) -> None:
    settings = {"adapt": ["fine-tune"], "epochs": 3, "validation": 0.3, "only": "below", "max_devices": 2}
    result = start(raw(tmp_path, personal=settings))
    found = result.personal
    assert found is not None
    with closing(Store(result.folder / "personal")) as store:
        local, adaptation = (store.devices(row["id"]) for row in store.runs())
    validation = {each["device"]: each["validation"] for each in local}
    trained = {each["device"] for each in adaptation if each["rounds"]}
    assert 0 < len(trained) <= 2 and all(validation[device] > 0 for device in trained)
    before, after = found.by_device("federated"), found.by_device("fine-tune")
    assert all(after[device] == before[device] for device in before if device not in trained)
    assert any("personal: 2 of 5 devices adapt" in note for note in result.notes)


def test_without_early_stopping_devices_still_compare_models_on_their_validation_samples(tmp_path: Path) -> None:
    settings = {"epochs": 2, "validation": 0.3, "patience": 0, "only": "below"}
    result = start(raw(tmp_path, personal=settings))
    with closing(Store(result.folder / "personal")) as store:
        local = store.devices(next(iter(store.runs()))["id"])
    assert all(each["rounds"] == 2 and each["validation"] is not None for each in local)


def test_the_devices_furthest_below_adapt_first() -> None:
    local = {"a": 0.9, "b": 0.5, "c": 0.6, "d": 0.7, "e": 0.4}
    federated = {"a": 0.5, "b": 0.6, "c": 0.5, "d": 0.3, "e": 0.4}

    def chosen(**limit: Any) -> list[str]:
        experiment = parse_experiment({"personal": {"only": "below", **limit}})
        devices = type("Devices", (), {"devices": tuple(local)})()
        return PersonalPhase(experiment, devices, 0, None, Path()).choose(local, federated)

    assert chosen() == ["a", "d", "c"]
    assert chosen(max_devices=1) == ["a"]
    assert chosen(max_fraction=0.4) == ["a", "d"]


@pytest.mark.parametrize(
    ("personal", "message"),
    [
        ({"adapt": ["ewcc"]}, "personal.adapt.*'ewcc' is not known; did you mean 'ewc'"),
        ({"adapt": ["alone"]}, "'alone' is not known"),
        ({"adapt": ["kd", "kd"]}, "names an adaptation twice"),
        ({"adapt": ["kd:0"]}, "kd:0' must be kd"),
        ({"epochs": 0}, "personal.epochs 0 should be greater than or equal to 1"),
        ({"only": "below", "validation": 0}, "give validation above 0"),
        ({"max_devices": 3}, "give only: below as well"),
        ({"only": "below", "max_devices": 3, "max_fraction": 0.1}, "give one of them"),
        ({"patient": 3}, "personal.patient is not a known key; did you mean 'patience'"),
    ],
)
def test_bad_settings_are_refused(personal: Any, message: str) -> None:
    with pytest.raises(ug.InputError, match=message):
        parse_experiment({"personal": personal})


def test_short_forms() -> None:
    assert not parse_experiment({}).personal.evaluate
    assert not parse_experiment({"personal": False}).personal.evaluate
    assert parse_experiment({"personal": True}).personal.adapt == ("fine-tune",)
    assert parse_experiment({"personal": "kd"}).personal.adapt == ("kd",)
    assert parse_experiment({"personal": ["ewc:10", "kd"]}).personal.evaluate
    stored = parse_experiment({}).model_dump()
    assert parse_experiment(stored) == parse_experiment({})


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"method": "central"}, "personal: central trains one model"),
        ({"method": "local"}, "personal.adapt: local has no model of all devices"),
        ({"data": {**SMALL["data"], "holdout": 0.0}}, "data.holdout 0.0 leaves no device a test sample"),  # type: ignore[dict-item]
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_the_run(
    sections: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ug.InputError, match=message):
        start(raw(tmp_path / "runs", personal=PERSONAL, **sections))
    assert not (tmp_path / "runs").exists()


def test_states_that_do_not_fit_into_memory_change_nothing(
    result: ug.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "MAX_CPU_BYTES", 0)
    assert start(raw(tmp_path, personal=PERSONAL)).personal == result.personal


def test_a_method_with_models_of_devices_has_one_more(tmp_path: Path) -> None:
    settings = {"adapt": [], "epochs": 1}
    found = start(raw(tmp_path, personal=settings, method="fedbn", model={"name": "resnet-8", "width": 4})).personal
    assert found is not None and found.models == ("local", "federated", "personal")


def test_a_copy_of_the_folder_can_be_read(result: ug.Result, tmp_path: Path) -> None:
    shutil.copytree(result.folder.parent, tmp_path / "copy")
    assert ug.load(result.run, tmp_path / "copy").personal == result.personal


def test_by_class_weighs_the_central_test_set_by_the_classes_of_a_device(tmp_path: Path) -> None:
    """As Iacob et al. (2023) do for CIFAR-10: Σ_c (share of class c on the device)·(accuracy on class c)."""
    data = {**SMALL["data"], "holdout": 0}
    found = start(raw(tmp_path, data=data, personal={"adapt": [], "epochs": 1, "test": "by-class"}))
    section = parse_experiment(raw(tmp_path, data=data)).data
    dataset = ug.data.load("digits", train_samples=250)
    population = ug.data.partition_dataset(dataset, section.partition, 5, 3, 0)
    test = dataset.central_test()
    right = (found.model(test.x).argmax(1) == test.y).double()
    assert found.personal is not None and list(found.personal.devices) == list(population.devices)
    for device, accuracy in found.personal.by_device("federated").items():
        labels = population.train(device).y
        expected = sum((labels == each).double().mean() * right[test.y == each].mean() for each in range(10))
        assert accuracy == pytest.approx(float(expected))
    assert all(0 <= value <= 1 for value in found.personal.by_device("local").values())


@pytest.mark.parametrize("only", ["all", "below"])
def test_by_class_leaves_out_devices_without_a_tested_class(tmp_path: Path, only: str) -> None:
    """They have no accuracy anywhere: in the result, the store, JSON, tables and the page."""
    data = {**digits_of(tmp_path, range(10), range(5)), "partition": "classes:1"}
    personal = {"epochs": 1, "test": "by-class", "only": only}
    result = start(raw(tmp_path, data=data, personal=personal))
    dataset = ug.data.load("npz", path=data["path"], train_samples=400)
    population = ug.data.partition_dataset(dataset, "classes:1", 5, 3, 0)
    tested = [device for device in population.devices if population.train(device).y[0] < 5]
    assert 0 < len(tested) < 5 and result.personal is not None and list(result.personal.devices) == tested
    note = f"personal: {5 - len(tested)} of 5 devices have no test samples and are left out"
    assert note in result.notes
    with closing(Store(result.folder / "personal")) as store:
        scores = [device["accuracy"] for row in store.runs() for device in store.devices(row["id"])]
    assert scores.count(None) >= 5 - len(tested) and all(0 <= score <= 1.001 for score in scores if score is not None)
    ug.report.write_report([result.run], tmp_path, tmp_path / "page.html")
    json.dumps([result.summary, result.history, result.clients, result.personal.rows()], allow_nan=False)


def test_by_class_needs_a_device_with_a_tested_class(tmp_path: Path) -> None:
    wrong = {"data": digits_of(tmp_path, range(9), range(9, 10)), "personal": {"test": "by-class"}}
    with pytest.raises(ug.InputError, match=r"personal\.test by-class: no device has a class of the central test set"):
        start(raw(tmp_path, **wrong))


def digits_of(folder: Path, trained: range, tested: range) -> dict[str, Any]:
    """Digits of some classes, and a test set of others."""
    digits = ug.data.load("digits")
    train, test = np.isin(digits.y, trained), np.isin(digits.test_y, tested)
    parts = {"x": digits.x[train], "y": digits.y[train], "test_x": digits.test_x[test], "test_y": digits.test_y[test]}
    np.savez(folder / "some.npz", **parts)
    return {"name": "npz", "path": str(folder / "some.npz"), "clients": 5, "train_samples": 400, "holdout": 0}


def test_training_that_diverges_names_the_phase_and_its_learning_rate(tmp_path: Path) -> None:
    settings = {"adapt": [], "epochs": 3, "validation": 0, "lr": 1e30}
    with pytest.raises(ug.RunError, match=r"personal, local: round 1: every update .* a smaller personal\.lr may help"):
        start(raw(tmp_path, model="mlp", personal=settings))


def test_by_class_needs_classes(tmp_path: Path) -> None:
    (tmp_path / "play.txt").write_text("Ann:\nthe rain in spain\n\nBob:\nstays in the plain\n\n" * 9)
    wrong = {
        "task": {"main": "accuracy"},
        "model": {"name": "lstm", "hidden": 4},
        "data": {"name": "text", "path": str(tmp_path / "play.txt"), "length": 8, "holdout": 0.2},
        "personal": {"test": "by-class"},
    }
    with pytest.raises(ug.InputError, match=r"personal.test by-class needs classes, and the task is next-token"):
        start(raw(tmp_path, **wrong))


def test_the_phase_has_as_many_workers_as_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "choose_engine", lambda facts: Choice({"engine": "processes"}, "the test wants it"))
    run = {"engine": "auto", "workers": 1}
    result = start(raw(tmp_path, personal={"adapt": [], "epochs": 1}, run=run))
    with closing(Store(result.folder / "personal")) as store:
        (row,) = store.runs()
        assert [each["workers"] for each in (*result.history, *store.rounds(row["id"]))] == [1, 1, 1]
