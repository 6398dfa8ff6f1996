"""The table of models: published sizes, descriptions, and what is refused."""

from __future__ import annotations

import re

import pytest
import torch
import yaml

from undergrowth.core.errors import InputError
from undergrowth.models import builder, describe, names
from undergrowth.models.catalogue import Recipe, _find


def parameters(name: str, shape: tuple[int, ...], classes: int, **options: object) -> int:
    recipe = builder(name, shape, classes, **options)
    assert isinstance(recipe, Recipe)
    return sum(parameter.numel() for parameter in recipe.skeleton().parameters())


def test_names_are_those_shown_to_users() -> None:
    assert names() == [
        "logistic", "mlp", "cnn", "wrn-D-K", "resnet-8", "resnet-18", "resnet-34", "vgg-16",
        "squeezenet", "mobilenetv3-small", "efficientnet-b0", "efficientnet-lite0", "efficientnetv2-b0",
        "lstm", "lstm-words", "transformer", "fusion-transformer",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # Table 5.5 of Shi, Improving the Participation of Resource-Constrained Devices in Federated Learning.
        ("wrn-10-1", 79_000),
        ("wrn-16-1", 177_000),
        ("wrn-22-1", 274_000),
        ("wrn-28-1", 372_000),
        ("wrn-34-1", 469_000),
        ("wrn-40-1", 567_000),
        # Zagoruyko and Komodakis, table 4.
        ("wrn-40-4", 8_900_000),
        ("wrn-28-10", 36_500_000),
        # Desai (REFT, 2023).
        ("vgg-16", 33_600_000),
        ("resnet-8", 78_042),
        ("resnet-18", 11_173_962),
        ("resnet-34", 21_282_122),
    ],
)
def test_parameters_are_within_two_percent_of_the_published(name: str, published: int) -> None:
    assert parameters(name, (3, 32, 32), 10) == pytest.approx(published, rel=0.02)


def test_parameters_of_the_models_for_other_data() -> None:
    assert parameters("logistic", (1, 28, 28), 10) == 7_850
    # The MNIST 2NN of McMahan et al.
    assert parameters("mlp", (1, 28, 28), 10, hidden=[200, 200]) == 199_210
    assert parameters("cnn", (1, 28, 28), 62) == 1_690_046
    # LEAF's own hidden layer.
    assert parameters("cnn", (1, 28, 28), 62, hidden=2048) == pytest.approx(6_600_000, rel=0.02)
    # Reddi et al., 2021, with a vocabulary of 90; torch's LSTM has a second bias vector.
    assert parameters("lstm", (80,), 90, vocabulary=90) == pytest.approx(820_522, rel=0.02)
    # ImageNet's ResNets.
    assert parameters("resnet-18", (3, 224, 224), 1000) == pytest.approx(11_689_512, rel=0.001)
    assert parameters("resnet-34", (3, 224, 224), 1000) == pytest.approx(21_797_672, rel=0.001)
    # The numbers that other libraries give for the published networks for phones, whatever the stride of the stem.
    assert parameters("mobilenetv3-small", (3, 224, 224), 1000, stride=2) == 2_542_856
    assert parameters("efficientnet-b0", (3, 224, 224), 1000) == 5_288_548
    assert parameters("efficientnet-lite0", (3, 224, 224), 1000) == 4_652_008
    assert parameters("efficientnetv2-b0", (3, 224, 224), 1000) == 7_139_704
    # Torchvision's SqueezeNet 1.1: the 1.24 M of Bernier (Concordia thesis).
    assert parameters("squeezenet", (3, 224, 224), 1000) == 1_235_496
    # Two layers of 12·width² weights and 13·width biases and scales, and the word vectors.
    layers = 2 * (12 * 64**2 + 13 * 64)
    assert parameters("transformer", (16,), 3, vocabulary=100, width=64) == layers + (100 + 16) * 64 + 2 * 64 + 3 * 65
    # The same layers, and patches of 4×4×3 numbers, whatever the number of images side by side.
    for side in (8, 24):
        patches = (4 * 4 * 3 + 1) * 64
        assert parameters("fusion-transformer", (3, 8, side), 3, width=64, depth=2) == layers + patches + 128 + 3 * 65
    # Table 4.9 of Shi's thesis: 4.0 M for CIFAR-10.
    assert parameters("efficientnet-b0", (3, 32, 32), 10) == 4_020_358


