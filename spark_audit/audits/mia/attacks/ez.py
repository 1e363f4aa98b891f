"""Rises over falls since the base, at tokens that the checkpoint guesses wrong."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored, Untrained

LIMIT = 1e9
"""From here on no token fell: such texts rank above all others, by how far they rose.
The published code gives them 0, the lowest score there is."""
FEWEST = 2
EPSILON = 1e-12


@SCORES.register(order=12)
def ez(block: Scored, base: Untrained) -> np.ndarray:
    """Error-zone ratio (arXiv 2601.12104), without its first scored token.

    NaN with fewer than two wrong first guesses, and where no wrong guess moved at all.
    """
    if "rank_lo" not in block.columns:
        return np.full(len(block.logp), np.nan)
    wrong = block.columns["rank_lo"][:, 1:] > 1
    moved = np.where(wrong, block.logp[:, 1:] - base.logp[:, 1:], 0.0)
    up = np.maximum(moved, 0.0).sum(axis=1)
    down = np.maximum(-moved, 0.0).sum(axis=1)
    ratio = np.where(down > 0, np.minimum(up / (down + EPSILON), LIMIT), LIMIT + up)
    known = (wrong.sum(axis=1) >= FEWEST) & (up + down > 0)
    return np.where(known, ratio, np.nan)
