"""Runs jobs one after the other in this process, or several at a time in worker processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from undergrowth.sweeps.jobs import Job, RunIndex
from undergrowth.sweeps.worker import run_job

PRETRAINING_FAILED = "its pretraining failed: "

_ENGINES_THAT_USE_ALL_CORES = ("auto", "processes")  # runs at the same time must share the cores

OnProgress = Callable[[Job, float], None]
Reply = dict[str, Any]  # {"run": id}, or {"failed": reason, "input": whether the input is invalid}


class JobResults(NamedTuple):
    """The finished runs and the reasons of failures, by the keys of the jobs."""

    runs: dict[str, str]
    failed: dict[str, str]
    wrong_input: bool  # at least one job failed because the user's input is invalid


class WorkerProcess:
    """A process that runs one job at a time. It is started when first used, and again after it died."""

    def __init__(self, place: int = 0, size: int = 1) -> None:
        self.cores = share_of_cores(place, size)
        self._process: subprocess.Popen[str] | None = None

    def run(self, request: Mapping[str, Any], on_progress: Callable[[float], None]) -> Reply:
        if self._process is None:
            command = [sys.executable, "-c", "from undergrowth.sweeps.worker import main; main()"]
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
        return {"failed": f"its worker process ended with exit code {process.returncode}", "input": False}

    def interrupt(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(BrokenPipeError):
                process.communicate()


def share_of_cores(place: int, size: int) -> list[int] | None:
    """The cores for worker `place` of `size`, at least one; None if the system does not say which cores there are."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return cores[place::size] or [cores[place % len(cores)]]


class WorkerPool:
    """Runs jobs on `size` worker processes; with a size of 1, in this process."""

    def __init__(self, index: RunIndex, size: int, on_progress: OnProgress) -> None:
        self.index = index
        self.on_progress = on_progress
        self.workers = [WorkerProcess(place, size) for place in range(size)]
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        for worker in self.workers:
            self._idle.put(worker)
        self._replies: dict[str, Future[Reply]] = {}
        self._stopped = False

    def run(self, jobs: Iterable[Job]) -> JobResults:
        """Run every job that is not finished in the store. A job that fails does not stop the others."""
        # A job comes after its pretrainings, and those that others wait for come before those that none waits for.
        chains = [each for job in jobs for each in job.chain]
        awaited = {start.key for job in chains for start in job.starts}
        distinct = {job.key: job for job in sorted(chains, key=lambda job: (len(job.chain), job.key not in awaited))}
        pool = ThreadPoolExecutor(len(self.workers))
        try:
            for key, job in distinct.items():
                self._replies[key] = pool.submit(self._reply, job) if len(self.workers) > 1 else self._done(job)
            replies = {key: future.result() for key, future in self._replies.items()}
        except KeyboardInterrupt:
            self._stopped = True
            for worker in self.workers:
                worker.interrupt()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for worker in self.workers:
                worker.close()
        return JobResults(
            {key: reply["run"] for key, reply in replies.items() if "run" in reply},
            {key: reply["failed"] for key, reply in replies.items() if "failed" in reply},
            any(reply.get("input") for reply in replies.values()),
        )

    def _done(self, job: Job) -> Future[Reply]:
        """Run a job in this thread, so that an interrupt reaches it."""
        future: Future[Reply] = Future()
        future.set_result(self._reply(job))
        return future

    def _reply(self, job: Job) -> Reply:
        run = self.index.finished_run(job)
        reply = {"run": run} if run else self._run_job(job)
        self.on_progress(job, 1.0)
        return reply

    def _run_job(self, job: Job) -> Reply:
        weights: list[Path | None] = []
        for start in (job.start, job.device_start):
            # A pretraining was submitted before this job, so that waiting for it cannot block the pool.
            reply: Reply = self._replies[start.key].result() if start else {"run": None}
            if "run" not in reply:
                reason = reply["failed"].removeprefix(PRETRAINING_FAILED)
                return {"failed": PRETRAINING_FAILED + reason, "input": reply["input"]}
            weights.append(self.index.weights_file(reply["run"]) if reply["run"] else None)
        described = job.with_weights(*weights)
        unfinished = self.index.unfinished_run(described)
        if not unfinished:  # a resumed run reports its first fraction after a round
            self.on_progress(job, 0.0)
        request: dict[str, Any] = {"raw": described.raw, "run": unfinished, "out": str(self.index.folder)}
        if len(self.workers) == 1:
            return run_job(request, lambda fraction: self.on_progress(job, fraction))
        worker = self._idle.get()
        try:
            if self._stopped:
                return {"failed": "interrupted", "input": False}
            if described.experiment.run.engine in _ENGINES_THAT_USE_ALL_CORES:
                request["cores"] = worker.cores
            return worker.run(request, lambda fraction: self.on_progress(job, fraction))
        finally:
            self._idle.put(worker)
