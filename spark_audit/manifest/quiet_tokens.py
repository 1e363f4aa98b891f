"""Tokens of low sensitivity, of which plain text is made."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from spark_audit.data.sensitivity import score2, sensitivity, stop_word_ranges
from spark_audit.manifest import token_corpus
from spark_audit.manifest.schema import ManifestSettings


def low_sensitivity(
    texts: token_corpus.TokenCorpus,
    settings: ManifestSettings,
    *,
    counts: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Scored tokens of plain text with a sensitivity Score of at most ``settings.tau``.

    **[ours]** Score_1 is the reference model's NLL, Score_2 is taken over all tasks and
    rows of the manifest. No identifier, special or template token is among them.

    Parameters
    ----------
    counts
        How often each token stands in the rows of each task: shape ``(V,)`` each.

    Returns
    -------
    numpy.ndarray
        Shape ``(N,)``, bool.
    """
    masks = (
        (row.pii, row.fixed, row.encoding.mask(stop_word_ranges(row.example.text)))
        for row in texts.rows
    )
    pii, fixed, stop = map(np.concatenate, zip(*masks, strict=True))
    by_token = score2([counts[name] for name in sorted(counts)])
    score = sensitivity(
        texts.unll.clip(0) / 1e6,
        by_token[texts.tokens],
        alpha=settings.alpha,
        zero_mask=stop,
    )
    plain = ~(pii | fixed | texts.special) & (texts.unll >= 0)
    return np.asarray(plain & (score <= settings.tau))
