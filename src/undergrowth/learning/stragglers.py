"""Stragglers: devices that cannot do the full update in a round, and the smaller update that they do instead."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch

from undergrowth.core import Context, InputError, Packet, Plan, Server, State, Task, View, option, suggest
from undergrowth.core.names import EPOCHS, MODEL
from undergrowth.core.samplers import count_of
from undergrowth.learning.planning import ask_each
from undergrowth.learning.servers import AveragingServer

EACH_ROUND, FIXED = "each-round", "fixed"


@dataclass(frozen=True, kw_only=True)
class StragglerOptions:
    """Options of a method in which stragglers do less than other devices, and the rule that chooses stragglers.

    A straggler is a device that would miss the deadline with the full update. With `f_n` devices are drawn instead:
    that fraction of them are no stragglers, `f_fs` of them are stragglers that take part, and the rest is not asked.
    The draw depends on the seed, the device and, unless fixed, the round: it is the same for all methods. `able` names
    the devices that are no stragglers instead.
    """

    f_n: float | None = option(
        None, "fraction of devices that are not stragglers; None: the deadline decides", above=0, at_most=1
    )
    f_fs: float | None = option(
        None, "fraction of devices that are stragglers and take part; None: all stragglers do", at_least=0, at_most=1
    )
    stragglers: str = option(EACH_ROUND, "with f_n: when stragglers are drawn", choices=(EACH_ROUND, FIXED))
    able: tuple[str, ...] = option((), "names of the devices that are not stragglers, instead of f_n")
    reduced_epochs: int = option(0, "epochs of the full update that stragglers do; 0: none", at_least=0)
    random_epochs: bool = option(False, "stragglers do a random number of epochs, from reduced_epochs to the run's")

    def check(self) -> None:
        if self.able and self.f_n is not None:
            raise InputError(f"method.able names the devices that are no stragglers; leave out method.f_n {self.f_n:g}")
        if self.f_fs is not None and (self.f_n is None or self.f_n + self.f_fs > 1 + 1e-9):
            raise InputError(
                f"method.f_fs {self.f_fs:g} needs method.f_n, and both may add up to 1 at most; f_n is {self.f_n}"
            )
        if self.random_epochs and not self.reduced_epochs:
            raise InputError("method.random_epochs True needs method.reduced_epochs of at least 1, the fewest epochs")

    def check_devices(self, devices: Collection[str]) -> None:
        unknown = next((name for name in self.able if name not in devices), None)
        if unknown is not None:
            raise InputError(f"method.able: there is no device '{unknown}'; {suggest(unknown, devices)}")

    def averaging_server(self, lr: float = 1.0, accepts_partial: bool = False) -> AveragingServer:
        """The server that averages models and treats stragglers by these options."""
        if not self.chosen and not self.reduced_epochs:
            return AveragingServer(lr, accepts_partial=accepts_partial)
        return StragglerServer(lr, accepts_partial=accepts_partial, options=self)

    @property
    def chosen(self) -> bool:
        """Whether these options choose the stragglers. Otherwise the deadline does."""
        return self.f_n is not None or bool(self.able)

    def split_devices(
        self, task: Task, view: View, context: Context, full: Packet
    ) -> tuple[Sequence[str], Sequence[str]]:
        """The devices that do the full update, and the stragglers that take part."""
        devices, deadline = view.devices, task.train.deadline
        if self.f_n is not None:
            fixed = self.stragglers == FIXED
            at = context._replace(round=0 if fixed else context.round, turn=0)
            order = sorted(devices, key=lambda device: at._replace(node=device).key("straggler"))
            able = count_of(self.f_n, len(order))
            # Rounded together, so that everybody takes part if both fractions add up to 1.
            taking_part = len(order) if self.f_fs is None else round((self.f_n + self.f_fs) * len(order))
            return order[:able], order[able:taking_part]
        if self.able:
            return [name for name in devices if name in self.able], [name for name in devices if name not in self.able]
        if deadline is None:
            return devices, ()
        in_time = [device for device in devices if view.knowledge.seconds(device, full) <= deadline]
        return in_time, sorted(set(devices).difference(in_time))

    def epochs_of(self, device: str, task: Task, context: Context) -> int:
        """The epochs of the full update that this straggler does."""
        if not self.random_epochs:
            return self.reduced_epochs
        most = max(self.reduced_epochs, task.train.epochs)
        generator = context._replace(node=device).generator("epochs")
        return int(torch.randint(self.reduced_epochs, most + 1, (), generator=generator))

    def plan_round(
        self,
        server: Server,
        task: Task,
        view: View,
        context: Context,
        full: Packet,
        light: Callable[[str], Packet] | None,
    ) -> Plan:
        """The server's plan: `full` for devices that can do it, `light(device)` for stragglers.

        light: None leaves the stragglers out.
        """
        able, slow = self.split_devices(task, view, context, full)
        packets = {
            **dict.fromkeys((*view.nodes, *able), full),
            **({name: light(name) for name in slow} if light else {}),
        }
        idle = tuple(child for child in view.idle if child in packets)
        return ask_each(server, task, replace(view, idle=idle), context, packets)


@dataclass(frozen=True)
class StragglerServer(AveragingServer):
    """Averages models; stragglers do fewer epochs, or are not asked."""

    options: StragglerOptions = StragglerOptions()

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        packets: dict[int, Packet] = {}  # one packet for all devices with the same number of epochs

        def light(device: str) -> Packet:
            epochs = self.options.epochs_of(device, task, context)
            return packets.setdefault(epochs, Packet(state[MODEL], {EPOCHS: float(epochs)}))

        full = Packet(state[MODEL])
        return self.options.plan_round(self, task, view, context, full, light if self.options.reduced_epochs else None)
