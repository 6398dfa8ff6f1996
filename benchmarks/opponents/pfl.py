"""pfl-research, as its benchmarks use it: a simulated backend with FedAvg, one process per core under torchrun.

    python -m torch.distributed.run --standalone --nproc-per-node 2 -m opponents.pfl FOLDER

Every process trains its part of the cohort, and the sums are all-reduced (gloo). `user_id_to_weight` lets pfl assign
the cohort by size, largest first. The sampler returns the same clients in the same rounds as the other contenders.
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

from protocol import ContestFolder, report_mark, report_result, report_round


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
    """Prints the marks of the protocol and counts the work."""

    def __init__(self, contest: ContestFolder) -> None:
        self.contest = contest
        self.clients = self.samples = 0

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        if first():
            report_mark("ready")
        self.wait()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        metrics = aggregate_metrics.to_simple_dict()
        self.clients += round(next(value for name, value in metrics.items() if "number of devices" in name))
        per_client = next(value for name, value in metrics.items() if "number of data points" in name)
        self.samples += round(per_client * len(self.contest.cohorts[central_iteration]))
        if first():
            report_round(central_iteration + 1, self.contest)
        self.wait()
        return False, Metrics()

    def wait(self) -> None:
        """Waits for the first process, whose CPU time is being read."""
        if torch.distributed.is_initialized():
            torch.distributed.barrier()


def first() -> bool:
    """Whether this is the process that prints."""
    return bool(get_framework_module().distributed.global_rank == 0)


def main(folder: str) -> None:
    torch.set_num_threads(1)
    np.random.seed(0)
    logging.disable(logging.INFO)
    contest = ContestFolder(folder)
    module = Classifier(contest.network())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))

    asked: Iterator[int] = cycle(chain.from_iterable(contest.cohorts))
    sizes = {device: contest.size(device) for device in range(contest.devices)}
    clients = FederatedDataset(
        lambda device: PyTorchTensorDataset(contest.samples(device), user_id=str(device)), lambda: next(asked), sizes
    )
    marks = Marks(contest)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=len(contest.cohorts),
            evaluation_frequency=len(contest.cohorts) + 1,
            train_cohort_size=len(contest.cohorts[0]),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=clients, val_data=clients, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=contest.lr, local_batch_size=contest.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[marks],
    )
    if first():
        title = f"pfl-research {version('pfl')}, {get_framework_module().distributed.world_size} processes"
        weights = [value.detach().numpy() for value in module.state_dict().values()]
        report_result(contest, title, marks.clients, marks.samples, weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
