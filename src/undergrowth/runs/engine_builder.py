"""From an experiment to the engine and the torch device that it names, and the settings of that engine."""

from __future__ import annotations

import os

import torch

from undergrowth.core import InputError, suggest
from undergrowth.engines import ENGINES, Engine, EngineSettings
from undergrowth.runs.config import Experiment
from undergrowth.runs.own_objects import references


def build_engine(experiment: Experiment) -> Engine:
    """The engine that the experiment names, not opened. `auto` is chosen later, on the built federation."""
    name, names = experiment.run.engine, [*ENGINES, "auto"]
    if name not in names:
        raise InputError(f"run.engine '{name}' is not known; {suggest(name, names)}")
    return ENGINES["serial" if name == "auto" else name](engine_settings(experiment))


def engine_settings(experiment: Experiment) -> EngineSettings:
    """The settings of the section `run` as an engine takes them."""
    section = experiment.run
    # Worker processes may use several torch devices: cuda:0,cuda:1.
    devices = tuple(section.device.split(",")) if section.engine == "processes" else (section.device,)
    return EngineSettings(
        workers=section.workers,
        torch_devices=devices,
        placement=section.placement,
        stack=section.stack,
        chunk=section.chunk,
        address=section.address,
        tf32=section.precision != "float32",
        modules=tuple(dict.fromkeys(name.partition(":")[0] for name in references(experiment))),
    )


def check_torch_device(name: str) -> str:
    """`name`, if torch can compute on that device of this machine. Raises `InputError` otherwise."""
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise InputError(f"run.device '{name}' is not a device that runs can be on; write cpu, cuda or cuda:0")
    # With this setting torch does not initialise CUDA here; processes forked later could not use it any more.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(f"run.device '{name}': torch finds no GPU on this machine; write cpu")
    return name
