"""docs/failures.md promises nothing without a test: each one that it names exists, and each row names one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/failures.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_exists() -> None:
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    named = re.findall(r"`(test_\w+)`", TEXT)
    assert len(named) > 40
    assert [name for name in named if name not in defined] == []


def test_every_row_names_a_test() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| what happens")]
    assert len(rows) > 25
    shown = [row.rstrip("| ").rpartition(" | ")[2] for row in rows]
    assert [text for text in shown if "`test_" not in text and text != "the chaos run"] == []
