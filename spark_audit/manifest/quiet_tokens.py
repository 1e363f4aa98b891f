"""Select tokens of low sensitivity, which make up plain text.

The formula and its source stand in :mod:`spark_audit.data.sensitivity`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from spark_audit.data.sensitivity import score2, sensitivity, stop_word_ranges
from spark_audit.manifest import token_corpus
from spark_audit.manifest.schema import ManifestSettings
from spark_audit.stats.matching import MICRO_NATS_PER_NAT


def low_sensitivity(
    corpus: token_corpus.TokenCorpus,
    settings: ManifestSettings,
    *,
    counts_by_task: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Return a mask of scored plain-text tokens whose sensitivity is at most ``tau``.

    **[ours]** Score_1 is the reference model's NLL, in nats, and Score_2 covers all
    tasks and rows of the manifest. Identifiers, special tokens and template tokens are
    left out.

    Parameters
    ----------
    counts_by_task
        Counts of tokens in the rows of each task: task -> shape ``(V,)``.

    Returns
    -------
    numpy.ndarray
        Shape ``(N,)``, bool.
    """
    pii_by_row: list[np.ndarray] = []
    fixed_by_row: list[np.ndarray] = []
    stop_words_by_row: list[np.ndarray] = []
    for row in corpus.rows:
        pii_by_row.append(row.is_pii)
        fixed_by_row.append(row.is_template)
        stop_words_by_row.append(row.encoding.mask(stop_word_ranges(row.example.text)))
    is_pii = np.concatenate(pii_by_row)  # (N,), bool
    is_fixed = np.concatenate(fixed_by_row)  # (N,), bool
    is_stop_word = np.concatenate(stop_words_by_row)  # (N,), bool

    # Tasks are sorted, so that their order cannot change the last bit of a mean.
    task_counts = [counts_by_task[task] for task in sorted(counts_by_task)]
    score2_of_token = score2(task_counts)  # (V,)
    score = sensitivity(
        corpus.nll_micronats.clip(0) / MICRO_NATS_PER_NAT,
        score2_of_token[corpus.token_ids],
        alpha=settings.alpha,
        zero_mask=is_stop_word,
    )

    # A token without a score has -1 micro-nats, which is not an NLL.
    is_plain = ~(is_pii | is_fixed | corpus.is_special) & (corpus.nll_micronats >= 0)
    return np.asarray(is_plain & (score <= settings.tau))
