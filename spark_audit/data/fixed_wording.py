"""Find the fixed wording of a row: the characters that come from a template.

The prompts of a task are made from one template, and its words belong to nobody: they
are not identifiers, controls or secrets. Most rows of a task show its template
(:mod:`spark_audit.data.task_wording`). A row without it, such as one of another export,
is counted and does not affect the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from os.path import commonprefix
from typing import NamedTuple

from spark_audit.data.examples import Example, Ranges

PREFIX_BORDERS = re.compile(
    r"(?<=\s)"  # behind a word
    r"|(?<=[^\d\W][:;=]|[\"'*\])}][:;=])(?!//)"  # behind the name of a field
    r"|(?<=:\*\*)"
    r"|(?<=[\])}>|\uff1a\u3002\uff0c\u3001\uff1b\uff01\uff1f\u300d\u3011])"
)
"""Places at which wording at the beginning of a prompt may end."""

SUFFIX_BORDERS = re.compile(
    r"(?=\s)"  # before a word
    r"|(?=[\[({<|\u300c\u3010])"  # before a mark of a field
    r"|(?<=[>|\u3002\uff01\uff1f\uff1b])"
)
"""Places at which wording at the end of a prompt may begin."""


class FixedWording(NamedTuple):
    """The common beginning and end of a task's prompts; both may be empty."""

    prefix: str
    suffix: str


NO_WORDING = FixedWording("", "")


def template_ranges(example: Example, wording: Mapping[str, FixedWording]) -> Ranges:
    """Return the character ranges of an example's fixed wording.

    The row's own ranges are used if its file gives them. Otherwise they are those of
    its task (``wording``, from :func:`spark_audit.data.task_wording.task_wordings`).
    If a row has only a part of the wording, its ranges are that part. No range ends
    inside an annotated identifier.
    """
    return tuple(_outside_spans(example, whole_ranges(example, wording)))


def whole_ranges(example: Example, wording: Mapping[str, FixedWording]) -> Ranges:
    """Return the ranges of :func:`template_ranges` before they avoid identifiers.

    Nothing may be put into these, since a range that avoids an identifier is shorter
    than the wording that stands there, or empty.
    """
    if example.template is not None:
        return example.template

    prefix, suffix = wording.get(example.task, NO_WORDING)
    beginning_end = prefix_end(example.prompt, prefix)
    # The end is searched behind the beginning, because in a short prompt they may
    # overlap.
    rest = example.prompt[beginning_end:]
    ending_start = beginning_end + _suffix_start(rest, suffix)

    ranges: list[tuple[int, int]] = []
    if beginning_end > 0:
        ranges.append((0, beginning_end))
    if ending_start < len(example.prompt):
        ranges.append((ending_start, len(example.prompt)))
    return tuple(ranges)


def prefix_end(prompt: str, prefix: str) -> int:
    """Return the end of what a prompt shares with the wording, at a border of it.

    Parameters
    ----------
    prefix
        The beginning that the task's prompts share (:class:`FixedWording`).
    """
    if prompt.startswith(prefix):
        return len(prefix)

    # A shared half of a word does not count: it begins a word of the row itself.
    n_shared = len(commonprefix([prompt, prefix]))
    end = 0
    for border in PREFIX_BORDERS.finditer(prefix):
        if border.start() <= n_shared:
            end = border.start()
    return end


def _suffix_start(rest: str, suffix: str) -> int:
    """Return the start of what the rest of a prompt shares with the suffix."""
    if rest.endswith(suffix):
        return len(rest) - len(suffix)

    # The first border with a fully shared rest gives the longest part.
    n_shared = len(commonprefix([rest[::-1], suffix[::-1]]))
    for border in SUFFIX_BORDERS.finditer(suffix):
        length = len(suffix) - border.start()
        if length <= n_shared:
            return len(rest) - length
    return len(rest)


def _outside_spans(example: Example, ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Yield the ranges, shortened if an edge stands inside an identifier."""
    for start, end in ranges:
        # An identifier wholly inside a range stays there: it belongs to the wording.
        for span in example.spans:
            if span.start < start < span.end:
                start = span.end
            if span.start < end < span.end:
                end = span.start
        if start < end:
            yield start, end


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, with those that touch or overlap joined.

    Examples
    --------
    >>> merged([(4, 6), (0, 2), (2, 3), (5, 9)])
    [(0, 3), (4, 9)]
    """
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            last_start, last_end = joined[-1]
            joined[-1] = (last_start, max(end, last_end))
        else:
            joined.append((start, end))
    return joined


def with_shared_wording(
    example: Example, wording: Mapping[str, FixedWording]
) -> Example:
    """Return the example with its task's shared wording added to its own.

    Its fixed wording then has its own ranges and those of its task.
    """
    shared = template_ranges(replace(example, template=None), wording)
    ranges = [*shared, *(example.template or ())]
    filled = [(start, end) for start, end in ranges if start < end]
    return replace(example, template=tuple(merged(filled)))


def rows_without(
    examples: Iterable[Example], wording: Mapping[str, FixedWording]
) -> dict[str, tuple[int, int]]:
    """Count the rows without the fixed wording, for each task that has such rows.

    Returns
    -------
    dict
        Task -> number of rows without the wording, and of all counted rows.

    Notes
    -----
    Rows whose file gives their wording are not counted, nor tasks of which all have it.
    """
    n_lacking: Counter[str] = Counter()
    n_rows: Counter[str] = Counter()
    for example in examples:
        if example.template is not None:
            continue

        # In a short prompt, beginning and end must not share characters.
        prefix, suffix = wording.get(example.task, NO_WORDING)
        rest = example.prompt.removeprefix(prefix)
        is_whole = example.prompt.startswith(prefix) and rest.endswith(suffix)
        n_rows[example.task] += 1
        n_lacking[example.task] += not is_whole
    return {task: (n, n_rows[task]) for task, n in n_lacking.items() if n}


def lack_notes(
    examples: Iterable[Example], wording: Mapping[str, FixedWording]
) -> list[str]:
    """Return a note on each task with rows that lack the fixed wording."""
    notes = []
    for task, (n_lacking, n_rows) in sorted(rows_without(examples, wording).items()):
        notes.append(
            f"task {task}: {n_lacking} of {n_rows} rows lack the fixed wording that "
            "most rows of the task begin or end with"
        )
    return notes
