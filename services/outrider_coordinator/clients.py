"""Who counts as one client where clients share what there is."""

from __future__ import annotations

import ipaddress
from urllib.parse import unquote

from outrider_coordinator.guard import Caller


def client_of(caller: Caller, peer: str) -> str:
    """The tenant of the API key; without keys the machine that `peer` (gRPC's name of it) connects from.

    On this machine each connection is a client of its own: there are many programs behind one address.
    """
    if caller.owner:
        return caller.owner
    kind, _, address = unquote(peer).partition(":")
    host = address.rpartition(":")[0]
    if kind not in ("ipv4", "ipv6") or ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback:
        return peer
    return f"{kind}:{host}"
