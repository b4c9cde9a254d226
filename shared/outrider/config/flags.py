"""Command-line flags made from a settings class: `kv_tokens` becomes `--kv-tokens`, its description the help text."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from outrider.config.fields import is_list, is_secret, is_switch, placeholder
from outrider.config.layers import did_you_mean, flag_name
from outrider.errors import ConfigError


def parse_flags(settings: type[BaseModel], argv: Sequence[str], prog: str) -> dict[str, Any]:
    """The flags that were given, by field name, as text; `config` too. Raises ConfigError for an unknown one."""
    parser = _build_parser(settings, prog)
    values, unknown = parser.parse_known_args([_dashed(argument) for argument in argv])
    if unknown:
        raise ConfigError(_complaint(unknown, [flag_name(name) for name in ("config", *settings.model_fields)]))
    return {name: ",".join(value) if isinstance(value, list) else value for name, value in vars(values).items()}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _build_parser(settings: type[BaseModel], prog: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        description=settings.__doc__,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        epilog="Precedence: flags, environment variables, the configuration file, defaults.",
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings by name. [OUTRIDER_CONFIG]")
    prefix = settings.model_config.get("env_prefix", "")
    for name, field in settings.model_fields.items():
        options: dict[str, Any] = {"dest": name, "help": _help(field, f"{prefix}{name}".upper())}
        if is_switch(field):
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["metavar"] = placeholder(field)
            options["action"] = "append" if is_list(field) else "store"
        parser.add_argument(flag_name(name), **options)
    return parser


def _help(field: FieldInfo, variable: str) -> str:
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        shown = " (required)"
    elif is_secret(field) or default in (None, (), []):
        shown = ""
    else:
        shown = f" (default: {getattr(default, 'value', default)})"
    return f"{field.description or ''}{shown} [{variable}]".replace("%", "%%")


def _dashed(argument: str) -> str:
    """`--kv_tokens=1` as `--kv-tokens=1`: both spellings are understood."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _complaint(unknown: Sequence[str], known: Sequence[str]) -> str:
    flags = [argument.partition("=")[0] for argument in unknown if argument.startswith("-")]
    if not flags:
        return f"unexpected argument {unknown[0]!r}"
    return "; ".join(f"unknown flag {flag}{did_you_mean(flag, known)}" for flag in flags)
