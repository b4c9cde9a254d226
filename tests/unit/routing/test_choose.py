"""The choice among replicas."""

from __future__ import annotations

from collections import Counter

import pytest

from outrider.routing.choose import Candidate, choose


@pytest.mark.parametrize(
    ("candidates", "options", "expected"),
    [
        ([], {}, None),
        ([Candidate("a", 2), Candidate("b", 1)], {}, "b"),
        ([Candidate("a", 9), Candidate("b", 1)], {"bound_to": "a"}, "a"),
        ([Candidate("b", 1)], {"bound_to": "a"}, "b"),
        ([Candidate("a", 9), Candidate("b", 1)], {"bound_to": "a", "avoid": {"a"}}, "b"),
        ([Candidate("a", 0, draining=True), Candidate("b", 9)], {"bound_to": "a"}, "b"),
        ([Candidate("a", 0, draining=True)], {}, None),
        ([Candidate("a", 9, cached_tokens=64), Candidate("b", 1)], {}, "a"),
        ([Candidate("a", 9, cached_tokens=64), Candidate("b", 1, cached_tokens=64)], {}, "b"),
        ([Candidate("a", 10, cached_tokens=64), Candidate("b", 1)], {}, "b"),
        ([Candidate("a", 20, cached_tokens=128), Candidate("b", 9, cached_tokens=64), Candidate("c", 1)], {}, "b"),
        ([Candidate("a", 0, free_tokens=10), Candidate("b", 9, free_tokens=11)], {"tokens": 11}, "b"),
        ([Candidate("a", 0, free_tokens=10), Candidate("b", 9, free_tokens=9)], {"tokens": 11}, "a"),
        ([Candidate("a", 0), Candidate("b", 9, free_tokens=11)], {"tokens": 11}, "a"),
        ([Candidate("a", 0), Candidate("b", 9)], {"avoid": {"a"}}, "b"),
        ([Candidate("a", 0)], {"avoid": {"a"}}, "a"),
        ([Candidate("a", 0, listed=False), Candidate("b", 9)], {}, "b"),
        ([Candidate("a", 0, listed=False)], {}, "a"),
        ([Candidate("a", 0, listed=False), Candidate("b", 9)], {"avoid": {"b"}}, "a"),
    ],
)
def test_the_order_of_reasons(candidates: list[Candidate], options: dict[str, object], expected: str | None) -> None:
    assert choose("s", candidates, **options) == expected  # type: ignore[arg-type]


def test_equal_replicas_share_the_sessions_whatever_their_order() -> None:
    candidates = [Candidate(address) for address in "abcd"]
    chosen = [choose(f"session {number}", candidates) for number in range(400)]
    assert chosen == [choose(f"session {number}", candidates[::-1]) for number in range(400)]
    assert set(chosen) == set("abcd")
    assert min(Counter(chosen).values()) > 60
