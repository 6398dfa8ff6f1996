"""A program that puts and gets the states of many devices: DEVICES VALUES LIMIT TIMES FOLDER.

Prints by how many bytes its memory grew at most, the bytes of the file, and the number of wrong values.
"""

import json
import sys
from pathlib import Path

import torch

from undergrowth.engines import States


def bytes_of(field: str) -> int:
    """VmRSS, the resident memory of this process, or VmHWM, its maximum so far."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def main(devices: int, values: int, limit: int, times: int, folder: Path) -> None:
    torch.set_num_threads(1)
    names = [f"device-{number:07d}" for number in range(devices)]
    before = bytes_of("VmRSS")
    states = States(limit, folder=folder)
    wrong = 0
    for turn in range(times):
        for number, name in enumerate(names):
            states.put(name, {"x": torch.full((values,), float(number + turn))})
        for number, name in enumerate(names):
            wrong += float(states.get(name)["x"][-1]) != number + turn
    peak = bytes_of("VmHWM") - before
    print(json.dumps({"peak": peak, "file": states._file.size, "wrong": wrong}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]), Path(sys.argv[5]))
