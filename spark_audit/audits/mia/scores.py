"""Membership scores of texts, and whether the texts alone tell members apart.

All scores are oriented alike: the larger, the likelier a member. A score tells
membership only if members and non-members are alike but for training; the blind
classifier and the label test look at the texts without any model to check that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_audit.audits.mia.attacks import SCORES, Scored
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.scoring.table import TokenTable

ATTACKS = tuple(one.name for one in sorted(SCORES, key=lambda one: one.order))
BESIDE = ("texts", "blind")
"""Scores that need no audited checkpoint: the best guess, and the guard's."""
FEWEST = 20
"""A task needs this many members and as many non-members to be estimated."""


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
    no response token, no text, no base.
    """
    found = {name: np.full(len(ids), np.nan) for name in ATTACKS}
    scores = [*SCORES]
    columns = {k: values.astype(np.float64) for k, values in table.columns.items()}
    for i, key in enumerate(ids):
        if key not in table or not len(table.position[rows := table.rows(key)]):
            continue
        example, position = manifest.by_id[key], table.position[rows]
        own = None
        if base is not None and key in base:
            theirs = base.rows(key)
            if np.array_equal(position, base.position[theirs]):
                own = -base.columns["nll"][theirs].astype(np.float64)
        one = Scored(
            logp=-columns["nll"][rows],
            response=position >= example.response_token,
            columns={name: values[rows] for name, values in columns.items()},
            text=scored_text(example),
            base=own,
        )
        for score in scores:
            found[score.name][i] = score.run(one)
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
