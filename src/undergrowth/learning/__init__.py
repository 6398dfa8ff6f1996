"""The parts that methods are put together from."""

from undergrowth.learning.contrastive import Contrastive, with_references
from undergrowth.learning.features import UpperPart, features_of
from undergrowth.learning.fine_tuning import WARM, FineTuning
from undergrowth.learning.gradient_client import GradientClient, gradients_of, ordered
from undergrowth.learning.objectives import CrossEntropy, Look, Objective, Proximal
from undergrowth.learning.optimisers import Adam, Optimiser, Sgd, learning_rate, optimiser_of
from undergrowth.learning.selection import ByData, FedCS, Oort, PowerOfChoice, selection
from undergrowth.learning.selectors import All, Entropy, FewShot, HighestLoss, Random, Selector
from undergrowth.learning.servers import Adaptive, Averaging, Momentum, unlike_model
from undergrowth.learning.slices import RATIOS, SliceClient, Slicing, check_ratios
from undergrowth.learning.staleness import Staleness
from undergrowth.learning.width import Widths, widths_of

__all__ = [
    "RATIOS",
    "WARM",
    "Adam",
    "Adaptive",
    "All",
    "Averaging",
    "ByData",
    "Contrastive",
    "CrossEntropy",
    "Entropy",
    "FedCS",
    "FewShot",
    "FineTuning",
    "GradientClient",
    "HighestLoss",
    "Look",
    "Momentum",
    "Objective",
    "Oort",
    "Optimiser",
    "PowerOfChoice",
    "Proximal",
    "Random",
    "Selector",
    "Sgd",
    "SliceClient",
    "Slicing",
    "Staleness",
    "UpperPart",
    "Widths",
    "check_ratios",
    "features_of",
    "gradients_of",
    "learning_rate",
    "optimiser_of",
    "ordered",
    "selection",
    "unlike_model",
    "widths_of",
    "with_references",
]  # fmt: skip
