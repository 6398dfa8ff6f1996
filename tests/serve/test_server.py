"""The server: its address, wrong input, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from tests.serve.conftest import WrittenRuns
from tests.typed_commands import invoke
from undergrowth.core import InputError
from undergrowth.serve import serve_runs


def command(*words: object) -> tuple[int, str]:
    done = invoke("serve", *words, "--no-open")
    return done.exit_code, done.stdout + done.stderr


def test_it_serves_until_ctrl_c(runs: WrittenRuns) -> None:
    run = runs.finished()
    found = []

    def read_and_end(address: str) -> None:
        try:
            with urllib.request.urlopen(address) as answer:
                found.append((address, answer.read().decode("utf-8")))
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    def start(address: str) -> None:
        threading.Thread(target=read_and_end, args=(address,)).start()

    serve_runs(runs.folder, port=0, on_start=start)  # returns after Ctrl-C
    [(address, page)] = found
    assert address.startswith("http://127.0.0.1:") and run in page
    port = int(address.split(":")[-1].strip("/"))
    socket.create_server(("127.0.0.1", port)).close()  # the port is free again


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    code, output = command(tmp_path / "nothing")
    assert code == 2 and len(output.splitlines()) == 1 and "nothing' does not exist" in output


def test_a_port_that_is_taken(runs: WrittenRuns) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = command(runs.folder, "--port", port)
    assert code == 2 and len(output.splitlines()) == 1
    assert f"port {port}" in output and "0 for any free port" in output


def test_wrong_ports_and_hosts(runs: WrittenRuns) -> None:
    assert command(runs.folder, "--port", 70000)[0] == 2
    with pytest.raises(InputError, match="port 70000 must be from 0"):
        serve_runs(runs.folder, port=70000)
    code, output = command(runs.folder, "--port", 0, "--host", "not a host")
    assert code == 2 and "host 'not a host' is not an address of this machine" in output


def test_without_the_extra(runs: WrittenRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, output = command(runs.folder)
    assert code == 2 and "pip install 'undergrowth[serve]'" in output and len(output.splitlines()) == 1
