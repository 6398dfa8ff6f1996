"""The parts that methods are composed of. Each is used by at least two methods."""

from undergrowth.core import AllSelector, Selector
from undergrowth.learning.augmentation import ImageAugmentation, build_augmentation
from undergrowth.learning.contrastive import Contrastive, ContrastiveClient
from undergrowth.learning.distillation import Distillation, train_on_server
from undergrowth.learning.features import UpperModel, features_of, logits_of
from undergrowth.learning.gradient_client import GradientClient, Trained
from undergrowth.learning.objectives import CrossEntropy, Linear, LossInputs, Objective, Proximal, TaskLoss, with_slope
from undergrowth.learning.optimisers import Adam, Sgd, learning_rate, require_sgd, sum_of_weights
from undergrowth.learning.own_models import OwnModelsServer
from undergrowth.learning.reference import (
    Consolidation,
    SoftTargets,
    distillation_loss,
    elastic_loss,
    fisher_information,
    mean_loss,
    weighted_sum,
)
from undergrowth.learning.samplers import build_sampler
from undergrowth.learning.selectors import (
    EntropySelector,
    FewShotSelector,
    HighestLossSelector,
    KMeansSelector,
    RandomSelector,
    build_selector,
)
from undergrowth.learning.servers import AveragingServer, model_mismatch
from undergrowth.learning.slice_client import SliceOptions, WidthClient, WidthOptions, build_slice_client
from undergrowth.learning.slices import WidthServer
from undergrowth.learning.staleness import Staleness
from undergrowth.learning.stragglers import StragglerOptions
from undergrowth.learning.width import widths_of

__all__ = [
    "Adam", "AllSelector", "AveragingServer", "Consolidation", "Contrastive", "ContrastiveClient", "CrossEntropy",
    "Distillation", "EntropySelector", "FewShotSelector", "GradientClient", "HighestLossSelector", "ImageAugmentation",
    "KMeansSelector", "Linear", "LossInputs", "Objective", "OwnModelsServer", "Proximal", "RandomSelector",
    "Selector", "Sgd", "SliceOptions", "SoftTargets", "Staleness", "StragglerOptions", "TaskLoss",
    "Trained", "UpperModel", "WidthClient", "WidthOptions", "WidthServer", "build_augmentation", "build_sampler",
    "build_selector", "build_slice_client", "distillation_loss", "elastic_loss", "features_of", "fisher_information",
    "learning_rate", "logits_of", "mean_loss", "model_mismatch", "require_sgd", "sum_of_weights", "train_on_server",
    "weighted_sum", "widths_of", "with_slope",
]  # fmt: skip
