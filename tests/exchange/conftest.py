"""One thread and no deadline: the tensors here are small, and the machine is shared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("undergrowth", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("undergrowth")


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
