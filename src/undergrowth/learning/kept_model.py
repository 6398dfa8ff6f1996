"""Models that stay on their devices. Nobody else sees their values, so a device itself says if these are not finite."""

from __future__ import annotations

from collections.abc import Sequence

from undergrowth.core import Carry, are_finite
from undergrowth.core.client import Loop
from undergrowth.core.names import BUFFERS, FINISH, PARAMETERS, PROBLEM
from undergrowth.learning.gradient_client import Trained


def check_models(loops: Sequence[Loop]) -> list[Carry]:
    """Carries for `problem_tags`, after the last step. All models of a stack are checked at once: a GPU waits once."""
    tensors = {
        (number, name): value
        for number, loop in enumerate(loops)
        for name, value in {**loop.carry[PARAMETERS], **loop.carry[BUFFERS]}.items()
        if value.is_floating_point() and value.numel()
    }
    wrong: dict[int, str] = {}  # number of the loop → its first tensor that is not finite
    for (number, name), is_finite in zip(tensors, are_finite(list(tensors.values())), strict=True):
        if not is_finite:
            wrong.setdefault(number, name)
    return [
        {**loop.carry, FINISH: {**loop.carry[FINISH], PROBLEM: wrong.get(number)}} for number, loop in enumerate(loops)
    ]


def problem_tags(trained: Trained, of: str = "") -> dict[str, str]:
    """The tag of an upload whose device cannot keep its model; none if all values are finite."""
    name = trained.finish[PROBLEM]
    return {} if name is None else {PROBLEM: f"{of}'{name}' has values that are not finite"}
