"""The section `stop`: the first limit that is reached ends a run after its round, as if the run had no more rounds."""

from __future__ import annotations

from typing import Any

import pytest

import undergrowth as ug
from tests.runs.conftest import Run
from undergrowth.core import InputError
from undergrowth.runs import execution
from undergrowth.runs.config import parse_experiment

CHEAP = {"model": "logistic", "data": {"name": "digits", "clients": 4, "train_samples": 200}, "fleet": "mixed-edge"}
FEDBUFF = {"name": "fedbuff", "buffer": 2, "concurrency": 4}
WITHOUT_MEANING = ("run", "wall_seconds", "clients_per_second", "stopped")


def start(out: Any, **raw: Any) -> ug.Result:
    return execution.start({**CHEAP, "run": {"out": str(out), "engine": "serial"}, **raw})


@pytest.fixture(scope="module", params=["fedavg", FEDBUFF], ids=["fedavg", "fedbuff"])
def method(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def without_limits(method: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[int, ug.Result]:
    """Runs with 1, 3 and 5 rounds, by their number."""
    folder = tmp_path_factory.mktemp("whole")
    return {rounds: start(folder, method=method, train={"rounds": rounds}) for rounds in (1, 3, 5)}


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in WITHOUT_MEANING} for row in rows]


@pytest.mark.parametrize(
    ("limit", "used"),
    [
        ("simulated_seconds", lambda row: row["simulated_seconds"]),
        ("bytes", lambda row: row["bytes_down"] + row["bytes_up"]),
        ("joules", lambda row: row["joules"]),
        ("accuracy", lambda row: row["accuracy"]),
    ],
)
def test_a_stopped_run_is_the_run_with_as_many_rounds(
    method: Any, limit: str, used: Any, without_limits: dict[int, ug.Result], tmp_path: Any
) -> None:
    value = used(without_limits[5].history[2])
    # A round before the third may already be as accurate.
    number = next(row["round"] for row in without_limits[5].history if used(row) >= value)
    shorter = without_limits.get(number) or start(tmp_path, method=method, train={"rounds": number})
    stopped = start(tmp_path, method=method, stop={limit: value})
    assert len(stopped.history) == number <= 3
    assert without_times(stopped.history) == without_times(shorter.history)
    assert without_times([stopped.summary]) == without_times([shorter.summary])
    assert list(stopped.ledger.rows()) == list(shorter.ledger.rows())
    assert stopped.summary["stopped"] == limit
    (note,) = [note for note in stopped.notes if note.startswith("stopped")]
    assert note.startswith(f"stopped after round {number}: {limit} ") and f"and stop.{limit} is " in note


def test_whichever_comes_first(run: Run) -> None:
    limits = {"simulated_seconds": 1e9, "bytes": "1TB", "joules": 1e9, "accuracy": 1.0, "rounds": 2}
    result = run(stop=limits, rounds=5)
    assert len(result.history) == 2 and result.summary["rounds"] == 2 and result.summary["stopped"] == "rounds"
    assert run(stop={"rounds": 9}, rounds=2).summary["rounds"] == 2


def test_a_run_without_limits_says_nothing_about_them(run: Run) -> None:
    result = run(rounds=1)
    assert "stopped" not in result.summary and not any("stop" in note for note in result.notes)


def test_a_budget_is_not_cut_short_by_the_default_number_of_rounds() -> None:
    assert parse_experiment({"stop": {"joules": 5}}).max_rounds == 10_000
    assert parse_experiment({"stop": {"joules": 5}, "train": {"rounds": 10}}).max_rounds == 10
    assert parse_experiment({"stop": {"joules": 5, "rounds": 30}}).train.rounds == 30
    both = parse_experiment({"stop": {"rounds": 3}, "train": {"rounds": 20, "schedule": "cosine"}})
    assert (both.max_rounds, both.train.rounds) == (3, 20)  # the first 3 rounds of a schedule over 20
    assert parse_experiment({}).max_rounds == 10
    again = parse_experiment(parse_experiment({"stop": {"joules": 5}}).model_dump())
    assert again.max_rounds == 10_000


def test_the_last_round_is_evaluated_and_has_a_checkpoint(run: Run) -> None:
    every = run(rounds=5)
    used = every.history[2]["simulated_seconds"]
    result = run(stop={"simulated_seconds": used}, evaluate_every=100, checkpoint_every=100)
    assert result.history[-1]["accuracy"] == every.history[2]["accuracy"] == result.accuracy
    assert [path.name for path in (result.folder / "checkpoints").glob("round-*")] == ["round-00003.safetensors"]


@pytest.mark.parametrize("after", [1, 3])
def test_a_resumed_run_stops_where_it_would_have_stopped(
    method: Any, after: int, without_limits: dict[int, ug.Result], run_and_copy: Any
) -> None:
    raw = {**CHEAP, "method": method, "stop": {"joules": without_limits[5].history[2]["joules"]}}
    finished, copy = run_and_copy({**raw, "run": {"engine": "serial"}}, after)
    resumed = ug.resume(finished.run, copy)
    assert len(resumed.history) == 3
    assert without_times([resumed.summary]) == without_times([finished.summary])
    assert resumed.summary["stopped"] == "joules" and resumed.notes == finished.notes


def test_a_budget_ends_when_nobody_can_be_asked_any_more(tmp_path: Any) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("device,on,off\n" + "".join(f"device-{n:03d},0,0.05\n" for n in range(4)), encoding="utf-8")
    fleet = {"name": "mixed-edge", "availability": f"trace:{trace}"}
    result = start(tmp_path, fleet=fleet, stop={"joules": 1e9})
    assert result.summary["stopped"] == "no device" and result.summary["rounds"] < 100
    assert any("no device could be asked" in note for note in result.notes)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1GB", 10**9), ("1.5 MB", 1_500_000), ("20kB", 20_000), ("7B", 7), (12, 12), ("12", 12), ("2tb", 2 * 10**12)],
)
def test_bytes_have_units(text: Any, number: int) -> None:
    assert parse_experiment({"stop": {"bytes": text}}).stop.bytes == number


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"stop": {"bytes": "1 gig"}}, "stop.bytes '1 gig' should be a number of bytes, such as 500kB, 20MB or 1.5GB"),
        ({"stop": {"bytes": "0MB"}}, "stop.bytes 0 should be greater than or equal to 1"),
        ({"stop": {"bytes": True}}, "stop.bytes True should be a number, not true or false"),
        ({"stop": {"accuracy": 90}}, "stop.accuracy 90 should be less than or equal to 1"),
        ({"stop": {"joules": 0}}, "stop.joules 0 should be greater than 0"),
        ({"stop": {"seconds": 5}}, "stop.seconds is not a known key; did you mean 'simulated_seconds'"),
        ({"stop": 600}, "stop 600 should be a section with keys such as simulated_seconds"),
        (
            {"stop": {"joules": 5}, "train": {"schedule": "cosine"}},
            "train.schedule 'cosine' falls over the rounds; with stop, write train.rounds too",
        ),
    ],
)
def test_a_wrong_limit_is_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_experiment(raw)


def test_the_argument_stop_is_a_dictionary(out: str) -> None:
    with pytest.raises(InputError, match=r"stop 600 must be a dictionary, such as stop=\{"):
        ug.run(stop=600, out=out)  # type: ignore[arg-type]
