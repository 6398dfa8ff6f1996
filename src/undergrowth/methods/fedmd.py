"""FedMD (Li and Wang 2019; with a global model: Shi, Sheffield thesis, §5.6): devices share logits of public data.

Down: the consensus of the last round, and two seeds from which a device draws the same public samples as the server:
those of the consensus, and those of this round. A device keeps its model w_k, which may be of any size
(`model.ladder`). It learns the consensus for `digest_epochs`, KD, then trains E epochs on its own data. Up: its logits
on this round's `samples` public samples. Server: consensus z = (1/K)·Σ z_k; a global model learns KD(z).
KD is, as `loss` says, the mean of |z − t|, of (z − t)², or −Σ softmax(t)·log softmax(z). For a regression it is the
mean of (z − t)², whatever `loss` says.
With l1, as in the sources, logits grow from round to round, and after many rounds the accuracy falls; with ce models
do not learn their size (docs/decisions/0065).

The public data is `public: 0.1`; its labels are not used. Devices are assumed to have it: sending it is in no price.
The global model is evaluated and, as "accuracy/devices", the mean of the devices' models: after local training, as in
the program of Li and Wang, or with `evaluated: digested` as they were between the consensus and local training.

pretrain_epochs: in the first round every device trains that long on its own data, without a deadline (in the source
until it stops improving). A device that is first reached later does not pretrain. Departures: the source first trains
devices on labelled public data too. Learning the consensus uses the run's optimiser and learning rate.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedmd", options={"pretrain_epochs": 5}, public=0.1, clients=4, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from undergrowth.core import AllSelector, Context, LazyMapping, Packet, Regression, Shard, State, Task, View, Weights
from undergrowth.core.client import Batch, Carry, Steps
from undergrowth.core.method import Method, ModelWeights
from undergrowth.core.names import AUGMENT, BUFFERS, EPOCHS, MODEL, MODEL_NAME, PARAMETERS, SEED, TEACHER, WEIGHT, X, Y
from undergrowth.core.options import option
from undergrowth.core.reducers import WeightedMean
from undergrowth.core.server import Plan, Server
from undergrowth.learning import Distillation, GradientClient, LossInputs, Objective, TaskLoss, Trained, train_on_server
from undergrowth.learning.distillation import (
    LOSSES,
    check_same_shapes,
    draw_public,
    draw_seed,
    logit_distances,
    public_data,
)
from undergrowth.learning.gradient_client import shuffled_steps, without_small_batches
from undergrowth.learning.ladder import assign_models, fit
from undergrowth.learning.planning import ask_each

CONSENSUS = "consensus"  # tensor of a packet
DIGESTED, DRAW = "digested", "draw"  # scalars: seeds of the public samples of the consensus, and of this round
PUBLIC = "public"  # entry of a batch: whether a sample is public
EVALUATED = ("trained", "digested")
KEPT = "kept"  # entry of a carry and of a device's state: its model after learning the consensus


@dataclass(frozen=True)
class Digestion(Objective):
    """The distance from the consensus for public samples, and the task's loss for the device's own."""

    loss: str = "l1"

    def __call__(self, inputs: LossInputs) -> Tensor:
        logits, batch = inputs.output.logits, inputs.batch
        kind, labels = inputs.task.kind, batch[Y]
        if TEACHER not in batch:
            return TaskLoss()(inputs)
        public = batch[PUBLIC]
        # The labels of public samples may be hidden, and a NaN would reach the gradient.
        values, counts = kind.losses(logits, labels.where(~public.view(-1, *[1] * (labels.dim() - 1)), 0))
        distances = logit_distances(self.loss, logits, batch[TEACHER], kind)
        both = inputs.mean(torch.where(public, distances, values))
        return both if counts is None else both / inputs.mean(counts.masked_fill(public, 1)).clamp_min(1e-9)


@dataclass(frozen=True, kw_only=True)
class FedMDClient(GradientClient):
    """Learns the consensus, trains on its own samples, and sends its logits on this round's public samples."""

    options: FedMD

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        if own.get("model") == down.tags[MODEL_NAME]:
            kept: Weights = own["weights"]
            return kept
        return task.model.initial(int(down.scalars[SEED]))

    def batches(self, task: Task, down: Packet, steps: Steps, shard: Shard, own: State, context: Context) -> Steps:
        teacher = down.tensors.get(CONSENSUS)
        if teacher is None:
            return steps
        public, drawn = self._draw(task, down.scalars[DIGESTED])
        count = len(drawn)
        # Public and own samples in one data set; each epoch, and so each batch, has samples of one kind only.
        data = {X: _concatenate(public.x, drawn, shard.x), Y: _concatenate(public.y, drawn, shard.y)}
        data[TEACHER] = torch.cat([teacher, teacher.new_zeros(len(shard), *teacher.shape[1:])])
        data[PUBLIC] = torch.arange(count + len(shard), device=shard.x.device) < count
        shown, generator = Shard(data[X][:count], data[Y][:count]), context.generator("digest")
        size, epochs = self.options.digest_batch or steps.batch, self.options.digest_epochs
        digesting = shuffled_steps(task, {}, shown, AllSelector(), epochs, size, generator)
        digesting = without_small_batches(digesting, task.model.smallest_batch(), task.train.drop_last)
        first, then = (_with_batch(each, max(size, steps.batch)) for each in (digesting, steps))
        visits = dict(then.visits)
        if task.augmentation is not None:  # the consensus is about the public samples as they are
            visits[AUGMENT] = (*(task.augmentation.keep(len(order)) for order in first.epochs), *visits[AUGMENT])
        return Steps(data, (*first.epochs, *(order + count for order in then.epochs)), then.batch, visits)

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        if self.options.evaluated == "digested" and CONSENSUS in down.tensors:
            carry[KEPT] = {**carry[PARAMETERS], **carry[BUFFERS]}
        return carry, steps

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        after = super().step(task, carry, batch)
        if KEPT not in carry:
            return after
        public = batch[PUBLIC]
        if WEIGHT in batch:  # of several clients; the samples of one that has finished have no weight
            clients = len(next(iter(carry[PARAMETERS].values())))
            digesting = (public & (batch[WEIGHT] > 0)).view(clients, -1).any(1)
        else:
            digesting = public.any()

        def choose(now: Tensor, before: Tensor) -> Tensor:  # without a branch: a GPU records one step for both kinds
            return torch.where(digesting.view((*digesting.shape, *[1] * (now.dim() - digesting.dim()))), now, before)

        weights = {**after[PARAMETERS], **after[BUFFERS]}
        return {**after, KEPT: {name: choose(value, carry[KEPT][name]) for name, value in weights.items()}}

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        packet, after = super().finish(task, down, carry, shard, own, context)
        return packet, {**after, KEPT: dict(carry[KEPT])} if KEPT in carry else after

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        task, weights = trained.task, dict(trained.tensors)
        public, drawn = self._draw(task, trained.down.scalars[DRAW])
        with torch.no_grad():
            # In batches of the training size, so that a device that can train has enough memory for this too.
            logits = torch.cat([task.model(weights, public.x[rows]) for rows in drawn.split(task.train.batch)])
        own = {"model": trained.down.tags[MODEL_NAME], "weights": weights}
        return Packet({"logits": logits}, trained.scalars), own

    def _draw(self, task: Task, seed: float) -> tuple[Shard, Tensor]:
        public = public_data(task, "fedmd")
        return public, draw_public(public, self.options.samples, seed).to(public.x.device)


