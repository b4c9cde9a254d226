"""Which replica takes a session. Pure decisions over what is known now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def least_loaded(ready: Sequence[str], loads: Mapping[str, int], *, avoid: Collection[str] = ()) -> str | None:
    """The ready replica with the fewest sessions, the first of several equal ones; None if there is none.

    `avoid` names replicas that just failed this session: they are taken only when nothing else is ready.
    """
    candidates = [replica for replica in ready if replica not in avoid] or list(ready)
    return min(candidates, key=lambda replica: loads.get(replica, 0), default=None)
