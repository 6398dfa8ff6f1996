"""The model zoo: every model is a sequence of named stages with named split levels, found by name in one table."""

from undergrowth.models.adaptation import WithFrozenStatistics
from undergrowth.models.catalogue import ModelEntry, builder, describe, names, option_names
from undergrowth.models.hugging_face import is_hugging_face_model
from undergrowth.models.staged import Staged
from undergrowth.models.weights import WithWeights, check_tensors, check_weights, load_weights

__all__ = [
    "ModelEntry", "Staged", "WithFrozenStatistics", "WithWeights", "builder", "check_tensors", "check_weights",
    "describe", "is_hugging_face_model", "load_weights", "names", "option_names",
]  # fmt: skip
