"""Runs jobs one after the other in this process, or several at a time in worker processes."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, current_thread, main_thread
from typing import Any

from undergrowth.core import RunWarning
from undergrowth.runs import Store
from undergrowth.runs.lock import wait_until_free
from undergrowth.sweeps.jobs import Job, RunIndex
from undergrowth.sweeps.worker import run_job

PRETRAINING_FAILED = "its pretraining failed: "

_ENGINES_THAT_USE_ALL_CORES = ("auto", "processes")  # runs at the same time must share the cores

# CUDA's errors 805 to 809: the server of MPS is not ready, lost, or has too many clients.
_MPS_ERROR = re.compile(r"\bMPS\b|cudaErrorMps|error:? 80[5-9]\b", re.IGNORECASE)
MPS_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before a run that could not use MPS is tried again

INTERRUPTED = (130, -signal.SIGINT)  # exit codes of a worker process after Ctrl-C
SECONDS_BETWEEN_LOOKS = 0.2  # for an interrupt, while jobs run
SECONDS_FOR_INTERRUPT = 1.0
SECONDS_FOR_ORPHANS = 10.0  # within which a worker process ends whose sweep was killed

Reply = dict[str, Any]  # {"run": id}, {"failed": reason, "input": whether the input is invalid} or STOPPED
STOPPED: Reply = {"stopped": True}  # the time limit was reached, or the user interrupted


@dataclass
class JobResults:
    """The finished runs and the reasons of failures, by the keys of the jobs."""

    runs: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    wrong_input: set[str] = field(default_factory=set)  # of the failed jobs, those with invalid input of the user
    unfinished: set[str] = field(default_factory=set)  # jobs for which the time was too short

    def add(self, job: Job, reply: Reply) -> None:
        if "run" in reply:
            self.runs[job.key] = reply["run"]
        elif "failed" in reply:
            self.failed[job.key] = reply["failed"]
            if reply["input"]:
                self.wrong_input.add(job.key)
        else:
            self.unfinished.add(job.key)

    def __contains__(self, key: str) -> bool:
        return key in self.runs or key in self.failed or key in self.unfinished


OnProgress = Callable[[Job, float], None]
OnEnd = Callable[[Job, JobResults], None]


class WorkerProcess:
    """A process that runs one job at a time. It is started when first used, and again after it died."""

    def __init__(self, place: int = 0, size: int = 1) -> None:
        self.cores = cores_of_worker(place, size)
        self._process: subprocess.Popen[str] | None = None

    def run(self, request: Mapping[str, Any], on_progress: Callable[[float], None]) -> Reply:
        if self._process is None:
            # Ctrl-C ends the process without a traceback until `main` handles it, unless it is ignored.
            quiet = "import signal as s; s.getsignal(s.SIGINT) == s.SIG_IGN or s.signal(s.SIGINT, s.SIG_DFL)"
            code = f"{quiet}; from undergrowth.sweeps.worker import main; main({os.getpid()})"
            command = [sys.executable, "-c", code]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process = self._process
        assert process.stdin and process.stdout
        with suppress(BrokenPipeError):  # the process died; its output below ends without a reply
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            reply: Reply = json.loads(line)
            if "fraction" not in reply:
                return reply
            on_progress(reply["fraction"])
        self.close()
        ended = process.returncode
        return {"failed": f"its worker process ended with exit code {ended}", "input": False, "code": ended}

    def interrupt(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(BrokenPipeError):
                process.communicate()


def cores_of_worker(place: int, size: int) -> list[int] | None:
    """The cores for worker `place` of `size`, at least one; None if the system does not say which cores there are."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return cores[place::size] or [cores[place % len(cores)]]


class ThisProcess:
    """Runs jobs in this process instead of a worker process."""

    cores = None

    def run(self, request: Mapping[str, Any], on_progress: Callable[[float], None]) -> Reply:
        return run_job(request, on_progress)

    def interrupt(self) -> None:
        """An interrupt reaches this process by itself."""

    def close(self) -> None:
        """There is nothing to end."""


