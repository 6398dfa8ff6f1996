"""Carries out jobs: one after the other in this process, or several at a time in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from undergrowth.reproduce.jobs import Job, Shelf
from undergrowth.reproduce.worker import carry_out

OnShare = Callable[[Job, float], None]
Answer = dict[str, Any]


@dataclass
class Ended:
    """What became of the jobs, by their keys."""

    runs: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    wrong_input: bool = False  # a job failed for what the user gave


class Worker:
    """A process that does one job at a time, and is replaced when it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, order: Mapping[str, Any], on_share: Callable[[float], None]) -> Answer:
        if self._process is None:
            command = [sys.executable, "-c", "from undergrowth.reproduce.worker import main; main()"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process = self._process
        assert process.stdin and process.stdout
        with suppress(BrokenPipeError):  # it is dead, as the empty answer below will tell
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            answer: Answer = json.loads(line)
            if "share" not in answer:
                return answer
            on_share(answer["share"])
        self.close()
        return {"failed": f"the process that did it ended with exit code {process.returncode}", "input": False}

    def interrupt(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(BrokenPipeError):
                process.communicate()


class Crew:
    """As many workers as are asked for; with one, the jobs are done here."""

    def __init__(self, shelf: Shelf, size: int, on_share: OnShare) -> None:
        self.shelf = shelf
        self.on_share = on_share
        self.members = [Worker() for _ in range(size)]
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for member in self.members:
            self._idle.put(member)
        self._futures: dict[str, Future[Answer]] = {}
        self._stopped = False

    def carry_out(self, jobs: Iterable[Job]) -> Ended:
        """Does what is not in the store yet; a job that fails does not stop the others."""
        # Pretrainings first, and what waits for them last.
        ordered = sorted(jobs, key=lambda job: job.start is not None)
        distinct = {job.start.key: job.start for job in ordered if job.start} | {job.key: job for job in ordered}
        pool = ThreadPoolExecutor(len(self.members))
        try:
            for key, job in distinct.items():
                self._futures[key] = pool.submit(self._settle, job) if len(self.members) > 1 else self._settled(job)
            answers = {key: future.result() for key, future in self._futures.items()}
        except KeyboardInterrupt:
            self._stopped = True
            for member in self.members:
                member.interrupt()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for member in self.members:
                member.close()
        return Ended(
            {key: answer["run"] for key, answer in answers.items() if "run" in answer},
            {key: answer["failed"] for key, answer in answers.items() if "failed" in answer},
            any(answer.get("input") for answer in answers.values()),
        )

    def _settled(self, job: Job) -> Future[Answer]:
        future: Future[Answer] = Future()
        future.set_result(self._settle(job))
        return future

    def _settle(self, job: Job) -> Answer:
        found = self.shelf.done(job)
        answer = {"run": found} if found else self._work(job)
        self.on_share(job, 1.0)
        return answer

    def _work(self, job: Job) -> Answer:
        begun = job
        if job.start:
            # It was handed out before this one, so it is done or under way.
            start = self._futures[job.start.key].result()
            if "run" not in start:
                return {"failed": "the pretraining that it starts from failed", "input": start["input"]}
            begun = job.begun(self.shelf.weights(start["run"]))
        order = {"tree": begun.tree, "run": self.shelf.unfinished(begun), "out": str(self.shelf.folder)}
        if len(self.members) == 1:
            return carry_out(order, lambda share: self.on_share(job, share))
        member = self._idle.get()
        try:
            if self._stopped:
                return {"failed": "interrupted", "input": False}
            return member(order, lambda share: self.on_share(job, share))
        finally:
            self._idle.put(member)
