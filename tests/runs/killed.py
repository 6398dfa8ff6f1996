"""A run in a process of its own, for tests that kill it: `python killed.py OUT METHOD SEED ROUNDS [ROUND:STEP]`.

Says "started" when the first round begins. With ROUND:STEP it kills itself at that step of saving that round.
"""

import os
import signal
import sys

import torch

from undergrowth.runs import checkpoint, store
from undergrowth.runs.run import start

torch.set_num_threads(1)


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

    checkpoint.os.replace = replace_and_die


if __name__ == "__main__":
    out, method, seed, rounds, *death = sys.argv[1:]
    if death:
        number, step = death[0].split(":")
        kill_at(int(number), step)
    settings = {
        "method": method,
        "data": {"name": "digits", "clients": 4},
        "model": "logistic",
        "train": {"rounds": int(rounds), "sample": 0.75},
        "run": {"seed": int(seed), "out": out},
    }
    result = start(settings, on_start=lambda execution: print("started", flush=True))
    print(result.summary["model_digest"], flush=True)
