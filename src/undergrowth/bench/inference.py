"""`undergrowth bench inference`: models without some of their channels against the whole model.

Every line compares parameters, multiplications or milliseconds of a forward pass of one image of 32×32 pixels. Without
a fraction P of the channels, a model has at most 1 − P of the parameters. The other bars for VGG-16 at 90 % are the
published ratios (Desai, REFT, 2023, figures 7.4 and 7.5). A pass of a smaller model may take a quarter longer at
30 and 60 %: in small models, the calls take most of the time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from undergrowth.bench import Measurement
from undergrowth.devices.inference import count_products, time_forward_pass
from undergrowth.learning.pruning import pruned_copy
from undergrowth.models import builder

LEVELS = (0.3, 0.6, 0.9)
PUBLISHED = {("vgg-16", 0.9): (0.07 / 0.33, 2.94 / 4.17)}  # products, inference time
MODELS = ("vgg-16", "resnet-8", "resnet-18", "wrn-16-1")


def measure() -> Iterator[Measurement]:
    x = torch.zeros(1, 3, 32, 32)
    for name in MODELS:
        torch.manual_seed(0)
        whole = builder(name, (3, 32, 32), 10)().eval()
        for level in LEVELS:
            pruned = pruned_copy(whole, level)
            sizes = [sum(value.numel() for value in module.parameters()) / 1e6 for module in (pruned, whole)]
            products = [count_products(module, x) / 1e9 for module in (pruned, whole)]
            times = [1e3 * time_forward_pass(module, x) for module in (pruned, whole)]
            bars = (1 - level, *PUBLISHED.get((name, level), (1.0, 1.25 if level < 0.9 else 1.0)))
            figures = (("parameters", "M", sizes), ("products", "G", products), ("inference", "ms", times))
            for (what, unit, (ours, reference)), bar in zip(figures, bars, strict=True):
                label = f"{name}, {level:.0%} pruned, {what}"
                yield Measurement(label, unit, ours, reference, round(bar, 4), lower_is_better=True)
