"""The guard that a checkpoint learned the rows that are listed as trained.

If a checkpoint was trained on other rows than the listed ones, or under another
template, no audit notices. The sign of such a mistake is that trained rows fit no
better than held-out ones. But a method that hides its rows well, a very short training,
or one without loss on the text look the same. The guard therefore asks a question and
voids nothing. Any detection answers it.

``fits_of_parts`` (one checkpoint) -> ``trained_rows_guards`` (all checkpoints) ->
``without_answered``, once all audits have concluded -> ``question_of`` for the report.

A row is an example of the manifest, and its parts (:data:`PARTS`) are the whole row and
its response. A change of NLL is that since the base: below 0, a row became likelier.
The class ``Row`` is a figure of the report, not a row of the manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.token_sums import base_nll_of
from spark_audit.manifest.schema import Manifest
from spark_audit.names import entry_of, original_of, series_of
from spark_audit.results import Finding, Guard, Row
from spark_audit.results.findings import Fact
from spark_audit.results.guards import guard
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH
from spark_audit.scoring.table import TokenTable
from spark_audit.stats.memory_contrast import Memory, Sides, memory

TRAINED_ROWS_FIT = "trained_rows_fit"
"""Name of the guard: a warning where trained rows are not shown to fit better."""
MAX_P_BETTER_FIT = 0.05
"""One-sided p below which trained rows fit better than held-out ones."""
WHOLE_ROW = "row"
RESPONSE = "response"
PARTS = (WHOLE_ROW, RESPONSE)
"""Parts of each row that are compared: all of its tokens, and those of its response."""
PART_COLUMNS = ("part", "trained", "cluster", "task", "n_tokens", "change")
"""Columns on a part of a row. ``change`` is that of its NLL since the base, nats,
summed over the ``n_tokens`` scored tokens of the part."""


def trained_rows_guards(fits: Mapping[str, Mapping[str, Memory]]) -> list[Guard]:
    """Return the guards of checkpoints whose fit can be tested (:func:`fit_p`).

    ``passed`` is True if the trained rows fit better; None: the guard asks for the list
    of rows. Checkpoints of one training (:func:`training_of`) share this list. One that
    does not fit gets no guard if another one of its training does.

    Parameters
    ----------
    fits
        Checkpoint -> :func:`fits_of_parts`.
    """
    guard_by_checkpoint = dict[str, Guard]()
    for checkpoint, by_part in fits.items():
        p = fit_p(by_part)
        if p is None:
            continue

        # The p is of all parts, but readers see the figures of whole rows.
        whole_rows = by_part[WHOLE_ROW]
        fits_better = p < MAX_P_BETTER_FIT
        facts: dict[str, Fact] = {
            "fits": fits_better,
            "trained": _change_of(checkpoint, whole_rows, trained=True),
            "held_out": _change_of(checkpoint, whole_rows, trained=False),
            "p": p,
            "limit": MAX_P_BETTER_FIT,
        }
        says = TRAINED_ROWS_FIT
        further = list[str]()
        if not fits_better:
            says = "trained_rows_fit_asked"
            further = ["trained_rows_fit_advice", "trained_rows_fit_alike"]

        guard_by_checkpoint[checkpoint] = guard(
            TRAINED_ROWS_FIT,
            says,
            facts,
            further=further,
            passed=True if fits_better else None,
            checkpoint=checkpoint,
        )

    # A checkpoint that fits answers for the others of its training.
    fitting_trainings = {
        training_of(checkpoint)
        for checkpoint, fit_guard in guard_by_checkpoint.items()
        if fit_guard.passed
    }
    return [
        fit_guard
        for checkpoint, fit_guard in guard_by_checkpoint.items()
        if fit_guard.passed or training_of(checkpoint) not in fitting_trainings
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
    ``n`` of all three counts the tokens of trained rows. ``clusters`` of a mean counts
    those of its own side, and of the difference those of both.
    """
    changes = _changes(table, base_table, manifest)
    fits = dict[str, Memory]()
    for part in PARTS:
        of_part = changes[changes["part"] == part]  # one line per example
        sides = Sides.of(
            trained=of_part["trained"],
            clusters=of_part["cluster"],
            strata=[pd.factorize(of_part["task"])[0]],
            tokens=of_part["n_tokens"],
        )
        fits[part] = memory(
            of_part["change"].to_numpy(np.float64),  # (examples,), nats
            sides,
            reasons=("no trained row was scored", "no held-out row was scored"),
        )
    return fits


