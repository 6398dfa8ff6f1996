"""FedNCM (Legate et al. 2023; Bernier, Concordia thesis, §3.1.2): the nearest class mean, in one message per device.

Down: w, once. A device: f(x), the input of the last layer, for all its samples, in evaluation mode. Up, for each class
c: Σ f(x) over its samples of c, and their number; C·(d+1) numbers, however many samples it has. Server, with the sums
over all devices: l_c = Σ f / n_c, and in the last layer of w

    v_c = l_c / ‖l_c‖,  b = 0

so that the class of x is the one whose mean has the smallest angle to f(x). Sums of sums are the sums over all samples:
the result is that of the same data in one place, for any partition and any tree. A class that no device holds has a row
of zeros, and the run warns of it.

Every device is asked, whatever `train.sample` says; one that did not answer is asked again in the next round. After
the last answer nobody is asked, so further rounds cost nothing. In a tree, an answer of a node has a number, and its
parent's next packet has the number of the last one that arrived. A node sends its sums again until they have arrived.

`start: {method: fedncm}` gives any other method this head to start from, and `fedncm-ft` is short for that with `ft`.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedncm", rounds=1)
    >>> result = ug.run(method="fedadam", start={"method": "fedncm"}, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from undergrowth.core import Context, InputError, Method, Packet, Plan, Reducer, Server, Shard, State, Sum, Task, View
from undergrowth.core.client import Batch, Carry, LoopClient, Steps
from undergrowth.core.names import MODEL, RECEIVED, WEIGHT, X, Y
from undergrowth.core.server import model_in

HEAD = "head"  # the level
SUMS, COUNTS = "sums", "counts"  # of the features of each class
NUMBER = "number"  # scalar between nodes, and state of a node: the round in which its sums last changed
_TRAINING = ("epochs", "lr", "momentum", "weight_decay", "optimiser", "schedule", "selector", "drop_last")
_SAMPLING = ("sample", "sampler", "over_select", "quorum")


def head_weight(task: Task) -> str:
    """The name of the matrix of the last layer, classes × features. Raises `InputError` if there is no such layer."""
    shapes = {name: task.model.shapes[name] for name in task.model.trainable(HEAD)}
    matrices = [name for name, shape in shapes.items() if len(shape) == 2 and shape[0] >= task.classes]
    if len(matrices) != 1 or len(shapes) > 2:
        raise InputError(
            f"method fedncm: the part of the model above the level 'head' has {', '.join(shapes) or 'no parameters'}; "
            "it must be one linear layer that is not frozen"
        )
    return matrices[0]


@dataclass(frozen=True)
class ClassSumsClient(LoopClient):
    """Adds up the features of each class in one pass over the samples, without gradients."""

    @property
    def ignored_settings(self) -> frozenset[str]:
        return frozenset({"data.augment", "model.dropout", *(f"train.{name}" for name in _TRAINING)})

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        weight = down.tensors[head_weight(task)]
        carry = {
            RECEIVED: down.tensors,
            SUMS: weight.new_zeros(task.classes, weight.shape[1]),
            COUNTS: weight.new_zeros(task.classes),
        }
        return carry, Steps({X: shard.x, Y: shard.y}, (torch.arange(len(shard)),), task.train.batch)

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        with torch.no_grad():
            features = task.model.run(carry[RECEIVED], batch[X], stop=HEAD).logits.to(carry[SUMS].dtype)
            classes = functional.one_hot(batch[Y], task.classes).to(features.dtype)
            if WEIGHT in batch:  # the samples of several clients, one after the other; padding has weight 0
                classes = classes * (batch[WEIGHT] > 0).unsqueeze(1)
                classes, features = (each.reshape(len(carry[SUMS]), -1, each.shape[1]) for each in (classes, features))
            sums = carry[SUMS] + classes.transpose(-2, -1) @ features
            return {**carry, SUMS: sums, COUNTS: carry[COUNTS] + classes.sum(-2)}

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        # Whole numbers, which no codec changes: the server compares them with the number of all samples.
        return Packet({SUMS: carry[SUMS], COUNTS: carry[COUNTS].to(torch.int32)}), own


@dataclass(frozen=True)
class ClassMeansServer(Server):
    """Asks every device once, and makes the last layer from the sums of all answers so far.

    Below the root, these are the answers that the parent does not have yet.
    """

    reducer: Reducer = Sum()

    @property
    def ignored_settings(self) -> frozenset[str]:
        return super().ignored_settings | {f"train.{name}" for name in _SAMPLING}

    def init(self, task: Task, context: Context) -> State:
        head_weight(task)  # refuses a model without such a layer before anything is sent
        return super().init(task, context)

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        # The number of samples is that of the whole federation, so only the root knows that it has heard of all.
        if COUNTS in state and float(state[COUNTS].sum()) >= context.samples:
            return Plan({})
        # A node is asked again, because some of its devices may not have answered.
        children = [child for child in view.idle if child in view.nodes or child not in view.heard]
        packets = dict.fromkeys(children, Packet(model_in(state)))
        for node in view.nodes & packets.keys():
            arrived = view.heard.get(node, {}).get(NUMBER, -1.0)
            packets[node] = replace(packets[node], scalars={NUMBER: arrived})
        return Plan(packets, task.train.deadline)

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        arrived = NUMBER in state and down.scalars[NUMBER] >= state[NUMBER]
        return {**({} if arrived else state), MODEL: dict(down.tensors)}

    def check(self, task: Task, up: Packet) -> str | None:
        features = task.model.shapes[head_weight(task)][1]
        wanted = {SUMS: (task.classes, features), COUNTS: (task.classes,)}
        found = {name: tuple(value.shape) for name, value in up.tensors.items()}
        return None if found == wanted else f"it has {found}, and {wanted} are needed"

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        model = state[MODEL]
        weight = model[head_weight(task)]
        sums, counts = combined.tensors[SUMS].to(weight.dtype), combined.tensors[COUNTS]
        if COUNTS in state:
            sums, counts = sums + state[SUMS], counts + state[COUNTS]
        head = ncm_head(task, model, sums, counts)
        return {MODEL: {**model, **head}, SUMS: sums, COUNTS: counts, NUMBER: float(context.round)}

    def report(self, task: Task, state: State, partial: Packet | None, context: Context) -> Packet | None:
        if COUNTS not in state:
            return None
        return Packet({SUMS: state[SUMS], COUNTS: state[COUNTS]}, {NUMBER: state[NUMBER]})

    def expected_answer(self, node: str, uploads: Mapping[str, Packet]) -> Packet | None:
        return Packet(next(iter(uploads.values())).tensors, {NUMBER: 0.0})


def ncm_head(task: Task, model: dict[str, Tensor], sums: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """The last layer: a row is the mean of its class, of length one; a class without samples has a row of zeros."""
    head = {name: torch.zeros_like(model[name]) for name in task.model.trainable(HEAD)}
    means = sums / counts.clamp(min=1).unsqueeze(1)
    head[head_weight(task)][: task.classes] = functional.normalize(means, dim=1)
    return head


@dataclass(frozen=True)
class FedNCM(Method):
    """The nearest class mean: one message per device, no training."""

    client = ClassSumsClient()
    server = ClassMeansServer()
    needs_all_classes: ClassVar[bool] = True

    def server_at(self, depth: int) -> Server:
        return self.server

    @property
    def needs_classes(self) -> str:
        return "it computes the mean features of every class"
