"""The virtual clock: drives nodes with an engine."""

from undergrowth.simulation.driver import Clock, Simulation, Timing
from undergrowth.simulation.ledger import COLUMNS, Entry, Ledger, Totals

__all__ = ["COLUMNS", "Clock", "Entry", "Ledger", "Simulation", "Timing", "Totals"]
