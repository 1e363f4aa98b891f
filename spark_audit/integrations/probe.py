"""Choose the rows of a manifest that are scored at each look, and their passes."""

from __future__ import annotations

import hashlib

from spark_audit.audits.base import Plan
from spark_audit.manifest.encodings import example_of
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.lineup import union
from spark_audit.scoring.table import ITEMS, Pass

MAX_ROWS_FOR_GUARDS = 16
"""Most rows that a look scores whole for the setup guards alone."""


def probe_rows(manifest: Manifest, plan: Plan, rows: int) -> set[str]:
    """Return ids of the rows of a probe: half of them trained, identifiers first.

    A probe is the part of the manifest that each look of a callback scores.

    If the plan asks for candidates, whole sets (canaries, twins) come first, up to half
    of the rows. Among equal rows, a hash decides, so that the same manifest always
    gives the same probe.

    Parameters
    ----------
    plan
        The passes of all audits, with the keys of the items that each needs.
    rows
        Most rows of the probe.
    """
    planned: set[str] = set()
    for task, item_keys in plan.items():
        planned.update(example_of(task, key) for key in item_keys)

    # A set of candidates is useful only if all of its rows are scored.
    taken: set[str] = set()
    if any(ITEMS[task.kind] == "candidates" for task in plan):
        taken = _rows_of_candidate_sets(manifest, planned, most=rows // 2)

    # Rows of pairs come first, then rows with other identifiers, then all others.
    rows_of_pairs = {pair.example for pair in manifest.pairs}
    examples = [
        example
        for example in manifest.examples
        if example.id in planned and example.id not in taken
    ]
    examples.sort(
        key=lambda example: (
            example.id not in rows_of_pairs,
            not example.spans,
            _drawn_order(example.id),
        )
    )
    trained = [example.id for example in examples if example.split == "train"]
    held_out = [example.id for example in examples if example.split == "test"]

    # Half of the room is for held-out rows; a side with too few rows leaves room to the
    # other.
    room = rows - len(taken)
    n_held_out = min(len(held_out), max(room // 2, room - len(trained)))
    return taken | {*trained[: room - n_held_out], *held_out[:n_held_out]}


def with_plain_text(plan: Plan, manifest: Manifest) -> Plan:
    """Return a plan that scores plain text, too, which the setup guards need.

    Most audits score whole rows by themselves. For others (canaries, twins) a few rows
    are added: enough to see whether the model still works as a language model.

    Parameters
    ----------
    plan
        The passes of all audits; empty: it stays so.
    manifest
        The rows that looks score.
    """
    if not plan or Pass() in plan:
        return plan

    # Only tokens of low sensitivity are plain text.
    row_ids = [example.id for example in manifest.examples if example.low]
    drawn = sorted(row_ids, key=_drawn_order)[:MAX_ROWS_FOR_GUARDS]
    return union([plan, {Pass(): drawn}]) if drawn else plan


def _rows_of_candidate_sets(
    manifest: Manifest, planned: set[str], *, most: int
) -> set[str]:
    """Return ids of the rows of as many whole candidate sets as fit.

    Parameters
    ----------
    planned
        Ids of rows that the plan scores; a set with another row is left out.
    most
        Most rows of all sets together.
    """
    sets_of_rows: list[list[str]] = []
    for candidates in (*manifest.canaries, *manifest.twins):
        sets_of_rows.append([context.example for context in candidates.contexts])

    taken: set[str] = set()
    for row_ids in sorted(sets_of_rows, key=_drawn_order):
        # Sets may share rows.
        added = {*row_ids} - taken
        # A smaller set may fit after a larger one did not.
        if added <= planned and len(taken) + len(added) <= most:
            taken |= added
    return taken


def _drawn_order(key: object) -> bytes:
    """Return a hash that sorts keys in an order without any meaning."""
    return hashlib.sha256(str(key).encode()).digest()
