"""The clock: how long each device takes for a job, and what may interrupt it."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from copy import copy
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple, Protocol

import torch

from undergrowth.core import Client, Context, Packet, Shard, State, Task
from undergrowth.devices import Availability, Failures, Fleet, Tracer, Work, price_work
from undergrowth.engines import States
from undergrowth.engines.samples import shards_at
from undergrowth.exchange import TIMED, Links

BATTERY_EMPTY = "its battery ran out"


class Timing(NamedTuple):  # a tuple, because a simulation makes millions of them
    """How one job goes: its seconds, its cost for the device, and how it ends.

    Checkpoints store it by position: a new field comes last and has a default.
    """

    seconds_down: float = 0.0
    seconds_compute: float = 0.0
    seconds_up: float = 0.0
    flops: float = 0.0
    memory: int = 0
    joules: float = 0.0
    lost: str = ""  # why the device never answers; the seconds then end when it is lost
    limit: int | None = None  # steps after which it stops to meet the deadline
    received: float = 1.0  # fraction of the download that arrived
    joules_down: float = 0.0  # the part of `joules` that receiving takes
    joules_up: float = 0.0  # the part that sending takes; the rest is for computing

    @property
    def seconds(self) -> float:
        return self[0] + self[1] + self[2]  # by position: a simulation comes here a million times

    def cut(self, seconds: float) -> Timing:
        """The part of the job that was done in its first `seconds`."""
        down = min(self.seconds_down, seconds)
        compute = min(self.seconds_compute, seconds - down)
        up = min(self.seconds_up, seconds - down - compute)
        received = down / self.seconds_down if self.seconds_down else float(seconds > 0)
        done = compute / self.seconds_compute if self.seconds_compute else 1.0
        sent = up / self.seconds_up if self.seconds_up else 1.0
        joules = self.joules
        if seconds < self.seconds:  # by phase, as the price has it: a radio and a processor draw different power
            joules = self.joules_down * received + self.joules_up * sent
            joules += self._joules_compute * done if compute else 0.0
        return self._replace(
            seconds_down=down, seconds_compute=compute, seconds_up=up, flops=self.flops * done,
            joules=joules,
            joules_down=self.joules_down * received, joules_up=self.joules_up * sent,
            received=self.received * received,
        )  # fmt: skip

    def seconds_on(self, joules: float) -> float:
        """How long the job goes on with this energy."""
        seconds = 0.0
        for phase, needed in (
            (self.seconds_down, self.joules_down),
            (self.seconds_compute, self._joules_compute),
            (self.seconds_up, self.joules_up),
        ):
            if needed > joules:
                return seconds + phase * joules / needed
            seconds, joules = seconds + phase, joules - needed
        return seconds

    @property
    def _joules_compute(self) -> float:
        return self.joules - self.joules_down - self.joules_up

    def then(self, other: Timing) -> Timing:
        """The timing of two jobs, one after the other, that ends as the first one does."""
        return self._replace(
            seconds_down=self.seconds_down + other.seconds_down,
            seconds_compute=self.seconds_compute + other.seconds_compute,
            seconds_up=self.seconds_up + other.seconds_up,
            flops=self.flops + other.flops,
            memory=max(self.memory, other.memory),
            joules=self.joules + other.joules,
            joules_down=self.joules_down + other.joules_down,
            joules_up=self.joules_up + other.joules_up,
        )


# The values of a timing that an entry of the ledger has, in the order of its columns.
booked_values = itemgetter(*(Timing._fields.index(name) for name in TIMED))


class Clock:
    """The base of clocks. By default all devices are always available."""

    def timing(self, device: str, down: Packet, size: int, context: Context, now: float, by: float | None) -> Timing:
        """How a job goes that starts now.

        `size`: bytes of the download. `by`: seconds after which partial work is due; None if it is not accepted.
        """
        raise NotImplementedError("a clock defines timing")

    def away(self, now: float) -> Container[str]:
        """The devices that cannot be reached now."""
        return frozenset()

    def next_on(self, now: float, devices: Sequence[str]) -> float:
        """When the first of `devices`, which are all away, can be reached again; infinity if never."""
        return math.inf

    def own_timing(self, device: str, down: Packet, own: State, root_round: int) -> Timing:
        """How a job goes that needs no link, for a device that keeps `own`.

        A device without the memory or the charge for it is lost.
        """
        raise NotImplementedError("a clock defines own_timing if devices train between rounds")

    def end_job(self, device: str, timing: Timing) -> None:
        """A job has ended, with this timing."""

    def snapshot(self) -> State:
        """Everything that changes, as a pytree."""
        return {}

    def restore(self, snapshot: State) -> None:
        """Continues from a snapshot."""


class DeviceData(Protocol):
    """What the clock needs of a population."""

    @property
    def devices(self) -> Sequence[str]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def size(self, device: str) -> int: ...
    def train(self, device: str) -> Shard: ...


class FleetClock(Clock):
    """Traces the work of a device and prices it on the device's profile. Servers use it as their device facts, too."""

    def __init__(
        self,
        fleet: Fleet,
        task: Task,
        client: Client,
        population: DeviceData,
        states: States,
        dtype: torch.dtype = torch.float32,
        availability: Availability | None = None,
        failures: Failures | None = None,
        links: Links | None = None,
    ) -> None:
        self.fleet = fleet
        self.population = population
        self.states = states
        self.availability = availability
        self.failures = failures
        self.links = links or Links()
        self.tracer = Tracer(task, client, population.shape, dtype, self.links.weigh)
        self.now = 0.0
        self._batteries = any(entry.profile.battery is not None for entry in fleet.entries)
        self._used: dict[str, float] = {}  # joules taken from the batteries of devices that have one
        self._priced: dict[str, tuple[tuple[Work, int, float | None], Timing]] = {}  # device → its last price
        self.root_round: Callable[[], int] | None = None  # the round of the root; None: samples never change
        # Device → its samples of each class, in a round; filled on demand.
        self._labels: dict[str, tuple[int, tuple[int, ...] | None]] = {}
        self.empty: set[str] = set()  # devices whose battery ran out

    def timing(self, device: str, down: Packet, size: int, context: Context, now: float, by: float | None) -> Timing:
        self.now = now
        _, timing = self.plain_timing(device, down, size, by)
        if timing.lost:
            return timing.cut(0.0)
        battery = self.fleet.profile(device).battery if self._batteries else None
        if battery is None and self.failures is None and self.availability is None:
            return timing
        return self._interrupted(device, timing, context, now, battery)

    def plain_timing(
        self, device: str, down: Packet, size: int, by: float | None, own: State | None = None
    ) -> tuple[Work, Timing]:
        """The work of a job, and how it goes without interruptions. A device without enough memory is lost.

        `own`: as in `work`.
        """
        work = self.work(device, down, own)
        key = (work, size, by)
        known = self._priced.get(device)
        if known is None or known[0] != key:  # most devices do the same work in every round
            known = self._priced[device] = (key, self._price(device, work, size, by))
        return work, known[1]

    def work(self, device: str, down: Packet, own: State | None = None) -> Work:
        """The work of a device that receives `down`, with the samples and the state (or `own`) that it has now."""
        size, own = self.samples(device), self.states.get(device) if own is None else own
        return self.tracer.work(down, size, own, lambda: self._counts(device, size))

    def _counts(self, device: str, size: int) -> tuple[int, ...] | None:
        """How many samples of each class a device has; None if the population knows only their total."""
        now = 0 if self.root_round is None else self.root_round()
        if self._labels.get(device, (-1, None))[0] != now:
            labels = shards_at(self.population, now).train(device).y.cpu().flatten()
            self._labels[device] = now, tuple(torch.bincount(labels).tolist()) if len(labels) == size else None
        return self._labels[device][1]

    def undisturbed(self, states: States) -> FleetClock:
        """A clock of the same devices with other states. They are always available, never fail and have no battery."""
        clock = copy(self)
        clock.states, clock.availability, clock.failures, clock._batteries = states, None, None, False
        clock.empty = set()
        return clock

    def _price(self, device: str, work: Work, size: int, by: float | None) -> Timing:
        profile = self.fleet.profile(device)
        cost = price_work(profile, work, size, work.bytes_up)
        down, up = profile.radio_watts * size / profile.down, profile.radio_watts * work.bytes_up / profile.up
        timing = Timing(*cost[:3], work.flops, work.memory, cost.joules, joules_down=down, joules_up=up)
        if not cost.fits:
            beside = f" beside {profile.runtime / 1e6:.2f} MB of the runtime" if profile.runtime else ""
            needs = f"the work needs {work.memory / 1e6:.2f} MB{beside} and it has {profile.memory / 1e6:.2f} MB"
            return timing._replace(lost=needs)
        if by is not None and timing.seconds > by and work.steps:
            room = by - timing.seconds_down - timing.seconds_up
            limit = work.most_steps(room / timing.seconds_compute) if timing.seconds_compute else work.steps
            if limit >= 1:
                fraction = work.fraction(limit)
                saved = (1 - fraction) * timing.seconds_compute
                timing = timing._replace(
                    seconds_compute=timing.seconds_compute - saved,
                    flops=timing.flops * fraction,
                    joules=timing.joules - profile.compute_watts * saved,
                    limit=limit,
                )
        return timing

    def _interrupted(self, device: str, timing: Timing, context: Context, now: float, battery: float | None) -> Timing:
        """The timing with interruptions: the first one ends the job."""
        end, reason = timing.seconds, ""
        if self.failures is not None:
            drawn = self.failures.draw(context)
            if drawn is not None:
                reason, end = drawn[0], drawn[1] * timing.seconds
        if self.availability is not None:
            left = self.availability.until(device, now) - now
            if left < end or (not reason and left < timing.seconds):
                reason, end = "it went offline", max(0.0, left)
        if battery is not None:
            left = max(0.0, battery - self._used.get(device, 0.0))
            if timing.joules > left:
                alive = timing.seconds_on(left)
                if alive < end or not reason:
                    reason, end = BATTERY_EMPTY, alive
        return timing.cut(end)._replace(lost=reason) if reason else timing

    def own_timing(self, device: str, down: Packet, own: State, root_round: int) -> Timing:
        work = self.tracer.work(down, shards_at(self.population, root_round).size(device), own)
        timing = self._price(device, replace(work, bytes_up=0), 0, None)
        timing = timing._replace(seconds_down=0.0, seconds_up=0.0)  # the latency of a link
        battery = self.fleet.profile(device).battery if self._batteries else None
        if battery is not None and timing.joules > battery - self._used.get(device, 0.0):
            return timing._replace(lost=BATTERY_EMPTY)
        return timing

    def away(self, now: float) -> Container[str]:
        self.now = now
        if self.availability is None and not self.empty:
            return frozenset()
        gone = set(self.empty)
        if self.availability is not None:
            on = self.availability.on(now)
            gone.update(device for device, there in zip(self.population.devices, on.tolist(), strict=True) if not there)
        return gone

    def next_on(self, now: float, devices: Sequence[str]) -> float:
        if self.availability is None:
            return math.inf
        powered = [device for device in devices if device not in self.empty]
        return self.availability.next_on(math.nextafter(now, math.inf), powered)

    def end_job(self, device: str, timing: Timing) -> None:
        if self._batteries and self.fleet.profile(device).battery is not None:
            self._used[device] = self._used.get(device, 0.0) + timing.joules
            if timing.lost == BATTERY_EMPTY:
                self.empty.add(device)

    # Device facts for servers ---------------------------------------------------------------------------

    def samples(self, device: str) -> int:
        now = self.population if self.root_round is None else shards_at(self.population, self.root_round())
        return now.size(device)

    def seconds(self, device: str, down: Packet) -> float:
        work = self.work(device, down)
        cost = price_work(self.fleet.profile(device), work, self.links.down(down)[1], work.bytes_up)
        return cost.seconds if cost.fits else math.inf

    def window(self, device: str) -> float:
        return math.inf if self.availability is None else self.availability.until(device, self.now) - self.now

    def speed(self, device: str) -> float:
        return self.fleet.profile(device).achieved_flops

    def snapshot(self) -> State:
        return {"used": dict(self._used), "empty": sorted(self.empty)}

    def restore(self, snapshot: State) -> None:
        self._used, self.empty = dict(snapshot["used"]), set(snapshot["empty"])
