"""L2GD (Hanzely and Richtárik 2020): at random, devices train alone or move towards their mean.

Every device k keeps a model x_k. With x̄ the mean of all x_k, the objective is

    (1/n)·Σ F_k(x_k) + (lam/(2n))·Σ ‖x_k − x̄‖².

In every step one coin for all devices decides: with probability p, x_k ← x_k − θ·(x_k − x̄), and otherwise
x_k ← x_k − lr·∇F_k(x_k). With the step size α of the paper, lr = α/(n·(1 − p)) and θ = α·lam/(n·p), which is
lr·lam·(1 − p)/p. Steps towards the mean do not change the mean, so devices communicate only before the first of several
such steps. Hence one round is: down x̄; a device does a random number m of steps towards x̄, which is
x_k ← x̄ + (1 − θ)^m·(x_k − x̄), then a random number of training steps; up x_k. Both numbers are at least 1 and follow
the geometric distribution of the coin; the server draws them and sends them along. The larger lam, the more equal are
the models. `train.epochs` is not used. A device that is asked for the first time starts with x_k = x̄.

What is evaluated: a device uses x_k, and its accuracy is in `result.clients`. The run's accuracy is that of x̄.

Departures: a training step is one of SGD on a batch, where the paper has the gradient over all samples. If only some
devices take part in a round, x̄ is the mean of those. A θ above 1 is refused. BatchNorm statistics move like parameters.
`plan` prices a round with 1/p training steps. With a top-k uplink set links.feedback: false. What a codec leaves out is
still in x_k and is sent with it again in the next round; error feedback would send it twice.

    >>> import undergrowth as ug
    >>> result = ug.run(method="l2gd", options={"lam": 0.5, "p": 0.2}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from undergrowth.core import (
    AllSelector,
    Carry,
    Context,
    InputError,
    Method,
    Packet,
    Plan,
    Shard,
    State,
    Steps,
    Task,
    View,
    WeightedMean,
    Weights,
    model_in,
    option,
)
from undergrowth.core.names import EPOCHS, MODEL
from undergrowth.learning import AveragingServer, GradientClient, Trained, learning_rate

STEPS = "steps"  # scalar of downloads: number of training steps
PULL = "pull"  # scalar of downloads: 1 − (1 − θ)^m, the fraction of the way to the mean that a device moves


@dataclass(frozen=True)
class L2GDClient(GradientClient):
    """Moves its own model towards the received mean, trains it and sends it. own: `model` is x_k."""

    @property
    def ignored_settings(self) -> frozenset[str]:
        return super().ignored_settings | {"train.epochs"}

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        kept, pull = own.get(MODEL), down.scalars[PULL]
        if kept is None:
            return down.tensors
        return {
            name: torch.lerp(kept[name], mean, pull) if mean.is_floating_point() else kept[name]
            for name, mean in down.tensors.items()
        }

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        count = int(down.scalars[STEPS])
        # Enough epochs for all steps: a selector may leave as little as one batch in an epoch.
        batches = max(1, len(shard) // task.train.batch) if isinstance(task.selector, AllSelector) else 1
        down = replace(down, scalars={**down.scalars, EPOCHS: float(-(-count // batches))})
        carry, steps = super().begin(task, down, shard, own, context)
        return carry, first_steps(steps, count)

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        return trained.packet, {MODEL: dict(trained.tensors)}


@dataclass(frozen=True, kw_only=True)
class L2GDServer(AveragingServer):
    """Averages with equal weights. state: below the root, `steps` and `pull` are those of the parent."""

    options: L2GD

    def init(self, task: Task, context: Context) -> State:
        p, lam, lr = self.options.p, self.options.lam, task.train.lr
        if lr * lam * (1 - p) / p > 1:
            raise InputError(
                f"method.lam {lam:g}: with p {p:g} and a learning rate of {lr:g}, a step towards the mean would go "
                f"beyond it; lam must be at most {p / (lr * (1 - p)):g}"
            )
        return super().init(task, context)

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {MODEL: dict(down.tensors), STEPS: down.scalars[STEPS], PULL: down.scalars[PULL]}

    def steady_state(self, task: Task, state: State) -> State:
        return {**state, STEPS: float(round(1 / self.options.p)), PULL: 0.5}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        if STEPS in state:
            steps, pull = state[STEPS], state[PULL]
        else:
            p = self.options.p
            steps, moves = draw_counts(p, context)
            theta = learning_rate(task.train, context.round) * self.options.lam * (1 - p) / p
            pull = 1 - (1 - theta) ** moves
        return self.ask(task, view, context, Packet(state[MODEL], {STEPS: steps, PULL: pull}))


@dataclass(frozen=True)
class L2GD(Method):
    lam: float = option(0.5, "strength of the pull of the devices' models towards their mean", at_least=0)
    p: float = option(
        0.1, "probability of a step towards the mean; 1/p training steps a round on average", above=0, below=1
    )

    client = L2GDClient()
    keeps_model: ClassVar[bool] = True

    @property
    def server(self) -> L2GDServer:
        return L2GDServer(reducer=WeightedMean(None), options=self)

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights:
        return own.get(MODEL) or model_in(state)


def draw_counts(p: float, context: Context) -> tuple[float, float]:
    """The numbers of training steps and of steps towards the mean in a round.

    A run of tails of the coin and the run of heads after it, each at least 1.
    """
    generator = context.generator("coins")
    tails, heads = (torch.empty((), dtype=torch.float64).geometric_(q, generator=generator) for q in (p, 1 - p))
    return float(tails), float(heads)


def first_steps(steps: Steps, count: int) -> Steps:
    lengths: list[int] = []
    for order in steps.epochs:
        lengths.append(min(len(order), count * steps.batch))
        count -= -(-lengths[-1] // steps.batch)
        if count <= 0:
            break
    return steps.cut(lengths)
