"""The models of devices in a step after the last round: each is scored as soon as it is final, so that none is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from undergrowth.core import State
from undergrowth.data import Population
from undergrowth.methods.adapt import Adapt
from undergrowth.methods.adapt.rules import has_stopped
from undergrowth.runs.federation import Federation
from undergrowth.runs.run_models import DeviceMetrics, models_per_pass


class FinalModels:
    """Takes the states of devices that will not be asked again. `parts`: name → test samples of the devices."""

    def __init__(self, federation: Federation, rounds: int, parts: Mapping[str, Population]) -> None:
        self.federation = federation
        self.rounds = rounds
        self.parts = parts
        self.metrics: dict[str, DeviceMetrics] = {name: {} for name in parts}
        self._waiting: dict[str, State] = {}
        self._most = models_per_pass(federation.task)
        if len(federation.nodes) == 1:  # in a tree, an edge server may ask a device again in the same round
            federation.world.states.is_final = self.take

    def take(self, device: str, own: State) -> bool:
        """Whether the state is final. The model in it is scored, together with others."""
        method, root = self.federation.method, self.federation.driver.root
        assert isinstance(method, Adapt)
        if not own or (root.round + 1 < self.rounds and not has_stopped(method, own)):
            return False
        self._waiting[device] = own
        if len(self._waiting) == self._most:
            self._score()
        return True

    def score(self) -> dict[str, DeviceMetrics]:
        """The metrics on each part, of all devices that have test samples in it."""
        self._score()
        own = self.federation.world.states.all()
        for name, population in self.parts.items():
            left = [device for device in population.devices if device not in self.metrics[name]]
            self.metrics[name].update(self._score_on(population, own, left))
        return self.metrics

    def _score(self) -> None:
        for name, population in self.parts.items():
            self.metrics[name].update(self._score_on(population, self._waiting, list(self._waiting)))
        self._waiting = {}

    def _score_on(self, population: Population, own: Mapping[str, State], devices: list[str]) -> DeviceMetrics:
        return replace(self.federation.models, own=own).score_devices(population, devices)
