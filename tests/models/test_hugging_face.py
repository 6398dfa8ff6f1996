"""Models of transformers: tiny random ones from folders, their levels, heads, tokenizers, and what is refused."""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import undergrowth as ug
from undergrowth.core import InputError, Model
from undergrowth.learning.adapters import Adapters, add_adapters
from undergrowth.models import builder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "a"]


def test_without_the_library_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"model hf: needs transformers: pip install 'undergrowth\[hf\]'"):
        builder("hf:bert-base-uncased", (8,), 2)


@pytest.fixture(scope="module")
def library() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def bert(library: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a BERT of three layers and its WordPiece vocabulary."""
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = library.BertConfig(
        vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=16,
    )  # fmt: skip
    library.BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder


@pytest.fixture(scope="module")
def vision(library: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vit")
    config = library.ViTConfig(
        hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=12, image_size=16, patch_size=8
    )
    library.ViTModel(config).save_pretrained(folder)
    return folder


TOKENS = torch.tensor([[2, 4, 6, 3, 0, 0], [2, 7, 5, 6, 6, 3]])


def test_a_text_model_has_the_weights_of_the_folder_and_a_head_for_the_task(library: Any, bert: Path) -> None:
    recipe = pickle.loads(pickle.dumps(builder(f"hf:{bert}", (6,), 3)))
    module = recipe().eval()
    backbone = library.BertModel.from_pretrained(bert).eval()
    with torch.no_grad():
        vectors = backbone(input_ids=TOKENS, attention_mask=(TOKENS != 0).long()).last_hidden_state
        mean = torch.stack([vectors[0, :4].mean(0), vectors[1].mean(0)])
        torch.testing.assert_close(module(TOKENS), module.head(mean), rtol=1e-4, atol=1e-5)
        first = builder(f"hf:{bert}", (6,), 3, pooling="first")().eval()
        torch.testing.assert_close(first(TOKENS), first.head(vectors[:, 0]), rtol=1e-4, atol=1e-5)
    assert module(TOKENS).shape == (2, 3)
    assert not any("pooler" in name for name, _ in module.named_parameters()), "nothing that the head does not use"
    assert torch.equal(module.train()(TOKENS), module(TOKENS)), "no dropout"


def test_levels_are_the_embeddings_the_thirds_and_the_head(bert: Path, vision: Path) -> None:
    model = Model(builder(f"hf:{bert}", (6,), 3)).with_example(TOKENS[:1])
    layers = "backbone.encoder.layer"
    expected = {"embeddings": f"{layers}.0", "low": f"{layers}.1", "mid": f"{layers}.2", "up": "pool", "head": "head"}
    assert dict(model.levels) == expected
    assert set(model.trainable("head")) == {"head.weight", "head.bias"}
    weights = model.initial(0)
    features = model.run(weights, TOKENS, stop="head").logits
    torch.testing.assert_close(model.run(weights, features, start="head").logits, model(weights, TOKENS))
    with pytest.raises(InputError, match="more than the input"):  # the mask crosses the levels inside the backbone
        model.check_split("mid")
    images = Model(builder(f"hf:{vision}", (3, 8, 8), 3)).with_example(torch.randn(1, 3, 8, 8))
    images.check_split("mid")


def test_a_frozen_part_is_not_trained_or_sent(bert: Path) -> None:
    whole, mid, head = (Model(builder(f"hf:{bert}", (6,), 3, freeze=level)) for level in (None, "mid", "head"))
    assert set(head.parameters) == {"head.weight", "head.bias"}
    assert set(mid.parameters) == set(whole.trainable("mid")) and any("layer.2" in name for name in mid.parameters)
    with pytest.raises(InputError, match="split level 'middle' is not a level of this model"):
        builder(f"hf:{bert}", (6,), 3, freeze="middle")()


def test_what_does_not_fit_is_refused(bert: Path, vision: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    for name, shape, options, sentence in (
        (f"hf:{bert}", (3, 8, 8), {}, "takes texts, not inputs of shape"),
        (f"hf:{vision}", (8,), {}, "takes images, not inputs of shape"),
        (f"hf:{vision}", (1, 8, 8), {}, "takes images of 3 channels"),
        (f"hf:{bert}", (17,), {}, "takes at most 16 tokens; data.length is 17"),
        (f"hf:{bert}", (8,), {"poling": "mean"}, "unknown option 'poling'; did you mean 'pooling'"),
        (f"hf:{bert}", (8,), {"pooling": "max"}, "pooling must be one of mean, first, not 'max'"),
        (f"hf:{bert}", (8,), {"init": "torch"}, "unknown option 'init'"),
        (f"hf:{bert.parent}", (8,), {}, "the folder cannot be read as a model"),
    ):
        with pytest.raises(InputError, match=sentence):
            builder(name, shape, 2, **options)


def test_a_run_uses_the_tokenizer_of_the_model(bert: Path, tmp_path: Path) -> None:
    rows = [("a good film", 1), ("a bad film", 0)] * 12
    for name in ("train", "dev"):
        lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    data = ug.data.load("sst2", tmp_path, length=6, tokenizer=str(bert))
    assert np.asarray(data.x[:2]).tolist() == [[2, 7, 4, 6, 3, 0], [2, 7, 5, 6, 3, 0]]
    settings = {
        "data": "sst2", "data_options": {"path": str(tmp_path), "length": 6}, "model": f"hf:{bert}", "clients": 2,
        "partition": "iid", "rounds": 1, "out": str(tmp_path / "runs"),
    }  # fmt: skip
    exact = ug.run("fedncm", engine="serial", **settings)
    assert exact.accuracy == 1.0
    stacked = ug.run("fedavg", engine="vector", **settings, lr=0.01)
    assert stacked.history[-1]["stacked"] == 2, "BERT trains in a stack"
    assert stacked.model(torch.as_tensor(data.x[:2]).long()).shape == (2, 2)


@pytest.mark.parametrize("method", ["lora", "slora"])
def test_adapters_are_those_of_peft_and_train_in_a_stack(method: str, bert: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    tokens, labels = TOKENS.repeat(20, 1).numpy(), np.arange(40) % 2
    data = ug.data.Dataset("texts", tokens, labels, tokens[:4], labels[:4], classes=2)
    settings = {
        "data": data, "model": f"hf:{bert}", "clients": 2, "partition": "iid", "rounds": 2, "progress": False,
        "out": str(tmp_path), "options": {"rank": 2, **({"stage1_share": 0.5} if method == "slora" else {})},
    }  # fmt: skip
    serial, stacked = (ug.run(method, engine=engine, **settings) for engine in ("serial", "vector"))
    assert stacked.history[-1]["stacked"] == 2
    assert stacked.loss == pytest.approx(serial.loss, abs=1e-4)
    layers = [layer for layer in serial.model.modules() if isinstance(layer, peft.tuners.lora.Linear)]
    assert len(layers) == 9, "query, key and value of three layers"
    last = serial.history[-1]["bytes_up"] - serial.history[0]["bytes_up"]
    assert last == 2 * (4 * (9 * 2 * (8 + 8) + 2 * 8 + 2) + 8), "A and B of 9 layers, the head, a number of samples"


def test_without_peft_a_sentence_says_what_to_install(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InputError, match=r"adapters of hf: models need peft: pip install 'undergrowth\[hf\]'"):
        add_adapters(builder(f"hf:{bert}", (6,), 2)(), Adapters())
