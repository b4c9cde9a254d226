"""What a coordinator remembers of what it opened where."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.routing.prefixes import STEP, PrefixMemory, beginnings


@given(st.integers(0, 3 * STEP), st.integers(0, 3 * STEP), st.integers(0, 3 * STEP))
def test_the_longest_common_beginning_in_whole_steps(common: int, rest: int, other: int) -> None:
    memory = PrefixMemory()
    memory.remember("a", beginnings([1] * common + [2] * rest, ""))
    text = [1] * common + [3] * other
    found = memory.cached_tokens("a", beginnings(text, ""))
    longest = min(common, max(common + rest - 1, 0), max(common + other - 1, 0))  # neither text's last token counts
    assert found == longest // STEP * STEP
    assert memory.cached_tokens("b", beginnings(text, "")) == 0


def test_tenants_share_nothing() -> None:
    memory = PrefixMemory()
    memory.remember("a", beginnings([1] * 200, "one"))
    assert memory.cached_tokens("a", beginnings([1] * 200, "one")) == 192
    assert memory.cached_tokens("a", beginnings([1] * 200, "two")) == 0


def test_the_longest_unused_is_forgotten_from_its_end() -> None:
    memory = PrefixMemory(capacity=5)
    first, second = beginnings([1] * (3 * STEP + 1), ""), beginnings([2] * (3 * STEP + 1), "")
    memory.remember("a", first)
    memory.remember("a", second)
    assert memory.cached_tokens("a", first) == 2 * STEP
    assert memory.cached_tokens("a", second) == 3 * STEP
