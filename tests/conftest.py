"""What every test shares: tiny models, one torch thread, repeatable property tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests import interpreter  # noqa: F401 (before anything that may import Triton)

import torch  # isort: skip
from hypothesis import settings

from outrider.engine import replica
from tests.times_of_rounds import measured_once
from tests.tiny_models import save_model

TinyModel = Callable[..., Path]

# Property tests draw the same examples in every run, and a busy machine does not fail them.
settings.register_profile("outrider", deadline=None, derandomize=True)
settings.load_profile("outrider")

# Tiny tensors by the thousand: one thread is faster than handing each of them to several.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Directory of a tiny random model; made once a session for each combination of arguments."""
    home = tmp_path_factory.mktemp("models")

    def directory(name: str, **options: int) -> Path:
        label = "-".join([name, *(f"{key}{value}" for key, value in sorted(options.items()))])
        return save_model(name, home / label, **options)

    return directory


@pytest.fixture
def hopper() -> torch.device:
    """The GPU, for tests of kernels that are for Hopper alone."""
    device = torch.device("cuda", 0)
    if not torch.cuda.is_available() or torch.cuda.get_device_capability(device)[0] != 9:
        pytest.skip("needs a Hopper GPU")
    return device


@pytest.fixture(scope="session", autouse=True)
def _rounds_are_timed_once() -> Iterator[None]:
    """Starting a replica takes a second or two of measuring, and tests start the same ones hundreds of times."""
    with mock.patch.object(replica, "_times_of", measured_once(replica._times_of)):
        yield
