"""The section `start`: what is refused before anything starts, and experiments of versions that did not have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import undergrowth as ug
from tests.typed_commands import invoke
from undergrowth.core import InputError
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.formats import upgrade_experiment
from undergrowth.runs.stored_experiment import fill
from undergrowth.simulation.old_snapshots import upgrade_from_2

from ..fleet_files import fleet_file

SECTIONS = [
    ({"weights": "a.pt", "data": "digits"}, "has weights and data; give one of them"),
    ({"lr": 0.1}, "has lr, which is for training on other data or by a method; give one of them"),
    ({"rounds": 2}, "has rounds without method; give its name as well"),
    ({"method": {"rounds": 2}}, "start.method.name is missing"),
    ({"epochs": 5, "warm_rounds": 1}, "has epochs, which is for training on other data"),
    ({"warm_epochs": 3}, "has warm_epochs without warm_rounds"),
    ({"warm_rounds": -1}, "start.warm_rounds -1 should be greater than or equal to 0"),
    ({"warm_round": 1}, "start.warm_round is not a known key; did you mean 'warm_rounds'?"),
    ({"data": {"name": "digits", "partition": "iid"}}, "has 'partition', and the server trains on all samples"),
    ({"data": {"path": "x"}}, "start.data.name is missing"),
    ({"data": "digits", "batch": 0}, "start.batch 0 should be greater than or equal to 1"),
    ("digits", "start 'digits' should be a section with keys such as weights"),
]


@pytest.mark.parametrize(("section", "sentence"), SECTIONS, ids=lambda value: str(value)[:40])
def test_an_impossible_section_is_refused(section: Any, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_experiment({"start": section})
    assert sentence in str(caught.value)


def test_a_file_is_named_in_one_place() -> None:
    with pytest.raises(InputError, match=r"model.weights and start are both given; write the file as start.weights"):
        parse_experiment({"model": {"name": "mlp", "weights": "a.pt"}, "start": {"warm_rounds": 1}})


def test_a_method_may_come_after_a_file_of_the_model() -> None:
    start = parse_experiment({"model": {"name": "mlp", "weights": "a.pt"}, "start": {"method": "fedncm"}}).start
    assert start.trains and str(start) == "1 round of fedncm"


def test_an_option_of_fedft_is_refused_with_its_new_name() -> None:
    with pytest.raises(InputError, match=r"method.warm_rounds is now called start.warm_rounds"):
        ug.run("fedft-eds", options={"warm_rounds": 1})


def test_what_cannot_be_trained_is_refused_before_anything_starts(run: Any, out: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "wide.npz", x=np.zeros((8, 1, 9, 9), np.float32), y=np.arange(8) % 2)
    torch.save({"other": torch.zeros(2)}, tmp_path / "other.pt")
    wide = {"name": "npz", "path": str(tmp_path / "wide.npz")}
    cases = [
        ({"data": wide}, r"start.data: the samples of data set 'wide' have shape \(1, 9, 9\) and those of the devices"),
        ({"data": "digit"}, "start.data: data set 'digit' is not known; did you mean 'digits'"),
        ({"data": {"name": "digits", "size": 3}}, "start.data: data set 'digits' has no option 'size'"),
        ({"data": {"name": "digits", "augment": 3}}, "start.data.augment 3 should be a valid string"),
        ({"data": {"name": "digits", "augment": "crup"}}, "start.data: data.augment 'crup'"),
        ({"data": "digits", "schedule": "cosin"}, "start.schedule 'cosin' is not known; did you mean 'cosine'"),
        ({"weights": str(tmp_path / "none.pt")}, "start.weights: there is no file"),
        ({"weights": str(tmp_path / "other.pt")}, "start.weights: '.*other.pt' does not fit the model"),
        ({"weights": "~nouser/w.pt"}, "start.weights: .*home directory"),
    ]
    for section, sentence in cases:
        with pytest.raises(InputError, match=sentence):
            run(model="mlp", start=section)
    with pytest.raises(InputError, match="start 3 must be a dictionary"):
        run(start=3)
    assert not Path(out).exists()


def test_a_model_that_no_device_can_hold_is_refused_before_pretraining(run: Any, out: str, tmp_path: Path) -> None:
    settings = {"model": "cnn", "fleet": fleet_file(tmp_path, tiny={"memory": 1e6, "share": 1}), "method": "fedft"}
    with pytest.raises(InputError, match=r"start.warm_rounds: fleet: no device can hold the work"):
        run(**settings, start={"data": {"name": "digits", "train_samples": 200}, "warm_rounds": 1})
    assert not Path(out).exists()


def test_workers_that_cannot_be_forked_after_the_phase_are_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(InputError, match=r"run.engine 'processes': on a machine with a GPU"):
        run(engine="processes", workers=2, start={"warm_rounds": 1})


def test_a_plan_prices_the_rounds_and_mentions_the_phase() -> None:
    words = ["plan", "--method", "fedavg", "--model", "logistic", "--clients", "2"]
    plain = invoke(*words)
    phase = invoke(*words, "-s", "start.data=digits", "-s", "start.warm_rounds=1")
    assert plain.exit_code == phase.exit_code == 0 and phase.stdout == plain.stdout
    sentence = "20 epochs on digits at the server, then 1 warm round of 5 epochs on all devices, before the first round"
    assert f"note: not in these prices: {sentence}" in phase.stderr


def test_the_costs_of_the_phase_are_printed(out: str) -> None:
    words = ["run", "--model", "logistic", "--clients", "2", "--rounds", "1", "--out", out, "-s", "start.warm_rounds=1"]
    done = invoke(*words, "--no-report")
    assert done.exit_code == 0 and "before the first round: 16.6 MFLOP, 5.2 kB down, 5.22 kB up" in done.stdout
    assert "before the first round" in invoke("show", "last", "--out", out).stdout
    page = ug.report.write_report(["last"], out, Path(out) / "page.html").read_text(encoding="utf-8")
    assert "Before the first round: 16.6 MFLOP" in page


# Versions before the section -------------------------------------------------------------------------------------


def document(**options: Any) -> dict[str, Any]:
    model = {"name": "wrn-16-1", "weights": "w.safetensors", "skip_head": True}
    settings = {"method": {"name": "fedft-eds", "share": 0.5, **options}, "model": model, "train": {"epochs": 20}}
    return {"settings": settings, "defaults": {"method": {"warm_rounds": 0, "split": "mid"}}}


def test_stored_warm_rounds_of_fedft_become_the_section() -> None:
    new = upgrade_experiment(document(warm_rounds=1), 1)
    experiment = parse_experiment(fill(new["settings"], new["defaults"]))
    assert experiment.method.options == {"share": 0.5, "split": "mid"}
    start = experiment.start
    assert (start.weights, start.warm_rounds, start.warm_epochs) == ("w.safetensors", 1, 20)
    without = upgrade_experiment(document(), 1)
    experiment = parse_experiment(fill(without["settings"], without["defaults"]))
    assert not experiment.start.trains and experiment.model.options["weights"] == "w.safetensors"


def test_a_snapshot_after_the_warm_rounds_forgets_their_uploads() -> None:
    heard = {"a": {"samples": 2.0}, "b": {"warm": 1.0}}
    root = {"state": {"model": {}, "phase": "", "rounds": 3}, "heard": heard, "asked_by": None}
    edge = {"state": {"model": {}, "phase": "warm"}, "heard": heard, "asked_by": ("edge", 0, 0)}  # as it was asked last
    new = upgrade_from_2({"nodes": {"server": root, "edge": edge}, "now": 1.0})
    for node in new["nodes"].values():
        assert node["heard"] == {"a": {"samples": 2.0}}, "b has no lower part yet, so it must get the whole model"
    root["state"]["phase"] = "warm"
    with pytest.raises(InputError, match=r"stopped before its method had done its warm rounds"):
        upgrade_from_2({"nodes": {"server": root, "edge": edge}, "now": 1.0})
