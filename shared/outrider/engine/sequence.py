"""One session's tokens in the KV cache."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from outrider.acceptance.tree import ROOT, TokenTree
from outrider.engine.blocks import BlockPool, Digest, chain_digest, root_digest
from outrider.engine.kv import SlotMoves
from outrider.errors import InvalidArgument

NO_TREE = TokenTree((), ())


class KvSequence:
    """A session's token chain in the cache, `cached`, and after it the tree nodes in flight.

    Token i of `cached` stands at position i. Node j in flight stands at index `len(cached) + j` until `align` either
    moves it to its position, because it was accepted, or drops it. Made by `Engine.open`, ended by `Engine.close`.
    """

    def __init__(
        self,
        pool: BlockPool,
        moves: SlotMoves,
        tokens: Sequence[int],
        max_length: int,
        salt: str,
        *,
        share: bool = True,
    ) -> None:
        """Hold blocks for `max_length` tokens; start with the longest cached prefix of `tokens`, short of its last.

        Raises ResourceExhausted.
        """
        self.max_length = max_length
        self.table: array[int]  # `blocks` as 32-bit integers
        self.tree = NO_TREE
        self._pool = pool
        self._moves = moves
        self._share = share
        self._digests: list[Digest] = []  # of the full blocks
        self._root = root_digest(salt)
        size = pool.block_size
        shared = self._match(tokens) if share else []
        start = len(shared) * size
        source, copied = pool.match_part(self._last_digest, tokens[start:-1]) if share else (0, 0)
        fresh = pool.acquire(shared, -(-max_length // size) - len(shared))
        self._blocks = [*shared, *fresh]
        self._run = _run_length(self._blocks)
        self.table = array("i", self._blocks)
        if copied:  # even if the source was just evicted: nothing is written before the moves are made
            moves.add(range(source * size, source * size + copied), self._slot_list(start, start + copied))
        self.cached: list[int] = list(tokens[: start + copied])

    @property
    def blocks(self) -> Sequence[int]:
        """The block table: token i stands in block `blocks[i // block_size]`."""
        return self._blocks

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self._pool.block_size

    def slots(self, start: int, stop: int) -> slice | list[int]:
        """The cache slots of the tokens from index `start` to before `stop`; a slice if they lie side by side."""
        size = self._pool.block_size
        if stop <= self._run * size:
            first = self._blocks[0] * size
            return slice(first + start, first + stop)
        return self._slot_list(start, stop)

    def _slot(self, index: int) -> int:
        size = self._pool.block_size
        return self._blocks[index // size] * size + index % size

    def _slot_list(self, start: int, stop: int) -> list[int]:
        return [self._slot(index) for index in range(start, stop)]

    def align(self, history: Sequence[int], start: int, in_flight: Sequence[int] | None = None) -> None:
        """Make `cached` a prefix of `history`, as long as the cache allows, but short of its last token.

        (The last one is left out because what follows it has to be computed.) The first `start` tokens of both are
        known to be equal. Nodes in flight that continue the chain along `history` join it; the others are dropped.
        Where all of `history` and then `in_flight` stands in the cache, nothing is left out: `cached` is the history,
        in flight is that chain, and then what else continues it or the history, in its order.
        Raises ResourceExhausted, and changes nothing, if a block that another session also holds must be replaced
        and none is left; a session meets that only when it goes back to before a prefix that it shares.
        """
        limit = max(len(history) - 1, 0)
        length = self._common_length(history, start, limit)
        if length < len(self.cached):
            self._roll_back(length)
        elif self.tree.tokens:
            if in_flight is not None and self._goes_on(history[length:], in_flight):
                return
            if length < limit:
                self.accept(self._walk(history[length:limit]))
        self.tree = NO_TREE

    def cut(self, length: int) -> None:
        """Make `cached` no longer than that, and drop what is in flight. Raises ResourceExhausted as `align` does."""
        if length < len(self.cached):
            self._roll_back(length)
        self.tree = NO_TREE

    def trim(self, count: int) -> None:
        """Drop what is in flight but the first `count` nodes."""
        self.tree = self.tree.truncated(count)

    def accept(self, path: Sequence[int]) -> None:
        """What `align` does where the history went on with `path` of the tree in flight, then a token without KV."""
        if path:
            self._accept(path)
        self.tree = NO_TREE

    def extend(self, tokens: Sequence[int], tree: TokenTree) -> None:
        """Record that `tokens`, then all nodes of `tree`, now stand in the cache after `cached`."""
        self.cached.extend(tokens)
        self.tree = tree
        if len(self.cached) // self._pool.block_size > len(self._digests):
            self._publish()

    def check_room(self, count: int, at: int | None = None) -> None:
        """Raise InvalidArgument unless `count` tokens and nodes fit into what was reserved, from index `at` on.

        None: after all that is there.
        """
        total = (len(self.cached) + len(self.tree.tokens) if at is None else at) + count
        if total > self.max_length:
            raise InvalidArgument("tokens", total, f"at most max_length, {self.max_length}")

    def keep(self, seconds: float) -> None:
        """Have what is cached outlast, once this is closed, what is under no lease; the last tokens too.

        Only `close` may follow.
        """
        if not self._share:
            return
        tail = self._blocks[min(len(self._digests), len(self._blocks) - 1)]
        self._pool.keep(self._root, self._digests, self.cached, tail, seconds)

    def close(self) -> None:
        """Let go of all blocks; the full ones stay in the prefix cache."""
        self._pool.release(self._blocks)
        self._blocks = []
        self.cached = []
        self.tree = NO_TREE

    @property
    def _last_digest(self) -> Digest:
        return self._digests[-1] if self._digests else self._root

    def _match(self, tokens: Sequence[int]) -> list[int]:
        size = self._pool.block_size
        digest = self._root
        for start in range(0, max(len(tokens) - 1, 0) // size * size, size):
            digest = chain_digest(digest, tokens[start : start + size])
            self._digests.append(digest)
        shared = self._pool.match(self._digests)
        del self._digests[len(shared) :]
        return shared

    def _common_length(self, history: Sequence[int], start: int, limit: int) -> int:
        stop = min(len(self.cached), limit)
        cached = self.cached
        for index in range(min(start, stop), stop):
            if cached[index] != history[index]:
                return index
        return stop

    def _roll_back(self, length: int) -> None:
        size = self._pool.block_size
        first = length // size  # the first block that will be written to
        full = len(self.cached) // size
        if first == full:  # nobody else has that block, as it was never full
            del self.cached[length:]
            return
        shared = [index for index in range(first, full) if self._pool.is_shared(self._blocks[index])]
        fresh = self._pool.acquire((), len(shared))
        if shared and shared[0] == first:
            kept = self._slot_list(first * size, length)
            self._moves.add(kept, [fresh[0] * size + offset for offset in range(len(kept))])
        for index, block in zip(shared, fresh, strict=True):
            self._pool.release([self._blocks[index]])
            self._blocks[index] = block
        if shared:
            self._run = _run_length(self._blocks)
            self.table = array("i", self._blocks)
        for block in self._blocks[first:full]:
            self._pool.unpublish(block)
        del self._digests[first:]
        del self.cached[length:]

    def _walk(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The longest path of nodes in flight along `tokens`, after `cached`. Siblings may be equal."""
        tree, best = self.tree, ROOT
        agreed = {ROOT: 0}  # how many tokens the path down to a node has, if they are those
        for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            depth = agreed.get(parent)
            if depth is not None and depth < len(tokens) and tokens[depth] == token:
                agreed[node] = depth + 1
                if depth == agreed[best]:
                    best = node
        return tree.path(best)

    def _accept(self, path: Sequence[int]) -> None:
        tokens = [self.tree.tokens[node] for node in path]
        self._move(path)
        self.extend(tokens, NO_TREE)

    def _goes_on(self, tokens: Sequence[int], in_flight: Sequence[int]) -> bool:
        """Keep the nodes that are `tokens`, which join the chain, and then `in_flight`; False if there are none.

        And what continues those in flight, or the last of the tokens.
        """
        count = len(tokens)
        path = self._walk([*tokens, *in_flight])
        if len(path) < count + len(in_flight):
            return False
        last, beside = path[count - 1], set(path)
        kept = [*path, *(node for node in self.tree.below(last) if node not in beside)]
        self._move(kept)
        self.extend(tokens, self.tree.of(kept[count:], root=last))
        return True

    def _move(self, path: Sequence[int]) -> None:
        """Move the nodes of `path` to where they stand as a chain."""
        base = len(self.cached)
        moved = [(base + node, base + depth) for depth, node in enumerate(path) if node != depth]
        if moved:
            sources = [self._slot(source) for source, _ in moved]
            self._moves.add(sources, [self._slot(target) for _, target in moved])

    def _publish(self) -> None:
        """Offer the blocks that have become full to other sessions."""
        if not self._share:
            return
        size = self._pool.block_size
        for index in range(len(self._digests), len(self.cached) // size):
            self._digests.append(chain_digest(self._last_digest, self.cached[index * size : (index + 1) * size]))
            self._pool.publish(self._blocks[index], self._digests[-1])


def _run_length(blocks: Sequence[int]) -> int:
    """How many blocks at the beginning lie side by side."""
    return next((n for n in range(1, len(blocks)) if blocks[n] != blocks[n - 1] + 1), len(blocks))
