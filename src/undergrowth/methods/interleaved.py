"""Interleaved adaptation (Iacob 2022, Cambridge thesis): rounds of training, aggregation and selective adaptation.

Every device k holds out the fraction `validation` of its training samples, V_k. When it is asked for the first time, it
also trains a model alone, `alone_epochs` epochs from the run's initial weights; a_k is the loss of that model on V_k.

Rounds are those of FedAvg on the n_k other samples: w ← Σ p_k·w_k, p_k = n_k / Σ n. In every `every`-th round:

1. Before it trains, a device measures f_k, the loss of the received model on V_k.
2. After the aggregation, devices whose federated model is below their local one, f_k > a_k, receive w: those with the
   largest f_k − a_k, at most the fraction `budget` of the devices that trained. They train v_k from w for
   `adapt_epochs` epochs with the loss of `how`, see the method `adapt`. A device whose v_k has a lower loss on V_k than
   w keeps it.
3. hand_back: these devices send v_k, which takes part in the aggregation of the round in place of their w_k:
   w ← Σ p_k·u_k, where u_k is v_k for a device that hands back and w for all others that trained.

A device uses v_k until it keeps another one, or receives a model with a lower loss on V_k; its accuracy is in
`result.clients`. The run's accuracy is that of w. With budget = 0 it is FedAvg, bit for bit. Without hand_back,
adaptation does not change w. On a stream, a_k and the loss of v_k are those on earlier samples; in every
`alone_every`-th comparison, devices measure both anew on the samples that they hold then. The thesis announces the
method without formulas; docs/decisions/0053-interleaved-adaptation.md has the choices made here.

    >>> import undergrowth as ug
    >>> result = ug.run(method="interleaved", options={"every": 2, "budget": 0.5}, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from undergrowth.core import (
    Carry,
    Client,
    Context,
    LoopClient,
    Method,
    Packet,
    Plan,
    Server,
    State,
    Task,
    Updates,
    View,
    Weights,
    model_in,
    option,
)
from undergrowth.core.client import Loop
from undergrowth.core.names import LOSS, MODEL, PHASE, SAMPLES, SEED
from undergrowth.core.samplers import count_of
from undergrowth.learning import AveragingServer, GradientClient, Trained
from undergrowth.learning.adaptation import (
    ALONE,
    VALIDATION,
    build_adaptation,
    initial_weights,
    received_model,
    trained_model,
    validate,
    validation_loss,
)
from undergrowth.learning.planning import ask_each
from undergrowth.learning.reference import CITED, FORMS
from undergrowth.learning.servers import has_no_samples

TRAIN, COMPARE, ADAPT = "train", "compare", "adapt"  # phases
FEDERATED = "federated"  # scalar of uploads: f_k; `alone` is a_k, also in a device's own state
ADAPTED = "adapted"  # scalar of uploads after an adaptation: 1 if v_k is better than w
TRAINED = "trained"  # in the server's state: Σ n of the devices that trained in this round
MAX_LOSS = 1e9  # sent instead of a larger loss or one that is not a number


def bounded(losses: Sequence[float] | None, models: int = 1) -> list[float]:
    """The losses on the validation samples; 0 for all `models` if there are no samples, so that all are equal."""
    return [loss if loss < MAX_LOSS else MAX_LOSS for loss in losses or [0.0] * models]


@dataclass(frozen=True)
class TrainingClient(GradientClient):
    """Trains the received model. own: `alone` is a_k, `model` is v_k or empty, `loss` is that of v_k."""

    renews: bool = False  # whether v_k is measured again in a job in which the device trains alone again

    def after_steps(self, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        if loops[0].down.tags[PHASE] != COMPARE:
            return super().after_steps(task, loops)
        return validate(task, loops, self.held_out, lambda loop: [received_model(task, loop)])

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        own, scalars = trained.own, dict(trained.scalars)
        if SEED not in trained.down.tags:  # else `AloneClient` sends it
            scalars[ALONE] = own.get(ALONE, 0.0)
        if trained.down.tags[PHASE] == COMPARE:
            (scalars[FEDERATED],) = bounded(trained.finish.get(VALIDATION))
            if self.renews and SEED in trained.down.tags:
                # A device without v_k measures the received model, so that the price of this work is the same for all.
                (loss,) = bounded(validation_loss(trained, own.get(MODEL) or trained.received, self.held_out))
                own = {**own, LOSS: loss} if own.get(MODEL) else own
            if own.get(MODEL) and scalars[FEDERATED] <= own[LOSS]:
                own = {**own, MODEL: {}}
        return Packet(trained.tensors, scalars), own


@dataclass(frozen=True)
class AloneClient(GradientClient):
    """Trains a model as if there were no federation, and keeps only its loss."""

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        return initial_weights(task.model, int(down.tags[SEED]))

    def after_steps(self, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        return validate(task, loops, self.held_out, lambda loop: [trained_model(task, loop)])

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        (loss,) = bounded(trained.finish.get(VALIDATION))
        return Packet(scalars={ALONE: loss}), {ALONE: loss}


@dataclass(frozen=True, kw_only=True)
class AdaptingClient(GradientClient):
    """Adapts the received model, and keeps the result if it is better on the validation samples."""

    options: Interleaved

    def after_steps(self, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        def compared(loop: Loop) -> list[Weights]:
            return [received_model(task, loop), trained_model(task, loop)]

        return validate(task, loops, self.held_out, compared)

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        before, after = bounded(trained.finish.get(VALIDATION), models=2)
        better = after < before
        adapted = {name: trained.tensors.get(name, trained.received[name]) for name in trained.task.model.shapes}
        own = trained.own
        if better:
            own = {**own, MODEL: adapted, LOSS: after}
        elif own.get(MODEL) and before <= own[LOSS]:
            own = {**own, MODEL: {}}
        scalars = {SAMPLES: trained.samples * better, ADAPTED: float(better), ALONE: trained.own.get(ALONE, 0.0)}
        return Packet(trained.tensors if self.options.hand_back else {}, scalars), own


@dataclass(frozen=True)
class InterleavedClient(Updates):
    options: Interleaved

    def updates(self, task: Task, down: Packet) -> Mapping[str, LoopClient]:
        options, held_out = self.options, self.options.validation
        if down.tags[PHASE] == ADAPT:
            how = build_adaptation(options.how, options.form)
            epochs = options.adapt_epochs
            client = AdaptingClient(how.objective, how.split, epochs=epochs, held_out=held_out, options=options)
            return {ADAPT: client}
        alone = {ALONE: AloneClient(epochs=options.alone_epochs, held_out=held_out)} if SEED in down.tags else {}
        renews = options.alone_every is not None
        return {down.tags[PHASE]: TrainingClient(held_out=held_out, renews=renews), **alone}


@dataclass(frozen=True, kw_only=True)
class InterleavedServer(AveragingServer):
    """FedAvg's server with a second phase. state: `seed` of the initial weights; below the root, also `phase`."""

    options: Interleaved

    def phases(self, task: Task, context: Context) -> Sequence[str]:
        return (COMPARE, ADAPT) if (context.round + 1) % self.options.every == 0 else (TRAIN,)

    def init(self, task: Task, context: Context) -> State:
        return {**super().init(task, context), SEED: str(context.key("model"))}

    def steady_state(self, task: Task, state: State) -> State:
        return {**state, SEED: ""}  # in later rounds, no device trains alone

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {MODEL: dict(down.tensors), PHASE: down.tags[PHASE], SEED: down.tags.get(SEED, "")}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        phase = state.get(PHASE) or view.phase
        again = Packet(state[MODEL], tags={PHASE: phase})
        first = Packet(state[MODEL], tags={PHASE: phase, **({SEED: state[SEED]} if state[SEED] else {})})
        if phase == ADAPT:
            nodes = [child for child in view.idle if child in view.nodes and child in view.answered]
            return Plan(dict.fromkeys([*nodes, *self._below(view)], again), task.train.deadline)
        renews = self._renews(phase, context)
        heard = {child for child, scalars in view.heard.items() if ALONE in scalars}
        packets = {child: again if child in heard and not renews else first for child in view.idle}
        packets.update(dict.fromkeys(view.nodes.intersection(view.idle), first))
        return ask_each(self, task, view, context, packets)

    def _renews(self, phase: str, context: Context) -> bool:
        """Whether all devices train alone again."""
        every, comparison = self.options.alone_every, (context.round + 1) // self.options.every
        return phase == COMPARE and every is not None and comparison % every == 0

    def _below(self, view: View) -> list[str]:
        """The devices that adapt, those with the largest f_k − a_k first."""
        answered = set(view.answered)
        trained = [device for device in view.devices if device in answered]
        heard = {device: view.heard.get(device, {}) for device in trained}
        gaps = {device: each.get(FEDERATED, 0.0) - each.get(ALONE, 0.0) for device, each in heard.items()}
        below = sorted((device for device in trained if gaps[device] > 0), key=lambda device: (-gaps[device], device))
        return below[: count_of(self.options.budget, len(trained))]

    def check(self, task: Task, up: Packet) -> str | None:
        return None if ADAPTED in up.scalars and not self.options.hand_back else super().check(task, up)

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        if ADAPTED not in combined.scalars:
            return {**super().step(task, state, combined, context), TRAINED: combined.scalars[SAMPLES]}
        if has_no_samples(combined) or not combined.tensors:
            return state
        rest = state[TRAINED] - combined.scalars[SAMPLES]
        adapted = Packet({**state[MODEL], **combined.tensors}, {SAMPLES: combined.scalars[SAMPLES]})
        merged = self.reducer.merge(adapted, Packet(state[MODEL], {SAMPLES: rest}))
        return {**state, MODEL: merged.tensors}


