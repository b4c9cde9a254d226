"""Who holds which block of the KV cache: reference counts, admission, and the prefix cache. Plain Python."""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Callable, Sequence

from outrider.engine.idle import IdleBlocks
from outrider.engine.runs import FreeRuns
from outrider.errors import ResourceExhausted

Digest = bytes
"""Names a full block by its tokens, every token before them, and the salt."""

MAX_TAILS = 32
"""Tails kept after one block: what a search for the best one looks at."""


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
    is known is *published* under its digest; it may then be shared and must not be written to. A *tail*, the last
    block of a session that has ended, need not be full: it is never shared, but later sessions may copy from it.
    """

    def __init__(self, num_blocks: int, block_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = FreeRuns(num_blocks)
        self._holders = [0] * num_blocks
        self._block_by_digest: dict[Digest, int] = {}
        self._digest_by_block: dict[int, Digest] = {}
        self._cached = IdleBlocks(clock)
        self._tails: dict[Digest, dict[int, tuple[int, ...]]] = {}  # tokens by block, oldest first, by what precedes
        self._place_of_tail: dict[int, Digest] = {}

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
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of a session's blocks, given in its order. Published ones stay cached, the last evicted first."""
        for block in reversed(blocks):
            assert self._holders[block] > 0
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self._digest_by_block or block in self._place_of_tail:
                self._cached.add(block)
            else:
                self._free.add(block)

    def publish(self, block: int, digest: Digest) -> None:
        """Offer a held, full block to later sessions; does nothing if another block already has this content."""
        assert self._holders[block] > 0
        assert block not in self._digest_by_block
        if digest not in self._block_by_digest:
            self._block_by_digest[digest] = block
            self._digest_by_block[block] = digest

    def keep(self, digests: Sequence[Digest], seconds: float) -> None:
        """Evict the blocks published under these last, for so long."""
        self._cached.lease(self.match(digests), seconds)

    def keep_tail(self, block: int, previous: Digest, tokens: Sequence[int], seconds: float) -> None:
        """Offer a held, partly written block, which is written to no more, after the block (or root) `previous`."""
        assert self._holders[block] == 1
        assert block not in self._digest_by_block
        tails = self._tails.get(previous, {})
        for known in [known for known, content in tails.items() if content == tuple(tokens[: len(content)])]:
            self._drop_tail(known)
        if len(tails) >= MAX_TAILS:
            self._drop_tail(next(iter(tails)))
        self._tails.setdefault(previous, {})[block] = tuple(tokens)
        self._place_of_tail[block] = previous
        self._cached.lease([block], seconds)

    def match_tail(self, previous: Digest, tokens: Sequence[int]) -> tuple[int, int]:
        """The tail after `previous` that begins most like `tokens`, and how many are equal. Takes nothing."""
        best = (0, 0)
        for block, content in self._tails.get(previous, {}).items():
            count = next((n for n, (a, b) in enumerate(zip(content, tokens, strict=False)) if a != b), None)
            length = min(len(content), len(tokens)) if count is None else count
            if length > best[1]:
                best = (block, length)
        return best

    def is_shared(self, block: int) -> bool:
        """True if more than one session holds the block."""
        return self._holders[block] > 1

    def unpublish(self, block: int) -> None:
        """Take back the offer of a block that is about to be written to; it may only be held by the writer."""
        assert self._holders[block] == 1
        digest = self._digest_by_block.pop(block, None)
        if digest is not None:
            del self._block_by_digest[digest]
            self._cached.forget(block)

    def _evict(self) -> None:
        block = self._cached.first()
        if block in self._place_of_tail:
            self._drop_tail(block)
            return
        del self._block_by_digest[self._digest_by_block.pop(block)]
        self._cached.forget(block)
        self._free.add(block)

    def _drop_tail(self, block: int) -> None:
        previous = self._place_of_tail.pop(block)
        del self._tails[previous][block]
        if not self._tails[previous]:
            del self._tails[previous]
        self._cached.forget(block)
        if self._holders[block] == 0:
            self._free.add(block)
