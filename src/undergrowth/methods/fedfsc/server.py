"""The server side of FedFSC: averages full updates and few-shot classifiers separately."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from undergrowth.core import Context, Named, Packet, Plan, Reducer, State, Task, View, WeightedMean
from undergrowth.core.names import EPOCHS, MODEL
from undergrowth.learning import AveragingServer, model_mismatch
from undergrowth.learning.servers import uploaded_weights
from undergrowth.methods.fedfsc.client import ANCHOR, FEW_SHOT, FULL, UPDATES

if TYPE_CHECKING:
    from undergrowth.methods.fedfsc import FewShotMethod

DUE = "due"  # entry of the state: few-shot updates also in the first round
FULL_FRACTION = 0.5  # fraction of the devices that do full updates if neither a deadline nor f_n decides


@dataclass(frozen=True)
class FewShotReducer(Named):
    """Reduces each part separately; tensors without a prefix, whose names links know, are the part `full`."""

    def lift(self, sender: str, up: Packet, age: int) -> Packet:
        return super().lift(sender, _with_full_part(up), age)

    def from_sum(self, total: Packet, like: Packet) -> Packet:
        return super().from_sum(total, _with_full_part(like))


def _with_full_part(up: Packet) -> Packet:
    tensors = {name if "/" in name else f"{FULL}/{name}": value for name, value in up.tensors.items()}
    return replace(up, tensors=tensors)


@dataclass(frozen=True, kw_only=True)
class FedFSCServer(AveragingServer):
    """Averages full updates by their samples, and few-shot classifiers with equal weights.

    state: `model` is the base model; `global` the few-shot classifier on the lower part that it was trained on.
    """

    options: FewShotMethod
    reducer: Reducer = FewShotReducer({FULL: WeightedMean(), FEW_SHOT: WeightedMean(None)})

    def steady_state(self, task: Task, state: State) -> State:
        anchor = {name: state[MODEL][name] for name in self._classifier(task)} if self.options.anchored else {}
        return {**state, DUE: True, ANCHOR: anchor}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {**state, MODEL: uploaded_weights(down), ANCHOR: dict(down.part(ANCHOR).tensors)}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        options = self.options
        few_shot = options.few_shot and (context.round > 0 or state.get(DUE, False))
        reduced, both = options.reduced_epochs > 0, options.both_updates
        full = [FULL, FEW_SHOT] if few_shot and both else [FULL]
        light = [FULL] * reduced + [FEW_SHOT] * (few_shot and (reduced or not both))
        packets: dict[tuple[str, int], Packet] = {}

        def packet(updates: list[str], epochs: int = 0) -> Packet:
            key = ("+".join(updates), epochs)
            if key not in packets:
                packets[key] = _packet(state, updates, epochs)
            return packets[key]

        def lighter(device: str) -> Packet:
            return packet(light, options.epochs_of(device, task, context) if reduced else 0)

        if both and not options.chosen and not reduced:
            return self.ask(task, view, context, packet(full))  # devices that miss the deadline are dropped
        undecided = not options.chosen and task.train.deadline is None
        if options.few_shot and not both and undecided:
            options = replace(options, f_n=FULL_FRACTION, f_fs=1 - FULL_FRACTION)
        return options.plan_round(self, task, view, context, packet(full), lighter if light else None)

    def check(self, task: Task, up: Packet) -> str | None:
        few_shot = up.part(FEW_SHOT)
        whole = Packet(uploaded_weights(up))
        classifier = self._classifier(task)
        lower = next((name for name in few_shot.tensors if name not in classifier), None)
        if lower is not None:
            return f"'{lower}' is not a tensor above the split '{self.options.split}'"
        sent = [part for part in (whole, few_shot) if part.tensors] or [up]
        return next((problem for part in sent if (problem := model_mismatch(task, part))), None)

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        base, full, few_shot = state[MODEL], combined.part(FULL), combined.part(FEW_SHOT)
        after = super().step(task, state, full, context) if full.tensors else state
        if not few_shot.tensors:
            return after
        classifier = {name: base[name] + change.to(base[name].dtype) for name, change in few_shot.tensors.items()}
        return {**after, "global": {**base, **classifier}, **({ANCHOR: classifier} if self.options.anchored else {})}

    def _classifier(self, task: Task) -> tuple[str, ...]:
        """Names of the tensors above the split."""
        return (*task.model.trainable(self.options.split), *task.model.upper_buffers(self.options.split))


def _packet(state: State, updates: list[str], epochs: int) -> Packet:
    anchor = state.get(ANCHOR, {}) if FULL in updates else {}  # a few-shot update does not use it
    tensors = {**state[MODEL], **{f"{ANCHOR}/{name}": value for name, value in anchor.items()}}
    tags = {} if updates == [FULL] else {UPDATES: "+".join(updates)}
    return Packet(tensors, {EPOCHS: float(epochs)} if epochs else {}, tags)
