"""Mistakes in a method of the user's are reported in one sentence, before the run starts where that is possible."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from undergrowth.core import InputError, Method, Named, Packet, Plan, RunError, Server, Sum, WeightedMean
from undergrowth.learning import AveragingServer, GradientClient


@dataclass(frozen=True)
class Given(Method):
    """A method of a client and a server."""

    client: Any = GradientClient()
    server: Any = AveragingServer()


def sentence(run: Any, kind: type[Exception], method: Method, **settings: Any) -> str:
    with pytest.raises(kind) as caught:
        run(method=method, **{"rounds": 2, "engine": "serial", **settings})
    text = str(caught.value)
    assert "\n" not in text
    return text


# Parts that are missing ----------------------------------------------------------------------------------------


class NoServer(Method):
    client = GradientClient()


class NoClient(Method):
    server = AveragingServer()


class BrokenServer(Method):
    client = GradientClient()

    @property
    def server(self) -> Any:
        return AveragingServer(self.rate)  # type: ignore[attr-defined]


class NoStepServer(Server):
    reducer = WeightedMean()


class NoReducerServer(Server):
    def step(self, task: Any, state: Any, combined: Any, context: Any) -> Any:
        return state


PARTS = [
    (NoServer(), "method NoServer: it has no server; define `server`, an object with the base `Server`"),
    (NoClient(), "method NoClient: it has no client; define `client`, an object with a function `local`"),
    (Given(server=AveragingServer), "method Given: its server is the class AveragingServer; it must be an object"),
    (Given(client=GradientClient), "method Given: its client is the class GradientClient; it must be an object"),
    (Given(client=3), "method Given: its client is a int; it must be an object with a function `local`"),
    (BrokenServer(), "method BrokenServer: its server cannot be built: AttributeError: 'BrokenServer' object has no"),
    (
        Given(server=NoStepServer()),
        "method Given: NoStepServer has no `step`, which says what it does with the uploads",
    ),
    (Given(server=NoReducerServer()), "method Given: NoReducerServer has no `reducer`, which says how uploads are"),
]


@pytest.mark.parametrize(("method", "words"), PARTS, ids=[words[:40] for _, words in PARTS])
def test_a_part_that_is_missing_is_named_before_the_run_starts(run, out, method, words):
    assert words in sentence(run, InputError, method)


# Servers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WrongServer(AveragingServer):
    """Returns, or does, something wrong in one of its functions."""

    wrong: dict[str, Any] = field(default_factory=dict, hash=False)

    def _or(self, function: str, *arguments: Any) -> Any:
        instead = self.wrong.get(function)
        return getattr(AveragingServer, function)(self, *arguments) if instead is None else instead(*arguments)

    def init(self, *arguments: Any) -> Any:
        return self._or("init", *arguments)

    def plan(self, *arguments: Any) -> Any:
        return self._or("plan", *arguments)

    def step(self, *arguments: Any) -> Any:
        return self._or("step", *arguments)

    def ready(self, *arguments: Any) -> Any:
        return self._or("ready", *arguments)


def wrong(**functions: Any) -> Method:
    return Given(server=WrongServer(wrong=functions))


def look_up(task: Any, state: Any, combined: Any, context: Any) -> Any:
    return {"model": {name: combined.tensors[f"change/{name}"] for name in state["model"]}}


def divide(task: Any, state: Any, combined: Any, context: Any) -> Any:
    return 1 / 0


NO_MODEL = "method: the server's state has no 'model', only 'weights'; return one from `init`, `adopt` and `step`"
SERVERS = [
    (InputError, wrong(init=lambda task, context: {"weights": {}}), NO_MODEL),
    (RunError, wrong(step=lambda task, state, combined, context: {"weights": {}}), NO_MODEL),
    (
        InputError,
        wrong(init=lambda task, context: None),
        "method: WrongServer.init returned nothing; it must return the",
    ),
    (
        RunError,
        wrong(step=lambda *_: []),
        "method: WrongServer.step returned a list; it must return the server's state",
    ),
    (InputError, wrong(plan=lambda *_: {}), "method: WrongServer.plan returned a dict; it must return a Plan"),
    (
        InputError,
        wrong(plan=lambda task, state, view, context: Plan({"nobody": Packet(state["model"])})),
        "method: WrongServer.plan asks 'nobody', which is not a child of 'server'; `view.idle` has the children",
    ),
    (
        RunError,
        wrong(step=look_up),
        "WrongServer.step failed at 'server' in round 1: KeyError: there is no key 'change/head.weight'; "
        "the packet has head.weight, head.bias, samples",
    ),
    (RunError, wrong(step=divide), "WrongServer.step failed at 'server' in round 1: division by zero"),
    (
        RunError,
        wrong(ready=lambda progress: progress.nobody),
        "WrongServer.ready failed at 'server' in round 1: 'Progress' object has no attribute 'nobody'",
    ),
]


@pytest.mark.parametrize(("kind", "method", "words"), SERVERS, ids=[words[:50] for _, _, words in SERVERS])
def test_a_mistake_in_a_server_is_told_in_a_sentence(run, kind, method, words):
    assert words in sentence(run, kind, method)


def test_a_state_without_a_model_is_noticed_before_the_run_starts(run, out):
    def plan(task: Any, state: Any, view: Any, context: Any) -> Plan:
        return Plan(dict.fromkeys(view.idle, Packet(state["weights"])))

    method = wrong(init=lambda task, context: {"weights": task.model.initial(0)}, plan=plan)
    assert NO_MODEL in sentence(run, InputError, method)


def test_a_node_that_is_taken_for_a_device_is_named(run):
    def plan(task: Any, state: Any, view: Any, context: Any) -> Plan:
        return Plan({child: Packet(state["model"]) for child in view.idle if view.knowledge.speed(child)})

    found = sentence(run, RunError, wrong(plan=plan), topology="tree:2x2")
    node = "edge-00"
    assert f"WrongServer.plan failed at 'server' in round 1: KeyError: there is no key '{node}'" in found
    assert f"'{node}' is a node of the topology, and `view.devices` has the children that are devices" in found


@dataclass(frozen=True)
class FailingClient(GradientClient):
    """Looks up what is not there, in one of its functions, once its work has been priced."""

    where: str = ""

    def _fail(self, where: str, is_real: bool) -> None:
        if where == self.where and is_real:
            raise KeyError("nope")

    def begin(self, task: Any, down: Any, shard: Any, own: Any, context: Any) -> Any:
        self._fail("begin", not shard.x.is_meta)
        return super().begin(task, down, shard, own, context)

    def before_steps(self, task: Any, loops: Any) -> Any:
        self._fail("before_steps", not loops[0].shard.x.is_meta)
        return super().before_steps(task, loops)

    def step(self, task: Any, carry: Any, batch: Any) -> Any:
        self._fail("step", not batch["x"].is_meta and batch["x"].dtype == torch.float32)
        return super().step(task, carry, batch)

    def after_steps(self, task: Any, loops: Any) -> Any:
        self._fail("after_steps", not loops[0].shard.x.is_meta)
        return super().after_steps(task, loops)

    def upload(self, trained: Any) -> Any:
        self._fail("upload", not trained.shard.x.is_meta)
        return super().upload(trained)


@pytest.mark.parametrize("engine", ["serial", "processes", "vector"])
@pytest.mark.parametrize("where", ["begin", "before_steps", "step", "after_steps", "upload"])
def test_an_error_in_a_client_names_the_device_on_every_engine(run, where, engine):
    text = sentence(run, RunError, Given(FailingClient(where=where)), engine=engine)
    assert re.match(r"device-\d+ failed in round 1 with \d+ samples: KeyError: there is no key 'nope'; `", text)


# Uploads -------------------------------------------------------------------------------------------------------


class OnlyPacketClient(GradientClient):
    def upload(self, trained: Any) -> Any:
        return trained.packet


class RenamingClient(GradientClient):
    def upload(self, trained: Any) -> Any:
        return Packet({f"my.{name}": value for name, value in trained.tensors.items()}, trained.scalars), {}


class PartServer(AveragingServer):
    def check(self, task: Any, up: Packet) -> None:
        return None


def test_an_upload_without_an_own_state_is_refused_before_the_run_starts(run):
    words = "method: OnlyPacketClient.upload must return the packet to send and the device's next own state"
    assert words in sentence(run, InputError, Given(client=OnlyPacketClient()))


def test_names_that_the_model_does_not_have_are_named(run):
    found = sentence(run, RunError, Given(client=RenamingClient()))
    assert "every update was refused" in found and "'my.head.weight' is not a tensor of the model" in found


def test_tensors_outside_of_all_parts_are_named(run):
    server = PartServer(reducer=Named({"model": WeightedMean(), "maps": Sum()}))
    found = sentence(run, RunError, Given(server=server))
    assert "'head.weight' is in no part, and the method reduces model, maps" in found


def test_a_server_that_expects_other_names_says_which_there_are(run):
    found = sentence(run, RunError, Given(client=RenamingClient(), server=PartServer()))
    assert "PartServer.step failed at 'server' in round 1: KeyError: there is no key 'my.head.weight'" in found
    assert "the packet has my.head.weight, my.head.bias, samples" in found


# What is evaluated ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown(Given):
    shown: Any = None
    own_model: Any = None

    def models(self, task: Any, state: Any, own: Any) -> Any:
        return self.shown(state) if self.shown else super().models(task, state, own)

    def personal(self, task: Any, state: Any, own: Any, device: str) -> Any:
        return self.own_model(state, device) if self.own_model else super().personal(task, state, own, device)


def some(state: Any) -> Any:
    return {name: value for name, value in state["model"].items() if "bias" not in name}


EVALUATED = [
    (RunError, Shown(shown=lambda state: {}), "method: Shown.models must return at least one model by name, not {}"),
    (
        RunError,
        Shown(shown=lambda state: {"global": some(state)}),
        "method: the model 'global' to evaluate lacks 1 of 2 tensors, such as 'head.bias'",
    ),
    (RunError, Shown(shown=lambda state: state["best"]), "Shown.models failed: KeyError: there is no key 'best'"),
    (
        RunError,
        Shown(own_model=lambda state, device: state[device]),
        "Shown.personal failed for device-000: KeyError: there is no key 'device-000'",
    ),
    (
        RunError,
        Shown(own_model=lambda state, device: some(state)),
        "method: the model 'devices/device-000' to evaluate lacks 1 of 2 tensors, such as 'head.bias'",
    ),
]


@pytest.mark.parametrize(("kind", "method", "words"), EVALUATED, ids=[words[:50] for _, _, words in EVALUATED])
def test_a_model_that_cannot_be_evaluated_is_named(run, kind, method, words):
    assert words in sentence(run, kind, method)
