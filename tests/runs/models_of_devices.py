"""A run of 150 devices with a model of 1 MB each, of which 16 MB may be in memory: `python models_of_devices.py OUT`.

It is stopped after its first round and taken up again. Prints by how many bytes memory grew, and bytes of the file.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from undergrowth.engines import states
from undergrowth.runs.execution import resume, start

states.MAX_CPU_BYTES = 2**24
torch.set_num_threads(1)


def bytes_of(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3375), nn.ReLU(), nn.Linear(3375, 10))


def main(out: str) -> None:
    settings = {"method": "local", "data": {"name": "digits", "partition": "iid"}, "train": {"batch": 64, "epochs": 1}}
    few = {**settings, "data": {**settings["data"], "clients": 3}, "run": {"out": f"{out}/few"}}
    start({**few, "train": {**settings["train"], "rounds": 1}}, model=model)  # what any run needs
    before, sizes = bytes_of("VmRSS"), []

    def stop(row: Any, execution: Any) -> None:
        sizes.append(execution.federation.world.states._file.size)
        if row["round"] == 1:
            raise KeyboardInterrupt

    many = {**settings, "data": {**settings["data"], "clients": 150}, "run": {"out": f"{out}/many"}}
    try:
        start({**many, "train": {**settings["train"], "rounds": 2}}, model=model, on_round=stop)
    except KeyboardInterrupt:
        resume("last", f"{out}/many", model=model, on_round=stop)
    print(json.dumps({"peak": bytes_of("VmHWM") - before, "file": min(sizes), "rounds": len(sizes)}))


if __name__ == "__main__":
    main(sys.argv[1])
