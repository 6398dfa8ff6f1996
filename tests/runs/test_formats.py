"""Versions of the store, of stored experiments and of checkpoints: older ones are read, newer ones are refused."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import undergrowth as ug
from tests.typed_commands import invoke
from undergrowth import data, models
from undergrowth.core import InputError
from undergrowth.exchange import COLUMNS
from undergrowth.methods import METHODS
from undergrowth.models import catalogue
from undergrowth.models.catalogue import TABLE
from undergrowth.models.initialisation import INITS
from undergrowth.runs import checkpoint, formats, schema
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.method_builder import build_method
from undergrowth.runs.store import FILE, Store
from undergrowth.runs.stored_experiment import option_defaults, stored_experiment


@pytest.fixture
def folder(run: Any, out: str) -> Path:
    """An output folder with one finished run."""
    run(rounds=1)
    return Path(out)


def change(folder: Path, statement: str, *values: Any) -> None:
    connection = sqlite3.connect(folder / FILE)
    with connection:
        connection.execute(statement, values)
    connection.close()


def refusal(*words: str) -> str:
    """The sentence of a command that is refused with exit code 2."""
    done = invoke(*words)
    assert done.exit_code == 2, done.output
    assert done.stderr.count("\n") == 1
    return done.stderr


def columns(connection: sqlite3.Connection) -> dict[str, set[str]]:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    return {table: {row[1] for row in connection.execute(f"PRAGMA table_info({table})")} for table in tables}


# The store ------------------------------------------------------------------------------------------------------


def test_a_migrated_store_has_the_tables_of_a_new_one() -> None:
    old = sqlite3.connect(f"file:{Path(__file__).with_name('old_runs') / FILE}?immutable=1", uri=True)
    new = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(new)
    migrated = schema.migrated_copy(old)
    assert columns(migrated) == columns(new) != columns(old)
    assert columns(new)["links"] == {"run", *COLUMNS}
    assert schema.schema_version(migrated) == schema.schema_version(new) == schema.SCHEMA_VERSION
    for connection in (old, new, migrated):
        connection.close()


def test_a_migration_that_fails_leaves_the_store_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("ALTER TABLE runs ADD COLUMN half TEXT")
        raise sqlite3.OperationalError("no luck")

    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, fail))
    monkeypatch.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
    with pytest.raises(InputError, match=r"cannot be written to \(no luck\)"):
        Store(folder, write=True)
    monkeypatch.undo()
    store = Store(folder)
    assert "half" not in store.runs()[0]
    store.close()


def test_a_newer_store_is_refused_in_one_sentence(folder: Path) -> None:
    change(folder, f"PRAGMA user_version={schema.SCHEMA_VERSION + 1}")
    for words in (("list",), ("show", "last"), ("resume", "last"), ("run", "--model", "logistic")):
        assert "was written by a newer version of undergrowth" in refusal(*words, "--out", str(folder))


def test_a_reader_cannot_write(folder: Path) -> None:
    store = Store(folder)
    with pytest.raises(ug.RunError, match="could not be written"):
        store.set_status("x", "done")
    store.close()


def stored_defaults(raw: dict[str, Any]) -> dict[str, Any]:
    """Defaults after their way through the store, which writes them as JSON."""
    defaults: dict[str, Any] = json.loads(json.dumps(option_defaults(parse_experiment(raw))))
    return defaults


# Experiments ----------------------------------------------------------------------------------------------------


def test_a_run_stores_the_version_the_format_and_all_defaults(folder: Path) -> None:
    store = Store(folder)
    (row,) = store.runs()
    store.close()
    assert (row["version"], row["format"]) == (ug.__version__, formats.EXPERIMENT_FORMAT)
    assert row["experiment"]["defaults"] == stored_defaults({"model": "logistic"})


@pytest.mark.parametrize("name", METHODS)
def test_stored_defaults_build_the_same_method(name: str) -> None:
    assert build_method(name, stored_defaults({"method": name})["method"]) == build_method(name, {})


def test_the_defaults_of_all_data_sets_and_models_can_be_stored() -> None:
    for name in data.names():
        assert stored_defaults({"data": name})["data"].keys() == data.describe(name).options.keys()
    for name in models.names():
        example = name.replace("D", "16").replace("K", "1") if name != name.lower() else name
        assert "norm" in stored_defaults({"model": example})["model"]


def test_a_changed_default_does_not_change_an_old_run(folder: Path) -> None:
    store = Store(folder)
    (row,) = store.runs()
    store.close()
    row["experiment"]["defaults"]["method"] = {"server_lr": 0.5}  # the default of the version that began the run
    assert stored_experiment(row).method.options == {"server_lr": 0.5}
    row["experiment"]["settings"]["method"]["server_lr"] = 0.25
    assert stored_experiment(row).method.options == {"server_lr": 0.25}


def test_models_of_old_runs_start_as_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the default of an architecture changes, and for the models of a ladder."""
    # No run in that format has these.
    later = ("squeezenet", "efficientnet-lite0", "efficientnetv2-b0", "transformer", "fusion-transformer")
    names = [row.example for row in TABLE if row.name not in later]
    before = dict.fromkeys(names, "he-out") | {"cnn": "he-in"}
    before |= dict.fromkeys(("logistic", "mlp", "lstm", "lstm-words"), "torch")
    for init in INITS:
        monkeypatch.setattr(catalogue, "TABLE", tuple(replace(row, init=init) for row in TABLE))
        for name in names:
            settings = json.loads(parse_experiment({"model": {"name": name, "ladder": names}}).model_dump_json())
            for rung in settings["model"]["ladder"]:
                del rung["init"], rung["count"]  # keys of later versions
            document = formats.upgrade_experiment({"settings": settings, "defaults": {"model": {"norm": "x"}}}, 1)
            found = stored_experiment({"experiment": document}).model
            assert found.options == {"norm": "x", "init": before[name]}
            assert {rung.label: rung.init for rung in found.ladder} == before
    unknown = {"settings": {"method": {"name": "fedavg"}, "model": {"name": "mine"}}, "defaults": {}}
    assert formats.upgrade_experiment(unknown, 1)["defaults"] == {"method": {}, "model": {}}


