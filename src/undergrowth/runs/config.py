"""An experiment: its thirteen sections, and how they are validated before anything starts.

A wrong key, type or value is refused with one sentence that names it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from undergrowth.core import InputError, Train, suggest
from undergrowth.data import is_table_file
from undergrowth.learning import learning_rate
from undergrowth.runs.fields import (
    Above0,
    AtLeast0,
    Count,
    CountOrAuto,
    Fraction,
    FractionAbove0,
    FractionBelow1,
    Number,
    Place,
    TopologySetting,
    Whole,
)
from undergrowth.runs.formats import refuse_old_keys
from undergrowth.runs.model_section import ModelSection
from undergrowth.runs.personal_section import PersonalSection
from undergrowth.runs.sections import Named, Section, keys_of
from undergrowth.runs.start_section import StartSection
from undergrowth.runs.stop_section import DEFAULT_MAX_ROUNDS, StopSection
from undergrowth.runs.stream_section import StreamSection
from undergrowth.runs.task_section import TaskSection
from undergrowth.runs.validation_errors import explain


class MethodSection(Named):
    """The method by its name, and its options."""

    name: str = "fedavg"


class DataSection(Named):
    """The data set of the devices, its options, and how it is divided among them."""

    name: str = "digits"
    path: Place | None = None
    partition: str = "dirichlet:0.1"
    clients: Count | None = None
    holdout: FractionBelow1 = 0.1
    augment: str = "none"

    @model_validator(mode="before")
    @classmethod
    def _natural_groups(cls, value: Any) -> Any:
        """Data with a group column is partitioned by it, unless another partition is given; texts by role."""
        if value == "text" or (isinstance(value, Mapping) and value.get("name") == "text"):
            return {"partition": "natural", **({"name": value} if isinstance(value, str) else value)}
        if not isinstance(value, Mapping) or value.get("group") is None:
            return value
        name = str(value.get("name"))
        return {"partition": "natural", **value} if name in ("table", "hf") or is_table_file(name) else value


class PublicSection(Section):
    """Data that the server holds: a part of the devices' data set, or another data set and its options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str | None = None
    path: Place | None = None
    share: FractionAbove0 | None = None
    samples: Count | None = None
    missing: tuple[Annotated[Whole, Field(ge=0)], ...] = ()
    labelled: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        return {"share": value} if isinstance(value, int | float) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _consistent(self) -> PublicSection:
        if self.name is None and self.options:
            key = next(iter(self.options))
            raise ValueError(f"has '{key}', which is not a known key; {suggest(key, PublicSection.model_fields)}")
        if self.name is None and self.path is not None:
            raise ValueError("has a path; give the name of the data set there")
        if self.share is not None and self.samples is not None:
            raise ValueError("has share and samples; give one of them")
        if not self.given and (self.missing or self.labelled is not None):
            raise ValueError("does not say how much; give share or samples, or name another data set")
        return self

    @property
    def given(self) -> bool:
        """Whether the server holds any data."""
        return self.name is not None or self.of_the_devices

    @property
    def of_the_devices(self) -> bool:
        """Whether the data is taken from the devices' data set."""
        return self.name is None and (self.share is not None or self.samples is not None)


