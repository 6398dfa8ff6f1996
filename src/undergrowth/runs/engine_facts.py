"""Facts about a federation that decide its engine, counted on tensors without values; no engine is opened."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from undergrowth.core import Context, LoopClient, Packet, Progress, RunError, Updates
from undergrowth.core.client import Loop
from undergrowth.core.names import WEIGHT
from undergrowth.devices.traced_job import TracedJobBuilder
from undergrowth.engines import Job, ProcessesEngine
from undergrowth.engines.processes.engine import cores
from undergrowth.engines.vector.carries import stack_carries
from undergrowth.engines.vector.layers import Stacked
from undergrowth.runs.engine_choice import Facts
from undergrowth.runs.federation import Federation

CLIENTS, BATCH = 2, 2  # of the stack that is tried; batch normalisation needs two samples


def count_facts(federation: Federation) -> Facts:
    """What `choose_engine` needs to know about this federation on this machine.

    Whether clients can be stacked is not tried for a brief run, which stays serial: trying takes a third of a second.
    """
    task = federation.task
    (job,) = typical_jobs(federation, 1)
    down, size = federation.world.links.down(job.down)
    work, _ = federation.clock.plain_timing(job.device, down, size, None)
    shapes = task.model.shapes.values()
    facts = Facts(
        clients=_clients_in_a_round(federation),
        rounds=federation.driver.root.cycles,
        steps=work.steps,
        calls=work.calls,
        flops=work.flops,
        inputs=task.train.batch * math.prod(federation.population.shape),
        weights=sum(shape.numel() for shape in shapes),
        cores=cores(),
        gpu=torch.device(federation.world.torch_device).type == "cuda",
        stacks=False,
        convolves=any(len(shape) > 3 for shape in shapes),
        recurrent=any(isinstance(layer, torch.nn.LSTM) for layer in task.model.module.modules()),
        # Beside a GPU, torch refuses to train in a process that was forked after its parent has traced a backward pass.
        forks=hasattr(os, "fork") and not torch.cuda.is_available(),
    )
    return facts if facts.is_brief else replace(facts, stacks=can_stack(federation, down))


def _clients_in_a_round(federation: Federation) -> int:
    """The devices that are asked; with an asynchronous server, the uploads after which it ends a round."""
    server = federation.method.server
    asked = federation.task.train.count_to_ask(len(federation.devices_with_samples))
    if not server.asynchronous:
        return asked
    uploads = range(1, asked)
    return next((count for count in uploads if server.ready(Progress(count, 0, asked - count, False))), asked)


def can_stack(federation: Federation, down: Packet) -> bool:
    """Whether a step of the client runs for several clients at once.

    This is tried on tensors without values. The vector engine also compares the values before it stacks.
    """
    client = federation.world.client
    if isinstance(client, Updates):
        return all(_can_step(federation, each, down) for each in client.updates(federation.task, down).values())
    return isinstance(client, LoopClient) and _can_step(federation, client, down)


def _can_step(federation: Federation, client: LoopClient, down: Packet) -> bool:
    builder = TracedJobBuilder(federation.clock.tracer, client, down, {})

    def step() -> None:
        with builder.job(CLIENTS * BATCH, guess=True) as job, job.meter:
            carry, steps = client.begin(job.task, job.down, job.shard, job.own, job.context)
            (carry,) = client.before_steps(job.task, [Loop(client, job.down, job.shard, carry, steps, job.context)])
            batch = {
                name: torch.zeros((CLIENTS * BATCH, *values.shape[1:]), dtype=values.dtype, device=values.device)
                for name, values in steps.data.items()
            }
            batch[WEIGHT] = torch.full((CLIENTS * BATCH,), 1 / BATCH, device=job.shard.x.device)
            with Stacked(CLIENTS, None):
                client.step(job.task, stack_carries([carry] * CLIENTS), batch)

    with suppress(RunError):
        builder.find_needs(step)
        return True
    return False


def typical_jobs(federation: Federation, count: int) -> list[Job]:
    """Jobs of the first round, of the devices whose numbers of samples are nearest to the median."""
    packets = federation.first_round.packets
    names = sorted(packets, key=federation.population.size)
    middle = names[max(0, len(names) // 2 - count // 2) :][:count]
    return [Job("server", name, packets[name], Context(0, name, 0)) for name in middle]


def choose_workers(federation: Federation) -> tuple[dict[str, Any], list[str]]:
    """The settings that say how many worker processes share each GPU, and the reasons, if the user left this open."""
    engine = federation.engine
    if not isinstance(engine, ProcessesEngine) or engine.torch_devices:
        return {}, []
    reasons = engine.choose_workers(typical_jobs(federation, 1))
    # Workers get their devices in turn, so a list with one device for each worker gives the same order again.
    devices = {"device": ",".join(engine.torch_devices)} if len(set(engine.torch_devices)) > 1 else {}
    return {"workers": len(engine.torch_devices), **devices}, reasons
