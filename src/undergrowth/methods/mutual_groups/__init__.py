"""Mutual groups (Iacob et al. 2023, in Iacob, thesis, appendix): a global model and one for each group of devices.

A group is, for example, all devices that have one kind of sensor. Down: w, the global model, and w_m, the model of the
device's group m. A device trains both on the same batches of E epochs, each with the other's predictions as a second
target (deep mutual learning, Zhang et al. 2018):

    loss of w   = F(w)   + global_weight·KL(softmax(z_m) ‖ softmax(z))
    loss of w_m = F(w_m) + group_weight·KL(softmax(z) ‖ softmax(z_m)),

where F is the task's loss and z, z_m are the outputs of w and w_m on the batch, both before the step. No gradient flows
through the first argument of KL. Up: both models and n_k. Server: w ← Σ n_k·w_k / Σ n_k over all devices;
w_m ← Σ n_k·w_mk / Σ n_k over the devices of group m; w_m stays if none of them took part.

With both weights 0, w is the model of FedAvg, and w_m that of FedAvg with the devices of group m alone. One exception:
a last batch of one sample is left out if either model cannot be trained on it.

group: the field of the data set whose most frequent value at a device is its group. auto: modality if the data set has
it, or else the label. model.ladder may name one model, that of the groups, which need not be of the same architecture
as w; without it, w_m has that of w. Groups start with the same random weights, which are not those of w.
mask, mask_rounds: the devices of the group `mask` are not asked in the first `mask_rounds` rounds.

What is evaluated: w as the run's accuracy; "ensemble": w_m on the test samples of group m, over all groups; and each
device with the model of its group. If it is not known to which group a test sample belongs, there is no ensemble, and
"group-m" is w_m on all test samples. A tree gives what a star gives; an edge server is sent all models.

Departures: the paper does not say whether models step at the same time or in turns; here they step at the same time.

    >>> import undergrowth as ug
    >>> result = ug.run(method="mutual-groups", options={"global_weight": 0.33, "group_weight": 0.75}, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from undergrowth.core import (
    Context,
    Grouped,
    InputError,
    Method,
    ModelWeights,
    Named,
    Packet,
    Plan,
    Server,
    State,
    Task,
    View,
    WeightedMean,
    Weights,
    option,
    suggest,
)
from undergrowth.core.names import MODEL, ROUND
from undergrowth.core.server import model_in
from undergrowth.learning.ladder import fit
from undergrowth.learning.planning import ask_each
from undergrowth.learning.servers import has_no_samples, model_mismatch
from undergrowth.methods.mutual_groups.client import GLOBAL, GROUP, MutualClient, group_task

GROUPS = "groups"  # of the server's state, and of the packet for an edge server
ALL = "all"  # the only group if the run does not know any


@dataclass(frozen=True)
class MutualServer(Server):
    """Sends every device the global model and that of its group. state: `groups` has the models of the groups."""

    options: MutualGroups
    reducer = Named({GLOBAL: WeightedMean(), GROUP: Grouped(GROUP, WeightedMean())})

    def init(self, task: Task, context: Context) -> State:
        names, mask = group_names(task), self.options.mask
        if len(task.ladder) > 1:
            raise InputError(f"model.ladder has {len(task.ladder)} models; mutual-groups takes one, that of the groups")
        if mask and mask not in names:
            raise InputError(f"method.mask '{mask}' is not a group of devices; {suggest(mask, names)}")
        if mask and len(names) == 1:
            raise InputError(
                f"method.mask '{mask}': all devices are in this group, so no device could train in the first rounds"
            )
        initial = group_task(task).model.initial(context.key("group model"))
        return {**super().init(task, context), GROUPS: {name: dict(initial) for name in names}}

    def steady_state(self, task: Task, state: State) -> State:
        return {**state, ROUND: float(self.options.mask_rounds)}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        models = {name: dict(part.tensors) for name, part in down.part(GROUPS).parts().items()}
        return {MODEL: dict(down.part(GLOBAL).tensors), GROUPS: models, ROUND: down.scalars[ROUND]}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        federated = Packet(state[MODEL])
        round = int(state.get(ROUND, context.round))  # below the root, that of the root
        if self.options.mask and round < self.options.mask_rounds:
            masked = {device for device in view.devices if task.groups.get(device) == self.options.mask}
            view = replace(view, idle=tuple(child for child in view.idle if child not in masked))
        packets = {
            name: replace(Packet.join({GLOBAL: federated, GROUP: Packet(weights)}), tags={GROUP: name})
            for name, weights in state[GROUPS].items()
        }
        sends = {device: packets[task.groups.get(device, ALL)] for device in view.devices}
        if view.nodes:
            models = Packet.join({name: Packet(weights) for name, weights in state[GROUPS].items()})
            down = replace(Packet.join({GLOBAL: federated, GROUPS: models}), scalars={ROUND: float(round)})
            sends.update(dict.fromkeys(view.nodes, down))
        return ask_each(self, task, view, context, sends)

    def check(self, task: Task, up: Packet) -> str | None:
        if up.tags.get(GROUP) not in group_names(task):
            return f"its group is '{up.tags.get(GROUP)}', which is not one of the run's"
        return model_mismatch(task, up.part(GLOBAL)) or model_mismatch(group_task(task), up.part(GROUP))

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        groups = {name: _moved(state[GROUPS][name], mean) for name, mean in combined.part(GROUP).parts().items()}
        return {**state, MODEL: _moved(state[MODEL], combined.part(GLOBAL)), GROUPS: {**state[GROUPS], **groups}}


def _moved(weights: Weights, mean: Packet) -> dict[str, Tensor]:
    """The mean of the uploads in place of the weights; they stay if nobody trained on a sample."""
    if has_no_samples(mean):
        return dict(weights)
    return {**weights, **{name: value.to(weights[name].dtype) for name, value in mean.tensors.items()}}


def fit_group(task: Task, weights: Weights) -> Weights | ModelWeights:
    """The weights of a group's model, in the form that evaluation takes."""
    return fit(task, next(iter(task.ladder), ""), weights)


def group_names(task: Task) -> list[str]:
    return sorted(set(task.groups.values())) or [ALL]


@dataclass(frozen=True)
class MutualGroups(Method):
    global_weight: float = option(0.33, "weight of the group's predictions in the loss of the global model", at_least=0)
    group_weight: float = option(0.75, "weight of the global model's predictions in the loss of a group's", at_least=0)
    group: str = option(
        "auto", "field of the data set that says to which group a device belongs; auto: modality, or else the label"
    )
    mask: str = option("", "group whose devices are not asked in the first rounds; empty: none")
    mask_rounds: int = option(5, "rounds in which the group `mask` is not asked", at_least=0)

    @property
    def group_field(self) -> str:
        return self.group

    @property
    def client(self) -> MutualClient:
        return MutualClient(options=self)

    @property
    def server(self) -> MutualServer:
        return MutualServer(self)

    def ensemble(self, task: Task, state: State) -> Mapping[str, Weights | ModelWeights]:
        return {name: fit_group(task, weights) for name, weights in state[GROUPS].items()}

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights | ModelWeights:
        weights = state[GROUPS].get(task.groups.get(device, ALL))
        return model_in(state) if weights is None else fit_group(task, weights)
