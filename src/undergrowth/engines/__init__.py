"""Where device work runs. Nothing here knows a method."""

from collections.abc import Callable

from undergrowth.engines.cluster.engine import RayCluster
from undergrowth.engines.processes.engine import Processes
from undergrowth.engines.serial import Serial
from undergrowth.engines.states import States
from undergrowth.engines.vector.engine import Vector
from undergrowth.engines.world import Engine, Job, Outcome, Settings, World, set_torch, torch_restored

ENGINES: dict[str, Callable[[Settings], Engine]] = {
    "serial": Serial, "processes": Processes, "vector": Vector, "ray": RayCluster,
}  # fmt: skip

__all__ = [
    "ENGINES",
    "Engine",
    "Job",
    "Outcome",
    "Processes",
    "RayCluster",
    "Serial",
    "Settings",
    "States",
    "Vector",
    "World",
    "set_torch",
    "torch_restored",
]