class FleetSection(Named):
    """The simulated devices and their faults, and the links and devices of servers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Place = "uniform"
    deadline: Above0 | None = None
    availability: str = "always"
    dropout: Fraction = 0.0
    failure: Fraction = 0.0
    server_link: str | dict[str, Any] | list[str | dict[str, Any]] = "free"  # of servers to their parents
    server_device: str | dict[str, Any] = "free"  # on which servers train
    node_deadlines: dict[str, Above0] = Field(default_factory=dict)  # a node's name or depth → instead of `deadline`

    @field_validator("node_deadlines", mode="before")
    @classmethod
    def _depths_as_text(cls, value: Any) -> Any:
        """YAML reads a depth as a number; JSON, in which runs are stored, has only texts as keys."""
        return {str(key): seconds for key, seconds in value.items()} if isinstance(value, Mapping) else value


class TrainSection(Section):
    """Rounds, which devices they ask, and how devices train."""

    rounds: Count = 10
    sample: FractionAbove0 = 1.0
    epochs: Count = 1
    batch: Count = 32
    lr: Above0 = 0.1
    momentum: FractionBelow1 = 0.0
    weight_decay: AtLeast0 = 0.0
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    schedule: str = "constant"
    sampler: str = "uniform"
    selector: str = "all"
    over_select: Annotated[Number, Field(ge=1, le=1000)] = 1.0
    quorum: FractionAbove0 = 1.0
    drop_last: bool = False


class LinksSection(Section):
    """How uploads and downloads are encoded."""

    up: str = "none"
    down: str = "none"
    feedback: bool = True


class RunSection(Section):
    """How a run is computed, and when it is evaluated and saved."""

    seed: Annotated[Whole, Field(ge=0, lt=2**63)] = 0
    engine: str = "auto"
    device: str = "cpu"
    out: Place = "runs"
    workers: Count | None = None
    placement: Literal["rr", "srr", "bu", "lb", "lpt"] = "bu"
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    stack: bool = False
    chunk: Count | None = None
    address: str | None = None
    # Threads of torch in one process. The batches of devices are too small to gain from more than one.
    threads: Annotated[Count, Field(le=1024)] = 1
    evaluate_every: CountOrAuto = 1
    checkpoint_every: Count = 1
    if_all_refused: Literal["stop", "continue"] = "stop"


class Experiment(Section):
    """What a user describes: everything that decides about a run, in sections."""

    method: MethodSection = MethodSection()
    data: DataSection = DataSection()
    stream: StreamSection = StreamSection()
    public: PublicSection = PublicSection()
    model: ModelSection = ModelSection()
    start: StartSection = StartSection()
    fleet: FleetSection = FleetSection()
    links: LinksSection = LinksSection()
    topology: TopologySetting = "star"
    task: TaskSection = TaskSection()
    train: TrainSection = TrainSection()
    stop: StopSection = StopSection()
    personal: PersonalSection = PersonalSection()
    run: RunSection = RunSection()

    @model_validator(mode="before")
    @classmethod
    def _empty_sections(cls, value: Any) -> Any:
        """Removes empty sections, such as `train:`, so that they get their defaults. Unknown ones are refused later."""
        if not isinstance(value, dict):
            return value
        return {key: inner for key, inner in value.items() if inner is not None or key not in cls.model_fields}

    @property
    def max_rounds(self) -> int:
        """The rounds after which the run ends at the latest."""
        return min(self.train.rounds, self.stop.rounds or self.train.rounds)

    def with_population(self) -> Experiment:
        """The experiment for a population that is built already: with its devices, and without the public samples."""
        update: dict[str, Any] = {"data": self.data.model_copy(update={"clients": None}), "stream": StreamSection()}
        if self.public.of_the_devices:
            update["public"] = PublicSection()
        return self.model_copy(update=update)

    def with_run(self, **settings: Any) -> Experiment:
        """The experiment with other values of some settings in the section `run`."""
        return self.model_copy(update={"run": self.run.model_copy(update=settings)})

    def starting_from(self, weights: str | Path | None) -> Experiment:
        """The experiment without its phase `start`: it begins with the weights in a file, or with none."""
        return self.model_copy(update={"start": StartSection(weights=None if weights is None else str(weights))})

    def for_step(self, weights: str | Path | None) -> Experiment:
        """The experiment of a step before or after the rounds, for the same devices: without limits and phases."""
        step = self.with_population().starting_from(weights)
        return step.model_copy(update={"stop": StopSection(), "personal": PersonalSection()})

    def train_settings(self) -> Train:
        """The settings that methods see. Raises `InputError` if the schedule is not valid."""
        settings = Train(
            **self.train.model_dump(exclude={"sampler", "selector"}),
            deadline=self.fleet.deadline,
            # Any round may be the last one of a run with limits. A run replaces `auto` by a number before it starts.
            evaluate_every=1 if self.stop.given or self.run.evaluate_every == "auto" else int(self.run.evaluate_every),
        )
        learning_rate(settings, 0)
        return settings


def parse_experiment(raw: Mapping[str, Any]) -> Experiment:
    """The experiment that a nested dictionary describes."""
    refuse_old_keys(raw)
    _refuse_decimal_commas(raw)
    try:
        experiment = Experiment.model_validate(raw)
    except ValidationError as error:
        raise InputError(explain(error, Experiment, elsewhere=experiment_keys())) from None
    start = experiment.start
    if (start.weights or start.data or start.warm_rounds) and experiment.model.options.get("weights") is not None:
        raise InputError("model.weights and start are both given; write the file as start.weights")
    return _with_rounds(experiment)


def _with_rounds(experiment: Experiment) -> Experiment:
    """The experiment with the number of rounds that its other limits leave open, if it has limits and no number."""
    train, stop = experiment.train, experiment.stop
    if not stop.given or "rounds" in train.model_fields_set:
        return experiment
    if stop.rounds is None and train.schedule.partition(":")[0] in ("linear", "cosine"):
        raise InputError(f"train.schedule '{train.schedule}' falls over the rounds; with stop, write train.rounds too")
    rounds = stop.rounds or DEFAULT_MAX_ROUNDS
    return experiment.model_copy(update={"train": train.model_copy(update={"rounds": rounds})})


def _refuse_decimal_commas(raw: Mapping[str, Any]) -> None:
    """YAML reads {lr: 0,1} as lr: 0 and an empty key 1."""
    for section, inner in raw.items():
        keys = list(inner) if isinstance(inner, Mapping) else []
        for key, next_key in itertools.pairwise(keys):
            whole = inner[key]
            if type(next_key) is int and inner[next_key] is None and type(whole) is int:
                raise InputError(f"{section}.{key} '{whole},{next_key}' has a decimal comma; write {whole}.{next_key}")


def experiment_keys() -> list[str]:
    """Every key of an experiment by its path, such as train.lr. Those of the phase before the first round are last."""
    return [
        f"{section}.{key}"
        for section in sorted(Experiment.model_fields, key="start".__eq__)
        for key in keys_of(Experiment, [section])
        if key not in Experiment.model_fields and key != "name"
    ]
