"""On a CPU in float32, a proposed token gets the logits it would have got alone, to the last bit.

Seen to hold, with PyTorch 2.13 and MKL 2024.2 and oneDNN 3.12 on AVX2 (AMD EPYC, Zen 3), for every architecture of
`tests.tiny_models` but GPT-OSS, whose experts run in other products depending on how many tokens come to them: for
chains of up to 64 rows, behind any context, beside any other session. A node of a tree whose path is interrupted by
a sibling differs in the last bits, because the sibling's masked score stands between those of its path.
"""

from __future__ import annotations

import pytest
import torch

from outrider.acceptance.tree import TokenTree
from outrider.engine.engine import Engine, Feed
from outrider.engine.sequence import KvSequence
from tests.conftest import TinyModel
from tests.tiny_models import ARCHITECTURES
from tests.unit.engine.engines import make_engine, random_tokens

pytestmark = [
    pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "gpt_oss"]),
    pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX2", reason="seen to hold with AVX2 only"),
]

LENGTH = 17


def prefilled(engine: Engine, tokens: list[int], count: int) -> KvSequence:
    sequence = engine.open(tokens, len(tokens))
    engine.forward([Feed(sequence, tokens[:count], want_logits=False)])
    return sequence


@pytest.mark.parametrize("base", [1, 10, 60, 127, 180, 191, 230])
def test_a_chain_at_once_equals_token_by_token(tiny_model: TinyModel, name: str, base: int) -> None:
    engine = make_engine(tiny_model(name), prefix_cache=False)
    tokens = random_tokens(base + LENGTH, seed=base)
    sequence = prefilled(engine, tokens, base)
    alone = torch.cat([engine.forward([Feed(sequence, [token])]) for token in tokens[base:]])
    engine.close(sequence)
    for rows in (2, 3, 4, 5, 8, 16, 17):
        sequence = prefilled(engine, tokens, base)
        chain = TokenTree.chain(tokens[base + 1 : base + rows])
        assert torch.equal(engine.forward([Feed(sequence, tokens[base : base + 1], chain)]), alone[:rows])
        engine.close(sequence)


def test_a_session_beside_others_equals_it_alone(tiny_model: TinyModel, name: str) -> None:
    engine = make_engine(tiny_model(name), prefix_cache=False)
    texts = [random_tokens(length + 4, seed=length) for length in (5, 40, 100, 200)]
    chains = [TokenTree.chain(text[-3:]) for text in texts]
    alone = []
    for text, chain in zip(texts, chains, strict=True):
        sequence = prefilled(engine, text, len(text) - 4)
        alone.append(engine.forward([Feed(sequence, text[-4:-3], chain)]))
        engine.close(sequence)
    sequences = [prefilled(engine, text, len(text) - 4) for text in texts]
    feeds = [Feed(s, text[-4:-3], chain) for s, text, chain in zip(sequences, texts, chains, strict=True)]
    assert torch.equal(engine.forward(feeds), torch.cat(alone))
