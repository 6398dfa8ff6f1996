"""Callbacks are called at the start, after every round and at the end of a run. They can end it without a loss."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch

import undergrowth as ug
from tests.runs.conftest import Run
from undergrowth.callbacks import BestModel, Callback, EarlyStopping, OngoingRun
from undergrowth.core import Classification, InputError, NextToken, Regression, RunError, TaskKind
from undergrowth.runs import Store, execution

from .test_stop import CHEAP, FEDBUFF, without_times


def start(out: Any, callbacks: Any = None, rounds: int = 5, **raw: Any) -> ug.Result:
    settings = {**CHEAP, "train": {"rounds": rounds}, **raw}
    settings["run"] = {"out": str(out), "engine": "serial", **raw.get("run", {})}
    return execution.start(settings, callbacks=callbacks)


class Diary(Callback):
    """Records the calls that it receives."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_start(self, run: OngoingRun) -> None:
        self.calls.append(("start", run.run, len(run.history), run.experiment.train.rounds))

    def on_round(self, row: Mapping[str, Any], run: OngoingRun) -> None:
        assert run.history[-1] == row and run.folder.name == run.run
        self.calls.append(("round", row["round"], sorted(run.weights)))

    def on_end(self, result: ug.Result) -> None:
        self.calls.append(("end", result.run, result.accuracy))


