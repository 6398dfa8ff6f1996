"""FedSplit (Shi, Sheffield thesis, §6.2): the server trains a new upper part on feature maps that devices select.

Down: w = {φ, θ}, split at `level`. A device computes the maps F = φ(x) of all its samples with the received φ; for
every class it reduces them to `components` principal components, finds `clusters` clusters by K-means, and keeps the
real map nearest to each centre (a class with no more samples than clusters keeps all of them). Then: E epochs of SGD
from w. Up: w_k, n_k, the kept maps and their labels.
Server: w ← Σ p_k·w_k, which is what devices get next; and a new θ_meta is trained from random weights on all kept maps
with cross-entropy. {θ_meta, φ} is evaluated, with the φ that made the maps: the one that the devices had received. The
average is evaluated beside it, under the name "average".

selector: kmeans; random: the same number of every class, at random; all: every map. The last two are the baselines of
the source's tables 6.2 and 6.3. meta_every: with n, devices send maps, and θ_meta is trained, in every n-th round and
in the last; other rounds are FedAvg's.

Departures: the source begins with the level low; here the default is up, at which selecting few maps costs least
accuracy and maps are smallest. θ_meta starts from new random weights in every round, where the source may mean the same
ones; also if the run starts from the weights of a file or of a phase `start` (a Hugging Face model keeps its own). The
source does not give the batch size of θ_meta: here it is the run's, with plain SGD.

    >>> import undergrowth as ug
    >>> options = {"level": "up", "clusters": 5, "meta_epochs": 10}
    >>> result = ug.run(method="fedsplit", options=options, clients=5, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from undergrowth.core import AllSelector, Context, Method, Packet, Plan, Shard, State, Task, View, Weights, option
from undergrowth.core.client import Carry, Steps
from undergrowth.core.compound_reducers import Collect, Named
from undergrowth.core.names import FINISH, MODEL, RECEIVED
from undergrowth.core.reducers import Reducer, WeightedMean
from undergrowth.learning import AveragingServer, FewShotSelector, GradientClient, TaskLoss, Trained, model_mismatch
from undergrowth.learning.clustering import representatives
from undergrowth.learning.distillation import train_on_server
from undergrowth.learning.features import UpperModel, features_of

PLAIN = "plain"  # tag of a packet: the device sends no maps


@dataclass(frozen=True, kw_only=True)
class FedSplitClient(GradientClient):
    """Sends the selected maps beside the model. Packets have the model under "model" in both directions."""

    options: FedSplit

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        return down.part("model").tensors

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        # The maps are selected here and not in `upload`, because `begin` is priced exactly for every number of samples.
        carry, steps = super().begin(task, down, shard, own, context)
        if PLAIN in down.tags:
            return carry, steps
        maps = features_of(task, carry[RECEIVED], shard.x, self.options.level)
        kept = self._select(task, maps, shard, context.generator("maps"))
        selected = {"maps": maps[kept.to(maps.device)], "labels": shard.y[kept.to(shard.y.device)]}
        return {**carry, FINISH: {**carry[FINISH], "maps": selected}}, steps

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        parts = {"model": Packet(trained.tensors), "maps": Packet(trained.finish.get("maps", {}))}
        return replace(Packet.join(parts), scalars=trained.scalars), trained.own

    def _select(self, task: Task, maps: Tensor, shard: Shard, generator: torch.Generator) -> Tensor:
        options = self.options
        if options.selector == "kmeans":
            count = options.clusters
            return representatives(maps, shard.y, lambda size: min(size, count), options.components, generator)
        selector = AllSelector() if options.selector == "all" else FewShotSelector(options.clusters)
        return selector.pick(task, {}, shard, generator)


@dataclass(frozen=True, kw_only=True)
class FedSplitServer(AveragingServer):
    """Averages models, and trains a new upper part on the maps.

    state: `model` is the average; `composed` has the new upper part.
    """

    options: FedSplit
    reducer: Reducer = Named({"model": WeightedMean(), "maps": Collect()})

    def init(self, task: Task, context: Context) -> State:
        if self.options.meta_batch is not None:
            task.model.check_batch("method.meta_batch", self.options.meta_batch, self.options.level)
        state = super().init(task, context)
        return {**state, "composed": state[MODEL]}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {MODEL: dict(down.part("model").tensors), PLAIN: PLAIN in down.tags}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        number = context.round + 1
        plain = state.get(PLAIN, number % self.options.meta_every > 0 and number != task.train.rounds)
        # With the same names as in the upload, so that a link can send differences between the two.
        down = Packet.join({"model": Packet(state[MODEL])})
        return self.ask(task, view, context, replace(down, tags={PLAIN: "1"}) if plain else down)

    def check(self, task: Task, up: Packet) -> str | None:
        return model_mismatch(task, up.part("model"))

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        after = super().step(task, state, combined.part("model"), context)
        sent = [part.tensors for _, part in sorted(combined.part("maps").parts().items()) if part.tensors]
        if not sent:
            return after
        options = self.options
        data = {"x": torch.cat([each["maps"] for each in sent]), "y": torch.cat([each["labels"] for each in sent])}
        above = replace(task, model=UpperModel(task.model, options.level))
        start = task.model.initial(context.key("upper part"), random=True)
        training = (options.meta_lr, options.meta_epochs, options.meta_batch or task.train.batch, options.level)
        trained = train_on_server(above, start, data, TaskLoss(), context, *training)
        upper = (*task.model.trainable(options.level), *task.model.upper_buffers(options.level))
        return {**after, "composed": {**state[MODEL], **{name: trained[name] for name in upper}}}


@dataclass(frozen=True)
class FedSplit(Method):
    level: str = option("up", "level of the model whose maps are sent")
    components: int = option(200, "principal components of the maps that are clustered", at_least=1)
    clusters: int = option(20, "maps of every class that are sent", at_least=1)
    selector: str = option("kmeans", "which maps are sent", choices=("kmeans", "random", "all"))
    meta_lr: float = option(0.1, "learning rate of the upper part at the server", above=0)
    meta_epochs: int = option(100, "epochs of the upper part at the server", at_least=1)
    meta_batch: int | None = option(None, "maps in a batch of the upper part; None: the run's", at_least=1)
    meta_every: int = option(1, "rounds from one training of the upper part to the next", at_least=1)

    @property
    def needs_classes(self) -> str:
        return "" if self.selector == "all" else "it selects maps of every class (method.selector=all does not)"

    @property
    def client(self) -> FedSplitClient:
        return FedSplitClient(options=self)

    @property
    def server(self) -> FedSplitServer:
        return FedSplitServer(options=self)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights]:
        return {"global": state["composed"], "average": state[MODEL]}

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights:
        weights: Weights = state["composed"]
        return weights