@dataclass(frozen=True)
class Interleaved(Method):
    how: str = option("fine-tune", "fine-tune, freeze, ditto[:LAMBDA], ewc[:LAMBDA] or kd[:T[:ALPHA]]")
    every: int = option(5, "rounds from one adaptation to the next", at_least=1)
    budget: float = option(
        0.2, "largest fraction of the devices that trained that adapts; 0 is FedAvg", at_least=0, at_most=1
    )
    hand_back: bool = option(True, "whether adapted models take part in the aggregation")
    adapt_epochs: int | None = option(None, "epochs of an adaptation; None: the run's", at_least=1)
    alone_epochs: int = option(5, "epochs of the model that a device trains alone", at_least=1)
    validation: float = option(0.2, "fraction of a device's samples to compare models on", above=0, below=1)
    form: str = option(CITED, "the loss of kd: cited, printed, or averaged over classes", choices=FORMS)
    alone_every: int | None = option(None, "comparisons after which devices train alone again; None: never", at_least=1)

    def check(self) -> None:
        build_adaptation(self.how, self.form)

    @property
    def client(self) -> Client:
        return InterleavedClient(self) if self.budget else GradientClient()

    @property
    def server(self) -> Server:
        return InterleavedServer(options=self) if self.budget else AveragingServer()

    def personal(self, task: Task, state: State, own: State, device: str) -> Weights:
        return own.get(MODEL) or model_in(state)
