"""A real draft service that answers what it was not asked for: it is let go, and no answer is other than without it.

And a verifier whose frames make no sense: its stream is given up, and its sessions open anew.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.draft import DraftCore
from outrider.engine.replica import Replica, load
from outrider.engine.verify import VerifyCore
from outrider.rpc.codec import DRAFT, VERIFIER, Codec
from outrider.v1 import draft_pb2, replica_pb2
from outrider_draft.process import register
from outrider_draft.settings import DraftSettings
from outrider_verifier.process import register as register_verifier
from outrider_verifier.settings import VerifierSettings
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
    ahead: bool = False  # lie about what it foresees
    opened: int = 0  # sessions

    def reply(self, reply: Any, wire: Any = None) -> draft_pb2.DraftReply:
        """A reply as it leaves."""
        wire = DRAFT.reply_to_proto(reply, wire)
        assert isinstance(wire, draft_pb2.DraftReply)
        self.opened += wire.HasField("opened")
        fits = wire.HasField("drafted_ahead") or not self.ahead
        if self.lie is not None and fits and any(proposal.tree.tokens for proposal in proposals(wire)):
            self.lie(wire)
            self.lie = None
        return wire


def proposals(wire: draft_pb2.DraftReply) -> list[replica_pb2.Proposal]:
    """Those of a reply, for now or foreseen."""
    return [wire.proposal, *(each.proposal for each in wire.drafted_ahead.foreseen)]


@asynccontextmanager
async def running_liar(model: Path, liar: Liar) -> AsyncIterator[str]:
    """The address of a draft as `start_draft` starts one, but for what it says."""
    async with running_draft(model, replace(DRAFT, reply_to_proto=liar.reply)) as address:
        yield address


@asynccontextmanager
async def running_draft(model: Path, codec: Codec[Any, Any]) -> AsyncIterator[str]:
    options = DraftSettings(model=str(model), **(REPLICA | {"layers": 2}))
    loaded, engine = load(options)
    core = DraftCore(engine, max_proposal=options.max_proposal, lease_s=options.lease_s)
    async with running(Replica("draft", options, loaded, core, codec, register)) as address:
        yield address


@asynccontextmanager
async def running_verifier(model: Path, codec: Codec[Any, Any]) -> AsyncIterator[str]:
    options = VerifierSettings(model=str(model), **REPLICA)
    loaded, engine = load(options)
    core = VerifyCore(engine, max_proposal=options.max_proposal, lease_s=options.lease_s)
    async with running(Replica("verifier", options, loaded, core, codec, register_verifier)) as address:
        yield address


@asynccontextmanager
async def running(replica: Replica) -> AsyncIterator[str]:
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
]
LIES_AHEAD = [
    (two_for_one_outcome, "foreseen is "),
    (nowhere, r"foreseen\.node is 99, but must be from -1 to "),
]


@pytest.mark.parametrize("look_ahead", ["off", "on"])
async def test_a_draft_that_lies_hurts_nobody(
    tiny_model: TinyModel, look_ahead: str, caplog: pytest.LogCaptureFixture
) -> None:
    target, liar, accepted = tiny_model("llama"), Liar(ahead=look_ahead == "on"), 0
    async with (
        running_liar(target, liar) as address,
        running_cluster(target, more_drafts=[address], look_ahead=look_ahead, draft_retry_s=0.01) as cluster,
    ):
        expected = await cluster.generate(PROMPT, drafter="none", **OPTIONS)
        other = await cluster.generate(ANOTHER, drafter="none", **SHORT)
        for lie, words in LIES_AHEAD if liar.ahead else LIES:
            caplog.clear()
            before = liar.opened
            async with cluster.client.stream(PROMPT, drafter="model", **OPTIONS) as stream:
                await anext(stream)
                await until(lambda: liar.opened > before)  # noqa: B023 (it is called at once)
                liar.lie = lie  # nothing of the session before is answered any more
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


def stammering(codec: Codec[Any, Any], said: list[Any]) -> Codec[Any, Any]:
    """Each frame has every reply twice, and those of the five frames before it once more."""

    def frame(replies: Iterable[Any], write: Any) -> Any:
        new = list(replies)
        said.append(new)
        return codec.replies_frame([*chain(*said[-6:-1]), *new, *new], write)

    return replace(codec, replies_frame=frame)


async def test_replies_that_come_twice_and_again_later_change_nothing(tiny_model: TinyModel) -> None:
    target = tiny_model("llama")
    said: tuple[list[Any], list[Any]] = [], []
    async with (
        running_verifier(target, stammering(VERIFIER, said[0])) as verifier,
        running_draft(target, stammering(DRAFT, said[1])) as draft,
        running_cluster(target) as plain,
        running_cluster(
            target, verifiers=0, more_verifiers=[verifier], more_drafts=[draft], look_ahead="on"
        ) as cluster,
    ):
        prompts = [PROMPT, ANOTHER]
        expected = [await plain.generate(prompt, drafter="none", **OPTIONS) for prompt in prompts]
        for drafter in ("none", "model"):
            answers = await asyncio.gather(*(cluster.generate(p, drafter=drafter, **OPTIONS) for p in prompts))
            assert [(a.token_ids, a.text) for a in answers] == [(e.token_ids, e.text) for e in expected]
            assert [a.usage for a in answers] == [e.usage for e in expected]
        assert sum(answer.speculation.accepted_tokens for answer in answers) > 0
        assert not any(
            link._pending for link in (*cluster.coordinator.replicas.verifiers, *cluster.coordinator.replicas.drafts)
        )
    assert all(len(frames) > 40 for frames in said)


async def test_a_verifier_whose_verdicts_do_not_fit_their_sessions_is_given_up(
    tiny_model: TinyModel, caplog: pytest.LogCaptureFixture
) -> None:
    """Its stream is, and the sessions on it go on as after a crash; an honest frame is taken again."""
    target = tiny_model("llama")

    def given_up() -> int:
        return sum(f"{verifier}: verdicts of 2 sessions, 1 epochs" in record.message for record in caplog.records)

    def frame(replies: Iterable[Any], write: Any) -> Any:
        made = VERIFIER.replies_frame(replies, write)
        for wire in made.replies.replies:
            # Until it is heard: what follows a lie on its stream, lies or not, nobody listens to.
            if len(wire.verdicts.sessions) and given_up() < 2:
                wire.verdicts.epochs.pop()
        return made

    async with (
        running_verifier(target, replace(VERIFIER, replies_frame=frame)) as verifier,
        running_cluster(target, verifiers=0, more_verifiers=[verifier]) as cluster,
    ):
        alone = [await cluster.generate(prompt, drafter="none", **OPTIONS) for prompt in (PROMPT, ANOTHER)]
        together = await asyncio.gather(
            *(cluster.generate(prompt, drafter="none", **OPTIONS) for prompt in (PROMPT, ANOTHER))
        )
        assert [(a.token_ids, a.text) for a in together] == [(a.token_ids, a.text) for a in alone]
    assert given_up() == 2
