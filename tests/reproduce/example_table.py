"""A small table with invented figures, which runs in a second."""

from __future__ import annotations

from typing import Any

import pytest

from undergrowth.reproduce import Table, catalogue


def example_table(**changes: Any) -> Table:
    raw: dict[str, Any] = {
        "tables": ["9.1", "9.2"],
        "title": "two methods on two data sets",
        "source": "invented",
        "experiment": {"model": "logistic", "data": {"clients": 4, "holdout": 0}, "train": {"rounds": 3}},
        "columns": {
            "digits, even": {"data": {"name": "digits", "partition": "iid"}},
            "pictures, even": {"data": {"name": "cifar10", "partition": "iid"}},
        },
        "rows": {
            "FedAvg": {"method": "fedavg"},
            "FedProx": {"method": {"name": "fedprox", "mu": 0.1}},
            "FedAvg, pretrained": {"method": "fedavg", "from_start": "digits"},
            "FedProx, pretrained": {"method": {"name": "fedprox", "mu": 0.1}, "from_start": "digits"},
        },
        "cells": [{"rows": "FedProx*", "columns": "pictures*", "experiment": {"method": {"mu": 1}}}],
        "starts": {
            "digits": {"experiment": {"method": "central", "data": [{"name": "npz", "path": "drawings"}, "digits"]}}
        },
        "published": {
            "FedAvg": ["50.5±1.5", 40],
            "FedProx": ["49±2", 45],
            "FedAvg, pretrained": [60, None],
            "FedProx, pretrained": [59, None],
        },
        "orderings": [
            {"claim": "a proximal term helps", "pairs": ["FedProx > FedAvg"]},
            {"claim": "pretraining helps", "pairs": ["FedAvg, pretrained @ digits, even > FedAvg"]},
        ],
        "notes": ["all figures are invented"],
        "scales": {
            "full": {"seeds": 4},
            "small": {"seeds": 2, "data": {"cifar10": {"train_samples": 100}}},
            "smoke": {"seeds": 1, "only": ["*/digits*"], "experiment": {"train": {"rounds": 2}}},
        },
    }
    return Table.model_validate({**raw, **changes})


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """The example table, which replaces the tables of the package."""
    example = example_table()
    monkeypatch.setattr(catalogue, "load_tables", lambda: {example.name: example})
    return example
