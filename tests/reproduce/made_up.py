"""A small table of our own, so that tests of how tables are run take no time."""

from __future__ import annotations

from typing import Any

import pytest

from undergrowth.reproduce import Table
from undergrowth.reproduce import table as described


def made_up(**changes: Any) -> Table:
    tree: dict[str, Any] = {
        "tables": ["9.1", "9.2"],
        "title": "two methods on two data sets",
        "source": "nobody",
        "settings": {
            "model": "logistic",
            "data": {"clients": 4, "holdout": 0},
            "train": {"rounds": 3},
        },
        "columns": {
            "digits, even": {"data": {"name": "digits", "partition": "iid"}},
            "pictures, even": {"data": {"name": "cifar10", "partition": "iid"}},
        },
        "rows": {
            "FedAvg": {"method": "fedavg"},
            "FedProx": {"method": {"name": "fedprox", "mu": 0.1}},
            "FedAvg, pretrained": {"method": "fedavg", "start": "digits"},
            "FedProx, pretrained": {"method": {"name": "fedprox", "mu": 0.1}, "start": "digits"},
        },
        "cells": [{"rows": "FedProx*", "columns": "pictures*", "settings": {"method": {"mu": 1}}}],
        "starts": {"digits": {"method": "central", "data": [{"name": "npz", "path": "drawings"}, "digits"]}},
        "published": {
            "FedAvg": ["50.5±1.5", 40],
            "FedProx": ["49±2", 45],
            "FedAvg, pretrained": [60, None],
            "FedProx, pretrained": [59, None],
        },
        "orderings": [
            {"says": "a pull helps", "pairs": ["FedProx > FedAvg"]},
            {"says": "so does a start", "pairs": ["FedAvg, pretrained @ digits, even > FedAvg"]},
        ],
        "notes": ["all of it is made up"],
        "scales": {
            "full": {"seeds": 4},
            "small": {"seeds": 2, "data": {"cifar10": {"train_samples": 100}}},
            "smoke": {"seeds": 1, "only": ["*/digits*"], "settings": {"train": {"rounds": 2}}},
        },
    }
    return Table.model_validate({**tree, **changes})


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """The made-up table, in the place of those that are shipped."""
    made = made_up()
    monkeypatch.setattr(described, "tables", lambda: {made.name: made})
    return made
