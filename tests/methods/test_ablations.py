"""Options that switch a part of a method off: they change nothing where that part does nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug


@pytest.fixture
def digest(tmp_path: Path) -> Any:
    """A function that runs a method on a few digits and returns the digest of the final model."""

    def run(method: str, rounds: int = 1, **options: Any) -> str:
        few = {"train_samples": 200, "test_samples": 50}
        result = ug.run(
            method, options=options, public=0.2, clients=2, partition="iid", rounds=rounds, lr=0.05, data_options=few,
            out=str(tmp_path),
        )  # fmt: skip
        return str(result.summary["model_digest"])

    return run


@pytest.mark.slow
def test_fedkad_without_prototypes_for_devices_differs_from_the_second_round_on(digest: Any) -> None:
    fast = {"pretrain_epochs": 1, "server_epochs": 1, "beta": 0.5}
    assert digest("fedkad", 2, device_beta=0.5, **fast) == digest("fedkad", 2, **fast)
    # The global model of the first round learns as always; that of the second, from other devices' models.
    assert digest("fedkad", 1, device_beta=0.0, **fast) == digest("fedkad", 1, **fast)
    assert digest("fedkad", 2, device_beta=0.0, **fast) != digest("fedkad", 2, **fast)
