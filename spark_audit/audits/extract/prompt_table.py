"""The table of prompts: how many identifiers are reproduced after each of them.

Each prompt is compared with the same prompt for identifiers never trained on, and with
the base. Only the true prefix is a primary test
(:mod:`~spark_audit.audits.extract.comparison`); the others are one exploratory family,
corrected by Holm in their own table.

The table ``extract_prompts`` of a report has one record by checkpoint, prompt and what
is counted. A *span* is an identifier in a row of text, a *trial* what can be a hit: the
whole identifier, or one of its parts.

=========================  ==========================================================
column                     meaning
=========================  ==========================================================
checkpoint, prompt         the checkpoint, and the prompt after which it was scored
variant                    what is counted: whole identifiers, or a kind of their parts
spans, clusters            numbers of identifiers of trained rows that were asked for,
                           and of their clusters
tried, found               trials of these, and hits among them without ties
base_found                 hits of the base on the same trials, ties won; None: not
                           scored
held_out, held_out_found   as ``tried`` and ``found``, of rows never trained on
beyond_points, low, high   rate of trained minus held-out rows, less the same
                           difference at the base; without held-out rows: minus the
                           base. With its limits, in percentage points, rounded to
                           two digits; above 0 is a leak
true_prefix                whole identifiers: those of ``spans`` that are reproduced
                           after their true prefix
cue_too                    whole identifiers: those of ``found`` that the cue gives in
                           another row's context, too
top40_within_10, ...       whole identifiers: those that come out within so many draws
                           with a chance of at least one half
note                       why no difference is estimable
shown                      whether a difference above 0 was found; None: not tested here
=========================  ==========================================================

A new column is set in :func:`_prompt_record`, or for whole identifiers alone in
:func:`_counts_of_identifiers`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.extract.prompts import FULL_PROMPT
from spark_audit.audits.extract.rates import (
    NOT_COMPARED,
    POINTS_OF_WHOLE,
    by_checkpoint,
    difference_beyond_base,
    value_and_limits,
)
from spark_audit.manifest.asked_prompts import CUE_PROMPT, PROMPTS
from spark_audit.names import BASE
from spark_audit.results.audit_result import TableRecord
from spark_audit.stats.estimate import is_significant
from spark_audit.stats.multiple_tests import holm_by_key
from spark_audit.stats.sampled_extraction import n_p

WHOLE = "identifiers"
"""Counted are whole identifiers."""

DIGITS_OF_STRING = "digits"
"""Counted are the digits of identifiers that are no e-mail addresses."""

LOCAL = "local parts"
"""Counted are the texts before the @ of e-mail addresses."""

DRAWS_COUNTED = (1, 10, 100)
"""Numbers of draws for which the table states the identifiers that come out."""

COLUMNS_OF_ANSWER = ["checkpoint", "prompt", "span"]
"""Columns that name one line of the frames of this file: how a checkpoint answered a
prompt that asks for an identifier."""

DECIMALS_OF_POINTS = 2
"""Decimals of percentage points in the table."""

NOT_ASKED = "no identifier of a trained row fits this prompt"

PROMPT_NOT_SCORED = "the texts of this prompt were not scored"


def with_cue_and_base(spans: pd.DataFrame) -> pd.DataFrame:
    """Return spans after their true prefix, with the hits of the cue and of the base.

    The cue is the few tokens in front of an identifier, placed behind the context of
    another row. Its hits are no memory of the identifier's own row, nor are those of
    the base: :mod:`~spark_audit.audits.extract.guessing` does not count them.

    Parameters
    ----------
    spans
        One row per checkpoint, identifier and prompt: columns ``checkpoint``,
        ``prompt``, ``span`` and ``greedy``.

    Returns
    -------
    The rows of the true prefix. The added columns count ties as won: ``cue``, whether
    the cue gives the span, at this checkpoint or the base; ``cue_asked``, whether there
    was a cue prompt; ``base``, whether the base gives the span after the true prefix or
    the cue. ``trials`` is always 1.
    """
    is_hit = spans["greedy"].astype(bool)
    hits = pd.MultiIndex.from_frame(spans.loc[is_hit, COLUMNS_OF_ANSWER])

    def is_reproduced(rows: pd.DataFrame) -> np.ndarray:
        """Return a mask of hits, shape ``(rows,)``; columns: ``COLUMNS_OF_ANSWER``."""
        return np.asarray(pd.MultiIndex.from_frame(rows).isin(hits))

    # Look the same spans up after the cue, at the base, and after the cue at the base.
    after_prefix = spans[spans["prompt"] == FULL_PROMPT]
    answers = after_prefix[COLUMNS_OF_ANSWER]
    is_cued = is_reproduced(answers.assign(prompt=CUE_PROMPT))
    is_base = is_reproduced(answers.assign(checkpoint=BASE))
    is_base_cued = is_reproduced(answers.assign(checkpoint=BASE, prompt=CUE_PROMPT))

    cued_spans = spans.loc[spans["prompt"] == CUE_PROMPT, "span"]
    return after_prefix.assign(
        trials=1,
        cue=is_cued | is_base_cued,
        cue_asked=after_prefix["span"].isin(cued_spans),
        base=is_base | is_base_cued,
    )


class PromptRecord(NamedTuple):
    """Columns of one record, and the raw p of its difference; ``None``: no test."""

    columns: TableRecord
    p: float | None


def prompt_table(spans: pd.DataFrame, *, seed: int) -> list[TableRecord]:
    """Return the records of all prompts, by checkpoint, and the true prefix first.

    For each prompt one record is of whole identifiers, the others of their parts
    (:func:`~spark_audit.audits.extract.prompts.graded`). A prompt that asked for no
    trained identifier has none. The list is empty if only the true prefix was asked.

    Parameters
    ----------
    spans
        As for :func:`with_cue_and_base`, with the columns of
        :mod:`~spark_audit.audits.extract.rates`, ``parts`` and ``parts_right``.
    """
    if set(spans["prompt"]) <= {FULL_PROMPT}:
        return []

    # The columns on the true prefix and the cue are read from these spans.
    after_true_prefix = by_checkpoint(with_cue_and_base(spans))
    has_cue = bool((spans["prompt"] == CUE_PROMPT).any())

    spans_by_unit = _spans_by_unit(spans)
    records: list[PromptRecord] = []
    for prompt in (FULL_PROMPT, *PROMPTS):
        for unit, spans_of_unit in spans_by_unit.items():
            is_of_prompt = spans_of_unit["prompt"] == prompt
            has_trials = spans_of_unit["trials"] > 0
            asked_spans = spans_of_unit[is_of_prompt & has_trials]
            for name, asked in by_checkpoint(asked_spans).items():
                if not (asked["split"] == "train").any():
                    continue

                record = _prompt_record(name, prompt, unit, asked, seed=seed)
                if unit == WHOLE:
                    counts = _counts_of_identifiers(
                        asked, after_true_prefix[name], has_cue=has_cue
                    )
                    record.columns.update(counts)
                records.append(record)

    # By checkpoint; sorting keeps the order of prompts.
    names = list(after_true_prefix)
    records.sort(key=lambda record: names.index(record.columns["checkpoint"]))
    return _with_verdicts(records)


def _spans_by_unit(spans: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the spans with hits and trials in each unit that the table counts.

    A whole identifier is one trial. Each of its parts is one, too, and a hit if it is
    right: an address has its local part, any other identifier its digits. In all
    frames returned, ``greedy`` and ``greedy_sure`` are numbers of hits of a line.

    Parameters
    ----------
    spans
        As for :func:`prompt_table`.
    """
    whole = spans.assign(
        greedy=spans["greedy"].astype(np.int64),
        greedy_sure=spans["greedy_sure"].astype(np.int64),
        trials=1,
    )

    # A part behind a tied token is not right, so no hits depend on ties.
    n_right = spans["parts_right"]
    in_parts = spans.assign(greedy=n_right, greedy_sure=n_right, trials=spans["parts"])
    is_address = spans["type"] == "EMAIL"
    return {
        WHOLE: whole,
        DIGITS_OF_STRING: in_parts[~is_address],
        LOCAL: in_parts[is_address],
    }


