"""What each file of evidence holds: columns, scores and facts, by the file's name.

A file may come from somebody else. Whatever is read from it has a name, a type and a
range that its audit can conclude from; further columns may stand beside these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Kind = Literal["text", "whole", "flag", "number"]


@dataclass(frozen=True)
class Range:
    """The values that a column may have: a kind, and for numbers both limits.

    ``gaps``: NaN stands where there is none.
    """

    kind: Kind
    least: float = -math.inf
    most: float = math.inf
    gaps: bool = False
    below_all: bool = False
    """Whether minus infinity stands for an event of probability 0."""

    def fault(self, values: np.ndarray) -> str:
        """Return what is wrong with values of its kind; empty where nothing is."""
        if self.kind in ("text", "flag"):
            return ""
        numbers = values.astype(np.float64)
        if not self.gaps and np.isnan(numbers).any():
            return "lacks numbers"
        known = numbers[~np.isnan(numbers)]
        if self.below_all:
            known = known[known != -np.inf]
        if not np.isfinite(known).all():
            return "holds numbers that are not finite"
        if known.size and not self.least <= known.min() <= known.max() <= self.most:
            return "holds numbers out of their range"
        return ""


MAX_EVIDENCE_VALUE = 1e15
TEXT = Range("text")
FLAG = Range("flag")
COUNT_RANGE = Range("whole", 0, MAX_EVIDENCE_VALUE)
POSITIVE = Range("whole", 1, MAX_EVIDENCE_VALUE)
PLACE = Range("whole", -1, MAX_EVIDENCE_VALUE)
"""A number of something; -1: none."""
SIZE = Range("number", 1e-12, MAX_EVIDENCE_VALUE)
SHARE = Range("number", 0, 1)
FREE = Range("number", -MAX_EVIDENCE_VALUE, MAX_EVIDENCE_VALUE)
FREE_OR_NONE = Range("number", -MAX_EVIDENCE_VALUE, MAX_EVIDENCE_VALUE, gaps=True)

SCORE_RANGE = Range("number", -MAX_EVIDENCE_VALUE, MAX_EVIDENCE_VALUE, gaps=True)
RANK_RANGE = Range("number", 1, MAX_EVIDENCE_VALUE, gaps=True)
NUMBER_OF = Range("number", 0, MAX_EVIDENCE_VALUE, gaps=True)
RATE = Range("number", 0, 1, gaps=True)
LOG_PROBABILITY = Range("number", -MAX_EVIDENCE_VALUE, 0, gaps=True, below_all=True)

Check = Callable[[object], bool]


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_count_or_none(value: object) -> bool:
    return value is None or _is_count(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_figures(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(one, int | float) and not isinstance(one, bool)
        for one in value.values()
    )


@dataclass(frozen=True)
class EvidenceLayout:
    """Columns of the units, scores of the checkpoints, and facts, by name."""

    units: Mapping[str, Range]
    values: Mapping[str, Range]
    facts: Mapping[str, Check] = field(default_factory=dict)


_SPAN = {
    **dict.fromkeys(("cluster", "task", "split", "type"), TEXT),
    **dict.fromkeys(("dose", "form", "cue"), COUNT_RANGE),
    "stratum": PLACE,
}

LAYOUTS: Mapping[str, EvidenceLayout] = {
    "spans.parquet": EvidenceLayout(
        {
            **_SPAN,
            **dict.fromkeys(("example", "role"), TEXT),
            **dict.fromkeys(("start", "trained"), COUNT_RANGE),
            **dict.fromkeys(("digits", "capitals", "letters", "marks"), COUNT_RANGE),
            "pair": PLACE,
            "n_tokens": POSITIVE,
            "text_auc": FREE_OR_NONE,
            "ref_sum": FREE,
        },
        {"nll_sum": SCORE_RANGE},
    ),
    "rank.parquet": EvidenceLayout(
        {**_SPAN, "set": TEXT}, {"rank": RANK_RANGE, "ties": NUMBER_OF}
    ),
    "nll.parquet": EvidenceLayout(
        {
            **dict.fromkeys(("of", "split", "task", "type", "cluster"), TEXT),
            "den": SIZE,
        },
        {"num": SCORE_RANGE},
    ),
    "canary.parquet": EvidenceLayout(
        {
            **dict.fromkeys(("canary_id", "part", "example", "format"), TEXT),
            **dict.fromkeys(("pair", "kind"), TEXT),
            "dose": COUNT_RANGE,
            "held_out": FLAG,
            "contexts": COUNT_RANGE,
            "n_candidates": POSITIVE,
        },
        {"rank": RANK_RANGE, "ties": NUMBER_OF},
        {"kept_contexts": _is_count_or_none},
    ),
    "twins.parquet": EvidenceLayout(
        {
            **dict.fromkeys(("twins_id", "type", "cluster"), TEXT),
            **dict.fromkeys(("dose", "contexts"), COUNT_RANGE),
            "n_candidates": POSITIVE,
            "injected": FLAG,
            "stratum": PLACE,
        },
        {"rank": RANK_RANGE, "ties": NUMBER_OF},
        {"lost": _is_count},
    ),
    "mia.parquet": EvidenceLayout(
        {
            **dict.fromkeys(("example", "task", "cluster"), TEXT),
            "member": FLAG,
            **dict.fromkeys(("label", "dose"), FREE_OR_NONE),
            "length": COUNT_RANGE,
            "zlib_bytes": COUNT_RANGE,
        },
        {name: SCORE_RANGE for name in ("loss", "response", "zlib", "reference")},
        {"alone": _is_figures, "borrowed": _is_flag, "unscored": _is_names},
    ),
    "extract.parquet": EvidenceLayout(
        {
            **dict.fromkeys(("set", "split", "task", "type", "cluster"), TEXT),
            **dict.fromkeys(("origin", "canary_id", "part", "prompt"), TEXT),
            **dict.fromkeys(("dose", "string", "lead", "span"), COUNT_RANGE),
            **dict.fromkeys(("first", "near", "given", "elsewhere"), FLAG),
            **dict.fromkeys(("stratum", "home"), PLACE),
        },
        {
            "n_tokens": NUMBER_OF,
            **dict.fromkeys(("greedy", "greedy_sure"), RATE),
            **dict.fromkeys(("logp_t1", "logp_top40"), LOG_PROBABILITY),
            **dict.fromkeys(("parts", "parts_right"), NUMBER_OF),
        },
        {"asked": _is_names, "trained": _is_names, "checkpoints": _is_names},
    ),
    "noise.parquet": EvidenceLayout(
        {
            **dict.fromkeys(("kind", "task", "cluster"), TEXT),
            "n": COUNT_RANGE,
            "sigma": SIZE,
            "draw": COUNT_RANGE,
        },
        {"clean": NUMBER_OF, "noisy": NUMBER_OF, "relative": NUMBER_OF},
    ),
    "stages.parquet": EvidenceLayout(
        {
            **_SPAN,
            "example": TEXT,
            "start": COUNT_RANGE,
            "n_tokens": POSITIVE,
            "elsewhere": COUNT_RANGE,
            "ref_sum": FREE,
        },
        {"nll_sum": SCORE_RANGE, "place": NUMBER_OF},
    ),
    "series.parquet": EvidenceLayout(
        {
            **dict.fromkeys(("example", "task", "cluster"), TEXT),
            "member": FLAG,
            "dose": COUNT_RANGE,
        },
        {"nll": SCORE_RANGE, "place": NUMBER_OF, "texts": SCORE_RANGE},
    ),
    "utility.parquet": EvidenceLayout(
        {
            **dict.fromkeys(("example", "task", "cluster", "reason", "scorer"), TEXT),
            "chance": SHARE,
            "place": COUNT_RANGE,
        },
        {"correct": RATE, "empty": RATE},
        {
            **dict.fromkeys(("order", "clash"), _is_names),
            "assumed": _is_flag,
            "scorer": _is_text,
            "blank": _is_count,
        },
    ),
}
"""By the names that audits give their evidence."""
