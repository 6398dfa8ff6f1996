"""A run that was stopped goes on bit for bit, whatever happened to its newest checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import undergrowth as ug
from undergrowth.core import InputError, tensors_in
from undergrowth.runs import Store, checkpoint
from undergrowth.runs.run import resume, start

from .objects import Own, dataset, digest, linear, normed, without_wall

ROUNDS = 6


def tree(**sections: Any) -> dict[str, Any]:
    """An experiment on the digits; a section given replaces or adds to the small one."""
    small = {"data": {"clients": 4, "partition": "iid"}, "model": "logistic", "train": {"rounds": ROUNDS, "batch": 64}}
    merged = {name: {**small.get(name, {}), **part} if name != "model" else part for name, part in sections.items()}
    return {**small, **merged}


def with_out(settings: dict[str, Any], out: str) -> dict[str, Any]:
    return {**settings, "run": {**settings.get("run", {}), "out": out}}


def assert_same(resumed: ug.Result, whole: ug.Result) -> None:
    assert digest(resumed) == digest(whole)
    assert without_wall(resumed.history) == without_wall(whole.history)
    for name in ("bytes_down", "bytes_up", "flops", "joules", "simulated_seconds", "peak_device_bytes"):
        assert getattr(resumed.ledger, name) == getattr(whole.ledger, name)
    assert list(resumed.ledger.rows()) == list(whole.ledger.rows())
    assert resumed.clients == whole.clients
    assert (resumed.accuracy, resumed.loss) == (whole.accuracy, whole.loss)


def files(out: str) -> list[Path]:
    """The checkpoint files of the only run, oldest first, rounds before devices."""
    return sorted(Path(out).glob("*/checkpoints/*"), key=lambda path: (path.name[:2] != "ro", path.name))


CASES = {
    "fedavg": tree(),
    "fedavgm": tree(method={"name": "fedavgm"}),
    "fedadam": tree(method={"name": "fedadam", "server_lr": 0.05}),
    "own states": tree(method={"name": "local"}),
    "own states of a sample": tree(method={"name": "local"}, train={"sample": 0.5}),
    "a sample": tree(train={"sample": 0.5}),
    "a tree": {**tree(), "topology": "tree:2x2"},
    "batch norm": tree(model={"name": "resnet-8", "norm": "batch"}, train={"rounds": 3, "epochs": 1}),
    "central": tree(method={"name": "central"}),
    "rare checkpoints": tree(run={"checkpoint_every": 3}),
    "rare checkpoints of own states": tree(method={"name": "local"}, run={"checkpoint_every": 3}),
    "rare evaluation": tree(run={"evaluate_every": 4}),
    "odd sizes": tree(method={"name": "fedyogi"}, model={"name": "mlp", "hidden": [37]}, train={"batch": 7}),
    "a round without anybody": tree(data={"clients": 1}, fleet={"dropout": 0.6}, run={"engine": "vector", "seed": 4}),
    "what stacked devices keep": {
        **tree(
            method={"name": "fedft-rds"},
            model="mlp",
            data={"clients": 6, "partition": "quantity:1.5", "train_samples": 120},
            train={"sample": 0.5, "batch": 1, "rounds": 4},
            run={"engine": "vector"},
        ),
        "topology": "tree:2x3",
    },
    "a stack that last digits could speak against": {
        **tree(
            method={"name": "fedavgm"},
            model={"name": "resnet-8", "norm": "batch"},
            data={"clients": 6, "partition": "dirichlet:0.1", "train_samples": 300, "test_samples": 60},
            train={
                "sample": 0.7,
                "rounds": 4,
                "lr": 0.01,
                "optimiser": "adam",
                "selection": "data",
                "selector": "kmeans:0.5",
            },
            fleet={"dropout": 0.2},
            links={"up": "int8"},
            run={"engine": "vector", "seed": 4},
        ),
        "topology": "tree:1x2x3",
    },
    "a schedule": tree(train={"schedule": "cosine", "momentum": 0.9}),
}


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES.keys())
def test_a_stopped_run_goes_on_bit_for_bit(settings, interrupted, out, tmp_path):
    whole = start(with_out(settings, str(tmp_path / "whole")))
    interrupted(settings, 2)
    assert [row["status"] for row in Store(out).runs()] == ["interrupted"]
    assert_same(ug.resume("last", out), whole)
    assert [row["status"] for row in Store(out).runs()] == ["done"]


def test_a_run_can_be_stopped_after_every_round(out, tmp_path, interrupted):
    def stop(row: Any, execution: Any) -> None:
        raise KeyboardInterrupt

    settings = CASES["own states of a sample"]
    whole = start(with_out(settings, str(tmp_path / "whole")))
    interrupted(settings, 1)
    for _ in range(ROUNDS - 1):
        with pytest.raises(KeyboardInterrupt):
            resume("last", out, on_round=stop)
    assert_same(ug.resume("last", out), whole)


def test_a_finished_run_is_returned_as_it_is(run, out):
    result = run()
    before = {path: path.stat().st_mtime_ns for path in files(out)}
    again = ug.resume(result.run, out)
    assert again.summary == result.summary
    assert {path: path.stat().st_mtime_ns for path in files(out)} == before


def test_a_run_with_objects_asks_for_them_by_name(interrupted, out):
    objects = {"method": ug.methods.FedProx(mu=0.2), "data": Own(), "model": linear}
    interrupted({"train": {"rounds": 3}}, 1, **objects)
    for missing, kind in (("method", "FedProx"), ("data", "Own"), ("model", "linear")):
        given = {name: thing for name, thing in objects.items() if name != missing}
        with pytest.raises(InputError, match=rf"given a {missing} object \({kind}\).*{missing}="):
            ug.resume("last", out, **given)
    assert ug.resume("last", out, **objects).history[-1]["round"] == 3


def test_a_run_with_objects_goes_on_bit_for_bit(interrupted, out, tmp_path):
    objects = {"data": dataset(), "model": normed}
    whole = start(with_out(tree(), str(tmp_path / "whole")), **objects)
    interrupted(tree(), 3, **objects)
    assert_same(ug.resume("last", out, **objects), whole)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 0x40
    path.write_bytes(bytes(content))


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGE = [truncate, flip, empty, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("case", ["fedavg", "own states of a sample"])
@pytest.mark.parametrize("kind", ["round", "devices"])
def test_a_damaged_newest_checkpoint_is_noted_and_the_one_before_is_used(
    damage, case, kind, interrupted, out, tmp_path
):
    if kind == "devices" and case == "fedavg":
        assert not list(Path(out).glob("*/checkpoints/devices-*"))  # nothing to damage: its devices keep nothing
        return
    whole = start(with_out(CASES[case], str(tmp_path / "whole")))
    interrupted(CASES[case], 4)
    damage(next(Path(out).glob(f"*/checkpoints/{kind}-00004.safetensors")))
    done = []
    resumed = resume("last", out, on_start=lambda execution: done.append(execution.federation.driver.root.round))
    assert done == [3]
    assert any(f"{kind}-00004" in note and "went back" in note for note in resumed.notes)
    assert_same(resumed, whole)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", ["round", "devices"])
def test_with_no_usable_checkpoint_the_run_starts_again_from_its_seed(damage, kind, interrupted, out, tmp_path):
    settings = CASES["own states of a sample"]
    whole = start(with_out(settings, str(tmp_path / "whole")))
    interrupted(settings, 4)
    for path in Path(out).glob(f"*/checkpoints/{kind}-*"):
        damage(path)
    done = []

    def stop(row: Any, execution: Any) -> None:
        done.append(row["round"])
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resume("last", out, on_round=stop)
    assert done == [1, 2]
    assert_same(ug.resume("last", out), whole)


def test_a_checkpoint_that_was_half_written_when_the_machine_stopped_is_ignored(interrupted, out, tmp_path):
    whole = start(with_out(tree(), str(tmp_path / "whole")))
    interrupted(tree(), 2)
    folder = files(out)[0].parent
    (folder / "round-00003.safetensors.part").write_bytes(b"half")
    (folder / "round-00003.safetensors").write_bytes(b"whole, but not in the store")
    assert_same(ug.resume("last", out), whole)
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize("case", ["fedavg", "own states", "own states of a sample"])
def test_old_checkpoints_are_tidied(case, out):
    most = []
    settings = {**CASES[case], "train": {**CASES[case]["train"], "rounds": 30}}
    start(with_out(settings, out), on_round=lambda row, execution: most.append(len(files(out))))
    devices = 0 if case == "fedavg" else 4 + 1  # a file for every device's newest state, and those of the fall-back
    assert max(most) <= checkpoint.KEPT + devices
    assert not list(Path(out).glob("*/checkpoints/*.part"))


def test_a_run_that_stopped_before_its_first_round_starts_at_its_seed(out, tmp_path):
    def stop(execution: Any) -> None:
        raise KeyboardInterrupt

    whole = start(with_out(tree(), str(tmp_path / "whole")))
    with pytest.raises(KeyboardInterrupt):
        start(with_out(tree(), out), on_start=stop)
    assert_same(ug.resume("last", out), whole)


def test_tensors_of_a_checkpoint_begin_in_memory_where_those_of_a_run_do(tmp_path: Path) -> None:
    """Sums over values that begin elsewhere may be done in another order, and end in other last digits."""
    tree = {"one": torch.ones(1), "odd": [torch.rand(7), torch.rand(3, 5).half()], "counter": torch.tensor(3)}
    checksum = checkpoint.write(tmp_path / "file", tree)
    for value in tensors_in(checkpoint.read(tmp_path / "file", checksum)):
        assert value.data_ptr() % 64 == 0 and value.untyped_storage().nbytes() == value.nbytes
