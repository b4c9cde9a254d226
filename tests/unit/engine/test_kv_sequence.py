"""KvSequence over a memory made of Python lists: every cached token's slot holds exactly that token's KV, always.

What stands in a slot is written down as the salt and the text up to and including its token: all that a KV may be
reused for.
"""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider.acceptance.tree import TokenTree
from outrider.engine.blocks import BlockPool
from outrider.engine.kv import SlotMoves
from outrider.engine.sequence import NO_TREE, KvSequence
from outrider.errors import InvalidArgument, ResourceExhausted

BLOCKS = 10
SIZE = 3

tokens_of = st.lists(st.integers(0, 1), min_size=1, max_size=14)


class Memory:
    """Slots, and a forward pass that only notes what it would compute."""

    def __init__(self, blocks: int = BLOCKS, size: int = SIZE) -> None:
        self.pool = BlockPool(blocks, size)
        self.moves = SlotMoves()
        self.slots: list[tuple[str, tuple[int, ...]]] = [("", ())] * (blocks * size)
        self.salts: dict[KvSequence, str] = {}

    def open(self, tokens: list[int], max_length: int, salt: str = "") -> KvSequence:
        sequence = KvSequence(self.pool, self.moves, tokens, max_length, salt)
        self.salts[sequence] = salt
        return sequence

    def apply_moves(self) -> None:
        sources, destinations = self.moves.take()
        values = [self.slots[source] for source in sources]
        for value, destination in zip(values, destinations, strict=True):
            self.slots[destination] = value

    def forward(self, sequence: KvSequence, tokens: list[int], tree: TokenTree = NO_TREE) -> None:
        self.apply_moves()
        base = len(sequence.cached)
        chain = [*sequence.cached, *tokens]
        texts = [tuple(chain[: index + 1]) for index in range(base, len(chain))]
        for node in range(len(tree)):
            texts.append((*chain, *(tree.tokens[above] for above in tree.path(node))))
        for slot, text in zip(self.slots_of(sequence, base, base + len(texts)), texts, strict=True):
            self.slots[slot] = (self.salts[sequence], text)
        sequence.extend(tokens, tree)

    def slots_of(self, sequence: KvSequence, start: int, stop: int) -> list[int]:
        slots = sequence.slots(start, stop)
        return list(range(slots.start, slots.stop)) if isinstance(slots, slice) else slots

    def assert_right(self, sequence: KvSequence) -> None:
        """Check the slots as they will be when the moves that wait are made, without making them."""
        sources, destinations = copy.deepcopy(self.moves).take()
        slots = list(self.slots)
        for source, destination in zip(sources, destinations, strict=True):
            slots[destination] = self.slots[source]
        for index, slot in enumerate(self.slots_of(sequence, 0, len(sequence.cached))):
            assert slots[slot] == (self.salts[sequence], tuple(sequence.cached[: index + 1]))
        base, tree = len(sequence.cached), sequence.tree
        for node, slot in enumerate(self.slots_of(sequence, base, base + len(tree))):
            path = (tree.tokens[above] for above in tree.path(node))
            assert slots[slot] == (self.salts[sequence], (*sequence.cached, *path))


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    size = draw(st.integers(0, 5))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    return TokenTree(tuple(draw(st.integers(0, 1)) for _ in range(size)), parents)


