"""Stragglers: devices that cannot do the full update in a round, and what they are asked for instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from undergrowth.core import Context, InputError, Packet, Plan, Server, State, Task, View, option
from undergrowth.core.selection import share_of
from undergrowth.learning.servers import Averaging

EACH_ROUND, FIXED = "each-round", "fixed"

Light = Callable[[str], Packet]  # what a straggler is sent


@dataclass(frozen=True, kw_only=True)
class StragglerOptions:
    """The options of every method that can say who is a straggler and have stragglers do less."""

    f_n: float | None = option(
        None, "share of the devices that are no stragglers; None: who is one shows by the deadline", above=0, at_most=1
    )
    f_fs: float | None = option(
        None, "share of the devices that are stragglers who take part; None: all of them", at_least=0, at_most=1
    )
    stragglers: str = option(EACH_ROUND, "with f_n: when stragglers are drawn", choices=(EACH_ROUND, FIXED))
    reduced_epochs: int = option(0, "epochs of the full update that stragglers do; 0: none", at_least=0)
    random_epochs: bool = option(False, "stragglers do a random number of epochs, from reduced_epochs to the run's")

    def check(self) -> None:
        if self.f_fs is not None and (self.f_n is None or self.f_n + self.f_fs > 1 + 1e-9):
            raise InputError(
                f"method.f_fs {self.f_fs:g} needs method.f_n, and both may add up to 1 at most; f_n is {self.f_n}"
            )
        if self.random_epochs and not self.reduced_epochs:
            raise InputError("method.random_epochs True needs method.reduced_epochs of at least 1, the fewest epochs")

    @property
    def rule(self) -> Stragglers:
        return Stragglers(self.f_n, self.f_fs, self.stragglers == FIXED, self.reduced_epochs, self.random_epochs)

    def averaging(self, lr: float = 1.0, accepts_partial: bool = False) -> Averaging:
        """The server that averages models, and treats stragglers as the options say."""
        if self.f_n is None and not self.reduced_epochs:
            return Averaging(lr, accepts_partial=accepts_partial)
        return Sparing(lr, accepts_partial=accepts_partial, rule=self.rule)


@dataclass(frozen=True)
class Stragglers:
    """Who is a straggler in a round: who would miss the deadline with the full update, or who is drawn.

    With `f_n`, so large a share of the devices is drawn to be no stragglers and `f_fs` of them to be stragglers who
    take part; the others are not asked. The draw hangs on the seed, the device and, unless `fixed`, the round: it
    is the same for all methods.
    """

    f_n: float | None = None
    f_fs: float | None = None
    fixed: bool = False
    epochs: int = 0  # of the full update that stragglers do
    random: bool = False  # epochs are the fewest, and the run's the most

    def plan(self, server: Server, task: Task, view: View, context: Context, full: Packet, light: Light | None) -> Plan:
        """The server's plan: `full` for those who can do it, `light` for stragglers; None: they are not asked."""
        able, slow = self.split(task, view, context, full)
        asked = {*able, *(slow if light else ())}
        idle = tuple(child for child in view.idle if child in view.nodes or child in asked)
        plan = server.ask(task, replace(view, idle=idle), context, full)
        if light is None:
            return plan
        stragglers = set(slow)
        sends = {child: light(child) if child in stragglers else full for child in plan.sends}
        # Those with the same packet one after the other: links and prices remember the latest.
        places: dict[int, int] = {}
        for packet in (full, *sends.values()):
            places.setdefault(id(packet), len(places))
        return replace(plan, sends=dict(sorted(sends.items(), key=lambda sent: places[id(sent[1])])))

    def split(self, task: Task, view: View, context: Context, full: Packet) -> tuple[Sequence[str], Sequence[str]]:
        """The devices that are no stragglers, and the stragglers that take part."""
        devices, deadline = view.devices, task.train.deadline
        if self.f_n is not None:
            at = context._replace(round=0 if self.fixed else context.round, turn=0)
            order = sorted(devices, key=lambda device: at._replace(node=device).key("straggler"))
            able = share_of(self.f_n, len(order))
            helpers = len(order) if self.f_fs is None else round(self.f_fs * len(order))
            return order[:able], order[able : able + helpers]
        if deadline is None:
            return devices, ()
        in_time = [device for device in devices if view.knows.seconds(device, full) <= deadline]
        return in_time, sorted(set(devices).difference(in_time))

    def epochs_of(self, device: str, task: Task, context: Context) -> int:
        """How many epochs of the full update this straggler does."""
        if not self.random:
            return self.epochs
        most = max(self.epochs, task.train.epochs)
        drawn = context._replace(node=device).generator("epochs")
        return int(torch.randint(self.epochs, most + 1, (), generator=drawn))


@dataclass(frozen=True)
class Sparing(Averaging):
    """Averages models; stragglers do fewer epochs, or are not asked."""

    rule: Stragglers = Stragglers()

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        full = Packet(state["model"])
        packets: dict[int, Packet] = {}  # one for all who do so many epochs

        def light(device: str) -> Packet:
            epochs = self.rule.epochs_of(device, task, context)
            return packets.setdefault(epochs, Packet(state["model"], {"epochs": float(epochs)}))

        return self.rule.plan(self, task, view, context, full, light if self.rule.epochs else None)
