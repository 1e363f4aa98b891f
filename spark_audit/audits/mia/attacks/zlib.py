"""Mean log-probability over the bytes that the text takes when compressed."""

from __future__ import annotations

import zlib as compression

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored

LEVEL = 6


def compressed_bytes(text: str) -> int:
    """Size of a text under zlib at level 6, in bytes."""
    return len(compression.compress(text.encode(), LEVEL))


@SCORES.register(order=9)
def zlib(block: Scored) -> np.ndarray:
    """Likelihood beside how much there is to tell."""
    size = [compressed_bytes(text) if text else np.nan for text in block.texts]
    return np.asarray(block.logp.mean(axis=1) / np.array(size))