def test_new_runs_keep_the_start_of_their_models(monkeypatch: pytest.MonkeyPatch) -> None:
    ladder = ["wrn-10-1", {"name": "mlp", "hidden": [8]}, {"name": "cnn", "init": "torch"}]
    described = parse_experiment({"model": {"name": "cnn", "ladder": ladder}})
    stored = {"settings": json.loads(described.model_dump_json()), "defaults": option_defaults(described)}
    before = {name: models.describe(name).inits[0] for name in ("cnn", "wrn-10-1", "mlp")}
    changed = {row.name: next(init for init in INITS if init != row.init) for row in TABLE}
    monkeypatch.setattr(catalogue, "TABLE", tuple(replace(row, init=changed[row.name]) for row in TABLE))
    found = stored_experiment({"experiment": json.loads(json.dumps(stored))}).model
    assert found.options["init"] == before["cnn"]
    assert [rung.init for rung in found.ladder] == [before["wrn-10-1"], before["mlp"], "torch"]
    assert [rung.label for rung in found.ladder] == [rung.label for rung in described.model.ladder]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-s", "train.selection=oort"), "train.selection is now called train.sampler"),
        (("--method", "fedsplit", "-s", "method.selection=all"), "method.selection is now called method.selector"),
        (("--method", "fedavg", "-s", "method.selection=all"), "method.selection is not a known key"),
    ],
)
def test_an_old_key_is_refused_with_the_new_one(words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refusal("run", *words)


def test_an_old_argument_is_refused_with_the_new_one() -> None:
    with pytest.raises(InputError, match="the argument selection is now called sampler"):
        ug.plan(selection="oort")


def test_every_rename_and_upgrade_is_applied_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    later = (formats.Rename(3, "train", "sampler", "chooser"), formats.Rename(4, "train", "chooser", "picker"))
    monkeypatch.setattr(formats, "RENAMES", (*formats.RENAMES, *later))
    upgrades = {**formats.EXPERIMENT_UPGRADES, 1: (lambda document: {**document, "new": 1},), 2: (), 3: ()}
    monkeypatch.setattr(formats, "EXPERIMENT_UPGRADES", upgrades)
    monkeypatch.setattr(formats, "EXPERIMENT_FORMAT", 4)
    old = {"settings": {"method": {"name": "fedsplit", "selection": "all"}, "train": {"selection": "oort"}}}
    settings = {"method": {"name": "fedsplit", "selector": "all"}, "train": {"picker": "oort"}}
    assert formats.upgrade_experiment(old, 0) == {"settings": settings, "defaults": {"method": {}}, "new": 1}
    assert formats.upgrade_experiment(old, 4) == old


@pytest.mark.parametrize("found", [0, 1])
def test_an_older_run_of_fedat_keeps_the_printed_form_of_its_loss(found: int) -> None:
    settings = {"method": {"name": "fedat", "beta": 5.0}, "model": {"name": "cnn"}}
    old = {"settings": settings, "defaults": {"method": {"beta": 1000.0}}}
    row = {"experiment": formats.upgrade_experiment(old, found), "version": None}
    assert stored_experiment(row).method.options == {"form": "printed", "beta": 5.0}
    new = {**old, "defaults": stored_defaults({"method": "fedat"})}
    row = {"experiment": formats.upgrade_experiment(new, formats.EXPERIMENT_FORMAT), "version": None}
    assert stored_experiment(row).method.options["form"] == "mean-square"


@pytest.mark.parametrize("name", ["heterofl", "fjord", "fedrolex"])
def test_older_runs_of_width_slicing_go_on_averaging_statistics(name: str) -> None:
    settings = {"method": {"name": name, "ratios": [1.0]}, "model": {"name": "cnn"}}
    stored = {"settings": settings, "defaults": {"method": {"ratios": [1.0, 0.5]}}}
    upgraded = formats.upgrade_experiment(stored, 1)
    assert upgraded["defaults"]["method"]["statistics"] is False
    assert METHODS[name]().statistics is True  # type: ignore[attr-defined]


def test_a_run_in_a_newer_format_is_refused_in_one_sentence(folder: Path) -> None:
    change(folder, "UPDATE runs SET format=?", formats.EXPERIMENT_FORMAT + 1)
    assert "was written by a newer version of undergrowth" in refusal("show", "last", "--out", str(folder))


def test_unknown_keys_of_a_newer_version_are_refused_in_one_sentence(folder: Path) -> None:
    store = Store(folder)
    (row,) = store.runs()
    store.close()
    row["experiment"]["settings"]["train"]["warp"] = 9
    change(folder, "UPDATE runs SET status='interrupted', version='99.0', experiment=?", json.dumps(row["experiment"]))
    sentence = refusal("resume", "last", "--out", str(folder))
    assert f"was written by undergrowth 99.0, and this is version {ug.__version__}: train.warp is not a kn" in sentence
    assert row["id"] in invoke("list", "--out", folder).stdout


# Checkpoints ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_without_a_number_has_format_1_and_is_upgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = next(Path(__file__).with_name("old_runs").glob("*fedadam*/checkpoints/round-00002.safetensors"))
    assert checkpoint.read(file)[1] == 1
    upgrades = {1: lambda state: {**state, "path": "2"}, 2: lambda state: {**state, "path": state["path"] + "3"}}
    monkeypatch.setattr(formats, "CHECKPOINT_UPGRADES", upgrades)
    monkeypatch.setattr(formats, "CHECKPOINT_FORMAT", 3)
    monkeypatch.setattr(checkpoint, "CHECKPOINT_FORMAT", 3)
    (tmp_path / file.name).write_bytes(file.read_bytes())
    state, _, _ = checkpoint.Checkpoints(tmp_path).load(file.name, checkpoint._checksum(file))
    assert state["path"] == "23"
    checkpoint.write(tmp_path / "new", {"x": torch.ones(2)})
    assert checkpoint.read(tmp_path / "new")[1] == 3


def test_a_checkpoint_in_a_newer_format_is_refused_in_one_sentence(
    out: str, interrupted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "CHECKPOINT_FORMAT", formats.CHECKPOINT_FORMAT + 1)
        interrupted({"model": "logistic", "data": {"clients": 2}, "train": {"rounds": 2}}, 1)
    sentence = refusal("resume", "last", "--out", out)
    assert "checkpoint" in sentence and "was written by a newer version of undergrowth" in sentence
