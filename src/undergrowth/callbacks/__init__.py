"""Callbacks that come along: early stopping, the best model, and trackers of experiments.

ug.run(..., callbacks=[ug.callbacks.EarlyStopping(patience=5), ug.callbacks.TensorBoard()])
"""

from undergrowth.callbacks.best_model import BestModel
from undergrowth.callbacks.early_stopping import EarlyStopping
from undergrowth.callbacks.trackers import TRACKERS, MLflow, TensorBoard, WeightsAndBiases, build_trackers
from undergrowth.runs.callback import Callback, OngoingRun

__all__ = [
    "TRACKERS", "BestModel", "Callback", "EarlyStopping", "MLflow", "OngoingRun", "TensorBoard", "WeightsAndBiases",
    "build_trackers",
]  # fmt: skip
