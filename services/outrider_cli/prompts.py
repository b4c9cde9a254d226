"""The demo's built-in prompts: one that copies, an open question, some code."""

from __future__ import annotations

_LETTER = (
    "Dear Ms. Okafor, thank you for your order of 12 garden chairs. The chairs will leave our warehouse in Rotterdam "
    "on Monday, 3 June, and should reach you by Thursday, 6 June. The driver will call you half an hour before he "
    "arrives. If a chair is damaged, please keep the packaging and write to us within 14 days. Kind regards, "
    "Jonas Weber"
)

PROMPTS = {
    "copy": f"Repeat the following letter word for word, and write nothing else.\n\n{_LETTER}",
    "question": "Why does the sea look blue although a glass of water is clear?",
    "code": "Write a Python function that returns the n-th Fibonacci number, then a loop that prints the first ten.",
}
