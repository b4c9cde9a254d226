"""`outrider keys`: API keys for a coordinator's key file."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider.rpc import api_key
from outrider_cli.terminal import note

app = typer.Typer(help="API keys for a coordinator.", no_args_is_help=True)


@app.callback()
def _keys() -> None:
    pass


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Who gets the key; the coordinator's log and errors show it.")],
    tenant: Annotated[
        str | None, typer.Option(help="Keys of one tenant share cached prompts; default: each key has its own.")
    ] = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Most answers in progress at a time.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most output tokens of a request.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Most requests a minute.")] = None,
) -> None:
    """Print a new random key, this once, on stderr, and its entry for the key file on stdout.

    ```
    outrider keys new alice --max-concurrent 4 >> keys.yaml
    outrider serve coordinator --api-keys-file keys.yaml ...
    ```

    The entry holds the key's hash. Who has the key sets OUTRIDER_API_KEY to it.
    """
    if not api_key.is_name(name):
        raise typer.BadParameter(f"must be {api_key.NAME_RULE}", param_hint="NAME")
    if tenant is not None and not api_key.is_name(tenant):
        raise typer.BadParameter(f"must be {api_key.NAME_RULE}", param_hint="--tenant")
    key = api_key.new_key()
    limits = {
        "tenant": tenant,
        "max_concurrent": max_concurrent,
        "max_tokens": max_tokens,
        "requests_per_minute": requests_per_minute,
    }
    note(f"The key of {name}. It is shown this once and stored nowhere:", style="")
    note(key, style="bold")
    lines = [f'- name: "{name}"', f'  sha256: "{api_key.digest(key)}"']
    lines += [
        f'  {field}: "{value}"' if field == "tenant" else f"  {field}: {value}"
        for field, value in limits.items()
        if value is not None
    ]
    typer.echo("\n".join(lines))
