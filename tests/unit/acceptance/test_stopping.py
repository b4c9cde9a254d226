"""Where answers end: whatever the rounds, text, ids and counters end together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.acceptance.stopping import Emission, Finish, FinishReason, StopConditions, Stopper
from outrider.errors import InvalidArgument

EOS = 99
STOP = FinishReason.STOP
LENGTH = FinishReason.LENGTH


class Pieces:
    """A detokenizer over a table; bytes of a character that is not complete are held back, as real ones do."""

    def __init__(self, table: dict[int, bytes]) -> None:
        self.table = table
        self.pending = b""

    def push(self, token_id: int) -> str:
        self.pending += self.table[token_id]
        for size in range(len(self.pending), max(-1, len(self.pending) - 4), -1):
            try:
                text = self.pending[:size].decode()
            except UnicodeDecodeError:
                continue
            self.pending = self.pending[size:]
            return text
        return ""

    def push_all(self, token_ids: Sequence[int]) -> str:
        return "".join(map(self.push, token_ids))

    def finish(self) -> str:
        tail, self.pending = self.pending.decode(errors="replace"), b""
        return tail


LETTERS = {i: bytes([97 + i]) for i in range(26)} | {EOS: b"</s>"}
WORDS = {
    0: b"Hello",
    1: b" world",
    2: b"END",
    3: b"EN",
    4: b"D",
    5: b" xEND of",
    6: "é".encode()[:1],
    7: "é".encode()[1:],
}


def stopper(table: dict[int, bytes] = LETTERS, *, prompt_length: int = 10, **conditions) -> Stopper:
    conditions = {"max_tokens": 1000, "max_length": 4096, "eos_token_ids": frozenset({EOS})} | conditions
    return Stopper(StopConditions(**conditions), Pieces(table), prompt_length)


def ids(text: str) -> list[int]:
    return [ord(letter) - 97 for letter in text]


def run(watch: Stopper, chunks: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], str, Finish | None]:
    """Push the chunks until the end; everything emitted, concatenated."""
    tokens: tuple[int, ...] = ()
    text = ""
    for chunk in chunks:
        if watch.finish is None:
            emission = watch.push(chunk)
            tokens += emission.token_ids
            text += emission.text
    assert watch.emitted == len(tokens)
    return tokens, text, watch.finish


def test_tokens_pass_through_until_something_ends_them():
    watch = stopper()
    assert watch.push(ids("abc")) == Emission((0, 1, 2), "abc")
    assert watch.push([]) == Emission((), "")
    assert watch.push([3]) == Emission((3,), "d")


def test_case_12_stop_string_completes_early_in_a_long_chunk():
    """Twelve tokens in one round, the stop string after the fourth: the earliest match wins, not the last."""
    chunk = ids("abcdefabcdef")
    assert run(stopper(stop_strings=("cd",)), [chunk]) == ((0, 1, 2, 3), "ab", Finish(STOP, stop_text="cd"))


def test_case_12_stop_string_spans_rounds():
    watch = stopper(stop_strings=("cde",))
    assert watch.push(ids("abc")) == Emission((0, 1, 2), "ab")  # "c" may be its beginning
    assert watch.push(ids("d")) == Emission((3,), "")
    assert watch.push(ids("efg")) == Emission((4,), "", Finish(STOP, stop_text="cde"))


def test_case_12_a_false_beginning_is_given_back():
    watch = stopper(stop_strings=("cde",))
    assert watch.push(ids("abcd")).text == "ab"
    assert watch.push(ids("cdx")).text == "cdcdx"


def test_case_13_text_ids_and_usage_end_at_the_same_token():
    """The stop string begins and ends inside tokens: ids end with the token that completes it, text before it."""
    watch = stopper(WORDS, stop_strings=("END",))
    assert watch.push([0, 5, 1]) == Emission((0, 5), "Hello x", Finish(STOP, stop_text="END"))
    assert watch.emitted == 2


def test_include_stop_keeps_the_string_and_nothing_after_it():
    watch = stopper(WORDS, stop_strings=("END",), include_stop=True)
    assert watch.push([0, 5, 1]) == Emission((0, 5), "Hello xEND", Finish(STOP, stop_text="END"))


@pytest.mark.parametrize("chunks", [[5, 5], [8], [1] * 12, [3, 3, 3, 3]])
def test_case_14_exactly_max_tokens_wherever_the_rounds_end(chunks):
    watch = stopper(max_tokens=8)
    rounds = [ids("abcdefgh"[:size]) for size in chunks]
    tokens, text, finish = run(watch, rounds)
    assert (len(tokens), len(text), finish, watch.emitted) == (8, 8, Finish(LENGTH), 8)


def test_case_14_max_tokens_one():
    watch = stopper(max_tokens=1)
    assert watch.remaining == 1
    assert watch.push(ids("abc")) == Emission((0,), "a", Finish(LENGTH))
    assert watch.remaining == 0


def test_case_15_eos_inside_a_chunk_ends_ids_and_counters():
    watch = stopper()
    assert watch.push([0, 1, EOS, 2, 3]) == Emission((0, 1, EOS), "ab", Finish(STOP, stop_token_id=EOS))
    assert watch.emitted == 3


def test_case_22_context_length_ends_with_length():
    watch = stopper(prompt_length=4092, max_length=4096)
    assert watch.remaining == 4
    assert watch.push(ids("abcdef")) == Emission((0, 1, 2, 3), "abcd", Finish(LENGTH))


def test_a_prompt_that_fills_the_context_leaves_nothing():
    watch = stopper(prompt_length=4096, max_length=4096)
    assert watch.push(ids("a")) == Emission((), "", Finish(LENGTH))


def test_case_28_the_tail_is_flushed_at_every_kind_of_end():
    assert run(stopper(stop_strings=("cde",), max_tokens=4), [ids("abcd")])[1] == "abcd"
    assert run(stopper(stop_strings=("cde",)), [[*ids("abcd"), EOS]])[1] == "abcd"
    assert run(stopper(WORDS, max_tokens=2), [[0, 6]])[1] == "Hello\ufffd"
    watch = stopper(stop_strings=("cde",))
    held = watch.push(ids("abcd"))
    assert watch.abort() == Emission((), "cd", Finish(FinishReason.ABORT))
    assert held.text == "ab"


def test_a_character_cut_between_tokens_comes_whole():
    watch = stopper(WORDS)
    assert [watch.push([token]).text for token in (0, 6, 7)] == ["Hello", "", "é"]


def test_ignore_eos_goes_on_and_its_text_counts():
    assert run(stopper(ignore_eos=True), [[0, EOS, 1]]) == ((0, EOS, 1), "a</s>b", None)


def test_stop_ids_end_the_answer_without_their_text():
    assert run(stopper(stop_token_ids=frozenset({2})), [ids("abcd")]) == (
        (0, 1, 2),
        "ab",
        Finish(STOP, stop_token_id=2),
    )
    kept = run(stopper(stop_token_ids=frozenset({2}), include_stop=True), [ids("abcd")])
    assert kept == ((0, 1, 2), "abc", Finish(STOP, stop_token_id=2))


def test_stop_ids_hold_when_eos_is_ignored():
    conditions = StopConditions(5, 9, frozenset({EOS}), ignore_eos=True, stop_token_ids=frozenset({2}))
    assert conditions.final_token_ids == {2}
    assert StopConditions(5, 9, frozenset({EOS}), stop_token_ids=frozenset({2})).final_token_ids == {2, EOS}


def test_eos_beats_the_budget_at_the_last_token():
    assert run(stopper(max_tokens=3), [[0, 1, EOS]])[2] == Finish(STOP, stop_token_id=EOS)
    assert run(stopper(max_tokens=3, stop_strings=("bc",)), [ids("abc")])[2] == Finish(STOP, stop_text="bc")


def test_of_stop_strings_that_end_together_the_longest_counts():
    assert run(stopper(stop_strings=("c", "abc", "bc")), [ids("xabcx")])[1:] == ("x", Finish(STOP, stop_text="abc"))


def test_the_stop_string_that_completes_first_counts():
    assert run(stopper(stop_strings=("abcd", "bc")), [ids("xabcd")])[1:] == ("xa", Finish(STOP, stop_text="bc"))
    whole = {0: b"xabcd"}
    assert run(stopper(whole, stop_strings=("abcd", "bc")), [[0]])[1:] == ("xa", Finish(STOP, stop_text="bc"))


def test_stop_strings_do_not_count_before_min_tokens():
    tokens, text, _ = run(stopper(stop_strings=("b",), min_tokens=3), [ids("ababab")])
    assert (tokens, text) == ((0, 1, 0, 1), "aba")


def test_a_stop_string_in_the_flushed_tail_still_counts():
    watch = stopper(WORDS, stop_strings=("\ufffd",), max_tokens=2)
    assert run(watch, [[0, 6]]) == ((0, 6), "Hello", Finish(STOP, stop_text="\ufffd"))


@pytest.mark.parametrize(("field", "value"), [("max_tokens", 0), ("stop_strings", ("",))])
def test_impossible_conditions_are_refused(field, value):
    with pytest.raises(InvalidArgument, match="must be"):
        stopper(**{field: value})


def naive(text: str, stops: tuple[str, ...], max_tokens: int, eos_at: int | None) -> tuple[int, str]:
    """Letter by letter: how many tokens count, and the text."""
    for count in range(1, len(text) + 1):
        if eos_at == count - 1:
            return count, text[: count - 1]
        matches = [stop for stop in stops if text[:count].endswith(stop)]
        if matches:
            return count, text[: count - max(map(len, matches))]
        if count == max_tokens:
            return count, text[:count]
    return len(text), text


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=5), max_size=3).map(tuple),
    st.integers(1, 30),
    st.none() | st.integers(0, 29),
    st.lists(st.integers(1, 7), min_size=30, max_size=30),
)
def test_chunks_never_show(text, stops, max_tokens, eos_at, sizes):
    """Any cut into rounds gives what a reading letter by letter gives, and emits no text that it would take back."""
    tokens = ids(text)
    if eos_at is not None and eos_at < len(tokens):
        tokens[eos_at] = EOS
    chunks, start = [], 0
    for size in sizes:
        chunks.append(tokens[start : start + size])
        start += size
    watch = stopper(stop_strings=stops, max_tokens=max_tokens)
    emitted, said, finish = run(watch, chunks)
    if finish is None:
        said += watch.abort().text
    count, expected = naive(text, stops, max_tokens, eos_at)
    assert (len(emitted), said) == (count, expected)


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_how_tokens_cut_the_text_never_shows_in_it(pieces, stops):
    def answer(parts: list[str]) -> tuple[str, Finish | None]:
        watch = stopper({i: part.encode() for i, part in enumerate(parts)}, stop_strings=tuple(stops))
        _, text, finish = run(watch, [[i] for i in range(len(parts))])
        return (text if finish else text + watch.abort().text), finish

    assert answer(pieces) == answer(list("".join(pieces)))
