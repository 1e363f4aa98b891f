"""The findings of the matched audit, a sentence each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from spark_audit.audits.matched.changes import (
    confounded,
    left_out,
    own_change,
)
from spark_audit.audits.matched.contrasts import has_sentence
from spark_audit.audits.matched.words import (
    contrast_finding,
    memory_findings,
    selectivity_finding,
)
from spark_audit.audits.occurrences import Moved
from spark_audit.names import entry_of
from spark_audit.results import Contrast, Finding, Row


def findings(
    rows: Sequence[Row],
    scored: Mapping[str, pd.DataFrame],
    references: Collection[str],
    tested: Mapping[str, Mapping[str, Moved]],
) -> list[Finding]:
    """What is said of each method.

    Parameters
    ----------
    scored
        Evidence by checkpoint; single replicates of a method are not told of.
    references
        Checkpoints that score as the matching reference does.
    tested
        The tests of no memory, by checkpoint and group.
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
            doubt, lost = confounded(part), left_out(part)
            found += memory_findings(
                name, of_name, tested[name], entry=entry, doubt=doubt, lost=lost
            )
        found.append(
            selectivity_finding(
                name, of_name, own_change(part), reference=reference, entry=entry
            )
        )
    return found


def contrast_findings(
    rows: Sequence[Row],
    contrasts: Sequence[Contrast],
    entries: Collection[str],
    ordinary: Collection[str],
) -> list[Finding]:
    """What is said of each contrast that has a sentence.

    Parameters
    ----------
    entries
        Methods that have replicates.
    ordinary
        Checkpoints whose training nobody corrected.
    """
    by_key = {(r.checkpoint, r.metric, r.of, r.group): r for r in rows}
    found = []
    told = [row for row in contrasts if row.group == "pooled"]
    for row in contrasts:
        if not has_sentence(row):
            continue
        who = (row.checkpoint, row.baseline)
        beside = {
            one.metric: one for one in told if (one.checkpoint, one.baseline) == who
        }
        drift = [by_key.get((n, "low_change", "", "pooled")) for n in who]
        spread = [
            one.value
            for one in told
            if (one.metric, one.baseline) == ("did", row.baseline)
            and one.checkpoint in ordinary
            and one.value is not None
        ]
        found.append(
            contrast_finding(
                row,
                beside,
                (drift[0], drift[1]),
                spread if row.checkpoint not in ordinary else (),
                entry=row.checkpoint in entries,
            )
        )
    return found
