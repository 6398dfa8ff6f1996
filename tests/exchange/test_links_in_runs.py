"""Codecs in whole runs: the ledger books what each weighs, the clock foresaw it, what was lost is not forgotten."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import undergrowth as ug
from undergrowth.core import InputError, Packet, Weights
from undergrowth.runs.execution import resume, start

from ..double_precision import ATOL, RTOL, DoubleDataset
from ..runs.objects import CLASSES, FEATURES, Own, dataset, linear, normed
from ..stopping import facts, interrupt
from .samples import EVERY_CODEC, codec

Run = Callable[..., ug.Result]
SCALES = 256  # values that share one
DOWN = ["none", "fp16", "bf16", "int8", "int4"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def go(**settings: Any) -> ug.Result:
        return ug.run(**{"data": Own(), "model": linear, "rounds": 2, "out": str(tmp_path), **settings})

    return go


def values(name: str, count: int, width: int) -> int:
    """Bytes of `count` float values, without their positions."""
    scales = 4 * math.ceil(count / SCALES)
    return {
        "none": width * count, "fp16": 2 * count, "bf16": 2 * count, "int8": count + scales,
        "int4": math.ceil(count / 2) + scales,
    }[name]  # fmt: skip


def weight(text: str, tensors: Weights) -> int:
    """What a codec makes of these tensors, by the formulas."""
    total = 0
    for tensor in tensors.values():
        count, width = tensor.numel(), tensor.element_size()
        if not tensor.is_floating_point():
            total += count * width
            continue
        sparse, _, name = text.partition("+") if text.startswith("topk") else ("", "", text)
        kept = max(1, round(float(sparse[5:]) * count)) if sparse else count
        total += values(name or "none", kept, width) + (4 * kept if kept < count else 0)
    return total


def upload(text: str, tensors: Weights) -> int:
    """Bytes of an upload of these tensors: a lossy link adds a byte a float tensor for its sign."""
    return weight(text, tensors) + (0 if text == "none" else sum(each.is_floating_point() for each in tensors.values()))


@pytest.mark.parametrize("up", EVERY_CODEC)
@pytest.mark.parametrize("model", [linear, normed, "logistic"])
def test_bytes_up_are_those_of_the_codec_and_the_clock_foresaw_them(up, model, run):
    data = {"data": "digits", "clients": 4} if model == "logistic" else {}
    result = run(links={"up": up}, model=model, **data)
    tensors = result.model.state_dict()
    expected = upload(up, tensors) + 8
    for row in result.ledger.rows():
        assert row.bytes_up == expected
        assert row.bytes_down == weight("none", tensors)
        assert row.seconds_up == expected / 1e6  # the price that the clock set before anything was sent
    assert result.ledger.bytes_up == 8 * expected


@pytest.mark.parametrize("down", DOWN)
@pytest.mark.parametrize("model", [linear, normed])
def test_bytes_down_are_those_of_the_codec(down, model, run):
    result = run(links={"down": down, "up": "int8"}, model=model)
    tensors = result.model.state_dict()
    for row in result.ledger.rows():
        assert row.bytes_down == weight(down, tensors)
        assert row.seconds_down == row.bytes_down / 1e6
        assert row.bytes_up == upload("int8", tensors) + 8


@pytest.mark.parametrize("up", EVERY_CODEC)
def test_changes_of_fedbuff_weigh_what_models_weigh(up, run):
    result = run(method="fedbuff", options={"buffer": 2}, links={"up": up})
    expected = upload(up, result.model.state_dict()) + 16  # samples, for the mean of the changes and for their weight
    arrived = [row for row in result.ledger.rows() if row.outcome == "arrived"]
    assert {row.bytes_up for row in arrived} == {expected}
    assert {row.seconds_up for row in arrived} == {expected / 1e6}


@pytest.mark.parametrize("sampler", ["uniform", "oort"])
def test_a_number_more_weighs_eight_bytes_whatever_the_codec(sampler, run):
    result = run(links={"up": "topk:0.1+int4"}, sampler=sampler)
    expected = upload("topk:0.1+int4", result.model.state_dict()) + (8 if sampler == "uniform" else 16)
    assert {row.bytes_up for row in result.ledger.rows()} == {expected}


def test_none_is_no_codec_bit_for_bit(run):
    plain = run()
    assert facts(plain) == facts(run(links={"up": "none", "down": "none"}))
    assert facts(plain) == facts(run(links={"feedback": False}))
    assert plain.summary["model_digest"] != run(links={"up": "fp16"}).summary["model_digest"]


@pytest.mark.parametrize("links", [{"up": "int8"}, {"up": "int8", "down": "fp16"}, {"up": "bf16"}])
def test_a_fine_codec_costs_no_accuracy(links, run):
    settings = {"data": "digits", "clients": 10, "partition": "iid", "model": "logistic", "rounds": 8}
    assert run(links=links, **settings).accuracy == pytest.approx(run(**settings).accuracy, abs=0.02)


def test_what_top_k_leaves_out_is_made_up_for_by_feedback(run):
    settings = {"data": "digits", "clients": 10, "partition": "iid", "model": "logistic", "rounds": 8}
    with_feedback = run(links={"up": "topk:0.05"}, **settings)
    without = run(links={"up": "topk:0.05", "feedback": False}, **settings)
    assert with_feedback.loss < without.loss


LOSSY = [{"up": "topk:0.2+int8"}, {"up": "int4", "down": "int8"}, {"up": "topk:0.1", "feedback": False}]


@pytest.mark.parametrize("links", LOSSY)
@pytest.mark.parametrize("method", ["fedavg", "fedbuff"])
def test_what_was_lost_is_remembered_across_a_restart_bit_for_bit(links, method, tmp_path):
    tree = {"method": method, "links": links, "train": {"rounds": 6, "sample": 0.5}}
    objects = {"data": Own(), "model": linear}
    kept: dict[str, Any] = {}

    def keep(row: Any, execution: Any) -> None:
        kept[execution.run] = execution.federation.world.states.snapshot()

    whole = start({**tree, "run": {"out": str(tmp_path / "whole")}}, on_round=keep, **objects)
    interrupt(tree, 3, str(tmp_path / "stopped"), **objects)
    resumed = resume("last", str(tmp_path / "stopped"), on_round=keep, **objects)
    assert facts(resumed) == facts(whole)
    before, after = kept[whole.run], kept[resumed.run]
    assert list(before) == list(after)
    for device, written in before.items():
        assert written.keys() == after[device].keys()
        torch.testing.assert_close(written["residual"], after[device]["residual"], rtol=0, atol=0)
    if method == "fedavg" and links.get("feedback", True):
        assert any(value.abs().sum() > 0 for written in before.values() for value in written["residual"].values())


@pytest.mark.parametrize("method", ["fedavg", "fedsplit"])  # fedsplit sends the model as a part of a packet
def test_no_error_of_batch_norm_statistics_is_remembered(method, tmp_path):
    kept: list[Any] = []
    tree = {
        "method": {"name": method, **({"level": "head", "meta_epochs": 1} if method == "fedsplit" else {})},
        "links": {"up": "topk:0.2"},
        "train": {"rounds": 1},
        "run": {"out": str(tmp_path)},
    }
    start(
        tree,
        on_round=lambda row, execution: kept.append(execution.federation.world.states.snapshot()),
        data=Own(),
        model=normed,
    )
    names = {name.rpartition("/")[2] for written in kept[0].values() for name in written["residual"]}
    assert names == {name for name, _ in normed().named_parameters()}


@pytest.mark.parametrize("up", ["topk:0.2", "int4", "topk:0.3+int8"])
@pytest.mark.parametrize("norm", [nn.Identity(), nn.BatchNorm1d(5)])
def test_methods_that_send_changes_stay_fedavg_on_a_lossy_uplink(up, norm, run):
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 5), deepcopy(norm), nn.ReLU(), nn.Linear(5, CLASSES)).double()

    data = DoubleDataset(**vars(dataset(80)))  # no two values are alike, of which top-k would choose one
    settings = {
        "data": data, "clients": 4, "partition": "iid", "model": model, "rounds": 5, "links": {"up": up},
    }  # fmt: skip
    expected = dict(run(**settings).model.state_dict())
    everybody = {"buffer": 4, "concurrency": 4, "staleness": "constant"}
    for method, options in (("fednova", {}), ("fedbuff", everybody)):
        found = dict(run(method=method, options=options, **settings).model.state_dict())
        torch.testing.assert_close(found, expected, rtol=RTOL, atol=ATOL)


def test_a_device_trains_on_what_arrived_and_its_change_is_taken_from_that(run):
    """With int4 down and nothing lost on the way up, the model is what devices made of the coarse one."""
    result = run(links={"down": "int4"}, rounds=1, data=Own(sizes=(8,)), lr=1e-30)
    start = run(rounds=1, data=Own(sizes=(8,)), lr=1e-30).model.state_dict()
    coarse = codec("int4").decode(codec("int4").encode(Packet(start))).tensors
    torch.testing.assert_close(result.model.state_dict(), dict(coarse), rtol=0, atol=1e-20)
    assert not torch.equal(coarse["weight"], start["weight"])


@pytest.mark.parametrize("links", [{"down": "topk:0.1"}, {"down": "topk:0.5+int8"}, {"up": "int3"}, {"down": "gzip"}])
def test_a_codec_that_cannot_be_is_refused_before_the_run_starts(links, run):
    with pytest.raises(InputError, match=next(iter(links.values())).split(":")[0]):
        run(links=links)


@pytest.mark.parametrize(
    "method",
    [{"name": "kmeans-clusters", "k": 1}, {"name": "ifca", "k": 1}, {"name": "auxo", "max_clusters": 1, "explore": 0}],
    ids=lambda method: method["name"],
)
def test_the_error_of_a_codec_belongs_to_the_next_upload_whatever_its_cluster(method, tmp_path) -> None:
    """A device is in no cluster at first. With one cluster all of these are FedAvg."""
    raw = {
        "data": {"name": "digits", "clients": 5, "train_samples": 200}, "model": "logistic", "train": {"rounds": 3},
        "links": {"up": "topk:0.3"}, "run": {"out": str(tmp_path), "engine": "serial"},
    }  # fmt: skip
    found, expected = (start({**raw, "method": each}).summary["model_digest"] for each in (method, "fedavg"))
    assert found == expected
