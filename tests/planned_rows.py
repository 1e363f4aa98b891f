"""Rows of a plan, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from spark_audit.planning.rows import PlannedRow, PlannedSpan, RowTraining


def row(
    text: str,
    marked: Sequence[tuple[str, str]] = (),
    *,
    number: int = 1,
    split: str = "train",
    source: str | None = None,
    cluster: str | None = None,
    training: RowTraining | None = None,
    canary: str | None = None,
) -> PlannedRow:
    """A row whose first places of the strings in ``marked`` are annotated.

    ``marked`` holds pairs of string and type. Each character is a token.
    """
    spans = []
    for string, type in marked:
        start = text.index(string)
        end = start + len(string)
        part = "password" if canary else None
        spans.append(PlannedSpan(start, end, type, part, (start, end)))
    source = source or f"{split}-{number}"
    return PlannedRow(
        number=number,
        id=f"{split}-{number}",
        task="t",
        text=text,
        split=split,
        source_id=source,
        cluster=cluster or source,
        canary_id=canary,
        spans=spans,
        training_input=training,
    )


def numbered(rows: Sequence[PlannedRow]) -> list[PlannedRow]:
    """The rows with numbers and ids of their own, from 1."""
    made = []
    for number, one in enumerate(rows, start=1):
        shared = one.source_id != f"{one.split}-{one.number}"
        source = one.source_id if shared else f"row-{number}"
        in_group = one.cluster != one.source_id
        made.append(
            PlannedRow(
                number=number,
                id=f"row-{number}",
                task=one.task,
                text=one.text,
                split=one.split,
                source_id=source,
                cluster=one.cluster if in_group else source,
                canary_id=one.canary_id,
                spans=one.spans,
                training_input=one.training_input,
            )
        )
    return made
