"""Triton's interpreter, which runs GPU kernels on a machine without a GPU. Imported before Triton itself."""

from __future__ import annotations

import inspect
import os
from importlib.util import find_spec
from typing import Any

import torch

INTERPRETED = not torch.cuda.is_available()

if INTERPRETED and find_spec("triton") is not None:
    os.environ["TRITON_INTERPRET"] = "1"

    import triton.language as tl
    from triton.runtime import interpreter

    _patch, _dtype_of = interpreter._patch_lang_tensor, interpreter._get_np_dtype
    _builtins: dict[Any, list[tuple[str, Any]]] = {}
    _dtypes: dict[str, Any] = {}
    _shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}
    _blocks: dict[tuple[Any, ...], tuple[Any, Any, str]] = {}

    def _patched(tensor: Any, scope: Any) -> None:
        """As Triton 3.6 has it, but for NumPy from 2.4 on, where an array of one element is no scalar any more."""
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _patched

    # Triton does the following anew for each call and each value, which takes most of the time. What comes of it is
    # Triton's own.

    def _patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        """Replace a package's functions, looked up once; those that a call further up has replaced already stay."""
        if package not in _builtins:
            members = inspect.getmembers(package)
            _builtins[package] = [(name, member) for name, member in members if tl.core.is_builtin(member)]
        for name, member in _builtins[package]:
            if getattr(package, name) is member:
                interpreter._patch_attr(package, name, member, builder, scope)

    def _get_np_dtype(kind: Any) -> Any:
        """NumPy's type for one of Triton's."""
        if kind.name not in _dtypes:
            _dtypes[kind.name] = _dtype_of(kind)
        return _dtypes[kind.name]

    def _make_tensor(self: Any, handle: Any, kind: Any) -> None:
        """The value of a kind; those of the same shape share that."""
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        sizes = tuple(kind.shape) if kind.is_block() else ()
        if sizes not in _shapes:
            _make(self, handle, kind)
            _shapes[sizes] = self.numel, self.shape
        self.numel, self.shape = _shapes[sizes]

    def _make_block(self: Any, element: Any, shape: Any) -> None:
        """A kind of array."""
        key = (element.name, *(int(size) for size in shape))
        if key not in _blocks:
            _make_kind(self, element, shape)
            _blocks[key] = self.shape, self.numel, self.name
        self.element_ty, (self.shape, self.numel, self.name) = element, _blocks[key]

    _make, _make_kind = tl.core.tensor.__init__, tl.core.block_type.__init__
    interpreter._patch_builtin, interpreter._get_np_dtype = _patch_builtin, _get_np_dtype
    tl.core.tensor.__init__, tl.core.block_type.__init__ = _make_tensor, _make_block
