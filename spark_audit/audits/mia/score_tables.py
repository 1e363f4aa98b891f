"""Membership scores of whole tables, and the scores that claims rest on.

A *line* of a table is one scored token, a *position* its index in the text. Texts with
equal numbers of tokens form a block, ``k`` texts of ``n`` tokens each, whose scores
:mod:`~spark_audit.audits.mia.scores` computes. The higher a score, the likelier a
member.

Other packages add scores by the entry point ``spark_audit.scores``; its name is that of
the score. A further budget of false positives is an item of :data:`MEMBERSHIP_FPRS`,
with a name in ``spark_audit/sentences/en/metrics.toml`` and a row in
``docs/metrics.md``; the figure ``report/figures/mia.py`` has its own list of budgets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.base import Metric, Plan
from spark_audit.audits.mia.above_texts import CHANCE_AUC
from spark_audit.audits.mia.scores import (
    AGAINST_BASE,
    MEMBERSHIP_SCORES,
    TextBlock,
    Untrained,
)
from spark_audit.audits.plugins import registered
from spark_audit.errors import InputError, memory_failure
from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.manifest.schema import Manifest
from spark_audit.names import ANY_NAME
from spark_audit.scoring.table import Pass, TokenTable

BASELINE_VARIANTS = ("texts", "blind")
"""Scores that need no audited checkpoint: the best guess and that of the guard."""

RELATIVE_SCORES = frozenset((*AGAINST_BASE, "combined"))
"""Scores relative to the untrained model, which has no such score itself."""

NO_MEMBERS = "the manifest has no members or no non-members"

SCORE_ENTRY_POINTS = "spark_audit.scores"
"""Group of entry points by which other packages register scores."""

_RESERVED_SCORES = (*MEMBERSHIP_SCORES, "combined", *BASELINE_VARIANTS)
"""Names that a score of another package cannot have; such a score is left out."""

SCORES_OF_PACKAGES = tuple(
    sorted(entry_points(group=SCORE_ENTRY_POINTS).names - {*_RESERVED_SCORES})
)
"""Scores of other packages: figures for comparison, on which no claim rests."""

ALL_SCORES = (*MEMBERSHIP_SCORES, "combined", *SCORES_OF_PACKAGES)
"""Scores that a checkpoint has, in the order of reports."""

SCORE_VARIANTS = (*ALL_SCORES, "blind")
"""Scores that have rows in a report. The best guess has none: it is a bar."""

DECLARED_SCORES = ("loss", "response", "minkpp10", "reference", "wbc", "combined")
"""Scores that claims may rest on, one of each kind, chosen before any audit. They form
the family of tests, and only they have changes, curves, and figures by task and dose.
The other scores are figures for comparison; ``ez`` and ``rmia`` count in ``combined``.
"""

MEMBERSHIP_FPRS = {"tpr_at_fpr_5": 0.05, "tpr_at_fpr_1": 0.01, "tpr_at_fpr_0.1": 0.001}
"""Metric of a true-positive rate -> its budget of false positives."""

MIN_MEMBERS_FOR_AUC = 20
"""Least number of members, and of non-members, for estimates of a task."""

MAX_BLOCK_TOKENS = 1 << 18
"""Most tokens of a block of texts, unless a single text has more."""

MIN_POPULATION = 1 << 10
"""Least number of tokens in the sample of all texts' tokens, if there are as many."""


def scored_text(example: ManifestExample) -> str:
    """Return the text that was scored.

    If a text was cut to fit the context, the manifest only knows the number of kept
    tokens. The share of kept characters is taken to be that of tokens.
    """
    text = example.text
    n_tokens = max(len(example.reference_unll), 1)  # of the whole text
    start, end = example.kept  # tokens
    # Assume that tokens are equally long.
    start_character = round(start / n_tokens * len(text))
    end_character = round(end / n_tokens * len(text))
    return text[start_character:end_character]


def response_tokens(example: ManifestExample, position: np.ndarray) -> np.ndarray:
    """Return a mask of the scored tokens that belong to the response.

    If training is known, these are the tokens on which it had loss.

    Parameters
    ----------
    position
        Positions of the scored tokens in the text, shape ``(tokens,)``.

    Returns
    -------
    Shape ``(tokens,)``, bool.
    """
    had_loss = example.had_loss  # (tokens of the text,), bool
    if had_loss is not None:
        # These tokens were the targets of training, whatever the prompt was.
        return np.asarray(had_loss[position])
    return np.asarray(position >= example.response_token)


class TokenLines(NamedTuple):
    """Which lines of a table hold the tokens of each example, shape ``(n,)`` each.

    An example's lines follow one another. Examples that were not scored have none.

    Attributes
    ----------
    start
        Index of the line of the example's first scored token.
    n_tokens
        Number of its lines, which are its scored tokens; 0: it was not scored.
    """

    start: np.ndarray
    n_tokens: np.ndarray


def plan_of_rows(manifest: Manifest) -> Plan:
    """Return the plan of all members and non-members; empty if a side has none."""
    sides = manifest.membership
    if not sides.members or not sides.non_members:
        return {}
    return {Pass(): sorted([*sides.members, *sides.non_members])}


