"""Crop, flip and cutout against a plain loop; when they are drawn, when they are applied, what they cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from undergrowth.core import Context, InputError, Model, Packet, Shard, Task, Train
from undergrowth.data import Dataset
from undergrowth.devices import Tracer
from undergrowth.learning import EntropySelector, GradientClient, ImageAugmentation, build_augmentation, features_of
from undergrowth.methods import FedMD, Moon
from undergrowth.models import builder

CONTEXT = Context(5, "device-1", 3)
SHAPE = (3, 8, 10)
BLACK = (-1.5, 0.25, 2.0)


def augmentation(text: str, shape: tuple[int, ...] = SHAPE) -> ImageAugmentation:
    built = build_augmentation(text, shape, BLACK[: shape[0]])
    assert built is not None
    return built


def images(count: int, shape: tuple[int, ...] = SHAPE) -> Shard:
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    return Shard(x, torch.randint(0, 3, (count,), generator=generator))


def task_of(text: str = "none", model: str = "logistic", shape: tuple[int, ...] = SHAPE, **train: Any) -> Task:
    build = builder(model, shape, 3)
    changes = build_augmentation(text, shape, BLACK[: shape[0]])
    settings = Train(**{"epochs": 2, "batch": 5, "lr": 0.05, **train})
    return Task(Model(lambda: build().double()), 3, settings, augmentation=changes)


def plain_loop(image: NDArray[Any], choices: list[int], text: str) -> NDArray[Any]:
    """Crop, flip and cutout of one image, pixel by pixel, with the numbers that were drawn for it."""
    channels, height, width = image.shape
    top, left, flipped, row, column = choices
    if "crop" in text:
        pad_rows, pad_columns = 1, 1  # an eighth of 8 and of 10
        padded = np.empty((channels, height + 2 * pad_rows, width + 2 * pad_columns))
        for channel in range(channels):
            padded[channel] = BLACK[channel]
        padded[:, pad_rows : pad_rows + height, pad_columns : pad_columns + width] = image
        image = padded[:, top : top + height, left : left + width]
    if "flip" in text and flipped:
        image = image[:, :, ::-1]
    if "cutout" in text:
        side = int(text.rpartition(":")[2])
        image = image.copy()
        for i in range(row - side // 2, row - side // 2 + side):
            for j in range(column - side // 2, column - side // 2 + side):
                if 0 <= i < height and 0 <= j < width:
                    image[:, i, j] = 0
    return image


@pytest.mark.parametrize("text", ["crop", "flip", "cutout:4", "cutout:3", "flip+crop", "crop+flip+cutout:5"])
def test_a_batch_is_augmented_as_a_plain_loop_does_it(text: str) -> None:
    changes, x = augmentation(text), images(60).x
    before = x.clone()
    draws = changes.draw(60, CONTEXT.generator("augment"))
    found = changes.apply(x, draws)
    expected = [plain_loop(image, row, text) for image, row in zip(x.numpy(), draws.tolist(), strict=True)]
    assert torch.equal(found, torch.from_numpy(np.stack(expected)))
    assert torch.equal(x, before) and not torch.equal(found, x)
    assert torch.equal(changes.apply(x, changes.keep(60)), x), "choices that change nothing"


def test_cutout_of_an_even_side_is_that_of_the_paper() -> None:
    """DeVries and Taylor: rows from clip(y − N // 2) to clip(y + N // 2), and the same for columns."""
    changes = augmentation("cutout:6")
    draws = changes.draw(200, CONTEXT.generator("augment"))
    found = changes.apply(torch.ones(200, *SHAPE), draws)
    for image, (_, _, _, y, x) in zip(found, draws.tolist(), strict=True):
        expected = torch.ones(SHAPE)
        expected[:, max(y - 3, 0) : min(y + 3, 8), max(x - 3, 0) : min(x + 3, 10)] = 0
        assert torch.equal(image, expected)


def test_the_result_is_that_of_fedmls_order() -> None:
    """Raw pixels are padded with black, cropped and flipped, then normalised, then cut out."""
    pixels = np.random.default_rng(1).integers(0, 256, (40, 3, 32, 32), dtype=np.uint8)
    mean, std = np.array([0.49, 0.48, 0.44]), np.array([0.24, 0.2, 0.26])
    labels = np.arange(40) % 3
    data = Dataset("photos", pixels, labels, pixels, labels, 3, mean=tuple(mean), std=tuple(std))
    changes = build_augmentation("crop+flip+cutout:16", data.shape, data.black)
    assert changes is not None
    draws = changes.draw(40, CONTEXT.generator("augment"))
    found = changes.apply(data.shard(np.arange(40)).x, draws)
    for image, raw, (top, left, flipped, y, x) in zip(found, pixels, draws.tolist(), strict=True):
        window = np.pad(raw, ((0, 0), (4, 4), (4, 4)))[:, top : top + 32, left : left + 32]
        window = window[:, :, ::-1] if flipped else window
        expected = (window / 255 - mean[:, None, None]) / std[:, None, None]
        expected[:, max(y - 8, 0) : min(y + 8, 32), max(x - 8, 0) : min(x + 8, 32)] = 0
        np.testing.assert_allclose(image, expected, atol=1e-5)


def test_all_choices_are_equally_frequent() -> None:
    changes = augmentation("crop+flip+cutout:16", (3, 32, 32))
    assert changes.padding == (4, 4)
    draws = changes.draw(9000, CONTEXT.generator("augment")).numpy()
    for column, limit in enumerate((9, 9, 2, 32, 32)):
        counts = np.bincount(draws[:, column], minlength=limit)
        # Six standard deviations of a binomial count.
        assert len(counts) == limit and np.abs(counts - 9000 / limit).max() < 6 * np.sqrt(9000 / limit)
    # Independent of each other: no pair of columns is correlated.
    assert np.abs(np.corrcoef(draws.T) - np.eye(5)).max() < 6 / np.sqrt(9000)


@pytest.mark.parametrize(("side", "padding"), [(8, 1), (28, 4), (32, 4), (64, 8), (96, 12), (224, 28), (3, 1)])
def test_the_padding_is_an_eighth_of_a_side(side: int, padding: int) -> None:
    assert augmentation("crop", (1, side, 32)).padding == (padding, 4)
    assert augmentation("flip", (1, side, 32)).padding == (0, 0)


def test_choices_depend_on_the_context_and_differ_between_epochs() -> None:
    task, shard = task_of("crop+flip+cutout:4"), images(23)

    def choices(context: Context) -> list[list[list[int]]]:
        _, steps = GradientClient().begin(task, Packet(task.model.initial(1)), shard, {}, context)
        return [draws.tolist() for draws in steps.visits["augment"]]

    first = choices(CONTEXT)
    assert first == choices(CONTEXT) and first[0] != first[1] and len(first[0]) == 23
    others = [CONTEXT._replace(node="device-2"), CONTEXT._replace(round=4), CONTEXT._replace(turn=1)]
    assert all(choices(other) != first for other in others)
    _, plain = GradientClient().begin(task_of(), Packet(task.model.initial(1)), shard, {}, CONTEXT)
    _, steps = GradientClient().begin(task, Packet(task.model.initial(1)), shard, {}, CONTEXT)
    assert all(map(torch.equal, plain.epochs, steps.epochs)), "the order of the samples is the same without"


def train_by_hand(task: Task, text: str, shard: Shard, context: Context, drop_last: bool = False) -> dict[str, Tensor]:
    """Plain SGD on batches that are augmented image by image."""
    net = task.model.build()
    net.load_state_dict(task.model.initial(1))
    optimiser = torch.optim.SGD(net.parameters(), task.train.lr)
    order, numbers = context.generator("order"), context.generator("augment")
    epochs = []
    for _ in range(task.train.epochs):
        rows = torch.randperm(len(shard), generator=order)
        rest = len(shard) % task.train.batch
        epochs.append(rows[: len(rows) - rest] if drop_last and len(shard) > task.train.batch else rows)
    for rows in epochs:
        x = shard.x[rows]
        if text != "none":
            draws = augmentation(text).draw(len(rows), numbers).tolist()
            x = torch.from_numpy(np.stack([plain_loop(i.numpy(), d, text) for i, d in zip(x, draws, strict=True)]))
        for inputs, labels in zip(x.split(task.train.batch), shard.y[rows].split(task.train.batch), strict=True):
            optimiser.zero_grad()
            functional.cross_entropy(net(inputs), labels).backward()
            optimiser.step()
    return {name: value.detach() for name, value in net.state_dict().items()}


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("text", ["none", "crop+flip+cutout:4"])
@pytest.mark.parametrize("samples", [23, 20, 3])
def test_a_devices_training_is_a_plain_loop(text: str, drop_last: bool, samples: int) -> None:
    task, shard = task_of(text, drop_last=drop_last), images(samples)
    up, _ = GradientClient().local(task, Packet(task.model.initial(1)), shard, {}, CONTEXT)
    expected = train_by_hand(task, text, shard, CONTEXT, drop_last)
    torch.testing.assert_close(dict(up.tensors), expected)
    assert up.scalars["samples"] == samples


def test_samples_are_selected_as_they_are() -> None:
    task, shard, client = task_of("crop+flip"), images(40), GradientClient(selector=EntropySelector(0.3, 1.0))
    picked = [
        client.begin(each, Packet(task.model.initial(1)), shard, {}, CONTEXT)[1].epochs for each in (task, task_of())
    ]
    assert all(map(torch.equal, *picked))


def test_moon_compares_features_of_the_augmented_inputs() -> None:
    text = "crop+flip+cutout:4"
    task, shard = task_of(text, "mlp"), images(13)
    received, previous = task.model.initial(1), task.model.initial(2)
    own = {"model": previous}
    carry, steps = Moon(mu=1.0).client.begin(task, Packet(received), shard, own, CONTEXT)
    batches, numbers = list(steps), CONTEXT.generator("augment")
    assert len(batches) == 6 and carry
    draws = torch.cat([augmentation(text).draw(13, numbers) for _ in range(2)]).tolist()
    visited = [shard.x[row].numpy() for order in steps.epochs for row in order]
    x = torch.from_numpy(np.stack([plain_loop(image, d, text) for image, d in zip(visited, draws, strict=True)]))
    for name, weights in (("near", received), ("far", previous)):
        found = torch.cat([batch[name] for batch in batches])
        torch.testing.assert_close(found, features_of(task, weights, x, "head").flatten(1))


def test_fedmd_augments_own_samples_and_not_public_ones() -> None:
    changes = augmentation("crop+flip")
    task = replace(task_of("crop+flip"), public=images(9), train=Train(epochs=2, batch=5))
    teacher = torch.zeros(9, 3).double()
    scalars = {"digested": 1.0, "draw": 2.0, "seed": 3.0}
    down = Packet({"consensus": teacher}, scalars, {"model": ""})
    _, steps = FedMD(digest_epochs=1).client.begin(task, down, images(7), {}, CONTEXT)
    public, *own = steps.visits["augment"]
    assert torch.equal(public, changes.keep(9)) and [len(draws) for draws in own] == [7, 7]
    numbers = CONTEXT.generator("augment")
    assert all(torch.equal(draws, changes.draw(7, numbers)) for draws in own)


def test_augmentation_costs_memory_and_no_flops() -> None:
    """FLOPs are those of matrix products and convolutions, as everywhere; gathering pixels has none."""
    plain, augmented = (task_of(text, "cnn", (3, 32, 32)) for text in ("none", "crop+flip+cutout:16"))
    down = Packet(plain.model.initial(1))
    works = [Tracer(t, GradientClient(), (3, 32, 32), torch.float64).work(down, 23) for t in (plain, augmented)]
    assert works[0].flops == works[1].flops and works[0].steps == works[1].steps
    assert works[1].memory > works[0].memory and works[1].calls > works[0].calls


def test_batches_that_are_dropped_cost_nothing() -> None:
    down = Packet(task_of().model.initial(1))
    works = {}
    for drop_last in (False, True):
        tracer = Tracer(task_of(drop_last=drop_last), GradientClient(), SHAPE, torch.float64)
        works[drop_last] = [tracer.work(down, size) for size in (20, 23, 3)]
    assert works[True][0] == works[False][0] and works[True][2] == works[False][2]
    assert (works[False][1].steps, works[True][1].steps) == (10, 8) and works[True][1].flops == works[True][0].flops


@pytest.mark.parametrize(
    ("text", "shape", "words"),
    [
        ("crop", (6,), r"data.augment 'crop': one input has shape \(6,\); only images"),
        ("mixup", SHAPE, "data.augment 'mixup' is not known; choose one of: crop, cutout, flip, none"),
        ("flipp", SHAPE, "did you mean 'flip'"),
        ("crop+crop", SHAPE, "each of crop, flip and cutout:N at most once"),
        ("none+crop", SHAPE, "each of crop, flip and cutout:N at most once"),
        ("cutout", SHAPE, "data.augment 'cutout' must be cutout:N with N a whole number of at least 1"),
        ("cutout:0", SHAPE, "such as cutout:16"),
        ("cutout:16", SHAPE, "the square has 16 pixels a side and an image 8×10; write cutout:4"),
    ],
)
def test_a_wrong_setting_is_refused(text: str, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        build_augmentation(text, shape, None)
