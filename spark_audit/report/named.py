"""Rows, groups of rows and persons that are shown to have been trained on.

Read from the evidence of the membership audit, which a report folder keeps: no model
and no text is needed. The score was declared beforehand: ``reference``, the rise of a
text's log-likelihood since the untrained model, against held-out rows of its task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_audit.audits import Extraction, Membership, about
from spark_audit.audits.claims import ALPHA
from spark_audit.audits.setup_guards import faults
from spark_audit.errors import InputError, OutputError, visible
from spark_audit.files import sha256_file
from spark_audit.names import BASE, entry_of
from spark_audit.results import Report
from spark_audit.results.evidence import Evidence
from spark_audit.sentences import render
from spark_audit.stats import conformal
from spark_audit.stats.bootstrap import holm_by_key

if TYPE_CHECKING:
    import pandas as pd

    from spark_audit.manifest.schema import Manifest

BLIND = "blind text classifier"
"""The guard that the texts alone do not tell trained from held-out rows."""
NAMED_SHARE = 0.1
"""Share of false ones among all that are named, where none is asked for."""


@dataclass(frozen=True)
class Named:
    """The trained rows of one checkpoint, or in ``why`` why none can be named.

    ``rows`` has ``row``, ``task``, ``group`` (rows that share a source or a person),
    ``p`` and ``named``; ``groups`` has ``group``, ``rows``, ``p``, ``named``.
    ``held_out`` groups are what they are compared with.
    """

    checkpoint: str
    rows: pd.DataFrame
    groups: pd.DataFrame
    held_out: int
    why: str = ""

    def summary(self, share: float) -> str:
        """Return how many are named; with none, how many it would take."""
        if self.why:
            return render("named.none", checkpoint=self.checkpoint, why=self.why)

        n_named = int(self.rows["named"].sum())
        summary = render(
            "named.summary",
            checkpoint=self.checkpoint,
            share=share,
            rows=n_named,
            of=len(self.rows),
            groups=int(self.groups["named"].sum()),
            of_groups=len(self.groups),
        )
        if n_named:
            return summary
        fewest = math.ceil(len(self.rows) / (share * (self.held_out + 1)))
        needed = render("named.fewest", held_out=self.held_out, fewest=fewest)
        return f"{summary} {needed}"


def evidence_of(report: Report, folder: Path, audit: str = "") -> Evidence:
    """Return the evidence of an audit that a report was made from.

    Parameters
    ----------
    audit
        Its name; by default the audit of membership.

    Raises
    ------
    InputError
        If it is not there.
    OutputError
        If it is not as the report says that it was written.
    """
    audit = audit or Membership.name
    path = folder / "scores" / about(audit).evidence_file()
    told = report.evidence.get(path.name)
    if told is None and not path.is_file():
        what = f"the report has no evidence of `{audit}`"
        fix = f"run `spark-audit {audit}` into this folder"
        raise InputError(what, where=str(path), fix=fix)
    what = ""
    if not path.is_file():
        what = "is missing, and the report was made from it"
    elif told != sha256_file(path):
        what = "is not the file that the report was made from"
    if what:
        fix = "copy the report's folder again, or audit again"
        raise OutputError(what, where=str(path), fix=fix)
    return Evidence.read(path)


def named_rows(
    report: Report, evidence: Evidence, *, share: float = NAMED_SHARE
) -> list[Named]:
    """Return the rows and groups that each checkpoint is shown to be trained on.

    Parameters
    ----------
    share
        Expected share of false ones among all named ones, of rows and of groups.
    """
    import pandas as pd

    units = evidence.units
    held_out = ~units["member"].to_numpy(bool)
    facts = units.rename(columns={"example": "row", "cluster": "group"})
    facts = facts[["row", "task", "group"]]
    held_out_groups = units["cluster"][held_out].nunique()
    found = []
    for name in evidence.checkpoints:
        if name == BASE:
            continue
        place = units["task"], units["cluster"]
        own_scores = evidence.row(name, Membership.names_rows_by)
        scores = conformal.standardised(own_scores, held_out, *place)
        p = conformal.conformal_p(scores, held_out, units["cluster"])
        rows = facts.assign(p=p, named=conformal.discoveries(p, share=share))[~held_out]
        by_group = rows.dropna(subset="p").groupby("group")["p"]
        groups = pd.DataFrame(
            {"rows": by_group.size(), "p": by_group.agg(conformal.simes)}
        )
        groups = groups.reset_index()
        groups["named"] = conformal.discoveries(groups["p"], share=share)
        why = _doubt(report, name)
        if not why and not np.isfinite(p).any():
            why = render("named.no_scores")
        if not why and 1 / (1 + held_out_groups) > conformal.MOST_P:
            why = render("named.too_few", groups=held_out_groups)
        if why:
            rows, groups = rows.assign(named=False), groups.assign(named=False)
        found.append(Named(name, rows, groups, held_out_groups, why))
    return found


def _doubt(report: Report, name: str) -> str:
    """Return why rows of a checkpoint cannot be compared; empty where they can."""
    for guard in faults(report.guards, entry_of(name)):
        return guard.detail
    for guard in report.guards:
        key = f"guard.{Membership.name}."
        ours = guard.says.startswith(key) and guard.checkpoint in ("", BASE)
        if guard.says == f"{key}untrained":
            # The score is a change of `loss`: other scores void only themselves.
            ours &= getattr(guard.facts["auc"], "of", "") == "loss"
        # Rows of other texts look unfamiliar without any training.
        blind = guard.name == BLIND and guard.passed is None
        if ours and (guard.passed is False or blind):
            return guard.detail
    return ""


def persons(
    report: Report,
    folder: Path,
    ids: Sequence[str],
    *,
    sources: Mapping[str, str] | None = None,
    shown: Manifest | None = None,
    share: float = NAMED_SHARE,
) -> list[dict[str, Any]]:
    """Return what each checkpoint shows of persons, by ids of rows or of groups.

    ``p`` is of the hypothesis that none of the rows was trained on, ``p_adjusted``
    corrected (Holm) over the persons asked for; ``least`` the smallest p that so many
    held-out groups allow. ``named`` rows stand in the list of single rows; ``back`` of
    ``asked`` identifiers come back word for word, ``None``: not tested; ``texts`` are
    those, where the manifest was given.

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
        Source ids -> the groups that they belong to, as the manifest knows them: a
        group has the name of its smallest source.
    shown
        The report's manifest, to tell the identifiers that come back.

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
    asked_clusters = () if extracted is None else extracted.units["cluster"]
    groups = _groups(evidence.units, ids, sources or {}, asked_clusters)
    _check_all_known(groups)

    texts = [] if shown is None or extracted is None else _texts(shown, extracted)
    records: list[dict[str, Any]] = []
    for named in named_rows(report, evidence, share=share):
        records += _records_of(named, groups, evidence.units, extracted, texts, share)
    order = {key: place for place, key in enumerate(groups)}
    return sorted(records, key=lambda record: order[record["id"]])


