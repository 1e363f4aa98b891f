"""The doors: what an attacker sees of a checkpoint, from the least to the most.

Each door has one score, which was declared before any audit: the best one that can be
computed from what is seen there. A further door is an item of :data:`DOORS`, a score of
:func:`~spark_audit.audits.doors.scores.door_scores` and words ``variant.doors.NAME`` in
``spark_audit/sentences/en/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

ANSWERS = "answers"
TOP20 = "top20"
LOGPROBS = "logprobs"
DISTRIBUTION = "distribution"
WEIGHTS_AND_BASE = "weights"
STAGES = "all_stages"

LISTED_TOKENS = 20
"""Tokens that a server lists with their log-probabilities."""

ROUNDING_STEPS = (0.01, 0.1)
"""Steps that a server rounds log-probabilities to, nats."""


class Door(NamedTuple):
    """One access to a checkpoint.

    Attributes
    ----------
    name
        The variant of its rows.
    letter
        Its short name, which rules of the gate may use.
    score
        The score that an attacker computes there.
    sees
        What is seen there: one of the names without a rounding.
    step
        What log-probabilities are rounded to, nats; 0: not at all.
    """

    name: str
    letter: str
    score: str
    sees: str
    step: float = 0.0


def _rounded(letter: str, sees: str, score: str) -> list[Door]:
    """Return a door as it is, and with log-probabilities that are rounded."""
    doors = [Door(sees, letter, score, sees)]
    for step in ROUNDING_STEPS:
        name = f"{sees}_{step:g}"
        doors.append(Door(name, f"{letter}_{step:g}", score, sees, step))
    return doors


DOORS = (
    Door(ANSWERS, "a", "first guesses", ANSWERS),
    *_rounded("b", TOP20, "listed log-probability"),
    *_rounded("c", LOGPROBS, "loss"),
    Door(DISTRIBUTION, "d", "loss and minkpp10", DISTRIBUTION),
    Door(WEIGHTS_AND_BASE, "e", "combined", WEIGHTS_AND_BASE),
    Door(STAGES, "f", "series", STAGES),
)
"""All doors, from the one at which the least is seen."""

DOOR_NAMES = tuple(door.name for door in DOORS)

DOOR_BY_NAME: Mapping[str, Door] = {door.name: door for door in DOORS}

NAME_BY_LETTER: Mapping[str, str] = {door.letter: door.name for door in DOORS}

AGAINST_BASE_DOORS = (WEIGHTS_AND_BASE, STAGES)
"""Doors whose score is relative to the base, which has no such score itself."""