class WorkerPool:
    """Runs jobs on `size` worker processes; with a size of 1, in this process.

    until: the time in seconds since the epoch at which no further job is started, and running ones stop after the round
    that they are in.
    """

    def __init__(self, index: RunIndex, size: int, on_progress: OnProgress, until: float | None = None) -> None:
        self.index = index
        self.on_progress = on_progress
        self.until = math.inf if until is None else until
        self.workers = [WorkerProcess(place, size) for place in range(size)] if size > 1 else [ThisProcess()]
        self._idle: SimpleQueue[WorkerProcess | ThisProcess] = SimpleQueue()
        for worker in self.workers:
            self._idle.put(worker)
        self._results = JobResults()
        self._stopped = Event()

    def run(self, jobs: Iterable[Job], on_end: OnEnd = lambda *_: None) -> JobResults:
        """Run every job that is not finished in the store, in the given order, but pretrainings first.

        A job that fails does not stop the others. `on_end` is called in this thread with each job that has ended, and
        the results so far.
        """
        waiting, running = _in_order(jobs), dict[Future[Reply], Job]()
        pool = ThreadPoolExecutor(len(self.workers))
        with self._noted_interrupts():
            try:
                while waiting or running:
                    for job in self._ready(waiting)[: len(self.workers) - len(running)]:
                        del waiting[job.key]
                        running[pool.submit(self._reply, job) if len(self.workers) > 1 else self._done(job)] = job
                    for future in wait(running, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED).done:
                        job = running.pop(future)
                        self._results.add(job, future.result())
                        on_end(job, self._results)
                    if self._stopped.is_set():
                        raise KeyboardInterrupt
            except KeyboardInterrupt:
                self._stopped.set()
                for worker in self.workers:
                    worker.interrupt()
                raise
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
                for worker in self.workers:
                    worker.close()
        return self._results

    @contextmanager
    def _noted_interrupts(self) -> Iterator[None]:
        """While worker processes run, Ctrl-C is noted and acted on in `run`.

        Raised inside `concurrent.futures.wait`, the exception would leave its locks in disorder.
        """
        before = signal.getsignal(signal.SIGINT)
        if len(self.workers) == 1 or before is not signal.default_int_handler or current_thread() is not main_thread():
            yield
            return
        signal.signal(signal.SIGINT, lambda *_: self._stopped.set())
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _ready(self, waiting: Mapping[str, Job]) -> list[Job]:
        """The jobs whose pretrainings have ended."""
        return [job for job in waiting.values() if all(start.key in self._results for start in job.starts)]

    def _done(self, job: Job) -> Future[Reply]:
        """Run a job in this thread, so that an interrupt reaches it."""
        future: Future[Reply] = Future()
        future.set_result(self._reply(job))
        return future

    def _reply(self, job: Job) -> Reply:
        run = self.index.finished_run(job)
        reply = {"run": run} if run else self._run_job(job)
        if not reply.get("stopped"):
            self.on_progress(job, 1.0)
        return reply

    def _run_job(self, job: Job) -> Reply:
        results = self._results
        for start in job.starts:
            if start.key in results.failed:
                reason = results.failed[start.key].removeprefix(PRETRAINING_FAILED)
                return {"failed": PRETRAINING_FAILED + reason, "input": start.key in results.wrong_input}
        if time.time() >= self.until or not all(start.key in results.runs for start in job.starts):
            return STOPPED
        starts = (job.start, job.device_start)
        resolved = job.with_weights(
            *(self.index.weights_file(results.runs[start.key]) if start else None for start in starts)
        )
        unfinished = self.index.unfinished_run(resolved)
        if unfinished:
            wait_until_free(self.index.folder / unfinished, SECONDS_FOR_ORPHANS)
        else:  # a resumed run reports its first fraction after a round
            self.on_progress(job, 0.0)
        request: dict[str, Any] = {"raw": resolved.raw, "run": unfinished, "out": str(self.index.folder)}
        if job.sweep:
            request["sweep"] = job.sweep
        if self.until < math.inf:
            request["until"] = self.until
        worker = self._idle.get()
        try:
            if resolved.experiment.run.engine in _ENGINES_THAT_USE_ALL_CORES:
                request["cores"] = worker.cores
            return self._run_until_connected(worker, resolved, request, job)
        finally:
            self._idle.put(worker)

    def _run_until_connected(
        self, worker: WorkerProcess | ThisProcess, resolved: Job, request: dict[str, Any], job: Job
    ) -> Reply:
        """Run a job, and again in a new process if it could not use NVIDIA's MPS, as long as that is starting."""
        for pause in (*MPS_PAUSES, None):
            if self._stopped.is_set():
                return STOPPED
            reply = worker.run(request, lambda fraction: self.on_progress(job, fraction))
            # Ctrl-C in a terminal reaches the worker process, too, and perhaps earlier.
            if reply.get("code") in INTERRUPTED and self._stopped.wait(SECONDS_FOR_INTERRUPT):
                return STOPPED
            if pause is None or not is_mps_error(reply.get("failed", "")):
                break
            note = f"NVIDIA's MPS did not accept a run, which is tried again after {pause} s: {reply['failed']}"
            warnings.warn(note, RunWarning, stacklevel=2)
            worker.close()
            self._stopped.wait(pause)
            with Store(self.index.folder, create=True) as store:
                request["run"] = RunIndex(store, self.index.has_same_inputs).unfinished_run(resolved)
        return reply


def is_mps_error(text: str) -> bool:
    """Whether an error message says that a process could not connect to NVIDIA's Multi-Process Service."""
    return _MPS_ERROR.search(text) is not None


def _in_order(jobs: Iterable[Job]) -> dict[str, Job]:
    """All jobs and their pretrainings by key. Pretrainings come first, those that others continue before the others."""
    chains = [each for job in jobs for each in job.chain]
    awaited = {start.key for job in chains for start in job.starts}
    return {job.key: job for job in sorted(chains, key=lambda job: len(job.chain) if job.key in awaited else math.inf)}
