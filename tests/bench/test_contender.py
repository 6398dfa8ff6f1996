"""Contenders are measured from outside: all their processes, in the rounds that count."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from undergrowth.bench import contender
from undergrowth.bench.contender import Contender, observe
from undergrowth.core import InputError, RunError

HEAD = """
import json, subprocess, sys, time

def say(mark, since=0.0):
    print(json.dumps({"mark": mark, "since": since, "now": time.monotonic()}), flush=True)
    assert sys.stdin.readline() == "go on\\n"
    return time.monotonic()

def compute(seconds):
    began = time.process_time()
    while time.process_time() - began < seconds:
        pass
"""
WORKS = """
compute(0.8)  # before its rounds: does not count
say("ready")
since = say("warm")
print("a line for people")
print("[1, 2]")
code = "import time\\nbegan = time.process_time()\\nwhile time.process_time() - began < 0.4: pass"
code += "\\nprint(flush=True)\\ninput()"
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **pipes)
held = b"x" * 200_000_000
compute(0.4)
child.stdout.readline()  # it has computed, and is still there when the CPU time is read
say("done", since)
child.kill()
child.wait()
compute(0.4)  # after its rounds: does not count
print(json.dumps({"framework": "a fake", "clients": 3, "samples": 60}), flush=True)
"""


def script(folder: Path, text: str) -> Contender:
    (folder / "fake.py").write_text(HEAD + text)
    return Contender("fake", [sys.executable, str(folder / "fake.py")])


@pytest.mark.slow
def test_cpu_time_memory_and_seconds_of_all_processes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(contender, "MEMORY_INTERVAL", 0.01)
    observed = observe(script(tmp_path, WORKS))
    assert (observed.title, observed.clients, observed.samples) == ("a fake", 3, 60)
    assert observed.cpu >= 0.75  # two processes with 0.4 s each, one of them in another session
    assert observed.seconds >= 0.4
    assert observed.startup >= observed.startup_cpu >= 0.75
    assert 200e6 < observed.memory < 400e6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("say('ready')\nraise ValueError('no such thing')", "fake ended with code 1: ValueError: no such thing"),
        ("say('ready')\nsay('warm')", "fake ended with code 0: it printed no error"),
        ("say('ready')\nsay('warm')\nsay('done')", "fake ended with code 0: it printed no error"),
    ],
)
def test_a_contender_that_does_not_finish_its_work(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RunError) as error:
        observe(script(tmp_path, text))
    assert str(error.value) == said


SLEEPER = """
code = "import time; time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.DEVNULL)
print(json.dumps({"child": child.pid}), file=open("child.json", "w"), flush=True)
say("ready")
"""


def sleeper_has_ended(folder: Path) -> bool:
    stat = Path(f"/proc/{json.loads((folder / 'child.json').read_text())['child']}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"  # a zombie has ended too


def test_a_contender_that_takes_too_long_is_killed_with_its_processes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    child = tmp_path / "child.json"
    monkeypatch.setattr(contender, "monotonic", lambda: 3.0 if child.exists() and child.stat().st_size else 0.0)
    with pytest.raises(RunError, match="fake ended with code -9 after 2 seconds, which is too long"):
        observe(script(tmp_path, SLEEPER + "time.sleep(600)"), max_seconds=2)
    assert sleeper_has_ended(tmp_path)


def test_processes_that_a_contender_leaves_are_killed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(contender, "MAX_SECONDS_TO_EXIT", 0.2)
    rest = """
since = say("warm")
say("done", since)
print(json.dumps({"framework": "a fake", "clients": 1, "samples": 1}), flush=True)
"""
    assert observe(script(tmp_path, SLEEPER + rest)).clients == 1
    assert sleeper_has_ended(tmp_path)


def test_a_program_that_does_not_exist() -> None:
    with pytest.raises(InputError) as error:
        observe(Contender("flower", ["/no/such/python", "-m", "opponents.flower"]))
    assert str(error.value) == "'/no/such/python' cannot be started: No such file or directory"
