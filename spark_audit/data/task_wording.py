"""Find the fixed wording of a task: the common beginning and end of its prompts.

The wording ends where a word or a field ends, and never inside an identifier. So
telephone numbers with a common area code stay whole identifiers.

The search for a beginning has two steps. First, it lists candidates: the borders of
words and fields in one prompt up to which most prompts agree. Then it tries the
candidates from the longest one on, and takes the first that enough prompts have without
an identifier across the border (:meth:`_Search.longest`). The search for an end is the
same, with reversed prompts. Lengths and borders count characters.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from heapq import heappush, heapreplace

from spark_audit.data.examples import Example
from spark_audit.data.fixed_wording import (
    NO_WORDING,
    PREFIX_BORDERS,
    SUFFIX_BORDERS,
    FixedWording,
    prefix_end,
)
from spark_audit.data.pii import find_identifiers

MIN_SHARE_OF_ROWS = 0.5
"""Share of a task's different prompts that must have the fixed wording."""

MOST_OF_FIELD = 0.75
"""Of the prompts that agree up to the end of a field, the share that must also agree up
to the end of a later word."""

PROMPTS_SEARCHED = 1024
"""Most prompts of a task in which the fixed wording is searched."""

EDGE_CHARACTERS = 20_000
"""Characters at each end of a prompt that are searched."""

MAX_BORDERS_TRIED = 40
"""Most borders of words, and most of fields, that are tried."""

CROSSING_REACH = 200
"""Characters on each side of a border in which an identifier may cross it."""

FIELD_END_REACH = 200
"""Characters in front of a border in which the end of a field is looked for."""

_FIELD_ENDS = re.compile(
    r"(?:[\n:;=\])}>|\uff1a\u3002\uff0c\u3001\uff1b\uff01\uff1f\u300d\u3011]"
    r"|:\*\*|[.!?](?=\s))\s*\Z"
)
"""The end of a field's name, a sentence or a line, in front of a border."""

_FIELD_BEGINS = re.compile(
    r"\s{0,99}[\n\[({<|\u300c\u3010]|(?<=[>|\u3002\uff01\uff1f\uff1b])"
)
"""The beginning of a line or a field, behind a border."""

# An identifier can cross a border only between characters of these two patterns.
_MAY_GO_ON = re.compile(r"(?:\w|[.,'\u2019@+#(-]|(?<=\d)\)) {0,3}\Z")
"""The text in front of a border, if an identifier may reach over it."""
_MAY_BEGIN = re.compile(r" {0,3}[\w+(#@.-]")
"""The text behind such a border."""


def task_wordings(examples: Iterable[Example]) -> dict[str, FixedWording]:
    """Return the fixed wording of each task, which most of its prompts share.

    A task with fewer than two different prompts has none. Of more than
    :data:`PROMPTS_SEARCHED` different prompts, those with the smallest digests are
    used, so that the order of the rows has no effect.

    Notes
    -----
    Sorted prompts that share a beginning stand next to each other. If more than half of
    the prompts share one, they are a run that contains the middle prompt.
    """
    wording_by_task = {}
    for task, sample in _samples(examples).items():
        if len(sample) < 2:
            wording_by_task[task] = NO_WORDING
            continue
        prefix = _shared_prefix(sample)
        suffix = _shared_suffix(sample, prefix)
        wording_by_task[task] = FixedWording(prefix, suffix)
    return wording_by_task


def _samples(examples: Iterable[Example]) -> dict[str, list[Example]]:
    """Return at most ``PROMPTS_SEARCHED`` examples a task, with different prompts."""
    heaps: dict[str, list[tuple[int, int, Example]]] = defaultdict(list)
    digests: dict[str, set[int]] = defaultdict(set)
    for number, example in enumerate(examples):
        prompt = example.prompt.encode()
        digest = int.from_bytes(blake2b(prompt, digest_size=8).digest())
        heap = heaps[example.task]
        digests_in_heap = digests[example.task]
        if digest in digests_in_heap:
            continue

        # Digests are negative: the top of the heap is the largest, which is replaced
        # first. Numbers keep examples from being compared.
        entry = (-digest, number, _edges_of(example))
        if len(heap) < PROMPTS_SEARCHED:
            heappush(heap, entry)
            digests_in_heap.add(digest)
        elif digest < -heap[0][0]:
            largest, *_ = heapreplace(heap, entry)
            digests_in_heap.remove(-largest)
            digests_in_heap.add(digest)

    samples: dict[str, list[Example]] = {}
    for task, heap in heaps.items():
        samples[task] = [example for _, _, example in heap]
    return samples


def _edges_of(example: Example) -> Example:
    """Return the example; a very long prompt is reduced to its two ends."""
    n_removed = len(example.prompt) - 2 * EDGE_CHARACTERS
    if n_removed <= 0:
        return example

    # Spans in the removed middle, or across its borders, are left out.
    second_edge = EDGE_CHARACTERS + n_removed
    spans = [span for span in example.spans if span.end <= EDGE_CHARACTERS]
    for span in example.spans:
        if span.start >= second_edge:
            spans.append(span.moved(-n_removed))
    return replace(
        example,
        prompt=example.prompt[:EDGE_CHARACTERS] + example.prompt[second_edge:],
        spans=tuple(spans),
        template=None,
        frames=(),
    )


