"""The virtual clock: drives nodes with an engine."""

from undergrowth.simulation.clock import Clock, FleetClock, Timing
from undergrowth.simulation.driver import Simulation
from undergrowth.simulation.ledger import COLUMNS, Entry, Ledger, Totals

__all__ = ["COLUMNS", "Clock", "Entry", "FleetClock", "Ledger", "Simulation", "Timing", "Totals"]
