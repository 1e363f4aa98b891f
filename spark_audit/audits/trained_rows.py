"""The guard that a checkpoint learned the rows that are listed as trained.

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

from spark_audit.audits import base
from spark_audit.audits.token_sums import MICRO_NATS
from spark_audit.manifest.schema import Manifest, ManifestExample
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
"""Parts of each row that are compared: all of its tokens, and those of its response."""
COLUMNS = ("part", "trained", "cluster", "task", "n_tokens", "change")
"""Columns on a part of a row; ``change`` is that of its NLL since the base, nats."""


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

        # The figures that readers see are of whole rows.
        rows = by_part[PARTS[0]]
        fits_better = p < MAX_P_BETTER_FIT
        facts: dict[str, Fact] = {
            "fits": fits_better,
            "trained": _change_of(checkpoint, rows, trained=True),
            "held_out": _change_of(checkpoint, rows, trained=False),
            "p": p,
            "limit": MAX_P_BETTER_FIT,
        }
        says = TRAINED_ROWS_FIT
        further = list[str]()
        if not fits_better:
            says = "trained_rows_fit_asked"
            further = ["trained_rows_fit_advice", "trained_rows_fit_alike"]

        guards[checkpoint] = base.guard(
            TRAINED_ROWS_FIT,
            says,
            facts,
            further=further,
            passed=True if fits_better else None,
            checkpoint=checkpoint,
        )

    # A seed that fits answers for the other seeds.
    fitting_methods = {
        training_of(name) for name, guard in guards.items() if guard.passed
    }
    return [
        guard
        for name, guard in guards.items()
        if guard.passed or training_of(name) not in fitting_methods
    ]


def fits_of_parts(
    table: TokenTable, base_table: TokenTable | None, manifest: Manifest
) -> dict[str, Memory]:
    """Return how the NLL of trained and of held-out rows changed since the base.

    Rows are compared within their task.

    Parameters
    ----------
    base_table
        Scores of the base; ``None``: the manifest's own scores stand for them.

    Returns
    -------
    Part of a row (:data:`PARTS`) -> both means and their difference, nats per token.
    """
    changes = _changes(table, base_table, manifest)
    fits = dict[str, Memory]()
    for name in PARTS:
        rows = changes[changes["part"] == name]
        sides = Sides.of(
            rows["trained"],
            rows["cluster"],
            [pd.factorize(rows["task"])[0]],
            rows["n_tokens"],
        )

        fits[name] = memory(
            rows["change"].to_numpy(np.float64),  # (rows,), nats
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
    for fit in by_part.values():
        # With few clusters on one side there is no test.
        n_clusters = min(fit.trained.clusters, fit.held_out.clusters)
        if n_clusters < MIN_CLUSTERS_TO_PUBLISH:
            continue
        two_sided = fit.t_p()
        if two_sided is None or fit.difference.value is None:
            continue

        # Below 0, trained rows became likelier than held-out ones.
        if fit.difference.value < 0:
            ps.append(two_sided / 2)
        else:
            ps.append(1 - two_sided / 2)

    if not ps:
        return None
    return min(1.0, len(ps) * min(ps))


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
    # A leak shows that the rows were learned.
    detected = {
        training_of(finding.checkpoint) for finding in findings if finding.detected
    }
    void_names = set(void)

    remaining = []
    for guard in guards:
        is_question = guard.name == TRAINED_ROWS_FIT
        is_answered = training_of(guard.checkpoint) in detected
        is_of_no_use = guard.checkpoint in void_names
        if is_question and (is_answered or is_of_no_use):
            continue
        remaining.append(guard)
    return remaining


def question_of(guards: Iterable[Guard], name: str) -> Guard | None:
    """Return the open question of a checkpoint, or of the first of its seeds."""
    for guard in guards:
        # Seeds and stages ask for their method.
        is_open = guard.name == TRAINED_ROWS_FIT and guard.passed is None
        if is_open and entry_of(series_of(guard.checkpoint)) == name:
            return guard
    return None


def training_of(name: str) -> str:
    """Return the method that a seed, a stage or a rounded checkpoint comes from.

    All of them share the list of rows.
    """
    return entry_of(series_of(original_of(name)))


def _changes(
    table: TokenTable, base_table: TokenTable | None, manifest: Manifest
) -> pd.DataFrame:
    """Return tokens and change of NLL of each part of each row: :data:`COLUMNS`."""
    records = list[dict[str, Any]]()
    for row in manifest.examples:
        # Rows that were not scored are left out.
        if row.id not in table:
            continue

        rows = table.rows(row.id)
        position = table.position[rows]  # (tokens,)
        nll = table.columns["nll"][rows].astype(np.float64)  # (tokens,), nats
        change = nll - _base_nll(row, base_table, position)  # (tokens,), nats

        in_response = position >= row.response_token  # (tokens,), bool
        masks = {"row": np.ones(len(position), dtype=bool), "response": in_response}
        for part_name, is_inside in masks.items():
            if not is_inside.any():
                continue
            record = {
                "part": part_name,
                "trained": row.split == "train",
                "cluster": row.cluster,
                "task": row.task,
                "n_tokens": is_inside.sum(),
                "change": change[is_inside].sum(),
            }
            records.append(record)

    frame = pd.DataFrame(records, columns=[*COLUMNS])
    return frame.astype({"trained": bool, "n_tokens": float, "change": float})


def _base_nll(
    row: ManifestExample, base_table: TokenTable | None, position: np.ndarray
) -> np.ndarray:
    """Return the NLL of a row by the base, ``(tokens,)``, nats.

    ``position`` has the places of the scored tokens, of the same shape.
    """
    # Without scores of the base, the manifest has its own, in micro-nats.
    if base_table is not None and row.id in base_table:
        rows = base_table.rows(row.id)
        return np.asarray(base_table.columns["nll"][rows], np.float64)
    return np.asarray(row.unll[position] / MICRO_NATS)


def _change_of(checkpoint: str, rows: Memory, *, trained: bool) -> Row:
    """Return the change of NLL of one side's rows, nats per token."""
    side = rows.trained if trained else rows.held_out
    return Row.of_estimate(
        side, audit="setup", checkpoint=checkpoint, metric="row", unit="nats"
    )
