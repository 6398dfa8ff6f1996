"""`undergrowth run`: one experiment, from a file, from flags, or the embedded default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from undergrowth.cli.output import AsJson

# Where each flag lies in an experiment.
PLACES = {
    "method": "method.name", "data": "data.name", "model": "model.name", "clients": "data.clients",
    "fleet": "fleet.name", "deadline": "fleet.deadline", "rounds": "train.rounds", "engine": "run.engine",
    "seed": "run.seed", "device": "run.device", "out": "run.out", "workers": "run.workers", "address": "run.address",
}  # fmt: skip
_OF_ANY_DATA = ("partition", "clients", "holdout")  # keys that mean the same for every data set

# Flags that other commands have too.
ExperimentFile = Annotated[str | None, typer.Argument(metavar="FILE.yaml", help="An experiment file.")]
DataName = Annotated[str | None, typer.Option(metavar="NAME", help="See `undergrowth datasets`.")]
ModelName = Annotated[str | None, typer.Option(metavar="NAME", help="See `undergrowth models`.")]
Clients = Annotated[int | None, typer.Option(metavar="N", help="How many devices.")]
FleetName = Annotated[str | None, typer.Option(metavar="NAME", help="See `undergrowth fleets`; or a fleet file.")]
Deadline = Annotated[float | None, typer.Option(metavar="SECONDS", help="Simulated seconds that a round may last.")]
Settings = Annotated[
    list[str] | None, typer.Option("-s", "--set", metavar="PATH=VALUE", help="Any setting, as often as you like.")
]
WriteReport = Annotated[
    bool | None,
    typer.Option("--report/--no-report", help="Write a page about the run beside it. (Default: unless --json.)"),
]


def run(
    file: ExperimentFile = None,
    method: Annotated[str | None, typer.Option(metavar="NAME", help="See `undergrowth methods`.")] = None,
    data: DataName = None,
    model: ModelName = None,
    clients: Clients = None,
    fleet: FleetName = None,
    deadline: Deadline = None,
    rounds: Annotated[int | None, typer.Option(metavar="N", help="How many rounds.")] = None,
    engine: Annotated[str | None, typer.Option(metavar="NAME", help="See `undergrowth engines`.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The same seed gives the same run.")] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="cpu, cuda or cuda:0.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="How many workers, if the engine has any.")] = None,
    address: Annotated[str | None, typer.Option(metavar="URL", help="Of a Ray cluster: auto, ray://HOST.")] = None,
    out: Annotated[str | None, typer.Option(metavar="DIR", help="Where runs are kept. (Default: runs.)")] = None,
    settings: Settings = None,
    json: AsJson = False,
    report: WriteReport = None,
) -> None:
    """Run one experiment: the one in FILE.yaml, changed by flags, or the embedded default (FedAvg on digits).

    Flags win over -s, and -s wins over the file.

    With another --method, --data or --model than the file's, the options that the file gives to its own are left out.

    Examples:

      undergrowth run --method fedprox -s method.mu=0.1 --rounds 20

      undergrowth run my.yaml --seed 1 -s train.lr=0.05

      undergrowth run --fleet mixed-edge --deadline 0.337 --rounds 30

      undergrowth run --engine ray --address auto

      undergrowth run --json | tail -n 1
    """
    from undergrowth.cli.outcome import tell
    from undergrowth.cli.watch import watched
    from undergrowth.runs.execution import start

    given = {
        "method": method, "data": data, "model": model, "clients": clients, "fleet": fleet, "deadline": deadline,
        "rounds": rounds, "engine": engine, "seed": seed, "device": device, "out": out,
        "workers": workers, "address": address,
    }  # fmt: skip
    tree, left_out = experiment_tree(file, settings or [], given)
    say_left_out(left_out, file)
    with watched() as hooks:
        result = start(tree, **hooks)
    tell(result, json=json, report=not json if report is None else report)


def experiment_tree(file: str | None, settings: list[str], flags: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The experiment that the words of a command describe, and the keys of the file that do not go with them."""
    from undergrowth.runs import experiment_file

    tree = {} if file is None else _read(file)
    left_out: list[str] = []
    for section in ("method", "data", "model"):
        if flags.get(section) is not None:
            left_out += _rename(tree, section, flags[section])
    for text in settings:
        experiment_file.assign_text(tree, text)
    for flag, value in flags.items():
        if value is not None:
            experiment_file.assign(tree, PLACES[flag], value)
    return tree, left_out


def _read(file: str) -> dict[str, Any]:
    from undergrowth.core import InputError
    from undergrowth.methods import METHODS
    from undergrowth.runs import experiment_file

    if not file:
        raise InputError("the name of the experiment file is empty; without one the embedded default is run")
    if file in METHODS and not Path(file).exists():
        raise InputError(f"there is no experiment file '{file}'; for the method of that name write --method {file}")
    return experiment_file.read(file)


def say_left_out(keys: list[str], file: str | None) -> None:
    if keys:
        typer.echo(f"note: left out {', '.join(keys)}, which '{file}' gives to something else", err=True)


def _rename(tree: dict[str, Any], section: str, name: str) -> list[str]:
    """Takes the options of another method, data set or model out of a file's section; says which."""
    from undergrowth.runs.config import Experiment

    written = tree.get(section)
    usual = getattr(Experiment(), section).name
    if not isinstance(written, dict) or written.get("name", usual) == name:
        return []
    stay = ("name", *_OF_ANY_DATA) if section == "data" else ("name",)
    gone = [key for key in written if key not in stay]
    tree[section] = {key: value for key, value in written.items() if key in stay}
    return [f"{section}.{key}" for key in gone]
