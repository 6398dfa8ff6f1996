"""FedAT: options, and cases at their edges."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
import torch.nn.functional as F

from tests.methods.test_fedat import (
    CONTEXT,
    FAST,
    SIZES,
    assert_close,
    double,
    double_digits,
    module_of,
    task_of,
    uploads_of,
)
from undergrowth.core import Context, InputError, Output, Packet, Shard
from undergrowth.learning import LossInputs
from undergrowth.learning.own_models import first_weights
from undergrowth.methods import FedAT
from undergrowth.methods.fedat.server import PresentClassesLoss, present_classes


def test_a_shared_start_gives_devices_the_weights_that_the_models_have_in_common() -> None:
    task = task_of("wrn")
    server, seeds = FedAT(shared_start=True).server, (Context(5, "root", 0), Context(6, "root", 0))
    states = [server.init(task, context) for context in seeds]
    own = [first_weights(task, "small", int(state["seed"]), server.shared_start) for state in states]
    assert set(own[0]) == set(task.ladder["small"].initial(0)) < set(states[0]["model"])  # fewer blocks, no other names
    assert all(torch.equal(value, states[0]["model"][name]) for name, value in own[0].items())
    assert not torch.equal(own[0]["stem.weight"], own[1]["stem.weight"])
    alone = first_weights(task, "small", int(states[0]["seed"]), shared=False)
    assert_close(alone, task.ladder["small"].initial(int(states[0]["seed"])))
    assert not torch.equal(alone["group2.0.convolution1.weight"], own[0]["group2.0.convolution1.weight"])


def test_the_global_model_stays_if_no_device_trained() -> None:
    task, options = task_of("cnn"), FedAT(**FAST)
    idle = {name: replace(up, scalars={**up.scalars, "samples": 0.0}) for name, up in uploads_of(task, options).items()}
    start = task.model.initial(7)
    assert_close(options.server.teach(task, start, idle, CONTEXT)[0], start)


def test_a_frozen_lower_part_stays_as_it_is() -> None:
    """Nothing below the level can be aligned, so the third step is left out."""
    frozen = double("cnn", hidden=8, freeze="low")
    task = replace(task_of("cnn"), model=frozen, ladder={"small": frozen, "large": frozen})
    start = frozen.initial(7)
    down = Packet(start, tags={"model": "small"})
    uploads = {
        name: FedAT().client.local(task, down, double_digits(size, 0), {}, Context(0, name, 0))[0]
        for name, size in SIZES.items()
    }
    after = {
        alignment: FedAT(**FAST, alignment=alignment).server.teach(task, start, uploads, CONTEXT)[0]
        for alignment in ("attention", "none")
    }
    assert_close(after["attention"], after["none"])


def test_a_device_sends_the_maps_of_its_trained_model() -> None:
    task, shard = task_of("wrn"), double_digits(12, 0)
    small = task.ladder["small"]
    for fraction, level in ((1.0, "low"), (0.5, "mid")):
        client = FedAT(metadata_share=fraction, level=level).client
        up, _ = client.local(task, Packet(small.initial(1), tags={"model": "small"}), shard, {}, Context(0, "a", 0))
        net = module_of(small, {name: value for name, value in up.tensors.items() if "/" not in name}).eval()
        with torch.no_grad():
            maps = net[: net.position(level)](shard.x)
        sent, labels = up.tensors["metadata/maps"], up.tensors["metadata/labels"]
        found = [[(one - other).abs().max() < 1e-10 for other in maps].index(True) for one in sent]
        assert len(set(found)) == len(found) == 12 * fraction
        assert torch.equal(labels, shard.y[found])


def test_with_augment_metadata_a_device_sends_the_maps_of_changed_images() -> None:
    """Each image is mirrored or not, by its own draw of this device and round; local training draws others."""
    task, shard = task_of("cnn", augmented=True), double_digits(12, 0)
    client = FedAT(augment_metadata=True).client
    found = []
    for number in range(2):
        context, down = Context(0, "a", number), Packet(task.ladder["small"].initial(1), tags={"model": "small"})
        up, _ = client.local(task, down, shard, {}, context)
        net = module_of(task.ladder["small"], {name: up.tensors[name] for name in down.tensors}).eval()
        mirrored = torch.randint(2, (12,), generator=context.generator("augment metadata")).bool()
        with torch.no_grad():
            maps = net[: net.position("low")](torch.where(mirrored[:, None, None, None], shard.x.flip(3), shard.x))
        torch.testing.assert_close(up.tensors["metadata/maps"], maps)
        assert torch.equal(up.tensors["metadata/labels"], shard.y)
        found.append(mirrored)
    assert not torch.equal(*found)


def test_classes_that_public_data_do_not_have_are_not_unlearned() -> None:
    """The logits of absent classes, and those of outputs that stand for no class, get no gradient of the loss."""
    public = Shard(torch.zeros(3, 2), torch.tensor([1, 3, 1]))
    logits = torch.randn(3, 6, requires_grad=True)
    entries = {"y": public.y, **present_classes(public, 5)}
    inputs = LossInputs(task_of("cnn"), entries, Output(logits, {}, {}), {}, {})
    loss = PresentClassesLoss()(inputs)
    torch.testing.assert_close(loss, F.cross_entropy(logits[:, [1, 3]], torch.tensor([0, 1, 0])))
    (slope,) = torch.autograd.grad(loss, logits)
    assert not slope[:, [0, 2, 4, 5]].any() and slope[:, [1, 3]].all()


def test_a_note_says_that_absent_classes_are_unlearned() -> None:
    whole, some = task_of("cnn"), task_of("cnn", missing=[0, 5, 8])
    assert len(whole.public.y.unique()) == 10  # so that the next line means something
    assert not FedAT().notes(whole) and not FedAT(public_classes="present").notes(some)
    (note,) = FedAT().notes(some)
    assert note.startswith("training on the public data, which lacks 3 of 10 classes, unlearns these; try -s method.")


def test_the_loss_among_present_classes_is_one_of_classification() -> None:
    assert FedAT(public_classes="present").needs_classes.startswith("method.public_classes present leaves out")
    assert not FedAT().needs_classes


@pytest.mark.parametrize("name", ["augment_public", "augment_metadata"])
def test_images_that_cannot_be_augmented_are_refused(name: str) -> None:
    server = FedAT(**{name: True}).server
    with pytest.raises(InputError, match=rf"method.{name} true: .* add data.augment: crop\+flip"):
        server.init(task_of("cnn"), CONTEXT)
    assert server.init(task_of("cnn", augmented=True), CONTEXT)


def test_defaults_are_those_of_the_source() -> None:
    assert {field.name: field.default for field in fields(FedAT)} == {
        "beta": 1000.0, "form": "mean-square", "level": "low", "metadata_share": 1.0, "transfer_lr": 0.1,
        "transfer_epochs": 2, "metadata_lr": 0.1, "metadata_epochs": 2, "server_batch": 64, "alignment": "attention",
        "metadata_of": "device", "upper_statistics": "kept", "public_classes": "all", "augment_public": False,
        "augment_metadata": False, "shared_start": False,
    }  # fmt: skip
