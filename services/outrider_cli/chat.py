"""`outrider chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Iterator
from typing import Annotated

import typer

from outrider.client import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S, ChatMessage, Client, RequestOptions
from outrider.errors import OutriderError
from outrider_cli import options
from outrider_cli.terminal import connected, errors_reported, note, stats_line, write

PROMPT = "> "
HELP = "/reset starts over, /exit or Ctrl-D ends, Ctrl-C stops an answer."


@errors_reported()
def chat(
    system: Annotated[str | None, typer.Option(help="A system message at the start of the conversation.")] = None,
    address: options.Address = DEFAULT_ADDRESS,
    timeout: options.Timeout = DEFAULT_TIMEOUT_S,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    seed: options.Seed = None,
    drafter: options.Drafter = None,
    max_draft_tokens: options.MaxDraftTokens = None,
    fixed_length: options.FixedLength = False,
    rule: options.Rule = None,
) -> None:
    """Talk with the model. /reset starts over, /exit ends, Ctrl-C stops an answer.

    ```
    outrider chat --system "You are a patient teacher." --temperature 0.7
    ```
    """
    request = options.request_options(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        drafter=drafter,
        max_draft_tokens=max_draft_tokens,
        fixed_length=fixed_length,
        rule=rule,
    )
    with connected(address, options.client_tls(tls_ca, tls_cert, tls_key)) as client:
        note(f"Talking with {client.model_info().target.name}. {HELP}")
        conversation = Conversation(system)
        for line in _lines():
            if line == "/exit":
                return
            if line == "/reset":
                conversation = Conversation(system)
                note("A new conversation.")
            elif line.startswith("/"):
                note(f"{line.split()[0]} is no command. {HELP}")
            elif line:
                _answer(client, conversation, line, timeout, request)


class Conversation:
    """The turns so far, always ending with an answer: a turn that failed leaves no trace."""

    def __init__(self, system: str | None) -> None:
        self.session_id = uuid.uuid4().hex
        self._turns: list[ChatMessage] = [] if system is None else [{"role": "system", "content": system}]

    def asking(self, text: str) -> list[ChatMessage]:
        """The conversation with one more question."""
        return [*self._turns, {"role": "user", "content": text}]

    def add(self, question: str, answer: str) -> None:
        """Keep a question and its answer."""
        self._turns = [*self.asking(question), {"role": "assistant", "content": answer}]


def _answer(client: Client, conversation: Conversation, text: str, timeout: float, request: RequestOptions) -> None:
    """Stream one answer. After an error the conversation is as before; after Ctrl-C it has the part that was shown."""
    turn: RequestOptions = {
        **request,
        "messages": conversation.asking(text),
        "session_id": conversation.session_id,
    }
    try:
        with client.stream(timeout=timeout, **turn) as stream:
            try:
                for chunk in stream:
                    write(chunk.text)
                note("\n" + stats_line(stream.result))
            except KeyboardInterrupt:
                note("\nstopped")
            conversation.add(text, stream.text)
    except OutriderError as error:
        note(f"\nError: {error}", style="red")


def _lines() -> Iterator[str]:
    """What the user types, line by line, until the end of input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (gives input() editing and history)
    interactive = sys.stdin.isatty()
    while True:
        try:
            yield input(PROMPT if interactive else "").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            note("")  # drops the line, as in a shell
