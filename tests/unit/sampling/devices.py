"""The devices that tests of this package run on: the CPU, and CUDA where there is one."""

from __future__ import annotations

import pytest
import torch

CPU = torch.device("cpu")

DEVICES = [pytest.param(CPU, id="cpu")]
if torch.cuda.is_available():
    DEVICES.append(pytest.param(torch.device("cuda"), id="cuda", marks=pytest.mark.gpu))

on_each_device = pytest.mark.parametrize("device", DEVICES)
