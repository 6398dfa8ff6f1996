"""PaFL, personalisation-aware FL (Iacob et al. 2023, §3): the loss of local adaptation begins during the training.

Down: w. In round t of T a device minimises (eq. 8), for E epochs of SGD from w,

    μ(t)·L + (1 − μ(t))·D(t),

where L is the loss of the task and D(t) a loss of local adaptation whose reference model is the w of this round. Up:
w_k and n_k. Server: w ← Σ p_k·w_k, p_k = n_k / Σ n. With μ = 1 it is FedAvg, bit for bit.

term "h_kd" and "h_ewc" are H_KD and H_EWC of the paper: μ(t) = 1 in the rounds t < start·T (rounds count from 0), and
μ(t) = mu from then on. D is the whole loss of the adaptation, which contains L, so that mu = 0 is the paper's setting:

    h_kd    (1 − alpha)·L + alpha·T²·KL(softmax(g/T) ‖ softmax(z/T)), with the logits z and those g of w
    h_ewc   L + (lam/2)·Σ M_i·(w_k,i − w_i)², with the diagonal empirical Fisher information M of w on the device's data

form "printed" takes the loss of h_kd as the paper prints it in eq. 6: alpha·T²·L + (1 − alpha)·KL. form "averaged"
divides KL by the number of classes, as the program of the cited work does. With SGD, M_i is at most
1/(learning rate·lam·(1 − mu)), because steps with a larger one go beyond w_i, and diverge from twice that on.

Another schedule is a function of the round and the number of rounds that returns μ and D, an `Objective`: an object in
Python, `PaFL(term=schedule)`, or its name, `term: mymodule:schedule`. Then start, mu and the numbers above have no
effect. An objective of your own should be a frozen dataclass: engines compute jobs together whose objectives are equal.

    >>> import undergrowth as ug
    >>> result = ug.run(method="pafl", options={"term": "h_ewc", "start": 0.5}, rounds=2)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from undergrowth.core import (
    Context,
    InputError,
    LoopClient,
    Method,
    Packet,
    Plan,
    State,
    Task,
    Updates,
    View,
    option,
    suggest,
)
from undergrowth.core.names import MODEL
from undergrowth.learning import (
    AveragingServer,
    GradientClient,
    Objective,
    TaskLoss,
    distillation_loss,
    elastic_loss,
    weighted_sum,
)
from undergrowth.learning.reference import CITED, FORMS

SINCE = "since"  # tag of downloads, in states: the first round with the same μ and D as this one
TERMS = ("h_kd", "h_ewc")
Schedule = Callable[[int, int], tuple[float, Objective]]  # of the round, from 0, and the number of rounds: μ and D


@dataclass(frozen=True)
class LateSchedule:
    """μ = 1 until the fraction `start` of the rounds is over, then `mu`."""

    start: float
    mu: float
    loss: Objective

    def __call__(self, round: int, rounds: int) -> tuple[float, Objective]:
        is_early = round < self.start * rounds - 1e-9  # 0.07 * 100 is a little more than 7 in floating point
        return (1.0 if is_early else self.mu), self.loss


@dataclass(frozen=True)
class PaFLClient(Updates):
    """Trains with the loss of the round; the packet names the first round with this loss."""

    schedule: Schedule

    def updates(self, task: Task, down: Packet) -> Mapping[str, LoopClient]:
        since = down.tags.get(SINCE, "0")
        mu, loss = self.schedule(int(since), task.train.rounds)
        return {since: GradientClient(weighted_sum((mu, TaskLoss()), (1 - mu, loss)))}


@dataclass(frozen=True, kw_only=True)
class PaFLServer(AveragingServer):
    """Tells devices which loss to use. state: below the root, `since` is that of the parent.

    A first round with the same loss, instead of the round itself, stays the same from round to round. Engines compute
    and price jobs together whose packets agree.
    """

    schedule: Schedule

    def init(self, task: Task, context: Context) -> State:
        for round in range(task.train.rounds):
            check_schedule(self.schedule, round, task.train.rounds)
        return super().init(task, context)

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {MODEL: dict(down.tensors), SINCE: down.tags.get(SINCE, "0")}

    def steady_state(self, task: Task, state: State) -> State:
        return {**state, SINCE: self._since(task.train.rounds - 1, task.train.rounds)}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        since = state.get(SINCE) or self._since(context.round, task.train.rounds)
        tags = {} if since == "0" else {SINCE: since}
        return self.ask(task, view, context, Packet(state[MODEL], tags=tags))

    def _since(self, round: int, rounds: int) -> str:
        now = self.schedule(round, rounds)
        return str(next((earlier for earlier in range(round) if self.schedule(earlier, rounds) == now), round))


@dataclass(frozen=True)
class PaFL(Method):
    term: str | Schedule = option("h_kd", "h_kd, h_ewc, or module:function of a schedule of your own", importable=True)
    start: float = option(0.5, "fraction of the rounds after which the term is used", at_least=0, at_most=1)
    mu: float = option(0.0, "weight of the plain loss from then on; 1 is FedAvg", at_least=0, at_most=1)
    temperature: float = option(6.0, "h_kd: divides the logits of both models", above=0)
    alpha: float = option(0.95, "h_kd: weight of the term with the received model's logits", at_least=0, at_most=1)
    form: str = option(
        CITED, "h_kd: the loss of the cited work, as the paper prints it, or with a mean over classes", choices=FORMS
    )
    lam: float = option(5000.0, "h_ewc: strength of the pull towards the received weights", at_least=0)

    def check(self) -> None:
        if isinstance(self.term, str) and self.term not in TERMS:
            raise InputError(f"method.term '{self.term}' is not known; {suggest(self.term, TERMS)}, or module:function")

    @property
    def schedule(self) -> Schedule:
        if not isinstance(self.term, str):
            return self.term
        ewc = self.term == "h_ewc"
        loss = elastic_loss(self.lam) if ewc else distillation_loss(self.alpha, self.temperature, self.form)
        return LateSchedule(self.start, self.mu, loss)

    @property
    def client(self) -> PaFLClient:
        return PaFLClient(self.schedule)

    @property
    def server(self) -> PaFLServer:
        return PaFLServer(schedule=self.schedule)


def check_schedule(schedule: Schedule, round: int, rounds: int) -> None:
    """Raise an InputError if a schedule does not return a weight and an objective."""
    found = schedule(round, rounds)
    fits = isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], int | float)
    if not fits or not 0 <= found[0] <= 1 or not isinstance(found[1], Objective):
        raise InputError(
            f"method.term: the schedule returned {found!r} for round {round} of {rounds}; it must return mu, a number "
            "from 0 to 1, and an Objective"
        )
