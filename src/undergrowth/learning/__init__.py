"""The parts that methods are put together from."""

from undergrowth.learning.gradient_client import GradientClient, gradients_of, ordered
from undergrowth.learning.objectives import CrossEntropy, Look, Objective, Proximal
from undergrowth.learning.optimisers import Adam, Optimiser, Sgd, learning_rate, optimiser_of
from undergrowth.learning.selectors import All, Entropy, FewShot, HighestLoss, Random, Selector
from undergrowth.learning.servers import Adaptive, Averaging, Momentum

__all__ = [
    "Adam", "Adaptive", "All", "Averaging", "CrossEntropy", "Entropy", "FewShot", "GradientClient", "HighestLoss",
    "Look", "Momentum", "Objective", "Optimiser", "Proximal", "Random", "Selector", "Sgd", "gradients_of",
    "learning_rate", "optimiser_of", "ordered",
]  # fmt: skip
