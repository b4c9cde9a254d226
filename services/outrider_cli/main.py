"""The `outrider` command: every subcommand in one place."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider import __version__
from outrider_cli import bench, chat, demo, distill, generate, info, keys, profile, serve, up

HELP = """Speculative decoding as a service: a cheap draft guesses, a big verifier checks, the answer stays the target
model's own.

See what it brings on this machine, without any model at hand:

```
outrider demo
```

Start everything on this machine, then ask something from another terminal:

```
outrider up --model HuggingFaceTB/SmolLM2-135M-Instruct
outrider generate "Why is the sky blue?"
outrider chat
```
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(up.up)
app.command()(generate.generate)
app.command()(chat.chat)
app.command()(info.info)
app.command()(demo.demo)
app.command()(bench.bench)
app.command()(distill.distill)
app.command(context_settings=profile.PASS_THROUGH, add_help_option=False)(profile.profile)
app.add_typer(serve.app, name="serve")
app.add_typer(keys.app, name="keys")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outrider {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the `outrider` script."""
    app(prog_name="outrider")
