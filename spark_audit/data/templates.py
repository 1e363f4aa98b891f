"""Fixed wording: what all prompts of a task begin and end with."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from spark_audit.data.examples import Example, Ranges


def task_templates(examples: Iterable[Example]) -> dict[str, tuple[int, int]]:
    """Lengths of the longest common prefix and suffix of each task's prompts.

    Both are drawn back to a boundary, so that no part of a word and no sentence's end
    that all prompts happen to share counts as fixed wording. A task with fewer than two
    different prompts has none: ``(0, 0)``.
    """
    prompts: dict[str, set[str]] = {}
    for example in examples:
        prompts.setdefault(example.task, set()).add(example.prompt)
    return {task: _common(found) for task, found in prompts.items()}


def _common(prompts: set[str]) -> tuple[int, int]:
    if len(prompts) < 2:
        return 0, 0
    prefix = len(os.path.commonprefix(list(prompts)))
    some = next(iter(prompts))
    while prefix and (some[prefix - 1].isalnum() or some[prefix - 1] in "\"'([{<$#"):
        prefix -= 1
    room = min(map(len, prompts)) - prefix
    suffix = min(len(os.path.commonprefix([p[::-1] for p in prompts])), room)
    while suffix and (some[-suffix].isalnum() or some[-suffix] in "\"')]}>.,;:!?%"):
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
