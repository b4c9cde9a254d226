"""Attention over the paged cache equals transformers' own attention without a cache, whatever the tokens arrive as."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider.acceptance.tree import TokenTree
from outrider.engine import attention
from outrider.engine.engine import Engine, Feed
from outrider.engine.sequence import NO_TREE
from tests.conftest import TinyModel
from tests.reference import greedy
from tests.unit.engine.engines import (
    assert_close,
    make_engine,
    on_each_architecture,
    on_each_device,
    random_tokens,
    reference_logits,
)

pytestmark = [on_each_device, on_each_architecture]

TREE = TokenTree((5, 6, 7, 8, 5, 9, 10), (-1, -1, 0, 1, 1, 2, 3))
"""Two branches of the root, the second of which branches again; node 4 has node 0's token."""


def forward_all(engine: Engine, tokens: list[int], chunk: int) -> Tensor:
    """The last row's logits after feeding `tokens` in chunks to a new session."""
    sequence = engine.open(tokens, len(tokens))
    for start in range(len(sequence.cached), len(tokens), chunk):
        logits = engine.forward([Feed(sequence, tokens[start : start + chunk])])
    engine.close(sequence)
    return logits[-1]


def test_a_chain_token_by_token(tiny_model: TinyModel, name: str, device: str) -> None:
    directory = tiny_model(name)
    engine = make_engine(directory, device)
    tokens = random_tokens(40)
    sequence = engine.open(tokens, len(tokens))
    rows = [engine.forward([Feed(sequence, [token])]) for token in tokens]
    assert sequence.cached == tokens
    assert_close(torch.cat(rows), reference_logits(directory, tokens, device))


@pytest.mark.parametrize("chunk", [1, 7, 70, 100])
def test_chunked_prefill(tiny_model: TinyModel, name: str, device: str, chunk: int) -> None:
    directory = tiny_model(name)
    engine = make_engine(directory, device, prefix_cache=False)
    tokens = random_tokens(200)
    assert_close(forward_all(engine, tokens, chunk), reference_logits(directory, tokens, device)[-1])


def test_sessions_of_mixed_lengths_in_one_pass(tiny_model: TinyModel, name: str, device: str) -> None:
    directory = tiny_model(name)
    engine = make_engine(directory, device)
    texts = [random_tokens(length, seed=length) for length in (1, 3, 16, 17, 40, 90)]
    sequences = [engine.open(text, 128) for text in texts]
    engine.forward([Feed(sequences[3], texts[3][:9], want_logits=False)])
    feeds = [
        Feed(sequence, text[len(sequence.cached) :], want_logits=index != 4)
        for index, (sequence, text) in enumerate(zip(sequences, texts, strict=True))
    ]
    logits = engine.forward(feeds)
    expected = [reference_logits(directory, text, device)[-1] for index, text in enumerate(texts) if index != 4]
    assert_close(logits, torch.stack(expected))


@pytest.mark.parametrize(("stem_length", "grouped"), [(5, set()), (195, {"cpu", "cuda"})])
def test_a_tree_that_grows_over_several_passes(
    tiny_model: TinyModel,
    name: str,
    device: str,
    stem_length: int,
    grouped: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "GROUPED_DEVICES", grouped)
    directory = tiny_model(name)
    engine = make_engine(directory, device)
    stem, other = random_tokens(stem_length, seed=1), random_tokens(9, seed=2)
    sequence, neighbour = engine.open(stem, stem_length + len(TREE)), engine.open(other, 64)
    rows = [engine.forward([Feed(sequence, stem)])]
    for grown, size in ((0, 2), (2, 3), (3, 6), (6, len(TREE))):
        feeds = [Feed(sequence, (), TREE.truncated(size), grown=grown)]
        if grown == 2:  # one row beside another session's one row
            feeds.append(Feed(neighbour, other[:1]))
        rows.append(engine.forward(feeds)[: size - grown])
    assert sequence.tree == TREE
    for node, row in enumerate(torch.cat(rows)[1:]):
        path = [TREE.tokens[index] for index in TREE.path(node)]
        assert_close(row, reference_logits(directory, [*stem, *path], device)[-1])
    history = [*stem, *(TREE.tokens[node] for node in TREE.path(5)), 11]
    sequence.align(history, stem_length)
    assert sequence.cached == history[:-1]
    logits = engine.forward([Feed(sequence, [11])])
    assert_close(logits[-1], reference_logits(directory, history, device)[-1])


