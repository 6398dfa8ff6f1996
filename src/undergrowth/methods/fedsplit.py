"""FedSplit (Shi, Sheffield thesis, §6.2): the server trains the upper part anew, on feature maps that devices choose.

Down: w = {φ, θ}, split at `level`. A device makes the maps F = φ(x) of all its samples with the received φ; of every
class it reduces them to `components` principal components, finds `clusters` clusters by K-means, and keeps the real map
nearest to each centre (a class with no more samples than clusters keeps all of them). Then: E epochs of SGD from w.
Up: w_k, n_k, the kept maps and their labels.
Server: w ← Σ p_k·w_k, which is what devices get next; and a fresh θ_meta is trained from scratch on all kept maps
with cross-entropy. What is evaluated is {θ_meta, φ} with the φ that made the maps: that which the devices had received.
The average is evaluated beside it, under the name "average".

selector: kmeans; random: as many of every class, at random; all: every map. The last two are what the source's
tables 6.2 and 6.3 compare with. meta_every: with n, devices are asked for maps, and θ_meta is trained, in every n-th
round and in the last; other rounds are FedAvg's.

Departures: the source begins with the level low; here the default is up, at which choosing few maps costs it least, and
maps are smallest. θ_meta starts from other random weights in every round, where the source may mean the same ones. It
does not say in which batches θ_meta is trained: here those of the run, and with plain SGD.

    >>> import undergrowth as ug
    >>> options = {"level": "up", "clusters": 5, "meta_epochs": 10}
    >>> result = ug.run(method="fedsplit", options=options, clients=5, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from undergrowth.core import (
    All,
    Collect,
    Context,
    Method,
    Named,
    Packet,
    Plan,
    Reducer,
    Shard,
    State,
    Task,
    View,
    WeightedMean,
    Weights,
    option,
)  # fmt: skip
from undergrowth.learning import PLAIN, Averaging, GradientClient, MapClient, Sgd, UpperPart, unlike_model


@dataclass(frozen=True)
class Composing(Averaging):
    """Averages models, and trains an upper part of its own on the maps that come along."""

    reducer: Reducer = Named({"model": WeightedMean(), "maps": Collect()})
    level: str = "up"
    upper: GradientClient = GradientClient()
    every: int = 1

    def init(self, task: Task, context: Context) -> State:
        state = super().init(task, context)
        return {**state, "composed": state["model"]}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {"model": dict(down.part("model").tensors), PLAIN: PLAIN in down.tags}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        number = context.round + 1
        plain = state.get(PLAIN, number % self.every > 0 and number != task.train.rounds)
        # By the names that the upload has: a link sends only what changed of a tensor that both ends know.
        down = Packet.join({"model": Packet(state["model"])})
        return self.ask(task, view, context, replace(down, tags={PLAIN: "1"}) if plain else down)

    def check(self, task: Task, up: Packet) -> str | None:
        return unlike_model(task, up.part("model"))

    def step(self, task: Task, state: State, total: Packet, context: Context) -> State:
        after = super().step(task, state, total.part("model"), context)
        sent = [part.tensors for _, part in sorted(total.part("maps").parts().items()) if part.tensors]
        if not sent:
            return after
        maps, labels = (torch.cat([each[name] for each in sent]) for name in ("maps", "labels"))
        fresh = Packet(task.model.initial(context.key("upper part")))
        above = replace(task, model=UpperPart(task.model, self.level))
        trained, _ = self.upper.local(above, fresh, Shard(maps, labels), {}, context)
        return {**after, "composed": {**state["model"], **trained.tensors}}


@dataclass(frozen=True)
class FedSplit(Method):
    level: str = option("up", "level of the model whose maps are sent")
    components: int = option(200, "principal components of the maps that are clustered", at_least=1)
    clusters: int = option(20, "maps that are kept of every class", at_least=1)
    selector: str = option("kmeans", "which maps are kept", choices=("kmeans", "random", "all"))
    meta_lr: float = option(0.1, "learning rate of the upper part at the server", above=0)
    meta_epochs: int = option(100, "epochs of the upper part at the server", at_least=1)
    meta_batch: int | None = option(None, "maps in a batch of it; None: the run's", at_least=1)
    meta_every: int = option(1, "rounds from one training of it to the next", at_least=1)

    @property
    def client(self) -> MapClient:  # type: ignore[override]
        level, count = self.level, self.clusters
        return MapClient(level=level, components=self.components, clusters=count, selection=self.selector)

    @property
    def server(self) -> Composing:  # type: ignore[override]
        whole = GradientClient(lr=self.meta_lr, epochs=self.meta_epochs, batch=self.meta_batch)
        upper = replace(whole, split=self.level, selector=All(), optimiser=Sgd())
        return Composing(level=self.level, upper=upper, every=self.meta_every)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights]:
        return {"global": state["composed"], "average": state["model"]}

    def personal(self, task: Task, state: State, own: State) -> Weights:
        weights: Weights = state["composed"]
        return weights
