"""What a simulation and a live runtime share: links and their stages, the ledger, and what a driver does."""

from undergrowth.exchange.driver import Driver
from undergrowth.exchange.ledger import COLUMNS, Entry, Ledger, Totals
from undergrowth.exchange.links import Links
from undergrowth.exchange.stages import ChangeStage, CodecStage, Link, SignStage, Stage

__all__ = [
    "COLUMNS", "ChangeStage", "CodecStage", "Driver", "Entry", "Ledger", "Link", "Links", "SignStage", "Stage",
    "Totals",
]  # fmt: skip