@pytest.mark.parametrize("stem_length", [1, 8, 30, 195])
def test_every_tree_node_equals_its_path_alone(tiny_model: TinyModel, name: str, device: str, stem_length: int) -> None:
    directory = tiny_model(name)
    engine = make_engine(directory, device)
    stem = random_tokens(stem_length, seed=1)
    sequence = engine.open(stem, stem_length + len(TREE))
    logits = engine.forward([Feed(sequence, stem, TREE)])
    assert len(logits) == 1 + len(TREE)
    for node in range(-1, len(TREE)):
        path = [*stem, *(TREE.tokens[above] for above in TREE.path(node))]
        assert_close(logits[node + 1], reference_logits(directory, path, device)[-1])


def test_trees_of_several_sessions_in_one_pass(tiny_model: TinyModel, name: str, device: str) -> None:
    directory = tiny_model(name)
    engine = make_engine(directory, device)
    stems = [random_tokens(length, seed=length) for length in (20, 33)]
    sequences = [engine.open(stem, 64) for stem in stems]
    trees = [TokenTree.chain([4, 5, 6]), TREE]
    logits = engine.forward([Feed(*feed) for feed in zip(sequences, stems, trees, strict=True)])
    start = 0
    for stem, tree in zip(stems, trees, strict=True):
        for node in range(-1, len(tree)):
            path = [*stem, *(tree.tokens[above] for above in tree.path(node))]
            assert_close(logits[start + node + 1], reference_logits(directory, path, device)[-1])
        start += 1 + len(tree)


@pytest.mark.parametrize("stems", [(20, 33, 5, 8), (1, 64, 9, 17, 30)])
@pytest.mark.parametrize("tree", [NO_TREE, TokenTree.chain([4, 5, 6]), TREE], ids=["decode", "chain", "tree"])
def test_sessions_that_share_a_call(
    tiny_model: TinyModel,
    name: str,
    device: str,
    stems: tuple[int, ...],
    tree: TokenTree,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "GROUPED_DEVICES", {"cpu", "cuda"})
    directory = tiny_model(name)
    engine = make_engine(directory, device)
    texts = [random_tokens(length, seed=length) for length in stems]
    sequences = [engine.open(text, 100) for text in texts]
    before = [
        feed
        for feed in (Feed(s, t[:-1], want_logits=False) for s, t in zip(sequences, texts, strict=True))
        if feed.tokens
    ]
    engine.forward(before)
    odd = engine.open(random_tokens(50, seed=50), 64)  # a prompt beside them
    feeds = [Feed(s, t[-1:], tree) for s, t in zip(sequences, texts, strict=True)]
    logits = engine.forward([*feeds[:2], Feed(odd, random_tokens(50, seed=50)), *feeds[2:]])
    rows = [1 + len(tree)] * 2 + [1] + [1 + len(tree)] * (len(stems) - 2)
    for stem, part in zip([*texts[:2], random_tokens(50, seed=50), *texts[2:]], logits.split(rows), strict=True):
        for node, row in enumerate(part, start=-1):
            path = [*stem, *(tree.tokens[above] for above in tree.path(node))]
            assert_close(row, reference_logits(directory, path, device)[-1])


