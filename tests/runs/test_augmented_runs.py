"""Runs with `data.augment`, `data.normalise` and `train.drop_last`, from Python and from the command line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.cli.conftest import last_json, type_command  # noqa: F401
from tests.stopping import facts, stopped_and_resumed
from undergrowth import InputError
from undergrowth.data import Dataset, load, partition_dataset
from undergrowth.runs.execution import start

RAW = {
    "data": {"clients": 3, "augment": "crop+flip+cutout:3", "normalise": True, "train_samples": 200},
    "model": "logistic",
    "train": {"rounds": 3, "drop_last": True, "epochs": 2},
    "run": {"engine": "serial"},
}


def test_python_and_the_command_line_say_the_same(run, out, type_command) -> None:  # noqa: F811
    options = {"augment": "crop+flip", "train_samples": 200}
    settings = {"clients": 3, "rounds": 2, "seed": 4, "engine": "serial"}
    digest = run(data_options=options, drop_last=True, **settings).summary["model_digest"]
    written = "data.augment=crop+flip data.train_samples=200 data.clients=3 train.rounds=2 train.drop_last=true"
    arguments = [part for each in [*written.split(), f"run.out={out}"] for part in ("-s", each)]
    done = type_command("run", "--model", "logistic", "--seed", "4", "--engine", "serial", *arguments, "--json")
    assert last_json(done.stdout)["model_digest"] == digest
    assert run(data_options=options, drop_last=False, **settings).summary["model_digest"] != digest
    others = ({**options, "augment": "flip"}, {**options, "normalise": True})
    assert all(run(data_options=o, drop_last=True, **settings).summary["model_digest"] != digest for o in others)


def test_objects_are_augmented_like_names(run) -> None:
    data = load("digits", train_samples=200)
    settings = {"clients": 3, "rounds": 1, "engine": "serial", "partition": "iid"}
    named = run(data_options={"augment": "flip", "train_samples": 200}, **settings)
    given = run(data=data, data_options={"augment": "flip"}, **settings)
    population = partition_dataset(data, "iid", 3, 0, holdout=0.1)
    spread = run(data=population, data_options={"augment": "flip"}, rounds=1, engine="serial")
    assert named.summary["model_digest"] == given.summary["model_digest"] == spread.summary["model_digest"]


def test_a_run_is_resumed_bit_for_bit(tmp_path) -> None:
    raw = {**RAW, "run": {"engine": "serial", "out": str(tmp_path)}}
    assert facts(stopped_and_resumed(raw, 1, str(tmp_path))) == facts(start(raw))


def test_tables_and_tokens_are_refused(run) -> None:
    labels = np.arange(20) % 2
    table = Dataset("table", np.ones((20, 6), dtype=np.float32), labels, np.ones((4, 6)), labels[:4], 2)
    for data in (table, replace(table, x=table.x.astype(int), test_x=table.test_x.astype(int))):
        with pytest.raises(InputError, match=r"data.augment 'crop\+flip': one input has shape \(6,\); only images"):
            run(data=data, data_options={"augment": "crop+flip"})
