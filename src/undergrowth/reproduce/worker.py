"""Does runs for another process: an order a line on standard input, how it goes on standard output.

{"tree": {...}, "run": null, "out": "runs"}     a new run; with the id of one that was begun, that one goes on
{"share": 0.25}                                 so much of it is done
{"run": "20260102-101500-fedavg-1f3a"}          it is finished
{"failed": "...", "input": true}                it is not, and whether the input is to blame
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from undergrowth.core import InputError, RunError
from undergrowth.runs.run import Execution, resume, start


def carry_out(order: Mapping[str, Any], on_share: Callable[[float], None]) -> dict[str, Any]:
    """The run's id, or why there is none."""

    def on_round(row: Mapping[str, Any], execution: Execution) -> None:
        on_share(row["round"] / execution.experiment.train.rounds)

    try:
        if order["run"]:
            return {"run": resume(order["run"], order["out"], on_round=on_round).run}
        return {"run": start(order["tree"], on_round=on_round).run}
    except (InputError, RunError) as error:
        return {"failed": " ".join(str(error).split()), "input": isinstance(error, InputError)}
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}", "input": False}
    finally:
        gc.collect()
        if torch.cuda.is_initialized():  # other processes want the memory of a GPU, too
            torch.cuda.empty_cache()


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    parent = os.getppid()

    def tell(answer: Mapping[str, Any]) -> None:
        if os.getppid() != parent:  # nobody is left to work for
            raise KeyboardInterrupt
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        for line in sys.stdin:
            tell(carry_out(json.loads(line), lambda share: tell({"share": share})))
    except KeyboardInterrupt:
        sys.exit(130)