@pytest.mark.parametrize("name", [*names(), "wrn-40-2"])
def test_a_description_is_complete_and_its_example_works(name: str) -> None:
    entry = describe(name)
    assert entry.name == name
    assert entry.title
    assert entry.source
    assert "head" in entry.levels
    assert entry.options.keys() == entry.meanings.keys() and all(entry.meanings.values())
    example = yaml.safe_load(entry.example)["model"]
    make = builder(example.pop("name"), entry.shape, entry.classes, **example)
    assert isinstance(make, Recipe)
    assert sum(parameter.numel() for parameter in make.skeleton().parameters()) == entry.parameters


def test_describing_and_checking_draw_no_random_numbers() -> None:
    before = torch.get_rng_state()
    describe("wrn-D-K")
    builder("lstm", (5,), 3)
    assert torch.equal(before, torch.get_rng_state())


def test_the_default_normalisation_depends_on_the_architecture() -> None:
    assert describe("wrn-D-K").norms == ("batch", "group")
    assert describe("vgg-16").norms == ("batch", "group", "none")
    assert describe("cnn").norms == ("none",)
    wide = builder("wrn-10-1", (3, 8, 8), 2)()
    assert any(isinstance(part, torch.nn.BatchNorm2d) for part in wide.modules())


def test_an_option_may_be_a_single_number_for_a_list() -> None:
    assert parameters("mlp", (4,), 2, hidden=3) == parameters("mlp", (4,), 2, hidden=(3,))


