"""What a phone can do with a text model of 110 million parameters."""

from __future__ import annotations

import pytest
import torch

import undergrowth as ug
from undergrowth.data import Dataset
from undergrowth.models import builder
from undergrowth.runs.planning import takes_part

TOKENS = 64


def large_transformer() -> torch.nn.Module:
    """As large as BERT. Zeros, because a price does not depend on values and random ones take seconds."""
    with torch.device("meta"):
        module = builder("transformer", (TOKENS,), 4, vocabulary=30_522, width=768, depth=12, heads=12)()
    module = module.to_empty(device="cpu")
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
    return module


def with_a_frozen_backbone() -> torch.nn.Module:
    """As with `model: {freeze: head}`: devices have the backbone like the program."""
    module = large_transformer()
    for name, value in module.named_parameters():
        value.requires_grad_(name.startswith("head"))
    return module


def texts() -> Dataset:
    tokens, labels = torch.zeros(160, TOKENS, dtype=torch.int64), torch.arange(160) % 4
    return Dataset("texts", tokens, labels, tokens[:8], labels[:8], classes=4)


@pytest.mark.slow
def test_a_plan_with_default_settings_says_that_most_phones_cannot_train_a_large_model() -> None:
    """Not the phones of 2 and 6 GB: the weights, their copy and their gradients are 1.3 GB."""
    methods = ["fedavg", "lora", "fedmezo", "fedncm"]
    found = ug.plan(methods, data=texts(), model=large_transformer, fleet="phones", clients=10, partition="iid")
    devices = takes_part(found)
    assert devices["fedmezo"] == devices["fedncm"] == 10 > devices["lora"] > devices["fedavg"] == 2
    assert found.advice[0].startswith("Most devices can take part with fedmezo: 10 of 10 devices")
    assert found.advice[0].endswith("as many with fedncm.")
    assert "lora: 6 (too big for phone-low)" in found.advice[1]
    assert "fedavg: 2 (too big for phone-low, phone-mid)" in found.advice[1]
    memory = {row["method"]: row["memory_bytes"] for row in found}
    assert memory["fedavg"] == pytest.approx(3 * 434e6, rel=0.2)
    assert memory["fedmezo"] == pytest.approx(434e6, rel=0.1) and memory["fedncm"] == pytest.approx(434e6, rel=0.1)


@pytest.mark.slow
def test_phones_can_adapt_a_large_model_and_cannot_train_it() -> None:
    """FedAvg does not fit into the memory of small phones, and takes too long to upload from the others."""
    assert sum(value.numel() for value in large_transformer().parameters()) == pytest.approx(109e6, rel=0.01)
    settings = {"data": texts(), "fleet": "phones", "clients": 10, "partition": "iid", "batch": 2, "deadline": 150}
    rows = [
        *ug.plan(["fedavg", "fedmezo", "lora"], model=large_transformer, **settings),
        *ug.plan(["fedncm"], model=with_a_frozen_backbone, **settings),
    ]
    assert takes_part(rows) == {"fedavg": 0, "fedmezo": 10, "lora": 10, "fedncm": 10}
    rows_of = {(row["method"], row["device"]): row for row in rows}
    lora, whole = (rows_of[name, "phone-low"] for name in ("lora", "fedavg"))
    assert (lora["verdict"], whole["verdict"]) == ("fits", "too big")
    adapters, head = 12 * 3 * 8 * (768 + 768), 768 * 4 + 4
    assert lora["bytes_up"] == 4 * (adapters + head) + 8
    assert lora["bytes_up"] < whole["bytes_up"] / 200 and lora["flops"] < 0.7 * whole["flops"]
