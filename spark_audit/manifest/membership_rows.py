"""Choose members and non-members, without near-duplicate texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from spark_audit.data.examples import Example, parts_outside
from spark_audit.data.fixed_wording import template_ranges
from spark_audit.manifest import layout
from spark_audit.stats.duplicates import duplicate_groups


def near_duplicate_groups(rows: layout.Rows) -> np.ndarray:
    """Return the near-duplicate group of each row, shape ``(n,)``, int64.

    Fixed wording is ignored, because all rows of a task share it.
    """
    texts = []
    for example in rows.examples:
        fixed_ranges = template_ranges(example, rows.templates)
        other_ranges = parts_outside(fixed_ranges, len(example.text))
        other_text = " ".join(example.text[start:end] for start, end in other_ranges)
        # Without this, rows of fixed wording alone would be duplicates of each other.
        texts.append(other_text if other_text.strip() else example.text)

    return duplicate_groups(texts)


def membership(
    examples: Sequence[Example], groups: np.ndarray
) -> tuple[dict[str, list[str]], int]:
    """Return ids of members and non-members, and the number of rows left out of both.

    Members are train rows without a canary, and non-members are test rows without one;
    the ids keep the order of the rows. Rows of a near-duplicate group with rows in both
    splits are neither, and the number counts them.

    Parameters
    ----------
    groups
        Near-duplicate group of each row, shape ``(n,)``.
    """
    splits_of_group: dict[int, set[str]] = defaultdict(set)
    for example, group in zip(examples, groups.tolist(), strict=True):
        splits_of_group[group].add(example.split)

    members: list[str] = []
    non_members: list[str] = []
    n_crossing = 0
    for example, group in zip(examples, groups.tolist(), strict=True):
        # A row with a canary does not resemble any natural row.
        if example.canary is not None:
            continue

        if len(splits_of_group[group]) > 1:
            n_crossing += 1
        elif example.split == "train":
            members.append(example.id)
        elif example.split == "test":
            non_members.append(example.id)

    return {"members": members, "non_members": non_members}, n_crossing
