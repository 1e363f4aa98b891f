"""Annotate rows with the identifiers that a detector finds, without fixed wording.

Users call :func:`annotate`; the command ``data annotate`` calls
:func:`annotate_and_count`. A further detector belongs in ``pii.py``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_audit.arguments import checked_call
from spark_audit.data.examples import Example, Span
from spark_audit.data.fixed_wording import lack_notes, merged, template_ranges
from spark_audit.data.pii import detector_of, resolved
from spark_audit.data.task_wording import task_wordings

_CODE_PATTERN = re.compile(
    r"""
    (?<!&\#)                           # not the number of an HTML character: &#1234567;
    (?<![\w.,$€£+/-])                  # not the rest of a word, number, amount or path
    (?!\d{4}(?:-\d\d){1,2}(?![\w-]))   # not a date: 2024-05-17 or 2024-05
    (?!\d{1,4}-\d{1,4}(?![\w-]))       # not a range or a score: 1990-2000
    (?=(?:[A-Z-]*\d){5})               # at least five digits
    [A-Z0-9][A-Z0-9-]{5,40}            # 6 to 41 capitals, digits and hyphens
    (?![\w%-]|[.,]\d)                  # not the beginning of a word, number or per cent
    """,
    re.VERBOSE,
)
"""A code that may be an order number or a customer number, such as ``AB-12345``.

It is no date, score or range, and no amount, such as ``$1234567``."""


@dataclass(frozen=True)
class AnnotationResult:
    """Rows with the identifiers found in them, and counts of what was not annotated.

    Attributes
    ----------
    examples
        The annotated rows, in the order given.
    n_in_wording, n_wording_rows
        Number of detected identifiers that stand wholly in fixed wording, and of the
        rows that hold them. They are annotated only on request.
    wording_types
        Task -> type -> number of rows with such an identifier in fixed wording.
    task_rows
        Number of rows of each task.
    n_unknown_codes, n_code_rows
        Number of codes without a known form, and of the rows that hold them.
    notes
        Which tasks have rows without the fixed wording.
    """

    examples: list[Example]
    n_in_wording: int
    n_wording_rows: int
    wording_types: dict[str, Counter[str]]
    task_rows: Counter[str]
    n_unknown_codes: int
    n_code_rows: int
    notes: list[str]


@checked_call
def annotate(
    examples: Sequence[Example],
    *,
    detector: str = "rules",
    patterns: Mapping[str, str] | None = None,
    in_wording: bool = False,
) -> list[Example]:
    """Return the examples with the spans of detected identifiers added to their own.

    A string that stands wholly in a task's fixed wording, such as the address of a help
    desk, is taken to belong to nobody and is not annotated. One person's address that
    stands in most rows looks the same: ``in_wording`` annotates both.

    Parameters
    ----------
    examples
        Rows, of one or several tasks.
    detector
        ``rules``; ``presidio``: Presidio's recognisers of patterns, and names from a
        spaCy model.
    patterns
        Regular expressions for the user's own types. They win over the detector.
    in_wording
        Annotate identifiers in fixed wording, too.

    Raises
    ------
    InputError
        If the detector is unknown or not installed, or a pattern is not a regular
        expression or takes too long.

    Examples
    --------
    >>> text = "Write to ana@example.org"
    >>> row = sa.Example("r1", "mail", text, " now", split="train")
    >>> [span.type for span in sa.annotate([row])[0].spans]
    ['EMAIL']
    """
    result = annotate_and_count(
        examples, detector=detector, patterns=patterns, in_wording=in_wording
    )
    return result.examples


def annotate_and_count(
    examples: Sequence[Example],
    *,
    detector: str = "rules",
    patterns: Mapping[str, str] | None = None,
    in_wording: bool = False,
) -> AnnotationResult:
    """Annotate examples as :func:`annotate` does, and count what is left out."""
    find = detector_of(detector, patterns)
    rows_with_spans = []
    for given_row in examples:
        # The row's own spans win over detected ones.
        spans = resolved([*given_row.spans, *find(given_row.text)])
        rows_with_spans.append(replace(given_row, spans=tuple(spans)))

    # Fixed wording ends before an identifier, so the search for it needs the detected
    # identifiers.
    wording_by_task = task_wordings(rows_with_spans)

    annotated_rows = []
    n_in_wording = 0
    n_wording_rows = 0
    wording_types: dict[str, Counter[str]] = defaultdict(Counter)
    n_codes_by_row = []
    for given_row, row in zip(examples, rows_with_spans, strict=True):
        # [(start, end), ...], characters
        fixed_ranges = merged(template_ranges(row, wording_by_task))
        spans_in_wording = _detected_in(fixed_ranges, given_row, row)
        if spans_in_wording:
            n_in_wording += len(spans_in_wording)
            n_wording_rows += 1
            types = {span.type for span in spans_in_wording}
            wording_types[row.task].update(types)

        if not in_wording:
            spans = [span for span in row.spans if span not in spans_in_wording]
            row = replace(row, spans=tuple(spans))
        annotated_rows.append(row)
        n_codes_by_row.append(_count_unknown_codes(row, fixed_ranges))

    return AnnotationResult(
        examples=annotated_rows,
        n_in_wording=n_in_wording,
        n_wording_rows=n_wording_rows,
        wording_types=dict(wording_types),
        task_rows=Counter(row.task for row in annotated_rows),
        n_unknown_codes=sum(n_codes_by_row),
        n_code_rows=sum(n_codes > 0 for n_codes in n_codes_by_row),
        notes=lack_notes(rows_with_spans, wording_by_task),
    )


def wording_notes(result: AnnotationResult) -> Iterator[str]:
    """Yield a note per task on identifiers in its fixed wording, by type and rows."""
    for task, rows_by_type in sorted(result.wording_types.items()):
        n_rows = result.task_rows[task]
        counts = ", ".join(
            f"{type_name} in {n_rows_of_type} of {n_rows} rows"
            for type_name, n_rows_of_type in sorted(rows_by_type.items())
        )
        yield f"task {task}: {counts} in the fixed wording that most rows share"


def _detected_in(
    ranges: Sequence[tuple[int, int]], given_row: Example, row: Example
) -> list[Span]:
    """Return the spans that stand wholly in one of the ranges and were detected.

    Parameters
    ----------
    ranges
        Ranges ``(start, end)`` of characters.
    given_row, row
        The row before and after the detection. Spans that it had before are left out.
    """
    return [
        span
        for span in row.spans
        if span not in given_row.spans and _is_inside(span, ranges)
    ]


def _count_unknown_codes(row: Example, fixed_ranges: Iterable[tuple[int, int]]) -> int:
    """Count the codes of a row that touch neither a span nor fixed wording."""
    known_ranges = [(span.start, span.end) for span in row.spans]
    known_ranges += fixed_ranges

    n_unknown = 0
    for code in _CODE_PATTERN.finditer(row.text):
        code_start, code_end = code.span()
        is_known = any(
            start < code_end and code_start < end for start, end in known_ranges
        )
        if not is_known:
            n_unknown += 1
    return n_unknown


def _is_inside(span: Span, ranges: Iterable[tuple[int, int]]) -> bool:
    """Return whether a span stands wholly in one of the ranges."""
    return any(start <= span.start and span.end <= end for start, end in ranges)