def _check_all_known(groups: Mapping[str, set[str]]) -> None:
    """Refuse a person of whom the evidence has no row.

    Raises
    ------
    InputError
        With the first of them.
    """
    for key, clusters in groups.items():
        if not clusters:
            raise InputError(
                "is no row and no group of rows of this report: nothing is known of it",
                where=f"--person {visible(key)}",
                fix="give the id of a row, or --manifest for the sources of all rows",
            )


def _records_of(
    named: Named,
    groups: Mapping[str, set[str]],
    units: pd.DataFrame,
    extracted: Evidence | None,
    texts: Sequence[str],
    share: float,
) -> list[dict[str, Any]]:
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
    texts
        Those identifiers; empty: they are not shown.
    share
        Expected share of false ones among named rows.
    """
    rows_by_person = {
        key: named.rows[named.rows["group"].isin(clusters)]
        for key, clusters in groups.items()
    }
    p = {} if named.why else _p_by_person(rows_by_person)
    p_adjusted = holm_by_key(p)
    listed = _listed(named, groups, p, share)

    records = []
    for key, rows in rows_by_person.items():
        back, n_asked = _back(extracted, named.checkpoint, groups[key])
        is_held_out = ~units["member"] & units["cluster"].isin(groups[key])
        n_held_out = int(is_held_out.sum())

        state = "listed" if key in listed else "not_shown"
        if key not in p_adjusted:
            state = "not_tested"
        elif p_adjusted[key] < ALPHA:
            state = "shown"

        why = named.why
        if not why and rows.empty:
            why = render("named.held_out" if n_held_out else "named.not_compared")
        shown_texts = [texts[place] for place in back or () if texts]
        records.append(
            {
                "id": key,
                "checkpoint": named.checkpoint,
                "state": state,
                "trained": len(rows),
                "held_out": n_held_out,
                "named": int(rows["named"].sum()),
                "p": p.get(key),
                "p_adjusted": p_adjusted.get(key),
                "least": 1 / (1 + named.held_out),
                "back": None if back is None else len(back),
                "asked": n_asked,
                "texts": list(dict.fromkeys(shown_texts)),
                "why": why,
            }
        )
    return records


def _p_by_person(rows_by_person: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """Return the p of each person over their rows; of one without scored rows none."""
    p = {}
    for key, rows in rows_by_person.items():
        p_of_rows = rows["p"].dropna()
        if len(p_of_rows):
            p[key] = conformal.simes(p_of_rows)
    return p


def _listed(
    found: Named, groups: Mapping[str, set[str]], p: Mapping[str, float], share: float
) -> set[str]:
    """Return the persons that would stand in the list of groups of rows.

    Each person enters that list as one group, with one p for all of their rows. So a
    person none of whose rows was trained on is listed in at most 5 of 100 cases,
    however many rows they have; by single rows it would be 1 in 5 with ten rows.
    """
    listed = set()
    for key, own_p in p.items():
        is_other = ~found.groups["group"].isin(groups[key])
        with_person = [own_p, *found.groups.loc[is_other, "p"]]
        if conformal.discoveries(with_person, share=share)[0]:
            listed.add(key)
    return listed


def _groups(
    units: pd.DataFrame,
    ids: Sequence[str],
    sources: Mapping[str, str],
    asked_clusters: Iterable[str] = (),
) -> dict[str, set[str]]:
    """Return the groups of rows of each person.

    Parameters
    ----------
    sources
        Source id -> group.
    asked_clusters
        Groups that only ``extract`` asked for.
    """
    clusters_by_row = units.groupby("example")["cluster"].agg(set).to_dict()
    known_clusters = {*units["cluster"], *asked_clusters}
    groups = {}
    for key in ids:
        named_group = {sources.get(key, key)} & known_clusters
        groups[key] = clusters_by_row.get(key, set()) | named_group
    return groups


def _texts(manifest: Manifest, extracted: Evidence) -> list[str]:
    """Return the identifiers that were asked for, by their numbers in the evidence."""
    from spark_audit.audits.extract.prompts import FULL_PROMPT, spans_of

    units = extracted.units[extracted.units["prompt"] == FULL_PROMPT].sort_values(
        "span"
    )
    spans = [(row, span) for row, span, _ in spans_of(manifest)]
    asked = list(zip(units["cluster"], units["type"], strict=True))
    if asked != [(row.cluster, span.type) for row, span in spans]:
        what = "has other identifiers than were audited, so that none can be told"
        fix = "audit all of it, without --limit"
        raise InputError(what, where="--manifest", fix=fix)
    return [row.text[span.start : span.end] for row, span in spans]


def _back(
    extracted: Evidence | None, name: str, groups: set[str]
) -> tuple[list[int] | None, int]:
    """Return which identifiers of groups come back word for word, of how many.

    None where none of them was asked for.
    """
    if extracted is None or name not in extracted.checkpoints:
        return None, 0
    units = extracted.units.assign(back=extracted.row(name, "greedy_sure"))
    is_asked = (
        units["cluster"].isin(groups)
        & (units["split"] == "train")
        & (units["prompt"] == "full")
        & units["back"].notna()
    )
    if not is_asked.any():
        return None, 0
    spans = units["span"][is_asked & (units["back"] == 1)]
    return spans.tolist(), int(is_asked.sum())


def changed(
    reports: Mapping[Path, Report],
    ids: Sequence[str],
    *,
    sources: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Return what changed for persons between checkpoints of two reports.

    Compared are checkpoints of one name, or the only ones. A row's change is that of
    its score; held-out rows of its task tell how much scores change anyway. ``p`` is
    two-sided, ``p_adjusted`` corrected (Holm) over the persons asked for, ``least`` the
    smallest that so many held-out groups allow. The ``change`` is ``fell``, ``rose``,
    ``unchanged`` (none is shown) or ``untested``.

    Raises
    ------
    InputError
        If the reports are of different rows.
    """
    before, after = (evidence_of(one, folder) for folder, one in reports.items())
    units = before.units
    if not units["example"].equals(after.units["example"]):
        what = "are of different rows, so that nothing can be compared"
        fix = "audit both checkpoints with one manifest"
        raise InputError(what, where=" and ".join(map(str, reports)), fix=fix)

    groups = _groups(units, ids, sources or {})
    n_held_out = units["cluster"][~units["member"].to_numpy(bool)].nunique()
    least = min(1.0, 2 / (1 + n_held_out))

    records: list[dict[str, Any]] = []
    for old, new in _compared_names(before, after):
        is_doubtful = any(map(_doubt, reports.values(), (old, new)))
        sides = {} if is_doubtful else _both_sides(before, after, old, new, groups)
        p = {key: min(1.0, 2 * min(both)) for key, both in sides.items()}
        p_adjusted = holm_by_key(p)
        for key in groups:
            change = "untested"
            if key in p_adjusted:
                fell, rose = sides[key]
                direction = "fell" if fell < rose else "rose"
                change = direction if p_adjusted[key] < ALPHA else "unchanged"
            records.append(
                {
                    "id": key,
                    "before": old,
                    "after": new,
                    "change": change,
                    "p": p.get(key),
                    "p_adjusted": p_adjusted.get(key),
                    "least": least,
                }
            )
    return records


