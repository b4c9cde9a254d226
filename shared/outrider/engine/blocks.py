"""Who holds which block of the KV cache: reference counts, admission, and the prefix cache. Plain Python."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from outrider.engine.runs import FreeRuns
from outrider.errors import ResourceExhausted

Digest = bytes
"""Names a full block by its tokens, every token before them, and the salt."""


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
    prefix, until it is evicted, longest unused first), or *free*. A full block whose content is known is *published*
    under its digest; it may then be shared and must not be written to.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = FreeRuns(num_blocks)
        self._holders = [0] * num_blocks
        self._block_by_digest: dict[Digest, int] = {}
        self._digest_by_block: dict[int, Digest] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # longest unused first

    @property
    def available(self) -> int:
        """How many blocks a new session could take."""
        return len(self._free) + len(self._cached)

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
            self._cached.pop(block, None)
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
            if block in self._digest_by_block:
                self._cached[block] = None
            else:
                self._free.add(block)

    def publish(self, block: int, digest: Digest) -> None:
        """Offer a held, full block to later sessions; does nothing if another block already has this content."""
        assert self._holders[block] > 0
        assert block not in self._digest_by_block
        if digest not in self._block_by_digest:
            self._block_by_digest[digest] = block
            self._digest_by_block[block] = digest

    def is_shared(self, block: int) -> bool:
        """True if more than one session holds the block."""
        return self._holders[block] > 1

    def unpublish(self, block: int) -> None:
        """Take back the offer of a block that is about to be written to; it may only be held by the writer."""
        assert self._holders[block] == 1
        digest = self._digest_by_block.pop(block, None)
        if digest is not None:
            del self._block_by_digest[digest]

    def _evict(self) -> None:
        block, _ = self._cached.popitem(last=False)
        del self._block_by_digest[self._digest_by_block.pop(block)]
        self._free.add(block)
