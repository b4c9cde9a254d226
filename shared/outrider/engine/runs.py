"""Free block numbers kept as maximal runs, so that a session's blocks can lie side by side."""

from __future__ import annotations


class FreeRuns:
    """A set of integers that hands out consecutive ones where it can.

    Neighbouring runs merge when numbers come back. `add` costs O(1), `take` O(number of runs).
    """

    def __init__(self, count: int) -> None:
        self._end_by_start: dict[int, int] = {0: count} if count else {}
        self._start_by_end: dict[int, int] = {count: 0} if count else {}
        self._count = count

    def __len__(self) -> int:
        return self._count

    def add(self, number: int) -> None:
        """Put `number`, which is not in the set, back."""
        start = self._start_by_end.pop(number, number)
        end = self._end_by_start.pop(number + 1, number + 1)
        self._end_by_start[start] = end
        self._start_by_end[end] = start
        self._count += 1

    def take(self, count: int, first: int | None = None) -> list[int]:
        """Take `count` numbers out, from `first` on if these are free.

        Otherwise from the smallest run that holds them all, and if there is none, from as few runs as possible.
        """
        assert count <= self._count
        taken: list[int] = []
        if first is not None and self._end_by_start.get(first, 0) - first >= count:
            self._shrink(first, self._end_by_start[first], first + count)
            return list(range(first, first + count))
        while len(taken) < count:
            wanted = count - len(taken)
            start, end = self._best_run(wanted)
            stop = min(end, start + wanted)
            taken.extend(range(start, stop))
            self._shrink(start, end, stop)
        return taken

    def _best_run(self, wanted: int) -> tuple[int, int]:
        """The shortest run of at least `wanted` numbers, else the longest; of equals the first."""

        def preference(run: tuple[int, int]) -> tuple[bool, int, int]:
            length = run[1] - run[0]
            return (length < wanted, length if length >= wanted else -length, run[0])

        return min(self._end_by_start.items(), key=preference)

    def _shrink(self, start: int, end: int, stop: int) -> None:
        del self._end_by_start[start]
        del self._start_by_end[end]
        if stop < end:
            self._end_by_start[stop] = end
            self._start_by_end[end] = stop
        self._count -= stop - start
