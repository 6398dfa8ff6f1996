"""A small world whose devices do what their download says: fail, spoil their upload, kill their worker."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

import torch

from undergrowth.core import Context, InputError, Packet, Shard, State, Task, WeightedMean
from undergrowth.engines import Job, World
from undergrowth.learning import AveragingServer

from ..simulation.federations import TASK

NAMES = [f"device-{number}" for number in range(6)]
MODEL = TASK.model.initial(0)


class Obedient:
    """Adds noise to the model, writes a line to the device's file, and does what the download says for its device."""

    def local(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Packet, State]:
        diary = Path(down.tags["diary"])
        first = not (diary / context.node).exists()
        with (diary / context.node).open("a") as page:
            page.write("worked\n")
        wish = down.tags.get(context.node)
        if wish == "die" or (wish == "die once" and first):
            os.kill(os.getpid(), signal.SIGKILL)
        if wish == "fail":
            raise ZeroDivisionError("no luck")
        if wish == "complain":
            raise InputError("method.mu -1 must be at least 0")
        noise = torch.randn((), generator=context.generator("noise")) + (float("nan") if wish == "spoil" else 0)
        up = Packet({name: value + noise for name, value in down.tensors.items()}, {"samples": float(len(shard))})
        if wish == "shrink":
            up = Packet({name: value[:1] for name, value in up.tensors.items()}, up.scalars)
        kept = {"times": own.get("times", 0) + 1, "model": dict(up.tensors)}
        return (Packet(up.tensors) if wish == "forget the weight" else up), kept


class Sizes:
    """Device N has 1 + 10·N samples."""

    def train(self, device: str) -> Shard:
        return Shard(torch.zeros(self.size(device), 2), torch.zeros(self.size(device), dtype=torch.int64))

    def size(self, device: str) -> int:
        return 1 + 10 * int(device[-1])


@dataclass(frozen=True)
class Brittle(WeightedMean):
    """Kills the worker that merges the uploads of all six devices, once, if the file `armed` exists."""

    armed: Path = Path()
    driver: int = field(default_factory=os.getpid)

    def merge(self, a: Packet, b: Packet) -> Packet:
        merged = super().merge(a, b)
        all_six = merged.scalars["samples"] == sum(map(Sizes().size, NAMES))
        if all_six and os.getpid() != self.driver and self.armed.exists():
            self.armed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return merged


class Trusting(AveragingServer):
    """Accepts uploads of any shape."""

    def check(self, task: Task, up: Packet) -> str | None:
        return None


def world(folder: Path = Path()) -> World:
    brittle = AveragingServer(reducer=Brittle(armed=folder / "armed"))
    servers = {"server": AveragingServer(), "edge": AveragingServer(), "brittle": brittle, "trusting": Trusting()}
    return World(TASK, Obedient(), servers, Sizes())


def jobs(diary: Path, combine: bool = True, round: int = 0, **wishes: str) -> list[Job]:
    down = Packet(MODEL, tags={"diary": str(diary), **{name.replace("_", "-"): wish for name, wish in wishes.items()}})
    nodes = ["server", "edge"] * 3
    return [Job(node, name, down, Context(1, name, round), combine) for node, name in zip(nodes, NAMES, strict=True)]


def days(diary: Path) -> dict[str, int]:
    return {page.name: len(page.read_text().splitlines()) for page in sorted(diary.iterdir())}
