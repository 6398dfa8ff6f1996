"""No deadline: the machine is shared."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("undergrowth", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("undergrowth")
