"""NodeServer: a node of B-HFL, from the root down to the last edge server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from undergrowth.core import (
    Collect,
    Context,
    NodePlace,
    Packet,
    Plan,
    Progress,
    Reducer,
    Server,
    ServerTraining,
    Shard,
    State,
    Task,
    View,
    WeightedMean,
    Weights,
    model_in,
)
from undergrowth.core.names import MODEL, ROUND, SAMPLES, X, Y
from undergrowth.core.samplers import count_of
from undergrowth.learning import Staleness, TaskLoss, learning_rate, model_mismatch, train_on_server
from undergrowth.learning.distillation import public_data, server_client
from undergrowth.learning.node_models import round_received, run_round
from undergrowth.learning.servers import uploaded_weights
from undergrowth.methods.bhfl.node_optimiser import ReceivedModel, mean_of
from undergrowth.methods.bhfl.residuals import from_state, to_state, unpack_residuals, with_residuals

if TYPE_CHECKING:
    from undergrowth.methods.bhfl import BHFL

DEPTH = "depth"  # scalar of a node's answer, only if residuals are selected: they are models of devices, not of nodes
ROOT = "root"  # origin of the residuals that go down


@dataclass(frozen=True)
class NodeServer(Server):
    """State: the model, the memories of both optimisers, the samples behind the model, and residuals on their way."""

    options: BHFL
    place: NodePlace = NodePlace()

    @property
    def asynchronous(self) -> bool:
        return self.options.is_asynchronous(self.place)

    @property
    def waits_for_all(self) -> bool:
        return not self.asynchronous

    @property
    def reducer(self) -> Reducer:
        """One model is enough, unless single ones are selected or weighed by their age."""
        return Collect() if self.options.selector.count or self.asynchronous else WeightedMean()

    def init(self, task: Task, context: Context) -> State:
        """A model at the root. A node below starts with the first model that its parent sends."""
        return {} if self.place.depth else super().init(task, context)

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        parent, above, memory = uploaded_weights(down), unpack_residuals(down), state.get("down", {})
        model: Weights = parent
        if MODEL in state:
            taken = list(above.values()) if self.options.residuals_down in ("nodes", "all") else []
            optimiser, data = self.options.optimiser_down(self.place.depth), self._proxy_data(task)
            model, memory = optimiser.merge(task, state[MODEL], ReceivedModel(parent), taken, memory, data)
        if self.options.residuals_down != "none" and self.place.depth == 1:
            above = {ROOT: ReceivedModel(parent)}  # its parent is the root
        return {
            MODEL: dict(model),
            "up": state.get("up", {}),
            "down": memory,
            "from above": to_state(above),
            **round_received(down),
        }

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        plain = Packet(model_in(state), run_round(task, state, context))
        count = None
        if self.asynchronous:
            busy = sum(child not in view.nodes for child in view.out)
            count = count_of(task.train.sample, len(view.devices) + busy) - busy
        plan = self.ask(task, view, context, plain, count)
        above = from_state(state.get("from above", {}))
        if not above:
            return plan
        full = with_residuals(plain, above)
        to_devices = full if self.options.residuals_down in ("devices", "all") else plain
        return replace(plan, packets={child: full if child in view.nodes else to_devices for child in plan.packets})

    def check(self, task: Task, up: Packet) -> str | None:
        problem = model_mismatch(task, Packet(uploaded_weights(up)))
        found = (model_mismatch(task, Packet(each.weights)) for each in unpack_residuals(up).values())
        return problem or next((each for each in found if each is not None), None)

    def ready(self, progress: Progress) -> bool:
        return progress.arrived >= self.options.buffer if self.asynchronous else super().ready(progress)

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        uploads = combined.parts() if isinstance(self.reducer, Collect) else {"": combined}
        children, discount = self._children(uploads)
        model, data = state[MODEL], self._proxy_data(task)
        if data is not None and self.options.proxy == "beside":
            children.append(ReceivedModel(self._train(task, model, data, state, context), float(len(data))))
        samples = sum(each.samples for each in children)
        if not samples:
            return state
        residuals: dict[str, ReceivedModel] = {}
        for up in uploads.values():
            residuals.update(unpack_residuals(up))
        taken = [] if self.place.depth else list(residuals.values())
        received = ReceivedModel(mean_of(children), samples)
        merged, memory = self.options.optimiser_up(self.place.depth).merge(
            task, model, received, taken, state.get("up", {}), data, discount
        )
        if data is not None and self.options.proxy == "before":
            merged = self._train(task, merged, data, state, context)
        if self.place.depth:
            devices = {child: up for child, up in uploads.items() if DEPTH not in up.scalars}
            residuals.update(self.options.selector.select(task, context.node, model, devices))
            return {**state, MODEL: merged, "up": memory, SAMPLES: samples, "from below": to_state(residuals)}
        return {**state, MODEL: merged, "up": memory}

    def own_training(self, task: Task) -> ServerTraining | None:
        data = self._proxy_data(task) if self.options.proxy != "none" else None
        if data is None:
            return None
        client = server_client(TaskLoss(), task.train.lr, self.options.proxy_epochs, task.train.batch)
        return ServerTraining(client, len(data), beside=self.options.proxy == "beside")

    def report(self, task: Task, state: State, partial: Packet | None, context: Context) -> Packet | None:
        if SAMPLES not in state:
            return None  # nobody has answered since the parent asked
        return self._answer(state[MODEL], state[SAMPLES], from_state(state["from below"]))

    def expected_answer(self, node: str, uploads: Mapping[str, Packet]) -> Packet | None:
        residuals = {name: each for up in uploads.values() for name, each in unpack_residuals(up).items()}
        devices = {child: up for child, up in uploads.items() if DEPTH not in up.scalars}
        residuals |= self.options.selector.expected(node, devices)
        return self._answer(uploaded_weights(next(iter(uploads.values()))), 0.0, residuals)

    def _answer(self, model: Weights, samples: float, residuals: Mapping[str, ReceivedModel]) -> Packet:
        scalars = {SAMPLES: samples}
        if self.options.selector.count:
            scalars[DEPTH] = float(self.place.depth)
        return with_residuals(Packet(model, scalars), residuals)

    def _children(self, uploads: Mapping[str, Packet]) -> tuple[list[ReceivedModel], float]:
        """The children's models with the samples behind them, and the factor of the rate for their age."""
        weigh = Staleness(self.options.staleness)
        children, before = [], 0.0
        for _, up in sorted(uploads.items()):
            samples = up.scalars[SAMPLES]
            before += samples
            factor = weigh(int(up.scalars.get("age", 0))) if self.asynchronous else 1.0
            children.append(ReceivedModel(uploaded_weights(up), samples * factor))
        after = sum(each.samples for each in children)
        return children, after / before if before and self.asynchronous else 1.0

    def _proxy_data(self, task: Task) -> Shard | None:
        return public_data(task, "bhfl", labelled=True) if self.options.has_proxy_data(self.place) else None

    def _train(self, task: Task, model: Weights, data: Shard, state: State, context: Context) -> dict[str, Tensor]:
        entries, epochs, batch = {X: data.x, Y: data.y}, self.options.proxy_epochs, task.train.batch
        lr = learning_rate(task.train, int(state.get(ROUND, context.round)))
        return train_on_server(task, model, entries, TaskLoss(), context, lr, epochs, batch)
