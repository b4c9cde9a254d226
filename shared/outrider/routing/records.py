"""What a replica tells about itself in the registry, and what a coordinator reads of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pydantic import TypeAdapter, ValidationError

from outrider.errors import InvalidArgument


class Role(StrEnum):
    """What a replica does."""

    VERIFIER = "verifier"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """One replica, as it was at its last heartbeat."""

    role: Role
    address: str  # host:port that coordinators connect to
    model: str
    vocabulary_fingerprint: str
    incarnation: str  # new with every start of the process
    capacity_tokens: int
    free_tokens: int  # KV tokens that new sessions could reserve
    sessions: Mapping[str, int]  # open sessions, by the coordinator that owns them
    draining: bool = False

    @property
    def place(self) -> str:
        """Its name in the registry: one replica for each role and address."""
        return f"{self.role.value}/{self.address}"

    def to_json(self) -> str:
        """The form that is stored."""
        return _ADAPTER.dump_json(self).decode()

    @staticmethod
    def from_json(text: str) -> ReplicaRecord:
        """Read the stored form; fields of a newer version are ignored. Raise InvalidArgument for anything else."""
        try:
            return _ADAPTER.validate_json(text)
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"])) or "record"
            raise InvalidArgument(field, problem["input"], problem["msg"]) from None


_ADAPTER = TypeAdapter(ReplicaRecord)
