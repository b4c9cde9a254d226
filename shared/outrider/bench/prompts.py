"""The prompts of a benchmark: from files or the built-in ones, in an order and with seeds that one number decides."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.client import RequestOptions
from outrider.prompts import Prompt
from outrider.text.chat import Message

_LETTER = (
    "Dear Mr. Lindqvist, we have received your two parcels of books, 31 volumes in all, and shelved them in the "
    "reading room on the second floor. The atlas of 1911 has a torn page, number 48, which our binder will repair "
    "before the end of March. We open from ten to six, on Thursdays until eight. With kind regards, Amina Haddad"
)
_TABLE = "name, city, year\nOrtega, Lima, 1984\nNakamura, Osaka, 1991\nDubois, Lyon, 1979\nAdeyemi, Lagos, 2002"
_CODE = (
    "def total(items):\n    result = 0\n    for item in items:\n        result = result + item.price * item.count\n"
    "    return result"
)
_TEXTS = (
    ("copy", f"Repeat the following letter word for word, and write nothing else.\n\n{_LETTER}"),
    ("copy", f"Write this table as JSON, one object for each line.\n\n{_TABLE}"),
    ("edit", f"Add type hints to this function and show all of it.\n\n{_CODE}"),
    ("edit", f"Rewrite this letter so that it is addressed to Ms. Okoye, and change nothing else.\n\n{_LETTER}"),
    ("summary", f"Summarise this letter in two sentences.\n\n{_LETTER}"),
    ("summary", "Summarise in three sentences how a bill becomes a law in a parliament with two chambers."),
    ("code", "Write a Python function that tells whether a string is a palindrome, ignoring case and punctuation."),
    ("code", "Write a SQL query for the three customers with the largest sum of orders in each country."),
    ("code", "Write a shell script that renames all .jpeg files of a directory to .jpg and counts them."),
    ("mathematics", "A train leaves at 9:40 and covers 210 km at 84 km/h. When does it arrive? Show each step."),
    ("mathematics", "Prove that the sum of the first n odd numbers is the square of n."),
    ("question", "Why are there two high tides a day, and not one?"),
    ("question", "What is the difference between weather and climate?"),
    ("chat", "I have one free day in a city by the sea. How should I spend it?"),
    ("chat", "Tell a short story about a lighthouse keeper who finds a letter in a bottle."),
    ("translation", "Translate into French: The museum is closed on Mondays, but the garden stays open all week."),
)
BUILT_IN = tuple(Prompt((Message(role="user", content=text),), "", category) for category, text in _TEXTS)
"""Short prompts of several kinds, so that guesses are good for some and bad for others."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; every mode sends the very same."""

    number: int  # counts from 0 through the whole sweep; warm-up requests have negative ones
    prompt: Prompt
    place: int  # of the prompt, in the list that was given
    seed: int

    def options(self, common: RequestOptions) -> tuple[str | None, RequestOptions]:
        """The prompt argument, if it is raw text, and the keyword arguments for the client."""
        options: RequestOptions = {**common, "seed": self.seed}
        if not self.prompt.messages:
            return self.prompt.text, options
        options["messages"] = [{"role": each["role"], "content": each["content"]} for each in self.prompt.messages]
        return None, options


class RequestList:
    """An endless list of requests: prompts shuffled once and then taken in turns, seeds counting up."""

    def __init__(self, prompts: Sequence[Prompt], seed: int) -> None:
        """`prompts`: at least one."""
        self._prompts = prompts
        self._seed = seed
        self._order = list(range(len(prompts)))
        random.Random(f"prompts {seed}").shuffle(self._order)

    def __getitem__(self, number: int) -> Request:
        place = self._order[number % len(self._order)]
        return Request(number, self._prompts[place], place, (self._seed + number) % 2**64)

    def span(self, first: int, count: int) -> tuple[Request, ...]:
        """`count` of them from number `first` on."""
        return tuple(self[number] for number in range(first, first + count))
