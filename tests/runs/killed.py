"""Runs in processes of their own, for tests that kill them."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

import undergrowth as ug
from undergrowth.runs import atomic_files, store
from undergrowth.runs.execution import start

ROUNDS = 20


def settings(out: str, method: str = "fedavgm", seed: int = 0) -> dict:
    return {
        "method": method,
        "data": {"name": "digits", "clients": 4},
        "model": "logistic",
        "train": {"rounds": ROUNDS, "sample": 0.75},
        "run": {"seed": seed, "out": out},
    }


def go(said: Connection, out: str, method: str = "fedavgm", seed: int = 0, *death: Any) -> None:
    """Says "started" when the first round begins, and the model's digest at the end.

    With a round and a step, as `death`, it kills itself at that step of saving that round.
    """
    if death:
        kill_at(*death)
    result = start(settings(out, method, seed), on_start=lambda execution: said.send("started"))
    said.send(result.summary["model_digest"])


def go_on(said: Connection, out: str) -> None:
    said.send("up")
    ug.resume("last", out)


def kill_at(round: int, step: str) -> None:
    """SIGKILL before the checkpoint is moved into place, after that, or after the store has the round."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if step == "stored":
        finish = store.Store.finish_round

        def finish_and_die(self, run, rounds, entries, kept):
            rounds = list(rounds)
            finish(self, run, rounds, entries, kept)
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
