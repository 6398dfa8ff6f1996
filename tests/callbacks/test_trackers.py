"""Trackers, each with its real library and without a network. A library that is not installed is skipped."""

from __future__ import annotations

import importlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.callbacks import MLflow, TensorBoard, WeightsAndBiases, build_trackers
from undergrowth.core import InputError, RunError
from undergrowth.runs import execution

CHEAP = {"model": "logistic", "data": {"name": "digits", "clients": 4, "train_samples": 200}}

# The libraries warn of their own and of each other's future versions.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def start(out: Path, callbacks: list[Any]) -> ug.Result:
    raw = {**CHEAP, "train": {"rounds": 3}, "run": {"out": str(out), "engine": "serial"}}
    return execution.start(raw, callbacks=callbacks)


class Failing:
    def on_round(self, row: Any, run: Any) -> None:
        if row["round"] == 2:
            raise RuntimeError("no network")


def start_and_resume(out: Path, tracker: Any) -> ug.Result:
    """A run that fails in its second round and is resumed."""
    with pytest.raises(RunError, match="no network"):
        start(out, [tracker, Failing()])
    return ug.resume("last", out, callbacks=[tracker], progress=False)


def test_tensorboard_has_the_history(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = start_and_resume(tmp_path, TensorBoard())
    events = EventAccumulator(str(result.folder / "tensorboard"))
    events.Reload()
    for name in ("accuracy", "loss", "joules"):
        found = {event.step: event.value for event in events.Scalars(name)}
        assert found == pytest.approx({row["round"]: row[name] for row in result.history}, rel=1e-6)
    (text,) = [event.tensor_proto.string_val[0] for event in events.Tensors("settings/text_summary")]
    assert b"train.rounds: 3" in text


def test_mlflow_has_the_history_and_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    result = start_and_resume(tmp_path / "runs", MLflow(experiment="ours", uri=uri))
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("ours").experiment_id])
    assert (run.info.run_name, run.info.status) == (result.run, "FINISHED")
    assert (run.data.params["train.rounds"], run.data.params["method.name"]) == ("3", "fedavg")
    found = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "accuracy")}
    assert found == {row["round"]: row["accuracy"] for row in result.history}


def test_weights_and_biases_has_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_SILENT", "true")
    result = start(tmp_path, [WeightsAndBiases(project="ours", mode="offline")])
    (file,) = result.folder.glob("wandb/offline-run-*/run-*.wandb")
    # Another process of W&B writes the file, also after `finish` has returned. Its last record is "exit".
    records: list[Any] = []
    for _ in range(600):
        records = [wandb_internal_pb2.Record.FromString(data) for data in _records(file.read_bytes())]
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            break
        time.sleep(0.1)
    found = {}
    for record in records:
        if record.WhichOneof("record_type") == "history":
            items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
            found[int(items["_step"])] = float(items["accuracy"])
    assert found == {row["round"]: row["accuracy"] for row in result.history}


def _records(content: bytes) -> Iterator[bytes]:
    """The records of a file of W&B: after 7 bytes, pieces in blocks of 32 KiB, each with checksum, length and kind."""
    position, parts = 7, b""
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield parts
            parts = b""


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_library_that_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without(module: str, *rest: Any) -> Any:
        if module == name:
            raise ImportError(module)
        return real(module, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(InputError, match=rf"the tracker '{name}' needs a library: pip install 'undergrowth\[{name}\]'"):
        build_trackers([name])


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(InputError, match="track 'tensorbord' is not a tracker; did you mean 'tensorboard'"):
        build_trackers(["tensorbord"])
