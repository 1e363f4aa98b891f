"""The fixed wording of a task: what its prompts begin and end with.

Prompts of a task are made of one template, and its words belong to nobody: they are no
identifier, no control and no secret. Most rows show what the template is. A row that
lacks it, as one of another export does, changes nothing for the others and is counted.

The wording ends where a word or a field ends and never inside an identifier. Telephone
numbers that all begin with one area code are still whole identifiers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from heapq import heappush, heapreplace
from typing import NamedTuple

from spark_audit.data.examples import Example, Ranges
from spark_audit.data.pii import find_identifiers

MIN_SHARE_OF_ROWS = 0.5
"""Fixed wording stands in more than this share of a task's different prompts."""
MOST_OF_FIELD = 0.75
"""It goes on to a word's border where more than this share of those prompts does."""
SAMPLE = 1024
"""Different prompts of a task in which its fixed wording is looked for."""
EDGE = 20_000
"""Characters at each end of a prompt that are looked at."""
TRIES = 40
"""Borders of words, and of fields, at which an end of the wording is tried."""
MAX_WORDING_REACH = 200
"""Characters on either side of a border in which an identifier may cross it."""

_PREFIX_BORDERS = re.compile(
    r"(?<=\s)"  # behind a word
    r"|(?<=[^\d\W][:;=]|[\"'*\])}][:;=])(?!//)"  # behind the name of a field
    r"|(?<=:\*\*)"
    r"|(?<=[\])}>|\uff1a\u3002\uff0c\u3001\uff1b\uff01\uff1f\u300d\u3011])"
)
_SUFFIX_BORDERS = re.compile(
    r"(?=\s)"  # before a word
    r"|(?=[\[({<|\u300c\u3010])"  # before a mark of a field
    r"|(?<=[>|\u3002\uff01\uff1f\uff1b])"
)
_FIELD_ENDS = re.compile(
    r"(?:[\n:;=\])}>|\uff1a\u3002\uff0c\u3001\uff1b\uff01\uff1f\u300d\u3011]"
    r"|:\*\*|[.!?](?=\s))\s*\Z"
)
_FIELD_BEGINS = re.compile(
    r"\s{0,99}[\n\[({<|\u300c\u3010]|(?<=[>|\u3002\uff01\uff1f\uff1b])"
)
_MAY_GO_ON = re.compile(r"(?:\w|[.,'\u2019@+#(-]|(?<=\d)\)) {0,3}\Z")
_MAY_BEGIN = re.compile(r" {0,3}[\w+(#@.-]")


class FixedWording(NamedTuple):
    """What the prompts of a task begin and end with; both may be empty."""

    prefix: str
    suffix: str


NO_WORDING = FixedWording("", "")


# --- of a task ------------------------------------------------------------------------


def task_templates(examples: Iterable[Example]) -> dict[str, FixedWording]:
    """Return the fixed wording of each task, from what most of its prompts share.

    A task with fewer than two different prompts has none. Of more than :data:`SAMPLE`
    different prompts, those with the smallest digests are looked at, so that the
    order of the rows changes nothing.

    Notes
    -----
    Sorted prompts that share a beginning stand next to each other. More than half of
    them therefore share a beginning only with the middle one among them.
    """
    wording = {}
    for task, sample in _samples(examples).items():
        if len(sample) < 2:
            wording[task] = NO_WORDING
            continue
        prefix = _shared_prefix(sample)
        suffix = _shared_suffix(sample, prefix)
        wording[task] = FixedWording(prefix, suffix)
    return wording


def _samples(examples: Iterable[Example]) -> dict[str, list[Example]]:
    """Return at most ``SAMPLE`` examples of each task, with prompts that differ."""
    heaps: dict[str, list[tuple[int, int, Example]]] = defaultdict(list)
    digests: dict[str, set[int]] = defaultdict(set)
    for number, example in enumerate(examples):
        prompt = example.prompt.encode()
        digest = int.from_bytes(blake2b(prompt, digest_size=8).digest())
        heap = heaps[example.task]
        known = digests[example.task]
        if digest in known:
            continue

        # The heap has the largest digest on top, which leaves first.
        entry = (-digest, number, _edges_of(example))
        if len(heap) < SAMPLE:
            heappush(heap, entry)
            known.add(digest)
        elif digest < -heap[0][0]:
            largest, *_ = heapreplace(heap, entry)
            known.remove(-largest)
            known.add(digest)
    return {task: [example for *_, example in heap] for task, heap in heaps.items()}


