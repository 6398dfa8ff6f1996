"""Whether a stored run was made from the data, source, fleet and topology files that its experiment names now."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from undergrowth.core import InputError
from undergrowth.data import describe
from undergrowth.runs.config import Experiment
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.own_objects import changed_sources
from undergrowth.runs.run_inputs import changed_files, differ, fingerprint
from undergrowth.sweeps.jobs import StoredRun


class SameInputs:
    """Compares fingerprints and hashes. The same data of several runs is built once."""

    def __init__(self) -> None:
        self._fingerprints: dict[str, dict[str, Any] | None] = {}

    def __call__(self, run: StoredRun) -> bool:
        try:
            if changed_sources(run.kept.get("sources", ())):
                return False
        except InputError:  # a module is missing
            return False
        if changed_files(run.kept.get("files"), run.experiment):
            return False
        if _is_embedded(run.experiment):
            return True
        before, now = run.kept.get("fingerprint"), self._fingerprint(run.experiment)
        return before is not None and now is not None and not differ(before, now)

    def _fingerprint(self, experiment: Experiment) -> dict[str, Any] | None:
        """The fingerprint of the data that an experiment names; None if the data cannot be built any more."""
        sections = experiment.model_dump(mode="json", include={"data", "public", "stream", "task"})
        # The name of the model may decide how texts are divided into tokens.
        key = json.dumps([sections, experiment.run.seed, experiment.method.name == "central", experiment.model.name])
        if key not in self._fingerprints:
            self._fingerprints[key] = None
            with suppress(InputError):
                self._fingerprints[key] = fingerprint(federate(experiment).population)
        return self._fingerprints[key]


def _is_embedded(experiment: Experiment) -> bool:
    """Whether the data comes with the package, so that it cannot have changed."""
    with suppress(InputError):
        return describe(experiment.data.name).embedded
    return False
