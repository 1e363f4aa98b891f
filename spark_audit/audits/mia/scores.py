"""Membership scores of all texts of a checkpoint, as a table; which one is declared.

All scores are oriented alike: the larger, the likelier a member. Their formulas are in
``score_formulas``; what the texts alone give away is in ``texts``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from spark_audit.audits.base import Metric, registered
from spark_audit.audits.mia.score_formulas import RELATIVE as AGAINST_BASE
from spark_audit.audits.mia.score_formulas import SCORES, Scored, Untrained
from spark_audit.errors import InputError, one_line
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.names import ANY
from spark_audit.scoring.table import TokenTable

BESIDE = ("texts", "blind")
"""Scores that need no audited checkpoint: the best guess, and the guard's."""


RELATIVE = frozenset((*AGAINST_BASE, "combined"))
"""Scores against the untrained model: it has none of its own."""
COMBINED = ("reference", "wbc", "ez", "rmia")
"""Scores whose ranks among all texts ``combined`` is the mean of."""
NO_ROWS = "the manifest has no members or no non-members"
GROUP = "spark_audit.scores"
_TAKEN = (*SCORES, "combined", *BESIDE)
FURTHER = tuple(sorted(entry_points(group=GROUP).names - {*_TAKEN}))
"""Scores of other packages: figures to compare with, on which no claim rests."""
ATTACKS = (*SCORES, "combined", *FURTHER)
DECLARED = ("loss", "response", "minkpp10", "reference", "wbc", "combined")
"""Scores that claims may rest on, one of each kind, chosen before any audit: only they
are one family, and only they are told of changes, tasks, doses and curves. The others
are figures to compare with; ``ez`` and ``rmia`` count in ``combined``."""
FEWEST = 20
"""A task needs this many members and as many non-members to be estimated."""
BLOCK = 1 << 18
"""Tokens at a time."""
POPULATION = 1 << 10
"""Tokens that stand for those of all texts."""


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
    references: Sequence[TokenTable] = (),
) -> dict[str, np.ndarray]:
    """Scores of examples from their tokens' log-probabilities.

    Parameters
    ----------
    table
        Plain table of a checkpoint.
    ids
        Example ids, ``n`` of them.
    base
        Plain table of the untrained model, for the :data:`RELATIVE` scores.
    references
        Further models that were not trained on the texts, for ``rmia``.

    Returns
    -------
    Attack -> shape ``(n,)``; NaN where an example has no such score: nothing scored,
    no response token, no text, no base.
    """
    found = {name: np.full(len(ids), np.nan) for name in ATTACKS}
    first, count = _places(table, ids)
    none = np.full(len(table), np.nan), np.full(len(table), np.nan), np.zeros(0)
    beside = none if base is None else _beside(table, base, references, ids)
    answer = np.array([manifest.by_id[key].response_token for key in ids])
    texts = [scored_text(manifest.by_id[key]) for key in ids]
    for at in _blocks(count):
        rows = first[at, None] + np.arange(count[at[0]])
        logp, mean = (each[rows].astype(np.float64) for each in beside[:2])
        known = np.isfinite(mean).all(axis=1)
        block = Scored(
            logp=-table.columns["nll"][rows].astype(np.float64),
            response=table.position[rows] >= answer[at, None],
            columns={name: each[rows] for name, each in table.columns.items()},
            texts=[texts[i] for i in at],
            base=Untrained(logp, mean, beside[2]),
        )
        for name, score in SCORES.items():
            if name not in AGAINST_BASE:
                found[name][at] = score(block)
            elif known.any():
                found[name][at] = np.where(known, score(block), np.nan)
        for name, score in further_scores().items():
            found[name][at] = _of_another(name, score, block)
    found["combined"] = mean_rank([found[name] for name in COMBINED])
    return found


@cache
def further_scores() -> dict[str, Any]:
    """The functions of :data:`FURTHER`; one that is broken is left out.

    Loaded when something is scored: their packages may import this one.
    """

    def fault(name: str, score: Any) -> str:
        return "" if name in FURTHER and callable(score) else "it is no further score"

    return registered(GROUP, fault)


