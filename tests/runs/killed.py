"""Runs in separate processes, for tests that kill them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from undergrowth.runs import atomic_files, store
from undergrowth.runs.execution import resume, start

ROUNDS = 8


def settings(out: str, method: str = "fedavgm", seed: int = 0) -> dict[str, Any]:
    return {
        "method": method,
        "data": {"name": "digits", "clients": 4},
        "model": "logistic",
        "train": {"rounds": ROUNDS, "sample": 0.75},
        "run": {"seed": seed, "out": out},
    }


def run(pipe: Connection, out: str, method: str = "fedavgm", seed: int = 0, *death: Any) -> None:
    """Sends the number of every finished round, and the digest of the model at the end.

    With a round and a step as `death`, the process kills itself at that step of saving that round.
    """
    if death:
        kill_at(*death)
    result = start(settings(out, method, seed), on_round=_send_rounds(pipe))
    pipe.send(result.summary["model_digest"])


def resume_run(pipe: Connection, out: str) -> None:
    """Sends the number of every finished round."""
    resume("last", out, on_round=_send_rounds(pipe))


def _send_rounds(pipe: Connection) -> Callable[[Any, Any], None]:
    return lambda row, execution: pipe.send(row["round"])


def kill_at(round: int, step: str) -> None:
    """SIGKILL before the checkpoint is moved into place (drafted), after that (moved), or after the store has the
    round (stored)."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if step == "stored":
        finish = store.Store.finish_round

        def finish_and_die(self, run, rounds, *rest):
            rounds = list(rounds)
            finish(self, run, rounds, *rest)
            if rounds[-1]["round"] == round:
                die()

        store.Store.finish_round = finish_and_die
        return
    replace = os.replace

    def replace_and_die(source, target):
        here = f"round-{round:05d}" in str(target)
        if here and step == "drafted":
            die()
        replace(source, target)
        if here:
            die()

    atomic_files.os.replace = replace_and_die
