"""SLoRA (Babakniya et al. 2023; Bernier, Concordia thesis, §4.2): sparse tuning first, then LoRA from its result.

Stage 1, the first `stage1_share` of the rounds: the weights W of the layers that will have adapters change at a random
`density` of their positions, W + S. Down: the values of S at these positions, the head and a seed, from which every
device draws the positions. A device: E epochs of SGD on values and head. Up: both and n_k. Server: their mean, weighted
by n_k. After the last of these rounds, the server computes S = U·diag(s)·Vᵀ for each layer and

    B = U_r·√(s_r·rank / alpha),  A = √(s_r·rank / alpha)·V_rᵀ,  r = `rank`

Stage 2, the other rounds: LoRA (see lora) from these A and B. What S has beyond rank r is lost.

`undergrowth plan` shows the prices of stage 1, in which a device needs more memory. stage1_share = 0 is LoRA.

Departure: the source counts `density` of all weights of the model in stage 1. Only layers with adapters can keep what
stage 1 learned, so only they are tuned; `layers: ["*"]` are all linear layers below the head.

    >>> import undergrowth as ug
    >>> result = ug.run(method="slora", model="mlp", options={"rank": 4, "stage1_share": 0.5}, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from undergrowth.core import (
    Batch,
    Carry,
    Context,
    LoopClient,
    Method,
    Model,
    ModelWeights,
    Packet,
    Plan,
    Shard,
    State,
    Steps,
    Task,
    View,
    Weights,
    model_in,
    option,
)
from undergrowth.core.names import MODEL
from undergrowth.core.samplers import ceil_of
from undergrowth.learning import AveragingServer, GradientClient, model_mismatch
from undergrowth.methods.lora import LoraOptions
from undergrowth.methods.slora.sparse_adapters import SPARSE, low_rank, sparse_model

MASK = "mask"  # the seed of the positions; a state or a packet of stage 2 has none


@dataclass(frozen=True)
class SLoRAClient(LoopClient):
    """Trains the sparse adapters if the packet has the seed of a mask, and the low-rank ones otherwise."""

    options: SLoRA

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        seed = down.scalars.get(MASK)
        carry, steps = self._stage(seed).begin(task, down, shard, own, context)
        return carry if seed is None else {**carry, MASK: seed}, steps

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        return self._stage(carry.get(MASK)).step(task, carry, batch)

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        return self._stage(carry.get(MASK)).finish(task, down, carry, shard, own, context)

    def _stage(self, seed: float | None) -> GradientClient:
        if seed is None:
            return GradientClient()
        return GradientClient(view=partial(sparse_model, density=self.options.density, seed=int(seed)))


@dataclass(frozen=True, kw_only=True)
class SLoRAServer(AveragingServer):
    """Averages sparse adapters, and after stage 1 low-rank ones. state: `mask` in stage 1."""

    options: SLoRA

    def init(self, task: Task, context: Context) -> State:
        state = super().init(task, context)
        if not self.options.first_rounds(task):
            return state
        seed = context.float_key(MASK)
        values = sparse_model(task.model, self.options.density, int(seed)).initial(0)
        return {MODEL: {name: state[MODEL].get(name, value) for name, value in values.items()}, MASK: seed}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {MODEL: dict(down.tensors), **({MASK: down.scalars[MASK]} if MASK in down.scalars else {})}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        scalars = {MASK: state[MASK]} if MASK in state else {}
        return self.ask(task, view, context, Packet(model_in(state), scalars))

    def check(self, task: Task, up: Packet) -> str | None:
        is_sparse = any(name.endswith(f".{SPARSE}") for name in up.tensors)
        # The sizes do not depend on the seed.
        return model_mismatch(self._in_stage(task, {MASK: 0} if is_sparse else {}), up)

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        stage = self._in_stage(task, state)
        state = super().step(stage, state, combined, context)
        if MASK not in state or context.round + 1 < self.options.first_rounds(task):
            return state
        initial = task.model.initial(context.key("adapters"))
        return {MODEL: low_rank(task.model, stage.model, state[MODEL], initial)}

    def _in_stage(self, task: Task, state: State) -> Task:
        """The task with the model that devices train now."""
        return replace(task, model=self.options.stage_model(task, state))


@dataclass(frozen=True)
class SLoRA(LoraOptions, Method):
    """Sparse tuning, then LoRA that starts from the singular vectors of what it changed."""

    rank: int = option(16, "rank of the adapters", at_least=1)
    density: float = option(0.1, "fraction of the weights that stage 1 trains", above=0, at_most=1)
    stage1_share: float = option(0.2, "fraction of the rounds that are stage 1", at_least=0, at_most=1)

    @property
    def client(self) -> SLoRAClient:
        return SLoRAClient(self)

    @property
    def server(self) -> SLoRAServer:
        return SLoRAServer(options=self)

    def first_rounds(self, task: Task) -> int:
        """The number of rounds of stage 1."""
        return ceil_of(self.stage1_share * task.train.rounds)

    def stage_model(self, task: Task, state: State) -> Model:
        """The model whose weights are in the server's state."""
        return sparse_model(task.model, self.density, int(state[MASK])) if MASK in state else task.model

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights | ModelWeights]:
        return {"global": self.personal(task, state, {}, "")}

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights | ModelWeights:
        weights = model_in(state)
        return ModelWeights(self.stage_model(task, state), weights) if MASK in state else weights


__all__ = ["SLoRA"]
