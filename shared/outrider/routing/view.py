"""What a coordinator believes about the replicas, from one look at the registry to the next. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider.routing.records import ReplicaRecord


@dataclass(frozen=True, slots=True)
class Listing:
    """One look at the registry. `era` names its contents: another era means that it lost what it held."""

    era: str
    records: Mapping[str, ReplicaRecord]  # by place


@dataclass(frozen=True, slots=True)
class View:
    """The replicas by place: those the registry lists, and those it may have forgotten through no fault of theirs."""

    era: str = ""
    records: Mapping[str, ReplicaRecord] = field(default_factory=dict)
    kept_until: Mapping[str, float] = field(default_factory=dict)  # of records that are no longer listed


def look_again(view: View, listing: Listing, *, now: float, keep_s: float, interrupted: bool) -> View:
    """The view after a look at `now` (time.monotonic seconds).

    A replica that is no longer listed is gone, unless the registry itself was gone: it was emptied or replaced (another
    era), or could not be reached since the last look (`interrupted`), so that heartbeats could not reach it either.
    Then a replica has `keep_s` seconds to register again before it counts as gone.
    """
    forgetful = interrupted or listing.era != view.era
    kept = {}
    for place in view.records.keys() - listing.records.keys():
        until = view.kept_until.get(place, now + keep_s if forgetful else now)
        if until > now:
            kept[place] = until
    records = {place: view.records[place] for place in kept} | dict(listing.records)
    return View(listing.era, records, kept)
