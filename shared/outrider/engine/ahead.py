"""What a round is followed by whatever it comes to, so that it can begin before anybody knows what that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source
from outrider.acceptance.tree import TokenTree
from outrider.engine.batch import Feed
from outrider.engine.chains import ChainsUnderWay
from outrider.engine.core import Launched
from outrider.engine.drawn import BEFORE, NEXT, Drawn, Guessed
from outrider.engine.guess import DraftSession, Guess
from outrider.engine.own_draft import OwnDraft
from outrider.engine.sequence import NO_TREE
from outrider.engine.sessions import Session
from outrider.protocol.items import DraftFirst
from outrider.sampling.verify import VerifyRows

Target = Session[VerifyRows]

PAUSE = 32
"""Passes after guesses that could not be begun ahead (too many sessions, no memory) before that is tried again."""


class There(NamedTuple):
    """A round whose pass is being finished."""

    work: VerifyRows
    row: int  # its first one of the logits


class Going(NamedTuple):
    """A round that has begun while the token before it is still being drawn."""

    work: VerifyRows
    feed: Feed  # that token and what is guessed after it, where it will stand
    guess: Guess | None = None  # what is being guessed, if it is


class Awaited(NamedTuple):
    """A guess that is verified before the host knows it."""

    tree: TokenTree  # what stands for its tokens: see `Drawn.reference`
    work: VerifyRows  # and for the round


class Flight(NamedTuple):
    """What has been launched before the pass in front of it has ended."""

    chains: ChainsUnderWay
    launched: Launched[VerifyRows]  # the pass that verifies them


class Following(NamedTuple):
    """A round that can begin before it is known after what."""

    session: Target
    there: There  # the round before it, with a chain of guesses or none
    length: int  # tokens to guess

    @property
    def verified(self) -> int:
        """How many guessed tokens the round before it has."""
        return len(self.there.work.proposal)

    @property
    def furthest(self) -> int:
        """Where the token before its guess goes, if all that is being verified stands."""
        return len(self.session.history) + self.verified

    @property
    def guessed(self) -> Guessed:
        """The round before it, as `Engine.settle` takes it."""
        return Guessed(self.there.row, self.session.history[-1], self.there.work.proposal.tree.tokens)

    def to_draft(self, draft: DraftSession, outcomes: Drawn, row: int) -> Feed:
        """What the draft lacks before the guess. `row`: of the round before it in `outcomes`.

        After a plain round that stands where the cache ends; after a guess it is the two last tokens, of which the
        draft may have the first already.
        """
        token = outcomes.reference(NEXT, row)
        if not self.verified:
            known = len(draft.sequence.cached)
            return Feed(draft.sequence, (*draft.history[known:], token), at=known)
        tokens = outcomes.reference(BEFORE, row), token
        return Feed(draft.sequence, tokens, at=self.furthest - 1, back=row)

    def to_verify(self, outcomes: Drawn, row: int, guess: Guess | None, tokens: Sequence[int]) -> Going:
        """Its round; `tokens` stand for those of the guess."""
        session, furthest = self.session, self.furthest
        work = VerifyRows(session.sampling, furthest + 1, placeholder(len(tokens)), known=True)
        tree = TokenTree.chain(tokens) if tokens else NO_TREE
        return Going(work, Feed(session.sequence, (outcomes.reference(NEXT, row),), tree, at=furthest, back=row), guess)


def following(session: Target, there: There, own: OwnDraft, depth: int, most: int) -> Following | None:
    """The round that is ordered to follow, if it is known and can begin now.

    `depth`: what votes have come to. `most`: tokens that may be asked for; who asks for more is told so in its turn.
    """
    proposal = there.work.proposal
    if not session.orders or not proposal.tree.is_chain:
        return None
    order, verified = session.orders[0], len(proposal)
    room = session.sequence.max_length - (len(session.history) + verified + 1)
    if order.foreseen or room < 0:
        return None
    wanted = order.draft_first
    if wanted is None:
        return Following(session, there, 0) if order.plainly else None
    length = length_of(wanted, depth)
    if wanted.max_tokens > most:
        return None
    if length and (wanted.siblings or not room or (verified and proposal.source is not Source.MODEL)):
        return None
    if length and not own.ready(session, verified, min(length, room)):
        return None
    return Following(session, there, min(length, room))


def length_of(wanted: DraftFirst, depth: int) -> int:
    """How many tokens it comes to, if votes come to `depth`."""
    return wanted.max_tokens if wanted.vote is None else min(depth, wanted.max_tokens)


@lru_cache(maxsize=256)
def placeholder(size: int) -> Proposal:
    """As many tokens as there will be."""
    return Proposal(TokenTree.chain([0] * size), Source.MODEL) if size else NO_PROPOSAL


def fitting(wanted: DraftFirst, session: Target) -> DraftFirst:
    """As much as the session has room for."""
    room = session.sequence.max_length - len(session.history)
    if wanted.max_tokens + sum(wanted.siblings) <= room:
        return wanted
    return DraftFirst(min(wanted.max_tokens, room))


def cut(launched: Launched[VerifyRows], logits: Tensor) -> Launched[VerifyRows]:
    """The pass without the rows, of its `logits`, that are beyond the ends of its rounds' guesses."""
    parts, works = torch.split(logits, [feed.logit_rows for feed in launched.feeds]), launched.works
    rows = [part[: len(work)] for part, work in zip(parts, works, strict=True)]
    feeds = [replace(feed, tree=work.proposal.tree) for feed, work in zip(launched.feeds, works, strict=True)]
    return launched._replace(feeds=feeds, logits=torch.cat(rows))
