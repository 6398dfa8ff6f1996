"""The training of models at a server in stacks, with steps that are recorded once for all rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from undergrowth.core import Context, Model, Packet, Task
from undergrowth.core.client import Loop, run_one_by_one
from undergrowth.engines.vector import stacked_loops
from undergrowth.learning import LossInputs, Objective, TaskLoss
from undergrowth.learning.distillation import server_client, train_all_on_server

from .. import conformance
from ..double_precision import double_model
from .test_vector import DATA, POPULATION


@dataclass(frozen=True)
class Towards(Objective):
    """The squared distance of the logits from `goal`: an objective that holds a tensor."""

    goal: torch.Tensor

    def __call__(self, inputs: LossInputs) -> torch.Tensor:
        return inputs.mean((inputs.output.logits - self.goal).square().mean(1))


def server_rounds(runner: Any, models: int, objectives: Any, rounds: int = 3) -> list[Any]:
    """The models of a server after several rounds of training, each round with its own objective and data."""
    task = Task(Model(double_model(DATA, "mlp")), DATA.classes, run_loops=runner)
    trained = [dict(task.model.initial(seed)) for seed in range(models)]
    for number in range(rounds):
        shards = [POPULATION.train(name) for name in (*POPULATION.devices[number:], *POPULATION.devices)[:models]]
        data = [{"x": shard.x, "y": shard.y} for shard in shards]
        student = server_client(objectives(number), lr=0.05, epochs=2, batch=8)
        trained = train_all_on_server(task, student, trained, data, Context(0, "server", number))
    return trained


@pytest.mark.parametrize("models", [1, 3])
def test_steps_of_a_server_are_recorded_once_for_all_rounds(as_on_a_gpu, made, monkeypatch, models):
    """Also those of a single model."""
    monkeypatch.setattr(stacked_loops, "run_one_by_one", None)
    found = server_rounds(as_on_a_gpu.run_loops, models, lambda _: TaskLoss())
    conformance.assert_close(found, server_rounds(None, models, lambda _: TaskLoss()))
    assert models in made and len(made) == len(set(made))


def test_another_model_of_a_server_is_recorded_anew(as_on_a_gpu, made):
    for _ in range(2):
        server_rounds(as_on_a_gpu.run_loops, 2, lambda _: TaskLoss(), rounds=1)
    assert made.count(2) == 2


def test_an_objective_with_tensors_of_one_round_is_not_used_in_the_next(as_on_a_gpu, made):
    def objective(number: int) -> Towards:
        return Towards(torch.eye(10, dtype=torch.float64)[number % 10])

    found = server_rounds(as_on_a_gpu.run_loops, 2, objective, rounds=20)
    conformance.assert_close(found, server_rounds(None, 2, objective, rounds=20))
    assert made and len(as_on_a_gpu.run_loops._known) == stacked_loops.MAX_KNOWN


def test_loops_with_different_clients_are_not_in_one_stack(as_on_a_gpu):
    task = Task(Model(double_model(DATA, "mlp")), DATA.classes)
    shard, down, context = POPULATION.train(POPULATION.devices[0]), Packet(task.model.initial(0)), Context(0, "", 0)
    loops = []
    for factor in (1.0, 3.0):
        client = server_client(factor * TaskLoss(), lr=0.05, epochs=1, batch=8)
        loops.append(Loop(client, down, shard, *client.begin(task, down, shard, {}, context), context))
    found = as_on_a_gpu.run_loops(task, loops)
    conformance.assert_close(
        [each["parameters"] for each in found], [each["parameters"] for each in run_one_by_one(task, loops)]
    )
