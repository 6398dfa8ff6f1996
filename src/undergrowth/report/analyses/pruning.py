"""Models of devices: size, FLOPs, inference time and traffic of every model that a method sends, and utilisation.

For methods that send smaller models to some devices, such as REFT and HeteroFL, or a smaller one to all, as FL-PQSU.
The inference time is measured on the CPU of the machine that makes the page; nothing of it reaches the run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from undergrowth.core import InputError
from undergrowth.devices.inference import count_products, time_forward_pass
from undergrowth.learning.pruning import pruned_module, utilisation
from undergrowth.methods import REFT
from undergrowth.report.analyses.analysis import Analysis, Numbers, RunNumbers, add_run_heading
from undergrowth.report.analyses.reopened_run import ReopenedRun
from undergrowth.report.html import Page
from undergrowth.report.run_record import RunRecord
from undergrowth.report.tables import amount, count
from undergrowth.runs.preview import price_devices


def compute(record: RunRecord, reopen: Callable[[], ReopenedRun]) -> Numbers:
    """One row for each size of model in a typical round, the smallest first."""
    run = reopen()
    federation, model = run.federation, run.task.model
    prices = {each.device: each for each in price_devices(federation)}
    groups: dict[object, list[str]] = {}
    packets = federation.first_round.packets
    for device in prices:
        sent = packets[device].tensors if device in packets else {}
        shapes = tuple(sent[name].shape for name in model.shapes if name in sent)
        if [len(shape) for shape in shapes] == [len(shape) for shape in model.shapes.values()]:
            groups.setdefault(shapes, []).append(device)
    if not groups:
        raise InputError(f"{record.row['method']} sends devices no model of which the size could be measured")
    speeds = {device: federation.fleet.profile(device).achieved_flops for device in prices}
    rows, x = [], federation.test.x[:1].cpu()
    for devices in groups.values():
        sent = packets[devices[0]].tensors
        module = pruned_module(model, {name: sent[name] for name in model.shapes}).cpu()
        costs = [prices[device] for device in devices]
        rows.append(
            {
                "devices": len(devices),
                "gflops": statistics.fmean(speeds[device] for device in devices) / 1e9,
                "parameters": sum(value.numel() for value in module.parameters()),
                "flops": 2 * count_products(module, x),
                "inference_ms": round(1e3 * time_forward_pass(module, x), 3),
                "bytes_down": statistics.fmean(each.bytes_down for each in costs),
                "bytes_up": statistics.fmean(each.bytes_up for each in costs),
                "joules": statistics.fmean(each.total.joules for each in costs),
                "utilisation": statistics.fmean(_utilisation(run, speeds, device) for device in devices),
            }
        )
    return {"models": sorted(rows, key=lambda row: row["parameters"])}


def _utilisation(run: ReopenedRun, speeds: dict[str, float], device: str) -> float:
    """U of REFT with its own level for each device; otherwise F_static / F with the slowest device's speed F_static."""
    method = run.federation.method
    if isinstance(method, REFT) and method.ratio is None:
        return utilisation(method.pruned(speeds[device]), speeds[device], 1e9 * method.f_lambda)
    return min(speeds.values()) / speeds[device]


def render(page: Page, runs: Sequence[RunNumbers]) -> None:
    columns = (
        "devices", "GFLOPs a second", "parameters", "size", "FLOPs of a sample", "inference, measured", "down", "up",
        "energy of a round", "utilisation U",
    )  # fmt: skip
    for run in runs:
        add_run_heading(page, runs, run)
        rows = [
            (
                row["devices"], f"{row['gflops']:.3g}", count(row["parameters"]), amount(4 * row["parameters"], "B"),
                amount(row["flops"], "FLOP"), f"{row['inference_ms']:.3g} ms", amount(row["bytes_down"], "B"),
                amount(row["bytes_up"], "B"), amount(row["joules"], "J"), f"{row['utilisation']:.0%}",
            )
            for row in run.numbers["models"]
        ]  # fmt: skip
        page.table(columns, rows)


PRUNING = Analysis(
    "Models of devices",
    "What each size of model costs a device in one round, how long a forward pass of one sample takes on the CPU of "
    "the machine that made this page, and how much of a device's speed its model uses.",
    compute,
    render,
)
