"""Whether the rows that are listed as trained are those that a checkpoint learned.

A checkpoint that was trained on other rows than those listed, or under another
template, gives nothing of them away, so that every audit passes it. Such a mistake
looks like this: trained rows fit no better than held-out ones. A method that hides its
rows well, a very short training and one without loss on the text look alike, so the
guard asks and voids nothing. An audit that detects anything answers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import guard
from spark_audit.manifest.schema import Manifest
from spark_audit.names import entry_of, original_of, series_of
from spark_audit.results import Finding, Guard, Row
from spark_audit.results.findings import Fact
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH
from spark_audit.scoring.table import TokenTable
from spark_audit.stats.memory_contrast import Memory, Sides, memory

TRAINED_ROWS_FIT = "trained_rows_fit"
"""Name of the guard: a warning where trained rows are not shown to fit better."""
MAX_P_BETTER_FIT = 0.05
"""One-sided p below which trained rows fit better than held-out ones."""
PARTS = ("row", "response")
"""What is compared of each row: all of its tokens, and those of its response alone."""
COLUMNS = ("part", "trained", "cluster", "task", "n_tokens", "change")
"""Of a part of a row: its tokens, and the change of its NLL since the base, nats."""


def trained_rows_guards(fits: Mapping[str, Mapping[str, Memory]]) -> list[Guard]:
    """Return one guard for each checkpoint whose fit can be estimated.

    Seeds of a method share a list of rows: if one of them fits the trained rows better,
    the others pass with it.

    Parameters
    ----------
    fits
        Checkpoint -> :func:`fits_of_parts`.
    """
    guards = dict[str, Guard]()
    for checkpoint, by_part in fits.items():
        p = fit_p(by_part)
        if p is None:
            continue
        rows = by_part[PARTS[0]]
        fits_better = p < MAX_P_BETTER_FIT
        facts: dict[str, Fact] = {
            "fits": fits_better,
            "trained": _change_of(checkpoint, rows, trained=True),
            "held_out": _change_of(checkpoint, rows, trained=False),
            "p": p,
            "limit": MAX_P_BETTER_FIT,
        }
        says, further = TRAINED_ROWS_FIT, list[str]()
        if not fits_better:
            says = "trained_rows_fit_asked"
            further = ["trained_rows_fit_advice", "trained_rows_fit_alike"]
        guards[checkpoint] = guard(
            TRAINED_ROWS_FIT,
            says,
            facts,
            further=further,
            passed=True if fits_better else None,
            checkpoint=checkpoint,
        )

    fitting = {training_of(name) for name, one in guards.items() if one.passed}
    return [
        one
        for name, one in guards.items()
        if one.passed or training_of(name) not in fitting
    ]


def fits_of_parts(
    table: TokenTable, base: TokenTable | None, manifest: Manifest
) -> dict[str, Memory]:
    """Return how the NLL of trained and of held-out rows changed since the base.

    Rows are compared within their task. Where the base was not scored, the manifest's
    own scores stand for it.

    Returns
    -------
    Part of a row (:data:`PARTS`) -> both means and their difference, nats per token.
    """
    changes = _changes(table, base, manifest)
    fits = dict[str, Memory]()
    for part in PARTS:
        own = changes[changes["part"] == part]
        sides = Sides.of(
            own["trained"],
            own["cluster"],
            [pd.factorize(own["task"])[0]],
            own["n_tokens"],
        )
        fits[part] = memory(
            own["change"].to_numpy(np.float64),
            sides,
            reasons=("no trained row was scored", "no held-out row was scored"),
        )
    return fits


def fit_p(by_part: Mapping[str, Memory]) -> float | None:
    """Return the one-sided p that trained rows fit no better than held-out ones.

    It is the smaller one of the parts of rows, times their number (Bonferroni).
    ``None``: either side of every part has fewer than five clusters.
    """
    ps = list[float]()
    for own in by_part.values():
        two_sided = own.t_p()
        if min(own.trained.clusters, own.held_out.clusters) < MIN_CLUSTERS_TO_PUBLISH:
            continue
        if two_sided is None or own.difference.value is None:
            continue
        fits_better = own.difference.value < 0
        ps.append(two_sided / 2 if fits_better else 1 - two_sided / 2)
    return min(1.0, len(ps) * min(ps)) if ps else None


def without_answered(
    guards: Iterable[Guard], findings: Iterable[Finding], *, void: Iterable[str]
) -> list[Guard]:
    """Return the guards without the questions that an audit has answered.

    A checkpoint that gives anything of its trained rows away was trained on them, and
    so were its seeds, its stages and what was rounded from it.

    Parameters
    ----------
    void
        Checkpoints of which nothing can be concluded: there is no use in asking.
    """
    detected = {training_of(one.checkpoint) for one in findings if one.detected}
    unneeded = set(void)
    return [
        one
        for one in guards
        if one.name != TRAINED_ROWS_FIT
        or not (training_of(one.checkpoint) in detected or one.checkpoint in unneeded)
    ]


def question_of(guards: Iterable[Guard], name: str) -> Guard | None:
    """Return the open question of a checkpoint, or of the first of its seeds."""
    for one in guards:
        is_open = one.name == TRAINED_ROWS_FIT and one.passed is None
        if is_open and entry_of(series_of(one.checkpoint)) == name:
            return one
    return None


def training_of(name: str) -> str:
    """Return the method that a seed, a stage or a rounded checkpoint comes from.

    All of them share the list of rows.
    """
    return entry_of(series_of(original_of(name)))


def _changes(
    table: TokenTable, base: TokenTable | None, manifest: Manifest
) -> pd.DataFrame:
    """Return tokens and change of NLL of each part of each row: :data:`COLUMNS`."""
    records = list[tuple[Any, ...]]()
    for row in manifest.examples:
        if row.id not in table:
            continue
        rows = table.rows(row.id)
        position = table.position[rows]  # (tokens,)
        nll = table.columns["nll"][rows].astype(np.float64)  # (tokens,), nats
        if base is not None and row.id in base:
            of_base = base.columns["nll"][base.rows(row.id)].astype(np.float64)
        else:
            of_base = row.unll[position] / 1e6  # from micro-nats
        change = nll - of_base

        is_trained = row.split == "train"
        in_response = position >= row.response_token
        masks = {"row": np.ones(len(position), dtype=bool), "response": in_response}
        for part, mask in masks.items():
            if mask.any():
                facts = (part, is_trained, row.cluster, row.task)
                records.append((*facts, mask.sum(), change[mask].sum()))
    kinds = {"trained": bool, "n_tokens": float, "change": float}
    return pd.DataFrame(records, columns=[*COLUMNS]).astype(kinds)


def _change_of(checkpoint: str, rows: Memory, *, trained: bool) -> Row:
    side = rows.trained if trained else rows.held_out
    return Row.of_estimate(
        side, audit="setup", checkpoint=checkpoint, metric="row", unit="nats"
    )