IMAGE = (3, 32, 32)


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        (("wnr-16-1", IMAGE, 10), {}, "model: unknown name 'wnr-16-1'; did you mean 'wrn-16-1'?"),
        (("WRN-16-1", IMAGE, 10), {}, "did you mean 'wrn-16-1'?"),
        (("wrn-D-K", IMAGE, 10), {}, "unknown name 'wrn-D-K'; did you mean 'wrn-16-1'?"),
        (("wrn-16", IMAGE, 10), {}, "did you mean 'wrn-16-1'?"),
        (("wrn-16-0", IMAGE, 10), {}, "did you mean 'wrn-16-1'?"),
        (("zzz", IMAGE, 10), {}, "choose one of: cnn, efficientnet-b0, efficientnet-lite0, efficientnetv2-b0,"),
        (("", IMAGE, 10), {}, "unknown name ''; choose one of"),
        (("wrn-15-1", IMAGE, 10), {}, "6n+4 and at least 10, not 15; did you mean wrn-10-1 or wrn-16-1?"),
        (("wrn-4-1", IMAGE, 10), {}, "not 4; did you mean wrn-10-1 or wrn-16-1?"),
        (("wrn-41-2", IMAGE, 10), {}, "did you mean wrn-40-2 or wrn-46-2?"),
        (
            ("cnn", (64,), 10),
            {},
            "model cnn: takes images of shape (channels, height, width), not inputs of shape (64,)",
        ),
        (("cnn", (28, 28), 10), {}, "did you mean (1, 28, 28)?"),
        (("cnn", (1, 2, 28, 28), 10), {}, "not inputs of shape (1, 2, 28, 28)"),
        (("cnn", (1, 3, 28), 10), {}, "needs images of at least 4×4 pixels, not 3×28"),
        (("vgg-16", (1, 28, 28), 10), {}, "needs images of at least 32×32 pixels, not 28×28"),
        (("resnet-18", (1, 8, 8), 10), {}, "at least 9×9 pixels, not 8×8; norm 'group' works"),
        (("wrn-16-1", (3, 4, 4), 10), {}, "at least 5×5 pixels, not 4×4; norm 'group' works"),
        (("lstm", IMAGE, 10), {}, "takes sequences of tokens, of shape (length,), not inputs of shape (3, 32, 32)"),
        (("mlp", (), 10), {}, "the input shape must be whole numbers of at least 1, not ()"),
        (("mlp", (0,), 10), {}, "not (0,)"),
        (("cnn", (1, 8.0, 8), 10), {}, "not (1, 8.0, 8)"),
        (("mlp", (4,), 0), {}, "classes must be a whole number of at least 1, not 0"),
        (("mlp", (4,), 2.0), {}, "classes must be a whole number of at least 1, not 2.0"),
        (("logistic", (4,), 2**40), {}, "it would have more than 100,000,000,000 parameters"),
        (("mlp", (4,), 2), {"hidden": [10**12]}, "it would have more than 100,000,000,000 parameters"),
        (("mlp", (4,), 2), {"hidden": [10**21]}, "it would have more than 100,000,000,000 parameters"),
        (("wrn-16-99999999", (3, 32, 32), 2), {}, "it would have more than 100,000,000,000 parameters"),
        (("mlp", (4,), 2), {"hiden": 3}, "model mlp: unknown option 'hiden'; did you mean 'hidden'?"),
        (("wrn-16-1", IMAGE, 2), {"depth": 22}, "unknown option 'depth'; did you mean 'dropout'?"),
        (("mlp", (4,), 2), {"hidden": (3, 0)}, "option hidden must be a list of whole numbers of at least 1"),
        (("mlp", (4,), 2), {"hidden": "200"}, "such as [200], not '200'"),
        (("cnn", IMAGE, 2), {"hidden": (3,)}, "option hidden must be a whole number of at least 1, such as 512"),
        (("cnn", IMAGE, 2), {"hidden": True}, "not True"),
        (("cnn", IMAGE, 2), {"norm": "batch"}, "model cnn: norm 'batch' is not supported; choose one of: none"),
        (("wrn-16-1", IMAGE, 2), {"norm": "none"}, "norm 'none' is not supported; choose one of: batch, group"),
        (("vgg-16", IMAGE, 2), {"norm": "layer"}, "choose one of: batch, group, none"),
        (
            ("mobilenetv3-small", IMAGE, 2),
            {"stride": 3},
            "model mobilenetv3-small: option stride must be 1 or 2, not 3",
        ),
        (("efficientnet-b0", (1, 16, 16), 2), {}, "at least 17×17 pixels, not 16×16; norm 'group' works"),
        (("lstm-words", (5,), 2), {"embeddings": 3}, "option embeddings must be the path of a file, not 3"),
        (("lstm-words", (5,), 2), {"embeddings": "nowhere.txt"}, "embeddings: there is no file 'nowhere.txt'"),
        (
            ("mlp", (4,), 2),
            {"projection": 0},
            "model mlp: projection must be a whole number of at least 1, such as 256",
        ),
        (("mlp", (4,), 2), {"projection": True}, "or null, not True"),
        (("transformer", (4,), 2), {"depth": 1001}, "option depth of a transformer must be at most 1000, not 1001"),
        (("mlp", (4,), 2), {"weights": "nowhere.pt"}, "weights: there is no file 'nowhere.pt'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, options, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        builder(*arguments, **options)


def test_an_unknown_name_is_refused_in_a_description_too() -> None:
    with pytest.raises(InputError, match="did you mean 'resnet-18'"):
        describe("resnet18")


def test_an_unknown_level_is_refused() -> None:
    module = builder("wrn-10-1", (1, 8, 8), 2)()
    with pytest.raises(InputError, match="split level 'middle' is not a level of this model; did you mean 'mid'"):
        module.position("middle")


def test_leading_zeros_are_not_a_second_spelling() -> None:
    with pytest.raises(InputError, match="unknown name"):
        _find("wrn-016-1")