class Stopper:
    """Ends the run after a round. It has one hook only."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_round(self, row: Mapping[str, Any], run: OngoingRun) -> None:
        if row["round"] == self.number:
            run.stop("it is late")


class Broken:
    def __init__(self, hook: str, number: int = 2) -> None:
        self.number = number
        setattr(self, hook, self.fail)

    def fail(self, first: Any, *_: Any) -> None:
        if not isinstance(first, Mapping) or first["round"] == self.number:
            raise KeyError("colour")


class Meddler:
    """Changes everything that it is given, and stops without a reason."""

    def on_round(self, row: dict[str, Any], run: OngoingRun) -> None:
        run.weights["head.weight"].zero_()
        row["mine"] = run.history[-1]["mine"] = object()  # cannot be stored
        row["accuracy"] = 2.0
        if row["round"] == 3:
            run.stop("")


def test_what_a_callback_is_given_is_its_own(tmp_path: Path) -> None:
    """But for `stop`, the run is the same as without it."""
    meddled, plain = start(tmp_path, [Meddler()]), start(tmp_path, rounds=3)
    assert without_times(meddled.history) == without_times(plain.history)
    assert meddled.summary["model_digest"] == plain.summary["model_digest"]
    assert "stopped after round 3: a callback asked for it" in meddled.notes


def test_callbacks_are_told_of_the_start_of_every_round_and_of_the_end(tmp_path: Path) -> None:
    diary = Diary()
    result = start(tmp_path, [diary], rounds=2)
    names = ["head.bias", "head.weight"]
    assert diary.calls == [
        ("start", result.run, 0, 2), ("round", 1, names), ("round", 2, names), ("end", result.run, result.accuracy),
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["fedavg", FEDBUFF], ids=["fedavg", "fedbuff"])
def test_a_run_that_a_callback_ends_is_the_run_with_as_many_rounds(method: Any, tmp_path: Path) -> None:
    stopped, shorter = start(tmp_path, [Stopper(3)], method=method), start(tmp_path, rounds=3, method=method)
    assert without_times(stopped.history) == without_times(shorter.history)
    assert without_times([stopped.summary]) == without_times([shorter.summary])
    assert list(stopped.ledger.rows()) == list(shorter.ledger.rows())
    assert stopped.summary["stopped"] == "callback"
    assert "stopped after round 3: it is late" in stopped.notes


def test_the_last_round_of_a_stopped_run_is_evaluated(tmp_path: Path) -> None:
    every, seldom = start(tmp_path, rounds=3), start(tmp_path, [Stopper(3)], run={"evaluate_every": 100})
    assert seldom.accuracy == seldom.history[-1]["accuracy"] == every.accuracy


def test_a_stopped_run_that_was_killed_before_its_end_stays_stopped(tmp_path: Path, monkeypatch: Any) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(execution.Execution, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path, [Stopper(2)])
    resumed = ug.resume("last", tmp_path)
    assert len(resumed.history) == 2 and "stopped after round 2: it is late" in resumed.notes
    assert "resumed without callbacks that the run began with: Stopper" in resumed.notes


@pytest.mark.parametrize("number", [2, 5])
def test_a_callback_that_fails_ends_the_run_and_loses_nothing(number: int, tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"the callback Broken failed in on_round: KeyError: 'colour'; `undergrowth resu"
    ):
        start(tmp_path, [Broken("on_round", number)])
    with closing(Store(tmp_path)) as store:
        assert len(store.rounds(store.find("last"))) == number
    resumed, whole = ug.resume("last", tmp_path), start(tmp_path)
    assert without_times([resumed.summary]) == without_times([whole.summary])


def test_a_callback_that_fails_at_the_end_leaves_the_run_finished(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the callback Broken failed in on_end: KeyError"):
        start(tmp_path, [Broken("on_end")], rounds=1)
    assert ug.load("last", tmp_path).summary["rounds"] == 1


@pytest.mark.parametrize(
    ("callbacks", "words"),
    [
        (EarlyStopping(), "must be a list"),
        ("tensorboard", "must be a list"),
        ([EarlyStopping], r"EarlyStopping is a class and must be an object; write EarlyStopping\(...\)"),
        ([print], "has none of the functions on_start, on_round, on_end"),
    ],
)
def test_what_is_no_callback_is_refused_before_anything_starts(callbacks: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        ug.run(callbacks=callbacks, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


# Early stopping ---------------------------------------------------------------------------------------------------


CLASSIFICATION = Classification()


class Past:
    """A run with given figures."""

    def __init__(self, figures: list[float], every: int = 1, kind: TaskKind = CLASSIFICATION) -> None:
        self.figures, self.every, self.reason = figures, every, ""
        self.metric, self.metric_named = kind.metric, kind.metric_named
        self.history: list[dict[str, Any]] = []

    def is_evaluated(self, row: Mapping[str, Any]) -> bool:
        return bool(row["round"] % self.every == 0)

    def stop(self, reason: str) -> None:
        self.reason = reason

    def rounds_with(self, callback: EarlyStopping) -> int:
        for number, figure in enumerate(self.figures, start=1):
            self.history.append({"round": number, callback.metric or self.metric.name: figure})
            callback.on_round(self.history[-1], self)  # type: ignore[arg-type]
            if self.reason:
                break
        return len(self.history)


@pytest.mark.parametrize(
    ("figures", "callback", "rounds"),
    [
        ([0.1, 0.2, 0.3, 0.3, 0.2], EarlyStopping(2), 5),
        ([0.1, 0.2, 0.3, 0.2, 0.4], EarlyStopping(2), 5),
        ([0.5, 0.4, 0.4, 0.6], EarlyStopping(2), 3),
        ([0.5, 0.55, 0.58, 0.62], EarlyStopping(2, least=0.1), 3),
        ([2.0, 1.0, 1.5, 1.2, 1.1], EarlyStopping(3, metric="loss"), 5),
        ([float("nan")] * 4, EarlyStopping(3, metric="loss"), 3),
        ([1.0, float("nan"), 0.5], EarlyStopping(1, metric="loss"), 2),
    ],
)
def test_a_run_ends_after_as_many_evaluations_without_improvement(
    figures: list[float], callback: EarlyStopping, rounds: int
) -> None:
    assert Past(figures).rounds_with(callback) == rounds


def test_without_a_name_the_main_metric_of_the_task_counts_in_its_direction() -> None:
    past = Past([9.0, 8.0, 8.5, 7.0, 7.5, 7.2], kind=NextToken())
    assert past.rounds_with(EarlyStopping(2)) == 6
    assert past.reason == "perplexity has not improved since round 4, where it was 7 (2 evaluations)"
    assert Past([0.1, 0.2, 0.1], kind=Regression()).rounds_with(EarlyStopping(1)) == 3
    assert Past([0.1, 0.2, 0.1], kind=Regression()).rounds_with(EarlyStopping(1, metric="mae")) == 2


def test_rounds_without_an_evaluation_do_not_count() -> None:
    past = Past([0.5] * 20, every=4)
    assert past.rounds_with(EarlyStopping(2)) == 12
    assert past.reason == "accuracy has not improved since round 4, where it was 0.5 (2 evaluations)"


def test_a_resumed_run_ends_where_the_whole_one_does(run_and_copy: Any, tmp_path: Path) -> None:
    callback = EarlyStopping(2, least=0.5)  # the first round counts, the next two do not improve it by so much
    whole = start(tmp_path / "whole", [callback])
    assert len(whole.history) == 3
    finished, copy = run_and_copy({**CHEAP, "train": {"rounds": 5}, "run": {"engine": "serial"}}, 2)
    resumed = ug.resume(finished.run, copy, callbacks=[callback])
    assert without_times([resumed.summary]) == without_times([whole.summary])
    assert [note for note in resumed.notes if "stopped" in note] == [note for note in whole.notes if "stopped" in note]


@pytest.mark.parametrize("wrong", [{"patience": 0}, {"patience": True}, {"patience": 1.5}, {"least": -1}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"EarlyStopping: {next(iter(wrong))}"):
        EarlyStopping(**wrong)


def test_an_unknown_metric_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"EarlyStopping: metric 'acuracy' is not a figure.*did you mean 'accuracy'"):
        start(tmp_path, [EarlyStopping(metric="acuracy")])


# The best model ---------------------------------------------------------------------------------------------------


class Kept(Callback):
    def __init__(self) -> None:
        self.weights: dict[int, dict[str, Any]] = {}

    def on_round(self, row: Mapping[str, Any], run: OngoingRun) -> None:
        self.weights[row["round"]] = {name: value.clone() for name, value in run.weights.items()}


def test_the_best_model_is_that_of_the_best_round(run: Run) -> None:
    kept = Kept()
    result = run(rounds=3, callbacks=[kept, BestModel("joules")])  # they grow, so that the first round is the best
    path = result.folder / "best.safetensors"
    weights = safetensors.torch.load_file(path)
    assert all(value.equal(kept.weights[1][name]) for name, value in weights.items())
    assert not all(value.equal(kept.weights[3][name]) for name, value in weights.items())
    with safetensors.safe_open(path, framework="pt") as file:
        value = repr(result.history[0]["joules"])
        assert file.metadata() == {"round": "1", "metric": "joules", "value": value}


@pytest.mark.parametrize("after", [1, 4])
def test_a_resumed_run_has_the_same_best_model(after: int, tmp_path: Path) -> None:
    raw = {"train": {"rounds": 6, "lr": 2.0}}
    whole = start(tmp_path / "whole", [BestModel("loss")], **raw)
    with pytest.raises(RunError):
        start(tmp_path / "stopped", [BestModel("loss"), Broken("on_round", after)], **raw)
    resumed = ug.resume("last", tmp_path / "stopped", callbacks=[BestModel("loss")])
    (one, facts), (other, same) = (_read(each.folder / "best.safetensors") for each in (whole, resumed))
    assert facts == same and all(value.equal(other[name]) for name, value in one.items())


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    with safetensors.safe_open(path, framework="pt") as file:
        return safetensors.torch.load_file(path), file.metadata()
