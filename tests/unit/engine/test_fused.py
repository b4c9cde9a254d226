"""The fast path computes what transformers' own modules do. Without a GPU its kernels run in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from outrider.acceptance.params import Rule
from outrider.acceptance.tree import TokenTree
from outrider.engine.batch import Feed
from outrider.engine.draft import DraftCore
from outrider.engine.drawn import Drawn
from outrider.engine.engine import Engine
from outrider.engine.fused import attend
from outrider.engine.fused.build import build_runner
from outrider.engine.fused.runner import FusedRunner
from outrider.engine.model import load_model
from outrider.engine.options import EngineOptions, ModelOptions
from outrider.engine.probe import probe_calls
from outrider.engine.runner import Stem
from outrider.engine.sequence import NO_TREE, KvSequence
from outrider.protocol.items import DraftAhead, Key, Propose
from outrider.sampling.draft import DraftRow, draft_rows
from outrider.sampling.plain import MOST_BESIDE
from tests.conftest import TinyModel
from tests.interpreter import INTERPRETED
from tests.unit.engine.engines import assert_close, random_tokens, reference_logits
from tests.unit.engine.test_foresight import PROMPT, Draft, outcome
from tests.unit.sampling.sessions import open_state

DEVICE = "cpu" if INTERPRETED else "cuda"
TREE = TokenTree((5, 6, 7, 8, 5, 9, 10), (-1, -1, 0, 1, 1, 2, 3))
LENGTH = 12 if INTERPRETED else 230
"""Tokens of a text. The interpreter takes about ten milliseconds for each row of a head."""


@pytest.fixture(autouse=True)
def _few_splits_are_merged_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """These texts have one split, and the interpreter would take as long for each of the seven that are not there."""
    if INTERPRETED:
        monkeypatch.setattr(attend, "TOGETHER", 2)


def fused_engine(directory: Path, dtype: str = "float32", *, layers: int | None = None, **options: Any) -> Engine:
    """An engine that runs on the fast path, on whatever device there is."""
    source = ModelOptions(str(directory), dtype=dtype, device=DEVICE, layers=layers)
    settings = EngineOptions(**{"kv_tokens": 4096, "block_size": 8, "max_batch_tokens": 1024} | options)
    engine = Engine(load_model(source), settings)
    if INTERPRETED:
        loaded = load_model(source)
        engine._run = build_runner(
            loaded, probe_calls(loaded.module, loaded.device), engine._store, settings,
            context_length=engine.info.context_length, spare_block=engine._pool.num_blocks,
        )  # fmt: skip
    assert isinstance(engine._run, FusedRunner)
    return engine


def both_engines(directory: Path) -> tuple[Engine, Engine]:
    """The fast path, and the general one on a CPU, of the model's first layer."""
    general = load_model(ModelOptions(str(directory), dtype="float32", device="cpu", layers=1))
    return fused_engine(directory, layers=1), Engine(general, EngineOptions(kv_tokens=1024, block_size=8))


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_prefill_and_a_tree(tiny_model: TinyModel, name: str) -> None:
    directory = tiny_model(name)
    engine = fused_engine(directory)
    tokens = random_tokens(LENGTH)
    sequence = engine.open(tokens, LENGTH + 20)
    engine.forward([Feed(sequence, tokens[: LENGTH - 5], want_logits=False)])
    logits = engine.forward([Feed(sequence, tokens[LENGTH - 5 :], TREE)])
    expected = [reference_logits(directory, tokens, DEVICE)[-1]]
    for node in range(len(TREE)):
        path = [TREE.tokens[each] for each in TREE.path(node)]
        expected.append(reference_logits(directory, [*tokens, *path], DEVICE)[-1])
    assert_close(logits, torch.stack(expected))


@pytest.mark.skipif(INTERPRETED, reason="the bits of a GPU's arithmetic are a GPU's")
def test_bits_do_not_depend_on_how_a_token_is_computed(tiny_model: TinyModel) -> None:
    engine = fused_engine(tiny_model("llama"), "bfloat16")
    tokens = random_tokens(250)
    start = 150
    first = engine.open(tokens, 256, salt="alone")
    engine.forward([Feed(first, tokens[:start], want_logits=False)])
    alone = torch.cat([engine.forward([Feed(first, [token])]) for token in tokens[start:]])
    for width in (2, 7, 50, 80):
        sequence = engine.open(tokens, 256, salt=str(width))
        engine.forward([Feed(sequence, tokens[:start], want_logits=False)])
        rows = []
        for place in range(start, len(tokens), width):
            part = tokens[place : place + width]
            rows.append(engine.forward([Feed(sequence, part[:1], TokenTree.chain(part[1:]))]))
            sequence.cached.extend(part[1:])
            sequence.tree = NO_TREE
        assert torch.equal(torch.cat(rows), alone)


