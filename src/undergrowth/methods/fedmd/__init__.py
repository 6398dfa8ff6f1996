"""FedMD (Li and Wang 2019; with a global model: Shi, Sheffield thesis, §5.6): devices share logits of public data.

Down: the consensus of the last round, and two seeds from which a device draws the same public samples as the server:
those of the consensus, and those of this round. A device keeps its model w_k, which may be of any size
(`model.ladder`). It learns the consensus for `digest_epochs`, KD, then trains E epochs on its own data. Up: its logits
on this round's `samples` public samples. Server: consensus z = (1/K)·Σ z_k over the K devices that trained on
their own data (BatchNorm cannot on a single sample); a global model learns KD(z).
KD is, as `loss` says, the mean of |z − t|, of (z − t)², or −Σ softmax(t)·log softmax(z). For a regression it is the
mean of (z − t)², whatever `loss` says.
With l1, as in the sources, logits grow from round to round, and after many rounds the accuracy falls. They do not grow
with `statistics: batch`, where BatchNorm normalises public samples by their own statistics instead of those of the
device's data, and hardly with ce (docs/decisions/0065).

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

from undergrowth.core import Context, LazyMapping, Packet, Regression, State, Task, View, Weights
from undergrowth.core.method import Method, ModelWeights
from undergrowth.core.names import EPOCHS, MODEL, MODEL_NAME, SEED, TEACHER, X, Y
from undergrowth.core.options import option
from undergrowth.core.reducers import WeightedMean
from undergrowth.core.server import Plan, Server
from undergrowth.learning import Distillation, train_on_server
from undergrowth.learning.distillation import LOSSES, check_same_shapes, draw_public, draw_seed, public_data
from undergrowth.learning.ladder import assign_models, fit
from undergrowth.learning.planning import ask_each
from undergrowth.learning.servers import has_no_samples
from undergrowth.methods.fedmd.client import BATCH, CONSENSUS, DIGESTED, DRAW, KEPT, RUNNING, Digestion, FedMDClient

EVALUATED = ("trained", "digested")


@dataclass(frozen=True)
class FedMDServer(Server):
    """Sends the consensus of the last round, computes the next one, and trains the global model on it.

    state: `known` is the packet for all devices; `epochs` those of the first round, and then 0.
    """

    options: FedMD
    reducer = WeightedMean(None, only_trained=True)

    def init(self, task: Task, context: Context) -> State:
        check_same_shapes(task, public_data(task, "fedmd").x, ())
        task.model.check_batch("method.server_batch", self.options.server_batch)
        if self.options.digest_batch is not None:  # that of the run is checked when a device begins
            for each in task.ladder.values() or [task.model]:
                each.check_batch("method.digest_batch", self.options.digest_batch)
        if self.options.statistics == BATCH:
            for each in task.ladder.values() or [task.model]:
                each.check_batch("public samples", min(self.options.samples, len(public_data(task, "fedmd"))))
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
        if has_no_samples(combined):
            return {**state, EPOCHS: 0}
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
    statistics: str = option(
        RUNNING, "BatchNorm's statistics in the logits that devices send", choices=(RUNNING, BATCH)
    )
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


__all__ = ["FedMD"]
