"""A setting that the method ignores is named in a note of the run; a setting that it uses is not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

import undergrowth as ug
from tests.runs.conftest import Run
from undergrowth.core import Method
from undergrowth.engines import ENGINE_SETTINGS, ENGINES
from undergrowth.learning import Adam, AveragingServer, GradientClient
from undergrowth.methods import METHODS
from undergrowth.runs.config import Experiment, parse_experiment
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.unused_settings import _value_at, unused_engine_settings

TINY = {"data": {"clients": 4, "train_samples": 40}, "model": "logistic"}


def notes(**raw: Any) -> list[str]:
    return federate(parse_experiment({**TINY, **raw})).notes


@pytest.mark.parametrize("method", ["fedbuff", "fedasync"])
def test_methods_without_rounds_do_not_use_deadline_and_sample(method: str) -> None:
    found = notes(method=method, fleet={"deadline": 60}, train={"sample": 0.5, "epochs": 2})
    assert found == [f"{method} does not use fleet.deadline 60.0 and train.sample 0.5; they have no effect"]
    assert notes(method=method, train={"epochs": 2}) == []


def test_a_shift_after_the_last_round_is_noted() -> None:
    stream = {"memory": 5, "shift": "sudden", "every": 3}
    (note,) = notes(stream=stream, train={"rounds": 3})
    assert note.startswith("stream.shift sudden has no effect: the first shift would be in round 4, and the run has 3")
    assert notes(stream=stream, train={"rounds": 4}) == []


def test_public_data_and_momentum_that_nothing_uses_are_noted() -> None:
    (note,) = notes(public=0.2)
    assert note.startswith("fedavg uses no public data") and note.endswith("taken from the devices all the same")
    assert notes(method={"name": "bhfl", "proxy": "before"}, public=0.2) == []
    assert notes(method="fedmd", public=0.2) == []
    assert notes(train={"optimiser": "adam", "momentum": 0.9}) == [
        "train.momentum 0.9 has no effect: it is for train.optimiser sgd"
    ]
    assert notes(train={"optimiser": "adam"}) == notes(train={"momentum": 0.9}) == []


WITHOUT_EFFECT: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    (
        {"train": {"schedule": "step:10:0.5", "rounds": 10}},
        "train.schedule step:10:0.5 has no effect: the learning rate would first fall in round 11, and the run has 10",
        {"train": {"schedule": "step:10:0.5", "rounds": 11}},
    ),
    (
        {"stop": {"rounds": 9}, "train": {"rounds": 8}},
        "stop.rounds 9 has no effect: the run ends after train.rounds 8",
        {"stop": {"rounds": 7}, "train": {"rounds": 8}},
    ),
    (
        {"links": {"feedback": False}},
        "links.feedback False has no effect: it is for a lossy links.up",
        {"links": {"feedback": False, "up": "int8"}},
    ),
    (
        {"run": {"precision": "tf32"}},
        "run.precision tf32 has no effect: it is for a GPU",
        {"run": {"precision": "bf16"}},
    ),
    (
        {"personal": {"patience": 3, "validation": 0}},
        "personal.patience 3 has no effect: without personal.validation nothing stops early",
        {"personal": {"patience": 3}},
    ),
    (
        {"personal": {"momentum": 0.5}, "train": {"optimiser": "adam"}},
        "personal.momentum 0.5 has no effect: it is for train.optimiser sgd",
        {"personal": {"momentum": 0.5}},
    ),
    (
        {"method": "local", "links": {"up": "int8", "down": "int8", "feedback": False}},
        "local does not use links.down int8, links.feedback False and links.up int8; they have no effect",
        {"method": "local", "train": {"epochs": 3}},
    ),
    (
        {"train": {"over_select": 1.5}},
        "train.over_select 1.5 has no effect: train.sample is 1, so all devices are asked and needed",
        {"train": {"over_select": 1.5, "sample": 0.5}},
    ),
    (
        {"method": {"name": "fedprox", "reduced_epochs": 2}},
        "method.reduced_epochs 2 has no effect: without fleet.deadline, method.f_n or method.able no device is a "
        "straggler",
        {"method": {"name": "fedprox", "reduced_epochs": 2, "able": ["device-000"]}},
    ),
    (
        {"method": {"name": "fedavg", "stragglers": "fixed"}},
        "method.stragglers fixed has no effect: it is for stragglers that method.f_n draws",
        {"method": {"name": "fedavg", "stragglers": "fixed", "f_n": 0.5}},
    ),
    (
        {"personal": {"form": "printed"}},
        "personal.form printed has no effect: it is for personal.adapt kd",
        {"personal": {"form": "printed", "adapt": "kd"}},
    ),
]


@pytest.mark.parametrize(("raw", "note", "used"), WITHOUT_EFFECT)
def test_settings_that_other_settings_leave_without_effect(
    raw: dict[str, Any], note: str, used: dict[str, Any]
) -> None:
    assert notes(**raw) == [note] and notes(**used) == []


@pytest.mark.parametrize(
    ("run", "engine", "note"),
    [
        ({"engine": "serial", "address": "a:1"}, "serial", "run.engine serial does not use run.address a:1; it has"),
        ({"engine": "auto", "address": "a:1"}, "serial", "run.engine serial does not use run.address a:1; it has"),
        (
            {"engine": "vector", "chunk": 4, "workers": 2, "stack": True},
            "vector",
            "run.engine vector does not use run.stack True and run.workers 2; they have",
        ),
        ({"engine": "processes", "chunk": 4}, "processes", "run.engine processes does not use run.chunk 4; it has"),
        ({"engine": "processes", "chunk": 4, "stack": True, "workers": 2, "placement": "rr"}, "processes", None),
        ({"engine": "auto", "stack": True}, "processes", "run.engine processes does not use run.stack True; it has"),
        ({"engine": "auto", "chunk": 4}, "processes", "run.engine processes does not use run.chunk 4; it has"),
        ({"engine": "ray", "address": "a:1", "workers": 3, "placement": "rr"}, "ray", None),
        ({"engine": "serial"}, "serial", None),
    ],
)
def test_settings_that_the_engine_does_not_use(run: dict[str, Any], engine: str, note: str | None) -> None:
    given = parse_experiment({**TINY, "run": run})
    chosen = {"engine": engine, **({"stack": False} if run["engine"] == "auto" else {})}
    found = unused_engine_settings(given, given.with_run(**chosen).run)
    assert found == ([] if note is None else [f"{note} no effect"])


def test_every_engine_says_which_settings_it_uses() -> None:
    assert ENGINE_SETTINGS.keys() == ENGINES.keys()
    assert all(hasattr(Experiment().run, key) for keys in ENGINE_SETTINGS.values() for key in keys)


def test_a_note_about_the_engine_is_once_in_a_run_with_a_phase(out: str) -> None:
    start = {"method": "fedncm", "warm_rounds": 1}
    raw = {**TINY, "train": {"rounds": 1}, "links": {"feedback": False}, "start": start}
    result = ug.runs.execution.start({**raw, "run": {"engine": "serial", "chunk": 2, "out": out}})
    assert [note for note in result.notes if "no effect" in note] == [
        "links.feedback False has no effect: it is for a lossy links.up",
        "run.engine serial does not use run.chunk 2; it has no effect",
    ]


def test_a_deadline_that_the_sampler_uses_is_used() -> None:
    assert notes(method="fedbuff", fleet={"deadline": 60}, train={"sampler": "fedcs"}) == []


def test_a_selector_of_the_method_replaces_that_of_the_run() -> None:
    train = {"selector": "random:0.5", "epochs": 3}
    assert notes(method="fedft-eds", train=train) == [
        "fedft-eds does not use train.selector random:0.5; it has no effect"
    ]
    assert notes(method={"name": "fedft", "epochs": 2}, train=train) == [
        "fedft does not use train.epochs 3; it has no effect"
    ]
    assert notes(method="fedft", train=train) == []


@pytest.mark.parametrize("method", ["fedncm", "lp", "fedmezo", "distmezo"])
def test_methods_that_train_no_layer_with_dropout_say_so(method: str) -> None:
    model = {"name": "wrn-10-1", "dropout": 0.3}
    said = f"{method} does not use the dropout of the model; it has no effect"
    assert said in notes(method=method, model=model) and said not in notes(method=method, model="wrn-10-1")
    assert not any("dropout" in note for note in notes(method="fedft", model=model))


def test_one_step_on_all_samples_has_no_batches_and_no_momentum() -> None:
    train = {"batch": 8, "drop_last": True, "momentum": 0.9, "lr": 0.2}
    assert notes(method="fedsgd", train=train) == [
        "fedsgd does not use train.batch 8, train.drop_last True and train.momentum 0.9; they have no effect"
    ]


def test_all_data_in_one_place_has_no_fleet_and_no_topology() -> None:
    (note,) = notes(method="central", fleet="phones", topology="tree:2x2")
    assert note == "central does not use fleet.name phones and topology tree:2x2; they have no effect"


def test_the_fields_of_a_client_say_what_they_replace() -> None:
    client = GradientClient(optimiser=Adam(), lr=0.1, batch=8)
    assert client.ignored_settings == {
        "train.optimiser", "train.momentum", "train.weight_decay", "train.lr", "train.schedule", "train.batch",
    }  # fmt: skip
    assert GradientClient().ignored_settings == replace(client, optimiser=None, lr=None, batch=None).ignored_settings


@pytest.mark.parametrize("name", METHODS)
def test_every_ignored_setting_of_a_method_is_a_setting(name: str) -> None:
    experiment = Experiment()
    for path in METHODS[name]().ignored_settings:
        section, _, key = path.partition(".")
        if path == "model.dropout":  # an option of some models
            continue
        assert hasattr(getattr(experiment, section), key) if key else hasattr(experiment, section)
        _value_at(experiment, path)  # finds it too


@dataclass(frozen=True)
class OneEpoch(Method):
    client = GradientClient(epochs=1)
    server = AveragingServer()


def test_the_note_is_in_the_result_of_a_run(run: Run) -> None:
    result = run(method=OneEpoch(), epochs=5, rounds=1)
    assert "oneepoch does not use train.epochs 5; it has no effect" in result.notes
    assert ug.load(result.run, result.folder.parent, model=None).notes == result.notes
