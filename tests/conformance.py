"""What the tests of conformance share: small experiments for every method, and engines compared at their boundary.

A serial run records the jobs that it gives its engine, and the outcomes. Other engines get the recorded jobs, with the
devices' states as they were, and must return the same outcomes. Clock, store and evaluation take no part in that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import undergrowth as ug
from undergrowth.core import Packet
from undergrowth.engines import ENGINES
from undergrowth.methods import METHODS
from undergrowth.runs.execution import start

from .double_precision import ATOL, RTOL, DoubleDataset, double_data, double_model

ROUNDS = 2  # `rounds` in EXTRA: of methods that do in a later round what they do in no earlier one
TEST_SAMPLES = 100  # fewer than there are, because float64 is slow
TREE = "tree:2x3"
COSTS = ("bytes_down", "bytes_up", "flops", "simulated_seconds", "joules", "peak_device_bytes")

# What a method needs besides the settings of all, and options that shorten its training.
MODEL = {"name": "cnn", "hidden": 16}
LADDER = {**MODEL, "ladder": [{"name": "cnn", "hidden": 8}, {"name": "cnn", "hidden": 24}]}
CONSENSUS = {"pretrain_epochs": 2, "server_lr": 0.01, "server_epochs": 2}
ONE_SHOT = {"server_epochs": 2, "server_batch": 8}
FEW_SHOT = {"few_shot_epochs": 2, "shots": 5}
BATCH_NORM = {"name": "resnet-8", "width": 4}
EXTRA: dict[str, dict[str, Any]] = {
    "fedasync": {"rounds": 4},
    "fedbuff": {"rounds": 3},
    "hierfavg": {"method": {"rounds_per_level": [1]}},
    "bhfl": {
        "method": {
            "leaf": {"name": "fedprox", "mu": 0.1},
            "down": "fedadam",
            "eta_down": 0.01,
            "residuals": "loss:1",
            "residuals_down": "all",
            "proxy": "before",
        },
        "public": 0.1,
    },
    "moon": {"model": {**MODEL, "projection": 6}},
    "fedmezo": {"method": {"step_size": 0.01}, "model": {"name": "mlp", "hidden": [8]}},
    "distmezo": {"method": {"step_size": 0.01}, "model": {"name": "mlp", "hidden": [8]}},
    "lora": {"method": {"rank": 2}},
    "slora": {"method": {"rank": 2, "stage1_share": 0.5}},  # one round of each stage
    "fedbn": {"model": {"name": "resnet-8", "width": 4}},
    "adapt": {"method": {"how": "ewc:1", "validation": 0.2, "patience": 1}},
    "fedfsc": {"method": FEW_SHOT},
    "fedfsc-plus": {"method": FEW_SHOT},
    "fscprox": {"method": FEW_SHOT, "rounds": 3},
    "fedsplit": {"method": {"clusters": 4, "meta_epochs": 5}},
    "fjord": {"method": {"distill": True, "ratios": [1.0, 0.5]}},
    "fedrolex": {"method": {"scaler": True, "masked": True, "ratios": [1.0, 0.5]}, "model": BATCH_NORM},
    "fedmd": {"method": {**CONSENSUS, "evaluated": "digested", "statistics": "batch"}, "model": LADDER, "public": 0.1},
    "fedkad": {"method": CONSENSUS, "model": LADDER, "public": 0.1},
    "fedat": {
        "method": {
            "beta": 0.1,
            "transfer_lr": 0.02,
            "metadata_lr": 0.02,
            "metadata_share": 0.5,
            "metadata_of": "all",
            "upper_statistics": "updated",
            "public_classes": "present",
            "shared_start": True,
        },
        "model": LADDER,
        "public": {"share": 0.1, "missing": [0, 5, 8]},
    },
    "pafl": {"method": {"start": 0.3, "lam": 50.0, "term": "h_ewc"}},
    "interleaved": {"method": {"how": "ewc:1", "every": 2, "budget": 1.0, "alone_epochs": 2}},
    "ditto": {"method": {"personal_epochs": 2}},
    "apfl": {"method": {"adaptive": True}},
    "reft": {"method": ONE_SHOT, "public": 0.1},
    "fedkd": {"method": ONE_SHOT, "public": 0.1},
    "fl-pqsu": {"method": {"threshold": 0.01}},  # some of the devices skip an upload
    "prunefl": {"method": {"every": 2}},
    "mutual-groups": {"model": {**MODEL, "ladder": [{"name": "cnn", "hidden": 8}]}},
    "auxo": {"method": {"gain": 0.001, "explore": 0.5}},  # it splits, although no group is planted
}

# Methods that are also compared with augmentation and dropout: the random choices alone, features of augmented inputs,
# public samples that stay as they are, and models that run twice in a step.
RANDOM = ("fedavg", "moon", "fedmd", "apfl", "l2gd", "mutual-groups", "fjord")
DROPOUT = {"name": "wrn-10-1", "dropout": 0.3}

# Each node of these decides by its own children which of them does what, or takes updates as they arrive.
# In a tree they learn something else than in a star.
DECIDE_AT_EACH_NODE = {
    "bhfl", "fedasync", "fedbuff", "fedfsc-plus", "fscprox", "heterofl", "fjord", "fedrolex", "fedmd", "fedat",
    "fedkad", "prunefl",
}  # fmt: skip


# The size of an upload of these depends on values, so their costs depend on the last digits.
UPLOADS_DEPEND_ON_VALUES = {"fl-pqsu", "prunefl"}


def representatives(part: str) -> list[str]:
    """The first method of each distinct `part` ("client" or "server") among all methods."""
    found: dict[str, str] = {}
    for name, method in METHODS.items():
        options = EXTRA.get(name, {}).get("method", {})
        found.setdefault(repr(getattr(method(**options), part)), name)
    return list(found.values())


def random_experiment(method: str, folder: Path) -> dict[str, Any]:
    """The same experiment with augmented inputs, dropout, several epochs, and no last batches that are smaller."""
    raw = experiment(method, folder)
    raw["model"] = {**DROPOUT, **({"ladder": [DROPOUT]} if "ladder" in raw["model"] else {})}
    raw["data"]["augment"] = "crop+flip+cutout:3"
    raw["train"] |= {"rounds": 2, "epochs": 2, "drop_last": True}
    return raw


def experiment(method: str, folder: Path, topology: str = "star", **run: Any) -> dict[str, Any]:
    """The small experiment of `method` before validation; `run` are further settings of the section `run`."""
    extra = EXTRA.get(method, {})
    return {
        "method": {"name": method, **extra.get("method", {})},
        "data": {"clients": 6, "partition": "dirichlet:1", "train_samples": 180},
        "model": extra.get("model", MODEL),
        "fleet": "mixed-edge",
        "topology": topology,
        "train": {"rounds": extra.get("rounds", ROUNDS), "lr": 0.05, "batch": 20},
        "run": {"engine": "serial", "out": str(folder), "seed": 5, **run},
        **({"public": extra["public"]} if "public" in extra else {}),
    }


@cache
def _data(**options: Any) -> DoubleDataset:
    data = double_data("digits", **options)
    return replace(data, test_x=data.test_x[:TEST_SAMPLES], test_y=data.test_y[:TEST_SAMPLES])


def in_double_precision(raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same experiment with data and model in float64: what to hand to `start`, and the objects that go with it."""
    section = dict(raw["data"])
    data = _data(train_samples=section.pop("train_samples"))
    return {**raw, "data": section, "model": {}}, {"data": data, "model": double_model(data, **raw["model"])}


