"""Membership scores of texts, and whether the texts alone tell members apart.

All scores are oriented alike: the larger, the likelier a member. A score tells
membership only if members and non-members are alike but for training; the blind
classifier and the label test look at the texts without any model to check that.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.scoring.table import TokenTable

ATTACKS = ("loss", "response", "mink10", "minkpp10", "zlib", "reference")
SHARE = 0.1
SD_FLOOR = 1e-4
"""Below this, a next-token distribution counts as having no spread."""
ZLIB_LEVEL = 6
FEWEST = 20
"""A task needs this many members and as many non-members to be estimated."""


def lowest_mean(values: np.ndarray, share: float = SHARE) -> float:
    """Mean of the ``max(1, floor(share n))`` smallest values.

    Min-K% Prob (Shi et al. 2024, "Detecting Pretraining Data from Large Language
    Models"); a short text always keeps one token.
    """
    if not len(values):
        raise ValueError("there is no value")
    count = max(1, int(np.floor(share * len(values) + 1e-9)))
    return float(np.partition(values, count - 1)[:count].mean())


def z_scores(logp: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Log-probabilities against the model's own next-token distribution.

    ``(logp - mean) / sd``, 0 where ``sd`` is below :data:`SD_FLOOR`; their lowest mean
    is Min-K%++ (Zhang et al. 2025, "Min-K%++: Improved Baseline for Detecting
    Pre-Training Data from Large Language Models").
    """
    usable = sd >= SD_FLOOR
    return np.where(usable, (logp - mean) / np.where(usable, sd, 1.0), 0.0)


def compressed_bytes(text: str) -> int:
    """Size of a text under zlib at level 6, in bytes."""
    return len(zlib.compress(text.encode(), ZLIB_LEVEL))


def scored_text(example: ManifestExample) -> str:
    """The text that was scored.

    Where a text was cut to fit the context, the manifest knows the cut in tokens only:
    the share of characters that is kept is that of the tokens.
    """
    text = example.text
    total = len(example.reference_unll)
    start, end = example.kept
    low, high = (round(at / max(total, 1) * len(text)) for at in (start, end))
    return text[low:high]


def membership_scores(
    table: TokenTable,
    manifest: Manifest,
    ids: Sequence[str],
    *,
    base: TokenTable | None = None,
) -> dict[str, np.ndarray]:
    """Scores of examples from their tokens' log-probabilities.

    Parameters
    ----------
    table
        Plain table of a checkpoint.
    ids
        Example ids, ``n`` of them.
    base
        Plain table of the untrained model, for ``reference``.

    Returns
    -------
    Attack -> shape ``(n,)``; NaN where an example has no such score: nothing scored,
    no response token, no text, no base. ``loss`` and ``response`` are mean
    log-probabilities (nats), ``zlib`` the first over the compressed bytes,
    ``reference`` the first minus that of the base on the same tokens.
    """
    found = {name: np.full(len(ids), np.nan) for name in ATTACKS}
    columns = {
        name: table.columns[name].astype(np.float64)
        for name in ("nll", "mean_logp", "sd_logp")
        if name in table.columns
    }
    for i, key in enumerate(ids):
        if key not in table:
            continue
        rows = table.rows(key)
        logp = -columns["nll"][rows]
        if not len(logp):
            continue
        example = manifest.by_id[key]
        loss = float(logp.mean())
        response = logp[table.position[rows] >= example.response_token]
        found["loss"][i] = loss
        if len(response):
            found["response"][i] = response.mean()
        found["mink10"][i] = lowest_mean(logp)
        if "sd_logp" in columns:
            z = z_scores(logp, columns["mean_logp"][rows], columns["sd_logp"][rows])
            found["minkpp10"][i] = lowest_mean(z)
        if text := scored_text(example):
            found["zlib"][i] = loss / compressed_bytes(text)
        if base is not None and key in base:
            theirs = base.rows(key)
            if np.array_equal(table.position[rows], base.position[theirs]):
                nll = base.columns["nll"][theirs].astype(np.float64)
                found["reference"][i] = loss + float(nll.mean())
    return found


def reference_table(manifest: Manifest, ids: Sequence[str]) -> TokenTable:
    """The reference model's NLL as the manifest holds it, where nobody scored it again.

    There is no other column: scores that need the whole distribution are not had.
    """
    items = []
    for key in ids:
        unll = manifest.by_id[key].unll
        position = np.flatnonzero(unll >= 0)
        nll = (unll[position] / 1e6).astype(np.float32)
        items.append((key, position.astype(np.int32), {"nll": nll}))
    return TokenTable.from_items(items)
