"""A real draft service that answers what it was not asked for: it is let go, and no answer is other than without it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.draft import DraftCore
from outrider.engine.replica import Replica, load
from outrider.rpc.codec import DRAFT
from outrider.v1 import draft_pb2, replica_pb2
from outrider_draft.process import register
from outrider_draft.settings import DraftSettings
from tests.cluster import REPLICA, running_cluster, until
from tests.conftest import TinyModel

PROMPT, ANOTHER = "again and again and again", "the quick brown fox"
# More rounds than an answer may be ahead of its client: one that waits holds the answer up.
OPTIONS: dict[str, Any] = {"temperature": 0.8, "seed": 21, "max_tokens": 80, "ignore_eos": True, "fixed_length": True}
SHORT = OPTIONS | {"max_tokens": 20}
VOCABULARY = 512


@dataclass
class Liar:
    """What a draft does to its next reply that has proposals; all others are honest."""

    lie: Callable[[draft_pb2.DraftReply], object] | None = None
    opened: int = 0  # sessions

    def reply(self, reply: Any) -> draft_pb2.DraftReply:
        """A reply as it leaves."""
        wire = DRAFT.reply_to_proto(reply)
        assert isinstance(wire, draft_pb2.DraftReply)
        self.opened += wire.HasField("opened")
        if self.lie is not None and any(proposal.tree.tokens for proposal in proposals(wire)):
            self.lie(wire)
            self.lie = None
        return wire


def proposals(wire: draft_pb2.DraftReply) -> list[replica_pb2.Proposal]:
    """Those of a reply, for now or foreseen."""
    return [wire.proposal, *(each.proposal for each in wire.drafted_ahead.foreseen)]


@asynccontextmanager
async def running_liar(model: Path, liar: Liar) -> AsyncIterator[str]:
    """The address of a draft as `start_draft` starts one, but for what it says."""
    options = DraftSettings(model=str(model), **(REPLICA | {"layers": 2}))
    loaded, engine = load(options)
    core = DraftCore(engine, max_proposal=options.max_proposal, lease_s=options.lease_s)
    replica = Replica("draft", options, loaded, core, replace(DRAFT, reply_to_proto=liar.reply), register)
    try:
        yield await replica.start()
    finally:
        await replica.stop()


def unknown_token(wire: draft_pb2.DraftReply) -> None:
    for proposal in proposals(wire):
        proposal.tree.tokens[:] = [VOCABULARY for _ in proposal.tree.tokens]


def too_many(wire: draft_pb2.DraftReply) -> None:
    for proposal in proposals(wire):
        proposal.tree.tokens.extend(7 for _ in range(40) if proposal.tree.tokens)


def no_tree(wire: draft_pb2.DraftReply) -> None:
    for proposal in proposals(wire):
        proposal.tree.parents[:] = [len(proposal.tree.tokens) for _ in proposal.tree.tokens]


def nothing_asked_for(wire: draft_pb2.DraftReply) -> None:
    wire.closed.SetInParent()


def two_for_one_outcome(wire: draft_pb2.DraftReply) -> None:
    """The verifier would go on with the first, the coordinator with the last."""
    for each in list(wire.drafted_ahead.foreseen):
        other = wire.drafted_ahead.foreseen.add()
        other.CopyFrom(each)
        other.proposal.tree.tokens[:] = [(token + 1) % VOCABULARY for token in each.proposal.tree.tokens]


def nowhere(wire: draft_pb2.DraftReply) -> None:
    for each in wire.drafted_ahead.foreseen:
        each.node = 99


LIES = [
    (unknown_token, r"proposal\.tree\.tokens\[0\] is 512, but must be a token id below 512"),
    (too_many, r"proposal\.tree\.tokens is 4\d, but must be at most \d+ long"),
    (no_tree, r"proposal\.tree\.parents\[0\] is \d+, but must be from -1 to -1"),
    (nothing_asked_for, "Closed for "),
]
LIES_AHEAD = [
    (two_for_one_outcome, "foreseen is "),
    (nowhere, r"foreseen\.node is 99, but must be from -1 to "),
]


@pytest.mark.parametrize("look_ahead", ["off", "on"])
async def test_a_draft_that_lies_hurts_nobody(
    tiny_model: TinyModel, look_ahead: str, caplog: pytest.LogCaptureFixture
) -> None:
    target, liar, accepted = tiny_model("llama"), Liar(), 0
    async with (
        running_liar(target, liar) as address,
        running_cluster(target, more_drafts=[address], look_ahead=look_ahead, draft_retry_s=0.01) as cluster,
    ):
        expected = await cluster.generate(PROMPT, drafter="none", **OPTIONS)
        other = await cluster.generate(ANOTHER, drafter="none", **SHORT)
        for lie, words in LIES_AHEAD if look_ahead == "on" else LIES:
            caplog.clear()
            liar.lie, before = lie, liar.opened
            async with cluster.client.stream(PROMPT, drafter="model", **OPTIONS) as stream:
                await anext(stream)
                await until(lambda: liar.opened > before)  # noqa: B023 (it is called at once)
                beside, answer = await asyncio.gather(
                    cluster.generate(ANOTHER, drafter="ngram", **SHORT), stream.read()
                )
            assert liar.lie is None
            assert (answer.token_ids, answer.text) == (expected.token_ids, expected.text), lie
            assert (beside.token_ids, beside.speculation.fallback_reason) == (other.token_ids, ""), lie
            assert re.search(f"{address} answered wrongly: {words}", answer.speculation.fallback_reason)
            (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert "goes on without its draft" in record.message
            accepted += answer.speculation.accepted_tokens
        assert accepted > 0  # an honest one is used again, also by a session that had let it go