def membership_scores(
    table: TokenTable,
    manifest: Manifest,
    ids: Sequence[str],
    *,
    base: TokenTable | None = None,
) -> dict[str, np.ndarray]:
    """Return scores of examples from their tokens' log-probabilities.

    Parameters
    ----------
    table
        Plain table of a checkpoint.
    ids
        Example ids, ``n`` of them.
    base
        Plain table of the untrained model, for :data:`RELATIVE_SCORES`.

    Returns
    -------
    Attack -> scores, shape ``(n,)``. NaN: an example was not scored, or has no response
    token or no score of the base.
    """
    token_lines = _token_lines(table, ids)
    nll = table.columns["nll"]  # (tokens of the table,), nats
    base_logp = np.full(len(table), np.nan)  # (tokens of the table,), nats
    population = np.zeros(0)
    if base is not None:
        base_logp = _aligned_logp(table, base, ids)
        population = _population(nll, base_logp, token_lines)

    # Find the response tokens, and the text of each example.
    is_response = _response_tokens_of(table, manifest, ids)
    texts = [scored_text(manifest.by_id[key]) for key in ids]

    # Texts with equal numbers of tokens are scored together, as arrays without gaps.
    scores = {attack: np.full(len(ids), np.nan) for attack in ALL_SCORES}
    for examples in _blocks(token_lines.n_tokens):
        n_tokens = token_lines.n_tokens[examples[0]]
        lines = token_lines.start[examples, None] + np.arange(n_tokens)  # (k, n)
        base_block = base_logp[lines].astype(np.float64)  # (k, n), nats
        block = TextBlock(
            logp=-nll[lines].astype(np.float64),
            response=is_response[lines],
            columns={name: column[lines] for name, column in table.columns.items()},
            texts=[texts[i] for i in examples],
            base=Untrained(base_block, population),
        )
        has_base = np.isfinite(base_block).all(axis=1)  # (k,)
        for attack, values in _scores_of_block(block, has_base).items():
            scores[attack][examples] = values

    # The combined score ranks all texts, so it comes after all blocks.
    scores["combined"] = mean_rank([scores[attack] for attack in AGAINST_BASE])
    return scores


def _token_lines(table: TokenTable, ids: Sequence[str]) -> TokenLines:
    """Return the lines of each example's tokens in a table."""
    start = np.zeros(len(ids), np.int64)
    n_tokens = np.zeros(len(ids), np.int64)
    for i, key in enumerate(ids):
        if key in table:
            lines = table.rows(key)
            start[i] = lines.start
            n_tokens[i] = lines.stop - lines.start

    return TokenLines(start, n_tokens)


