"""Who holds which block of the KV cache: reference counts, admission, and the prefix cache. Plain Python."""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Callable, Sequence

from outrider.engine.idle import IdleBlocks
from outrider.engine.runs import FreeRuns
from outrider.errors import ResourceExhausted
from outrider.telemetry import metrics

Digest = bytes
"""Names a full block by its tokens, every token before them, and the salt."""

MAX_PARTS = 32
"""Blocks to copy from that are known after one block: what a search for the best looks at."""


def root_digest(salt: str) -> Digest:
    """What stands before a sequence's first block; sequences with different salts share nothing."""
    return hashlib.blake2b(salt.encode(), digest_size=16).digest()


def chain_digest(previous: Digest, tokens: Sequence[int]) -> Digest:
    """The digest of the block with these tokens that follows the block (or root) `previous`."""
    return hashlib.blake2b(previous + array("q", tokens).tobytes(), digest_size=16).digest()


class BlockPool:
    """Hands out blocks of `block_size` tokens.

    A session takes all the blocks that it may ever need when it opens, or is refused: nothing runs out later. A block
    is *held* (by one session or more), *cached* (held by none, but its content may serve a later session with the same
    prefix, until it is evicted, longest unused first, those under a lease last), or *free*. A full block whose content
    is known is *published* under its digest; it may then be shared and must not be written to. What a session that
    has ended wants kept may also be copied from, by those who agree with a part of a block only; so its last block
    stays too, although it is not full.
    """

    def __init__(self, num_blocks: int, block_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = FreeRuns(num_blocks)
        self._holders = [0] * num_blocks
        self._block_by_digest: dict[Digest, int] = {}
        self._digest_by_block: dict[int, Digest] = {}
        self._cached = IdleBlocks(clock)
        self._parts: dict[Digest, dict[int, tuple[int, ...]]] = {}  # tokens by block, oldest first, by what precedes
        self._place_of_part: dict[int, Digest] = {}

    @property
    def available(self) -> int:
        """How many blocks a new session could take."""
        return len(self._free) + len(self._cached)

    @property
    def leased(self) -> int:
        """How many of them are kept for a conversation's next turn while there are others to take."""
        return self._cached.leased

    def match(self, digests: Sequence[Digest]) -> list[int]:
        """The blocks published under the longest known prefix of `digests`. Takes nothing."""
        blocks: list[int] = []
        for digest in digests:
            block = self._block_by_digest.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def acquire(self, shared: Sequence[int], fresh: int) -> list[int]:
        """Hold the published blocks `shared` and `fresh` more, side by side where possible; all of them or none.

        Returns the fresh ones. Raises ResourceExhausted.
        """
        revived = sum(1 for block in shared if self._holders[block] == 0)
        if fresh > self.available - revived:
            raise ResourceExhausted(
                f"the KV cache has {self.available - revived} of {self.num_blocks} blocks left, but {fresh} are needed"
            )
        for block in shared:
            self._cached.remove(block)
            self._holders[block] += 1
        while len(self._free) < fresh:
            self._evict()
        taken = self._free.take(fresh, shared[-1] + 1 if shared else None)
        for block in taken:
            self._holders[block] = 1
        metrics.kv_blocks.add(revived + fresh)
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of a session's blocks, given in its order. Published ones stay cached, the last evicted first."""
        let_go = 0
        for block in reversed(blocks):
            assert self._holders[block] > 0
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            let_go += 1
            if block in self._digest_by_block or block in self._place_of_part:
                self._cached.add(block)
            else:
                self._free.add(block)
        metrics.kv_blocks.add(-let_go)

    def publish(self, block: int, digest: Digest) -> None:
        """Offer a held, full block to later sessions; does nothing if another block already has this content."""
        assert self._holders[block] > 0
        assert block not in self._digest_by_block
        if digest not in self._block_by_digest:
            self._block_by_digest[digest] = block
            self._digest_by_block[block] = digest

    def keep(self, root: Digest, digests: Sequence[Digest], tokens: Sequence[int], tail: int, seconds: float) -> None:
        """Evict what a session is about to release last, for so long, and let others copy from its blocks in part.

        `digests` are those of its full blocks, `tokens` all that it holds the KV of. What is left of them after the
        full blocks stands in the held block `tail`, which is written to no more.
        """
        blocks, size = self.match(digests), self.block_size
        for number, block in enumerate(blocks):
            self._offer(block, (root, *digests)[number], tokens[number * size : (number + 1) * size])
        rest = tokens[len(digests) * size :]
        if rest and len(blocks) == len(digests) and self._offer(tail, (root, *digests)[-1], rest):
            blocks.append(tail)
        self._cached.lease(blocks, seconds)

    def match_part(self, previous: Digest, tokens: Sequence[int]) -> tuple[int, int]:
        """The block to copy from after `previous`: which begins most like `tokens`, and how many are equal, maybe 0."""
        best = (0, 0)
        for block, content in self._parts.get(previous, {}).items():
            if (length := _common_length(content, tokens)) > best[1]:
                best = (block, length)
        return best

    def is_shared(self, block: int) -> bool:
        """True if more than one session holds the block."""
        return self._holders[block] > 1

    def unpublish(self, block: int) -> None:
        """Take back the offer of a block that is about to be written to; it may only be held by the writer."""
        assert self._holders[block] == 1
        self._forget(block)

    def _evict(self) -> None:
        block = self._cached.first()
        self._forget(block)
        self._free.add(block)

    def _forget(self, block: int) -> None:
        """Its content is gone, or about to be."""
        self._cached.forget(block)
        if (digest := self._digest_by_block.pop(block, None)) is not None:
            del self._block_by_digest[digest]
        if (previous := self._place_of_part.pop(block, None)) is not None:
            del self._parts[previous][block]
            if not self._parts[previous]:
                del self._parts[previous]

    def _offer(self, block: int, previous: Digest, tokens: Sequence[int]) -> bool:
        """Let sessions copy from a block; False where another one has all of its tokens."""
        if self._place_of_part.get(block) == previous:
            return True
        parts = self._parts.get(previous, {})
        lengths = {known: _common_length(content, tokens) for known, content in parts.items()}
        if any(length == len(tokens) for length in lengths.values()):
            return False
        surplus = [known for known, length in lengths.items() if length == len(parts[known])]
        if len(parts) - len(surplus) >= MAX_PARTS:
            surplus.append(next(known for known in parts if known not in surplus))
        for known in surplus:
            self._withdraw(known)
        self._parts.setdefault(previous, {})[block] = tuple(tokens)
        self._place_of_part[block] = previous
        return True

    def _withdraw(self, block: int) -> None:
        """Nobody copies from it any more. Without a digest it serves nobody at all then."""
        if block not in self._digest_by_block:
            self._forget(block)
            if self._holders[block] == 0:
                self._free.add(block)
            return
        previous = self._place_of_part.pop(block)
        del self._parts[previous][block]
        if not self._parts[previous]:
            del self._parts[previous]


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    differs = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return min(len(one), len(other)) if differs is None else differs