def fit_p(by_part: Mapping[str, Memory]) -> float | None:
    """Return the one-sided p that trained rows fit no better than held-out ones.

    It is the smallest p of the tested parts, times how many parts were tested
    (Bonferroni). A part is tested if its difference has a standard error and each side
    has at least :data:`MIN_CLUSTERS_TO_PUBLISH` (5) clusters, so at least 10 rows.
    ``None``: no part can be tested.

    Parameters
    ----------
    by_part
        Part of a row -> its fit, as :func:`fits_of_parts` returns it.
    """
    ps = list[float]()
    for fit in by_part.values():
        # A side of few clusters says too little about the spread between clusters.
        n_clusters_of_smaller_side = min(fit.trained.clusters, fit.held_out.clusters)
        if n_clusters_of_smaller_side < MIN_CLUSTERS_TO_PUBLISH:
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
    """Return the guards without those of the fit that nobody needs any more.

    A guard of the fit (:data:`TRAINED_ROWS_FIT`), asked or passed, is left out if an
    audit answers it, or if nothing can be concluded of its checkpoint. All other guards
    stay.

    A checkpoint that gives anything of its trained rows away was trained on them, and
    so were all others of its training (:func:`training_of`).

    Parameters
    ----------
    guards
        Of all names.
    findings
        Of all audits, corrected over the report.
    void
        Checkpoints of which nothing can be concluded: there is no use in asking.
    """
    # A leak proves that the rows were learned.
    trainings_with_leak = {
        training_of(finding.checkpoint) for finding in findings if finding.detected
    }
    void_names = set(void)

    remaining = []
    for any_guard in guards:
        is_of_fit = any_guard.name == TRAINED_ROWS_FIT
        is_answered = training_of(any_guard.checkpoint) in trainings_with_leak
        # Each checkpoint is void by itself: other seeds of its method may be sound.
        is_void = any_guard.checkpoint in void_names
        if is_of_fit and (is_answered or is_void):
            continue
        remaining.append(any_guard)
    return remaining


def question_of(guards: Iterable[Guard], name: str) -> Guard | None:
    """Return the guard that asks for the list of rows, or None if none asks.

    Of several seeds or stages that ask, it is the first.

    Parameters
    ----------
    guards
        Of all names; those of the fit (:data:`TRAINED_ROWS_FIT`) that passed ask
        nothing.
    name
        A method, or a rounded checkpoint, as the report lists them.
    """
    for any_guard in guards:
        is_open = any_guard.name == TRAINED_ROWS_FIT and any_guard.passed is None
        if is_open and asker_of(any_guard.checkpoint) == name:
            return any_guard
    return None


def training_of(name: str) -> str:
    """Return the method that a seed, a stage or a rounded checkpoint comes from.

    All of them share the list of rows.

    Examples
    --------
    >>> training_of("m[2]"), training_of("m[2]@3"), training_of("m[2]+int8")
    ('m', 'm', 'm')
    """
    return entry_of(series_of(original_of(name)))


def asker_of(name: str) -> str:
    """Return the name under which the report asks a checkpoint's question.

    A seed or a stage asks for its method, but a rounded checkpoint asks for itself.

    Examples
    --------
    >>> asker_of("m[2]"), asker_of("m[2]@3"), asker_of("m[2]+int8")
    ('m', 'm', 'm[2]+int8')
    """
    return entry_of(series_of(name))


def _changes(
    table: TokenTable, base_table: TokenTable | None, manifest: Manifest
) -> pd.DataFrame:
    """Return one line per example and part, with the columns :data:`PART_COLUMNS`.

    Examples that were not scored are left out, and so are parts without a scored token.
    """
    records = list[dict[str, Any]]()
    for example in manifest.examples:
        if example.id not in table:
            continue

        token_slice = table.rows(example.id)
        position = table.position[token_slice]  # (tokens,)
        nll = table.columns["nll"][token_slice].astype(np.float64)  # (tokens,), nats
        change = nll - base_nll_of(example, base_table, position)  # (tokens,), nats

        # Part -> whether it contains each scored token, (tokens,) bool.
        is_in_part = {
            WHOLE_ROW: np.ones(len(position), dtype=bool),
            RESPONSE: position >= example.response_token,
        }
        for part, is_inside in is_in_part.items():
            if not is_inside.any():
                continue
            record = {
                "part": part,
                "trained": example.split == "train",
                "cluster": example.cluster,
                "task": example.task,
                "n_tokens": is_inside.sum(),
                "change": change[is_inside].sum(),
            }
            records.append(record)

    frame = pd.DataFrame(records, columns=[*PART_COLUMNS])
    return frame.astype({"trained": bool, "n_tokens": float, "change": float})


def _change_of(checkpoint: str, whole_rows: Memory, *, trained: bool) -> Row:
    """Return the mean change of NLL of one side as a figure of the report.

    It is of whole rows, in nats per token.
    """
    side = whole_rows.trained if trained else whole_rows.held_out
    return Row.of_estimate(
        side, audit="setup", checkpoint=checkpoint, metric=WHOLE_ROW, unit="nats"
    )
