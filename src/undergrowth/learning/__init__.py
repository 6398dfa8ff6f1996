"""The parts that methods are composed of. Each is used by at least two methods."""

from undergrowth.core import All, Selector
from undergrowth.learning.contrastive import Contrastive, ContrastiveClient
from undergrowth.learning.distillation import Distillation, train_on_server
from undergrowth.learning.features import LowerModel, ModelView, UpperModel, features_of, predictions
from undergrowth.learning.gradient_client import GradientClient, Trained, gradients_of, shuffled_steps
from undergrowth.learning.objectives import CrossEntropy, LossInputs, Objective, Proximal
from undergrowth.learning.optimisers import Adam, Optimiser, Sgd, build_optimiser, learning_rate
from undergrowth.learning.own_models import OwnModelsServer
from undergrowth.learning.samplers import (
    AvailableSampler,
    DataSampler,
    FedCSSampler,
    OortSampler,
    PowerOfChoiceSampler,
    build_sampler,
)
from undergrowth.learning.selectors import (
    EntropySelector,
    FewShotSelector,
    HighestLossSelector,
    KMeansSelector,
    RandomSelector,
    build_selector,
)
from undergrowth.learning.servers import AveragingServer, model_mismatch
from undergrowth.learning.slices import RATIOS, SliceClient, WidthOptions, WidthServer
from undergrowth.learning.staleness import Staleness
from undergrowth.learning.stragglers import StragglerOptions
from undergrowth.learning.width import Widths, widths_of

__all__ = [
    "RATIOS",
    "Adam",
    "All",
    "AvailableSampler",
    "AveragingServer",
    "Contrastive",
    "ContrastiveClient",
    "CrossEntropy",
    "DataSampler",
    "Distillation",
    "EntropySelector",
    "FedCSSampler",
    "FewShotSelector",
    "GradientClient",
    "HighestLossSelector",
    "KMeansSelector",
    "LossInputs",
    "LowerModel",
    "ModelView",
    "Objective",
    "OortSampler",
    "Optimiser",
    "OwnModelsServer",
    "PowerOfChoiceSampler",
    "Proximal",
    "RandomSelector",
    "Selector",
    "Sgd",
    "SliceClient",
    "Staleness",
    "StragglerOptions",
    "Trained",
    "UpperModel",
    "WidthOptions",
    "WidthServer",
    "Widths",
    "build_optimiser",
    "build_sampler",
    "build_selector",
    "features_of",
    "gradients_of",
    "learning_rate",
    "model_mismatch",
    "predictions",
    "shuffled_steps",
    "train_on_server",
    "widths_of",
]  # fmt: skip
