"""Engines: where the work of devices runs. No engine knows a method."""

from collections.abc import Callable

from undergrowth.engines.processes.engine import ProcessesEngine
from undergrowth.engines.ray_cluster.engine import RayEngine
from undergrowth.engines.serial import SerialEngine
from undergrowth.engines.states import States
from undergrowth.engines.torch_settings import restore_torch_settings, set_torch
from undergrowth.engines.vector.engine import VectorEngine
from undergrowth.engines.world import Engine, EngineSettings, Job, Outcome, World

ENGINES: dict[str, Callable[[EngineSettings], Engine]] = {
    "serial": SerialEngine,
    "processes": ProcessesEngine,
    "vector": VectorEngine,
    "ray": RayEngine,
}
# The settings of the section `run` that only some engines use.
ENGINE_SETTINGS: dict[str, tuple[str, ...]] = {
    "serial": (),
    "processes": ("workers", "placement", "stack", "chunk"),
    "vector": ("chunk",),
    "ray": ("workers", "placement", "address"),
}

__all__ = [
    "ENGINES", "ENGINE_SETTINGS", "Engine", "EngineSettings", "Job", "Outcome", "ProcessesEngine", "RayEngine",
    "SerialEngine", "States", "VectorEngine", "World", "restore_torch_settings", "set_torch",
]  # fmt: skip
