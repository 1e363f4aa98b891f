"""Annotating rows: the identifiers that a detector finds, without fixed wording."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_audit.data.examples import Example, Span
from spark_audit.data.fixed_wording import lack_notes, merged, template_ranges
from spark_audit.data.pii import detector_of, resolved
from spark_audit.data.task_wording import task_templates

_CODE_PATTERN = re.compile(
    r"(?<!&#)(?<![\w.,$€£+/-])(?!\d{4}(?:-\d\d){1,2}(?![\w-]))(?!\d{1,4}-\d{1,4}(?![\w-]))"
    r"(?=(?:[A-Z-]*\d){5})[A-Z0-9][A-Z0-9-]{5,40}(?![\w%-]|[.,]\d)"
)
"""What may be an order or a customer's number; dates, scores and ranges are none."""


@dataclass(frozen=True)
class Annotated:
    """Rows with the identifiers found in them.

    ``in_wording`` is the number of identifiers that stand wholly in fixed wording,
    ``wording_rows`` that of the rows that hold them; they are not annotated unless that
    was asked for. ``wording_types`` is, by task, in how many rows such an identifier of
    each type stands, and ``task_rows`` the number of each task's rows.
    ``unknown_codes`` is the number of codes that have no known form, ``code_rows`` that
    of their rows. ``notes`` say where fixed wording is not in all rows.
    """

    examples: list[Example]
    in_wording: int
    wording_rows: int
    wording_types: dict[str, Counter[str]]
    task_rows: Counter[str]
    unknown_codes: int
    code_rows: int
    notes: list[str]


def annotate(
    examples: Sequence[Example],
    *,
    detector: str = "rules",
    patterns: Mapping[str, str] | None = None,
    in_wording: bool = False,
) -> list[Example]:
    """Return the examples with the spans found added to those they have.

    What stands wholly in a task's fixed wording is taken for nobody's, such as the
    address of a help desk, and is not annotated. One person's address that stands in
    most rows looks the same: ``in_wording`` annotates both.

    Parameters
    ----------
    examples
        Rows, of one or several tasks.
    detector
        ``rules``; ``presidio``: Presidio's recognisers of patterns, and names from a
        spaCy model.
    patterns
        Regular expressions of the user's own types, which win over the detector.
    in_wording
        Annotate identifiers in fixed wording, too.

    Raises
    ------
    InputError
        If the detector is unknown or not installed, or a pattern is no regular
        expression or takes too long.
    """
    return annotated(
        examples, detector=detector, patterns=patterns, in_wording=in_wording
    ).examples


def annotated(
    examples: Sequence[Example],
    *,
    detector: str = "rules",
    patterns: Mapping[str, str] | None = None,
    in_wording: bool = False,
) -> Annotated:
    """Annotate examples as :func:`annotate` does, and count what is left out."""
    find = detector_of(detector, patterns)
    detected = []
    for row in examples:
        # Spans that a row has win over those that are found.
        spans = resolved([*row.spans, *find(row.text)])
        detected.append(replace(row, spans=tuple(spans)))

    # Fixed wording ends before the identifiers that were found, so it is looked for
    # where they are known.
    wording = task_templates(detected)

    rows = []
    n_in_wording = 0
    n_wording_rows = 0
    n_codes = 0
    n_code_rows = 0
    wording_types: dict[str, Counter[str]] = defaultdict(Counter)
    for before, row in zip(examples, detected, strict=True):
        fixed_ranges = merged(template_ranges(row, wording))
        spans_in_wording = [
            span
            for span in row.spans
            if span not in before.spans and _is_inside(span, fixed_ranges)
        ]
        if spans_in_wording:
            n_in_wording += len(spans_in_wording)
            n_wording_rows += 1
            wording_types[row.task].update({span.type for span in spans_in_wording})

        if not in_wording:
            own_spans = [span for span in row.spans if span not in spans_in_wording]
            row = replace(row, spans=tuple(own_spans))
        rows.append(row)

        n_codes_of_row = _count_unknown_codes(row, fixed_ranges)
        n_codes += n_codes_of_row
        n_code_rows += n_codes_of_row > 0

    return Annotated(
        examples=rows,
        in_wording=n_in_wording,
        wording_rows=n_wording_rows,
        wording_types=dict(wording_types),
        task_rows=Counter(row.task for row in rows),
        unknown_codes=n_codes,
        code_rows=n_code_rows,
        notes=lack_notes(detected, wording),
    )


def wording_notes(result: Annotated) -> Iterator[str]:
    """Yield for each task what stands in its fixed wording, by type and rows."""
    for task, rows_by_type in sorted(result.wording_types.items()):
        n_rows = result.task_rows[task]
        counted = ", ".join(
            f"{type} in {n} of {n_rows} rows"
            for type, n in sorted(rows_by_type.items())
        )
        yield f"task {task}: {counted} in the fixed wording that most rows share"


def _count_unknown_codes(row: Example, fixed_ranges: Iterable[tuple[int, int]]) -> int:
    """Return how many codes of a row are neither a span nor in fixed wording."""
    known_ranges = [(span.start, span.end) for span in row.spans]
    known_ranges += fixed_ranges

    n_unknown = 0
    for code in _CODE_PATTERN.finditer(row.text):
        low, high = code.span()
        is_known = any(start < high and low < end for start, end in known_ranges)
        n_unknown += not is_known
    return n_unknown


def _is_inside(span: Span, ranges: Iterable[tuple[int, int]]) -> bool:
    """Return whether a span stands wholly in one of the ranges."""
    return any(start <= span.start and span.end <= end for start, end in ranges)
