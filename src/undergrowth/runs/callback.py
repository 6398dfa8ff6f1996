"""Callbacks: objects of the user with functions that a run calls at its start, after every round and at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from undergrowth.core import CODE_ERRORS, InputError, Metric, RunError, Weights
from undergrowth.core.errors import describe_with_type

if TYPE_CHECKING:
    from undergrowth.runs.config import Experiment
    from undergrowth.runs.result import Result

HOOKS = ("on_start", "on_round", "on_end")
Row = Mapping[str, Any]


class OngoingRun(Protocol):
    """The run under way, as callbacks see it."""

    @property
    def run(self) -> str:
        """The id of the run."""
        ...

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        ...

    @property
    def experiment(self) -> Experiment:
        """The settings of the run: `experiment.train.lr`, `experiment.model_dump()`."""
        ...

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rows of the rounds so far, the oldest first. A resumed run has those before it, too."""
        ...

    @property
    def weights(self) -> Weights:
        """The weights of the model that the run is about, after the last finished round."""
        ...

    @property
    def metric(self) -> Metric:
        """The main metric of the run's task: its name in the history, and whether a higher one is better."""
        ...

    def metric_named(self, name: str) -> Metric:
        """A figure of the history, with the direction in which it is better."""
        ...

    def is_evaluated(self, row: Row) -> bool:
        """Whether the model was evaluated in that round. Other rows repeat the figures of the last evaluation."""
        ...

    def stop(self, reason: str) -> None:
        """Ends the run after the round that has just finished, or, from `on_start`, after the next one.

        The result is that of a run with as many rounds, and `reason` is in its notes. Only a method that measures
        statistics before an evaluation has those of the last evaluated round, if that is an earlier one.
        """
        ...


class Callback:
    """A base class for callbacks. Subclasses override the hooks that they need; the others do nothing."""

    def on_start(self, run: OngoingRun) -> None:
        """Called before the first round, and when a run is resumed: `run.history` then has the rounds before."""

    def on_round(self, row: Row, run: OngoingRun) -> None:
        """Called when a round has ended; `row` is its row of the history. It is stored whatever happens here."""

    def on_end(self, result: Result) -> None:
        """Called with the result of the finished run."""


class Callbacks:
    """Calls the hooks of several callbacks in order. An exception in one becomes a `RunError` that names it."""

    def __init__(self, callbacks: Iterable[Any] | None = None) -> None:
        self._callbacks = _check(callbacks)

    @property
    def names(self) -> list[str]:
        """The classes of the callbacks."""
        return [type(callback).__name__ for callback in self._callbacks]

    def start(self, run: OngoingRun) -> None:
        self._call("on_start", run)

    def round(self, row: Row, run: OngoingRun) -> None:
        self._call("on_round", row, run)

    def end(self, result: Result) -> None:
        self._call("on_end", result)

    def _call(self, hook: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            function: Callable[..., object] | None = getattr(callback, hook, None)
            if function is None:
                continue
            try:
                function(*arguments)
            except (InputError, RunError):  # their message is complete
                raise
            except CODE_ERRORS as error:
                where = f"the callback {type(callback).__name__} failed in {hook}"
                raise RunError(f"{where}: {describe_with_type(error)}") from error


def _check(callbacks: Iterable[Any] | None) -> Sequence[Any]:
    if callbacks is None:
        return ()
    if isinstance(callbacks, str) or not isinstance(callbacks, Iterable):
        raise InputError(f"callbacks {callbacks!r} must be a list, such as [EarlyStopping(patience=5)]")
    found = list(callbacks)
    for callback in found:
        if isinstance(callback, type):
            name = callback.__name__
            raise InputError(f"callbacks: {name} is a class and must be an object; write {name}(...)")
        if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
            raise InputError(f"callbacks: {callback!r} has none of the functions {', '.join(HOOKS)}")
    return found