@pytest.mark.parametrize("temperature", [0.8] if INTERPRETED else [0.0, 0.8])
def test_chains_are_what_the_steps_would_have_drafted(tiny_model: TinyModel, temperature: float) -> None:
    engine = fused_engine(tiny_model("llama"), layers=1 if INTERPRETED else None)
    texts = [random_tokens(length, seed=length) for length in ((3, 6) if INTERPRETED else (20, 63, 200))]
    steps = 2 if INTERPRETED else 6
    states = [open_state(512, prompt=text, seed=5, temperature=temperature) for text in texts]
    expected = []
    for text, state in zip(texts, states, strict=True):
        sequence, tokens = engine.open(text, 256, salt="steps"), list(text)
        for _ in range(steps):
            logits = engine.forward([Feed(sequence, tokens[len(sequence.cached) :])])
            (drawn,) = draft_rows(logits, [DraftRow(state, len(text), tuple(tokens[len(text) :]))])
            tokens.append(drawn.token)
        expected.append(tokens[len(text) :])
    sequences = [engine.open(text, 256, salt="chains") for text in texts]
    logits = engine.forward([Feed(sequence, text) for sequence, text in zip(sequences, texts, strict=True)])
    drawing = engine.chains([_stem(sequence) for sequence in sequences], states, logits, steps, MOST_BESIDE)
    assert drawing is not None
    assert [list(tokens) for tokens in zip(*drawing.collected().tokens, strict=True)] == expected
    # Four rows for three sessions: the fourth stands for nothing, and must not run what an earlier chain left there.
    third = random_tokens(4, seed=1)
    more = engine.open(third, 256, salt="third")
    logits = torch.cat([logits[:2], engine.forward([Feed(more, third)])])
    stems = [_stem(sequence) for sequence in (*sequences[:2], more)]
    again = engine.chains(stems, [*states[:2], states[0]], logits, steps, MOST_BESIDE)
    assert again is not None
    assert [list(tokens)[:steps] for tokens in zip(*again.collected().tokens, strict=True)][:2] == expected[:2]


def _stem(sequence: KvSequence) -> Stem:
    return Stem(sequence, len(sequence.cached))


def test_a_pass_runs_tokens_by_where_they_are_drawn(tiny_model: TinyModel) -> None:
    """Also where nothing could be drawn, which is found out later."""
    engine = fused_engine(tiny_model("llama"), layers=1)
    memory = torch.tensor([7, 9, 3, 11, 0x7FFFFFFF, -5], dtype=torch.int32, device=DEVICE)
    drawn = Drawn(memory, 2)
    tokens = random_tokens(LENGTH)
    found = []
    for by_place in (False, True):
        first, second = (engine.open(tokens, LENGTH + 20, salt=f"{by_place} {number}") for number in (1, 2))
        last = engine.info.vocabulary_size - 1
        trees = [TokenTree.chain((7, 3, last)), TokenTree.chain((9, 11, 0))]
        if by_place:
            trees = [TokenTree.chain([drawn.reference(step, row) for step in range(3)]) for row in range(2)]
        feeds = [Feed(first, tokens, trees[0]), Feed(second, tokens[:5], trees[1])]
        found.append(engine.forward(feeds, drawn if by_place else None))
    assert torch.equal(*found)


def test_a_guess_with_siblings_is_drawn_without_the_host_between(tiny_model: TinyModel) -> None:
    siblings, proposals, loops = (2, 0, 1), [], []
    for engine in both_engines(tiny_model("llama")):
        chains = mock.Mock(wraps=engine.chains)
        engine.chains = chains  # type: ignore[method-assign]
        draft = Draft(DraftCore(engine, max_proposal=15, lease_s=60))
        draft.open(1, PROMPT, Rule.MATCH, {"temperature": 0.8})
        (drafted,) = draft.run(Propose(Key(1, 1, len(PROMPT)), len(PROMPT), (), 3, siblings))
        proposals.append(drafted.proposal.tree)
        loops.append(chains.call_count)
    ours, theirs = proposals
    assert loops == [1, 3]  # the general path declines, so it is asked before every token
    assert ours.tokens[:3] == theirs.tokens[:3]
    assert ours.parents == theirs.parents
    assert len(set(ours.tokens[3:]) & set(theirs.tokens[3:])) >= 2  # one may be passed over: see GROUPS


