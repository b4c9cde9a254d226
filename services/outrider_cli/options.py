"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from outrider.acceptance.params import Rule as AcceptanceRule
from outrider.client import ClientTls, RequestOptions
from outrider.client import Drafter as ClientDrafter

_LENGTH, _SAMPLING, _SPECULATION = "Length and stopping", "Sampling", "Speculation"
_CONNECTION = "Encryption"

Address = Annotated[
    str, typer.Option(envvar="OUTRIDER_ADDRESS", help="Where the coordinator serves.", metavar="HOST:PORT")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
Timeout = Annotated[float, typer.Option(help="Give up after this many seconds.", min=0.001)]

TlsCa = Annotated[
    Path | None,
    typer.Option(
        envvar="OUTRIDER_TLS_CA",
        help="PEM file with the CA of the coordinator's certificate; connect encrypted.",
        rich_help_panel=_CONNECTION,
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        envvar="OUTRIDER_TLS_CERT",
        help="PEM file with a certificate to show a coordinator that asks for one.",
        rich_help_panel=_CONNECTION,
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(
        envvar="OUTRIDER_TLS_KEY", help="PEM file with the private key of --tls-cert.", rich_help_panel=_CONNECTION
    ),
]

MaxTokens = Annotated[int | None, typer.Option(help="Most tokens of the answer.", rich_help_panel=_LENGTH)]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="End the answer before this text; may be given several times.", rich_help_panel=_LENGTH),
]
StopTokenId = Annotated[
    list[int] | None,
    typer.Option(help="End the answer with this token id; may be given several times.", rich_help_panel=_LENGTH),
]
IncludeStop = Annotated[
    bool, typer.Option("--include-stop", help="Keep the stop text in the answer.", rich_help_panel=_LENGTH)
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on after the model's own end of answer.", rich_help_panel=_LENGTH)
]
MinTokens = Annotated[int | None, typer.Option(help="No end before this many tokens.", rich_help_panel=_LENGTH)]

Temperature = Annotated[
    float | None,
    typer.Option(help="0 always takes the likeliest token; higher is more varied.", rich_help_panel=_SAMPLING),
]
TopK = Annotated[int | None, typer.Option(help="Only the k likeliest tokens; 0: all.", rich_help_panel=_SAMPLING)]
TopP = Annotated[
    float | None,
    typer.Option(help="Only the likeliest tokens that reach this probability together.", rich_help_panel=_SAMPLING),
]
MinP = Annotated[
    float | None,
    typer.Option(help="Only tokens at least this fraction as likely as the likeliest.", rich_help_panel=_SAMPLING),
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Above 1: fewer tokens that occurred before.", rich_help_panel=_SAMPLING)
]
PresencePenalty = Annotated[
    float | None, typer.Option(help="Above 0: fewer tokens that the answer already has.", rich_help_panel=_SAMPLING)
]
FrequencyPenalty = Annotated[
    float | None, typer.Option(help="The same, once per occurrence.", rich_help_panel=_SAMPLING)
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        help="Make a token likelier or, below 0, rarer; may be given several times.",
        metavar="ID=BIAS",
        rich_help_panel=_SAMPLING,
    ),
]
Seed = Annotated[
    int | None, typer.Option(help="The same seed gives the same answer; default: random.", rich_help_panel=_SAMPLING)
]

Drafter = Annotated[
    ClientDrafter | None,
    typer.Option(
        help="Who guesses: none (plain decoding), ngram (repeats of the text so far), model (a draft model), "
        "auto (each time the one that should be fastest). "
        "Changes the speed, never what is answered; default: what the service is set to.",
        rich_help_panel=_SPECULATION,
    ),
]
MaxDraftTokens = Annotated[
    int | None, typer.Option(help="Longest guess, in tokens; 0: plain decoding.", rich_help_panel=_SPECULATION)
]
FixedLength = Annotated[
    bool,
    typer.Option(
        "--fixed-length", help="Guess that much every time, whether it pays or not.", rich_help_panel=_SPECULATION
    ),
]
Rule = Annotated[
    AcceptanceRule | None,
    typer.Option(
        help="How guesses are accepted. Under match, the default, the answer is the same whoever guesses.",
        rich_help_panel=_SPECULATION,
    ),
]


def request_options(**values: object) -> RequestOptions:
    """The options that were given: absent, empty and False ones are left to the service."""
    given = {name: value for name, value in values.items() if value is not None and value is not False and value != []}
    return cast(RequestOptions, given)


def client_tls(ca: Path | None, cert: Path | None, key: Path | None) -> ClientTls | None:
    """The files to connect with, or None for an unencrypted connection. Raise a usage error for one without its CA."""
    if ca is None:
        if cert is not None or key is not None:
            raise typer.BadParameter("needs --tls-ca, the CA of the coordinator's certificate", param_hint="--tls-cert")
        return None
    return ClientTls(ca, cert, key)


def parse_logit_bias(entries: list[str] | None) -> dict[int, float] | None:
    """`ID=BIAS` options as a mapping. Raises a usage error that quotes the entry."""
    try:
        return {int(token): float(bias) for token, bias in (entry.split("=") for entry in entries or ())} or None
    except ValueError:
        raise typer.BadParameter(f"{entries} must be ID=BIAS, such as 42=-5", param_hint="--logit-bias") from None
