"""Layouts of the evidence files: columns, scores and facts, by the file's name.

A file may come from somebody else. A layout names the columns that its audit reads,
with their types and ranges, and :mod:`~spark_audit.results.evidence_file` checks them.
A file may have further columns.

What a column means is said where its audit makes it, in the method ``evidence`` or the
type of its units (``spark_audit/audits/``). A column or score that an audit begins to
read goes here and there; a file without it is then refused. Layouts stand in
:data:`LAYOUTS` at the end of this file, ranges before them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Kind = Literal["text", "whole", "flag", "number"]
"""Type of a column: text, whole numbers, truth values, or any numbers."""


@dataclass(frozen=True)
class Range:
    """The values that a column may have.

    Attributes
    ----------
    kind
        Type of the column.
    least, most
        Limits of numbers, both included.
    has_gaps
        Whether NaN may stand where there is no number.
    has_minus_infinity
        Whether minus infinity may stand for an event of probability 0.
    """

    kind: Kind
    least: float = -math.inf
    most: float = math.inf
    has_gaps: bool = False
    has_minus_infinity: bool = False

    def fault(self, values: np.ndarray) -> str:
        """Return what is wrong with some values; empty: nothing.

        The words continue a sentence that begins with "it".

        Parameters
        ----------
        values
            Shape ``(units,)``, of the type of this column.
        """
        if self.kind in ("text", "flag"):
            return ""

        # Gaps and minus infinity lie outside of every range, so drop them if allowed.
        numbers = values.astype(np.float64)  # (units,)
        is_missing = np.isnan(numbers)
        if is_missing.any() and not self.has_gaps:
            return "lacks numbers"

        present = numbers[~is_missing]
        if self.has_minus_infinity:
            present = present[present != -np.inf]
        if not np.isfinite(present).all():
            return "holds numbers that are not finite"

        if not len(present):
            return ""
        if present.min() < self.least or present.max() > self.most:
            return "holds numbers out of their range"
        return ""


MAX_EVIDENCE_VALUE = 1e15
"""Largest absolute value of a number in the evidence."""

TEXT = Range("text")
FLAG = Range("flag")
"""True or false, stored as a truth value."""

COUNT_RANGE = Range("whole", least=0, most=MAX_EVIDENCE_VALUE)

POSITIVE = Range("whole", least=1, most=MAX_EVIDENCE_VALUE)
"""A count of at least 1."""

NUMBER_OR_NONE = Range("whole", least=-1, most=MAX_EVIDENCE_VALUE)
"""The number of a pair or an example; -1: none."""

STRATUM = Range("whole", least=-MAX_EVIDENCE_VALUE, most=MAX_EVIDENCE_VALUE)
"""The number of a stratum of identifiers. Below 0: text alone distinguishes its sides,
or no test is possible."""

DOSE = Range("whole", least=-1, most=MAX_EVIDENCE_VALUE)
"""Number of trained rows that contain an identifier. 0: it is held out. -1: training
cut it off in all of its rows.
"""

SIZE = Range("number", least=1e-12, most=MAX_EVIDENCE_VALUE)
"""A number above 0, by which others are divided."""

SHARE = Range("number", least=0, most=1)

FREE = Range("number", least=-MAX_EVIDENCE_VALUE, most=MAX_EVIDENCE_VALUE)
"""Any finite number."""

FREE_OR_NONE = Range(
    "number", least=-MAX_EVIDENCE_VALUE, most=MAX_EVIDENCE_VALUE, has_gaps=True
)

SCORE_RANGE = FREE_OR_NONE
"""Scores have gaps: not every checkpoint was scored on every unit."""

RANK_RANGE = Range("number", least=1, most=MAX_EVIDENCE_VALUE, has_gaps=True)
"""A rank, 1 is the best; NaN: not scored."""

SCORED_COUNT = Range("number", least=0, most=MAX_EVIDENCE_VALUE, has_gaps=True)
"""A number of at least 0, by checkpoint; NaN: not scored."""

SCORED_SHARE = Range("number", least=0, most=1, has_gaps=True)
"""A share by checkpoint, or 1 for yes and 0 for no; NaN: not scored."""

ANSWER = Range("number", least=-1, most=1, has_gaps=True)
"""1 right, 0 wrong, -1 not asked; NaN: not scored."""

LOG_PROBABILITY = Range(
    "number",
    least=-MAX_EVIDENCE_VALUE,
    most=0,
    has_gaps=True,
    has_minus_infinity=True,
)
"""Nats; minus infinity: it cannot be drawn. NaN: not scored."""

FactCheck = Callable[[object], bool]
"""A function that returns whether a fact, read from JSON, has the type that its audit
needs."""


def _is_list_of_names(value: object) -> bool:
    """Return whether a fact is a list of texts."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_flag(value: object) -> bool:
    """Return whether a fact is a truth value."""
    return isinstance(value, bool)


