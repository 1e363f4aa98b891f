"""Membership scores: one file each, a function from a scored text to a number.

The larger it is, the likelier the text was trained on; NaN where there is none.
``order`` is a score's place in reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spark_audit.registry import Registry


@dataclass(frozen=True)
class Scored:
    """A text as a checkpoint scored it, ``n`` tokens.

    ``logp`` (nats) and ``response``, whether a token is of the response, have shape
    ``(n,)``, as have the other ``columns`` of the plain pass; ``base`` is the untrained
    model's ``logp`` where it is known, ``text`` what was scored, empty if unknown.
    """

    logp: np.ndarray
    response: np.ndarray
    columns: Mapping[str, np.ndarray]
    text: str
    base: np.ndarray | None


SCORES: Registry[Callable[[Scored], float]] = Registry(
    "spark_audit.audits.mia.attacks",
    kind="membership score",
    folder=Path(__file__).parent,
)
