"""Task: what is given in a run, independent of the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from undergrowth.core.augmentation import Augmentation
from undergrowth.core.model import Model
from undergrowth.core.samplers import Sampler, UniformSampler, ceil_of, count_of
from undergrowth.core.selector import AllSelector, Selector
from undergrowth.core.shard import Shard
from undergrowth.core.task_kind import Classification, TaskKind

if TYPE_CHECKING:
    from undergrowth.core.client import Carry, Loop


@dataclass(frozen=True)
class Train:
    """Training settings of the run. They hold for every method, unless an option of the method replaces one."""

    rounds: int = 10
    sample: float = 1.0  # fraction of the devices asked in a round
    epochs: int = 1
    batch: int = 32
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimiser: str = "sgd"  # sgd | adam | adamw
    schedule: str = "constant"  # constant | cosine | step:EVERY:FACTOR | linear, over rounds
    deadline: float | None = None  # simulated seconds that a round may last
    over_select: float = 1.0  # devices asked, as a multiple of those needed; the first to answer are used
    quorum: float = 1.0  # fraction of the needed devices whose answers end a round
    drop_last: bool = False  # leave out the last, smaller batch of an epoch, unless it is the only one
    evaluate_every: int = 1  # rounds from one evaluation of the model to the next

    def count_to_ask(self, devices: int) -> int:
        """How many of these devices a round asks: `sample` of all × `over_select`."""
        return min(devices, ceil_of(count_of(self.sample, devices) * self.over_select))

    def is_evaluated(self, round: int) -> bool:
        """Whether the model is evaluated after `round`, counted from 0. The first and the last round always are."""
        number = round + 1
        return number % self.evaluate_every == 0 or number in (1, self.rounds)


@dataclass(frozen=True)
class Task:
    """The model, the data of the server and the settings that every rule of a run gets."""

    model: Model
    classes: int  # or the targets, labels or tokens that the model has an output for
    train: Train = Train()
    sampler: Sampler = UniformSampler()  # which devices are asked
    public: Shard | None = None  # data that the server holds, for methods that use such data
    selector: Selector = AllSelector()  # which samples devices train on, unless the client has its own selector
    ladder: Mapping[str, Model] = field(default_factory=dict, hash=False)  # models of devices, if not all have `model`
    augmentation: Augmentation | None = None  # random changes of the inputs that devices train on
    assigned: Mapping[str, str] = field(default_factory=dict, hash=False)  # device → its model, if the run fixes it
    groups: Mapping[str, str] = field(default_factory=dict, hash=False)  # device → its group, if the method asks for it
    kind: TaskKind = Classification()  # what the model learns: its labels, loss and metrics
    changing: bool = False  # whether the samples of the devices change from round to round
    # Runs the loops of a server, or those of `before_steps` and `after_steps`, many at once; None: one by one.
    run_loops: Callable[[Task, Sequence[Loop]], list[Carry]] | None = field(default=None, compare=False, repr=False)

    def to(self, torch_device: str) -> Task:
        """The task with its models, the server's data and the augmentation on `torch_device`."""
        task = self.with_models(lambda model: model.to(torch_device))
        public = None if self.public is None else self.public.to(torch_device)
        augmentation = None if self.augmentation is None else self.augmentation.to(torch_device)
        return replace(task, public=public, augmentation=augmentation)

    def of_device(self, name: str, view: Callable[[Model], Model] | None = None) -> Task:
        """The task with the model `name` of the ladder, "" for the run's; `view` turns it into what is trained."""
        if not name and view is None:
            return self
        model = self.ladder[name] if name else self.model
        return replace(self, model=model if view is None else view(model))

    def with_models(self, change: Callable[[Model], Model]) -> Task:
        """The task with `change(model)` for its model and for every model of its ladder."""
        ladder = {name: change(model) for name, model in self.ladder.items()}
        return replace(self, model=change(self.model), ladder=ladder)