@pytest.mark.parametrize("path", [(), (0,), (1,), (1, 3), (1, 4), (0, 2, 5), (1, 3, 6)])
def test_accepted_nodes_are_compacted(tiny_model: TinyModel, name: str, device: str, path: tuple[int, ...]) -> None:
    directory = tiny_model(name)
    engine = make_engine(directory, device)
    stem = random_tokens(13, seed=2)
    sequence = engine.open(stem, 64)
    engine.forward([Feed(sequence, stem, TREE)])
    history = [*stem, *(TREE.tokens[node] for node in path), 99]
    sequence.align(history, len(stem))
    assert sequence.cached == history[:-1]
    rest = [99, *random_tokens(20, seed=3)]
    logits = engine.forward([Feed(sequence, rest[:1], TokenTree.chain(rest[1:]))])
    assert_close(logits, reference_logits(directory, [*history[:-1], *rest], device)[len(history) - 1 :])


@pytest.mark.parametrize("kept", [0, 1, 15, 16, 17, 39])
def test_rolled_back_and_taken_elsewhere(tiny_model: TinyModel, name: str, device: str, kept: int) -> None:
    directory = tiny_model(name)
    engine = make_engine(directory, device)
    first, second = random_tokens(40, seed=4), random_tokens(40, seed=5)
    sequence = engine.open(first, 64)
    engine.forward([Feed(sequence, first, TREE)])
    history = [*first[:kept], *second[kept:]]
    sequence.align(history, 0)
    assert sequence.cached == history[:kept]
    logits = engine.forward([Feed(sequence, history[kept:])])
    assert_close(logits[-1], reference_logits(directory, history, device)[-1])


def test_a_prefix_cache_hit_equals_a_cold_run(tiny_model: TinyModel, name: str, device: str) -> None:
    directory = tiny_model(name)
    engine = make_engine(directory, device)
    shared = random_tokens(50, seed=6)
    warm = engine.open(shared, 64)
    engine.forward([Feed(warm, shared)])
    text = [*shared, *random_tokens(10, seed=7)]
    hit = engine.open(text, 80)
    assert hit.cached == shared[:48]  # the full blocks of 8, while their owner still runs
    logits = engine.forward([Feed(hit, text[48:])])
    assert_close(logits[-1], reference_logits(directory, text, device)[-1])
    engine.close(warm)
    engine.close(hit)
    again = engine.open(text, 80)
    assert again.cached == text[:56]
    assert_close(engine.forward([Feed(again, text[56:])])[-1], reference_logits(directory, text, device)[-1])


def test_the_way_a_gpu_attends(tiny_model: TinyModel, name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No rounding up, no rows on their own: on a CPU, too, only float32 does those."""
    monkeypatch.setattr("outrider.engine.attention.CONTEXT_STEP", 1)
    monkeypatch.setattr("outrider.engine.attention.MAX_ROWS", 0)
    directory = tiny_model(name)
    engine = make_engine(directory, device)
    texts = [random_tokens(length, seed=length) for length in (1, 20, 90)]
    sequences = [engine.open(text, 128) for text in texts]
    logits = engine.forward([Feed(*feed) for feed in zip(sequences, texts, strict=True)])
    assert_close(logits, torch.stack([reference_logits(directory, text, device)[-1] for text in texts]))
    logits = engine.forward([Feed(sequences[0], [3]), Feed(sequences[2], [4, 5], TREE)])
    assert_close(logits[0], reference_logits(directory, [*texts[0], 3], device)[-1])
    for node in range(-1, len(TREE)):
        path = [*texts[2], 4, 5, *(TREE.tokens[above] for above in TREE.path(node))]
        assert_close(logits[2 + node], reference_logits(directory, path, device)[-1])


def test_greedy_text_equals_generate(tiny_model: TinyModel, name: str, device: str) -> None:
    directory = tiny_model(name)
    engine = make_engine(directory, device)
    prompt = random_tokens(12, seed=8)
    sequence = engine.open(prompt, 96)
    fed, output = prompt, list[int]()
    while len(output) < 60:
        logits = engine.forward([Feed(sequence, fed)])
        fed = [int(logits[-1, : engine.info.vocabulary_size].argmax())]
        output += fed
        if fed[0] in engine.info.eos_token_ids:
            break
    assert len(set(output)) > 3  # not one token over and over, which any cache gets right
    assert output == greedy(directory, prompt, 60)
