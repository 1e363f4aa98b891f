"""What checkpoints show of single persons.

Read from the evidence of the membership audit and of extraction, as
:mod:`spark_audit.report.named` reads it. ``spark-audit persons`` prints the records.
What changed for persons between two reports is in
:mod:`spark_audit.report.person_changes`.

A person is asked for by an id: of a row, of a source, or of a cluster. A cluster is a
group of rows that share a source or a person; all p are over clusters. The columns of
evidence are those of its ``units``, a line for each audited row (membership) or for
each identifier and prompt (extraction).

A further field of a record is added to :class:`PersonRecord` and
:func:`_records_of_checkpoint`; a further state to :func:`_state`, with its sentences
``persons.state.*`` and ``persons.means.*``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from spark_audit.audits import Erasure, Extraction
from spark_audit.audits.claims import ALPHA
from spark_audit.audits.erasure.units import FORGET
from spark_audit.errors import InputError, visible
from spark_audit.report.named import (
    NAMED_SHARE,
    Named,
    evidence_of,
    named_groups,
    named_rows,
    share_of_trained,
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
    forget
        Whether rows of the person are among those that should be forgotten.
    verdict
        If so, the verdict of the audit of erasure on the checkpoint; empty: none.
    trained_share, trained_share_low, trained_share_high
        Of all rows that were given as training data, not the person's alone, at least
        this share was trained on, with its interval; ``None``: not tested.
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
    forget: bool
    verdict: str
    trained_share: float | None
    trained_share_low: float | None
    trained_share_high: float | None


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
        The person would stand in the list of groups of rows (``_listed``).
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
    clusters_by_person = clusters_of_persons(
        evidence.units, ids, sources or {}, clusters_of_identifiers
    )
    _check_all_known(clusters_by_person, has_sources=bool(sources))

    texts_of_identifiers: list[str] = []
    if shown is not None and extracted is not None:
        texts_of_identifiers = _texts_of_identifiers(shown, extracted)
    clusters_to_forget = set[str]()
    if Erasure.evidence_file() in report.evidence:
        erased = evidence_of(report, folder, Erasure.name)
        is_to_forget = erased.units["side"] == FORGET
        clusters_to_forget = {*erased.units["cluster"][is_to_forget]}
    records: list[PersonRecord] = []
    for named in named_rows(report, evidence, share=share):
        records += _records_of_checkpoint(
            named,
            clusters_by_person,
            evidence,
            extracted=extracted,
            texts_of_identifiers=texts_of_identifiers,
            share=share,
        )
    records = [
        _with_erasure(record, report, clusters_by_person, clusters_to_forget)
        for record in records
    ]

    # By person in the order in which they were asked for, then by checkpoint.
    order = {person: position for position, person in enumerate(clusters_by_person)}
    return sorted(records, key=lambda record: order[record["id"]])


def _with_erasure(
    record: PersonRecord,
    report: Report,
    clusters_by_person: Mapping[str, set[str]],
    clusters_to_forget: Collection[str],
) -> PersonRecord:
    """Return a record with the verdict on erasure, if the person's rows are to go.

    Parameters
    ----------
    clusters_to_forget
        Clusters of the rows that should be forgotten; empty: there are none.
    """
    clusters = clusters_by_person[record["id"]]
    if clusters.isdisjoint(clusters_to_forget):
        return record

    verdict = ""
    for finding in report.findings:
        is_of_erasure = finding.audit == Erasure.name
        if is_of_erasure and finding.checkpoint == record["checkpoint"]:
            verdict = finding.verdict
    return {**record, "forget": True, "verdict": verdict}


def _check_all_known(
    clusters_by_person: Mapping[str, set[str]], *, has_sources: bool
) -> None:
    """Refuse a person of whom the evidence has no row.

    With the sources of all rows at hand, there is no further id to offer.

    Raises
    ------
    InputError
        With the first of them.
    """
    fix = "give the id of a row, or --manifest for the sources of all rows"
    if has_sources:
        fix = "give the id of a row or of a source, as the rows of the data have it"
    for person, clusters in clusters_by_person.items():
        if not clusters:
            raise InputError(
                "is no row and no group of rows of this report: nothing is known of it",
                where=f"--person {visible(person)}",
                fix=fix,
            )


def _records_of_checkpoint(
    named: Named,
    clusters_by_person: Mapping[str, set[str]],
    evidence: Evidence,
    *,
    extracted: Evidence | None,
    texts_of_identifiers: Sequence[str],
    share: float,
) -> list[PersonRecord]:
    """Return what one checkpoint shows of persons.

    Parameters
    ----------
    named
        The checkpoint's trained rows, named or not; from
        :mod:`spark_audit.report.named`.
    clusters_by_person
        From :func:`clusters_of_persons`.
    evidence
        Evidence of membership: of trained rows (``member``) and of held-out ones.
    extracted
        Evidence of identifiers that were asked for, if there is any.
    texts_of_identifiers
        Their texts, by their numbers in ``extracted``; empty: they are not shown.
    share
        Expected share of false ones among named rows.
    """
    units = evidence.units
    share_estimate = share_of_trained(named, evidence)

    # ``group`` is the column of clusters in the tables of named.py.
    trained_rows_by_person = {}
    for person, clusters in clusters_by_person.items():
        is_of_person = named.rows["group"].isin(clusters)
        trained_rows_by_person[person] = named.rows[is_of_person]

    # Where nothing can be named, nobody has a p, and all are "not_tested".
    p_by_person: dict[str, float] = {}
    if not named.why:
        p_by_person = _p_by_person(trained_rows_by_person)
    # Whoever asks for many persons would find one by chance.
    adjusted_p_by_person = holm_by_key(p_by_person)
    listed_persons = _listed_persons(named, clusters_by_person, p_by_person, share)

    records: list[PersonRecord] = []
    for person, trained_rows in trained_rows_by_person.items():
        clusters = clusters_by_person[person]
        is_held_out = ~units["member"] & units["cluster"].isin(clusters)
        n_held_out = int(is_held_out.sum())

        # Only texts that the model itself gives away are shown.
        returned = _returned_identifiers(extracted, named.checkpoint, clusters)
        texts = []
        if texts_of_identifiers and returned.spans is not None:
            texts = [texts_of_identifiers[span] for span in returned.spans]
        n_returned = None if returned.spans is None else len(returned.spans)

        p_adjusted = adjusted_p_by_person.get(person)

        records.append(
            {
                "id": person,
                "checkpoint": named.checkpoint,
                "state": _state(p_adjusted, is_listed=person in listed_persons),
                "trained": len(trained_rows),
                "held_out": n_held_out,
                "named": int(trained_rows["named"].sum()),
                "p": p_by_person.get(person),
                "p_adjusted": p_adjusted,
                # A conformal p is at least one of all held-out clusters and itself.
                "least": 1 / (1 + named.held_out),
                "back": n_returned,
                "asked": returned.n_asked,
                "texts": list(dict.fromkeys(texts)),
                "why": named.why or _why_no_trained_row(len(trained_rows), n_held_out),
                "forget": False,
                "verdict": "",
                "trained_share": share_estimate.value,
                "trained_share_low": share_estimate.low,
                "trained_share_high": share_estimate.high,
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


def _why_no_trained_row(n_trained: int, n_held_out: int) -> str:
    """Return why a person has no trained row that was audited; empty where some was."""
    if n_trained:
        return ""
    return render("named.held_out" if n_held_out else "named.not_compared")


def _p_by_person(
    trained_rows_by_person: Mapping[str, pd.DataFrame],
) -> dict[str, float]:
    """Return the p of each person over their rows; of one without scored rows none.

    Simes's p is of the hypothesis that none of the rows was trained on.
    """
    p_by_person = {}
    for person, rows in trained_rows_by_person.items():
        p_of_rows = rows["p"].dropna()  # NaN: the row has no score
        if len(p_of_rows):
            p_by_person[person] = conformal.simes(p_of_rows)
    return p_by_person


def _listed_persons(
    named: Named,
    clusters_by_person: Mapping[str, set[str]],
    p_by_person: Mapping[str, float],
    share: float,
) -> set[str]:
    """Return the persons that would stand in the list of groups of rows.

    Each person enters that list as one group, with one p for all of their rows. So a
    person none of whose rows was trained on is listed in at most 5 of 100 cases,
    however many rows they have; by single rows it would be 1 in 5 with ten rows.
    """
    listed_persons = set()
    for person, p_of_person in p_by_person.items():
        is_other = ~named.groups["group"].isin(clusters_by_person[person])
        p_of_others = named.groups.loc[is_other, "p"]
        # The person comes first, so the first answer is the person's.
        is_named = named_groups([p_of_person, *p_of_others], share=share)
        if is_named[0]:
            listed_persons.add(person)
    return listed_persons


def clusters_of_persons(
    units: pd.DataFrame,
    ids: Sequence[str],
    sources: Mapping[str, str],
    further_clusters: Iterable[str] = (),
) -> dict[str, set[str]]:
    """Return person -> the clusters of their rows; an empty set: nothing is known.

    Parameters
    ----------
    ids
        Ids of rows, clusters or sources, one for each person.
    sources
        Source id -> the cluster that it belongs to.
    further_clusters
        Clusters of identifiers that only ``extract`` asked for.
    """
    clusters_by_row = units.groupby("example")["cluster"].agg(set).to_dict()
    known_clusters = {*units["cluster"], *further_clusters}
    clusters_by_person = {}
    for person in ids:
        # An id may be that of a row and of a cluster: both are meant.
        cluster_of_id = {sources.get(person, person)} & known_clusters
        clusters_by_person[person] = clusters_by_row.get(person, set()) | cluster_of_id
    return clusters_by_person


def _texts_of_identifiers(manifest: Manifest, extracted: Evidence) -> list[str]:
    """Return the identifiers that were asked for, by their numbers in the evidence.

    Raises
    ------
    InputError
        If the manifest has other identifiers than were audited.
    """
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
class _ReturnedIdentifiers:
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


def _returned_identifiers(
    extracted: Evidence | None, checkpoint: str, clusters: set[str]
) -> _ReturnedIdentifiers:
    """Return which trained identifiers of a person come back from a checkpoint.

    Parameters
    ----------
    extracted
        Evidence of ``extract``; None: the report has none.
    clusters
        The person's clusters.
    """
    from spark_audit.audits.extract.prompts import FULL_PROMPT

    if extracted is None or checkpoint not in extracted.checkpoints:
        return _ReturnedIdentifiers(spans=None, n_asked=0)

    # 1: greedy decoding gives the identifier word for word, without ties; NaN: not
    # asked for.
    units = extracted.units.assign(back=extracted.row(checkpoint, "greedy_sure"))
    is_asked = (
        units["cluster"].isin(clusters)
        & (units["split"] == "train")
        & (units["prompt"] == FULL_PROMPT)
        & units["back"].notna()
    )
    if not is_asked.any():
        return _ReturnedIdentifiers(spans=None, n_asked=0)

    spans = units["span"][is_asked & (units["back"] == 1)]
    return _ReturnedIdentifiers(spans=spans.tolist(), n_asked=int(is_asked.sum()))
