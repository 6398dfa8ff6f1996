"""Training between rounds: a device trains the model that it keeps, on the samples that it holds, and sends nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from undergrowth.core import Carry, LoopClient, Packet, Server, State, Sum, Task, Updates, Weights
from undergrowth.core.client import Loop
from undergrowth.core.names import MODEL, PROBLEM
from undergrowth.learning.gradient_client import GradientClient, Trained
from undergrowth.learning.kept_model import check_models, problem_tags

BETWEEN_ROUNDS = "between rounds"  # tag of the packet that starts it; also the name of the node that checks it
START = Packet(tags={BETWEEN_ROUNDS: "yes"})


@dataclass(frozen=True)
class OwnModelClient(GradientClient):
    """Trains the device's own model. own: `model` has its weights; everything else stays as it is."""

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        kept: Weights = own[MODEL]
        return kept

    def after_steps(self, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        return check_models(loops)

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        tags = problem_tags(trained, "of the device's own model, ")
        return Packet(tags=tags), {**trained.own, MODEL: {**trained.own[MODEL], **trained.tensors}}


@dataclass(frozen=True)
class OwnTrainingClient(Updates):
    """The client of a method whose devices also train between rounds, for `epochs` epochs."""

    client: LoopClient | Updates
    epochs: int

    def updates(self, task: Task, down: Packet) -> Mapping[str, LoopClient]:
        if BETWEEN_ROUNDS in down.tags:
            return {BETWEEN_ROUNDS: OwnModelClient(epochs=self.epochs)}
        return {"": self.client} if isinstance(self.client, LoopClient) else self.client.updates(task, down)


@dataclass(frozen=True)
class OwnTrainingServer(Server):
    """Stands for no node: it only says why a model that was trained between rounds cannot be kept."""

    reducer = Sum()

    def check(self, task: Task, up: Packet) -> str | None:
        return up.tags.get(PROBLEM)
