"""Images resized by the model, and a frozen lower part, for models of the zoo."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

import undergrowth as ug
from undergrowth.core import InputError, Model
from undergrowth.models import Staged, builder


def test_a_model_resizes_its_images_to_what_its_weights_were_trained_with() -> None:
    x = torch.randn(2, 3, 9, 9)
    torch.manual_seed(0)
    resized = builder("wrn-10-1", (3, 9, 9), 4, image_size=16)().eval()
    torch.manual_seed(0)
    plain = builder("wrn-10-1", (3, 16, 16), 4)().eval()
    assert isinstance(resized, Staged) and resized.state_dict().keys() == plain.state_dict().keys()
    large = functional.interpolate(x, (16, 16), mode="bilinear", align_corners=False)
    torch.testing.assert_close(resized(x), plain(large))
    assert resized.levels == plain.levels
    assert builder("resnet-18", (3, 32, 32), 4, image_size=96, width=4)().get_submodule("stem.0").kernel_size == (7, 7)


def test_a_frozen_part_is_neither_trained_nor_sent_by_any_method(tmp_path: Path) -> None:
    model = Model(builder("cnn", (1, 8, 8), 10, hidden=8, freeze="head"))
    assert set(model.parameters) == {"head.weight", "head.bias"} == set(model.shapes)
    settings = {"model_options": {"hidden": 8, "freeze": "head"}, "clients": 2, "rounds": 1, "out": str(tmp_path)}
    for method in ("fedprox", "fedadam"):
        result = ug.run(method, model="cnn", engine="serial", **settings)
        row = next(result.ledger.rows())
        assert row.bytes_down == 90 * 4 and row.bytes_up == 90 * 4 + 8, "a matrix, a bias, the number of samples"
        same, trained = model.module.state_dict(), result.model.state_dict()
        frozen = [name for name in same if not name.startswith("head")]
        assert all(torch.equal(same[name], trained[name]) for name in frozen)


@pytest.mark.parametrize(
    ("name", "shape", "options", "sentence"),
    [
        ("cnn", (1, 8, 8), {"image_size": 0}, "image_size must be a number of pixels per side from 1 to 10000"),
        ("lstm", (8,), {"image_size": 8}, "image_size 8 is for images, not for inputs of shape"),
        ("cnn", (1, 8, 8), {"freeze": 3}, "freeze must be the name of a split level, such as head, not 3"),
        ("cnn", (1, 8, 8), {"freeze": "haed"}, "split level 'haed' is not a level of this model; did you mean 'head'"),
        ("transformer", (8,), {"width": 10}, "option width must be a multiple of heads 4, not 10"),
        ("fusion-transformer", (1, 8, 8), {"width": 10}, "a multiple of 4 and of heads 4, not 10"),
        ("fusion-transformer", (1, 8, 10), {}, "patch 4 must divide height and width of the images, which are 8×10"),
    ],
)
def test_what_is_impossible_is_refused(name: str, shape: tuple[int, ...], options: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        builder(name, shape, 2, **options)


def test_padding_of_a_text_changes_nothing() -> None:
    torch.manual_seed(0)
    module = builder("transformer", (6,), 3, vocabulary=9, width=8)().eval()
    texts = torch.tensor([[0, 0, 3, 4, 5, 6], [3, 4, 5, 6, 0, 0]])
    torch.testing.assert_close(*module(texts), msg="padding first or last")
    other = module[0](texts)
    other[:, :, :-1] += 9.0 * (1 - other[:, :, -1:])  # other vectors at the padding
    torch.testing.assert_close(module[1:](other), module(texts))
    assert module(torch.zeros(1, 6, dtype=torch.int64)).isfinite().all(), "a text without words"