def _prompt_record(
    name: str, prompt: str, unit: str, asked: pd.DataFrame, *, seed: int
) -> PromptRecord:
    """Return the record of one prompt: its hits next to held-out spans and the base.

    Parameters
    ----------
    unit
        What is counted: :data:`WHOLE`, :data:`DIGITS_OF_STRING` or :data:`LOCAL`.
    asked
        Spans of one checkpoint after this prompt that have a trial, from
        :func:`_spans_by_unit` and
        :func:`spark_audit.audits.extract.rates.by_checkpoint`.
    """
    train = asked[asked["split"] == "train"]
    held_out = asked[asked["split"] == "test"]

    # Count the base's hits with ties, so that ties of neither side make a finding.
    column_of_base = "greedy" if name == BASE else "base_won"
    base_hits = train[column_of_base].dropna()

    # `by_checkpoint` (rates.py) indexes by span, and joins the hits of the base.
    is_whole = unit == WHOLE
    difference, p = difference_beyond_base(asked, seed=seed, whole=is_whole)
    value, low, high = value_and_limits(difference)
    columns: TableRecord = {
        "checkpoint": name,
        "prompt": prompt,
        "variant": unit,
        "spans": len(train),
        "clusters": int(train["cluster"].nunique()),
        "tried": int(train["trials"].sum()),
        "found": int(train["greedy_sure"].sum()),
        "base_found": None if base_hits.empty else int(base_hits.sum()),
        "held_out": int(held_out["trials"].sum()),
        "held_out_found": int(held_out["greedy_sure"].sum()),
        "beyond_points": None,
        "low": None,
        "high": None,
    }
    # Without a p the difference is not estimable, and its figures are NaN.
    if p is not None:
        columns["beyond_points"] = round(POINTS_OF_WHOLE * value, DECIMALS_OF_POINTS)
        columns["low"] = round(POINTS_OF_WHOLE * low, DECIMALS_OF_POINTS)
        columns["high"] = round(POINTS_OF_WHOLE * high, DECIMALS_OF_POINTS)

    # The true prefix is tested by its finding, not by this table.
    is_primary = prompt == FULL_PROMPT and is_whole
    if is_primary or name == BASE:
        p = None
    return PromptRecord(columns, p)


