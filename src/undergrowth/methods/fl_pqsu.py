"""FL-PQSU (Xu et al. 2021; a baseline of REFT, Desai 2023): one pruned model for all, updates of one byte, few of them.

Pruning: before the first round the server removes the fraction `ratio` of the channels of its layers, those with the
smallest L1 norms. All devices get the same smaller model. Down: that model w. A device: E epochs of SGD.
Quantisation: up travel int8 codes of w_k − w, with one scale for each tensor, and n_k. Selective
update: a device whose update is small, ‖w_k − w‖ < threshold·‖w‖ over all parameters, sends nothing but a sign of life.
Server: w ← w + Σ n_k·(w_k − w) / Σ n_k over the devices that sent an update; without any, w stays.

The evaluated model has the full size with zeros in place of what was removed, which computes the same. Statistics of
BatchNorm layers are quantised and averaged like weights. The clock plans the time of a whole upload also for a device
that skips it; the ledger has the bytes that were sent. The source counts the whole model for a download at any ratio,
because its pruned model keeps its shape. As for REFT, the first quarter of the convolutions keeps all its channels.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fl-pqsu", options={"ratio": 0.6, "threshold": 0.02}, rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from undergrowth.core import Context, Method, Packet, Plan, Reducer, Server, State, Task, View, WeightedMean, option
from undergrowth.core.names import MODEL, SAMPLES
from undergrowth.learning import GradientClient, Trained, widths_of
from undergrowth.learning.batch_statistics import VARIANCE
from undergrowth.learning.pruning import MAX_PRUNED, strongest_channels
from undergrowth.learning.quantisation import dequantise, quantise
from undergrowth.learning.width import SlicedModel

CODES, SCALES = "codes/", "scales/"  # prefixes of the tensors of an upload
SKIPPED = "skipped"  # scalar of a partial result: uploads without an update


@dataclass(frozen=True, kw_only=True)
class SelectiveClient(GradientClient):
    """Trains the received model and sends its change in one byte a value, unless the change is small."""

    options: FLPQSU

    def for_price(self) -> SelectiveClient:
        return replace(self, options=replace(self.options, threshold=0.0))

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        received = trained.received
        changes = {name: value - received[name] for name, value in trained.tensors.items()}
        parameters = trained.task.model.parameters
        change, before = (_norm([each[name] for name in parameters]) for each in (changes, received))
        if self.options.threshold and bool(change < self.options.threshold * before):
            return Packet(scalars=trained.scalars), trained.own
        tensors: dict[str, Tensor] = {}
        for name, value in changes.items():
            if value.is_floating_point():
                codes, tensors[SCALES + name] = quantise(value.reshape(1, -1))
                tensors[CODES + name] = codes.reshape(value.shape)
            else:
                tensors[name] = trained.tensors[name]  # counters
        return Packet(tensors, trained.scalars), trained.own


def _norm(tensors: list[Tensor]) -> Tensor:
    return torch.stack([value.square().sum() for value in tensors]).sum().sqrt()


@dataclass(frozen=True)
class UpdateMean(Reducer):
    """The mean of the changes in uploads, weighted by samples. Uploads without a change are counted and left out."""

    mean = WeightedMean()

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        if not up.tensors:
            return Packet(scalars={SKIPPED: 1.0})
        whole = {name: value for name, value in up.tensors.items() if not name.startswith((CODES, SCALES))}
        codes = {name.removeprefix(CODES): value for name, value in up.tensors.items() if name.startswith(CODES)}
        changes = {
            name: dequantise(value.reshape(1, -1), up.tensors[SCALES + name]).reshape(value.shape)
            for name, value in codes.items()
        }
        lifted = self.mean.lift(sender, Packet({**whole, **changes}, {SAMPLES: up.scalars[SAMPLES]}), age)
        return Packet(lifted.tensors, {**lifted.scalars, SKIPPED: 0.0})

    def merge(self, a: Packet, b: Packet) -> Packet:
        skipped = a.scalars[SKIPPED] + b.scalars[SKIPPED]
        merged = self.mean.merge(a, b) if a.tensors and b.tensors else (a if a.tensors else b)
        return Packet(merged.tensors, {**merged.scalars, SKIPPED: skipped})


@dataclass(frozen=True)
class PrunedServer(Server):
    """Sends the pruned model, and adds the mean of the changes to it.

    state: `kept` has the channels that stay, one tensor for each set of channels. Below the root, the model in the
    state is the pruned one.
    """

    options: FLPQSU
    reducer = UpdateMean()

    def init(self, task: Task, context: Context) -> State:
        return self._pruned(task, super().init(task, context)[MODEL])

    def _pruned(self, task: Task, model: dict[str, Tensor]) -> State:
        kept = strongest_channels(task.model, model, self.options.ratio)
        widths = widths_of(task.model)
        return {MODEL: widths.place(widths.take(model, kept), kept)[0], "kept": kept}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        return self.ask(task, view, context, Packet(self._sent(task, state)))

    def _sent(self, task: Task, state: State) -> dict[str, Tensor]:
        if "kept" not in state:
            return dict(state[MODEL])
        return widths_of(task.model).take(state[MODEL], state["kept"])

    def check(self, task: Task, up: Packet) -> str | None:
        for name in up.tensors:
            if name.startswith(CODES):
                scales = up.tensors.get(SCALES + name.removeprefix(CODES))
                if scales is None or scales.shape != (1,):
                    return f"'{name}' has no scale"
            bare = name.removeprefix(CODES).removeprefix(SCALES)
            if bare not in task.model.shapes:
                return f"'{bare}' is not a tensor of the model"
        return None

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        if not combined.scalars.get(SAMPLES):
            return state
        widths, sent = widths_of(task.model), self._sent(task, state)
        moved = {
            name: value + combined.tensors[name].to(value.dtype)
            if value.is_floating_point()
            else combined.tensors[name]
            for name, value in sent.items()
        }
        # Rounding may leave a variance slightly below 0.
        moved.update({name: value.clamp_min(0) for name, value in moved.items() if name.endswith(VARIANCE)})
        return {**state, MODEL: widths.place(moved, state["kept"])[0]}


@dataclass(frozen=True)
class FLPQSU(Method):
    ratio: float = option(0.3, "fraction of the channels that is removed", at_least=0, at_most=MAX_PRUNED)
    threshold: float = option(0.01, "an update below this fraction of the model's norm is not sent", at_least=0)

    @property
    def client(self) -> SelectiveClient:
        return SelectiveClient(view=SlicedModel, options=self)

    @property
    def server(self) -> PrunedServer:
        return PrunedServer(self)
