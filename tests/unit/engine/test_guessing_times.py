"""What a verifier that goes ahead measures of the rounds it drafts for by itself, when it starts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from outrider.acceptance.step_times import StepTimes
from outrider.engine import guessing_times
from outrider.engine.guessing_times import LENGTH, goes_ahead, in_a_row
from outrider.engine.verify import VerifyCore
from outrider.sampling import verify as judging
from tests.conftest import TinyModel
from tests.unit.engine.engines import make_engine
from tests.unit.engine.test_draft_ahead import make_pair
from tests.unit.engine.test_launch_ahead import draw_apart

VERIFY = StepTimes((1, 8, 64), (50.0, 60.0, 200.0), 8, StepTimes((4, 16), (55.0, 120.0)), StepTimes((1,), (40.0,)))
DRAFT = StepTimes((1, 8, 64), (20.0, 30.0, 90.0), further=StepTimes((1,), (5.0,)))


@pytest.fixture(autouse=True)
def _drawn_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "draw_plain", draw_apart)


def test_times_are_moved_to_those_of_rounds_in_a_row(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of sessions; what further tokens and plain rounds take stays, and nothing is left behind."""
    monkeypatch.setattr(guessing_times, "SESSIONS", (1, 4))
    pair = make_pair(tiny_model("llama"), same=True)
    core = pair.core
    assert goes_ahead(core)
    free = core.engine.available_tokens, core.own_draft.engine.available_tokens
    timed: dict[int, tuple[float, float]] = {}
    time = guessing_times._timed

    def noted(core: VerifyCore, sessions: int) -> tuple[float, float] | None:
        found = time(core, sessions)
        assert found is not None
        timed[sessions] = found
        return found

    monkeypatch.setattr(guessing_times, "_timed", noted)
    verify, draft = in_a_row(core, VERIFY, DRAFT)
    assert set(timed) == {1, 4}
    assert verify.plain == VERIFY.plain
    assert draft.further == DRAFT.further
    one, four = (timed[sessions][0] - VERIFY.at((1 + LENGTH) * sessions, sessions) for sessions in (1, 4))
    assert verify.milliseconds[0] == pytest.approx(max(50.0 + one, 5.0))  # the rows of one session
    assert verify.milliseconds[2] == pytest.approx(max(200.0 + four, verify.milliseconds[1]))
    assert draft.milliseconds[0] == pytest.approx(max(20.0 + timed[1][1] - DRAFT.drafting(LENGTH, 1), 2.0))
    for times in (verify, draft, verify.apart):
        assert times is not None
        assert all(0 < before <= after for before, after in pairwise(times.milliseconds))
    assert not core.busy
    assert not len(core.sessions)
    assert not len(core.own_draft.sessions)
    assert (core.engine.available_tokens, core.own_draft.engine.available_tokens) == free


def test_what_does_not_go_ahead_takes_what_its_passes_take(tiny_model: TinyModel) -> None:
    pair = make_pair(tiny_model("llama"), ahead=False)
    assert not goes_ahead(pair.core)
    assert in_a_row(pair.core, VERIFY, DRAFT) == (VERIFY, DRAFT)
    assert not goes_ahead(VerifyCore(make_engine(tiny_model("llama")), max_proposal=15, lease_s=60))


def test_no_more_sessions_are_timed_than_fit(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = make_pair(tiny_model("llama"), max_batch_tokens=16)  # for two sessions' rows
    asked: list[int] = []
    monkeypatch.setattr(guessing_times, "_timed", lambda core, sessions: asked.append(sessions) or (1.0, 1.0))
    in_a_row(pair.core, VERIFY, DRAFT)
    assert asked == [1]