def _compared_names(before: Evidence, after: Evidence) -> list[tuple[str, str]]:
    """Return the checkpoints of one name in both reports, or the only ones."""
    names_before = [name for name in before.checkpoints if name != BASE]
    names_after = [name for name in after.checkpoints if name != BASE]
    pairs = [(name, name) for name in names_before if name in names_after]
    if not pairs and len(names_before) == len(names_after) == 1:
        pairs = [(names_before[0], names_after[0])]
    return pairs


def _both_sides(
    before: Evidence,
    after: Evidence,
    old: str,
    new: str,
    groups: Mapping[str, set[str]],
) -> dict[str, tuple[float, float]]:
    """Return the one-sided p that a person's rows fell, and that they rose.

    Parameters
    ----------
    old, new
        The checkpoint in the first and in the second report.
    groups
        Person -> groups of rows; one without a scored row is left out.
    """
    units = before.units
    is_held_out = ~units["member"].to_numpy(bool)  # (rows,)
    score = Membership.names_rows_by
    change = after.row(new, score) - before.row(old, score)  # (rows,)
    scaled = conformal.standardised(
        change, is_held_out, units["task"], units["cluster"]
    )
    p_fell = conformal.conformal_p(-scaled, is_held_out, units["cluster"])
    p_rose = conformal.conformal_p(scaled, is_held_out, units["cluster"])

    sides = {}
    for key, clusters in groups.items():
        own = units["cluster"].isin(clusters).to_numpy() & np.isfinite(p_fell)
        if own.any():
            sides[key] = conformal.simes(p_fell[own]), conformal.simes(p_rose[own])
    return sides
