"""`outrider info`: what a coordinator serves."""

from __future__ import annotations

from outrider.client import DEFAULT_ADDRESS, ServiceInfo
from outrider.protocol.items import ModelInfo
from outrider_cli import options
from outrider_cli.terminal import connected, errors_reported, print_json, say


@errors_reported()
def info(
    as_json: options.AsJson = False,
    address: options.Address = DEFAULT_ADDRESS,
    timeout: options.Timeout = 10.0,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
) -> None:
    """Show the target model, the draft models and how a request is speculated by default."""
    with connected(address, options.client_tls(tls_ca, tls_cert, tls_key)) as client:
        service = client.model_info(timeout=timeout)
    if as_json:
        print_json(service)
    else:
        _print(service, address)


def _print(service: ServiceInfo, address: str) -> None:
    say(f"Outrider {service.version} at {address}")
    say(f"target  {_describe(service.target)}")
    for draft in service.drafts:
        say(f"draft   {_describe(draft)}")
    if service.drafting_verifiers:
        say("draft   in the verifier's own process")
    elif not service.drafts:
        say("draft   none is connected")
    default = service.default_speculation
    longest = "" if default.max_draft_tokens is None else f", up to {default.max_draft_tokens} tokens a guess"
    fixed = " every time" if default.fixed_length else ""
    say(f"default drafter {default.drafter}{longest}{fixed}, rule {default.rule}")


def _describe(model: ModelInfo) -> str:
    size = f"{model.parameters / 1e6:,.0f} M parameters, {model.dtype} on {model.device}"
    return f"{model.name} ({model.architecture}): {size}, context {model.context_length:,} tokens"