def run(raw: Mapping[str, Any], on_round: Callable[..., None] | None = None) -> ug.Result:
    """The result of the experiment in float64."""
    raw, objects = in_double_precision(raw)
    return start(raw, **objects, on_round=on_round)


def resume(raw: Mapping[str, Any], folder: Path) -> ug.Result:
    """The result of the run in `folder`, a copy of one of this experiment, after its last rounds."""
    return ug.resume("last", folder, **in_double_precision(raw)[1], progress=False)


def weights(result: ug.Result) -> dict[str, Tensor]:
    """The weights of the model that a run ended with."""
    return safetensors.torch.load_file(result.folder / "model.safetensors")


# Engines at their boundary -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """What an engine was asked for at once and what it returned, with the states of these devices."""

    jobs: Sequence[Any]
    before: Mapping[str, Any]
    outcomes: Sequence[Any]
    after: Mapping[str, Any]


class RecordingEngine:
    """The serial engine; it keeps all that crosses its boundary."""

    serial = ENGINES["serial"]

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.engine = self.serial(settings)  # type: ignore[misc]
        self.calls: list[Call] = []

    def open(self, world: Any) -> None:
        self.world = world
        self.engine.open(world)

    def run(self, jobs: Sequence[Any]) -> Iterator[Any]:
        before = self._states(jobs)
        outcomes = list(self.engine.run(jobs))
        self.calls.append(Call(list(jobs), before, outcomes, self._states(jobs)))
        return iter(outcomes)

    def _states(self, jobs: Sequence[Any]) -> dict[str, Any]:
        return {job.device: self.world.states.get(job.device) for job in jobs}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def record(raw: Mapping[str, Any], on_round: Callable[..., None] | None = None) -> tuple[ug.Result, RecordingEngine]:
    """The result of the experiment on the serial engine, and that engine."""
    engines: list[RecordingEngine] = []

    def build(settings: Any) -> RecordingEngine:
        engines.append(RecordingEngine(settings))
        return engines[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENGINES, "serial", build)
        result = run(raw, on_round)
    engine = engines[-1]  # a phase before the first round has engines of its own
    assert engine.calls
    return result, engine


