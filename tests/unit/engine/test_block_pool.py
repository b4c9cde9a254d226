"""BlockPool against a simple model of it: no leak, no double use, reservations honoured, salts kept apart."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider.engine.blocks import MAX_PARTS, BlockPool, chain_digest, root_digest
from outrider.engine.idle import IdleBlocks
from outrider.engine.runs import FreeRuns
from outrider.errors import ResourceExhausted

BLOCKS = 12
SIZE = 2

salts = st.sampled_from(["", "tenant"])
texts = st.lists(st.integers(0, 1), max_size=BLOCKS * SIZE)


def digests_of(tokens: list[int], salt: str) -> list[bytes]:
    digests = [root_digest(salt)]
    for start in range(0, len(tokens) // SIZE * SIZE, SIZE):
        digests.append(chain_digest(digests[-1], tokens[start : start + SIZE]))
    return digests[1:]


@dataclass
class Holding:
    """What one session holds: its blocks, and of how many the content is published."""

    salt: str
    tokens: list[int]
    blocks: list[int]
    published: int


class PoolMachine(RuleBasedStateMachine):
    """The model: which session holds which blocks, and what was ever written to each block."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, SIZE)
        self.holdings: list[Holding] = []
        self.content: dict[int, tuple[str, tuple[int, ...]]] = {}

    @rule(tokens=texts, salt=salts, extra=st.integers(0, BLOCKS))
    def open(self, tokens: list[int], salt: str, extra: int) -> None:
        shared = self.pool.match(digests_of(tokens, salt))
        for index, block in enumerate(shared):
            assert self.content[block] == (salt, tuple(tokens[: (index + 1) * SIZE]))
        fresh = max(len(tokens) // SIZE - len(shared), 0) + extra
        held = {block for holding in self.holdings for block in holding.blocks}
        room = BLOCKS - len(held | set(shared))
        if fresh > room:
            before = self.pool.available
            with pytest.raises(ResourceExhausted):
                self.pool.acquire(shared, fresh)
            assert self.pool.available == before
            return
        taken = self.pool.acquire(shared, fresh)
        assert len(set(taken)) == fresh
        assert not set(taken) & (held | set(shared))
        holding = Holding(salt, tokens, [*shared, *taken], len(shared))
        for index in range(len(shared), len(tokens) // SIZE):
            self.content[holding.blocks[index]] = (salt, tuple(tokens[: (index + 1) * SIZE]))
        self.holdings.append(holding)

    @precondition(lambda self: self.holdings)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        holding = data.draw(st.sampled_from(self.holdings))
        digests = digests_of(holding.tokens, holding.salt)
        for index in range(holding.published, len(digests)):
            self.pool.publish(holding.blocks[index], digests[index])
        holding.published = len(digests)

    @precondition(lambda self: self.holdings)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        holding = self.holdings.pop(data.draw(st.integers(0, len(self.holdings) - 1)))
        self.pool.release(holding.blocks)

    @precondition(lambda self: self.holdings)
    @rule(data=st.data())
    def close_and_keep(self, data: st.DataObject) -> None:
        """As a sequence does: what is published is kept, and what stands in the block after it."""
        holding = self.holdings.pop(data.draw(st.integers(0, len(self.holdings) - 1)))
        if not holding.blocks:
            return
        digests = digests_of(holding.tokens, holding.salt)[: holding.published]
        tail = holding.blocks[min(holding.published, len(holding.blocks) - 1)]
        known = holding.tokens[
            : min(len(holding.tokens), len(holding.blocks) * SIZE, holding.published * SIZE + SIZE - 1)
        ]
        if known[holding.published * SIZE :]:
            self.content[tail] = (holding.salt, tuple(known))
        self.pool.keep(root_digest(holding.salt), digests, known, tail, 60.0)
        self.pool.release(holding.blocks)

    @rule(tokens=texts, salt=salts, depth=st.integers(0, 3))
    def look_for_a_part(self, tokens: list[int], salt: str, depth: int) -> None:
        digests = [root_digest(salt), *digests_of(tokens, salt)]
        place = min(depth, len(digests) - 1)
        block, count = self.pool.match_part(digests[place], tokens[place * SIZE :])
        if count:
            held, content = self.content[block]
            assert held == salt
            assert content[: place * SIZE + count] == tuple(tokens[: place * SIZE + count])

    @precondition(lambda self: self.holdings)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        """Roll a session back by its last published block, and let it write something else there."""
        holding = data.draw(st.sampled_from(self.holdings))
        if not holding.published:
            return
        index = holding.published - 1
        block = holding.blocks[index]
        holders = sum(block in other.blocks for other in self.holdings)
        assert self.pool.is_shared(block) == (holders > 1)
        if holders > 1:
            if not self.pool.available:
                return
            (replacement,) = self.pool.acquire((), 1)
            self.pool.release([block])
            holding.blocks[index] = replacement
        else:
            self.pool.unpublish(block)
        holding.published = index
        holding.tokens = [*holding.tokens[: index * SIZE], *(1 - token for token in holding.tokens[index * SIZE :])]
        for later in range(index, len(holding.tokens) // SIZE):
            prefix = tuple(holding.tokens[: (later + 1) * SIZE])
            self.content[holding.blocks[later]] = (holding.salt, prefix)

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        held = {block for holding in self.holdings for block in holding.blocks}
        assert self.pool.available == BLOCKS - len(held)

    @invariant()
    def a_private_block_is_held_once(self) -> None:
        private = [block for holding in self.holdings for block in holding.blocks[holding.published :]]
        assert len(private) == len(set(private))
        assert not set(private) & {b for holding in self.holdings for b in holding.blocks[: holding.published]}

    def teardown(self) -> None:
        for holding in self.holdings:
            self.pool.release(holding.blocks)
        assert self.pool.available == BLOCKS
        assert sorted(self.pool.acquire((), BLOCKS)) == list(range(BLOCKS))


TestPool = PoolMachine.TestCase


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(4, SIZE)


def publish_and_release(pool: BlockPool, tokens: list[int], salt: str = "") -> list[int]:
    blocks = pool.acquire((), len(tokens) // SIZE)
    for block, digest in zip(blocks, digests_of(tokens, salt), strict=True):
        pool.publish(block, digest)
    pool.release(blocks)
    return blocks


def test_salts_share_nothing(pool: BlockPool) -> None:
    blocks = publish_and_release(pool, [1, 2, 3, 4], salt="one")
    assert pool.match(digests_of([1, 2, 3, 4], "one")) == blocks
    assert pool.match(digests_of([1, 2, 3, 4], "two")) == []


def test_a_block_is_known_by_everything_before_it(pool: BlockPool) -> None:
    publish_and_release(pool, [1, 2, 3, 4])
    assert pool.match(digests_of([9, 9, 3, 4], "")) == []


def test_the_longest_unused_is_evicted_first_and_a_tail_before_its_head(pool: BlockPool) -> None:
    old, new = publish_and_release(pool, [1, 2, 3, 4]), publish_and_release(pool, [5, 6, 7, 8])
    taken = pool.acquire((), 1)
    assert taken == [old[1]]
    assert pool.match(digests_of([1, 2, 3, 4], "")) == old[:1]
    assert pool.match(digests_of([5, 6, 7, 8], "")) == new


def test_use_makes_a_block_young_again(pool: BlockPool) -> None:
    old, new = publish_and_release(pool, [1, 2, 3, 4]), publish_and_release(pool, [5, 6, 7, 8])
    pool.acquire(old, 0)
    pool.release(old)
    assert set(pool.acquire((), 2)) == set(new)


def test_cached_blocks_do_not_count_as_room_for_those_who_share_them(pool: BlockPool) -> None:
    shared = publish_and_release(pool, [1, 2, 3, 4])
    with pytest.raises(ResourceExhausted, match="2 of 4 blocks left, but 3 are needed"):
        pool.acquire(shared, 3)
    assert len(pool.acquire(shared, 2)) == 2


def test_the_same_content_twice_is_published_once(pool: BlockPool) -> None:
    first, second = pool.acquire((), 1), pool.acquire((), 1)
    (digest,) = digests_of([1, 2], "")
    pool.publish(first[0], digest)
    pool.publish(second[0], digest)
    pool.release(second)
    assert pool.match([digest]) == first
    assert pool.available == 3


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def keep(pool: BlockPool, tokens: list[int], seconds: float = 10.0) -> list[int]:
    """A session that computes `tokens` and ends, and whose KV is kept; its blocks."""
    digests, size, root = [], pool.block_size, root_digest("")
    blocks = pool.acquire((), -(-len(tokens) // size))
    for number in range(len(tokens) // size):
        digests.append(chain_digest(digests[-1] if digests else root, tokens[number * size : (number + 1) * size]))
        pool.publish(blocks[number], digests[-1])
    pool.keep(root, digests, tokens, blocks[-1], seconds)
    pool.release(blocks)
    return blocks


def test_what_is_under_a_lease_is_evicted_last_but_before_anybody_is_refused() -> None:
    pool = BlockPool(4, SIZE, Clock())
    kept = keep(pool, [1, 2, 3, 4])
    other = publish_and_release(pool, [5, 6, 7, 8])  # used later, yet it goes first
    assert pool.leased == 2
    assert set(pool.acquire((), 2)) == set(other)
    assert pool.match(digests_of([1, 2, 3, 4], "")) == kept
    assert pool.acquire((), 1) == [kept[1]]  # the tail before its head
    assert pool.acquire((), 1) == [kept[0]]
    with pytest.raises(ResourceExhausted):
        pool.acquire((), 1)


def test_a_lease_ends_and_then_its_blocks_go_first() -> None:
    clock = Clock()
    pool = BlockPool(4, SIZE, clock)
    kept = keep(pool, [1, 2, 3, 4])
    publish_and_release(pool, [5, 6, 7, 8])
    clock.now = 5.0
    pool.keep(root_digest(""), digests_of([1, 2], ""), [1, 2], 0, 10.0)  # another one ends with the first block alone
    clock.now = 12.0
    assert pool.leased == 1
    assert pool.acquire((), 1) == [kept[1]]
    clock.now = 15.0
    assert pool.leased == 0
    assert pool.acquire((), 1) == [kept[0]]


def test_a_lease_survives_somebody_elses_use_of_its_blocks() -> None:
    pool = BlockPool(4, SIZE, Clock())
    kept = keep(pool, [1, 2, 3, 4])
    pool.acquire(kept[:1], 0)
    assert pool.leased == 1
    pool.release(kept[:1])
    assert pool.leased == 2


def test_a_conversation_of_many_turns_is_noted_once() -> None:
    clock = Clock()
    idle = IdleBlocks(clock)
    for turn in range(500):
        clock.now = turn / 10
        idle.lease(range(30), 100.0)
        idle.lease([40 + turn % 5], 100.0)
    assert len(idle._until) == 35
    assert idle._noted == sum(len(blocks) for _, blocks in idle._ends) <= 2 * 35 + 64
    for block in range(30):
        idle.add(block)
    clock.now = 149.8
    assert idle.leased == 30
    clock.now = 149.95
    assert idle.leased == 0
    assert idle.first() == 29  # the tail goes first
    assert idle._noted == len(idle._until) + len(idle._ends) == 0


def test_what_was_kept_is_copied_from_in_part() -> None:
    pool, root = BlockPool(8, 4), root_digest("")
    first, last = keep(pool, [1, 2, 3, 4, 5, 6])
    assert pool.match_part(root, [1, 2, 9]) == (first, 2)
    assert pool.match_part(chain_digest(root, [1, 2, 3, 4]), [5, 9]) == (last, 1)
    assert pool.match_part(root, [5, 6])[1] == 0


def test_of_parts_only_the_newest_are_known_and_none_that_another_one_holds() -> None:
    pool, root = BlockPool(2 * MAX_PARTS, 4), root_digest("")
    for number in range(MAX_PARTS + 3):
        keep(pool, [number, 0])
    assert pool.match_part(root, [0, 0])[1] == 0
    assert pool.match_part(root, [5, 0, 7])[1] == 2
    assert pool.leased == MAX_PARTS
    (longer,) = keep(pool, [5, 0, 7])
    assert pool.match_part(root, [5, 0, 7, 1]) == (longer, 3)
    keep(pool, [5, 0])  # nothing new
    assert pool.match_part(root, [5, 0, 7, 1]) == (longer, 3)
    assert pool.leased == MAX_PARTS
    assert pool.available == 2 * MAX_PARTS


def test_fresh_blocks_follow_the_shared_ones_where_they_can() -> None:
    pool = BlockPool(8, SIZE)
    shared = publish_and_release(pool, [1, 2, 3, 4])
    assert pool.acquire(shared, 3) == [shared[-1] + 1, shared[-1] + 2, shared[-1] + 3]


def test_runs_are_taken_where_they_fit_best() -> None:
    runs = FreeRuns(10)
    assert runs.take(10) == list(range(10))
    for number in (0, 1, 2, 4, 5, 7):
        runs.add(number)
    assert runs.take(2) == [4, 5]
    assert runs.take(1) == [7]
    assert runs.take(2) == [0, 1]
    for number in (0, 9, 8, 1):
        runs.add(number)
    assert runs.take(5) == [0, 1, 2, 8, 9]  # no run is long enough: as few as possible
    assert len(runs) == 0


def test_neighbours_become_one_run_in_whatever_order_they_come_back() -> None:
    for order in itertools.permutations(range(4)):
        runs = FreeRuns(5)
        runs.take(5)
        for number in order:
            runs.add(number)
        assert runs.take(4, first=0) == [0, 1, 2, 3]
        assert len(runs) == 0


def test_runs_are_taken_from_a_wished_place_if_it_is_free() -> None:
    runs = FreeRuns(6)
    runs.take(6)
    for number in (0, 1, 3, 4, 5):
        runs.add(number)
    assert runs.take(2, first=3) == [3, 4]
    assert runs.take(2, first=5) == [0, 1]
