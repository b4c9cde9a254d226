"""Python's search for cyclic garbage, in processes that answer within milliseconds."""

from __future__ import annotations

import gc

OBJECTS = 50_000
"""New objects after which the young ones are looked at; Python's own number is 700."""


def collect_seldom() -> None:
    """From now on look for cyclic garbage seldom, and never among what is there by now. Called once a process serves.

    A round makes hundreds of objects that live as long as the round, and next to no cycles: with 1,000 sessions in one
    frame, looking at them all again and again takes a tenth of a coordinator's processor. A process that holds models
    has hundreds of thousands of objects that stay: looking at all of them stops it in the middle of an answer.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS)