class SequenceMachine(RuleBasedStateMachine):
    """Sessions that open, run, roll back, go another way and close, in any order, over one small memory."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.sessions: list[KvSequence] = []

    @rule(tokens=tokens_of, room=st.integers(0, 8), salt=st.sampled_from(["", "tenant"]))
    def open(self, tokens: list[int], room: int, salt: str) -> None:
        try:
            sequence = self.memory.open(tokens, len(tokens) + room, salt)
        except ResourceExhausted:
            return
        assert sequence.cached == tokens[: len(sequence.cached)]
        assert len(sequence.cached) < len(tokens)
        self.sessions.append(sequence)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), tokens=tokens_of, tree=trees())
    def run(self, data: st.DataObject, tokens: list[int], tree: TokenTree) -> None:
        sequence = data.draw(st.sampled_from(self.sessions))
        sequence.align([*sequence.cached, 0], len(sequence.cached))
        room = sequence.max_length - len(sequence.cached)
        if room:
            tokens = tokens[:room]
            self.memory.forward(sequence, tokens, tree.truncated(room - len(tokens)))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), tail=tokens_of)
    def align(self, data: st.DataObject, tail: list[int]) -> None:
        sequence = data.draw(st.sampled_from(self.sessions))
        before, tree = list(sequence.cached), sequence.tree
        kept = data.draw(st.integers(0, len(before)))
        history = [*before[:kept], *tail]
        try:
            sequence.align(history, data.draw(st.integers(0, kept)))
        except ResourceExhausted:
            assert (sequence.cached, sequence.tree) == (before, tree)
            return
        assert sequence.cached == history[: longest_known(before, tree, history)]
        assert sequence.tree == NO_TREE

    @precondition(lambda self: self.sessions)
    @rule(
        data=st.data(), tail=st.lists(st.integers(0, 1), max_size=3), in_flight=st.lists(st.integers(0, 1), max_size=3)
    )
    def align_with_what_is_in_flight(self, data: st.DataObject, tail: list[int], in_flight: list[int]) -> None:
        sequence = data.draw(st.sampled_from(self.sessions))
        before, tree = list(sequence.cached), sequence.tree
        history = [*before, *tail] or [0]
        goes_on = tree.tokens and longest_known(before, tree, [*history, *in_flight, 0]) == len(history) + len(
            in_flight
        )
        try:
            sequence.align(history, len(before), in_flight)
        except ResourceExhausted:
            assert (sequence.cached, sequence.tree) == (before, tree)
            return
        if goes_on and tail:
            assert sequence.cached == history
            assert sequence.tree.truncated(len(in_flight)) == TokenTree.chain(in_flight)
            ends = [node for node in range(len(tree)) if [tree.tokens[each] for each in tree.path(node)] == tail]
            assert len(sequence.tree) in {len(tree.below(node)) for node in ends}  # there may be equal siblings
        else:
            assert sequence.cached == history[: longest_known(before, tree, history)]
            assert sequence.tree == NO_TREE

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.sessions.pop(data.draw(st.integers(0, len(self.sessions) - 1))).close()

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def close_and_keep(self, data: st.DataObject) -> None:
        sequence = self.sessions.pop(data.draw(st.integers(0, len(self.sessions) - 1)))
        cached, salt, room = list(sequence.cached), self.memory.salts[sequence], sequence.max_length
        sequence.keep(60.0)
        sequence.close()
        again = self.memory.open([*cached, 0], room + 1, salt) if self.has_room_for(room + 1) else None
        if again is not None:
            assert again.cached == cached  # nothing that it knew is computed again
            self.sessions.append(again)

    def has_room_for(self, tokens: int) -> bool:
        """Whatever it shares."""
        return self.memory.pool.available >= -(-tokens // SIZE)

    @invariant()
    def every_slot_holds_its_text(self) -> None:
        for sequence in self.sessions:
            self.memory.assert_right(sequence)

    def teardown(self) -> None:
        for sequence in self.sessions:
            sequence.close()
        assert self.memory.pool.available == BLOCKS


def longest_known(cached: list[int], tree: TokenTree, history: list[int]) -> int:
    """How much of `history`, short of its last token, stands in the cache as the chain or a path of the tree."""
    texts = [cached, *([*cached, *(tree.tokens[above] for above in tree.path(node))] for node in range(len(tree)))]
    longest = 0
    for text in texts:
        common = next((i for i, pair in enumerate(zip(text, history, strict=False)) if pair[0] != pair[1]), None)
        longest = max(longest, min(len(text), len(history)) if common is None else common)
    return min(longest, len(history) - 1)


TestSequences = SequenceMachine.TestCase


def test_going_back_into_a_shared_block_leaves_the_other_session_alone() -> None:
    memory = Memory()
    text = [1, 2, 3, 4, 5, 6, 7]
    first = memory.open(text, 12)
    memory.forward(first, text)
    second = memory.open(text, 12)
    assert second.cached == text[:6]
    assert second.blocks[:2] == first.blocks[:2]
    second.align([1, 2, 3, 4, 9, 9], 4)
    assert second.cached == [1, 2, 3, 4]
    assert second.blocks[0] == first.blocks[0]
    assert second.blocks[1] != first.blocks[1]
    memory.forward(second, [9, 9])
    memory.assert_right(first)
    memory.assert_right(second)


def test_going_back_into_an_own_published_block_withdraws_it() -> None:
    memory = Memory()
    text = [1, 2, 3, 4, 5, 6]
    first = memory.open(text, 9)
    memory.forward(first, text)
    first.align([1, 2, 3, 4, 8], 4)
    memory.forward(first, [8, 8, 8])
    second = memory.open([*text, 7], 9)
    assert second.cached == [1, 2, 3]
    memory.assert_right(second)


def test_no_room_to_go_back_into_a_shared_block_changes_nothing() -> None:
    memory = Memory(blocks=3)
    text = [1, 2, 3, 4, 5, 6]
    first = memory.open(text, 6)
    memory.forward(first, text)
    second = memory.open([*text, 7], 9)
    with pytest.raises(ResourceExhausted):
        second.align([1, 2, 9], 2)
    assert second.cached == text
    memory.assert_right(second)
    second.align([1, 2, 3, 4, 5, 6, 8], 6)  # it can still go on where it is
    memory.forward(second, [8])
    memory.assert_right(second)


def test_of_equal_siblings_the_one_whose_path_goes_on_counts() -> None:
    memory = Memory()
    sequence = memory.open([1], 12)
    memory.forward(sequence, [1], TokenTree((5, 5, 6), (-1, -1, 1)))
    sequence.align([1, 5, 6, 7], 1)
    assert sequence.cached == [1, 5, 6]
    memory.assert_right(sequence)


@given(tree=trees(), node=st.integers(-1, 4))
def test_a_path_that_stands_is_where_the_history_went(tree: TokenTree, node: int) -> None:
    memory = Memory()
    path = tree.path(min(node, len(tree) - 1))
    history = [1, 0, *(tree.tokens[each] for each in path), 7]
    accepted, aligned = (memory.open([1, 0], 10, salt) for salt in ("accepted", "aligned"))
    for sequence in (accepted, aligned):
        memory.forward(sequence, [1, 0][len(sequence.cached) :], tree)
    accepted.accept(path)
    aligned.align(history, 2)
    assert accepted.cached == aligned.cached == history[:-1]
    assert not accepted.tree.tokens
    for sequence in (accepted, aligned):
        memory.assert_right(sequence)


def test_what_is_in_flight_may_go_on_with_all_of_the_history() -> None:
    """It stands somewhere in a tree of branches, and nothing has to be computed again. What goes on from it stays."""
    memory = Memory()
    sequence = memory.open([1, 2], 20)
    memory.forward(sequence, [1, 2], TokenTree((3, 7, 8, 6, 4, 5, 6, 7), (-1, 0, 0, 2, 2, 4, 1, 5)))
    sequence.align([1, 2, 3, 8], 2, [4, 5])
    assert (sequence.cached, sequence.tree) == ([1, 2, 3, 8], TokenTree((4, 5, 6, 7), (-1, 0, -1, 1)))
    memory.assert_right(sequence)
    sequence.trim(2)
    assert sequence.tree == TokenTree.chain([4, 5])
    memory.assert_right(sequence)
    sequence.align([1, 2, 3, 8, 4], 4, [9])
    assert (sequence.cached, sequence.tree) == ([1, 2, 3, 8], NO_TREE)


def test_the_last_token_is_never_kept() -> None:
    memory = Memory()
    sequence = memory.open([1, 2], 12)
    memory.forward(sequence, [1, 2], TokenTree.chain([3, 4]))
    sequence.align([1, 2, 3, 4], 2)
    assert sequence.cached == [1, 2, 3]
    sequence.align([1, 2, 3], 3)
    assert sequence.cached == [1, 2]


def test_more_than_was_reserved_is_refused() -> None:
    sequence = Memory().open([1, 2], 4)
    sequence.check_room(4)
    with pytest.raises(InvalidArgument, match="at most max_length, 4"):
        sequence.check_room(5)


def test_a_session_reserves_its_worst_case() -> None:
    memory = Memory()
    sequence = memory.open([1], 28)
    assert memory.pool.available == 0
    with pytest.raises(ResourceExhausted):
        memory.open([1], 1)
    memory.forward(sequence, [1] * 28)
    memory.assert_right(sequence)
    sequence.close()
    assert memory.pool.available == BLOCKS


def test_a_kept_conversation_goes_on_where_it_ended_and_from_where_it_still_agrees() -> None:
    memory = Memory()
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    first = memory.open(text, 9)
    memory.forward(first, text)
    first.keep(60.0)
    first.close()
    goes_on = memory.open([*text, 9, 9], 12)
    assert goes_on.cached == text
    memory.forward(goes_on, [9, 9])
    memory.assert_right(goes_on)
    another = memory.open([*text[:7], 9, 9], 9)
    assert another.cached == text[:7]
    memory.forward(another, [9, 9])
    memory.assert_right(another)
    assert memory.open(text[:8], 9).cached == text[:7]  # the last token is computed, whatever is known
    assert memory.open([1, 2, 3, 9], 6).cached == text[:3]


def test_without_the_wish_to_keep_it_a_last_block_that_is_not_full_is_gone() -> None:
    memory = Memory()
    first = memory.open([1, 2, 3, 4, 5], 9)
    memory.forward(first, [1, 2, 3, 4, 5])
    first.close()
    assert memory.open([1, 2, 3, 4, 5, 6], 9).cached == [1, 2, 3]


def test_a_tail_that_is_evicted_for_the_very_session_that_copies_it_is_copied_all_the_same() -> None:
    memory = Memory(blocks=2)
    first = memory.open([1, 2, 3, 4, 5], 6)
    memory.forward(first, [1, 2, 3, 4, 5])
    first.keep(60.0)
    first.close()
    second = memory.open([1, 2, 3, 4, 5, 6], 6)
    assert second.cached == [1, 2, 3, 4, 5]
    memory.assert_right(second)
    memory.forward(second, [6])
    memory.assert_right(second)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=4, unique_by=lambda pair: pair[1]),
        max_size=6,
    )
)
def test_moves_made_at_once_equal_moves_made_one_by_one(steps: list[list[tuple[int, int]]]) -> None:
    at_once, one_by_one, moves = list(range(6)), list(range(6)), SlotMoves()
    for step in steps:
        moves.add([source for source, _ in step], [destination for _, destination in step])
        before = list(one_by_one)
        for source, destination in step:
            one_by_one[destination] = before[source]
    before = list(at_once)
    for source, destination in zip(*moves.take(), strict=True):
        at_once[destination] = before[source]
    assert at_once == one_by_one
    assert moves.take() == ([], [])