def _of_another(name: str, score: Any, block: Scored) -> np.ndarray:
    """A score of another package; what it fails with is its makers' to mend."""
    try:
        values = np.asarray(score(block), dtype=np.float64)
        if values.shape != (len(block.logp),):
            raise ValueError(f"it gives the shape {values.shape}, not one per text")
    except Exception as error:
        raise InputError(
            f"the membership score {name!r} fails ({one_line(error)})",
            fix="update or uninstall the package that registers it",
        ) from error
    return np.where(np.isfinite(values), values, np.nan)


def mean_rank(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Mean of the ranks, 0 to 1, of those scores that a text has; NaN without any."""
    total, known = np.zeros(len(scores[0])), np.zeros(len(scores[0]))
    for values in scores:
        has = np.isfinite(values)
        _, place, held = np.unique(values[has], return_inverse=True, return_counts=True)
        middle = np.cumsum(held) - held / 2  # equal ones share a rank
        total[has] += middle[place] / max(has.sum(), 1)
        known += has
    return np.where(known > 0, total / np.maximum(known, 1), np.nan)


def _places(table: TokenTable, ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """First row and number of rows of each example, 0 and 0 of one that lacks."""
    rows = [table.rows(key) if key in table else slice(0, 0) for key in ids]
    ends = np.array([(each.start, each.stop) for each in rows]).reshape(-1, 2)
    return ends[:, 0], ends[:, 1] - ends[:, 0]


def _blocks(count: np.ndarray) -> Iterator[np.ndarray]:
    """Examples with as many tokens each, none without, some :data:`BLOCK` at a time."""
    order = np.argsort(count, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(count[order])) + 1):
        if len(part) and (n := int(count[part[0]])):
            step = max(1, BLOCK // n)
            yield from (part[i : i + step] for i in range(0, len(part), step))


def _beside(
    table: TokenTable,
    base: TokenTable,
    references: Sequence[TokenTable],
    ids: Sequence[str],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What :class:`Untrained` holds, by the table's rows; NaN at other tokens."""
    logp = _aligned(table, base, ids)
    mean = logp
    for other in references:
        mean = np.logaddexp(mean, _aligned(table, other, ids), dtype=np.float64)
    mean = mean - np.log(1 + len(references)) if references else logp
    # Drawn evenly in the order of the examples, whatever order the table has.
    first, count = _places(table, ids)
    ends = np.cumsum(count)
    drawn = np.arange(0, count.sum(), max(1, count.sum() // POPULATION))
    text = np.searchsorted(ends, drawn, side="right")
    rows = first[text] + drawn - (ends - count)[text]
    ratio = -table.columns["nll"][rows].astype(np.float64) - mean[rows]
    return logp, mean, np.sort(ratio[np.isfinite(ratio)])


def _aligned(table: TokenTable, other: TokenTable, ids: Sequence[str]) -> np.ndarray:
    """The other table's log-probabilities at the rows of a table; NaN: other tokens."""
    (first, count), (theirs, length) = (_places(each, ids) for each in (table, other))
    # As exact as the table's own numbers, in half the memory.
    found = np.full(len(table), np.nan, np.float32)
    alike = np.flatnonzero((count == length) & (count > 0))
    for part in np.array_split(alike, -(-int(count[alike].sum()) // BLOCK) or 1):
        inside = np.arange(count[part].sum())
        inside -= np.repeat(np.cumsum(count[part]) - count[part], count[part])
        ours, own = (
            np.repeat(each[part], count[part]) + inside for each in (first, theirs)
        )
        same = table.position[ours] == other.position[own]
        found[ours[same]] = -other.columns["nll"][own[same]]
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


OFS = (*ATTACKS, "blind")
FPRS = {"tpr_at_fpr_5": 0.05, "tpr_at_fpr_1": 0.01, "tpr_at_fpr_0.1": 0.001}

_scored = partial(Metric, bounds=(0.0, 1.0), learned=1, variants=OFS)
METRICS = (
    _scored(
        "auc", missing=ATTACKS, null=0.5, glance=(ANY,), headline=("loss", "reference")
    ),
    *map(_scored, FPRS),
)
