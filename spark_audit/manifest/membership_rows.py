"""Members and non-members, without texts that stand twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from spark_audit.data.examples import Example, parts_outside
from spark_audit.data.fixed_wording import template_ranges
from spark_audit.manifest import layout
from spark_audit.stats.duplicates import duplicate_groups


def duplicates(rows: layout.Rows) -> np.ndarray:
    """Near-duplicate group of each row, shape ``(n,)``, int64.

    Fixed wording is left out: all rows of a task share it.
    """
    texts = []
    for example in rows.examples:
        fixed = template_ranges(example, rows.templates)
        parts = parts_outside(fixed, len(example.text))
        text = " ".join(example.text[start:end] for start, end in parts)
        texts.append(text if text.strip() else example.text)
    return duplicate_groups(texts)


def membership(
    examples: Sequence[Example], groups: np.ndarray
) -> tuple[dict[str, list[str]], int]:
    """Members and non-members, and how many rows near-duplicates cost.

    Members are the train rows without a canary, non-members the test rows without one.
    Rows whose near-duplicate group stands in both splits are neither.
    """
    splits: dict[int, set[str]] = defaultdict(set)
    for example, group in zip(examples, groups.tolist(), strict=True):
        splits[group].add(example.split)
    plain = [
        (example, len(splits[group]) > 1)
        for example, group in zip(examples, groups.tolist(), strict=True)
        if example.canary is None
    ]
    sides = {
        side: [one.id for one, both in plain if one.split == split and not both]
        for side, split in (("members", "train"), ("non_members", "test"))
    }
    return sides, sum(both for _, both in plain)
