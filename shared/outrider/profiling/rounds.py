"""The rounds that a drafter would have had over a recorded answer, played without running a model.

Under `match` a guessed token stands exactly where it is the answer's token, and up to its first wrong guess in a round
the draft has read the answer's own tokens. So the rank that the draft gives to each token of the answer tells every
round of every length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from outrider.acceptance.ngram import NgramIndex


@dataclass(slots=True)
class Rounds:
    """Counts of played rounds; the first token of an answer, which the prompt's own pass gives, is in none of them."""

    shapes: Counter[tuple[int, int]] = field(default_factory=Counter)  # (depth, nodes) of the proposal -> rounds
    accepted: int = 0
    tried: Counter[int] = field(default_factory=Counter)  # by position in the guess, from 1: those before it stood
    stood: Counter[int] = field(default_factory=Counter)

    def add(self, depth: int, nodes: int, accepted: int) -> None:
        """One round that proposed `nodes` tokens, the longest path of them `depth` long."""
        self.shapes[depth, nodes] += 1
        self.accepted += accepted
        for position in range(1, min(accepted + 1, depth) + 1):
            self.tried[position] += 1
            self.stood[position] += position <= accepted

    def merge(self, other: Rounds) -> None:
        """Take in the rounds of other answers."""
        self.shapes += other.shapes
        self.accepted += other.accepted
        self.tried += other.tried
        self.stood += other.stood

    @property
    def rounds(self) -> int:
        """How many there were, those without a proposal included."""
        return self.shapes.total()

    @property
    def tokens(self) -> int:
        """Tokens committed."""
        return self.rounds + self.accepted

    @property
    def proposed(self) -> int:
        """Proposed tokens."""
        return sum(nodes * count for (_, nodes), count in self.shapes.items())

    @property
    def rate(self) -> float | None:
        """accepted / proposed."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def rate_of_tried(self) -> float | None:
        """Accepted / tried tokens: what the coordinator's fallback goes by (`AcceptanceWindow`)."""
        tried = self.tried.total()
        return self.stood.total() / tried if tried else None

    @property
    def length(self) -> float | None:
        """1 + accepted tokens, per round."""
        return self.tokens / self.rounds if self.rounds else None

    @property
    def chances(self) -> tuple[float, ...]:
        """a(1), a(2), ...: how often the token at each position stood, of those whose predecessors did."""
        return tuple(self.stood[position] / self.tried[position] for position in sorted(self.tried))


def play_guesses(ranks: Sequence[int], length: int, siblings: Sequence[int] = ()) -> Rounds:
    """Rounds with chains of `length` tokens and siblings beside them, `siblings[i]` beside the i-th.

    Rank 0 says that the draft would have said the answer's token; k, that the token is its k-th sibling. Siblings cost
    the draft nothing, because the pass that gives a token ranks them too; the round ends with one that stands.
    """
    found, place = Rounds(), 0
    while place < len(ranks):
        depth = min(length, len(ranks) - place - 1)  # the round's own token is the last that is needed
        accepted = _leading(ranks, place, depth)
        if accepted < min(depth, len(siblings)) and ranks[place + accepted] <= siblings[accepted]:
            accepted += 1
        found.add(depth, depth + sum(siblings[:depth]), accepted)
        place += accepted + 1
    return found


def play_ngrams(prompt: Sequence[int], answer: Sequence[int], length: int) -> Rounds:
    """Rounds with what n-gram lookup finds; where it finds nothing the round has no proposal."""
    found, index, place = Rounds(), NgramIndex((*prompt, *answer[:1])), 1
    while place < len(answer):
        guess = index.propose(min(length, len(answer) - place - 1)).tree.tokens
        wrong = (step for step, token in enumerate(guess) if answer[place + step] != token)
        accepted = next(wrong, len(guess))
        found.add(len(guess), len(guess), accepted)
        index.extend(answer[place : place + accepted + 1])
        place += accepted + 1
    return found


def merged(parts: Iterable[Rounds]) -> Rounds:
    """All rounds of several answers."""
    found = Rounds()
    for part in parts:
        found.merge(part)
    return found


def _leading(ranks: Sequence[int], place: int, most: int) -> int:
    """How many of the next `most` ranks are 0, up to the first that is not."""
    return next((step for step in range(most) if ranks[place + step] != 0), most)


ByLength = Mapping[int, Rounds]
"""Rounds by length of the guess."""
