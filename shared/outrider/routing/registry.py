"""The replicas in the registry: they write themselves in and out, coordinators look."""

from __future__ import annotations

from outrider.errors import InvalidArgument
from outrider.routing import scripts
from outrider.routing.connection import RegistryConnection
from outrider.routing.records import ReplicaRecord
from outrider.routing.view import Listing
from outrider.telemetry.logs import get_logger

log = get_logger(__name__)


class Registry:
    """All replicas that share a registry and prefix. Every method raises Unavailable while the registry is away."""

    def __init__(self, connection: RegistryConnection) -> None:
        self.connection = connection
        self._keys = [connection.key("replicas")]
        self._unreadable: set[str] = set()  # problems that were logged already

    async def register(self, record: ReplicaRecord, ttl_s: float) -> ReplicaRecord | None:
        """List a replica for `ttl_s` seconds; the record that was there before, if one was and can be read."""
        arguments = (record.place, record.to_json(), round(ttl_s * 1000))
        before = await self.connection.run(scripts.REGISTER, self._keys, *arguments, probe=True)
        return self._read(before.partition(" ")[2]) if before else None

    async def unregister(self, record: ReplicaRecord) -> None:
        """Take a replica off the list, unless another incarnation is listed in its place."""
        await self.connection.run(scripts.UNREGISTER, self._keys, record.place, record.incarnation, probe=True)

    async def look(self) -> Listing:
        """Every replica whose time is not up."""
        era, *texts = await self.connection.run(scripts.LOOK, self._keys, probe=True)
        records = [record for text in texts if (record := self._read(text)) is not None]
        return Listing(era, {record.place: record for record in records})

    def _read(self, text: str) -> ReplicaRecord | None:
        try:
            return ReplicaRecord.from_json(text)
        except InvalidArgument as error:  # one bad record hides no other
            if str(error) not in self._unreadable:
                log.error("a record in the registry is ignored: %s", error)
                self._unreadable.add(str(error))
            return None
