"""What checkpoints show of single persons, and what changed for them since.

Read from the evidence of the membership audit and of extraction, as
:mod:`spark_audit.report.named` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from spark_audit.audits import Extraction, Membership
from spark_audit.audits.claims import ALPHA
from spark_audit.errors import InputError, visible
from spark_audit.names import BASE
from spark_audit.report.named import (
    NAMED_SHARE,
    Named,
    evidence_of,
    named_rows,
    why_in_doubt,
)
from spark_audit.results import Report
from spark_audit.results.evidence import Evidence
from spark_audit.sentences import render
from spark_audit.stats import conformal
from spark_audit.stats.multiple_tests import holm_by_key

if TYPE_CHECKING:
    import pandas as pd

    from spark_audit.manifest.schema import Manifest


class PersonRecord(TypedDict):
    """What a checkpoint shows of a person, as the command prints it.

    Attributes
    ----------
    id, checkpoint
        The id that was asked for, and the checkpoint.
    state
        What is shown of the person; see :func:`persons`.
    trained, held_out
        Numbers of the person's rows on both sides.
    named
        How many of the trained rows stand in the list of single rows.
    p, p_adjusted
        p of the hypothesis that none of the rows was trained on, as it is and corrected
        (Holm) over the persons asked for.
    least
        The smallest p that so many held-out groups allow.
    back, asked
        How many identifiers come back word for word, of how many that were asked for;
        ``None``: not tested.
    texts
        Those that come back, where the manifest was given.
    why
        Why nothing was tested; empty if something was.
    """

    id: str
    checkpoint: str
    state: str
    trained: int
    held_out: int
    named: int
    p: float | None
    p_adjusted: float | None
    least: float
    back: int | None
    asked: int
    texts: list[str]
    why: str


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


def persons(
    report: Report,
    folder: Path,
    ids: Sequence[str],
    *,
    sources: Mapping[str, str] | None = None,
    shown: Manifest | None = None,
    share: float = NAMED_SHARE,
) -> list[PersonRecord]:
    """Return what each checkpoint shows of persons, by ids of rows or of groups.

    The ``state`` is the first of these that holds:

    ``not_tested``
        There is no row to test.
    ``shown``
        ``p_adjusted`` is below 0.05.
    ``listed``
        The person would stand in the list of groups of rows (:func:`_listed`).
    ``not_shown``
        Neither.

    Parameters
    ----------
    sources
        Source id -> the group that it belongs to, as the manifest knows them: a group
        has the name of its smallest source.
    shown
        The report's manifest, from which the identifiers that come back are shown as
        text; None: they are only counted.
    share
        Expected share of false ones among named rows.

    Raises
    ------
    InputError
        If an id is in no row of the evidence: the report says nothing of such a person.
        If the manifest has other identifiers than were audited.
    """
    evidence = evidence_of(report, folder)
    extracted = None
    if Extraction.evidence_file() in report.evidence:
        extracted = evidence_of(report, folder, Extraction.name)
    clusters_of_identifiers: Iterable[str] = ()
    if extracted is not None:
        clusters_of_identifiers = extracted.units["cluster"]
    groups = _groups(evidence.units, ids, sources or {}, clusters_of_identifiers)
    _check_all_known(groups)

    texts_of_identifiers: list[str] = []
    if shown is not None and extracted is not None:
        texts_of_identifiers = _texts(shown, extracted)
    records: list[PersonRecord] = []
    for named in named_rows(report, evidence, share=share):
        records += _records_of(
            named,
            groups,
            evidence.units,
            extracted=extracted,
            texts_of_identifiers=texts_of_identifiers,
            share=share,
        )

    # By person in the order in which they were asked for, then by checkpoint.
    order = {person: position for position, person in enumerate(groups)}
    return sorted(records, key=lambda record: order[record["id"]])


def _check_all_known(groups: Mapping[str, set[str]]) -> None:
    """Refuse a person of whom the evidence has no row.

    Raises
    ------
    InputError
        With the first of them.
    """
    for person, clusters in groups.items():
        if not clusters:
            raise InputError(
                "is no row and no group of rows of this report: nothing is known of it",
                where=f"--person {visible(person)}",
                fix="give the id of a row, or --manifest for the sources of all rows",
            )


def _records_of(
    named: Named,
    groups: Mapping[str, set[str]],
    units: pd.DataFrame,
    *,
    extracted: Evidence | None,
    texts_of_identifiers: Sequence[str],
    share: float,
) -> list[PersonRecord]:
    """Return what one checkpoint shows of persons.

    Parameters
    ----------
    named
        The checkpoint's rows, named or not.
    groups
        Person -> groups of rows.
    units
        Rows whose membership was audited.
    extracted
        Evidence of identifiers that were asked for, if there is any.
    texts_of_identifiers
        Their texts, by their numbers in ``extracted``; empty: they are not shown.
    share
        Expected share of false ones among named rows.
    """
    rows_by_person = {}
    for person, clusters in groups.items():
        is_of_person = named.rows["group"].isin(clusters)
        rows_by_person[person] = named.rows[is_of_person]

    p: dict[str, float] = {}
    if not named.why:
        p = _p_by_person(rows_by_person)
    # Whoever asks for many persons would find one by chance.
    p_adjusted = holm_by_key(p)
    listed = _listed(named, groups, p, share)

    records: list[PersonRecord] = []
    for person, rows in rows_by_person.items():
        is_held_out = ~units["member"] & units["cluster"].isin(groups[person])
        n_held_out = int(is_held_out.sum())
        # Only texts that the model itself gives away are shown.
        back = _come_back(extracted, named.checkpoint, groups[person])
        texts = []
        if texts_of_identifiers and back.spans is not None:
            texts = [texts_of_identifiers[span] for span in back.spans]

        records.append(
            {
                "id": person,
                "checkpoint": named.checkpoint,
                "state": _state(p_adjusted.get(person), is_listed=person in listed),
                "trained": len(rows),
                "held_out": n_held_out,
                "named": int(rows["named"].sum()),
                "p": p.get(person),
                "p_adjusted": p_adjusted.get(person),
                "least": 1 / (1 + named.held_out),
                "back": None if back.spans is None else len(back.spans),
                "asked": back.n_asked,
                "texts": list(dict.fromkeys(texts)),
                "why": named.why or _why_no_rows(len(rows), n_held_out),
            }
        )
    return records


def _state(p_adjusted: float | None, *, is_listed: bool) -> str:
    """Return the state of a person, as :func:`persons` has them."""
    if p_adjusted is None:
        return "not_tested"
    if p_adjusted < ALPHA:
        return "shown"
    return "listed" if is_listed else "not_shown"


def _why_no_rows(n_trained: int, n_held_out: int) -> str:
    """Return why a person has no trained row that was audited; empty where some was."""
    if n_trained:
        return ""
    return render("named.held_out" if n_held_out else "named.not_compared")


def _p_by_person(rows_by_person: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """Return the p of each person over their rows; of one without scored rows none."""
    p = {}
    for person, rows in rows_by_person.items():
        p_of_rows = rows["p"].dropna()
        if len(p_of_rows):
            p[person] = conformal.simes(p_of_rows)
    return p


def _listed(
    named: Named, groups: Mapping[str, set[str]], p: Mapping[str, float], share: float
) -> set[str]:
    """Return the persons that would stand in the list of groups of rows.

    Each person enters that list as one group, with one p for all of their rows. So a
    person none of whose rows was trained on is listed in at most 5 of 100 cases,
    however many rows they have; by single rows it would be 1 in 5 with ten rows.
    """
    listed = set()
    for person, p_of_person in p.items():
        is_other = ~named.groups["group"].isin(groups[person])
        p_of_others = named.groups.loc[is_other, "p"]
        # The person comes first, so the first answer is the person's.
        is_discovery = conformal.discoveries([p_of_person, *p_of_others], share=share)
        if is_discovery[0]:
            listed.add(person)
    return listed


def _groups(
    units: pd.DataFrame,
    ids: Sequence[str],
    sources: Mapping[str, str],
    further_clusters: Iterable[str] = (),
) -> dict[str, set[str]]:
    """Return the groups of rows of each person; none where nothing is known.

    Parameters
    ----------
    ids
        Ids of rows, groups or sources, one for each person.
    sources
        Source id -> the group that it belongs to.
    further_clusters
        Groups of identifiers that only ``extract`` asked for.
    """
    clusters_by_row = units.groupby("example")["cluster"].agg(set).to_dict()
    known_clusters = {*units["cluster"], *further_clusters}
    groups = {}
    for person in ids:
        # An id may be that of a row and of a group: both are meant.
        group_of_id = {sources.get(person, person)} & known_clusters
        groups[person] = clusters_by_row.get(person, set()) | group_of_id
    return groups


def _texts(manifest: Manifest, extracted: Evidence) -> list[str]:
    """Return the identifiers that were asked for, by their numbers in the evidence."""
    from spark_audit.audits.extract.prompts import FULL_PROMPT, spans_of

    is_full_prompt = extracted.units["prompt"] == FULL_PROMPT
    units = extracted.units[is_full_prompt].sort_values("span")
    audited = list(zip(units["cluster"], units["type"], strict=True))

    # Evidence numbers identifiers, without their text: both must list the same ones.
    in_manifest = []
    texts = []
    for row, span, _ in spans_of(manifest):
        in_manifest.append((row.cluster, span.type))
        texts.append(row.text[span.start : span.end])
    if audited != in_manifest:
        raise InputError(
            "has other identifiers than were audited, so that none can be told",
            where="--manifest",
            fix="audit all of it, without --limit",
        )
    return texts


@dataclass(frozen=True)
class _ComesBack:
    """The identifiers of a person that come back word for word.

    Attributes
    ----------
    spans
        Their numbers in the evidence of ``extract``; None: none was asked for.
    n_asked
        How many identifiers of the person were asked for.
    """

    spans: list[int] | None
    n_asked: int


def _come_back(extracted: Evidence | None, name: str, groups: set[str]) -> _ComesBack:
    """Return which trained identifiers of groups come back from a checkpoint."""
    from spark_audit.audits.extract.prompts import FULL_PROMPT

    if extracted is None or name not in extracted.checkpoints:
        return _ComesBack(spans=None, n_asked=0)

    units = extracted.units.assign(back=extracted.row(name, "greedy_sure"))
    is_asked = (
        units["cluster"].isin(groups)
        & (units["split"] == "train")
        & (units["prompt"] == FULL_PROMPT)
        & units["back"].notna()
    )
    if not is_asked.any():
        return _ComesBack(spans=None, n_asked=0)

    spans = units["span"][is_asked & (units["back"] == 1)]
    return _ComesBack(spans=spans.tolist(), n_asked=int(is_asked.sum()))


def changed(
    reports: Mapping[Path, Report],
    ids: Sequence[str],
    *,
    sources: Mapping[str, str] | None = None,
) -> list[PersonChange]:
    """Return what changed for persons between checkpoints of two reports.

    Compared are checkpoints of one name, or the only ones. A row's change is that of
    its score; held-out rows of its task tell how much scores change anyway.

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

    groups = _groups(units, ids, sources or {})
    n_held_out = units["cluster"][~units["member"].to_numpy(bool)].nunique()
    smallest_p = min(1.0, 2 / (1 + n_held_out))  # two-sided

    report_before, report_after = reports.values()
    records: list[PersonChange] = []
    for name_before, name_after in _compared_names(before, after):
        why_not = why_in_doubt(report_before, name_before)
        why_not = why_not or why_in_doubt(report_after, name_after)
        sides: dict[str, _BothSides] = {}
        if not why_not:
            sides = _both_sides(
                before,
                after,
                name_before=name_before,
                name_after=name_after,
                groups=groups,
            )
        p = {person: side.p for person, side in sides.items()}
        p_adjusted = holm_by_key(p)

        for person in groups:
            change = "untested"
            if person in p_adjusted:
                is_shown = p_adjusted[person] < ALPHA
                change = sides[person].direction if is_shown else "unchanged"
            records.append(
                {
                    "id": person,
                    "before": name_before,
                    "after": name_after,
                    "change": change,
                    "p": p.get(person),
                    "p_adjusted": p_adjusted.get(person),
                    "least": smallest_p,
                }
            )
    return records


