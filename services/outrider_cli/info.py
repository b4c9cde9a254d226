"""`outrider info`: what a coordinator serves."""

from __future__ import annotations

from rich.table import Table

from outrider.client import DEFAULT_ADDRESS, ServiceInfo
from outrider.protocol.items import ModelInfo
from outrider_cli import options
from outrider_cli.terminal import connected, errors_reported, out, print_json, say


@errors_reported()
def info(
    as_json: options.AsJson = False, address: options.Address = DEFAULT_ADDRESS, timeout: options.Timeout = 10.0
) -> None:
    """Show the target model, the draft models and how a request is speculated by default."""
    with connected(address) as client:
        service = client.model_info(timeout=timeout)
    if as_json:
        print_json(service)
    else:
        _print(service, address)


def _print(service: ServiceInfo, address: str) -> None:
    table = Table("", "model", "architecture", "parameters", "type", "device", "context", box=None, pad_edge=False)
    for role, model in [("target", service.target), *(("draft", draft) for draft in service.drafts)]:
        table.add_row(role, *_cells(model))
    default = service.default_speculation
    longest = "" if default.max_draft_tokens is None else f", up to {default.max_draft_tokens} tokens a guess"
    say(f"Outrider {service.version} at {address}")
    out.print(table)
    say(f"By default: drafter {default.drafter}{longest}, rule {default.rule}")
    if not service.drafts:
        say("No draft service is connected.")


def _cells(model: ModelInfo) -> tuple[str, ...]:
    parameters = f"{model.parameters / 1e6:,.0f} M"
    return model.name, model.architecture, parameters, model.dtype, model.device, f"{model.context_length:,}"
