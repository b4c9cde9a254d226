"""`outrider generate`: one prompt, one answer."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from outrider.client import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S
from outrider_cli import options
from outrider_cli.terminal import connected, errors_reported, note, print_json, stats_line, write


@errors_reported()
def generate(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from stdin.")],
    system: Annotated[str | None, typer.Option(help="A system message before the prompt.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Send the text as it is, without the chat template.")] = False,
    as_json: options.AsJson = False,
    address: options.Address = DEFAULT_ADDRESS,
    timeout: options.Timeout = DEFAULT_TIMEOUT_S,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    max_tokens: options.MaxTokens = None,
    min_tokens: options.MinTokens = None,
    stop: options.Stop = None,
    stop_token_id: options.StopTokenId = None,
    include_stop: options.IncludeStop = False,
    ignore_eos: options.IgnoreEos = False,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    presence_penalty: options.PresencePenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
    logit_bias: options.LogitBias = None,
    seed: options.Seed = None,
    logprobs: Annotated[
        int | None, typer.Option(help="With --json: each token's logprob and this many alternatives.")
    ] = None,
    drafter: options.Drafter = None,
    max_draft_tokens: options.MaxDraftTokens = None,
    fixed_length: options.FixedLength = False,
    rule: options.Rule = None,
) -> None:
    """Answer one prompt. The answer streams to stdout, a line of statistics goes to stderr.

    ```
    outrider generate "Why is the sky blue?"
    outrider generate --raw "The capital of France is" --max-tokens 8 --temperature 0
    cat notes.txt | outrider generate - --system "Summarise the text." --json
    ```
    """
    if raw and system is not None:
        raise typer.BadParameter("has no place in --raw text", param_hint="--system")
    text = sys.stdin.read() if prompt == "-" else prompt
    turns = [{"role": "system", "content": system}] if system is not None else []
    request = options.request_options(
        messages=None if raw else [*turns, {"role": "user", "content": text}],
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=stop,
        stop_token_ids=stop_token_id,
        include_stop=include_stop,
        ignore_eos=ignore_eos,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=options.parse_logit_bias(logit_bias),
        seed=seed,
        logprobs=logprobs,
        drafter=drafter,
        max_draft_tokens=max_draft_tokens,
        fixed_length=fixed_length,
        rule=rule,
    )
    tls = options.client_tls(tls_ca, tls_cert, tls_key)
    with connected(address, tls) as client, client.stream(text if raw else None, timeout=timeout, **request) as stream:
        if as_json:
            print_json(stream.read())
            return
        for chunk in stream:
            write(chunk.text)
        write("\n")
        note(stats_line(stream.result))