def _is_count(value: object) -> bool:
    """Return whether a fact is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_count_or_none(value: object) -> bool:
    """Return whether a fact is a whole number of at least 0, or missing."""
    return value is None or _is_count(value)


def _is_share_or_none(value: object) -> bool:
    """Return whether a fact is a number from 0 to 1, or missing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value is None
    return 0 <= value <= 1


def _is_text(value: object) -> bool:
    """Return whether a fact is a text."""
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    """Return whether a fact is a mapping of names to texts."""
    if not isinstance(value, dict):
        return False
    return all(isinstance(text, str) for text in value.values())


def _is_figures(value: object) -> bool:
    """Return whether a fact is a mapping of names to numbers."""
    if not isinstance(value, dict):
        return False
    return all(
        isinstance(figure, int | float) and not isinstance(figure, bool)
        for figure in value.values()
    )


def _is_shares(value: object) -> bool:
    """Return whether a fact is a mapping of names to numbers from 0 to 1."""
    if not isinstance(value, dict):
        return False
    return all(
        figure is not None and _is_share_or_none(figure) for figure in value.values()
    )


@dataclass(frozen=True, kw_only=True)
class EvidenceLayout:
    """The contents that a file must have, by name.

    Attributes
    ----------
    units
        Columns of the units, one value for each unit.
    values
        Scores; each has a column per checkpoint, named ``SCORE/CHECKPOINT``.
    facts
        Facts on all units together, in the file's metadata.
    further_values
        Scores that the file may have, too: those of earlier versions lack them.
    """

    units: Mapping[str, Range]
    values: Mapping[str, Range]
    facts: Mapping[str, FactCheck] = field(default_factory=dict)
    further_values: Mapping[str, Range] = field(default_factory=dict)


_IDENTIFIER_COLUMNS = {
    "cluster": TEXT,
    "task": TEXT,
    "split": TEXT,
    "type": TEXT,
    "dose": DOSE,
    "form": COUNT_RANGE,
    "cue": COUNT_RANGE,
    "stratum": STRATUM,
}
"""Columns of audits whose units are identifiers."""

