"""Where device work runs. Nothing here knows a method."""

from collections.abc import Callable

from undergrowth.engines.serial import Serial
from undergrowth.engines.world import Engine, Job, Outcome, Settings, States, World

ENGINES: dict[str, Callable[[Settings], Engine]] = {"serial": Serial}

__all__ = ["ENGINES", "Engine", "Job", "Outcome", "Serial", "Settings", "States", "World"]
