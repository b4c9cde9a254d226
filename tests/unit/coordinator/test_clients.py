"""Who counts as one client."""

from __future__ import annotations

import pytest

from outrider_coordinator.clients import client_of
from outrider_coordinator.guard import ANYBODY, Caller


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("ipv4:10.0.0.7:51234", "ipv4:10.0.0.7"),
        ("ipv6:%5B2001:db8::1%5D:51234", "ipv6:[2001:db8::1]"),
        ("ipv6:[2001:db8::1]:51234", "ipv6:[2001:db8::1]"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5", "ipv6:[fe80::1%eth0]"),
        ("ipv4:127.0.0.1:51234", "ipv4:127.0.0.1:51234"),
        ("ipv6:%5B::1%5D:51234", "ipv6:%5B::1%5D:51234"),
        ("unix:/run/outrider", "unix:/run/outrider"),
        ("unix:", "unix:"),
    ],
)
def test_without_keys_a_client_is_a_machine_or_here_a_connection(peer: str, client: str) -> None:
    assert client_of(ANYBODY, peer) == client


def test_a_client_with_a_key_is_its_tenant_wherever_it_connects_from() -> None:
    for peer in ("ipv4:10.0.0.7:1", "ipv4:10.0.0.8:1"):
        assert client_of(Caller("tenant:acme"), peer) == "tenant:acme"
