"""Chat templates, rendered the way Hugging Face documents them.

https://huggingface.co/docs/transformers/chat_templating_writing lists what a template may use: whitespace control,
loop controls, `raise_exception`, `strftime_now`, a `tojson` that leaves HTML alone, and the special tokens by name.
Templates come with the model and messages from anyone, so rendering is sandboxed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn, TypedDict

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outrider.errors import FailedPrecondition, InvalidArgument


class Message(TypedDict):
    """One turn of a conversation; `role` is system, user or assistant, as far as the model's template knows them."""

    role: str
    content: str


class ChatTemplate:
    """A model's chat template with the special tokens it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile `source`; raises FailedPrecondition if it is not a template."""
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise FailedPrecondition(f"the model's chat template does not compile: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt that asks the model for the assistant's next turn.

        Raises InvalidArgument naming `messages` when there are none, or the template does not take them.
        """
        if not messages:
            raise InvalidArgument("messages", [], "at least one message")
        try:
            return self._template.render(
                **self._special_tokens,
                messages=[{"role": message["role"], "content": message["content"]} for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            roles = [message.get("role") for message in messages]
            limit = f"a conversation the model's chat template takes ({error})"
            raise InvalidArgument("messages", roles, limit) from error


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's own words for training; when rendering a prompt it is transparent."""

    tags = {"generation"}  # noqa: RUF012  (Extension declares it without ClassVar)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().astimezone().strftime(format_)
