"""What changed for single persons between two reports, as by an erasure.

Read from the evidence of the membership audit, as :mod:`spark_audit.report.persons`
reads it: a row's change is that of its score, and all p are over clusters.
``spark-audit persons`` prints the records.

A further field of a record is added to :class:`PersonChange` and :func:`changed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np

from spark_audit.audits import Membership
from spark_audit.audits.claims import ALPHA
from spark_audit.errors import InputError
from spark_audit.names import BASE
from spark_audit.report.named import evidence_of, why_in_doubt
from spark_audit.report.persons import clusters_of_persons
from spark_audit.results import Report
from spark_audit.results.evidence import Evidence
from spark_audit.stats import conformal
from spark_audit.stats.multiple_tests import holm_by_key


class PersonChange(TypedDict):
    """What changed for a person between two reports, as the command prints it.

    Attributes
    ----------
    id, before, after
        The id that was asked for, and the checkpoint in each report.
    change
        ``fell``, ``rose``, ``unchanged`` (no change is shown) or ``untested``.
    p, p_adjusted
        Two-sided p of the change, as it is and corrected (Holm) over the persons.
    least
        The smallest p that so many held-out groups allow.
    """

    id: str
    before: str
    after: str
    change: str
    p: float | None
    p_adjusted: float | None
    least: float


def changed(
    reports: Mapping[Path, Report],
    ids: Sequence[str],
    *,
    sources: Mapping[str, str] | None = None,
) -> list[PersonChange]:
    """Return what changed for persons between checkpoints of two reports.

    Compared are checkpoints of one name, or the only ones. A row's change is that of
    its score; held-out rows of its task tell how much scores change anyway.

    Parameters
    ----------
    reports
        Two items, folder -> report: the earlier report comes first.
    ids, sources
        As in :func:`spark_audit.report.persons.persons`.

    Raises
    ------
    InputError
        If the reports are of different rows.
    """
    before, after = [evidence_of(report, folder) for folder, report in reports.items()]
    units = before.units
    if not units["example"].equals(after.units["example"]):
        raise InputError(
            "are of different rows, so that nothing can be compared",
            where=" and ".join(str(folder) for folder in reports),
            fix="audit both checkpoints with one manifest",
        )

    clusters_by_person = clusters_of_persons(units, ids, sources or {})
    n_held_out_clusters = units["cluster"][~units["member"].to_numpy(bool)].nunique()
    smallest_p = min(1.0, 2 / (1 + n_held_out_clusters))  # two-sided

    report_before, report_after = reports.values()
    changes: list[PersonChange] = []
    for name_before, name_after in _compared_names(before, after):
        doubt = why_in_doubt(report_before, name_before)
        doubt = doubt or why_in_doubt(report_after, name_after)
        test_by_person: dict[str, _ChangeTest] = {}
        if not doubt:
            test_by_person = _test_changes(
                before,
                after,
                name_before=name_before,
                name_after=name_after,
                clusters_by_person=clusters_by_person,
            )
        p_by_person = {person: test.p for person, test in test_by_person.items()}
        adjusted_p_by_person = holm_by_key(p_by_person)

        for person in clusters_by_person:
            test = test_by_person.get(person)
            p_adjusted = adjusted_p_by_person.get(person)
            changes.append(
                {
                    "id": person,
                    "before": name_before,
                    "after": name_after,
                    "change": _change_in_a_word(test, p_adjusted),
                    "p": p_by_person.get(person),
                    "p_adjusted": p_adjusted,
                    "least": smallest_p,
                }
            )
    return changes


@dataclass(frozen=True)
class _ChangeTest:
    """One-sided p that the familiarity of a person's rows fell, and that it rose."""

    p_fell: float
    p_rose: float

    @property
    def p(self) -> float:
        """The two-sided p."""
        return min(1.0, 2 * min(self.p_fell, self.p_rose))

    @property
    def direction(self) -> str:
        """``fell`` or ``rose``, whichever has the smaller p."""
        return "fell" if self.p_fell < self.p_rose else "rose"


def _change_in_a_word(test: _ChangeTest | None, p_adjusted: float | None) -> str:
    """Return the ``change`` of a :class:`PersonChange`; no test: ``untested``."""
    if test is None or p_adjusted is None:
        return "untested"
    return test.direction if p_adjusted < ALPHA else "unchanged"


def _compared_names(before: Evidence, after: Evidence) -> list[tuple[str, str]]:
    """Return the checkpoints of one name in both reports, or the only ones."""
    # The base is in both, and nothing changes in it.
    names_before = [name for name in before.checkpoints if name != BASE]
    names_after = [name for name in after.checkpoints if name != BASE]
    pairs = [(name, name) for name in names_before if name in names_after]
    if not pairs and len(names_before) == len(names_after) == 1:
        pairs = [(names_before[0], names_after[0])]
    return pairs


def _test_changes(
    before: Evidence,
    after: Evidence,
    *,
    name_before: str,
    name_after: str,
    clusters_by_person: Mapping[str, set[str]],
) -> dict[str, _ChangeTest]:
    """Return person -> the test whether the scores of their rows changed.

    Parameters
    ----------
    name_before, name_after
        The checkpoint in the first and in the second report.
    clusters_by_person
        A person without a scored row is left out of what is returned.
    """
    units = before.units  # the same rows as in ``after``
    is_held_out = ~units["member"].to_numpy(bool)  # (rows,)
    score = Membership.naming_score
    # Above 0: the row became more familiar. NaN: a report has no score of it.
    change = after.row(name_after, score) - before.row(name_before, score)  # (rows,)
    scaled_change = conformal.standardised(
        change, is_held_out, units["task"], units["cluster"]
    )  # (rows,)
    # Held-out rows tell how far scores move without any training on a row.
    p_fell = conformal.conformal_p(-scaled_change, is_held_out, units["cluster"])
    p_rose = conformal.conformal_p(scaled_change, is_held_out, units["cluster"])

    test_by_person = {}
    for person, clusters in clusters_by_person.items():
        is_of_person = units["cluster"].isin(clusters).to_numpy()  # (rows,)
        is_scored = is_of_person & np.isfinite(p_fell)
        if is_scored.any():
            test_by_person[person] = _ChangeTest(
                p_fell=conformal.simes(p_fell[is_scored]),
                p_rose=conformal.simes(p_rose[is_scored]),
            )
    return test_by_person
