"""The parts that methods are put together from."""

from undergrowth.learning.attention import Attention, attention_map
from undergrowth.learning.contrastive import Contrastive, Remembering, with_references
from undergrowth.learning.distillation import Distillation, taught
from undergrowth.learning.features import LowerPart, UpperPart, features_of
from undergrowth.learning.few_shot import FewShotClient, FewShotServer, FullAndFewShot, Pull
from undergrowth.learning.fine_tuning import WARM, FineTuning
from undergrowth.learning.gradient_client import GradientClient, gradients_of, ordered
from undergrowth.learning.ladder import LadderClient, on_rung, rungs_of
from undergrowth.learning.map_client import PLAIN, MapClient
from undergrowth.learning.objectives import CrossEntropy, Look, Objective, Proximal
from undergrowth.learning.optimisers import Adam, Optimiser, Sgd, learning_rate, optimiser_of
from undergrowth.learning.own_models import OwnModels
from undergrowth.learning.selection import ByData, FedCS, Oort, PowerOfChoice, selection
from undergrowth.learning.selectors import All, Entropy, FewShot, HighestLoss, KMeans, Random, Selector, selector
from undergrowth.learning.servers import Adaptive, Averaging, Momentum, unlike_model
from undergrowth.learning.similarity import cka, hsic
from undergrowth.learning.slices import RATIOS, SliceClient, Slicing, check_ratios
from undergrowth.learning.staleness import Staleness
from undergrowth.learning.stragglers import StragglerOptions
from undergrowth.learning.width import Widths, widths_of

__all__ = [
    "PLAIN",
    "RATIOS",
    "WARM",
    "Adam",
    "Adaptive",
    "All",
    "Attention",
    "Averaging",
    "ByData",
    "Contrastive",
    "CrossEntropy",
    "Distillation",
    "Entropy",
    "FedCS",
    "FewShot",
    "FewShotClient",
    "FewShotServer",
    "FineTuning",
    "FullAndFewShot",
    "GradientClient",
    "HighestLoss",
    "KMeans",
    "LadderClient",
    "Look",
    "LowerPart",
    "MapClient",
    "Momentum",
    "Objective",
    "Oort",
    "Optimiser",
    "OwnModels",
    "PowerOfChoice",
    "Proximal",
    "Pull",
    "Random",
    "Remembering",
    "Selector",
    "Sgd",
    "SliceClient",
    "Slicing",
    "Staleness",
    "StragglerOptions",
    "UpperPart",
    "Widths",
    "attention_map",
    "check_ratios",
    "cka",
    "features_of",
    "gradients_of",
    "hsic",
    "learning_rate",
    "on_rung",
    "optimiser_of",
    "ordered",
    "rungs_of",
    "selection",
    "selector",
    "taught",
    "unlike_model",
    "widths_of",
    "with_references",
]  # fmt: skip
