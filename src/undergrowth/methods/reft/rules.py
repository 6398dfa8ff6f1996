"""REFT and FedKD: a device sends logits once; the server prunes its model for each device, and learns their logits."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from undergrowth.core import Context, Packet, Plan, Reducer, RunWarning, Server, State, Task, View
from undergrowth.core.names import MODEL, SAMPLES, TEACHER, X, Y
from undergrowth.learning import Adam, GradientClient, LossInputs, Objective, Trained, train_on_server
from undergrowth.learning.distillation import public_data
from undergrowth.learning.planning import ask_each
from undergrowth.learning.pruning import prune
from undergrowth.learning.quantisation import dequantise, quantise

if TYPE_CHECKING:
    from undergrowth.methods.reft import LogitsMethod

LOGITS, SCALES, COUNTS = "logits", "scales", "counts"  # tensors of an upload
FORMATS = ("float32", "int8")
LOSSES = ("l2", "kl")


@dataclass(frozen=True, kw_only=True)
class LogitsClient(GradientClient):
    """Trains the received model and sends its logits on the public samples, with its number of samples per class.

    The device keeps the model that it trained. `format`: float32, or int8 with one scale per class.
    """

    format: str = "float32"

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        task, weights = trained.task, dict(trained.tensors)
        public = public_data(task, "the method")
        with torch.no_grad():
            # In batches of the training size, so that a device that can train has enough memory for this too.
            logits = torch.cat([task.model(weights, x) for x in public.x.split(task.train.batch)])[:, : task.classes]
        # Whole numbers, which no codec changes.
        held = torch.zeros(task.classes, dtype=torch.int32, device=logits.device)
        counts = held.index_add(0, trained.shard.y, torch.ones_like(trained.shard.y, dtype=held.dtype))
        tensors = {LOGITS: logits, COUNTS: counts}
        if self.format == "int8":
            codes, scales = quantise(logits.t())
            tensors |= {LOGITS: codes.t().contiguous(), SCALES: scales}
        return Packet(tensors, trained.scalars), {"weights": weights}


@dataclass(frozen=True)
class ClassWeightedMean(Reducer):
    """For each class t, the mean of the uploads' logits of t, weighted by their numbers of samples of t.

    An upload without samples of a class has no part in its mean, and one whose device trained on no sample, because
    BatchNorm cannot on a single one, has a part in none. In the result, `counts` is the weight of each class.
    """

    @property
    def summable(self) -> bool:
        return True

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        logits, counts = up.tensors[LOGITS], up.tensors[COUNTS] * (up.scalars[SAMPLES] > 0)
        if SCALES in up.tensors:
            logits = dequantise(logits.t(), up.tensors[SCALES]).t()
        wide = logits if logits.dtype is torch.float64 else logits.float()
        held = torch.where(counts > 0, wide, torch.zeros_like(wide))
        return Packet({LOGITS: held, COUNTS: counts.to(wide.dtype)}, {SAMPLES: up.scalars[SAMPLES]})

    def merge(self, a: Packet, b: Packet) -> Packet:
        counts = a.tensors[COUNTS] + b.tensors[COUNTS]
        fraction = b.tensors[COUNTS] / counts.clamp_min(1e-30)
        logits = torch.lerp(a.tensors[LOGITS], b.tensors[LOGITS], fraction.expand_as(a.tensors[LOGITS]))
        return Packet({LOGITS: logits, COUNTS: counts}, {SAMPLES: a.scalars[SAMPLES] + b.scalars[SAMPLES]})

    def to_sum(self, partial: Packet) -> Packet:
        logits, counts = partial.tensors[LOGITS], partial.tensors[COUNTS]
        return Packet({LOGITS: logits * counts, COUNTS: counts}, partial.scalars)

    def from_sum(self, total: Packet, like: Packet) -> Packet:
        logits, counts = total.tensors[LOGITS], total.tensors[COUNTS]
        return Packet({LOGITS: logits / counts.where(counts > 0, 1), COUNTS: counts}, total.scalars)


@dataclass(frozen=True)
class TeacherLoss(Objective):
    """The distance of the logits from the teacher's, over the classes in `held`, mean over the batch."""

    loss: str
    temperature: float
    held: tuple[int, ...]

    def __call__(self, inputs: LossInputs) -> Tensor:
        logits, teacher = inputs.output.logits[:, self.held], inputs.batch[TEACHER][:, self.held]
        if self.loss == "l2":
            return inputs.mean(torch.linalg.vector_norm(logits - teacher, dim=1))
        p, q = ((each / self.temperature).log_softmax(1) for each in (teacher, logits))
        return inputs.mean((p.exp() * (p - q)).sum(1))


@dataclass(frozen=True)
class LogitsServer(Server):
    options: LogitsMethod
    reducer = ClassWeightedMean()

    def init(self, task: Task, context: Context) -> State:
        public_data(task, type(self.options).__name__.lower())  # refuses a run without public data
        task.model.check_batch("method.server_batch", self.options.server_batch)
        return super().init(task, context)

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        whole = Packet(state[MODEL])

        @cache
        def packet(pruned: float) -> Packet:
            return Packet(prune(task.model, state[MODEL], pruned)) if pruned else whole

        speeds = {device: view.knowledge.speed(device) for device in view.devices}
        packets = {device: packet(self.options.pruned(flops)) for device, flops in speeds.items()}
        packets.update(dict.fromkeys(view.nodes, whole))  # edge servers prune for their own devices
        return ask_each(self, task, view, context, packets)

    def check(self, task: Task, up: Packet) -> str | None:
        shape = (len(public_data(task, "the method")), task.classes)
        logits, counts = up.tensors.get(LOGITS), up.tensors.get(COUNTS)
        if logits is None or logits.shape != shape:
            return f"it must have the logits of {shape[0]} public samples and {shape[1]} classes"
        if counts is None or counts.shape != shape[1:] or bool((counts < 0).any()):
            return f"it must have the numbers of its samples of {shape[1]} classes"
        scales = up.tensors.get(SCALES)
        return None if scales is None or scales.shape == shape[1:] else f"it must have {shape[1]} scales"

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        options, public, counts = self.options, public_data(task, "the method"), combined.tensors[COUNTS].tolist()
        held = tuple(label for label, count in enumerate(counts) if count)
        missing = [str(label) for label, count in enumerate(counts) if not count]
        if missing:
            kind = "class" if len(missing) == 1 else "classes"
            warnings.warn(
                f"no device trained on samples of {kind} {', '.join(missing)}: not distilled", RunWarning, stacklevel=2
            )
        if not held:
            return state
        data = {X: public.x, Y: public.y, TEACHER: combined.tensors[LOGITS].to(public.x)}
        loss = TeacherLoss(options.distill, options.temperature, held)
        training = (options.server_lr, options.server_epochs, options.server_batch)
        model = train_on_server(task, state[MODEL], data, loss, context, *training, optimiser=Adam())
        return {**state, MODEL: model}
