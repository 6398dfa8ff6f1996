"""What a simulation and a live runtime share: links and their stages, the ledger, and what a driver does."""

from undergrowth.exchange.driver import Driver
from undergrowth.exchange.ledger import COLUMNS, COSTS, ROUND_COST_KEYS, ROUND_COSTS, TIMED, Cost, Entry, Ledger, Totals
from undergrowth.exchange.links import Links
from undergrowth.exchange.stages import ChangeStage, CodecStage, Link, SignStage, Stage

__all__ = [
    "COLUMNS", "COSTS", "ROUND_COSTS", "ROUND_COST_KEYS", "TIMED", "ChangeStage", "CodecStage", "Cost", "Driver",
    "Entry", "Ledger", "Link", "Links", "SignStage", "Stage", "Totals",
]  # fmt: skip
