"""What a settings field's type tells: how it is written, and whether it may be shown."""

from __future__ import annotations

import types
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo


def is_secret(field: FieldInfo) -> bool:
    """True if the value must not appear in logs or errors."""
    return SecretStr in _alternatives(field.annotation)


def is_list(field: FieldInfo) -> bool:
    """True if the field holds several values."""
    return any(get_origin(kind) in (list, tuple) for kind in _alternatives(field.annotation))


def is_switch(field: FieldInfo) -> bool:
    """True if the field is on or off."""
    return field.annotation is bool


def placeholder(field: FieldInfo) -> str:
    """What stands for the value in a help text: the choices if there are few, else the kind of value."""
    kind = next(kind for kind in _alternatives(field.annotation) if kind is not type(None))
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "{" + ",".join(str(member.value) for member in kind) + "}"
    if is_list(field):
        return "A,B"
    return {int: "N", float: "X", SecretStr: "SECRET"}.get(kind, "TEXT")


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the one type."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
