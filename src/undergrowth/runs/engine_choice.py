"""The engine `auto`, the default: serial, vector or processes, whichever should be fastest for the counted work.

The choice is a function of facts that are the same at every start: how many clients and rounds there are, the FLOPs and
tensor operations of a client's job, the cores, and whether clients can be stacked. Nothing is timed, so the same
experiment on the same machine always gets the same engine, and therefore the same last bits.
A note of the run names the engine and the reason. `docs/decisions/0020-auto-counts.md` says how the constants of this
module were found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from undergrowth.engines.vector.stack_size import clients_on_cpu

AUTO = "engine auto"  # begins the note about the choice

# Seconds on one core, with one thread.
CALL = 15e-6  # a tensor operation of one client
STACKED_CALL = 25e-6  # the same operation of a whole stack
FLOP = 14e-12
STACKED_CONVOLUTION = 4e-12  # added to a FLOP of a convolutional model in a stack
STACKED_RECURRENCE = 9e-12  # the same for a model with LSTM layers
FUSED_RECURRENCE = 1 / 30  # calls of an LSTM layer, which is one operation, for each that is counted: all of a loop
STACKED_LOOP = 1 / 6  # the same in a stack, where the layer is a loop with fewer operations than are counted
WEIGHT = 1e-9  # a step reads and writes each weight
STACKED_WEIGHT = 0.5e-9  # added to that in a stack, which does not fit into a core's cache
INPUT = 5e-9  # a step gathers each value of its batch
CLIENT = 0.2e-3  # start and end of a job
STACK = 0.5e-3  # start and end of a stack
WORKER_CLIENT = 0.15e-3  # a job is handed to a worker process and comes back
WORKER_ROUND = 3e-3  # a round is handed to the worker processes
WORKER_WEIGHT = 2e-9  # each weight is copied to shared memory once a round
WORKER_START = 0.1  # worker processes are forked

MAX_SERIAL_SECONDS = 1.0  # a run that should take less stays serial: other engines could save little


@dataclass(frozen=True)
class Facts:
    """What the choice depends on. `steps`, `calls`, `flops` and `inputs` are those of a client of median size."""

    clients: int  # in a round
    rounds: int
    steps: int
    calls: int  # tensor operations in all steps of a job
    flops: float  # of a job
    inputs: int  # values in a batch of samples
    weights: int  # values in the model
    cores: int
    gpu: bool = False  # the run is on a GPU
    stacks: bool = True  # many clients can be computed at once
    convolves: bool = False  # the model has convolutions
    recurrent: bool = False  # the model has LSTM layers
    forks: bool = True  # worker processes can be started

    @property
    def is_brief(self) -> bool:
        """Whether the run stays serial because other engines could save little."""
        return not self.gpu and self.rounds * self.clients * client_seconds(self) < MAX_SERIAL_SECONDS

    def __str__(self) -> str:
        return (
            f"{self.clients} devices a round for {self.rounds} rounds, {self.steps} steps with {self.calls} tensor "
            f"operations and {self.flops:.3g} FLOPs a job, {self.weights} weights, {self.cores} cores"
        )


@dataclass(frozen=True)
class Choice:
    """The chosen engine with its settings, and why."""

    settings: dict[str, Any]  # of the section `run`
    reason: str


def choose_engine(facts: Facts) -> Choice:
    """The engine with the lowest estimate; among equal ones the plainest."""
    if facts.gpu:
        if facts.stacks:
            return Choice({"engine": "vector"}, "vector, because a GPU computes many jobs at once")
        return Choice({"engine": "serial"}, "serial, because the jobs of devices cannot be stacked on the GPU")
    if facts.is_brief:
        return Choice({"engine": "serial"}, f"serial, because there is little to compute: {facts}")
    serial, *others = candidates = estimates(facts)
    seconds, settings = min(candidates, key=lambda candidate: candidate[0])
    stacked = " of stacked jobs" if settings.get("stack") else ""
    if settings is serial[1]:
        why = "no other engine should be faster" if others else "no other engine can run this client"
    else:
        why = f"estimated {serial[0] / seconds:.2g} times as fast as serial"
    return Choice(settings, f"{settings['engine']}{stacked}, {why}: {facts}")


def estimates(facts: Facts) -> list[tuple[float, dict[str, Any]]]:
    """Seconds of all rounds on CPU cores and the settings of the engine, for every engine that is possible."""
    found: list[tuple[float, dict[str, Any]]] = []
    found.append((facts.rounds * facts.clients * client_seconds(facts), {"engine": "serial"}))
    if facts.stacks:
        seconds = facts.clients * client_seconds(facts, stack_size(facts, facts.clients))
        found.append((facts.rounds * seconds, {"engine": "vector"}))
    if facts.forks and facts.cores > 1:
        clients = -(-facts.clients // facts.cores)  # of the busiest worker
        overhead = WORKER_ROUND + WORKER_WEIGHT * facts.weights + WORKER_CLIENT * clients
        for stack in (False, True) if facts.stacks else (False,):
            seconds = overhead + clients * client_seconds(facts, stack_size(facts, clients) if stack else None)
            found.append((WORKER_START + facts.rounds * seconds, {"engine": "processes", "stack": stack}))
    return found


def client_seconds(facts: Facts, stack: int | None = None) -> float:
    """Seconds of one client's job, alone or in a stack of that many."""
    seconds = CLIENT + FLOP * facts.flops + facts.steps * (WEIGHT * facts.weights + INPUT * facts.inputs)
    if stack is None:
        return seconds + CALL * facts.calls * (FUSED_RECURRENCE if facts.recurrent else 1)
    seconds += STACKED_WEIGHT * facts.steps * facts.weights
    seconds += STACKED_CONVOLUTION * facts.flops if facts.convolves else 0.0
    seconds += STACKED_RECURRENCE * facts.flops if facts.recurrent else 0.0
    return seconds + (STACK + STACKED_CALL * facts.calls * (STACKED_LOOP if facts.recurrent else 1)) / stack


def stack_size(facts: Facts, clients: int) -> int:
    """How many of `clients` a stack on a CPU holds."""
    return min(clients, clients_on_cpu(4 * facts.weights))
