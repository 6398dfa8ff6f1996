"""Failed and interrupted commands: exit codes, messages, stored state, and resuming."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

import undergrowth as ug
from tests.cli.conftest import TIMEOUT, TINY, last_json, wait_until
from undergrowth.cli import app as application
from undergrowth.cli import main
from undergrowth.cli.app import _format_warning
from undergrowth.cli.exit_codes import exit_code_and_message
from undergrowth.core import InputError, RunError, RunWarning
from undergrowth.runs import Store, atomic_files
from undergrowth.runs.execution import Execution, resume

MANY_ROUNDS = 100_000  # more than any machine finishes before it is interrupted


@pytest.fixture
def fail_in_round_2(monkeypatch: pytest.MonkeyPatch):
    """Makes the second round of a run raise an exception."""

    def install(error: BaseException) -> None:
        finish = Store.finish_round

        def finish_round(self, run, rounds, *rest):
            if rounds[-1]["round"] == 2:
                raise error
            finish(self, run, rounds, *rest)

        monkeypatch.setattr(Store, "finish_round", finish_round)

    return install


@pytest.fixture(scope="module")
def uninterrupted_digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of the model that an uninterrupted run with the arguments `TINY` gives."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return ug.run(model="logistic", rounds=2, clients=4, out=str(folder)).summary["model_digest"]


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_a_failed_run(type_command, fail_in_round_2) -> None:
    fail_in_round_2(RunError("the model diverged"))
    done = type_command("run", *TINY, "--out", "kept", "--json")
    run = Store("kept").find("last")
    assert done.exit_code == 3
    assert done.stdout == ""
    assert "the model diverged" in done.stderr and f"`undergrowth resume {run} --out kept`" in done.stderr
    assert Store("kept").run(run)["status"] == "failed"


UNEXPECTED = {
    "out of memory": RuntimeError("out of\nmemory"),
    "No space left on device": OSError(errno.ENOSPC, "No space left on device"),
    "SystemExit: 0": SystemExit(0),  # of code of the user
}


@pytest.mark.parametrize(("said", "error"), UNEXPECTED.items())
def test_an_unexpected_exception(type_command, fail_in_round_2, said: str, error: BaseException) -> None:
    fail_in_round_2(error)
    done = type_command("run", "--quiet", *TINY)
    run = Store("runs").find("last")
    assert done.exit_code == 3
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
    assert f"`undergrowth resume {run}`" in done.stderr
    assert "Traceback" in (Path("runs") / run / "error.log").read_text()
    assert Store("runs").run(run)["status"] == "failed"


@pytest.mark.parametrize("words", [["fleets"], ["topology"], ["report"], ["list", "--out"], ["run", "--fleet"]])
def test_a_name_that_is_too_long_for_a_file_is_wrong_input(type_command, words: list[str]) -> None:
    answer = type_command(*words, "x" * 400)
    assert answer.exit_code == 2
    assert answer.stderr.strip() == f"error: '{'x' * 40}…' is too long for the name of a file"


def test_debug_prints_the_traceback(type_command, fail_in_round_2, monkeypatch) -> None:
    fail_in_round_2(RuntimeError("strange"))
    done = type_command("run", *TINY, "--debug")
    assert done.exit_code == 3
    assert "Traceback" in done.stderr and "finish_round" in done.stderr
    monkeypatch.setenv("UNDERGROWTH_DEBUG", "1")
    assert "Traceback" in type_command("methods", "nothing-like-it").stderr


def test_interrupted_then_resumed(type_command, uninterrupted_digest: str, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "finish", interrupt)
        done = type_command("run", *TINY, "--json")
    run = Store("runs").find("last")
    assert done.exit_code == 130
    assert f"run {run}" in done.stderr and f"`undergrowth resume {run}`" in done.stderr
    assert Store("runs").run(run)["status"] == "interrupted"
    shown = type_command("show", run)
    assert shown.exit_code == 0 and "interrupted" in shown.stdout and f"undergrowth resume {run}" in shown.stdout
    assert type_command("list").exit_code == 0
    assert type_command("report", run).exit_code == 0  # unfinished runs have a page, too
    done = type_command("resume", "last", "--json")
    assert done.exit_code == 0, done.output
    assert last_json(done.stdout)["model_digest"] == uninterrupted_digest
    done = type_command("resume", "last", "--json")
    assert "already finished" in done.stderr
    assert last_json(done.stdout)["model_digest"] == uninterrupted_digest


def test_a_resume_that_is_interrupted_before_it_starts_says_how_to_resume(type_command, monkeypatch) -> None:
    monkeypatch.setattr(Execution, "restore", interrupt)
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "finish", interrupt)
        type_command("run", *TINY, "--out", "kept")
    done = type_command("resume", "last", "--out", "kept")
    assert done.exit_code == 130
    assert f"`undergrowth resume {Store('kept').find('last')} --out kept` continues it" in done.stderr


def test_a_damaged_checkpoint_is_skipped(type_command, uninterrupted_digest: str, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "finish", interrupt)
        type_command("run", *TINY)
    newest = sorted(Path("runs").glob("*/checkpoints/round-*"))[-1]
    newest.write_bytes(newest.read_bytes()[:-10])
    done = type_command("resume", "last", "--json")
    assert done.exit_code == 0, done.output
    assert "damaged" in done.stderr
    assert last_json(done.stdout)["model_digest"] == uninterrupted_digest


def test_a_report_that_cannot_be_written(type_command, runs_folder) -> None:
    Path("file").write_text("")
    done = type_command("report", "last", "--out", runs_folder, "-o", "file/page.html")
    assert done.exit_code == 2 and "'file/page.html' cannot be written" in done.stderr
    done = type_command("report", "last", "--out", runs_folder, "-o", ".")
    assert done.exit_code == 2 and "is a folder" in done.stderr


def test_a_page_in_a_read_only_folder(type_command, runs_folder, monkeypatch) -> None:
    monkeypatch.setattr(atomic_files.os, "access", lambda path, mode: Path(path) != Path.cwd())
    done = type_command("report", "last", "--out", runs_folder, "-o", "page.html")
    assert done.exit_code == 2 and f"(the folder '{Path.cwd()}' is read-only); name another file" in done.stderr


def test_a_page_on_a_full_disk(type_command, runs_folder, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_files.Path, "write_bytes", refuse)
    done = type_command("report", "last", "--out", runs_folder, "-o", "page.html")
    assert done.exit_code == 3 and "'page.html' could not be written: No space left on device" in done.stderr


@pytest.mark.parametrize("words", [["list"], ["show", "last"], ["export", "last", "--csv"]])
def test_a_folder_of_runs_that_cannot_be_read(type_command, monkeypatch, words: list[str]) -> None:
    exists = Path.exists

    def refuse(path: Path) -> bool:
        if path.parent.name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied")
        return exists(path)

    monkeypatch.setattr(Path, "exists", refuse)
    done = type_command(*words, "--out", "locked")
    assert done.exit_code == 2, done.output
    assert "out 'locked' has a run store that cannot be read" in done.stderr and "Permission denied" in done.stderr


def test_ctrl_c_on_a_process(process, tmp_path: Path) -> None:
    """Ctrl-C stops the process between rounds; resumed, the run continues as if it had not been stopped."""
    running = process(
        ("run", "--engine", "serial", "--model", "logistic", "--clients", "4", "--rounds", str(MANY_ROUNDS), "--json")
    )
    # The checkpoint of a round is written before the round is stored, so that of the second means that one is stored.
    checkpoint = "runs/*/checkpoints/round-*.safetensors"
    wait_until(lambda: any(not path.match("round-00001.*") for path in tmp_path.glob(checkpoint)), running)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=TIMEOUT)
    assert running.returncode == 130, stderr
    assert stdout == "" and "Traceback" not in stderr
    store = Store(tmp_path / "runs")
    run = store.find("last")
    assert f"undergrowth resume {run}" in stderr and store.run(run)["status"] == "interrupted"
    rounds = len(store.rounds(run)) + 2

    def stop(row, execution) -> None:
        if row["round"] == rounds:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resume(run, str(tmp_path / "runs"), on_round=stop)
    whole = ug.run(engine="serial", model="logistic", clients=4, rounds=rounds, out=str(tmp_path / "whole"))
    assert [row["loss"] for row in store.rounds(run)] == [row["loss"] for row in whole.history]


def test_a_very_long_message_loses_its_middle() -> None:
    code, message = exit_code_and_message(InputError("column 'a': '" + 100_000 * "9" + "' is not a finite number"))
    assert code == 2 and len(message) < 3000
    assert message.startswith("error: column 'a': '999") and message.endswith("99' is not a finite number")


def test_ctrl_c_while_typer_reads_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(application, "app", interrupt)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130


def test_ctrl_c_while_the_commands_are_imported() -> None:
    code = (
        "import sys\nclass Finder:\n    def find_spec(self, name, *_):\n"
        "        if name == 'typer':\n            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\nfrom undergrowth.cli import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.returncode, done.stderr) == (130, "")


def test_ctrl_c_while_an_object_is_deleted_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", application._repeat_interrupt)
    with pytest.raises(KeyboardInterrupt):
        Interrupted()
        time.sleep(TIMEOUT)


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom undergrowth.cli import main\nsys.argv = ['undergrowth', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'numpy', 'plotly', 'pydantic_core', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy - {'pydantic_core'}, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    for words in ("run", "resume", "compare", "report", "methods", "Examples", "Exit codes"):
        assert words in done.stdout


def test_a_note_that_a_method_issues_has_no_line_of_code() -> None:
    assert (
        _format_warning(RunWarning("no device answered"), RunWarning, "rules.py", 1) == "warning: no device answered\n"
    )
    assert "rules.py:1: UserWarning: other" in _format_warning(UserWarning("other"), UserWarning, "rules.py", 1)


def test_an_output_without_all_characters_is_no_failure() -> None:
    words = [sys.executable, "-m", "undergrowth", "--help"]
    done = subprocess.run(words, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, timeout=TIMEOUT)
    assert done.returncode == 0 and b"\\xb7" in done.stdout, done.stderr


def test_a_shell_may_close_the_outputs(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "undergrowth", "run", "-q", *TINY]
    done = subprocess.run(["sh", "-c", '"$@" >&- 2>&-', "sh", *words], cwd=tmp_path, timeout=TIMEOUT)
    store = Store(tmp_path / "runs")
    assert done.returncode == 0 and [row["status"] for row in store.runs()] == ["done"]


@pytest.mark.parametrize("words", [("methods", "fedavg"), ("run", "--help"), ("run", "-q", *TINY)], ids=" ".join)
def test_a_reader_may_close_its_pipe(tmp_path: Path, words: tuple[str, ...]) -> None:
    """As `undergrowth methods | head` does: no message. A run is finished and stored all the same."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "undergrowth", *words]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path, text=True, timeout=TIMEOUT)
    os.close(writer)
    assert "failed" not in done.stderr and done.returncode == 1, done.stderr
    assert words[0] != "run" or "-q" not in words or Store(tmp_path / "runs").runs()[0]["status"] == "done"


@pytest.mark.slow
def test_ctrl_c_twice_stops_a_sweep_and_its_runs(process, tmp_path: Path) -> None:
    """A terminal sends it to the workers as well, and perhaps first. Runs that it stopped are not reported as done."""
    Path(tmp_path / "sweep.yaml").write_text(
        "model: logistic\ntrain: {rounds: 100000}\nrun: {engine: serial, seed: [0, 1, 2, 3]}\n"
    )
    running = process(("sweep", "sweep.yaml", "--no-report", "--jobs", "2"))
    wait_until(lambda: len({path.parent for path in tmp_path.glob("runs/*/checkpoints/*")}) > 1, running)
    workers = [int(pid) for pid in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()]
    for _ in range(2):
        for pid in (*workers, running.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
    _, stderr = running.communicate(timeout=TIMEOUT)
    assert running.returncode == 130 and "of 4 runs" not in stderr, stderr
    assert {row["status"] for row in Store(tmp_path / "runs").runs()} == {"interrupted"}
