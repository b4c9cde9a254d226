"""Property tests draw the same examples in every run, and a busy machine does not fail them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("outrider", deadline=None, derandomize=True)
settings.load_profile("outrider")


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Small tensors by the thousand: one thread is faster than handing each of them to several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
