"""FedMD (Li and Wang 2019; with a global model: Shi, Sheffield thesis, §5.6): devices agree on logits of public data.

Down: the consensus of the last round, and two numbers from which a device draws the same public samples as the
server: those that the consensus is about, and those of this round. A device keeps its model w_k, which may be of any
size (`model.ladder`). It digests: `digest_epochs` of learning the consensus, KD; then it trains E epochs on its own
data. Up: its logits on this round's `samples` public samples. Server: consensus z = (1/K)·Σ z_k; a global model learns
KD(z). KD is, as `loss` says, the mean of |z − t|, of (z − t)², or −Σ softmax(t)·log softmax(z).

The public data is `public: 0.1`; nobody reads its labels. Devices are taken to have it: getting it is in no price.
Evaluated are the global model and, as "accuracy/devices", the mean of the devices' models.

pretrain_epochs: in the first round every device trains so long on its own data, without a deadline (the source: until
it stops improving). A device that is first reached later goes without. Departures: the source first trains devices on
labelled public data too. Digesting has the run's optimiser, rate and batches.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedmd", options={"pretrain_epochs": 5}, public=0.1, clients=4, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

from undergrowth.core import Context, Each, Fitted, Method, Packet, Plan, Server, State, Task, View, Weights, option
from undergrowth.core.reducers import WeightedMean
from undergrowth.learning.digestion import CONSENSUS, DIGESTED, DRAW, SEED, Digesting, Digestion
from undergrowth.learning.distillation import LOSSES, TEACHER, Distillation, draw_of, draw_seed, taught
from undergrowth.learning.ladder import MODEL, ask_each, check_alike, fitted, generic_data, rungs_of


@dataclass(frozen=True)
class Agreeing(Server):
    """Sends the consensus of the last round, makes the next one, and teaches it to a global model.

    state: `known` is what all are sent; `epochs` those of the first round, and then 0.
    """

    pretrain_epochs: int = 0
    loss: str = "l1"
    samples: int = 5000
    lr: float = 0.1
    epochs: int = 5
    batch: int = 64
    reducer = WeightedMean(None)

    def init(self, task: Task, context: Context) -> State:
        check_alike(task, generic_data(task, "fedmd").x, ())
        known = Packet(scalars={SEED: float(context.key("device models") >> 15)})  # 48 bits: exact as a float
        return {**super().init(task, context), "known": known, "epochs": self.pretrain_epochs}

    def steady_state(self, task: Task, state: State) -> State:
        known, public = state["known"], generic_data(task, "fedmd")
        if CONSENSUS not in known.tensors:
            one = task.model(task.model.initial(0), public.x[:1]).detach()
            consensus = one.new_zeros(min(self.samples, len(public)), one.shape[1])
            known = Packet({CONSENSUS: consensus}, {**known.scalars, DIGESTED: 0.0})
        return {**state, "known": known, "epochs": 0}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        numbers = {name: down.scalars[name] for name in (SEED, DIGESTED) if name in down.scalars}
        known = Packet(down.tensors, numbers)
        return {"known": known, DRAW: down.scalars[DRAW], "epochs": int(down.scalars.get("epochs", 0))}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        def packet(state: State) -> Packet:
            numbers = {DRAW: state.get(DRAW, draw_seed(context)), **state["known"].scalars}
            epochs = {"epochs": float(state["epochs"])} if state["epochs"] else {}
            return replace(state["known"], scalars={**numbers, **epochs})

        whole, later = packet(state), packet(self.steady_state(task, state))
        asking = cache(lambda name: replace(whole, tags={MODEL: name}))
        chosen = rungs_of(task, view, cache(lambda name: replace(later, tags={MODEL: name})))
        packets = {device: asking(name) for device, name in chosen.items()}
        packets.update(dict.fromkeys(view.nodes, whole))
        return ask_each(self, task, view, context, packets, everybody=state["epochs"] > 0)

    def check(self, task: Task, up: Packet) -> str | None:
        count = min(self.samples, len(generic_data(task, "fedmd")))
        if up.tensors.keys() != {"logits"} or up.tensors["logits"].shape[0] != count:
            return f"it must be the logits of {count} public samples"
        return None

    def step(self, task: Task, state: State, total: Packet, context: Context) -> State:
        public, draw, logits = generic_data(task, "fedmd"), draw_seed(context), total.tensors["logits"]
        some = public.take(draw_of(public, self.samples, draw))
        data, objective = {"x": some.x, "y": some.y, TEACHER: logits}, Distillation(self.loss)
        model = taught(task, state["model"], data, objective, context, lr=self.lr, epochs=self.epochs, batch=self.batch)
        known = Packet({CONSENSUS: logits}, {SEED: state["known"].scalars[SEED], DIGESTED: draw})
        return {**state, "model": model, "known": known, "epochs": 0}


@dataclass(frozen=True)
class FedMD(Method):
    needs_public: ClassVar[bool] = True

    loss: str = option("l1", "distance of logits from the consensus", choices=LOSSES)
    samples: int = option(5000, "public samples that are drawn for a round", at_least=1)
    digest_epochs: int = option(1, "epochs in which a device learns the consensus", at_least=1)
    server_lr: float = option(0.1, "learning rate of the global model", above=0)
    server_epochs: int = option(5, "epochs of the global model", at_least=1)
    server_batch: int = option(64, "samples in a batch of it", at_least=1)
    pretrain_epochs: int = option(20, "epochs of every device in the first round; 0: the run's", at_least=0)

    @property
    def client(self) -> Digesting:  # type: ignore[override]
        return Digesting(Digestion(self.loss), samples=self.samples, digest_epochs=self.digest_epochs)

    @property
    def server(self) -> Agreeing:  # type: ignore[override]
        training = (self.server_lr, self.server_epochs, self.server_batch)
        return Agreeing(self.pretrain_epochs, self.loss, self.samples, *training)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights | Fitted]:
        def read(name: str) -> Weights | Fitted:
            if name == "global":
                weights: Weights = state["model"]
                return weights
            kept = own[names[name]]
            return fitted(task, kept[MODEL], kept["weights"])

        names = {"global": "", **{f"devices/{device}": device for device in own}}
        return Each(names, read)
