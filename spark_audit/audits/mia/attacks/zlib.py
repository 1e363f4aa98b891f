"""Mean log-probability over the bytes that the text takes when compressed."""

from __future__ import annotations

import zlib as compression

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored

LEVEL = 6


def compressed_bytes(text: str) -> int:
    """Size of a text under zlib at level 6, in bytes."""
    return len(compression.compress(text.encode(), LEVEL))


@SCORES.register(order=5)
def zlib(one: Scored) -> float:
    """Likelihood beside how much there is to tell."""
    if not one.text:
        return np.nan
    return float(one.logp.mean()) / compressed_bytes(one.text)
