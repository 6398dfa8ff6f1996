"""How runs end that do not end well: exit codes, sentences, what is kept."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import TINY, last_json
from undergrowth.core import RunError
from undergrowth.runs import Store
from undergrowth.runs.execution import Execution

LONG = ("run", "--model", "logistic", "--clients", "4", "--rounds", "150", "--json")


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch):
    """Makes the second round of a run end with an error."""

    def broken(error: BaseException) -> None:
        finish = Store.finish_round

        def finish_round(self, run, rounds, *rest):
            if rounds[-1]["round"] == 2:
                raise error
            finish(self, run, rounds, *rest)

        monkeypatch.setattr(Store, "finish_round", finish_round)

    return broken


def test_a_run_that_fails(type_command, breaks) -> None:
    breaks(RunError("the model diverged"))
    done = type_command("run", *TINY, "--out", "kept", "--json")
    run = Store("kept").find("last")
    assert done.exit_code == 3
    assert done.stdout == ""
    assert "the model diverged" in done.stderr and f"`undergrowth resume {run} --out kept`" in done.stderr
    assert Store("kept").run(run)["status"] == "failed"


@pytest.mark.parametrize("error", [RuntimeError("out of\nmemory"), OSError(errno.ENOSPC, "No space left on device")])
def test_what_nobody_foresaw(type_command, breaks, error: Exception) -> None:
    breaks(error)
    done = type_command("run", *TINY)
    run = Store("runs").find("last")
    assert done.exit_code == 3
    assert len(done.stderr.splitlines()) == 1
    assert ("out of memory" if isinstance(error, RuntimeError) else "No space left on device") in done.stderr
    assert f"`undergrowth resume {run}`" in done.stderr
    assert "Traceback" in (Path("runs") / run / "error.log").read_text()
    assert Store("runs").run(run)["status"] == "failed"


def test_debug_shows_where(type_command, breaks, monkeypatch) -> None:
    breaks(RuntimeError("strange"))
    done = type_command("run", *TINY, "--debug")
    assert done.exit_code == 3
    assert "Traceback" in done.stderr and "finish_round" in done.stderr
    monkeypatch.setenv("UNDERGROWTH_DEBUG", "1")
    assert "Traceback" in type_command("methods", "nothing-like-it").stderr


def test_interrupted_then_resumed(type_command, monkeypatch) -> None:
    whole = last_json(type_command("run", *TINY, "--json", "--out", "whole").stdout)
    with monkeypatch.context() as patch:

        def stop(self, *rest):
            raise KeyboardInterrupt

        patch.setattr(Execution, "finish", stop)
        done = type_command("run", *TINY, "--json")
    run = Store("runs").find("last")
    assert done.exit_code == 130
    assert f"run {run}" in done.stderr and f"`undergrowth resume {run}`" in done.stderr
    assert Store("runs").run(run)["status"] == "interrupted"
    shown = type_command("show", run)
    assert shown.exit_code == 0 and "interrupted" in shown.stdout and f"undergrowth resume {run}" in shown.stdout
    assert type_command("list").exit_code == 0
    assert type_command("report", run).exit_code == 0  # a page about a run that is not finished
    done = type_command("resume", "last", "--json")
    assert done.exit_code == 0, done.output
    assert last_json(done.stdout)["model_digest"] == whole["model_digest"]
    done = type_command("resume", "last", "--json")
    assert "already finished" in done.stderr
    assert last_json(done.stdout)["model_digest"] == whole["model_digest"]


def test_a_damaged_checkpoint_is_passed_over(type_command, monkeypatch) -> None:
    whole = last_json(type_command("run", *TINY, "--json", "--out", "whole").stdout)
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "finish", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        type_command("run", *TINY)
    newest = sorted(Path("runs").glob("*/checkpoints/round-*"))[-1]
    newest.write_bytes(newest.read_bytes()[:-10])
    done = type_command("resume", "last", "--json")
    assert done.exit_code == 0, done.output
    assert "damaged" in done.stderr
    assert last_json(done.stdout)["model_digest"] == whole["model_digest"]


def test_a_report_that_cannot_be_written(type_command, runs_folder) -> None:
    Path("file").write_text("")
    done = type_command("report", "last", "--out", runs_folder, "-o", "file/page.html")
    assert done.exit_code == 3 and "could not be written" in done.stderr
    done = type_command("report", "last", "--out", runs_folder, "-o", ".")
    assert done.exit_code == 2 and "is a folder" in done.stderr


def test_ctrl_c_on_a_process(process, type_command, tmp_path: Path) -> None:
    going = process(LONG)
    for _ in range(3000):  # until a round is kept, which it is before the checkpoint of the next one is written
        if list(tmp_path.glob("runs/*/checkpoints/round-*[2-9].safetensors")):
            break
        time.sleep(0.01)
    going.send_signal(signal.SIGINT)
    stdout, stderr = going.communicate(timeout=60)
    assert going.returncode == 130, stderr
    assert stdout == "" and "Traceback" not in stderr
    run = Store(tmp_path / "runs").find("last")
    assert f"undergrowth resume {run}" in stderr
    assert 0 < len(Store(tmp_path / "runs").rounds(run)) < 150
    resumed, whole = type_command("resume", run, "--json"), type_command(*LONG, "--out", "whole")
    assert resumed.exit_code == 0, resumed.output
    assert last_json(resumed.stdout)["model_digest"] == last_json(whole.stdout)["model_digest"]


def test_a_process_that_is_told_nonsense(process) -> None:
    going = process(("run", "--method", "fedprx"))
    stdout, stderr = going.communicate(timeout=60)
    assert going.returncode == 2
    assert stdout == "" and stderr.splitlines() == ["error: method 'fedprx' is not known; did you mean 'fedprox'?"]


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys\nfrom undergrowth.cli import main\nsys.argv = ['undergrowth', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'numpy', 'plotly', 'pydantic_core', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy - {'pydantic_core'}, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for words in ("run", "resume", "compare", "report", "methods", "Examples", "Exit codes"):
        assert words in done.stdout
