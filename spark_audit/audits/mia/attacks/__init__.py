"""Membership scores: one file each, a function from scored texts to their numbers.

The larger one is, the likelier a text was trained on; NaN where there is none. Texts
come in blocks of as many tokens each, so that nothing loops over them. A function that
takes the untrained model too is not asked where there is none. ``order`` is a score's
place in reports.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from spark_audit.audits.mia.blocks import Scored, Untrained
from spark_audit.registry import Registry

__all__ = ["SCORES", "Score", "Scored", "Untrained"]

Score = Callable[..., np.ndarray]
"""Of a block of ``k`` texts, or of that and :class:`Untrained`: shape ``(k,)``."""

SCORES: Registry[Score] = Registry(
    "spark_audit.audits.mia.attacks",
    kind="membership score",
    folder=Path(__file__).parent,
)