def test_what_is_drafted_ahead_is_drawn_without_the_host_between(tiny_model: TinyModel) -> None:
    """And the sequence holds what the general path's does: the next guess begins from it."""
    in_flight, branches = TokenTree((40, 41, 42), (-1, 0, -1)), (1, 0, 1, 0)
    answers, grown = [], []
    for engine in both_engines(tiny_model("llama")):
        grow = mock.Mock(wraps=engine.grow)
        engine.grow = grow  # type: ignore[method-assign]
        draft = Draft(DraftCore(engine, max_proposal=15, lease_s=60))
        draft.open(1, PROMPT, Rule.MATCH, {"temperature": 0.8})
        (ahead,) = draft.run(DraftAhead(Key(1, 1, len(PROMPT)), len(PROMPT), (), in_flight, 2, branches, (1,)))
        outcome = ahead.foreseen[-1]
        assert (outcome.node, len(ahead.foreseen)) == (1, 2)
        history = (*PROMPT, 40, 41, outcome.next_token, *outcome.proposal.tree.tokens[:2])
        after = draft.propose(1, history, len(PROMPT), 1)
        answers.append(
            ([(each.node, each.next_token, each.proposal.tree.tokens[:2]) for each in ahead.foreseen], after.tree)
        )
        assert all(each.proposal.tree.parents == (-1, 0, -1) for each in ahead.foreseen)
        (session,) = draft.core.sessions
        answers[-1] += (session.sequence.cached,)
        grown.append(grow.call_count)
    assert answers[0] == answers[1]
    assert grown[0] == 1 < grown[1]  # the general path declines each time


def test_a_guess_and_what_is_drafted_ahead_share_their_passes(tiny_model: TinyModel) -> None:
    """Their first tokens come from the kernels too, with one wait for both."""
    ours, theirs = both_engines(tiny_model("llama"))
    base, in_flight = len(PROMPT), TokenTree.chain((40,))
    items = [
        DraftAhead(Key(1, 1, base), base, (), in_flight, 2, (1, 1)),
        Propose(Key(2, 1, base), base, (), 3, (0, 1)),
    ]
    answers = []
    for engine in (ours, theirs):
        draft = Draft(DraftCore(engine, max_proposal=15, lease_s=60))
        calls = {name: mock.Mock(wraps=getattr(engine, name)) for name in ("rank", "grow", "chains", "forward")}
        draft.open(1, PROMPT, Rule.MATCH, {"temperature": 0.8})
        draft.open(2, PROMPT, Rule.MATCH, {"temperature": 0.8})
        for name, call in calls.items():
            setattr(engine, name, call)
        if engine is theirs:
            answers.append({reply.key.session: reply for reply in draft.run(*items)})
            continue
        with mock.patch("outrider.engine.draft.rank_rows", side_effect=AssertionError):
            answers.append({reply.key.session: reply for reply in draft.run(*items)})
        assert {name: call.call_count for name, call in calls.items()} == {
            "rank": 1 + 1,  # and those of the pass after the reply
            "grow": 1,
            "chains": 0,
            "forward": 1 + 1,
        }
    assert answers[0][1] == answers[1][1]
    guesses = [found[2].proposal.tree for found in answers]
    assert guesses[0].parents == guesses[1].parents
    assert guesses[0].tokens[:3] == guesses[1].tokens[:3]  # the sibling may be passed over: see GROUPS


def test_what_was_drafted_ahead_grows_on_without_a_word_of_the_host(tiny_model: TinyModel) -> None:
    """Where it is in flight next: no pass comes before the first tokens of the branches, and then none at all."""
    history, known, in_flight = PROMPT, len(PROMPT), TokenTree.chain((40,))
    ours, theirs = (Draft(DraftCore(each, max_proposal=15, lease_s=60)) for each in both_engines(tiny_model("llama")))
    for draft in (ours, theirs):
        draft.open(1, PROMPT, Rule.MATCH, {"temperature": 0.8})
    for turn in range(3):
        branches = (1,) * (1 + len(in_flight))
        item = DraftAhead(Key(1, 1, len(history)), known, history[known:], in_flight, 2, branches)
        with mock.patch.object(ours.core.engine, "forward", wraps=ours.core.engine.forward) as forward:
            reply = ours.core.handle(ours.peer, item)
            assert (reply is None) == (turn < 2)
            if reply is None:
                ((_, reply),) = ours.core.step()
            assert forward.call_count == (turn == 0)
            assert turn == 2 or ours.run() == []
        (expected,) = theirs.run(item)
        proposals = {(each.node, each.next_token): each.proposal for each in expected.foreseen}
        # An outcome may be passed over, see GROUPS; but not the likeliest.
        same = [each for each in reply.foreseen if (each.node, each.next_token) in proposals]
        assert [each.node for each in reply.foreseen] == [each.node for each in expected.foreseen]
        assert max(each.node for each in same) == len(in_flight) - 1
        assert all(each.proposal == proposals[each.node, each.next_token] for each in same)
        chosen = same[-1]
        known, history = len(history), outcome(history, in_flight, chosen.node, chosen.next_token)
        in_flight = chosen.proposal.tree
