"""Ditto (Li et al. 2021): every device trains a personal model beside the federated one.

Down: w. A device trains twice, each time E epochs of SGD. First, from w, as in FedAvg; up: w_k and n_k.
Then its personal model v_k, which it keeps from round to round and never sends. This training minimises

    F_k(v_k) + (lam/2)·‖v_k − w‖²,

where w is the model that it received in this round. Server: w ← Σ p_k·w_k, p_k = n_k / Σ n, so the federated model is
that of FedAvg. With lam = 0, v_k is the model that the device would have trained alone; the larger lam, the nearer v_k
is to w. A device that is asked for the first time starts with v_k = w.

personal_epochs, personal_lr: epochs and learning rate of the personal model, by default those of the run. A lam at
which the steps of SGD would diverge, lam ≥ 2·(1 + momentum) / learning rate, is refused.

What is evaluated: a device uses v_k, and its accuracy is in `result.clients`. The run's accuracy is that of w.

    >>> import undergrowth as ug
    >>> result = ug.run(method="ditto", options={"lam": 0.1}, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from undergrowth.core import Context, InputError, LoopClient, Method, Packet, State, Task, Updates, Weights, option
from undergrowth.core.client import Carry, Loop
from undergrowth.core.names import MODEL, PROBLEM
from undergrowth.core.server import model_in
from undergrowth.learning import AveragingServer, GradientClient, Objective, Proximal, TaskLoss, Trained
from undergrowth.learning.kept_model import check_models, problem_tags

CENTRE = "centre/"  # prefix of names in `LossInputs.received`: the received model


@dataclass(frozen=True)
class PersonalClient(GradientClient):
    """Trains its own model towards the received one, and sends nothing. own: `model` is v_k."""

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        weights, centre = own.get(MODEL) or down.tensors, down.tensors
        # One order of names for all devices, also for those without a model yet.
        return {
            **{name: weights[name] for name in task.model.shapes},
            **{CENTRE + name: centre[name] for name in task.model.parameters},
        }

    def after_steps(self, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        return check_models(loops)

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        return Packet(tags=problem_tags(trained, "of the personal model, ")), {MODEL: dict(trained.tensors)}


@dataclass(frozen=True)
class DittoClient(Updates):
    options: Ditto

    def updates(self, task: Task, down: Packet) -> Mapping[str, LoopClient]:
        options = self.options
        objective: Objective = TaskLoss()
        if options.lam:
            objective = objective + Proximal(options.lam, CENTRE)
        personal = PersonalClient(objective, lr=options.personal_lr, epochs=options.personal_epochs)
        return {"federated": GradientClient(), "personal": personal}


@dataclass(frozen=True, kw_only=True)
class DittoServer(AveragingServer):
    options: Ditto

    def init(self, task: Task, context: Context) -> State:
        train, lam = task.train, self.options.lam
        lr = self.options.personal_lr or train.lr
        largest = 2 * (1 + train.momentum) / lr
        if train.optimiser == "sgd" and lam >= largest:
            raise InputError(
                f"method.lam {lam:g}: with a learning rate of {lr:g} the personal models would diverge; lam must be "
                f"below {largest:g}, or method.personal_lr smaller"
            )
        return super().init(task, context)

    def check(self, task: Task, up: Packet) -> str | None:
        return up.tags.get(PROBLEM) or super().check(task, up)


@dataclass(frozen=True)
class Ditto(Method):
    lam: float = option(0.1, "strength of the pull of the personal model towards the received one", at_least=0)
    personal_epochs: int | None = option(None, "epochs of the personal model a round; None: the run's", at_least=1)
    personal_lr: float | None = option(None, "learning rate of the personal model; None: the run's", above=0)

    keeps_model: ClassVar[bool] = True

    @property
    def client(self) -> DittoClient:
        return DittoClient(self)

    @property
    def server(self) -> DittoServer:
        return DittoServer(options=self)

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights:
        return own.get(MODEL) or model_in(state)
