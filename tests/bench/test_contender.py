"""Contenders are measured from outside: what they do in the rounds that count, all of their processes, nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from undergrowth.bench import contender
from undergrowth.bench.contender import Contender, watched
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
compute(0.8)  # before its rounds: counts for nothing
say("ready")
since = say("warm")
print("a line for people")
print("[1, 2]")
held = b"x" * 200_000_000
code = "import time\\nbegan = time.process_time()\\nwhile time.process_time() - began < 0.4: pass\\ntime.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
compute(0.4)
time.sleep(2)
say("done", since)
child.kill()
child.wait()
compute(0.4)  # and so does this
print(json.dumps({"framework": "a fake", "clients": 3, "samples": 60}), flush=True)
"""


def script(folder: Path, text: str) -> Contender:
    (folder / "fake.py").write_text(HEAD + text)
    return Contender("fake", [sys.executable, str(folder / "fake.py")])


def test_what_is_measured(tmp_path: Path) -> None:
    seen = watched(script(tmp_path, WORKS))
    assert (seen.title, seen.clients, seen.samples) == ("a fake", 3, 60)
    assert 0.75 <= seen.cpu < 2.0  # two processes of 0.4 s each, one of them in a session of its own, and their start
    assert seen.seconds >= 2.4
    assert seen.startup >= seen.startup_cpu >= 0.75
    assert 200e6 < seen.memory < 400e6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("say('ready')\nraise ValueError('no such thing')", "fake ended with code 1: ValueError: no such thing"),
        ("say('ready')\nsay('warm')", "fake ended with code 0: it said nothing"),
        ("say('ready')\nsay('warm')\nsay('done')", "fake ended with code 0: it said nothing"),
    ],
)
def test_one_that_does_not_do_its_work(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RunError) as error:
        watched(script(tmp_path, text))
    assert str(error.value) == said


SLEEPER = """
code = "import time; time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.DEVNULL)
print(json.dumps({"child": child.pid}), file=open("child.json", "w"), flush=True)
say("ready")
"""


def sleeper_is_gone(folder: Path) -> bool:
    stat = Path(f"/proc/{json.loads((folder / 'child.json').read_text())['child']}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"  # nobody may have waited for it


def test_one_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="fake ended with code -9 after 2 seconds, which is too long"):
        watched(script(tmp_path, SLEEPER + "time.sleep(600)"), longest=2)
    assert sleeper_is_gone(tmp_path)


def test_what_one_leaves_behind_is_ended(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(contender, "PATIENCE", 0.2)
    rest = """
since = say("warm")
say("done", since)
print(json.dumps({"framework": "a fake", "clients": 1, "samples": 1}), flush=True)
"""
    assert watched(script(tmp_path, SLEEPER + rest)).clients == 1
    assert sleeper_is_gone(tmp_path)


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(InputError) as error:
        watched(Contender("flower", ["/no/such/python", "-m", "opponents.flower"]))
    assert str(error.value) == "'/no/such/python' cannot be started: No such file or directory"
