"""The model zoo: every model is a sequence of named stages with named split levels, found by name in one table."""

from undergrowth.models.catalogue import ModelEntry, builder, describe, names
from undergrowth.models.staged import Staged
from undergrowth.models.weights import load_weights

__all__ = ["ModelEntry", "Staged", "builder", "describe", "load_weights", "names"]
