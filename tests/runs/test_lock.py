"""Only one process at a time works on a run."""

from pathlib import Path

import pytest

from undergrowth.core import InputError
from undergrowth.runs.lock import held


def test_a_run_that_is_being_worked_on_is_not_taken_up_by_another(tmp_path: Path) -> None:
    with held(tmp_path / "a-run"), pytest.raises(InputError, match=r"a-run.*another process"), held(tmp_path / "a-run"):
        pass
    with held(tmp_path / "a-run"):
        pass