def _population(
    nll: np.ndarray, base_logp: np.ndarray, token_lines: TokenLines
) -> np.ndarray:
    """Return how far a sample of all texts' tokens rose above the base, sorted.

    The score ``rmia`` compares a text's tokens with it.

    Parameters
    ----------
    nll, base_logp
        By the checkpoint and by the base, shape ``(tokens of the table,)``, nats.

    Returns
    -------
    One value per sampled token that has a score of the base, nats. Sampled are from
    :data:`MIN_POPULATION` to twice as many tokens, evenly spread over those of all
    texts; of fewer tokens, all.
    """
    lines_by_example = [
        np.arange(start, start + n_tokens)
        for start, n_tokens in zip(token_lines.start, token_lines.n_tokens, strict=True)
    ]
    step = max(1, token_lines.n_tokens.sum() // MIN_POPULATION)
    sample = np.concatenate(lines_by_example)[::step]  # lines of the table

    # Above 0 the token is likelier under the checkpoint than under the base.
    rise = -nll[sample].astype(np.float64) - base_logp[sample]
    return np.sort(rise[np.isfinite(rise)])


def _response_tokens_of(
    table: TokenTable, manifest: Manifest, ids: Sequence[str]
) -> np.ndarray:
    """Return a mask of the response tokens, shape ``(tokens of the table,)``."""
    is_response = np.zeros(len(table), dtype=bool)
    for key in ids:
        if key in table:
            lines = table.rows(key)
            position = table.position[lines]
            is_response[lines] = response_tokens(manifest.by_id[key], position)
    return is_response


def _scores_of_block(block: TextBlock, has_base: np.ndarray) -> dict[str, np.ndarray]:
    """Return the scores of a block's texts.

    Parameters
    ----------
    has_base
        Whether the base scored all tokens of a text, shape ``(k,)``.

    Returns
    -------
    Attack -> scores, shape ``(k,)``. If the base scored no text in full, the scores
    against it are left out.
    """
    scores: dict[str, np.ndarray] = {}
    for attack, formula in MEMBERSHIP_SCORES.items():
        if attack not in AGAINST_BASE:
            scores[attack] = formula(block)  # (k,)
        elif has_base.any():
            scores[attack] = np.where(has_base, formula(block), np.nan)

    # Scores of other packages get the same block.
    for attack, formula in further_scores().items():
        scores[attack] = _further_score(attack, formula, block)
    return scores


def _further_score(attack: str, formula: Any, block: TextBlock) -> np.ndarray:
    """Return the score of another package, shape ``(k,)``; NaN: not finite.

    Raises
    ------
    InputError
        If the package fails, which only its authors can mend.
    """
    advice = "update or uninstall the package that registers it"
    try:
        values = np.asarray(formula(block), dtype=np.float64)  # (k,)
    except Exception as error:
        # Its message may quote one of the texts, which the package was given.
        raise InputError(
            f"the membership score {attack!r} fails ({type(error).__name__})",
            fix=advice,
        ) from memory_failure(error)

    n_texts = len(block.logp)
    if values.shape != (n_texts,):
        raise InputError(
            f"the membership score {attack!r} fails: it gives the shape "
            f"{values.shape}, not one per text",
            fix=advice,
        )
    return np.where(np.isfinite(values), values, np.nan)


@cache
def further_scores() -> dict[str, Any]:
    """Return the functions of :data:`SCORES_OF_PACKAGES` by name, without broken ones.

    They are loaded only for scoring, since their packages may import this one.
    """

    def fault(attack: str, formula: Any) -> str:
        """Return why an object cannot be a score of this name; empty: it can."""
        if attack in SCORES_OF_PACKAGES and callable(formula):
            return ""
        return "it is no further score"

    return registered(SCORE_ENTRY_POINTS, fault)


def mean_rank(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean rank, from 0 to 1, over the scores of each text.

    Parameters
    ----------
    scores
        Shape ``(n,)`` each.

    Returns
    -------
    Shape ``(n,)``; NaN without any score. Equal scores share a rank.
    """
    values = np.stack(scores, axis=1)  # (n, scores)
    # An infinite score has no rank, like a missing one.
    finite = pd.DataFrame(np.where(np.isfinite(values), values, np.nan))
    ranks = (finite.rank() - 0.5) / finite.count()  # (n, scores), by column
    return ranks.mean(axis=1).to_numpy()


def _blocks(n_tokens_by_example: np.ndarray) -> Iterator[np.ndarray]:
    """Yield examples with equal numbers of tokens, :data:`MAX_BLOCK_TOKENS` at a time.

    Examples without tokens are left out.

    Parameters
    ----------
    n_tokens_by_example
        Scored tokens of each example, shape ``(n,)``.

    Yields
    ------
    Indices of the examples, shape ``(k,)``.
    """
    shortest_first = np.argsort(n_tokens_by_example, kind="stable")  # (n,)
    sorted_n_tokens = n_tokens_by_example[shortest_first]
    is_longer_than_last = np.diff(sorted_n_tokens) > 0  # (n - 1,)
    begins = np.flatnonzero(is_longer_than_last) + 1
    for examples in np.split(shortest_first, begins):
        # Without any example the split has one empty part.
        if not len(examples):
            continue
        n_tokens = int(n_tokens_by_example[examples[0]])
        if not n_tokens:
            continue

        n_texts = max(1, MAX_BLOCK_TOKENS // n_tokens)
        for start in range(0, len(examples), n_texts):
            yield examples[start : start + n_texts]


def _aligned_logp(
    table: TokenTable, base: TokenTable, ids: Sequence[str]
) -> np.ndarray:
    """Return the base's log-probabilities at the lines of a table.

    NaN where the base has no score at the same position of the text, and for a whole
    text of which it scored another number of tokens.

    Returns
    -------
    Shape ``(tokens of the table,)``, nats.
    """
    # float32 is the precision of the table itself and saves half of the memory.
    logp = np.full(len(table), np.nan, np.float32)
    base_nll = base.columns["nll"]  # (tokens of the base's table,), nats
    for key in ids:
        if key not in table or key not in base:
            continue

        lines = table.rows(key)
        base_lines = base.rows(key)
        position = table.position[lines]
        base_position = base.position[base_lines]
        if len(position) == len(base_position):
            is_same = position == base_position  # (tokens of the text,)
            logp[lines] = np.where(is_same, -base_nll[base_lines], np.nan)
    return logp


def reference_table(manifest: Manifest, ids: Sequence[str]) -> TokenTable:
    """Return the reference model's NLL from the manifest as a table.

    The table has no other column, so scores of the whole distribution are missing.
    """
    items = []
    for key in ids:
        example = manifest.by_id[key]
        position = np.flatnonzero(example.scored)  # (scored tokens,)
        nll = example.reference_nll[position].astype(np.float32)  # nats
        items.append((key, position.astype(np.int32), {"nll": nll}))

    return TokenTable.from_items(items)


def _rate_metric(name: str) -> Metric:
    """Return the metric of a true positive rate."""
    return Metric(name, bounds=(0.0, 1.0), learned=1, variants=SCORE_VARIANTS)


MEMBERSHIP_METRICS = (
    Metric(
        "auc",
        bounds=(0.0, 1.0),
        learned=1,
        variants=SCORE_VARIANTS,
        missing=ALL_SCORES,
        no_effect=CHANCE_AUC,
        glance=(ANY_NAME,),
        headline=("loss", "reference"),
        known_as="auroc",
    ),
    *(_rate_metric(name) for name in MEMBERSHIP_FPRS),
)