@dataclass(frozen=True)
class _BothSides:
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


def _compared_names(before: Evidence, after: Evidence) -> list[tuple[str, str]]:
    """Return the checkpoints of one name in both reports, or the only ones."""
    # The base is in both, and nothing changes in it.
    names_before = [name for name in before.checkpoints if name != BASE]
    names_after = [name for name in after.checkpoints if name != BASE]
    pairs = [(name, name) for name in names_before if name in names_after]
    if not pairs and len(names_before) == len(names_after) == 1:
        pairs = [(names_before[0], names_after[0])]
    return pairs


def _both_sides(
    before: Evidence,
    after: Evidence,
    *,
    name_before: str,
    name_after: str,
    groups: Mapping[str, set[str]],
) -> dict[str, _BothSides]:
    """Return the one-sided p that a person's rows fell, and that they rose.

    Parameters
    ----------
    name_before, name_after
        The checkpoint in the first and in the second report.
    groups
        Person -> groups of rows; a person without a scored row is left out.
    """
    units = before.units
    is_held_out = ~units["member"].to_numpy(bool)  # (rows,)
    score = Membership.names_rows_by
    change = after.row(name_after, score) - before.row(name_before, score)  # (rows,)
    scaled = conformal.standardised(
        change, is_held_out, units["task"], units["cluster"]
    )
    # Held-out rows tell how far scores move without any training on a row.
    p_fell = conformal.conformal_p(-scaled, is_held_out, units["cluster"])
    p_rose = conformal.conformal_p(scaled, is_held_out, units["cluster"])

    sides = {}
    for person, clusters in groups.items():
        is_of_person = units["cluster"].isin(clusters).to_numpy()  # (rows,)
        is_scored = is_of_person & np.isfinite(p_fell)
        if is_scored.any():
            sides[person] = _BothSides(
                p_fell=conformal.simes(p_fell[is_scored]),
                p_rose=conformal.simes(p_rose[is_scored]),
            )
    return sides
