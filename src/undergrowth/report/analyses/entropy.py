"""How certain the final model is of devices' samples, by temperature (Shi, Sheffield thesis, §6.4.2).

FedFT-EDS trains on the samples of highest entropy. A temperature below 1 hardens the softmax: most samples then have
next to no entropy, and the few that the model is really uncertain of stand apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from undergrowth.core import InputError
from undergrowth.learning import predictions
from undergrowth.learning.selectors import entropies
from undergrowth.report.analyses.analysis import Analysis, Numbers, Seen, rounded, several
from undergrowth.report.analyses.finished import Finished
from undergrowth.report.figures import COLOURS, Figure, axis, figure, with_key
from undergrowth.report.html import Page
from undergrowth.report.record import Record
from undergrowth.report.tables import count, score

TEMPERATURES = (1.0, 0.5, 0.1, 0.05)
_DEVICES = 4
_BINS = 25
_CERTAIN = 0.1  # of the highest entropy that there can be
_SELECTED = 0.1  # share of the samples


def look(record: Record, run: Callable[[], Finished]) -> Numbers:
    finished = run()
    devices = finished.devices[:_DEVICES]
    if not devices:
        raise InputError(f"entropies need a device that has samples, and run '{record.run}' has none")
    highest = math.log(max(2, finished.task.classes))
    found = {}
    for device in finished.bar.track(devices, description="entropy: predictions"):
        logits = predictions(finished.task, finished.weights, finished.shard(device))[:, : finished.task.classes]
        found[device] = [_distribution(logits, temperature, highest) for temperature in TEMPERATURES]
    return {"highest": highest, "devices": found}


def _distribution(logits: torch.Tensor, temperature: float, highest: float) -> Numbers:
    values = entropies(logits, temperature).cpu()
    bins = torch.histc(values.clamp(0, highest), _BINS, 0, highest)
    return {
        "temperature": temperature,
        "samples": len(values),
        "mean": float(values.mean()),
        "certain": float((values < _CERTAIN * highest).double().mean()),
        # From here on FedFT-EDS would take a sample, with the share of its default.
        "selected_from": float(values.quantile(1 - _SELECTED)),
        "shares": rounded((bins / len(values)).tolist()),
    }


def show(page: Page, seen: Sequence[Seen]) -> None:
    rows = []
    for each in seen:
        several(page, seen, each)
        devices = each.numbers["devices"]
        first, last = (_certain(devices, place) for place in (0, -1))
        page.text(
            f"At temperature {TEMPERATURES[0]:g} the model is certain of {first:.0%} of the samples (less than a tenth "
            f"of the highest entropy), at {TEMPERATURES[-1]:g} of {last:.0%}: the lower it is, the fewer stand out."
        )
        page.figures(_drawn(device, found, each.numbers["highest"]) for device, found in devices.items())
        for device, found in devices.items():
            for row in found:
                about = (each.label, device, f"{row['temperature']:g}", count(row["samples"]))
                rows.append((*about, score(row["mean"]), f"{row['certain']:.1%}", score(row["selected_from"])))
    columns = ("run", "device", "temperature", "samples", "mean entropy", "certain", "highest tenth from")
    page.table(columns, rows)


def _certain(devices: dict[str, list[Numbers]], place: int) -> float:
    samples = sum(found[place]["samples"] for found in devices.values())
    return sum(found[place]["certain"] * found[place]["samples"] for found in devices.values()) / samples


def _drawn(device: str, found: Sequence[Numbers], highest: float) -> Figure:
    width = highest / _BINS
    lines = [
        {
            "type": "scatter", "mode": "lines", "x": rounded([edge * width for edge in range(_BINS + 1)]),
            "y": [*row["shares"], row["shares"][-1]], "name": f"at {row['temperature']:g}",
            "line": {"shape": "hv", "color": COLOURS[place], "width": 2},
            "hovertemplate": "entropy from %{x:.2f}<br>%{y:.1%} of the samples<extra></extra>",
        }
        for place, row in enumerate(found)
    ]  # fmt: skip
    x_axis = axis("entropy", range=[0, highest])
    y_axis = axis("share of the samples", tickformat=".0%", rangemode="tozero")
    return with_key(figure(lines, f"{device}, {count(found[0]['samples'])} samples", x_axis, y_axis))


ENTROPY = Analysis(
    "Entropy of samples",
    "How uncertain the final model is of the training samples of the largest devices, as the temperature hardens it.",
    look,
    show,
)
