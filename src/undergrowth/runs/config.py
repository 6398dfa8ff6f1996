"""Configuration: what a user wrote, checked before anything starts.

An experiment has nine sections. Every wrong key, type or value is refused with one sentence that names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from undergrowth.core import MOST, InputError, Train, nearest
from undergrowth.devices.plain_yaml import DuplicateKeyError, load_yaml
from undergrowth.learning import learning_rate
from undergrowth.runs.fields import Above0, AtLeast0, Count, Number, Place, Share, ShareAbove0, ShareBelow1, Whole


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Named(Section):
    """A section that may be written as a bare name, and whose other keys are options of what is named."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class MethodSection(Named):
    name: str = "fedavg"


class DataSection(Named):
    name: str = "digits"
    path: Place | None = None
    partition: str = "dirichlet:0.1"
    clients: Count | None = None
    holdout: ShareBelow1 = 0.1


class PublicSection(Section):
    """Data that the server holds: some of the devices' data set, or of another one, whose options other keys are."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str | None = None
    path: Place | None = None
    share: ShareAbove0 | None = None
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
    def _whole(self) -> PublicSection:
        if self.name is None and self.options:
            odd = next(iter(self.options))
            raise ValueError(f"has '{odd}', which is not a known key; {nearest(odd, PublicSection.model_fields)}")
        if self.name is None and self.path is not None:
            raise ValueError("has a path; give the name of the data set there")
        if self.share is not None and self.samples is not None:
            raise ValueError("has share and samples; give one of them")
        if not self.given and (self.missing or self.labelled is not None):
            raise ValueError("does not say how much; give share or samples, or name another data set")
        return self

    @property
    def given(self) -> bool:
        return self.name is not None or self.of_the_devices

    @property
    def of_the_devices(self) -> bool:
        """Whether it is taken from the devices' data set."""
        return self.name is None and (self.share is not None or self.samples is not None)

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Rung(Named):
    """A model that a device may have instead of the run's."""

    @property
    def label(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name} ({options})" if options else self.name


class ModelSection(Named):
    name: str = "cnn"
    ladder: tuple[Rung, ...] = ()


class FleetSection(Section):
    name: Place = "uniform"
    deadline: Above0 | None = None
    availability: str = "always"
    dropout: Share = 0.0
    failure: Share = 0.0

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class TrainSection(Section):
    rounds: Count = 10
    sample: ShareAbove0 = 1.0
    epochs: Count = 1
    batch: Count = 32
    lr: Above0 = 0.1
    momentum: ShareBelow1 = 0.0
    weight_decay: AtLeast0 = 0.0
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    schedule: str = "constant"
    selection: str = "uniform"
    selector: str = "all"
    over_select: Annotated[Number, Field(ge=1, le=1000)] = 1.0
    quorum: ShareAbove0 = 1.0


class LinksSection(Section):
    up: str = "none"
    down: str = "none"
    feedback: bool = True


class RunSection(Section):
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
    # Of torch in one process: the batches of devices are too small to share.
    threads: Annotated[Count, Field(le=1024)] = 1
    evaluate_every: Count = 1
    checkpoint_every: Count = 1


class Experiment(Section):
    method: MethodSection = MethodSection()
    data: DataSection = DataSection()
    public: PublicSection = PublicSection()
    model: ModelSection = ModelSection()
    fleet: FleetSection = FleetSection()
    links: LinksSection = LinksSection()
    topology: Place = "star"
    train: TrainSection = TrainSection()
    run: RunSection = RunSection()

    @model_validator(mode="before")
    @classmethod
    def _empty_sections(cls, value: Any) -> Any:
        """A section with nothing in it, such as `train:`, has its defaults."""
        return {key: inner for key, inner in value.items() if inner is not None} if isinstance(value, dict) else value

    def settings(self) -> Train:
        """The part that methods see."""
        settings = Train(**self.train.model_dump(exclude={"selection", "selector"}), deadline=self.fleet.deadline)
        learning_rate(settings, 0)  # refuses a schedule that it cannot read
        return settings