def assert_replayed(recorded: RecordingEngine, name: str, **settings: Any) -> dict[str, float]:
    """Gives the recorded jobs to the engine `name` and compares what it returns and what the devices keep.

    Returns the engine's facts about its last jobs.
    """
    world = replace(recorded.world, states=type(recorded.world.states)())
    engine = ENGINES[name](replace(recorded.settings, **settings))
    engine.open(world)
    try:
        for call in recorded.calls:
            for device, state in call.before.items():
                world.states.put(device, state)
            found = summary(world, list(engine.run(call.jobs)))
            assert_close(found, summary(world, call.outcomes))
            assert_close({device: world.states.get(device) for device in call.after}, call.after)
        return dict(engine.facts())
    finally:
        engine.close()


def summary(world: Any, outcomes: Sequence[Any]) -> dict[str, Any]:
    """All that outcomes say, without which uploads were combined where.

    By node the uploads that were combined, by device those that were not, and by device sizes and reasons for refusals.
    """
    found: dict[str, Any] = {"combined": {}, "sent": {}, "refused": {}, "refused_bytes": {}, "scalars": {}}
    for outcome in outcomes:
        found["sent"].update(outcome.sent)
        found["refused"].update(outcome.refused)
        found["refused_bytes"].update(outcome.refused_bytes)
        found["scalars"].update(outcome.scalars)
        if outcome.up is None:
            continue
        if not outcome.scalars:  # only an outcome of combined uploads lists the scalars of each
            (device,) = outcome.sent
            found[device] = outcome.up
        elif outcome.node in found["combined"]:
            merge = world.servers[outcome.node].reducer.merge
            found["combined"][outcome.node] = merge(found["combined"][outcome.node], outcome.up)
        else:
            found["combined"][outcome.node] = outcome.up
    return found


def assert_close(found: Any, expected: Any, path: str = "") -> None:
    """Asserts that two pytrees have the same form and, up to rounding in float64, the same values."""
    if isinstance(expected, Packet):
        for part in ("tensors", "scalars", "tags"):
            assert_close(getattr(found, part), getattr(expected, part), f"{path} {part}")
    elif isinstance(expected, Mapping):
        assert set(found) == set(expected), path
        for name, value in expected.items():
            assert_close(found[name], value, f"{path}/{name}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), path
        for number, value in enumerate(expected):
            assert_close(found[number], value, f"{path}/{number}")
    elif isinstance(expected, Tensor | float):
        torch.testing.assert_close(found, expected, rtol=RTOL, atol=ATOL, msg=lambda text: f"{path}: {text}")
    else:
        assert found == expected, path
