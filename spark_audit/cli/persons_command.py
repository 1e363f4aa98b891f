"""Show what reports reveal about single rows and persons: ``spark-audit persons``.

Without ``--person`` it lists the named rows: those that a checkpoint reveals as
trained. With it, it prints a sheet for each person. The records come from
``report/named.py``, ``report/persons.py`` and ``report/person_changes.py``; sentences
of sheets from ``report/person_sentences.py``.

A group of rows is a cluster (``manifest/clusters.py``): rows that share a source, a
canary, an identifier or a text, and count as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from cyclopts import Parameter

from spark_audit import options
from spark_audit.cli.report_inputs import manifest_of, opened
from spark_audit.errors import InputError
from spark_audit.sentences import render
from spark_audit.terminal.console import show_line, show_table, tell, tell_json

if TYPE_CHECKING:
    from spark_audit.manifest.schema import Manifest
    from spark_audit.report.person_changes import PersonChange
    from spark_audit.report.persons import PersonRecord
    from spark_audit.results import Report

ROWS_NAMED = 5
"""Most rows of a checkpoint whose ids the table shows; --json lists all."""

COLUMNS_OF_NAMED_ROWS = ("checkpoint", "rows", "groups", "share", "which")
"""Message keys of the columns of checkpoints with their named rows."""

NamedRecord: TypeAlias = dict[str, Any]
"""A record of the rows that a checkpoint reveals; ``report`` is its report folder."""


def persons(
    folders: Annotated[list[Path], Parameter(metavar="REPORT...")],
    /,
    *,
    person: Annotated[tuple[str, ...], Parameter(metavar="ID...")] = (),
    manifest: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    show_text: Annotated[bool, Parameter(negative="")] = False,
    share: Annotated[float, Parameter(metavar="X")] = 0.1,
    json: options.Json = False,
) -> None:
    """Show what a report reveals of rows and persons; needs no model and no text.

    Parameters
    ----------
    folders
        Report folders: of two over one manifest, before and after an erasure, say, it
        is also told what changed.
    person
        Ids of rows, or of their groups (a group has the name of its smallest
        source). Default: the list of named rows.
    manifest
        For --person by any source of a row, and for --show-text.
    show_text
        Name the identifiers that come back word for word. Rows of one group may name
        several persons: read them before you hand them out.
    share
        Expected share of false ones among named rows.
    """
    from spark_audit.report.person_changes import changed
    from spark_audit.report.persons import persons as records_of_persons

    if not 0 < share < 1:
        raise InputError("must be between 0 and 1", where="--share", fix="give 0.1")
    if show_text and (manifest is None or not person):
        raise InputError(
            "needs the person and the manifest, which has the text",
            where="--show-text",
            fix="give --person ID and --manifest FILE",
        )

    # A report that is given twice is read once.
    reports = dict(opened(folder) for folder in folders)
    loaded_manifest = None
    group_by_source: dict[str, str] = {}
    if manifest is not None:
        loaded_manifest = _manifest_of_all(reports.values(), manifest)
        for example in loaded_manifest.examples:
            group_by_source[example.source_id] = example.cluster

    # Without a person: the rows that each checkpoint reveals.
    if not person:
        named_records = _records_of_named_rows(reports, share)
        if json:
            tell_json({"named": named_records})
        else:
            _show_named(named_records, share, has_several=len(reports) > 1)
        return

    # With persons: a sheet for each of them.
    records_by_report: dict[Path, list[PersonRecord]] = {}
    for folder, report in reports.items():
        records_by_report[folder] = records_of_persons(
            report,
            folder,
            person,
            sources=group_by_source,
            # Without the manifest, records have no text.
            shown=loaded_manifest if show_text else None,
            share=share,
        )
    # With three reports, before and after are unclear.
    changes = None
    if len(reports) == 2:
        changes = changed(reports, person, sources=group_by_source)

    if json:
        content: dict[str, object] = {"persons": _with_report(records_by_report)}
        if changes is not None:
            content["changes"] = changes
        tell_json(content)
        return
    _show_sheets(records_by_report, changes, share)


def _manifest_of_all(reports: Iterable[Report], path: Path) -> Manifest:
    """Return the manifest at a path, if every report was made with it."""
    manifests = [manifest_of(report, path) for report in reports]
    return manifests[0]


def _with_report(
    records_by_report: Mapping[Path, Sequence[PersonRecord]],
) -> list[dict[str, object]]:
    """Return records for JSON, each with the folder of its report."""
    with_report: list[dict[str, object]] = []
    for folder, records in records_by_report.items():
        with_report += [{"report": str(folder), **record} for record in records]
    return with_report


def _records_of_named_rows(
    reports: Mapping[Path, Report], share: float
) -> list[NamedRecord]:
    """Return the rows and groups of rows that each report's checkpoints reveal.

    A record counts all tested rows and groups as ``n_rows`` and ``n_groups``, and lists
    the ids of the revealed ones as ``rows`` and ``groups``. ``why`` says why no
    row of a checkpoint can be named; empty if some can. At least ``trained_share`` of
    all tested rows were trained on, with the limits of its interval; None: not tested.
    """
    from spark_audit.report import named

    records = []
    for folder, report in reports.items():
        evidence = named.evidence_of(report, folder)
        for checkpoint_rows in named.named_rows(report, evidence, share=share):
            rows = checkpoint_rows.rows
            groups = checkpoint_rows.groups
            share_estimate = named.share_of_trained(checkpoint_rows, evidence)
            records.append(
                {
                    "report": str(folder),
                    "checkpoint": checkpoint_rows.checkpoint,
                    "summary": checkpoint_rows.summary(share),
                    "why": checkpoint_rows.why,
                    "n_rows": len(rows),
                    "n_groups": len(groups),
                    "trained_share": share_estimate.value,
                    "trained_share_low": share_estimate.low,
                    "trained_share_high": share_estimate.high,
                    "rows": rows.loc[rows["named"], "row"].tolist(),
                    "groups": groups.loc[groups["named"], "group"].tolist(),
                }
            )
    return records


def _show_named(
    records: Sequence[NamedRecord], share: float, *, has_several: bool
) -> None:
    """Print how many rows each checkpoint reveals as trained, and which ones.

    Parameters
    ----------
    share
        Expected share of false ones among named rows.
    has_several
        Whether there are several reports, so that names of checkpoints need theirs.
    """
    from spark_audit.report.person_sentences import trained_share_in_words

    counts = []
    lines = []
    for record in records:
        name = record["checkpoint"]
        if has_several:
            name = f"{record['report']}: {name}"
        row_ids = record["rows"]
        if row_ids:
            counts.append(f"{name} ({len(row_ids)})")

        # If rows cannot be compared, "0 of 345" would look like a result.
        if record["why"]:
            lines.append((name, "-", "-", "-", record["why"]))
            continue
        n_groups = len(record["groups"])
        first_rows = ", ".join(row_ids[:ROWS_NAMED])
        if len(row_ids) > ROWS_NAMED:
            first_rows = render("named.first", rows=first_rows)
        lines.append(
            (
                name,
                render("named.of", count=len(row_ids), of=record["n_rows"]),
                render("named.of", count=n_groups, of=record["n_groups"]),
                trained_share_in_words(
                    record["trained_share"],
                    record["trained_share_low"],
                    record["trained_share_high"],
                ),
                first_rows,
            )
        )

    verdict = render("named.no_row")
    if counts:
        verdict = render("named.some", names=", ".join(counts))
    show_line(verdict, style="bold")

    header = [render(f"named.column_{name}") for name in COLUMNS_OF_NAMED_ROWS]
    show_table("", header, lines, figures=False)

    if any(record["trained_share"] is not None for record in records):
        show_line(render("named.trained_shares"))
    show_line(render("named.false_share", share=share))
    show_line(render("named.limits"))
    show_line(render("named.next"))


def _show_sheets(
    records_by_report: Mapping[Path, Sequence[PersonRecord]],
    changes: Sequence[PersonChange] | None,
    share: float,
) -> None:
    """Print what each checkpoint reveals about each person, and the changes.

    Parameters
    ----------
    changes
        Changes between two reports; None if there are not exactly two.
    """
    from spark_audit.report.person_sentences import (
        erasure_of_person,
        person_verdict,
        remarks_on_persons,
        rows_of_person,
    )

    # With several reports, a checkpoint's name includes its report.
    all_records: list[PersonRecord] = []
    for folder, records in records_by_report.items():
        for record in records:
            name = record["checkpoint"]
            if len(records_by_report) > 1:
                name = f"{folder}: {name}"
            named_record: PersonRecord = {**record, "checkpoint": name}
            all_records.append(named_record)

    for person_id in dict.fromkeys(record["id"] for record in all_records):
        records_of_person = [
            record for record in all_records if record["id"] == person_id
        ]
        show_line(person_verdict(records_of_person), style="bold")
        show_line(rows_of_person(records_of_person[0]))
        _show_checkpoints(records_of_person)
        erasure = erasure_of_person(records_of_person)
        if erasure:
            show_line(erasure)
        if changes is not None:
            _show_changes([change for change in changes if change["id"] == person_id])
        tell()

    for remark in remarks_on_persons(all_records, changes or (), share=share):
        show_line(remark)
    show_line(render("persons.next"))


def _show_checkpoints(records: Sequence[PersonRecord]) -> None:
    """Print what each checkpoint reveals about a person, and recovered texts."""
    from spark_audit.report.person_sentences import PERSON_COLUMNS, person_line

    header = [render(f"persons.column.{name}") for name in PERSON_COLUMNS]
    lines = [person_line(record) for record in records]
    show_table("", header, lines, figures=False)

    for record in records:
        # There are texts only with --show-text.
        for text in record["texts"]:
            show_line(f"{record['checkpoint']}: {text}")


def _show_changes(changes: Sequence[PersonChange]) -> None:
    """Print the changes for one person between two reports."""
    from spark_audit.report.person_sentences import CHANGE_COLUMNS, change_line

    if not changes:
        show_line(render("persons.no_pair"))
        return
    header = [render(f"persons.column.{name}") for name in CHANGE_COLUMNS]
    lines = [change_line(change) for change in changes]
    show_table("", header, lines, figures=False)