@dataclass(frozen=True)
class _Search:
    """A search for the longest beginning that is fixed wording.

    Ends of prompts are passed as beginnings of reversed prompts.

    Attributes
    ----------
    text
        The text whose beginnings are tried: the middle one of ``texts``, which has
        every beginning that more than half of them share.
    texts
        All texts, sorted.
    is_field
        Tells whether the border at a length of ``text`` ends a field, not only a word.
    n_agreeing
        Counts the texts that share this length with ``text`` and have no identifier
        across the border.
    """

    text: str
    texts: Sequence[str]
    is_field: Callable[[int], bool]
    n_agreeing: Callable[[int], int]

    def longest(self, borders: Iterable[int]) -> int:
        """Return the length of the wording; 0 if there is none.

        Parameters
        ----------
        borders
            Positions of the borders of ``text``, in order.
        """

        def is_too_long(length: int) -> bool:
            return not self._is_in_most(length)

        # If most texts lack a beginning, they also lack every longer one: from one
        # length on all are too long, and bisection finds the first of them.
        lengths = [border for border in borders if border > 0]
        first_too_long = bisect_left(lengths, True, key=is_too_long)
        lengths = lengths[:first_too_long]

        # Each try reads all texts, so only the longest candidates are tried.
        field_ends = [length for length in lengths if self.is_field(length)]
        tried_field_ends = set(field_ends[-MAX_BORDERS_TRIED:])
        tried = {*lengths[-MAX_BORDERS_TRIED:], *tried_field_ends}
        for length in sorted(tried, reverse=True):
            n_needed = MIN_SHARE_OF_ROWS * len(self.texts)
            if length not in tried_field_ends:
                n_needed = max(n_needed, self._n_needed_for_word(length, field_ends))
            if self.n_agreeing(length) > n_needed:
                return length
        return 0

    def _n_needed_for_word(self, length: int, field_ends: Sequence[int]) -> float:
        """Return how many texts must agree up to the end of a word inside a field.

        It is a share of the texts that agree up to the last end of a field before it.
        """
        ends_before = [end for end in field_ends if end < length]
        n_with_field = len(self.texts)
        if ends_before:
            n_with_field = self.n_agreeing(max(ends_before))
        return MOST_OF_FIELD * n_with_field

    def _is_in_most(self, length: int) -> bool:
        """Return whether most texts begin with this much of ``text``."""
        # Sorted texts with this beginning are one run from `first`. More than half have
        # it if the text half the list further on still has it.
        beginning = self.text[:length]
        first = bisect_left(self.texts, beginning)
        last_needed = first + int(MIN_SHARE_OF_ROWS * len(self.texts))
        if last_needed >= len(self.texts):
            return False
        return self.texts[last_needed].startswith(beginning)


def _shared_prefix(sample: Sequence[Example]) -> str:
    """Return the longest beginning, up to a border, that enough prompts share."""
    prompts = sorted(example.prompt for example in sample)
    middle = prompts[len(prompts) // 2][:EDGE_CHARACTERS]

    def ends_field(length: int) -> bool:
        before = middle[max(length - FIELD_END_REACH, 0) : length]
        return _FIELD_ENDS.search(before) is not None

    def n_agreeing(length: int) -> int:
        beginning = middle[:length]
        return sum(
            example.prompt.startswith(beginning) and not _crosses(example, length)
            for example in sample
        )

    search = _Search(middle, prompts, ends_field, n_agreeing)
    borders = [border.start() for border in PREFIX_BORDERS.finditer(middle)]
    return middle[: search.longest(borders)]


def _shared_suffix(sample: Sequence[Example], prefix: str) -> str:
    """Return the longest end, behind the shared beginning, that enough prompts have."""
    rests = []  # each example, and its prompt without the beginning
    for example in sample:
        rest_start = prefix_end(example.prompt, prefix)
        rests.append((example, example.prompt[rest_start:]))

    # The end of a text is the beginning of its reversal.
    reversed_rests = sorted(rest[::-1] for _, rest in rests)
    reversed_middle = reversed_rests[len(rests) // 2][:EDGE_CHARACTERS]
    middle = reversed_middle[::-1]

    def begins_field(length: int) -> bool:
        return _FIELD_BEGINS.match(middle, len(middle) - length) is not None

    def n_agreeing(length: int) -> int:
        ending = middle[len(middle) - length :]
        return sum(
            rest.endswith(ending)
            and not _crosses(example, len(example.prompt) - length)
            for example, rest in rests
        )

    # Counted from the end, borders are lengths of ends, the shortest one first.
    borders = [border.start() for border in SUFFIX_BORDERS.finditer(middle)]
    lengths = [len(middle) - border for border in reversed(borders)]
    search = _Search(reversed_middle, reversed_rests, begins_field, n_agreeing)
    return middle[len(middle) - search.longest(lengths) :]


def _crosses(example: Example, border: int) -> bool:
    """Return whether an identifier reaches over a border of the prompt."""
    if any(span.start < border < span.end for span in example.spans):
        return True

    # No identifier crosses a colon, a closing bracket or a line end.
    text = example.text
    may_go_on = _MAY_GO_ON.search(text[max(border - 5, 0) : border])
    if not may_go_on or not _MAY_BEGIN.match(text, border):
        return False

    # The text around the border that is searched begins with a whole word.
    start = max(border - CROSSING_REACH, 0)
    earliest = max(border - 2 * CROSSING_REACH, 0)
    while start > earliest and not text[start - 1].isspace():
        start -= 1
    spans = find_identifiers(text[start : border + CROSSING_REACH])
    return any(span.start < border - start < span.end for span in spans)
