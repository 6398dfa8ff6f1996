"""A resumed run ends with the same bits as an uninterrupted one, also if its newest checkpoint is damaged."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import undergrowth as ug
from undergrowth.core import InputError, Method, tensors_in
from undergrowth.learning import RandomSelector
from undergrowth.runs import Store, checkpoint
from undergrowth.runs.execution import resume, start
from undergrowth.runs.ongoing_run import Execution
from undergrowth.runs.stored_experiment import object_options

from ..stopping import facts
from .objects import Own, dataset, linear, normed

ROUNDS = 6


def tree(**sections: Any) -> dict[str, Any]:
    """A small experiment on the digits, with changes to its sections."""
    small = {"data": {"clients": 4, "partition": "iid"}, "model": "logistic", "train": {"rounds": ROUNDS, "batch": 64}}
    merged = {name: {**small.get(name, {}), **part} if name != "model" else part for name, part in sections.items()}
    return {**small, **merged}


def with_out(settings: dict[str, Any], out: str) -> dict[str, Any]:
    return {**settings, "run": {**settings.get("run", {}), "out": out}}


def assert_same(resumed: ug.Result, whole: ug.Result) -> None:
    assert facts(resumed) == facts(whole)
    for name in ("bytes_down", "bytes_up", "flops", "joules", "simulated_seconds", "peak_device_bytes"):
        assert getattr(resumed.ledger, name) == getattr(whole.ledger, name)
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
                "sampler": "data",
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


@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_resumes_to_the_same_bits(case, run_and_copy, out):
    whole, killed = run_and_copy(CASES[case], 2)
    shutil.copytree(killed, out)
    assert statuses(out) == ["killed"]
    assert_same(ug.resume("last", out), whole)
    assert statuses(out) == ["done"]


def test_an_interrupted_run_resumes_to_the_same_bits(run_and_copy, interrupted, out):
    whole, _ = run_and_copy(CASES["fedavg"], 2)
    interrupted(CASES["fedavg"], 2)
    assert statuses(out) == ["interrupted"]
    assert_same(ug.resume("last", out), whole)


def statuses(out: str) -> list[str]:
    store = Store(out)
    try:
        return [row["status"] for row in store.runs()]
    finally:
        store.close()


def test_a_run_can_be_interrupted_after_every_round(run_and_copy, interrupted, out):
    def stop(row: Any, execution: Any) -> None:
        raise KeyboardInterrupt

    settings = CASES["own states of a sample"]
    whole, _ = run_and_copy(settings, 2)
    interrupted(settings, 1)
    for _ in range(ROUNDS - 1):
        with pytest.raises(KeyboardInterrupt):
            resume("last", out, on_round=stop)
    assert_same(ug.resume("last", out), whole)


def test_resuming_a_finished_run_returns_it_unchanged(run, out):
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


def test_a_run_with_objects_resumes_to_the_same_bits(run_and_copy, out):
    objects = {"data": dataset(), "model": normed}
    whole, killed = run_and_copy(tree(), 3, **objects)
    shutil.copytree(killed, out)
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
@pytest.mark.parametrize(
    ("case", "kind"), [("fedavg", "round"), ("own states of a sample", "round"), ("own states of a sample", "devices")]
)
def test_a_damaged_newest_checkpoint_is_noted_and_the_one_before_is_used(damage, case, kind, run_and_copy, out):
    whole, killed = run_and_copy(CASES[case], 4)
    shutil.copytree(killed, out)
    damage(next(Path(out).glob(f"*/checkpoints/{kind}-00004.safetensors")))
    done = []
    resumed = resume("last", out, on_start=lambda execution: done.append(execution.federation.driver.root.round))
    assert done == [3]
    assert any(f"{kind}-00004" in note and "went back" in note for note in resumed.notes)
    assert_same(resumed, whole)


def test_a_resume_that_is_stopped_at_once_keeps_the_notes_of_the_run(run_and_copy, out, monkeypatch):
    _, killed = run_and_copy(CASES["fedavg"], 4)
    shutil.copytree(killed, out)
    with closing(Store(out, write=True)) as store:
        store.set_status(store.find("last"), "interrupted", [*store.run(store.find("last"))["notes"], "an early note"])
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "restore", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            resume("last", out)
    assert "an early note" in resume("last", out).notes


def raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", ["round", "devices"])
def test_without_a_usable_checkpoint_the_run_starts_again_from_its_seed(damage, kind, run_and_copy, out):
    whole, killed = run_and_copy(CASES["own states of a sample"], 4)
    shutil.copytree(killed, out)
    for path in Path(out).glob(f"*/checkpoints/{kind}-*"):
        damage(path)
    done = []
    resumed = resume("last", out, on_round=lambda row, execution: done.append(row["round"]))
    assert done == [1, 2, 3, 4, 5, 6]
    assert_same(resumed, whole)


def test_a_partly_written_checkpoint_is_ignored(run_and_copy, out):
    whole, killed = run_and_copy(tree(), 2)
    shutil.copytree(killed, out)
    folder = files(out)[0].parent
    (folder / "round-00003.safetensors.part").write_bytes(b"half")
    (folder / "round-00003.safetensors").write_bytes(b"whole, but not in the store")
    assert_same(ug.resume("last", out), whole)
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize("case", ["fedavg", "own states", "own states of a sample"])
def test_old_checkpoints_are_removed(case, out):
    most = []
    settings = {**CASES[case], "train": {**CASES[case]["train"], "rounds": 12}}
    start(with_out(settings, out), on_round=lambda row, execution: most.append(len(files(out))))
    devices = 0 if case == "fedavg" else 4 + 1  # a file for every device's newest state, and those of the fall-back
    assert max(most) <= checkpoint.KEPT_CHECKPOINTS + devices
    assert not list(Path(out).glob("*/checkpoints/*.part"))


def test_a_run_interrupted_before_its_first_round_starts_from_its_seed(out, run_and_copy):
    def stop(execution: Any) -> None:
        raise KeyboardInterrupt

    whole, _ = run_and_copy(tree(), 2)
    with pytest.raises(KeyboardInterrupt):
        start(with_out(tree(), out), on_start=stop)
    assert_same(ug.resume("last", out), whole)


def test_tensors_of_a_checkpoint_are_aligned_in_memory(tmp_path: Path) -> None:
    """Sums over values with another alignment may be computed in another order, with other last digits."""
    tree = {"one": torch.ones(1), "odd": [torch.rand(7), torch.rand(3, 5).half()], "counter": torch.tensor(3)}
    checksum = checkpoint.write(tmp_path / "file", tree)
    for value in tensors_in(checkpoint.read(tmp_path / "file", checksum)[0]):
        assert value.data_ptr() % 64 == 0 and value.untyped_storage().nbytes() == value.nbytes


def test_the_options_of_a_method_object_are_stored_and_compared(interrupted, out):
    interrupted({"train": {"rounds": 3}}, 1, method=ug.methods.FedProx(mu=0.2), data=Own(), model=linear)
    assert Store(out).runs()[-1]["experiment"]["settings"]["method"]["mu"] == 0.2
    with pytest.raises(InputError, match=r"method\.mu 0\.3 of the object is not that of run '.*', 0\.2"):
        ug.resume("last", out, method=ug.methods.FedProx(mu=0.3), data=Own(), model=linear)
    ug.resume("last", out, method=ug.methods.FedProx(mu=0.2), data=Own(), model=linear)


def test_an_option_that_json_does_not_have_is_stored_as_text():
    @dataclass(frozen=True)
    class Picky(Method):
        name: str = "picky"
        ratios: tuple[float, ...] = (1.0, 0.5)
        selector: Any = RandomSelector(0.5)
        loss: Any = len

    stored = object_options(Picky())
    assert stored == {
        "ratios": [1.0, 0.5], "selector": "RandomSelector(fraction=0.5)", "loss": "builtin_function_or_method",
    }  # fmt: skip
