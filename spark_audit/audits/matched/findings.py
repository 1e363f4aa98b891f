"""The findings of the matched audit, a sentence each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from spark_audit.audits.matched.changes import never_trained_move, own_change
from spark_audit.audits.matched.contrasts import has_sentence
from spark_audit.audits.matched.words import (
    contrast_finding,
    memory_finding,
    selectivity_finding,
)
from spark_audit.names import entry_of
from spark_audit.results import Contrast, Finding, Row


def findings(
    rows: Sequence[Row],
    contrasts: Sequence[Contrast],
    scored: Mapping[str, pd.DataFrame],
    references: Collection[str],
) -> list[Finding]:
    """What is said of each method, then of each contrast that has a sentence.

    Parameters
    ----------
    scored
        Evidence by checkpoint; single replicates of a method are not told of.
    references
        Checkpoints that score as the matching reference does.
    """
    entries = {entry_of(name) for name in scored if entry_of(name) != name}
    by_key = {(r.checkpoint, r.metric, r.of, r.group): r for r in rows}
    found = []
    for name, part in scored.items():
        if entry_of(name) != name:
            continue
        of_name = {key[1:]: row for key, row in by_key.items() if key[0] == name}
        entry, reference = name in entries, name in references
        if not reference:
            kind = never_trained_move(part)
            found.append(memory_finding(name, of_name, kind, entry=entry))
        found.append(
            selectivity_finding(
                name, of_name, own_change(part), reference=reference, entry=entry
            )
        )
    paired = {(r.checkpoint, r.baseline, r.metric, r.group): r for r in contrasts}
    return found + [
        contrast_finding(row, paired, by_key, entry=row.checkpoint in entries)
        for row in contrasts
        if has_sentence(row)
    ]
