"""Planning: rounds in which devices are sent different packets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from undergrowth.core import Context, DeviceKnowledge, Packet, Plan, Server, Task, View


@dataclass(frozen=True)
class PacketKnowledge:
    """What is known about devices that get a packet each: `seconds` is the time for the device's own packet."""

    knowledge: DeviceKnowledge
    packets: Mapping[str, Packet]

    def samples(self, device: str) -> int:
        return self.knowledge.samples(device)

    def seconds(self, device: str, down: Packet) -> float:
        return self.knowledge.seconds(device, self.packets.get(device, down))

    def window(self, device: str) -> float:
        return self.knowledge.window(device)

    def speed(self, device: str) -> float:
        return self.knowledge.speed(device)


def ask_each(
    server: Server, task: Task, view: View, context: Context, packets: Mapping[str, Packet], everybody: bool = False
) -> Plan:
    """The server's plan with ``packets[child]`` for every child. `everybody`: ask all children, without a deadline."""
    if everybody:
        plan = Plan(dict.fromkeys(view.idle, Packet()))
    else:
        plan = server.ask(task, replace(view, knowledge=PacketKnowledge(view.knowledge, packets)), context, Packet())
    sends = {child: packets[child] for child in plan.packets}
    return replace(plan, packets=group_by_packet(sends, packets.values()))


def group_by_packet(sends: Mapping[str, Packet], packets: Iterable[Packet]) -> dict[str, Packet]:
    """`sends` with children of the same packet next to each other, in the order of `packets`.

    Links and prices cache the latest packet.
    """
    positions: dict[int, int] = {}
    for packet in packets:
        positions.setdefault(id(packet), len(positions))
    return dict(sorted(sends.items(), key=lambda sent: positions[id(sent[1])]))
