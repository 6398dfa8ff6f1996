"""The plan: what one round costs each class of devices with each method, and how many devices could take part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from undergrowth.core import Client, InputError, Method, Model, Progress, Train, check_options
from undergrowth.data import Dataset, Population
from undergrowth.devices import Tracer
from undergrowth.exchange import ROUND_COSTS, TIMED
from undergrowth.methods import METHODS
from undergrowth.runs.config import Experiment, LinksSection, PublicSection
from undergrowth.runs.data_builder import build_population
from undergrowth.runs.federation import Federation
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.method_builder import build_method
from undergrowth.runs.model_builder import named_model
from undergrowth.runs.outline import Outline, population_or_outline
from undergrowth.runs.own_objects import is_reference
from undergrowth.runs.own_task import TaskFunctions
from undergrowth.runs.preview import Prospect, price_devices
from undergrowth.runs.rehearsal import rehearse
from undergrowth.runs.tree_price import price_tree

TREE = "tree"  # key of a row: the rows of the levels of servers with the same method
MAX_ARRIVALS = 10_000  # that a round of an asynchronous server is taken to need

Row = dict[str, Any]
Settings = tuple[Client, Train, LinksSection, Mapping[str, Any]]  # what the work of a client depends on


class Planner:
    """Prices methods on the devices of one experiment. The population and the model are built once for all methods."""

    def __init__(
        self,
        experiment: Experiment,
        data: Dataset | Population | None = None,
        model: Callable[[], nn.Module] | None = None,
        functions: TaskFunctions | None = None,
    ) -> None:
        if getattr(data, "public", None) is not None:
            # The public samples are taken out already.
            experiment = experiment.model_copy(update={"public": PublicSection()})
        self.planned = experiment
        self.population = population_or_outline(experiment) if data is None else build_population(experiment, data)
        self.experiment = experiment.with_population()
        self.left_out: dict[str, str] = {}  # method → why it cannot be priced
        self.tree: list[Row] = []  # one row per priced method and level of servers; none for a star
        self.methods: dict[str, Method] = {}  # the priced methods, by the name in their rows
        self._model: Callable[[], nn.Module] | Model = model or named_model(experiment.model, self.population)
        self._functions = functions
        self._tracers: list[tuple[Settings, Tracer]] = []

    def price_all(self, methods: Sequence[str | Method] = ()) -> Iterator[Row]:
        """The rows of `methods`. By default, those of every method that runs on devices and works with the model.

        The user's own method comes first if the experiment names one. `left_out` says which methods do not work. For a
        tree, every row also has the rows of `self.tree` of its method, under the key `tree`.
        """
        for method in methods or default_methods(self.planned):
            name = method if isinstance(method, str) else type(method).__name__.lower()
            options = self.planned.method.options if name == self.planned.method.name else {}
            chosen = build_method(method, options) if isinstance(method, str) else method
            if options:  # an impossible value is a mistake of the user, not a method that does not work here
                check_options(chosen, "method")
                chosen.check()
            try:
                federation = self._federate(chosen, self.experiment)
                rows, levels = self._price(name, federation), price_tree(name, federation, again=True)
            except InputError as error:
                if methods or not isinstance(self._model, Model):
                    raise
                self.left_out[name] = str(error)
                continue
            self.methods[name] = chosen
            self.tree += levels
            yield from ({**row, TREE: levels} for row in rows) if levels else rows

    def price(self, name: str, method: Method, experiment: Experiment | None = None) -> list[Row]:
        """One row per class of devices, with the price of one round of the device whose time is the median.

        `experiment`: the planner's experiment with other settings of the same data and model.
        """
        return self._price(name, self._federate(method, experiment or self.experiment))

    def _federate(self, method: Method, experiment: Experiment) -> Federation:
        federation = federate(experiment, method, self.population, self._model, self._functions)
        if not method.model_settings:
            self._model = federation.task.model  # built and checked once for all methods that take it as it is
        self._share_tracer(federation, experiment)
        return federation

    def _price(self, name: str, federation: Federation) -> list[Row]:
        priced = price_devices(federation, federation.method.server.accepts_partial, again=True)
        prospects, jobs = {each.device: each for each in priced}, count_jobs(federation, priced)
        rows = []
        for tier, devices in federation.fleet.classes.items():
            members = [prospects[device] for device in devices if device in prospects]
            if members:
                row = {"method": name, "device": tier, "devices": len(devices)}
                rows.append({**row, **_price_class(federation, devices, members, jobs)})
        seconds = _round_seconds(federation, rows)
        return [{**row, "round_seconds": seconds} for row in rows]

    def _share_tracer(self, federation: Federation, experiment: Experiment) -> None:
        """Methods that differ only at the server share a tracer, so that the work of their client is traced once."""
        clock, method = federation.clock, federation.method
        settings = (method.client, federation.task.train, experiment.links, method.model_settings)
        clock.tracer = next((tracer for known, tracer in self._tracers if known == settings), clock.tracer)
        self._tracers.append((settings, clock.tracer))

    def notes(self) -> list[str]:
        """What a reader of the prices should know: assumptions, and the methods that are left out."""
        notes = list(getattr(getattr(self.population, "dataset", None), "notes", ()))
        if isinstance(self.population, Outline):
            notes.append(
                f"data set '{self.population.name}' is not on this machine: the plan assumes its published size in "
                f"equal parts, {self.population.samples} samples on each of {self.population.clients} devices"
            )
        else:
            devices = self.population.devices
            empty = sum(self.population.size(device) == 0 for device in devices)
            notes += [f"{empty} of {len(devices)} devices have no sample and take no part"] if empty else []
        if self.planned.start.trains:
            notes.append(f"not in these prices: {self.planned.start}, before the first round")
        return notes + describe_left_out(self.left_out)


def describe_left_out(left_out: Mapping[str, str]) -> list[str]:
    """A note for each reason why methods are left out of a plan."""
    by_reason: dict[str, list[str]] = {}
    for method, reason in left_out.items():
        name = rf"(?<![.\w])(method )?{re.escape(method)}\b"  # but not the setting model.lora
        by_reason.setdefault(re.sub(name, "the method", reason), []).append(method)
    return [f"left out: {', '.join(names)}: {reason}" for reason, names in by_reason.items()]


def default_methods(experiment: Experiment) -> list[str]:
    """The user's own method, if the experiment names one, and the methods that train on devices, not on pooled data."""
    own = [experiment.method.name] if is_reference(experiment.method.name) else []
    return own + [name for name, kind in METHODS.items() if not kind.pooled]


