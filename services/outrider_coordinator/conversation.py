"""Conversations: what their turns are called in the routing store."""

from __future__ import annotations

import hashlib


def name_of(tenant: str, session_id: str) -> str:
    """The name that all turns of a conversation share, at every coordinator; unlike that of any other tenant's.

    A digest: clients choose the ids, which need not be fit for a key and are nobody's business in a registry.
    """
    text = f"{len(tenant)}:{tenant}{session_id}".encode()
    return "conversation/" + hashlib.blake2b(text, digest_size=16).hexdigest()
