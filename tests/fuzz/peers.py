"""A coordinator that does almost everything right: plausible frames, from which hostile ones are made."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from outrider.v1 import draft_pb2, generation_pb2, replica_pb2, sampling_pb2, verifier_pb2
from tests.fuzz.inputs import Hostile

VOCABULARY = 512


def plausible_request(source: random.Random) -> generation_pb2.GenerateRequest:
    """A request that is answered, and soon."""
    request = generation_pb2.GenerateRequest(max_tokens=source.randint(1, 6), sampling=sampling(source))
    match source.randrange(3):
        case 0:
            request.text = "the quick brown fox " * source.randint(1, 5)
        case 1:
            request.chat.messages.add(role="user", content="name three rivers")
        case _:
            request.token_ids.ids.extend(tokens(source, source.randint(1, 60)))
    request.speculation.drafter = source.choice([0, 1, 2, 3, 4])
    request.speculation.rule = source.choice([0, 1, 2, 3])
    request.speculation.max_draft_tokens = source.randint(0, 8)
    if source.random() < 0.2:
        request.logprobs = source.randint(0, 20)
    if source.random() < 0.3:
        request.stop.extend(["zebra", "fox"][: source.randint(1, 2)])
    if source.random() < 0.4:  # few, so that turns of one conversation meet
        request.session_id = source.choice(["a", "b", "c"])
    return request


def sampling(source: random.Random) -> sampling_pb2.SamplingParams:
    """Parameters in range."""
    params = sampling_pb2.SamplingParams(temperature=source.choice([0.0, 0.3, 0.8, 1.5]))
    if source.random() < 0.5:
        params.top_k, params.top_p, params.min_p = source.choice([0, 1, 20]), source.choice([1.0, 0.5]), 0.05
    if source.random() < 0.3:
        params.repetition_penalty, params.frequency_penalty = 1.2, source.choice([-2.0, 0.5])
    if source.random() < 0.2:
        params.logit_bias.add(token_id=source.randrange(VOCABULARY), bias=source.uniform(-100, 100))
    return params


def tokens(source: random.Random, count: int) -> list[int]:
    """Known ids."""
    return [source.randrange(VOCABULARY) for _ in range(count)]


@dataclass
class _Session:
    epoch: int
    prompt: int
    history: list[int]


@dataclass
class Peer:
    """What a well-meant coordinator would say next on one stream; it remembers its sessions."""

    source: random.Random
    draft: bool
    sessions: dict[int, _Session] = field(default_factory=dict)
    epochs: int = 0

    def frame(self) -> Any:
        """A frame of one to six items."""
        items = [self.item() for _ in range(self.source.choice([1, 1, 1, 2, 3, 6]))]
        if self.draft:
            return draft_pb2.DraftRequest(items=draft_pb2.DraftItems(items=items))
        return verifier_pb2.VerifyRequest(items=verifier_pb2.VerifierItems(items=items))

    def item(self) -> Any:
        """One item that a replica accepts, if it accepted all before."""
        number = self.source.randint(1, 6)
        session = self.sessions.get(number)
        if session is None or self.source.random() < 0.1:
            return self._open(number)
        if self.source.random() < 0.1:
            del self.sessions[number]
            item = self._item(number, session)
            item.close.SetInParent()
            item.close.keep_ms = self.source.choice([0, 0, 1, 500, 60_000])
            return item
        if not self.draft and self.source.random() < 0.25:
            return self._follow_up(number, session)
        advance = self._advance(session)
        item = self._item(number, session)
        if self.source.random() < 0.1:
            item.advance.CopyFrom(advance)
        elif not self.draft:
            item.verify.advance.CopyFrom(advance)
            if self.source.random() < 0.3:
                self._draft_first(item.verify)
            else:
                item.verify.proposal.CopyFrom(self._proposal())
        elif self.source.random() < 0.6:
            item.propose.advance.CopyFrom(advance)
            item.propose.max_tokens = self.source.randint(0, 8)
            item.propose.siblings.extend(self._siblings(item.propose.max_tokens))
        else:
            item.draft_ahead.advance.CopyFrom(advance)
            item.draft_ahead.in_flight.CopyFrom(self._tree(self.source.randint(0, 5)))
            item.draft_ahead.max_tokens = self.source.randint(0, 6)
            item.draft_ahead.branches.extend(self.source.randint(0, 3) for _ in range(self.source.randint(0, 6)))
            item.draft_ahead.siblings.extend(self._siblings(item.draft_ahead.max_tokens))
        return item

    def _siblings(self, length: int) -> list[int]:
        """None, or a few beside each of the first tokens of a guess of `length`; sometimes more than may be."""
        if self.source.random() < 0.5:
            return []
        return [self.source.choice([0, 1, 1, 2, 3]) for _ in range(self.source.randint(0, length))]

    def _draft_first(self, event: Any) -> None:
        """Let the verifier draft by itself, as much as a proposal may have."""
        event.draft_first.max_tokens = self.source.randint(0, 8)
        event.draft_first.siblings.extend(self._siblings(event.draft_first.max_tokens))
        if self.source.random() < 0.3:
            event.draft_first.vote = self.source.randint(0, 8)

    def _follow_up(self, number: int, session: _Session) -> Any:
        """What the verifier is to begin by itself after the session's last round."""
        item = self._item(number, session)
        item.follow_up.plainly = self.source.random() < 0.7
        if self.source.random() < 0.3:
            self._draft_first(item.follow_up)
        item.follow_up.rounds = self.source.choice([0, 0, 1, 2, 5, 65])
        item.follow_up.extends = self.source.random() < 0.3
        for _ in range(self.source.choice([0, 0, 1, 3])):
            node, token = self.source.randint(-1, 3), self.source.randrange(VOCABULARY)
            item.follow_up.foreseen.add(node=node, next_token=token, proposal=self._proposal())
        return item

    def _open(self, number: int) -> Any:
        self.epochs += 1
        history = tokens(self.source, self.source.choice([1, 3, 15, 16, 17, 40]))
        prompt = self.source.randint(1, len(history))
        session = self.sessions[number] = _Session(self.epochs, prompt, history)
        item = self._item(number, session)
        item.open.CopyFrom(
            replica_pb2.Open(
                tokens=history,
                prompt_length=prompt,
                max_length=len(history) + 40,
                sampling=sampling(self.source),
                rule=self.source.choice([0, 1, 2, 3]),
                seed=self.source.getrandbits(64),
                stop_token_ids=[0],
                cache_salt=self.source.choice(["", "key:a"]),
            )
        )
        return item

    def _advance(self, session: _Session) -> replica_pb2.Advance:
        keep = self.source.randint(session.prompt, len(session.history))
        if self.source.random() < 0.7:
            keep = len(session.history)
        append = tokens(self.source, self.source.choice([0, 1, 1, 2, 4]))
        session.history = session.history[:keep] + append
        return replica_pb2.Advance(keep=keep, append=append)

    def _item(self, number: int, session: _Session) -> Any:
        kind = draft_pb2.DraftItem if self.draft else verifier_pb2.VerifierItem
        return kind(session=number, epoch=session.epoch, base_length=len(session.history))

    def _tree(self, size: int) -> replica_pb2.TokenTree:
        tree = replica_pb2.TokenTree(tokens=tokens(self.source, size))
        if self.source.random() < 0.5:
            tree.parents.extend(self.source.randint(-1, node - 1) for node in range(size))
        return tree

    def _proposal(self) -> replica_pb2.Proposal:
        tree = self._tree(self.source.choice([0, 0, 1, 3, 8, 15]))
        proposal = replica_pb2.Proposal(tree=tree, source=self.source.choice([0, 1, 2, 3]))
        if self.source.random() < 0.3:
            for token in tree.tokens:
                other = (token + 1) % VOCABULARY
                proposal.q.add(token_ids=[token, other], probabilities=[0.75, 0.25])
        return proposal


def deep_tree(hostile: Hostile, frame: Any) -> Any:
    """Put trees into a frame that are deep, wide, cyclic or point outside."""
    source = hostile.random
    size = source.choice([15, 16, 64, 1000, 20_000])
    for item in frame.items.items:
        for tree in _trees(item):
            tree.tokens[:] = [source.randrange(VOCABULARY)] * size
            shape = source.randrange(4)
            parents = {
                0: lambda node: node - 1,
                1: lambda node: -1,
                2: lambda node: (node + 1) % size,
                3: lambda node: source.choice([-2, size, 2**31 - 1, node]),
            }[shape]
            tree.parents[:] = [parents(node) for node in range(size)]
    return frame


def _trees(item: Any) -> list[replica_pb2.TokenTree]:
    match item.WhichOneof("event"):
        case "verify":
            return [item.verify.proposal.tree]
        case "follow_up":
            return [foreseen.proposal.tree for foreseen in item.follow_up.foreseen]
        case "draft_ahead":
            return [item.draft_ahead.in_flight]
        case _:
            return []
