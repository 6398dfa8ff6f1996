"""The virtual clock: drives nodes with an engine."""

from undergrowth.simulation.clock import Clock, FleetClock, Timing
from undergrowth.simulation.own_training import OWN_TRAINING
from undergrowth.simulation.server_training import TrainingCost
from undergrowth.simulation.simulation import Simulation

__all__ = ["OWN_TRAINING", "Clock", "FleetClock", "Simulation", "Timing", "TrainingCost"]
