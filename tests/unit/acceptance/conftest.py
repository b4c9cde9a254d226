"""Property tests draw the same examples in every run, and a busy machine does not fail them."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("outrider", deadline=None, derandomize=True)
settings.load_profile("outrider")
