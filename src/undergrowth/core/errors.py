"""The two errors that end a run, and the warning for what does not end it, each with one sentence for the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

# What users of other libraries write → what it is called here. A word without capitals, spaces, "-" and "_".
MEANINGS = {
    "learningrate": "lr", "eta": "lr", "stepsize": "lr", "batchsize": "batch", "bs": "batch", "epoch": "epochs",
    "localepochs": "epochs", "numepochs": "epochs", "numrounds": "rounds", "nrounds": "rounds", "iterations": "rounds",
    "numclients": "clients", "nclients": "clients", "devices": "clients", "numdevices": "clients",
    "optimizer": "optimiser", "wd": "weight_decay", "l2": "weight_decay", "fraction": "sample",
    "clientfraction": "sample", "fractionfit": "sample", "participation": "sample", "timeout": "deadline",
    "gpu": "device", "dataset": "data", "algorithm": "method", "strategy": "method", "network": "model",
    "architecture": "model", "net": "model", "aggregator": "method", "compression": "links", "codec": "links",
    "scheduler": "schedule", "lrscheduler": "schedule", "randomseed": "seed", "output": "out", "outdir": "out",
    "noniid": "dirichlet:0.1", "heterogeneous": "dirichlet:0.1", "labelskew": "dirichlet:0.1", "lda": "dirichlet:0.1",
    "pathological": "classes:2", "shards": "classes:2", "random": "iid", "homogeneous": "iid",
    "seconds": "simulated_seconds", "time": "simulated_seconds", "energy": "joules", "traffic": "bytes",
    "byuser": "natural", "bywriter": "natural", "user": "natural",
}  # fmt: skip


class InputError(ValueError):
    """The user's input is wrong. The message names the field, the value and what would be right."""


class RunError(RuntimeError):
    """A run failed for a reason that is not the user's input: a full disk, a model that diverged."""


# What code of the user may raise besides these two: also `sys.exit`, which must not end a command without a word.
CODE_ERRORS = (Exception, SystemExit)


class RunWarning(UserWarning):
    """A note of a run: something that the user should know and that does not end the run."""


def describe_error(error: BaseException) -> str:
    """What an exception in a method's code says, for the end of a sentence."""
    if isinstance(error, KeyError):  # its text is only the key
        return f"KeyError: there is no key {error}"
    if isinstance(error, SystemExit):  # its text is only the exit code
        return f"SystemExit: {error}"
    return str(error) or type(error).__name__


def describe_with_type(error: BaseException) -> str:
    """The type and the text of an exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def explain_errors(what: str) -> Iterator[None]:
    """Raises an exception of the user's code in the block as an `InputError` that begins with `what`."""
    try:
        yield
    except InputError:
        raise
    except CODE_ERRORS as error:
        raise InputError(f"{what}: {describe_with_type(error)}") from error


def suggest(value: str, choices: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known name that is meant, the nearest one, or all of them."""
    names = sorted(choices)
    meant = find_meant(value, names)
    if meant is None:
        by_word = {_word(name): name for name in reversed(names)}
        close = difflib.get_close_matches(_word(value), by_word, n=1, cutoff=0.5)
        meant = by_word[close[0]] if close else None
    return f"choose one of: {', '.join(names)}" if meant is None else f"did you mean '{meant}'?"


def find_meant(value: str, choices: Iterable[str]) -> str | None:
    """The choice that is `value` in another spelling, or what `value` means; None if there is none."""
    names = list(choices)
    word = _word(value)
    same = next((name for name in names if _word(name) == word), None)
    meaning = MEANINGS.get(word, "")
    return same or (meaning if meaning.partition(":")[0] in names else None)


def _word(name: str) -> str:
    return "".join(letter for letter in str(name).lower() if letter not in "-_ ")
