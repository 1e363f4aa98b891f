"""Fixed wording: what all prompts of a task begin and end with, and templates."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterable, Iterator, Mapping

from spark_audit.data.examples import Example, Ranges
from spark_audit.errors import InputError


def task_templates(examples: Iterable[Example]) -> dict[str, tuple[int, int]]:
    """Lengths of the longest common prefix and suffix of each task's prompts.

    Both are drawn back to a boundary, so that no part of a word and no sentence's end
    that all prompts happen to share counts as fixed wording. A task with fewer than two
    different prompts has none: ``(0, 0)``.
    """
    # The first and the last in the order of letters share what all share.
    edges: dict[str, tuple[str, ...]] = {}
    for example in examples:
        known = {*edges.get(example.task, ()), example.prompt}
        back = sorted(known, key=lambda prompt: prompt[::-1])
        ends = min(known), max(known), back[0], back[-1], min(known, key=len)
        edges[example.task] = tuple({*ends})
    return {task: _common(prompts) for task, prompts in edges.items()}


def _common(prompts: tuple[str, ...]) -> tuple[int, int]:
    if len(prompts) == 1:
        return 0, 0
    low = prompts[0]
    prefix = len(os.path.commonprefix(prompts))
    while prefix and (low[prefix - 1].isalnum() or low[prefix - 1] in "\"'([{<$#"):
        prefix -= 1
    backwards = [prompt[::-1] for prompt in prompts]
    room = min(map(len, prompts)) - prefix
    suffix = min(len(os.path.commonprefix(backwards)), room)
    while suffix and (low[-suffix].isalnum() or low[-suffix] in "\"')]}>.,;:!?%"):
        suffix -= 1
    return prefix, suffix


def template_ranges(
    example: Example, templates: Mapping[str, tuple[int, int]]
) -> Ranges:
    """Character ranges of an example's fixed wording: its own, else its task's.

    ``templates`` comes from :func:`task_templates`.
    """
    if example.template is not None:
        return example.template
    prefix, suffix = templates.get(example.task, (0, 0))
    length = len(example.prompt)
    first = (0, min(prefix, length))
    last = (max(length - suffix, first[1]), length)
    return tuple((start, end) for start, end in (first, last) if start < end)


def parts_outside(ranges: Ranges, length: int) -> Iterator[tuple[int, int]]:
    """The character ranges before, between and behind some of a text."""
    edges = [0, *(edge for place in ranges for edge in place), length]
    return zip(edges[::2], edges[1::2], strict=True)


_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


def parse_template(template: str) -> list[tuple[str, str | None]]:
    """A template as (fixed wording, column behind it).

    Of the language of ``str.format`` only fields and doubled braces are read, and a
    field is looked up among the row's columns by its whole name: no attribute, no
    index, no conversion, no format.
    """

    def wrong(what: str) -> InputError:
        fix = "write it like 'Text: {text}\\nLabel:'"
        return InputError(what, where="option --template", fix=fix)

    def escape(found: re.Match[str]) -> str:
        if found[1] not in _ESCAPES:
            raise wrong("has a backslash that is none of \\n, \\t, \\\\")
        return _ESCAPES[found[1]]

    pieces: list[tuple[str, str | None]] = []
    try:
        for fixed, column, form, conversion in string.Formatter().parse(template):
            if form or conversion:
                raise wrong("has a field with ':' or '!'")
            if column == "":
                raise wrong("has a field without a name")
            pieces.append((re.sub(r"(?s)\\(.|$)", escape, fixed), column))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise wrong(f"is malformed ({error})") from error
    if not any(column for _, column in pieces):
        raise wrong("names no column")
    return pieces
