"""Membership scores of whole tables: which there are, and which claims rest on.

Other packages add theirs by the entry point ``spark_audit.scores``, whose name is the
score's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Metric, registered
from spark_audit.audits.mia.scores import (
    AGAINST_BASE,
    MEMBERSHIP_SCORES,
    TextBlock,
    Untrained,
)
from spark_audit.errors import InputError, one_line
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.names import ANY_NAME
from spark_audit.scoring.table import TokenTable

BASELINE_VARIANTS = ("texts", "blind")
"""Scores that need no audited checkpoint: the best guess, and the guard's."""

RELATIVE_SCORES = frozenset((*AGAINST_BASE, "combined"))
"""Scores against the untrained model: it has none of its own."""

NO_MEMBERS = "the manifest has no members or no non-members"

SCORE_ENTRY_POINTS = "spark_audit.scores"

_RESERVED_SCORES = (*MEMBERSHIP_SCORES, "combined", *BASELINE_VARIANTS)

SCORES_OF_PACKAGES = tuple(
    sorted(entry_points(group=SCORE_ENTRY_POINTS).names - {*_RESERVED_SCORES})
)
"""Scores of other packages: figures to compare with, on which no claim rests."""

ALL_SCORES = (*MEMBERSHIP_SCORES, "combined", *SCORES_OF_PACKAGES)

DECLARED_SCORES = ("loss", "response", "minkpp10", "reference", "wbc", "combined")
"""Scores that claims may rest on, one of each kind, chosen before any audit: only they
are one family, and only they are told of changes, tasks, doses and curves. The others
are figures to compare with; ``ez`` and ``rmia`` count in ``combined``."""

MIN_MEMBERS_FOR_AUC = 20
"""A task needs this many members and as many non-members to be estimated."""

MAX_BLOCK_TOKENS = 1 << 18
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


def response_tokens(example: ManifestExample, position: np.ndarray) -> np.ndarray:
    """Which scored tokens of a text are of the response, shape of ``position``, bool.

    Where it is known which tokens training had loss on, these are.
    """
    had_loss = example.had_loss
    if had_loss is not None:
        return np.asarray(had_loss[position])
    return np.asarray(position >= example.response_token)


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
        Plain table of the untrained model, for the :data:`RELATIVE_SCORES` scores.

    Returns
    -------
    Attack -> shape ``(n,)``; NaN where an example has no such score: nothing scored,
    no response token, no base.
    """
    found = {name: np.full(len(ids), np.nan) for name in ALL_SCORES}
    places = [table.rows(key) if key in table else slice(0, 0) for key in ids]
    first, end = np.array([(at.start, at.stop) for at in places]).reshape(-1, 2).T
    count = end - first
    beside, population = np.full(len(table), np.nan), np.zeros(0)
    if base is not None:
        beside = _aligned(table, base, ids)
        own = [np.arange(at, at + n) for at, n in zip(first, count, strict=True)]
        some = np.concatenate(own)[:: max(1, count.sum() // POPULATION)]
        risen = -table.columns["nll"][some].astype(np.float64) - beside[some]
        population = np.sort(risen[np.isfinite(risen)])
    is_response = np.zeros(len(table), dtype=bool)
    for key, place in zip(ids, places, strict=True):
        is_response[place] = response_tokens(manifest.by_id[key], table.position[place])
    texts = [scored_text(manifest.by_id[key]) for key in ids]
    for at in _blocks(count):
        rows = first[at, None] + np.arange(count[at[0]])
        logp = beside[rows].astype(np.float64)
        known = np.isfinite(logp).all(axis=1)
        block = TextBlock(
            logp=-table.columns["nll"][rows].astype(np.float64),
            response=is_response[rows],
            columns={name: each[rows] for name, each in table.columns.items()},
            texts=[texts[i] for i in at],
            base=Untrained(logp, population),
        )
        for name, score in MEMBERSHIP_SCORES.items():
            if name not in AGAINST_BASE:
                found[name][at] = score(block)
            elif known.any():
                found[name][at] = np.where(known, score(block), np.nan)
        for name, score in further_scores().items():
            try:
                values = np.asarray(score(block), dtype=np.float64)
                if values.shape != at.shape:
                    shape = f"it gives the shape {values.shape}, not one per text"
                    raise ValueError(shape)
            except Exception as error:  # what its makers must mend
                raise InputError(
                    f"the membership score {name!r} fails ({one_line(error)})",
                    fix="update or uninstall the package that registers it",
                ) from error
            found[name][at] = np.where(np.isfinite(values), values, np.nan)
    found["combined"] = mean_rank([found[name] for name in AGAINST_BASE])
    return found


@cache
def further_scores() -> dict[str, Any]:
    """The functions of :data:`SCORES_OF_PACKAGES`; one that is broken is left out.

    Loaded when something is scored: their packages may import this one.
    """

    def fault(name: str, score: Any) -> str:
        return (
            ""
            if name in SCORES_OF_PACKAGES and callable(score)
            else "it is no further score"
        )

    return registered(SCORE_ENTRY_POINTS, fault)


def mean_rank(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Mean of the ranks, 0 to 1, of those scores that a text has; NaN without any."""
    values = np.stack(scores, axis=1)
    known = pd.DataFrame(np.where(np.isfinite(values), values, np.nan))
    # Equal ones share a rank.
    return ((known.rank() - 0.5) / known.count()).mean(axis=1).to_numpy()


def _blocks(count: np.ndarray) -> Iterator[np.ndarray]:
    """Yield examples of equally many tokens, :data:`MAX_BLOCK_TOKENS` at a time.

    Examples without tokens are left out.
    """
    order = np.argsort(count, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(count[order])) + 1):
        if len(part) and (n := int(count[part[0]])):
            step = max(1, MAX_BLOCK_TOKENS // n)
            yield from (part[i : i + step] for i in range(0, len(part), step))


def _aligned(table: TokenTable, other: TokenTable, ids: Sequence[str]) -> np.ndarray:
    """The other table's log-probabilities at the rows of a table; NaN: other tokens."""
    # As exact as the table's own numbers, in half the memory.
    found, nll = np.full(len(table), np.nan, np.float32), other.columns["nll"]
    for key in ids:
        if key in table and key in other:
            ours, own = table.rows(key), other.rows(key)
            places, theirs = table.position[ours], other.position[own]
            if len(places) == len(theirs):
                found[ours] = np.where(places == theirs, -nll[own], np.nan)
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


SCORE_VARIANTS = (*ALL_SCORES, "blind")

MEMBERSHIP_FPRS = {"tpr_at_fpr_5": 0.05, "tpr_at_fpr_1": 0.01, "tpr_at_fpr_0.1": 0.001}

_scored = partial(Metric, bounds=(0.0, 1.0), learned=1, variants=SCORE_VARIANTS)

MEMBERSHIP_METRICS = (
    _scored(
        "auc",
        missing=ALL_SCORES,
        null=0.5,
        glance=(ANY_NAME,),
        headline=("loss", "reference"),
    ),
    *map(_scored, MEMBERSHIP_FPRS),
)
