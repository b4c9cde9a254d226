"""Texts, and how near a model comes to another at each position of them, given the same tokens before it."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from outrider.engine.engine import Engine, Feed  # before torch: see outrider.engine

import torch  # isort: skip
from torch import Tensor

from outrider.acceptance.tree import TokenTree
from outrider.engine.sequence import NO_TREE

CHUNK = 30  # positions of a text in a pass: what the fused path takes in one tree
GUESS = 5

PROMPTS = (
    "Name three rivers of Europe and the seas they flow into.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "A train leaves at 9:40 and arrives at 13:05. How long does the journey take? Explain each step.",
    "Summarise in two sentences why the sky is blue.",
    "Translate into French: The library opens at ten o'clock on Sundays.",
    "What is the difference between a virus and a bacterium?",
    "Write a short letter to a neighbour about a parcel that came to the wrong house.",
    "List the steps to plant a young apple tree.",
)

PROSE = """The old harbour had been empty since the autumn, and the boats that used to come in at dawn now lay in a row
behind the sheds, covered with grey cloth. On the quay a man was mending a net. He worked without hurry, drew each knot
tight with his teeth, and looked up only when the ferry sounded its horn beyond the lighthouse. There had been a time
when forty families lived from the herring; today there were three, and one of them rented rooms to visitors. Still,
when the wind turned to the north and the water took on the colour of slate, people came to the windows as they had
always done and counted the masts. Nobody could have said what they were waiting for. The price of diesel had doubled
within two years, the fish had moved to colder water, and the young went to the city as soon as they had a licence."""


@dataclasses.dataclass(frozen=True)
class Text:
    """Tokens of which all from `start` on are guessed from those before them."""

    name: str
    tokens: list[int]
    start: int


def continued(engine: Engine, name: str, prompts: Sequence[list[int]], count: int) -> list[Text]:
    """The prompts with the `count` tokens that the engine goes on with, greedily; all side by side."""
    sequences = [engine.open(prompt, len(prompt) + count, salt="made") for prompt in prompts]
    new, tokens = [prompt[len(s.cached) :] for prompt, s in zip(prompts, sequences, strict=True)], list(prompts)
    for _ in range(count):
        logits = engine.forward([Feed(sequence, part) for sequence, part in zip(sequences, new, strict=True)])
        new = [[token] for token in logits[:, : engine.info.vocabulary_size].argmax(-1).tolist()]
        tokens = [[*before, *token] for before, token in zip(tokens, new, strict=True)]
    for sequence in sequences:
        engine.close(sequence)
    return [Text(name, made, len(prompt)) for made, prompt in zip(tokens, prompts, strict=True)]


def guesses(engine: Engine, text: Text) -> Tensor:
    """float32 [positions, W] on the host: the logits from which each token from `start` on would be chosen."""
    sequence = engine.open(text.tokens, len(text.tokens) + CHUNK, salt=str(id(text)))
    if text.start > 1:
        engine.forward([Feed(sequence, text.tokens[: text.start - 1], want_logits=False)])
    rows = []
    for place in range(text.start - 1, len(text.tokens) - 1, CHUNK):
        part = text.tokens[place : min(place + CHUNK, len(text.tokens) - 1)]
        tree = TokenTree.chain(part[1:]) if len(part) > 1 else NO_TREE
        rows.append(engine.forward([Feed(sequence, part[:1], tree)]).float().cpu())
        sequence.cached.extend(part[1:])
        sequence.tree = NO_TREE
    engine.close(sequence)
    return torch.cat(rows)[:, : engine.info.vocabulary_size]


def compared(expected: Sequence[Tensor], found: Sequence[Tensor]) -> dict[str, float]:
    """How near the logits of texts come to those of the full weights, position by position."""
    runs = []
    for full, other in zip(expected, found, strict=True):
        same = (full.argmax(-1) == other.argmax(-1)).tolist()
        for place in range(len(same) - GUESS + 1):
            window = same[place : place + GUESS]
            runs.append(window.index(False) if False in window else GUESS)
    full, other = torch.cat(list(expected)), torch.cat(list(found))
    return {
        "positions": len(full),
        "same": (full.argmax(-1) == other.argmax(-1)).float().mean().item(),
        "overlap": torch.minimum(full.softmax(-1), other.softmax(-1)).sum(-1).mean().item(),
        "off_by": ((other - full).square().mean().sqrt() / full.std()).item(),
        "run_of_5": statistics.mean(runs),
    }