def count_jobs(federation: Federation, priced: Sequence[Prospect]) -> dict[str, float]:
    """Device → the expected number of its jobs in the whole run.

    A synchronous server asks a sample of its devices every round. A round of an asynchronous server is a number of
    arrivals: if all devices are at work at any time, fast devices have more of them.
    """
    asked, jobs = federation.first_round.packets, dict[str, float]()
    each_stands_for = len(federation.devices_with_samples) / len(priced)
    below: dict[str, list[Prospect]] = {}
    for each in priced:
        below.setdefault(federation.servers[each.device], []).append(each)
    rounds = {federation.driver.root.name: float(federation.driver.root.cycles)}
    for name in federation.topology.children:  # parents first
        node, members = federation.nodes[name], below.get(name, [])
        devices = [child for child in node.children if child not in node.nodes]
        answers = len(node.children)  # in a round
        if node.server.asynchronous:
            out = len(node.nodes) + sum(device in asked for device in devices)
            numbers = range(1, MAX_ARRIVALS + 1)
            ready = (number for number in numbers if node.server.ready(Progress(number, 0, out, False)))
            answers = next(ready, out)  # a server that never says so steps when all are back
            able = [each for each in members if not each.timing.lost]
            everybody = all(each.device in asked for each in members)
            rates = {each.device: 1 / max(each.seconds, 1e-9) if everybody else 1.0 for each in able}
            # When a node answers its parent, it gives up on who is still at work.
            given_up = 0.0 if node.is_root else rounds[name] / node.cycles * (out - answers)
            of_devices = (rounds[name] * answers + given_up) * len(devices) / max(1, len(node.children))
            jobs |= {device: of_devices * rate / sum(rates.values()) for device, rate in rates.items()}
        else:
            count = rounds[name] * node.task.train.count_to_ask(len(devices)) / max(1, len(devices)) * each_stands_for
            jobs |= {each.device: count for each in members if each.device in asked}
        share = min(1.0, answers / max(1, len(node.children)))
        rounds |= {child: rounds[name] * share * federation.nodes[child].cycles for child in node.nodes}
    return jobs


def _round_seconds(federation: Federation, rows: Sequence[Row]) -> float | None:
    """The mean seconds of a round of an asynchronous star, by a rehearsal of the run; None for any other federation.

    A synchronous round takes as long as its slowest device, and a tree has its own rows. `rows`: of its device classes.
    """
    asynchronous, star = federation.method.server.asynchronous, not federation.topology.parents
    able = any(row["fitting"] for row in rows)
    return rehearse(federation, again=True).seconds if asynchronous and star and able else None


def _price_class(
    federation: Federation, devices: Sequence[str], priced: list[Prospect], jobs: Mapping[str, float]
) -> Row:
    asynchronous = federation.method.server.asynchronous
    deadlines = {each.device: None if asynchronous else federation.deadline_of(each.device) for each in priced}
    by_time = sorted(priced, key=lambda prospect: prospect.seconds)
    typical = by_time[(len(by_time) - 1) // 2]
    fitting = sum(each.verdict(deadlines[each.device]) == "fits" for each in priced)
    able = sum(federation.population.size(device) > 0 for device in devices)  # devices without samples are never asked
    profile, joules = federation.fleet.profile(typical.device), typical.total.joules
    return {
        "flops": typical.total.flops,
        "memory_bytes": typical.total.memory,
        "bytes_down": typical.bytes_down,
        "bytes_up": typical.bytes_up,
        "seconds": typical.total.seconds,
        # Joules, and costs that were added later; the order of the keys is that of `plan --json`.
        **{cost.of_device: getattr(typical.total, cost.column) for cost in ROUND_COSTS if cost.column in TIMED},
        "verdict": typical.verdict(deadlines[typical.device]),
        "fitting": round(fitting * able / len(priced)),
        "example": typical.device,
        "runtime_bytes": profile.runtime,
        "device_bytes": profile.memory,
        "shortest_deadline": typical.shortest_deadline,
        "ratio": typical.ratio,
        "run_jobs": sum(jobs.get(each.device, 0.0) for each in priced),
        "run_joules": sum(
            each.spent(deadlines[each.device]) * jobs.get(each.device, 0.0)
            # A device also trains on its own after rounds in which it is not asked.
            + each.own.joules * max(0.0, federation.driver.root.cycles - jobs.get(each.device, 0.0))
            for each in priced
        ),
        "battery_rounds": None if profile.battery is None or not joules else int(profile.battery / joules),
    }


def takes_part(rows: Iterable[Row]) -> dict[str, int]:
    """The number of devices that could take part, by method."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["method"]] = counts.get(row["method"], 0) + row["fitting"]
    return counts
