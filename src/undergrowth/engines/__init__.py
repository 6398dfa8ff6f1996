"""Where device work runs. Nothing here knows a method."""

from undergrowth.engines.serial import Serial
from undergrowth.engines.world import Engine, Job, Outcome, States, World

ENGINES: dict[str, type[Engine]] = {"serial": Serial}

__all__ = ["ENGINES", "Engine", "Job", "Outcome", "Serial", "States", "World"]
