"""The entropy of the final model's predictions on device samples, by temperature (Shi, Sheffield thesis, §6.4.2).

FedFT-EDS trains on the samples with the highest entropy. A temperature below 1 hardens the softmax: most samples then
have an entropy close to 0, and the few samples with uncertain predictions are easy to separate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from undergrowth.core import InputError
from undergrowth.learning import logits_of
from undergrowth.learning.selectors import entropies
from undergrowth.report.analyses.analysis import Analysis, Numbers, RunNumbers, add_run_heading, round_numbers
from undergrowth.report.analyses.reopened_run import ReopenedRun
from undergrowth.report.figures import COLOURS, Figure, add_legend, axis, build_figure
from undergrowth.report.html import Page
from undergrowth.report.run_record import RunRecord
from undergrowth.report.tables import count, score

TEMPERATURES = (1.0, 0.5, 0.1, 0.05)
_MAX_DEVICES = 4
_BINS = 25
_CERTAIN = 0.1  # entropy of a certain prediction, as a fraction of the highest possible entropy
_SELECTED = 0.1  # fraction of samples that FedFT-EDS selects by default


def compute(record: RunRecord, reopen: Callable[[], ReopenedRun]) -> Numbers:
    run = reopen()
    devices = run.devices[:_MAX_DEVICES]
    if not devices:
        raise InputError(f"the entropy analysis needs a device with samples, and run '{record.run}' has none")
    highest = math.log(max(2, run.task.classes))
    distributions = {}
    for device in run.progress.track(devices, description="entropy: predictions"):
        logits = logits_of(run.task, run.weights, run.shard(device).x)[:, : run.task.classes]
        distributions[device] = [_distribution(logits, temperature, highest) for temperature in TEMPERATURES]
    return {"highest": highest, "devices": distributions}


def _distribution(logits: torch.Tensor, temperature: float, highest: float) -> Numbers:
    values = entropies(logits, temperature).cpu()
    bins = torch.histc(values.clamp(0, highest), _BINS, 0, highest)
    return {
        "temperature": temperature,
        "samples": len(values),
        "mean": float(values.mean()),
        "certain": float((values < _CERTAIN * highest).double().mean()),
        # FedFT-EDS with its default fraction selects the samples with at least this entropy.
        "selected_from": float(values.quantile(1 - _SELECTED)),
        "fractions": round_numbers((bins / len(values)).tolist()),
    }


def render(page: Page, runs: Sequence[RunNumbers]) -> None:
    rows = []
    for run in runs:
        add_run_heading(page, runs, run)
        devices = run.numbers["devices"]
        first, last = (_certain_fraction(devices, place) for place in (0, -1))
        page.text(
            f"A prediction is called certain if its entropy is less than a tenth of the highest possible one. This "
            f"holds for {first:.0%} of the samples at temperature {TEMPERATURES[0]:g}, and for {last:.0%} at "
            f"{TEMPERATURES[-1]:g}."
        )
        page.figures(_entropy_figure(device, each, run.numbers["highest"]) for device, each in devices.items())
        for device, device_rows in devices.items():
            for row in device_rows:
                about = (run.label, device, f"{row['temperature']:g}", count(row["samples"]))
                rows.append((*about, score(row["mean"]), f"{row['certain']:.1%}", score(row["selected_from"])))
    columns = ("run", "device", "temperature", "samples", "mean entropy", "certain", "highest tenth starts at")
    page.table(columns, rows)


def _certain_fraction(devices: dict[str, list[Numbers]], place: int) -> float:
    rows = [device_rows[place] for device_rows in devices.values()]
    return float(sum(row["certain"] * row["samples"] for row in rows) / sum(row["samples"] for row in rows))


def _entropy_figure(device: str, rows: Sequence[Numbers], highest: float) -> Figure:
    width = highest / _BINS
    lines = [
        {
            "type": "scatter", "mode": "lines", "x": round_numbers([edge * width for edge in range(_BINS + 1)]),
            "y": [*row["fractions"], row["fractions"][-1]], "name": f"temperature {row['temperature']:g}",
            "line": {"shape": "hv", "color": COLOURS[place], "width": 2},
            "hovertemplate": "entropy from %{x:.2f}<br>%{y:.1%} of the samples<extra></extra>",
        }
        for place, row in enumerate(rows)
    ]  # fmt: skip
    x_axis = axis("entropy", range=[0, highest])
    y_axis = axis("fraction of samples", tickformat=".0%", rangemode="tozero")
    return add_legend(build_figure(lines, f"{device}, {count(rows[0]['samples'])} samples", x_axis, y_axis))


ENTROPY = Analysis(
    "Entropy of samples",
    "Entropy of the final model's predictions on the training samples of the largest devices, by temperature.",
    compute,
    render,
    needs_classes=True,
)
