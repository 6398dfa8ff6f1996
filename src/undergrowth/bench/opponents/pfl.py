"""pfl-research, as its benchmarks use it: a simulated backend with FedAvg, one process a core under torchrun.

    python -m torch.distributed.run --standalone --nproc-per-node 2 -m opponents.pfl FOLDER

Every process trains its part of the cohort, and the sums are all-reduced (gloo). `user_id_to_weight` lets pfl deal the
cohort out by size, largest first. The sampler says whom: the same clients in the same rounds as everybody else.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from importlib.metadata import version
from itertools import chain, cycle
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from .given import Given, finish, say, say_after


class Classifier(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return F.cross_entropy(self.inner(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        self.eval()
        return {"loss": Weighted(F.cross_entropy(self.inner(x), y, reduction="sum").item(), len(y))}


class Marks(TrainingProcessCallback):
    """Tells the one who measures where we are, and counts what was done."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.clients = self.samples = 0

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        if first():
            say("ready")
        self.wait()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        told = aggregate_metrics.to_simple_dict()
        self.clients += round(next(value for name, value in told.items() if "number of devices" in name))
        per_client = next(value for name, value in told.items() if "number of data points" in name)
        self.samples += round(per_client * len(self.given.cohorts[central_iteration]))
        if first():
            say_after(central_iteration + 1, self.given)
        self.wait()
        return False, Metrics()

    def wait(self) -> None:
        """Nobody goes on while the first of us is being measured."""
        if torch.distributed.is_initialized():
            torch.distributed.barrier()


def first() -> bool:
    """Whether this is the process that speaks for all."""
    return bool(get_framework_module().distributed.global_rank == 0)


def main(folder: str) -> None:
    torch.set_num_threads(1)
    np.random.seed(0)
    logging.disable(logging.INFO)
    given = Given(folder)
    module = Classifier(given.network())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))

    asked: Iterator[int] = cycle(chain.from_iterable(given.cohorts))
    sizes = {device: given.size(device) for device in range(given.devices)}
    clients = FederatedDataset(
        lambda device: PyTorchTensorDataset(given.samples(device), user_id=str(device)), lambda: next(asked), sizes
    )
    marks = Marks(given)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=len(given.cohorts),
            evaluation_frequency=len(given.cohorts) + 1,
            train_cohort_size=len(given.cohorts[0]),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=clients, val_data=clients, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=given.lr, local_batch_size=given.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[marks],
    )
    if first():
        title = f"pfl-research {version('pfl')}, {get_framework_module().distributed.world_size} processes"
        weights = [value.detach().numpy() for value in module.state_dict().values()]
        finish(given, title, marks.clients, marks.samples, weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