def _edges_of(example: Example) -> Example:
    """Return the example, or of a very long prompt its two ends."""
    removed = len(example.prompt) - 2 * EDGE
    if removed <= 0:
        return example

    resumes = EDGE + removed
    spans = [span for span in example.spans if span.end <= EDGE]
    spans += [span.moved(-removed) for span in example.spans if span.start >= resumes]
    return replace(
        example,
        prompt=example.prompt[:EDGE] + example.prompt[resumes:],
        spans=tuple(spans),
        template=None,
        frames=(),
    )


def _shared_prefix(sample: Sequence[Example]) -> str:
    """Return the longest beginning that enough prompts have up to a border."""
    prompts = sorted(example.prompt for example in sample)
    middle = prompts[len(prompts) // 2][:EDGE]

    def ends_field(length: int) -> bool:
        return (
            _FIELD_ENDS.search(middle[max(length - MAX_WORDING_REACH, 0) : length])
            is not None
        )

    def n_whole(length: int) -> int:
        holders = [one for one in sample if one.prompt.startswith(middle[:length])]
        return sum(not _crosses(one, length) for one in holders)

    lengths = [found.start() for found in _PREFIX_BORDERS.finditer(middle)]
    length = _longest(middle, lengths, prompts, ends_field, n_whole)
    return middle[:length]


def _shared_suffix(sample: Sequence[Example], prefix: str) -> str:
    """Return the longest end that enough prompts have behind their beginning."""
    rests = [
        (example, example.prompt[_prefix_end(example.prompt, prefix) :])
        for example in sample
    ]
    reversed_rests = sorted(rest[::-1] for _, rest in rests)
    reversed_middle = reversed_rests[len(rests) // 2][:EDGE]
    middle = reversed_middle[::-1]

    def begins_field(length: int) -> bool:
        return _FIELD_BEGINS.match(middle, len(middle) - length) is not None

    def n_whole(length: int) -> int:
        ending = middle[len(middle) - length :]
        holders = [one for one, rest in rests if rest.endswith(ending)]
        return sum(not _crosses(one, len(one.prompt) - length) for one in holders)

    starts = [found.start() for found in _SUFFIX_BORDERS.finditer(middle)]
    lengths = [len(middle) - start for start in reversed(starts)]
    length = _longest(reversed_middle, lengths, reversed_rests, begins_field, n_whole)
    return middle[len(middle) - length :]


def _longest(
    text: str,
    lengths: list[int],
    texts: Sequence[str],
    is_field: Callable[[int], bool],
    n_whole: Callable[[int], int],
) -> int:
    """Return the length of the longest beginning of a text that is fixed wording.

    Up to a field's border most texts must have it; up to a word's border, more than
    :data:`MOST_OF_FIELD` of those that have the field before. Ends of prompts are given
    as beginnings: reversed.

    Parameters
    ----------
    text
        One of the texts.
    lengths
        Where it has a border, in order.
    texts
        Sorted.
    is_field
        Whether the border behind so many characters is a field's.
    n_whole
        Number of texts that share so many characters and have no identifier across
        the border.
    """
    lengths = [length for length in lengths if length > 0]
    # What a beginning lacks, all that are longer lack too.
    n_in_most = bisect_left(
        lengths, True, key=lambda length: not _is_in_most(texts, text[:length])
    )
    lengths = lengths[:n_in_most]
    fields = [length for length in lengths if is_field(length)]
    words = [length for length in lengths[-TRIES:] if length not in fields[-TRIES:]]

    for length in sorted([*words, *fields[-TRIES:]], reverse=True):
        n_needed = MIN_SHARE_OF_ROWS * len(texts)
        if length in words:
            field = max((one for one in fields if one < length), default=0)
            n_with_field = n_whole(field) if field else len(texts)
            n_needed = max(n_needed, MOST_OF_FIELD * n_with_field)
        if n_whole(length) > n_needed:
            return length
    return 0


def _is_in_most(texts: Sequence[str], wording: str) -> bool:
    """Return whether most of the sorted texts begin with the wording."""
    first = bisect_left(texts, wording)
    last_needed = first + int(MIN_SHARE_OF_ROWS * len(texts))
    return last_needed < len(texts) and texts[last_needed].startswith(wording)


def _crosses(example: Example, border: int) -> bool:
    """Return whether an identifier stands on both sides of a border of the prompt."""
    if _cut_span(example, border):
        return True
    text = example.text
    # No identifier goes on behind a colon, a bracket's end or a line's end.
    if not (
        _MAY_GO_ON.search(text[max(border - 5, 0) : border])
        and _MAY_BEGIN.match(text, border)
    ):
        return False
    low = max(border - MAX_WORDING_REACH, 0)
    while (
        low > 0 and not text[low - 1].isspace() and border - low < 2 * MAX_WORDING_REACH
    ):
        low -= 1
    at = border - low
    found = find_identifiers(text[low : border + MAX_WORDING_REACH])
    return any(span.start < at < span.end for span in found)


def _cut_span(example: Example, border: int) -> bool:
    return any(span.start < border < span.end for span in example.spans)


# --- of a row -------------------------------------------------------------------------


def template_ranges(example: Example, wording: Mapping[str, FixedWording]) -> Ranges:
    """Return the character ranges of an example's fixed wording.

    They are the row's own if the file gives them, else those of its task
    (``wording``, from :func:`task_templates`). A row that lacks a part of the wording
    has what it shares with it. No range ends inside an annotated identifier.
    """
    if example.template is not None:
        return tuple(_outside_spans(example, example.template))

    prefix, suffix = wording.get(example.task, NO_WORDING)
    length = len(example.prompt)
    first_end = _prefix_end(example.prompt, prefix)
    last_start = first_end + _suffix_start(example.prompt[first_end:], suffix)
    ranges = ((0, first_end), (last_start, length))
    filled = tuple((start, end) for start, end in ranges if start < end)
    return tuple(_outside_spans(example, filled))


def _prefix_end(prompt: str, prefix: str) -> int:
    """Return where the prompt's part of the prefix ends, at a border of the prefix."""
    if prompt.startswith(prefix):
        return len(prefix)
    shared = _length_shared(prompt, prefix)
    borders = (found.start() for found in _PREFIX_BORDERS.finditer(prefix))
    return max((border for border in borders if border <= shared), default=0)


def _suffix_start(rest: str, suffix: str) -> int:
    """Return where the part of the suffix begins that a prompt's rest ends with."""
    if rest.endswith(suffix):
        return len(rest) - len(suffix)
    shared = _length_shared(rest[::-1], suffix[::-1])
    starts = (found.start() for found in _SUFFIX_BORDERS.finditer(suffix))
    lengths = (len(suffix) - start for start in starts)
    return len(rest) - max((n for n in lengths if n <= shared), default=0)


def _length_shared(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    shortest = min(len(first), len(second))
    return next((at for at, (one, other) in pairs if one != other), shortest)


def _outside_spans(example: Example, ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Yield the ranges, shortened where an edge stands inside an identifier."""
    for start, end in ranges:
        for span in example.spans:
            if span.start < start < span.end:
                start = span.end
            if span.start < end < span.end:
                end = span.start
        if start < end:
            yield start, end


def merged(ranges: Ranges) -> list[tuple[int, int]]:
    """Return ranges in order, with those that touch joined."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def rows_without(
    examples: Iterable[Example], wording: Mapping[str, FixedWording]
) -> dict[str, tuple[int, int]]:
    """Return for each task how many rows lack its fixed wording, and how many it has.

    Rows whose file gives their wording are not counted, nor tasks of which all have it.
    """
    lacking: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for example in examples:
        if example.template is not None:
            continue
        prefix, suffix = wording.get(example.task, NO_WORDING)
        rest = example.prompt.removeprefix(prefix)
        is_whole = example.prompt.startswith(prefix) and rest.endswith(suffix)
        counted[example.task] += 1
        lacking[example.task] += not is_whole
    return {task: (n, counted[task]) for task, n in lacking.items() if n}


def lack_notes(
    examples: Iterable[Example], wording: Mapping[str, FixedWording]
) -> list[str]:
    """Return a note on each task in which rows lack the fixed wording."""
    return [
        f"task {task}: {n_lacking} of {n_rows} rows lack the fixed wording that most "
        "rows of the task begin or end with"
        for task, (n_lacking, n_rows) in sorted(rows_without(examples, wording).items())
    ]