def _with_batch(steps: Steps, batch: int) -> Steps:
    """The same batches where the batch size is `batch`: if they are smaller, every batch becomes an epoch."""
    if steps.batch == batch:
        return steps

    def split(values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(part for each in values for part in each.split(steps.batch))

    visits = {name: split(values) for name, values in steps.visits.items()}
    return replace(steps, epochs=split(steps.epochs), batch=batch, visits=visits)


def _concatenate(public: Tensor, drawn: Tensor, own: Tensor) -> Tensor:
    """The drawn public samples followed by the device's own, without a temporary copy of the former."""
    both = own.new_empty(len(drawn) + len(own), *own.shape[1:])
    torch.index_select(public, 0, drawn, out=both[: len(drawn)])
    both[len(drawn) :].copy_(own)
    return both


@dataclass(frozen=True)
class FedMDServer(Server):
    """Sends the consensus of the last round, computes the next one, and trains the global model on it.

    state: `known` is the packet for all devices; `epochs` those of the first round, and then 0.
    """

    options: FedMD
    reducer = WeightedMean(None)

    def init(self, task: Task, context: Context) -> State:
        check_same_shapes(task, public_data(task, "fedmd").x, ())
        task.model.check_batch("method.server_batch", self.options.server_batch)
        if self.options.digest_batch is not None:  # that of the run is checked when a device begins
            for each in task.ladder.values() or [task.model]:
                each.check_batch("method.digest_batch", self.options.digest_batch)
        known = Packet(scalars={SEED: context.float_key("device models")})
        return {**super().init(task, context), "known": known, EPOCHS: self.options.pretrain_epochs}

    def steady_state(self, task: Task, state: State) -> State:
        known, public = state["known"], public_data(task, "fedmd")
        if CONSENSUS not in known.tensors:
            one = task.model(task.model.initial(0), public.x[:1]).detach()
            consensus = one.new_zeros(min(self.options.samples, len(public)), *one.shape[1:])
            known = Packet({CONSENSUS: consensus}, {**known.scalars, DIGESTED: 0.0})
        return {**state, "known": known, EPOCHS: 0}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        seeds = {name: down.scalars[name] for name in (SEED, DIGESTED) if name in down.scalars}
        known = Packet(down.tensors, seeds)
        return {"known": known, DRAW: down.scalars[DRAW], EPOCHS: int(down.scalars.get(EPOCHS, 0))}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        def packet(state: State) -> Packet:
            seeds = {DRAW: state.get(DRAW, draw_seed(context)), **state["known"].scalars}
            epochs = {EPOCHS: float(state[EPOCHS])} if state[EPOCHS] else {}
            return Packet(state["known"].tensors, {**seeds, **epochs})

        first, later = packet(state), packet(self.steady_state(task, state))
        named = cache(lambda name: replace(first, tags={MODEL_NAME: name}))
        assigned = assign_models(task, view, cache(lambda name: replace(later, tags={MODEL_NAME: name})))
        packets = {device: named(name) for device, name in assigned.items()}
        packets.update(dict.fromkeys(view.nodes, first))
        return ask_each(self, task, view, context, packets, everybody=state[EPOCHS] > 0)

    def check(self, task: Task, up: Packet) -> str | None:
        count = min(self.options.samples, len(public_data(task, "fedmd")))
        if up.tensors.keys() != {"logits"} or up.tensors["logits"].shape[0] != count:
            return f"it must be the logits of {count} public samples"
        return None

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        options, public, seed = self.options, public_data(task, "fedmd"), draw_seed(context)
        logits = combined.tensors["logits"]
        drawn = public.take(draw_public(public, options.samples, seed))
        data = {X: drawn.x, Y: drawn.y, TEACHER: logits}
        training = (options.server_lr, options.server_epochs, options.server_batch)
        model = train_on_server(task, state[MODEL], data, Distillation(options.loss), context, *training)
        known = Packet({CONSENSUS: logits}, {SEED: state["known"].scalars[SEED], DIGESTED: seed})
        return {**state, MODEL: model, "known": known, EPOCHS: 0}


@dataclass(frozen=True)
class FedMD(Method):
    needs_public: ClassVar[bool] = True

    loss: str = option("l1", "distance of logits from the consensus", choices=LOSSES)
    samples: int = option(5000, "public samples that are drawn for a round", at_least=1)
    digest_epochs: int = option(1, "epochs in which a device learns the consensus", at_least=1)
    digest_batch: int | None = option(None, "samples in a batch of these epochs; None: the run's", at_least=1)
    server_lr: float = option(0.1, "learning rate of the global model", above=0)
    server_epochs: int = option(5, "epochs of the global model", at_least=1)
    server_batch: int = option(64, "samples in a batch of the global model", at_least=1)
    pretrain_epochs: int = option(20, "epochs of every device in the first round; 0: the run's", at_least=0)
    evaluated: str = option("trained", "devices' models: after local training, or before it", choices=EVALUATED)

    @property
    def client(self) -> FedMDClient:
        return FedMDClient(Digestion(self.loss), options=self)

    @property
    def server(self) -> FedMDServer:
        return FedMDServer(self)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights | ModelWeights]:
        def read(name: str) -> Weights | ModelWeights:
            if name == "global":
                weights: Weights = state[MODEL]
                return weights
            kept = own[names[name]]
            return fit(task, kept["model"], kept[KEPT] if KEPT in kept else kept["weights"])

        names = {"global": "", **{f"devices/{device}": device for device in own}}
        return LazyMapping(names, read)

    def notes(self, task: Task) -> Sequence[str]:
        unused = isinstance(task.kind, Regression) and self.loss != "l2"
        return ["fedmd: outputs of a regression are compared by l2; method.loss has no effect"] if unused else []
