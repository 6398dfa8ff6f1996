"""`undergrowth run`: one experiment, from a file, from flags, or the embedded default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from undergrowth.cli.output import AsJson

_GENERAL_DATA_KEYS = ("partition", "clients", "holdout")  # keys that every data set has

# Arguments and options that other commands have too.
ExperimentFile = Annotated[str | None, typer.Argument(metavar="FILE.yaml", help="Experiment file.")]
DataName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Data set (see `undergrowth datasets`), FILE.csv, or your own module:function."),
]
ModelName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Model (see `undergrowth models`), or your own module:Class.")
]
Clients = Annotated[int | None, typer.Option(metavar="N", help="Number of devices.")]
FleetName = Annotated[str | None, typer.Option(metavar="NAME", help="Fleet or fleet file; see `undergrowth fleets`.")]
Deadline = Annotated[float | None, typer.Option(metavar="SECONDS", help="Longest simulated time of a round.")]
Partition = Annotated[
    str | None, typer.Option(metavar="RULE", help="How data is divided: iid, dirichlet:0.1, classes:2, natural.")
]
TopologyName = Annotated[str | None, typer.Option(metavar="NAME", help="star, tree:4x5, or a topology file.")]
Epochs = Annotated[int | None, typer.Option(metavar="N", help="Local epochs of a device in a round.")]
Batch = Annotated[int | None, typer.Option(metavar="N", help="Samples in a batch.")]
LearningRate = Annotated[float | None, typer.Option("--lr", metavar="NUMBER", help="Learning rate of the devices.")]
SettingOptions = Annotated[
    list[str] | None,
    typer.Option("-s", "--set", metavar="PATH=VALUE", help="Any setting, such as train.lr=0.05. Repeatable."),
]
WriteReport = Annotated[
    bool | None,
    typer.Option("--report/--no-report", help="Write an HTML page into the run's folder. (Default: unless --json.)"),
]
Personal = Annotated[
    bool, typer.Option("--personal", help="Then evaluate local-only, federated and adapted models on every device.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show the progress on standard error.")]
Trackers = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="NAME", help="Log to tensorboard, mlflow or wandb (extras). Repeatable."),
]


def run(
    file: ExperimentFile = None,
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="Method (see `undergrowth methods`), or your own module:Class.")
    ] = None,
    data: DataName = None,
    partition: Partition = None,
    model: ModelName = None,
    clients: Clients = None,
    fleet: FleetName = None,
    deadline: Deadline = None,
    topology: TopologyName = None,
    rounds: Annotated[int | None, typer.Option(metavar="N", help="Number of rounds.")] = None,
    epochs: Epochs = None,
    batch: Batch = None,
    lr: LearningRate = None,
    engine: Annotated[str | None, typer.Option(metavar="NAME", help="Engine; see `undergrowth engines`.")] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Random seed. The same seed gives the same run.")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="Torch device: cpu, cuda or cuda:0.")] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Number of workers of the engine processes or ray.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of a Ray cluster: auto, or ray://HOST.")
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="DIR", help="Folder for runs. (Default: runs.)")] = None,
    personal: Personal = False,
    settings: SettingOptions = None,
    track: Trackers = None,
    quiet: Quiet = False,
    json: AsJson = False,
    report: WriteReport = None,
) -> None:
    """Run one experiment: FILE.yaml changed by flags, or without a file the default (FedAvg on digits).

    Flags override -s, and -s overrides the file.

    If --method, --data or --model replaces the one in the file, the options of the replaced one are dropped.

    Examples:

      undergrowth run --method fedprox -s method.mu=0.1 --rounds 20

      undergrowth run my.yaml --seed 1 --lr 0.05 -s train.momentum=0.9

      undergrowth run --model mymodule:Net --data table.csv -s data.label=activity -s data.group=user

      undergrowth run --fleet mixed-edge --deadline 0.337 --rounds 30

      undergrowth run --personal -s "personal.adapt=\\[ewc,kd]"

      undergrowth run --engine ray --address auto

      undergrowth run --json | tail -n 1
    """
    from undergrowth.callbacks import build_trackers
    from undergrowth.cli.run_summary import print_summary
    from undergrowth.cli.run_tracking import track_run
    from undergrowth.runs.execution import start

    flags = {
        "method": method, "data": data, "partition": partition, "model": model, "clients": clients, "fleet": fleet,
        "deadline": deadline, "topology": topology, "rounds": rounds, "epochs": epochs, "batch": batch, "lr": lr,
        "engine": engine, "seed": seed, "device": device, "out": out,
        "workers": workers, "address": address, "personal": personal or None,
    }  # fmt: skip
    raw, dropped = build_raw_experiment(file, settings or [], flags)
    print_dropped(dropped, file)
    with track_run(quiet) as hooks:
        result = start(raw, **hooks, callbacks=build_trackers(track or ()))
    print_summary(result, json=json, report=report)


def build_raw_experiment(
    file: str | None, settings: list[str], flags: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The experiment of a command line before validation, and the keys of the file that were dropped."""
    from undergrowth.report.rerun import FLAG_PATHS
    from undergrowth.runs import experiment_file

    raw = {} if file is None else _read(file)
    dropped: list[str] = []
    for section in ("method", "data", "model"):
        if flags.get(section) is not None:
            dropped += _drop_options_of_other(raw, section, flags[section])
    for text in settings:
        experiment_file.assign_text(raw, text)
    for flag, value in flags.items():
        if value is not None:
            experiment_file.assign(raw, FLAG_PATHS[flag], value)
    return raw, dropped


def print_dropped(keys: list[str], file: str | None) -> None:
    """Notes the keys of an experiment file that a flag made meaningless, on standard error."""
    if keys:
        typer.echo(f"note: ignored {', '.join(keys)} of '{file}', which belong to what a flag replaced", err=True)


def _read(file: str) -> dict[str, Any]:
    from undergrowth.core import InputError
    from undergrowth.methods import METHODS
    from undergrowth.runs import experiment_file

    if not file:
        raise InputError("the name of the experiment file is empty; omit it to run the embedded default")
    if file in METHODS and not Path(file).exists():
        raise InputError(f"there is no experiment file '{file}'; for the method of that name write --method {file}")
    raw = experiment_file.read(file)
    if "sweep" in raw:
        raise InputError(f"'{file}' has variants in `sweep`; `undergrowth sweep {file}` runs them")
    return raw


def _drop_options_of_other(raw: dict[str, Any], section: str, name: str) -> list[str]:
    """Remove options from a section of `raw` that names something other than `name`. Returns their paths."""
    from undergrowth.runs.config import Experiment

    written = raw.get(section)
    default_name = getattr(Experiment(), section).name
    if not isinstance(written, dict) or written.get("name", default_name) == name:
        return []
    general = ("name", *_GENERAL_DATA_KEYS) if section == "data" else ("name",)
    raw[section] = {key: value for key, value in written.items() if key in general}
    return [f"{section}.{key}" for key in written if key not in general]
