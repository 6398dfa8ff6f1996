"""Whether a stored run was trained on the data that its experiment names now."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from undergrowth.core import InputError
from undergrowth.data import describe
from undergrowth.runs.config import Experiment
from undergrowth.runs.federation import federate
from undergrowth.runs.fingerprint import differ, fingerprint
from undergrowth.sweeps.jobs import StoredRun


class DataCheck:
    """Compares fingerprints. The data of runs with the same data sets and the same seed is built once."""

    def __init__(self) -> None:
        self._fingerprints: dict[str, dict[str, Any] | None] = {}

    def __call__(self, run: StoredRun) -> bool:
        if _is_embedded(run.described):
            return True
        now = self._fingerprint(run.described)
        return run.fingerprint is not None and now is not None and not differ(run.fingerprint, now)

    def _fingerprint(self, described: Experiment) -> dict[str, Any] | None:
        sections = described.model_dump(mode="json", include={"data", "public"})
        key = json.dumps([sections, described.run.seed, described.method.name == "central"])
        if key not in self._fingerprints:
            self._fingerprints[key] = None  # if the data cannot be built any more
            with suppress(InputError):
                self._fingerprints[key] = fingerprint(federate(described).population)
        return self._fingerprints[key]


def _is_embedded(described: Experiment) -> bool:
    """Whether the data comes with the package, so that it cannot have changed."""
    with suppress(InputError):
        return describe(described.data.name).embedded
    return False
