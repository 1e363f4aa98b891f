"""Share of windows of tokens that the checkpoint finds likelier than the base."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored, Untrained

WINDOWS = (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)
"""Tokens, as published; a shorter text is one window."""


@SCORES.register(order=11)
def wbc(block: Scored, base: Untrained) -> np.ndarray:
    """Window-based comparison (arXiv 2601.02751), averaged over its window sizes.

    Only whether a window's loss fell counts, not by how much: a few odd tokens cannot
    carry a text. A window whose loss stayed the same did not fall.
    """
    k, n = block.logp.shape
    total = np.zeros((k, n + 1))
    np.cumsum(block.logp - base.logp, axis=1, out=total[:, 1:])
    found = np.zeros(k)
    for size in WINDOWS:
        wide = min(size, n)
        found += (total[:, wide:] > total[:, : n + 1 - wide]).mean(axis=1)
    return found / len(WINDOWS)
