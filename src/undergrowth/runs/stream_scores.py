"""Scores of devices whose samples change, over the rounds, and the rounds that they need to recover from a shift.

Every score is that of the model that a device would use, on test samples of its distribution in that round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from undergrowth.core import Metric
from undergrowth.runs.relative_accuracy import tenth
from undergrowth.runs.store import Store
from undergrowth.runs.stream_section import StreamSection

OWN_SAMPLES, WORST_TENTH = "own samples", "worst tenth"  # figures of the history, as in accuracy/own samples
RECOVERED = 0.9  # of the score before a shift
_ROUNDING = 1e-9  # scores are means of quotients; equal ones may differ by a rounding error


@dataclass(frozen=True)
class Recovery:
    """What a shift did to the mean score of the devices, and how many rounds it took to undo that.

    `before`: the score in the last evaluated round before the shift. `lowest`: the worst one from the shift to the next
    one or to the end. `rounds`: from the round of the shift to the first evaluated round, at or after the one with the
    lowest score, in which 90 % of `before` are reached; None if there is no such round before the next shift.
    """

    round: int  # the first round with samples of the new distribution, counted from 1
    before: float | None
    lowest: float | None
    rounds: int | None
    devices: int = 0  # that were evaluated before and after the shift
    devices_back: int = 0  # of them, those whose own score was back at 90 % in the same sense


@dataclass(frozen=True)
class StreamScores:
    """The scores of the devices in every evaluated round."""

    metric: Metric
    rounds: tuple[int, ...]  # counted from 1
    scores: tuple[Mapping[str, float], ...]  # of each round, by device
    shifts: tuple[int, ...]  # the rounds in which a shift begins

    @property
    def devices(self) -> list[str]:
        return list(dict.fromkeys(device for found in self.scores for device in found))

    @property
    def mean(self) -> list[float]:
        """The mean over devices in each round."""
        return [float(np.mean(list(found.values()))) for found in self.scores]

    @property
    def worst_tenth(self) -> list[float]:
        """The mean over the tenth of the devices with the worst scores, at least one, in each round."""
        return [worst_mean(self.metric, found.values()) for found in self.scores]

    @property
    def band(self) -> tuple[list[float], list[float]]:
        """The scores between which the middle four fifths of the devices are, in each round."""
        ends = [np.quantile(list(found.values()), (0.1, 0.9)) for found in self.scores]
        return [float(low) for low, _ in ends], [float(high) for _, high in ends]

    @property
    def recoveries(self) -> list[Recovery]:
        """One for each shift."""
        return [self._recovery(shift, end) for shift, end in zip_longest(self.shifts, self.shifts[1:])]

    def _recovery(self, shift: int, end: int | None) -> Recovery:
        whole = recovery(self.metric, list(zip(self.rounds, self.mean, strict=True)), shift, end)
        rows = list(zip(self.rounds, self.scores, strict=True))
        curves = [[(round, found[device]) for round, found in rows if device in found] for device in self.devices]
        own = [recovery(self.metric, curve, shift, end) for curve in curves]
        compared = [each for each in own if each.before is not None and each.lowest is not None]
        back = sum(each.rounds is not None for each in compared)
        return replace(whole, devices=len(compared), devices_back=back)

    def summary(self) -> dict[str, Any]:
        """The last figures and the recoveries, as JSON values."""
        return {
            "metric": self.metric.name,
            "mean": self.mean[-1],
            "worst_tenth": self.worst_tenth[-1],
            "shifts": [asdict(each) for each in self.recoveries],
        }


def worst_mean(metric: Metric, values: Any) -> float:
    """The mean over the worst tenth of `values`, at least one."""
    ordered = sorted(values, key=metric.improvement)
    return float(np.mean(ordered[: tenth(len(ordered))]))


def recovery(metric: Metric, curve: Sequence[tuple[int, float]], shift: int, end: int | None) -> Recovery:
    """The recovery of one curve, rounds and scores, from a shift in round `shift` until the next one in `end`.

    A score that is negative, or better when it is lower, is back when it is worse by at most a tenth of its size.
    """
    before = next((score for round, score in reversed(curve) if round < shift), None)
    after = [(round, score) for round, score in curve if shift <= round and (end is None or round < end)]
    if before is None or not after:
        return Recovery(shift, before, None, None)
    worst, lowest = min(after, key=lambda point: metric.improvement(point[1]))
    target = metric.improvement(before) - (1 - RECOVERED) * abs(before) - _ROUNDING
    back = [round for round, score in after if round >= worst and metric.improvement(score) >= target]
    return Recovery(shift, before, lowest, back[0] - shift if back else None)


def stream_scores(store: Store, run: str, row: Mapping[str, Any], metric: Metric) -> StreamScores | None:
    """The scores of the devices of a run in `row` of the store; None if its samples do not change."""
    found = store.device_scores(run)
    settings = row["experiment"]["settings"].get("stream")
    stream = StreamSection.model_validate(settings).stream if settings else None
    if stream is None or not found:
        return None
    shifts = tuple(round + 1 for round in stream.shifts(found[-1][0]))
    return StreamScores(metric, tuple(round for round, _ in found), tuple(scores for _, scores in found), shifts)