LAYOUTS: Mapping[str, EvidenceLayout] = {
    "spans.parquet": EvidenceLayout(
        units={
            **_IDENTIFIER_COLUMNS,
            "example": TEXT,
            "role": TEXT,
            "start": COUNT_RANGE,
            "trained": COUNT_RANGE,
            "digits": COUNT_RANGE,
            "capitals": COUNT_RANGE,
            "letters": COUNT_RANGE,
            "marks": COUNT_RANGE,
            "pair": NUMBER_OR_NONE,
            "n_tokens": POSITIVE,
            "text_auc": FREE_OR_NONE,
            "ref_sum": FREE,
        },
        values={"nll_sum": SCORE_RANGE},
    ),
    "rank.parquet": EvidenceLayout(
        units={**_IDENTIFIER_COLUMNS, "set": TEXT},
        values={"rank": RANK_RANGE, "ties": SCORED_COUNT},
    ),
    "nll.parquet": EvidenceLayout(
        units={
            "variant": TEXT,
            "split": TEXT,
            "task": TEXT,
            "type": TEXT,
            "cluster": TEXT,
            "den": SIZE,
        },
        values={"num": SCORE_RANGE},
    ),
    "canary.parquet": EvidenceLayout(
        units={
            "canary_id": TEXT,
            "part": TEXT,
            "example": TEXT,
            "format": TEXT,
            "pair": TEXT,
            "kind": TEXT,
            "dose": COUNT_RANGE,
            "held_out": FLAG,
            "contexts": COUNT_RANGE,
            "n_candidates": POSITIVE,
        },
        values={"rank": RANK_RANGE, "ties": SCORED_COUNT},
        facts={"kept_contexts": _is_count_or_none},
    ),
    "twins.parquet": EvidenceLayout(
        units={
            "twins_id": TEXT,
            "type": TEXT,
            "cluster": TEXT,
            "dose": COUNT_RANGE,
            "contexts": COUNT_RANGE,
            "n_candidates": POSITIVE,
            "injected": FLAG,
            "stratum": STRATUM,
        },
        values={"rank": RANK_RANGE, "ties": SCORED_COUNT},
        facts={"lost": _is_count},
    ),
    "mia.parquet": EvidenceLayout(
        units={
            "example": TEXT,
            "task": TEXT,
            "cluster": TEXT,
            "member": FLAG,
            "label": FREE_OR_NONE,
            "dose": FREE_OR_NONE,
            "length": COUNT_RANGE,
            "zlib_bytes": COUNT_RANGE,
        },
        values={
            "loss": SCORE_RANGE,
            "response": SCORE_RANGE,
            "zlib": SCORE_RANGE,
            "reference": SCORE_RANGE,
        },
        facts={
            "alone": _is_figures,
            "borrowed": _is_flag,
            "unscored": _is_list_of_names,
        },
    ),
    "extract.parquet": EvidenceLayout(
        units={
            "set": TEXT,
            "split": TEXT,
            "task": TEXT,
            "type": TEXT,
            "cluster": TEXT,
            "origin": TEXT,
            "canary_id": TEXT,
            "part": TEXT,
            "prompt": TEXT,
            "dose": DOSE,
            "string": COUNT_RANGE,
            "lead": COUNT_RANGE,
            "span": COUNT_RANGE,
            "first": FLAG,
            "near": FLAG,
            "given": FLAG,
            "elsewhere": FLAG,
            "stratum": STRATUM,
            "home": NUMBER_OR_NONE,
        },
        values={
            "n_tokens": SCORED_COUNT,
            "greedy": SCORED_SHARE,
            "greedy_sure": SCORED_SHARE,
            "logp_t1": LOG_PROBABILITY,
            "logp_top40": LOG_PROBABILITY,
            "parts": SCORED_COUNT,
            "parts_right": SCORED_COUNT,
        },
        facts={
            "asked": _is_list_of_names,
            "trained": _is_list_of_names,
            "checkpoints": _is_list_of_names,
        },
        further_values={
            "logp_top_p90": LOG_PROBABILITY,
            "logp_top_p95": LOG_PROBABILITY,
            "bits": SCORED_COUNT,
            "near_miss": SCORED_SHARE,
        },
    ),
    "passages.parquet": EvidenceLayout(
        units={
            "example": TEXT,
            "split": TEXT,
            "task": TEXT,
            "type": TEXT,
            "cluster": TEXT,
            "n_tokens": COUNT_RANGE,
            "n_words": COUNT_RANGE,
        },
        values={"run": SCORED_COUNT, "run_won": SCORED_COUNT},
        facts={"least_tokens": _is_count, "text_p": _is_share_or_none},
    ),
    "generated.parquet": EvidenceLayout(
        units={
            "set": TEXT,
            "example": TEXT,
            "start": COUNT_RANGE,
            "split": TEXT,
            "task": TEXT,
            "type": TEXT,
            "origin": TEXT,
            "cluster": TEXT,
            "part": TEXT,
            "dose": COUNT_RANGE,
            "stratum": STRATUM,
            "compared": FLAG,
            "n_words": COUNT_RANGE,
        },
        values={
            "hit": SCORED_SHARE,
            "near": SCORED_SHARE,
            "words": SCORED_COUNT,
            "holder": RANK_RANGE,
            "trained": SCORED_SHARE,
            "held_out": SCORED_SHARE,
        },
        facts={
            "least_words": _is_count,
            "text_p": _is_share_or_none,
            "texts": _is_figures,
            "nearest_p": _is_shares,
            "expected": _is_figures,
            "expected_nearer": _is_shares,
        },
    ),
    "noise.parquet": EvidenceLayout(
        units={
            "kind": TEXT,
            "task": TEXT,
            "cluster": TEXT,
            "n": COUNT_RANGE,
            "sigma": SIZE,
            "draw": COUNT_RANGE,
        },
        values={"clean": SCORED_COUNT, "noisy": SCORED_COUNT, "relative": SCORED_COUNT},
    ),
    "stages.parquet": EvidenceLayout(
        units={
            **_IDENTIFIER_COLUMNS,
            "example": TEXT,
            "start": COUNT_RANGE,
            "n_tokens": POSITIVE,
            "elsewhere": COUNT_RANGE,
            "ref_sum": FREE,
        },
        values={"nll_sum": SCORE_RANGE, "trained_at": SCORED_COUNT},
    ),
    "series.parquet": EvidenceLayout(
        units={
            "example": TEXT,
            "task": TEXT,
            "cluster": TEXT,
            "member": FLAG,
            "dose": COUNT_RANGE,
        },
        values={"nll": SCORE_RANGE, "trained_at": SCORED_COUNT, "texts": SCORE_RANGE},
    ),
    "doors.parquet": EvidenceLayout(
        units={
            "example": TEXT,
            "task": TEXT,
            "cluster": TEXT,
            "member": FLAG,
            "dose": FREE_OR_NONE,
        },
        values={
            "answers": SCORED_SHARE,
            "top20": SCORE_RANGE,
            "top20_0.01": SCORE_RANGE,
            "top20_0.1": SCORE_RANGE,
            "logprobs": SCORE_RANGE,
            "logprobs_0.01": SCORE_RANGE,
            "logprobs_0.1": SCORE_RANGE,
            "distribution": SCORED_SHARE,
            "weights": SCORED_SHARE,
            "all_stages": SCORE_RANGE,
            "texts": SCORE_RANGE,
        },
        facts={"why_no_stages": _is_texts},
    ),
    "erasure.parquet": EvidenceLayout(
        units={
            **_IDENTIFIER_COLUMNS,
            "part": TEXT,
            "side": TEXT,
            "request": TEXT,
            "example": TEXT,
            "text_auc": FREE_OR_NONE,
            "n_tokens": POSITIVE,
            "ref_sum": FREE,
        },
        values={
            "nll_sum": SCORE_RANGE,
            "first": SCORED_COUNT,
            "exact": SCORED_SHARE,
            "strength": SCORED_SHARE,
            "mink": SCORE_RANGE,
            "n_labels": SCORED_COUNT,
            "exposure": SCORE_RANGE,
        },
        facts={"vocabulary": _is_count, "left_out": _is_count, "shared": _is_count},
    ),
    "utility.parquet": EvidenceLayout(
        units={
            "example": TEXT,
            "task": TEXT,
            "cluster": TEXT,
            "reason": TEXT,
            "scorer": TEXT,
            "chance": SHARE,
            "task_index": COUNT_RANGE,
        },
        values={"correct": ANSWER, "empty": SCORED_SHARE},
        facts={
            "order": _is_list_of_names,
            "clash": _is_list_of_names,
            "assumed": _is_flag,
            "scorer": _is_text,
            "blank": _is_count,
        },
    ),
}
"""Name of an evidence file -> its layout. A file that is not here is that of another
package's audit, and may have any columns."""