def experiment(tree: Mapping[str, Any]) -> Experiment:
    """The experiment that a nested dictionary describes."""
    try:
        return Experiment.model_validate(tree)
    except ValidationError as error:
        raise InputError(sentence(error, Experiment)) from None


def read(path: str | Path) -> dict[str, Any]:
    """The dictionary in an experiment file."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"there is no experiment file '{path}'") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"experiment file '{path}' cannot be read: {error}") from None
    try:
        tree = load_yaml(text)
    except DuplicateKeyError as error:
        raise InputError(f"experiment file '{path}' {error.problem}") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where else ""
        raise InputError(f"experiment file '{path}' is not YAML{line}: {getattr(error, 'problem', error)}") from None
    if tree is None:
        raise InputError(f"experiment file '{path}' is empty; it needs sections such as method, data, model, train")
    if not isinstance(tree, dict):
        raise InputError(f"experiment file '{path}' must hold sections such as 'method: fedavg', not a {_kind(tree)}")
    return tree


def assign(tree: dict[str, Any], path: str, value: Any) -> None:
    """Sets ``train.lr`` and the like. A section that was a bare name becomes a section with that name."""
    *sections, last = path.split(".")
    for section in sections:
        inner = tree.get(section)
        if not isinstance(inner, dict | str | None) or (isinstance(inner, str) and not _may_be_a_name(section)):
            raise InputError(f"{path}: '{section}' is {inner!r}, which has no keys to set")
        tree[section] = {"name": inner} if isinstance(inner, str) else dict(inner or {})
        tree = tree[section]
    tree[last] = value


def _may_be_a_name(section: str) -> bool:
    """Whether a section may be written as a bare name; one that is not known is refused later, by name."""
    return section not in Experiment.model_fields or "name" in _keys(Experiment, [section])


def assign_text(tree: dict[str, Any], text: str) -> None:
    """Carries out one ``-s path=value`` of the command line; the value is read as YAML."""
    path, equals, value = text.partition("=")
    if not equals or not all(path.split(".")):
        raise InputError(f"-s '{text}' must be path=value, such as train.lr=0.05")
    try:
        assign(tree, path, load_yaml(value))
    except DuplicateKeyError as error:
        raise InputError(f"-s '{text}' {error.problem}") from None
    except yaml.YAMLError:
        raise InputError(f"-s '{text}': the value '{value}' is not YAML") from None


def sentence(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """The first thing that pydantic found wrong, in one sentence."""
    first = error.errors()[0]
    place = [str(step) for step in first["loc"]]
    path = ".".join([prefix, *place] if prefix else place)
    if first["type"] == "extra_forbidden":
        return f"{path} is not a known key; {nearest(place[-1], _keys(model, place[:-1]))}"
    if first["type"] == "invalid_key":  # a number, or what YAML reads as one or as true
        inside = ".".join([prefix, *place[:-1]] if prefix else place[:-1])
        key = f"the key {first['input']!r}"
        return f"{inside + ': ' if inside else ''}{key} must be a word, such as {_keys(model, place[:-1])[0]}"
    if first["type"] == "missing":
        return f"{path} is missing in {first['input']!r}"
    if first["type"] == "model_type":
        keys = _keys(model, place)
        or_name = "a name, or " if "name" in keys else ""
        return f"{path} {first['input']!r} should be {or_name}a section with keys such as {keys[0]}"
    wanted = first["msg"].removeprefix("Input ").removeprefix("String ").removeprefix("Value error, ")
    if first.get("ctx", {}).get("le") == MOST:  # which pydantic would write with all its digits
        wanted = f"should be less than or equal to {MOST:g}"
    return f"{path} {first['input']!r} {wanted}"


def _keys(model: type[BaseModel], place: Sequence[str]) -> list[str]:
    for step in place:
        inner = model.model_fields[step].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        model = inner
    return list(model.model_fields)


def _kind(tree: Any) -> str:
    return {list: "list", str: "text", int: "number", float: "number"}.get(type(tree), type(tree).__name__)
