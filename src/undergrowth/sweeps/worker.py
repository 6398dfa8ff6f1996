"""Runs jobs for another process. Requests and replies are lines of JSON on standard input and output.

Request:
{"raw": {...}, "run": null, "out": "runs"}     start a new run; if "run" is an id, resume that run instead
{..., "cores": [0, 1]}                         use these cores of the CPU only
{..., "sweep": ["methods", "fedavg"]}          the run belongs to this variant of this sweep
{..., "until": 1794837600.0}                   stop after the first round that ends later, in seconds since the epoch

Replies:
{"fraction": 0.25}                             this fraction of the rounds is finished
{"run": "20260102-101500-fedavg-1f3a"}         the run is finished
{"failed": "...", "input": true}               the run failed; "input": whether the user's input is invalid
{"stopped": true}                              the run was stopped by "until" and can be resumed
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import torch

from undergrowth.core import CODE_ERRORS, InputError, RunError
from undergrowth.runs.execution import Execution, resume, start

SECONDS_BETWEEN_LOOKS = 0.2  # for the death of the parent


class OutOfTime(KeyboardInterrupt):
    """Stops a run as an interrupt does."""


def run_job(request: Mapping[str, Any], on_progress: Callable[[float], None]) -> dict[str, Any]:
    """Run or resume a job. Returns the last reply: the id of the run, or why there is none."""

    def on_round(row: Mapping[str, Any], execution: Execution) -> None:
        fraction = execution.fraction(row)
        on_progress(fraction)
        if fraction < 1.0 and "until" in request and time.time() >= request["until"]:
            raise OutOfTime

    def on_start(execution: Execution) -> None:
        if request.get("sweep"):
            execution.store.add_to_sweep(execution.run, *request["sweep"])

    hooks: dict[str, Any] = {"on_start": on_start, "on_round": on_round}
    try:
        if request["run"]:
            return {"run": resume(request["run"], request["out"], **hooks).run}
        return {"run": start(request["raw"], **hooks).run}
    except OutOfTime:
        return {"stopped": True}
    except (InputError, RunError) as error:
        return {"failed": " ".join(str(error).split()), "input": isinstance(error, InputError)}
    except CODE_ERRORS as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}", "input": False}
    finally:
        gc.collect()
        if torch.cuda.is_initialized():  # free the memory for the other workers on the same GPU
            torch.cuda.empty_cache()


@contextmanager
def use_cores(cores: Sequence[int] | None) -> Iterator[None]:
    """Restricts this process and those that it starts to some cores of the CPU, where the system can do that."""
    if cores is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _interrupt_once(*_: Any) -> None:
    """Ctrl-C reaches this process from the terminal and from its parent; a second one would cut the ending short."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def _interrupt_if_alone(parent: int) -> Iterator[None]:
    """Interrupts the block when the process `parent` has died, with a signal that background processes get, too."""
    ended = Event()

    def watch() -> None:
        while not ended.wait(SECONDS_BETWEEN_LOOKS):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    signal.signal(signal.SIGTERM, _interrupt_once)
    Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def main(parent: int) -> None:
    """Run jobs until standard input ends, or until the process `parent`, which started this one, has died."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in the background of a shell script
        signal.signal(signal.SIGINT, _interrupt_once)
    replies, sys.stdout = sys.stdout, sys.stderr  # what runs print must not mix with the replies

    def send(reply: Mapping[str, Any]) -> None:
        try:
            replies.write(json.dumps(reply) + "\n")
            replies.flush()
        except BrokenPipeError:  # the parent died just now
            raise KeyboardInterrupt from None

    try:
        with _interrupt_if_alone(parent):
            for line in sys.stdin:
                if os.getppid() != parent:  # it may have died while this process was starting
                    raise KeyboardInterrupt
                request = json.loads(line)
                with use_cores(request.get("cores")):
                    reply = run_job(request, lambda fraction: send({"fraction": fraction}))
                send(reply)
    except KeyboardInterrupt:
        sys.exit(130)