def _counts_of_identifiers(
    asked: pd.DataFrame, after_true_prefix: pd.DataFrame, *, has_cue: bool
) -> TableRecord:
    """Return the columns of whole identifiers alone: hits of other prompts, and draws.

    All are of trained rows.

    Parameters
    ----------
    asked
        Spans of one checkpoint after one prompt, indexed by their number.
    after_true_prefix
        All spans of the checkpoint after their true prefix, from
        :func:`with_cue_and_base`, indexed alike.
    has_cue
        Whether the cue was asked for.
    """
    # The same spans after their true prefix, matched by their number.
    train = asked[asked["split"] == "train"]
    same_spans = after_true_prefix[after_true_prefix.index.isin(train.index)]

    # Hits after this prompt that the cue gives, too.
    n_cued = None
    if has_cue:
        numbers_of_hits = train.index[train["greedy_sure"] > 0]
        is_hit = same_spans.index.isin(numbers_of_hits)
        n_cued = int(same_spans.loc[is_hit, "cue"].sum())

    counts: TableRecord = {
        "true_prefix": int(same_spans["greedy_sure"].sum()),
        "cue_too": n_cued,
    }

    # Count the identifiers that come out within each number of top-40 draws.
    tries = n_p(train["logp_top40"].to_numpy(np.float64))  # (spans,)
    for n_draws in DRAWS_COUNTED:
        counts[f"top40_within_{n_draws}"] = int((tries <= n_draws).sum())
    return counts


def _with_verdicts(records: Sequence[PromptRecord]) -> list[TableRecord]:
    """Return the columns with ``note``, and ``shown`` by p over all records (Holm)."""
    # Records without a test get no corrected p.
    adjusted_ps = holm_by_key({i: record.p for i, record in enumerate(records)})
    with_verdicts = []
    for i, (columns, _) in enumerate(records):
        note = NOT_COMPARED if columns["beyond_points"] is None else ""
        is_shown: bool | None = None
        if i in adjusted_ps:
            # The limit is the one that the table shows: rounded, 0.004 points are 0.
            is_above_0 = columns["low"] is not None and columns["low"] > 0
            is_shown = is_above_0 and is_significant(adjusted_ps[i])
        with_verdicts.append({**columns, "note": note, "shown": is_shown})
    return with_verdicts


def records_without_figures(
    records: Sequence[TableRecord],
    *,
    prompts: Iterable[str],
    prompts_that_fit: Collection[str],
    checkpoints: Sequence[str],
) -> list[TableRecord]:
    """Return records with the reason why a prompt has no figures.

    No identifier of a trained row fits the prompt, or the checkpoint has no scores of
    its texts.

    Parameters
    ----------
    records
        Those of :func:`prompt_table`, which have figures.
    prompts
        All prompts that the option ``--prompts`` names.
    prompts_that_fit
        Prompts that fit an identifier of a trained row.
    checkpoints
        Names of all checkpoints.
    """
    with_figures = {(record["checkpoint"], record["prompt"]) for record in records}

    # Each record gets all columns of the other records, without figures.
    no_figures: TableRecord = {}
    if records:
        no_figures = dict.fromkeys(records[0])

    empty_records = []
    for name in checkpoints:
        for prompt in prompts:
            if (name, prompt) in with_figures:
                continue
            reason = PROMPT_NOT_SCORED if prompt in prompts_that_fit else NOT_ASKED
            record = {
                **no_figures,
                "checkpoint": name,
                "prompt": prompt,
                "variant": WHOLE,
                "spans": 0,
                "clusters": 0,
                "note": f"not estimable: {reason}",
            }
            empty_records.append(record)
    return empty_records
