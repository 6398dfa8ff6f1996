"""The virtual clock: drives nodes with an engine."""

from undergrowth.simulation.clock import Clock, FleetClock, Timing
from undergrowth.simulation.simulation import Simulation

__all__ = ["Clock", "FleetClock", "Simulation", "Timing"]
