"""Ladders with counts: an experiment says how many devices get each model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import undergrowth as ug
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.execution import start
from undergrowth.runs.federation import Federation
from undergrowth.runs.federation_builder import federate

COUNTS = {"mlp": 1, "logistic": 3}


def described(**changes: Any) -> dict[str, Any]:
    return {
        "method": {"name": "fedmd", "pretrain_epochs": 1},
        "public": 0.05,
        "model": {"name": "mlp", "hidden": 8, "ladder": COUNTS},
        "data": {"clients": 4, "partition": "iid"},
        "train": {"rounds": 2},
        **changes,
    }


def built(**changes: Any) -> Federation:
    return federate(parse_experiment(described(**changes)))


def test_the_short_form_is_a_list_with_counts() -> None:
    short, long = (
        parse_experiment(described()),
        parse_experiment(
            described(
                model={"name": "mlp", "hidden": 8, "ladder": [{"name": n, "count": c} for n, c in COUNTS.items()]}
            )
        ),
    )
    assert short == long and short.model.counts == COUNTS
    assert parse_experiment({"model": {"ladder": ["mlp", "cnn"]}}).model.counts == {}


def test_slower_devices_get_smaller_models_in_a_star_and_in_a_tree() -> None:
    data = {"clients": 12, "partition": "iid"}
    model = {"name": "mlp", "ladder": {"mlp": 5, "logistic": 7}}
    star = built(data=data, model=model, fleet="mixed-edge")
    tree = built(data=data, model=model, fleet="mixed-edge", topology="tree:3x4")
    assert star.task.assigned == tree.task.assigned
    assert Counter(star.task.assigned.values()) == {"mlp": 5, "logistic": 7}
    speeds = {name: star.fleet.profile(name).achieved_flops for name in star.population.devices}
    slow = max(speeds[device] for device, name in star.task.assigned.items() if name == "logistic")
    assert slow <= min(speeds[device] for device, name in star.task.assigned.items() if name == "mlp")
    sent = {device: packet.tags["model"] for device, packet in star.first_round.packets.items()}
    assert sent == star.task.assigned


def test_the_seed_decides_among_equal_devices() -> None:
    chosen = [built(run={"seed": seed}).task.assigned for seed in (0, 0, 1, 2, 3, 4)]
    assert chosen[0] == chosen[1]
    assert len({next(device for device, name in each.items() if name == "mlp") for each in chosen}) > 1


def test_a_method_that_pools_the_data_ignores_the_counts() -> None:
    assert built(method="central").task.assigned == {}


def test_a_run_in_a_tree_is_resumed_with_the_same_models(out: str, interrupted: Any) -> None:
    tree = described(topology="tree:2x2")
    interrupted(tree, after=1)
    resumed = ug.resume("last", out, progress=False)
    whole = start({**tree, "run": {"out": out}})
    assert resumed.summary["model_digest"] == whole.summary["model_digest"]
    work = [row.flops for row in whole.ledger.rows() if row.round == 1 and row.child.startswith("device")]
    assert sum(each > max(work) / 3 for each in work) == 1  # the mlp; with equal data the others do far less
