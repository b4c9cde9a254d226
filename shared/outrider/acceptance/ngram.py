"""Prompt lookup: guess that what followed the same few tokens before follows them again."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.acceptance.proposal import NO_PROPOSAL, Proposal, Source
from outrider.acceptance.tree import TokenTree


class NgramIndex:
    """The committed tokens of one session, indexed by their n-grams (Saxena 2023, prompt lookup decoding).

    `propose` takes the longest suffix of `min_n` to `max_n` tokens that occurred before, at its most recent earlier
    place, and copies what followed. A token costs O(max_n - min_n + 1) to add and a proposal O(max_n + max_tokens),
    however long the history is.
    """

    def __init__(self, tokens: Iterable[int] = (), *, min_n: int = 2, max_n: int = 4) -> None:
        """`min_n` and `max_n` are the shortest and the longest suffix that is looked up."""
        assert 1 <= min_n <= max_n
        self._sizes = range(min_n, max_n + 1)
        self._tokens: list[int] = []
        self._follower: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token after its latest occurrence
        self._earlier: list[tuple[int | None, ...]] = []  # per token, what its n-grams replaced in `_follower`
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append committed tokens."""
        for token in tokens:
            # The n-grams that end here get their follower now: the current suffix is never its own match.
            end = len(self._tokens)
            grams = self._ending_at(end)
            self._earlier.append(tuple(self._follower.get(gram) for gram in grams))
            self._follower.update(dict.fromkeys(grams, end))
            self._tokens.append(token)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        while len(self._tokens) > length:
            self._tokens.pop()
            for gram, earlier in zip(self._ending_at(len(self._tokens)), self._earlier.pop(), strict=True):
                if earlier is None:
                    del self._follower[gram]
                else:
                    self._follower[gram] = earlier

    @property
    def matched(self) -> int:
        """Length of the longest suffix that occurred before, as far as it is looked up; 0 if none did."""
        return self._match()[0]

    def propose(self, max_tokens: int) -> Proposal:
        """A chain of up to `max_tokens` tokens, or `NO_PROPOSAL` where no suffix occurred before."""
        _, start = self._match()
        if start is None or max_tokens <= 0:
            return NO_PROPOSAL
        # A copy that runs into its own beginning goes on in the same period, as in LZ77.
        copied = list(self._tokens[start : start + max_tokens])
        period = len(copied)
        while len(copied) < max_tokens:
            copied.append(copied[-period])
        return Proposal(TokenTree.chain(copied), Source.NGRAM)

    def _match(self) -> tuple[int, int | None]:
        """Length of the longest known suffix, and the index of the token that followed it."""
        for gram in reversed(self._ending_at(len(self._tokens))):
            if (start := self._follower.get(gram)) is not None:
                return len(gram), start
        return 0, None

    def _ending_at(self, end: int) -> list[tuple[int, ...]]:
        return [tuple(self._tokens[end - n : end]) for n in self._sizes if n <= end]
