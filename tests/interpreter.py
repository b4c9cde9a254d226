"""Triton's interpreter, which runs GPU kernels on a machine without a GPU. Imported before Triton itself."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import torch

INTERPRETED = not torch.cuda.is_available()

if INTERPRETED and find_spec("triton") is not None:
    os.environ["TRITON_INTERPRET"] = "1"

    from triton.runtime import interpreter

    _patch = interpreter._patch_lang_tensor

    def _patched(tensor: Any, scope: Any) -> None:
        """As Triton 3.6 has it, but for NumPy from 2.4 on, where an array of one element is no scalar any more."""
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _patched
