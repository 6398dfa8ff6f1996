"""The tokenizer of a pretrained model, by the library `transformers` (extra `hf`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from undergrowth.core import InputError

Text = str | tuple[str, str]  # a text, or a pair such as premise and hypothesis


def encode(texts: Sequence[Text], source: str, length: int) -> np.ndarray:
    """The tokens of every text, N × length, with the model's own first and last tokens and padding at the end.

    `source` is the name of a model or a folder with its tokenizer.json or vocab.txt.
    """
    tokenizer = _load(os.path.expanduser(source))
    if tokenizer.pad_token is None:  # models that were trained without padding
        tokenizer.pad_token = tokenizer.eos_token
    firsts = [text if isinstance(text, str) else text[0] for text in texts]
    pairs = None if not texts or isinstance(texts[0], str) else [text[1] for text in texts]
    encoded = tokenizer(firsts, pairs, padding="max_length", truncation=True, max_length=length, return_tensors="np")
    rows: np.ndarray = encoded["input_ids"].astype(np.int32)
    return rows


def _load(source: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise InputError(f"tokenizer '{source}' needs transformers: pip install 'undergrowth[hf]'") from error
    problem = ""
    for local in (True, False):  # the hub is asked only for what is not on this machine
        try:
            return AutoTokenizer.from_pretrained(source, local_files_only=local)
        except (OSError, ValueError) as error:
            problem = str(error).strip().splitlines()[0][:160]
        if os.path.isdir(source):
            break
    raise InputError(f"tokenizer '{source}' is neither a folder with a tokenizer nor on the hub: {problem}")
