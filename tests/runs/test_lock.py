"""Only one process at a time works on a run."""

from pathlib import Path

import pytest

from undergrowth.core import InputError
from undergrowth.runs.lock import is_locked, lock_run


def test_a_locked_run_is_refused_until_the_lock_is_released(tmp_path: Path) -> None:
    run = tmp_path / "a-run"
    with lock_run(run):
        assert is_locked(run)
        with pytest.raises(InputError, match=r"a-run.*another process"), lock_run(run):
            pass
    assert not is_locked(run)
    with lock_run(run):
        pass
