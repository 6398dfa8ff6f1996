"""Faults during a run: finished rounds are kept, the message says how to resume, and resuming gives the same bits."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.core import RunError, Shard
from undergrowth.runs import Store, atomic_files
from undergrowth.runs.execution import start

from ..stopping import facts
from .objects import Faulty, Own, WithFault, digest, linear

FULL = OSError(errno.ENOSPC, "No space left on device")


def tree(out: str) -> dict[str, Any]:
    return {"data": {"clients": 4}, "model": "logistic", "method": "local", "train": {"rounds": 6}, "run": {"out": out}}


def after(round: int, act: Callable[[Any], None]) -> Callable[[Any, Any], None]:
    """Calls `act` when that round is finished."""

    def on_round(row: Any, execution: Any) -> None:
        if row["round"] == round:
            act(execution)

    return on_round


def kept(out: str) -> tuple[str, list[int]]:
    store = Store(out)
    try:
        (row,) = store.runs()
        return row["status"], [r["round"] for r in store.rounds(row["id"])]
    finally:
        store.close()


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*arguments: Any, **settings: Any) -> Any:
        raise error

    return fail


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> ug.Result:
    return start(tree(str(tmp_path_factory.mktemp("whole"))))


@pytest.mark.parametrize("place", ["fsync", "replace"])
def test_a_full_disk_stops_the_run_and_no_finished_round_is_lost(place, out, whole):
    with pytest.MonkeyPatch.context() as patch:
        fill = after(2, lambda execution: patch.setattr(atomic_files.os, place, raising(FULL)))
        with pytest.raises(RunError, match=r"could not be written: No space left on device; `undergrowth resume"):
            start(tree(out), on_round=fill)
    assert kept(out) == ("failed", [1, 2])
    assert not [name for _, _, names in os.walk(out) for name in names if name.endswith(".part")]
    assert facts(ug.resume("last", out)) == facts(whole)


def test_a_disk_that_is_full_at_the_end_loses_no_round(out, whole):
    with pytest.MonkeyPatch.context() as patch:
        fill = after(6, lambda execution: patch.setattr(atomic_files.os, "fsync", raising(FULL)))
        with pytest.raises(RunError, match=r"model\.safetensors' could not be written"):
            start(tree(out), on_round=fill)
    assert kept(out) == ("failed", [1, 2, 3, 4, 5, 6])
    assert digest(ug.resume("last", out)) == digest(whole)


def test_a_folder_that_is_moved_stops_the_run_which_can_be_resumed_there(out, whole):
    move = after(2, lambda execution: os.rename(out, f"{out}-moved"))
    with pytest.raises(RunError, match=r"if it was moved, `undergrowth resume \S+-local-\S+ --out FOLDER` continues"):
        start(tree(out), on_round=move)
    assert digest(ug.resume("last", f"{out}-moved")) == digest(whole)


def test_a_read_only_store_stops_the_run_and_no_finished_round_is_lost(out, whole):
    lock = after(2, lambda execution: execution.store._connection.execute("PRAGMA query_only=ON"))
    with pytest.raises(RunError, match=r"the run store '.*' could not be written: .*; `undergrowth resume"):
        start(tree(out), on_round=lock)
    status, rounds = kept(out)
    assert rounds == [1, 2]
    assert status != "done"
    assert facts(ug.resume("last", out)) == facts(whole)


def test_the_message_about_a_failed_run_names_the_command_that_resumes_it(out):
    lock = after(1, lambda execution: execution.store._connection.execute("PRAGMA query_only=ON"))
    with pytest.raises(RunError) as caught:
        start(tree(out), on_round=lock)
    named = re.search(r"`undergrowth resume (\S+)", str(caught.value))
    store = Store(out)
    assert named and named[1] == store.runs()[0]["id"]
    store.close()
    assert "\n" not in str(caught.value)


class Unlucky(Exception):
    """An exception class that the package does not know."""


@pytest.mark.parametrize(
    "error", [RuntimeError("out of luck"), Unlucky("out of luck"), SystemExit("out of luck")], ids=repr
)
def test_a_failing_client_is_named_with_its_round_and_the_run_can_be_resumed(error, run, out, tmp_path):
    settings = {"data": Own(), "model": linear, "rounds": 4}
    healthy = WithFault(Faulty())
    expected = digest(run(method=healthy, **settings, out=str(tmp_path / "whole")))
    with pytest.raises(RunError, match=r"phone-2 failed in round 3 with 16 samples: (SystemExit: )?out of luck"):
        run(method=WithFault(Faulty(device="phone-2", round=2, fault=raising(error))), **settings)
    assert kept(out) == ("failed", [1, 2])
    resumed = ug.resume("last", out, method=healthy, data=Own(), model=linear)
    assert digest(resumed) == expected


def test_a_label_out_of_range_names_the_device(run, out):
    population = Own(changes={"phone-1": lambda shard: Shard(shard.x, shard.y + 3)})
    with pytest.raises(RunError, match=r"phone-1 failed in round 1 with 12 samples: .*out of bounds"):
        run(data=population, model=linear)
    assert kept(out) == ("failed", [])


def test_an_unexpected_exception_is_raised_and_the_run_is_marked_as_failed(run, out):
    class Broken(Own):
        def test(self, device: str) -> Shard:
            if device == "phone-0":  # whose samples are looked at before the run
                return super().test(device)
            raise Unlucky("no test data")

    with pytest.raises(Unlucky):
        run(data=Broken(), model=linear)
    assert kept(out) == ("failed", [1, 2, 3])
    assert ug.resume("last", out, data=Own(), model=linear).history[-1]["round"] == 3


def test_ctrl_c_during_a_round_loses_that_round_only(run, out, tmp_path):
    settings = {"data": Own(), "model": linear, "rounds": 4}
    expected = digest(run(method=WithFault(Faulty()), **settings, out=str(tmp_path / "whole")))
    with pytest.raises(KeyboardInterrupt):
        run(method=WithFault(Faulty(device="phone-1", round=2, fault=raising(KeyboardInterrupt()))), **settings)
    assert kept(out) == ("interrupted", [1, 2])
    assert digest(ug.resume("last", out, method=WithFault(Faulty()), data=Own(), model=linear)) == expected


def test_threads_are_set_for_the_run_and_restored_after_it(run, out):
    import torch

    def during(row: dict, execution: object) -> None:
        assert torch.get_num_threads() == execution.experiment.run.threads  # type: ignore[attr-defined]

    torch.set_num_threads(2)
    try:
        for threads in (1, 3):
            settings = {"model": "logistic", "train": {"rounds": 1}, "run": {"out": out, "threads": threads}}
            start(settings, on_round=during)
            assert torch.get_num_threads() == 2
        with pytest.raises(RunError):
            run(method=WithFault(Faulty(device="phone-1", fault=raising(ValueError("x")))), data=Own(), model=linear)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
