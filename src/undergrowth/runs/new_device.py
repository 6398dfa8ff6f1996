"""A personal model from a finished run, for a device that was not in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import safetensors.torch
from pydantic import ValidationError
from torch import Tensor, nn

from undergrowth.core import Context, InputError, Packet, RunError, Shard, Task, Weights
from undergrowth.core.names import PROBLEM
from undergrowth.core.notation import parse
from undergrowth.data import Dataset
from undergrowth.engines import restore_torch_settings, set_torch
from undergrowth.learning.adaptation import ALONE, HOW
from undergrowth.methods.adapt import Adapt
from undergrowth.methods.adapt.rules import STOPPED, adapted_model
from undergrowth.runs.atomic_files import check_target, replace_file
from undergrowth.runs.config import Experiment, FleetSection, LinksSection
from undergrowth.runs.evaluation import evaluate
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.new_device_data import read_data
from undergrowth.runs.personal_phase import ACCURACY, step_experiment
from undergrowth.runs.personal_section import PersonalSection
from undergrowth.runs.relative_accuracy import FEDERATED, LOCAL
from undergrowth.runs.result import main_metric
from undergrowth.runs.start_phase import initial_weights
from undergrowth.runs.store import MODEL_FILE, Store
from undergrowth.runs.stored_experiment import stored_experiment
from undergrowth.runs.validation_errors import explain

DEVICE = "new device"
DEFAULT_FILE = "adapted.safetensors"


@dataclass(frozen=True)
class AdaptedModel:
    """The personal model, and the accuracies of all models on the test samples of the device."""

    run: str
    how: str
    training_samples: int
    test_samples: int
    accuracies: Mapping[str, float]  # "local", "federated" and `how`
    weights: Mapping[str, Tensor]  # a plain state dict
    file: Path

    @property
    def beats(self) -> dict[str, bool]:
        """Whether the adapted model is more accurate than the local-only and than the federated one."""
        return {other: self.accuracies[self.how] > self.accuracies[other] for other in (LOCAL, FEDERATED)}


@restore_torch_settings()
def adapt(
    run: str = "last",
    data: str | PathLike[str] | Dataset = "",
    how: str = "fine-tune",
    *,
    file: str | PathLike[str] = DEFAULT_FILE,
    epochs: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    out: str | PathLike[str] = "runs",
    model: Callable[[], nn.Module] | None = None,
) -> AdaptedModel:
    """Adapts the model of a finished run to the samples in `data`, and writes it to `file` as a plain state dict.

    `how` is fine-tune, freeze, ditto, ewc or kd, as in the method `adapt`. `epochs`, `lr` and `seed` are by default
    those of the run (`personal.epochs`, `train.lr`). `model`: the model object of the run, if it was given one.
    """
    parse("how", how, HOW)
    if isinstance(data, str) and not data:
        raise InputError("data is missing; give the folder or file with the samples of the device")
    path = check_target(file, DEFAULT_FILE)
    with Store(out) as store:
        name = store.find(run)
        row, folder = store.run(name), store.folder / name
        if row["status"] != "done":
            raise InputError(f"run '{name}' is {row['status']}; `{store.resume_command(name)}` finishes it")
    if row["experiment"]["objects"].get("model") and model is None:
        raise InputError(f"run '{name}' was given a model object; adapt it from Python: ug.adapt('{name}', model=...)")
    if main_metric(row).name != ACCURACY:
        raise InputError(f"run '{name}' is about {main_metric(row).name}; adapt compares accuracies")
    experiment = _experiment(stored_experiment(row), epochs, lr, seed)
    if experiment.model.ladder:
        raise InputError(f"run '{name}': its devices have models of several shapes; adapt needs one model for all")
    if not (folder / MODEL_FILE).exists():
        raise InputError(f"run '{name}' has no model any more: '{folder / MODEL_FILE}' is gone; resuming it writes it")
    found = read_data(data, experiment, row["experiment"])
    set_torch(False, experiment.run.threads)
    device = NewDevice(found)
    adapted = _train(experiment, how, folder / MODEL_FILE, device, model)
    local = _train(experiment, ALONE, initial_weights(folder, experiment), device, model)
    task, federated = adapted.task, adapted.start
    test = found.central_test()
    models = {LOCAL: local.weights, FEDERATED: federated, how: adapted.weights}
    accuracies = {each: evaluate(task.kind, task.model, weights, test)[ACCURACY] for each, weights in models.items()}
    state = {key: value.detach().cpu().contiguous() for key, value in task.model.complete(adapted.weights).items()}
    replace_file(path, safetensors.torch.save(state))
    return AdaptedModel(name, how, len(found), len(test), accuracies, state, path)


class NewDevice:
    """The population of one device that has all training samples of a data set."""

    devices = (DEVICE,)

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.name, self.shape, self.classes, self.black = dataset.name, dataset.shape, dataset.classes, dataset.black

    def train(self, device: str) -> Shard:
        return self.dataset.shard(range(len(self.dataset)))

    def test(self, device: str) -> Shard:
        return self.dataset.central_test()

    def central_test(self) -> Shard:
        return self.dataset.central_test()

    def size(self, device: str) -> int:
        return len(self.dataset)


def _experiment(experiment: Experiment, epochs: int | None, lr: float | None, seed: int | None) -> Experiment:
    """The run's experiment for one device on the CPU of this machine."""
    given = {key: value for key, value in {"epochs": epochs, "lr": lr}.items() if value is not None}
    try:
        personal = PersonalSection.model_validate({**experiment.personal.model_dump(), **given})
    except ValidationError as error:
        raise InputError(explain(error, PersonalSection, "personal")) from None
    experiment = experiment.with_run(engine="serial", device="cpu", workers=None, precision="float32")
    experiment = experiment if seed is None else experiment.with_run(seed=seed)
    update = {"personal": personal, "fleet": FleetSection(), "links": LinksSection(), "topology": "star"}
    return experiment.model_copy(update=update)


@dataclass(frozen=True)
class _Trained:
    task: Task
    start: Weights
    weights: Weights


def _train(
    experiment: Experiment, how: str, file: Path | None, device: NewDevice, model: Callable[[], nn.Module] | None
) -> _Trained:
    """The model after adaptation from the weights in `file`, or from fresh ones."""
    step = step_experiment(experiment, how, file)
    federation = federate(step, None, device, model)
    task, method, seed = federation.task, federation.method, experiment.run.seed
    assert isinstance(method, Adapt)
    start = task.model.initial(Context(seed, federation.driver.root.name, 0).key("model"))
    own: dict[str, Any] = {}
    for number in range(step.train.rounds):
        up, own = method.client.local(
            task, Packet() if own else Packet(start), device.train(DEVICE), own, Context(seed, DEVICE, number, number)
        )
        if PROBLEM in up.tags:
            raise RunError(f"{how} diverges in epoch {number + 1}: {up.tags[PROBLEM]}; give a smaller lr")
        if up.scalars[STOPPED]:
            break
    kept = adapted_model(own)
    return _Trained(task, start, start if kept is None else kept)
