"""Result: what a run leaves behind, the same whether it has just ended or is loaded from the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from undergrowth.core import InputError
from undergrowth.exchange import Entry
from undergrowth.runs.config import experiment
from undergrowth.runs.store import Store

MODEL_FILE = "model.safetensors"


@dataclass(frozen=True)
class LedgerView:
    """The totals of a run; `rows()` reads every exchange from the store, one by one."""

    bytes_down: int
    bytes_up: int
    flops: float
    simulated_seconds: float
    joules: float
    compute_seconds: float
    peak_device_bytes: int
    _folder: str
    _run: str

    def rows(self) -> Iterator[Entry]:
        store = Store(self._folder)
        try:
            yield from store.links(self._run)
        finally:
            store.close()


@dataclass(frozen=True)
class Result:
    run: str
    method: str
    data: str
    accuracy: float
    loss: float
    history: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    ledger: LedgerView
    summary: dict[str, Any]  # what `undergrowth run --json` prints
    notes: list[str]
    folder: Path  # of this run
    build: Any = None  # makes the module that the weights belong to

    @property
    def model(self) -> nn.Module:
        """The final model, a plain module in evaluation mode."""
        if self.build is None:
            raise InputError(f"run '{self.run}' used a model object; pass it again: ug.load(run, model=...)")
        path = self.folder / MODEL_FILE
        if not path.exists():
            raise InputError(f"run '{self.run}' has no model any more: '{path}' is gone; resuming it writes it again")
        module: nn.Module = self.build()
        # Not strict: of two names for one tied weight, the file has the first.
        module.load_state_dict(safetensors.torch.load_file(path), strict=False)
        return module.eval()

    def __repr__(self) -> str:
        return f"Result({self.run}: {self.method} on {self.data}, accuracy {self.accuracy:.4f})"


def load(run: str = "last", out: str | PathLike[str] = "runs", model: Any = None) -> Result:
    """The result of a finished run, by its id, the beginning of its id, or `last`."""
    store = Store(out)
    try:
        name = store.find(run)
        row = store.run(name)
        if row["status"] != "done":
            raise InputError(f"run '{name}' is {row['status']}; `{store.resume_command(name)}` finishes it")
        return result_of(store, name, model)
    finally:
        store.close()


def result_of(store: Store, run: str, build: Any = None) -> Result:
    row = store.run(run)
    summary = row["summary"]
    if build is None and row["experiment"]["objects"].get("model") is None:
        build = _zoo_model(row["experiment"])
    totals = {name: summary[name] for name in LedgerView.__dataclass_fields__ if not name.startswith("_")}
    return Result(
        run=run,
        method=row["method"],
        data=row["data"],
        accuracy=summary["accuracy"],
        loss=summary["loss"],
        history=store.rounds(run),
        clients=store.devices(run),
        ledger=LedgerView(**totals, _folder=str(store.folder), _run=run),
        summary={name: value for name, value in summary.items() if name not in ("compute_seconds", "shape", "classes")},
        notes=row["notes"],
        folder=store.folder / run,
        build=build,
    )


def _zoo_model(kept: dict[str, Any]) -> Any:
    from undergrowth.models import builder

    section = experiment(kept["settings"]).model
    # The final weights replace those of a file, which may be gone by now.
    options = {name: value for name, value in section.options.items() if name not in ("weights", "skip_head")}
    return builder(section.name, tuple(kept["shape"]), kept["classes"], **options)
