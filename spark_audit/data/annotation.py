"""Annotating rows: the identifiers that a detector finds, without fixed wording."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_audit.data.examples import Example, Span
from spark_audit.data.fixed_wording import (
    lack_notes,
    merged,
    task_templates,
    template_ranges,
)
from spark_audit.data.pii import detector_of, resolved

_CODE_PATTERN = re.compile(
    r"(?<!&#)(?<![\w.,$€£+/-])(?!\d{4}(?:-\d\d){1,2}(?![\w-]))(?!\d{1,4}-\d{1,4}(?![\w-]))"
    r"(?=(?:[A-Z-]*\d){5})[A-Z0-9][A-Z0-9-]{5,40}(?![\w%-]|[.,]\d)"
)
"""What may be an order or a customer's number; dates, scores and ranges are none."""


@dataclass(frozen=True)
class Annotated:
    """Rows with the identifiers found in them.

    ``in_wording`` is the number of identifiers that stand wholly in fixed wording and
    are therefore not annotated, ``wording_rows`` that of the rows that hold them.
    ``unknown_codes`` is the number of codes that have no known form, ``code_rows`` that
    of their rows. ``notes`` say where fixed wording is not in all rows.
    """

    examples: list[Example]
    in_wording: int
    wording_rows: int
    unknown_codes: int
    code_rows: int
    notes: list[str]


def annotate(
    examples: Sequence[Example],
    *,
    detector: str = "rules",
    patterns: Mapping[str, str] | None = None,
) -> list[Example]:
    """Return the examples with the spans found added to those they have.

    Nothing is annotated that stands wholly in a task's fixed wording: it is nobody's.

    Parameters
    ----------
    detector
        ``rules``; ``presidio``: Presidio's recognisers of patterns, and names from a
        spaCy model.
    patterns
        Regular expressions of the user's own types, which win over the detector.

    Raises
    ------
    InputError
        If the detector is unknown or not installed, or a pattern is no regular
        expression or takes too long.
    """
    return annotated(examples, detector=detector, patterns=patterns).examples


def annotated(
    examples: Sequence[Example],
    *,
    detector: str = "rules",
    patterns: Mapping[str, str] | None = None,
) -> Annotated:
    """Annotate examples as :func:`annotate` does, and count what is left out."""
    find = detector_of(detector, patterns)
    rows = [
        replace(row, spans=tuple(resolved((*row.spans, *find(row.text)))))
        for row in examples
    ]

    # Fixed wording ends before the identifiers that were found, so it is looked for
    # where they are known.
    wording = task_templates(rows)
    kept_rows = []
    in_wording = []
    unknown_codes = []
    for before, row in zip(examples, rows, strict=True):
        fixed = merged(template_ranges(row, wording))
        kept = [
            span
            for span in row.spans
            if span in before.spans or not _is_in(span, fixed)
        ]
        in_wording.append(len(row.spans) - len(kept))
        kept_rows.append(replace(row, spans=tuple(kept)))
        unknown_codes.append(_unknown_codes(row, fixed))
    return Annotated(
        examples=kept_rows,
        in_wording=sum(in_wording),
        wording_rows=sum(map(bool, in_wording)),
        unknown_codes=sum(unknown_codes),
        code_rows=sum(map(bool, unknown_codes)),
        notes=lack_notes(rows, wording),
    )


def _unknown_codes(row: Example, fixed: Iterable[tuple[int, int]]) -> int:
    """Return how many codes of a row are neither a span nor in fixed wording."""
    known = [(span.start, span.end) for span in row.spans]
    known += fixed
    return sum(
        not any(start < code.end() and code.start() < end for start, end in known)
        for code in _CODE_PATTERN.finditer(row.text)
    )


def _is_in(span: Span, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(start <= span.start and span.end <= end for start, end in ranges)
