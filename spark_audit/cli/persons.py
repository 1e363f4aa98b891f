"""``spark-audit persons``: which rows a checkpoint is shown to have read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from spark_audit.errors import InputError
from spark_audit.sentences import render, spoken
from spark_audit.terminal.console import tell, tell_json
from spark_audit.terminal.flags import Json, Language

if TYPE_CHECKING:
    from spark_audit.report.named import Named
    from spark_audit.results import Report


def persons(
    folders: Annotated[list[Path], Parameter(metavar="REPORT...")],
    /,
    *,
    person: Annotated[tuple[str, ...], Parameter(metavar="ID...")] = (),
    manifest: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    show_text: Annotated[bool, Parameter(negative="")] = False,
    share: Annotated[float, Parameter(metavar="X")] = 0.1,
    language: Language = "en",
    json: Json = False,
) -> None:
    """What a report shows of single rows and persons; needs no model and no text.

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
    from spark_audit.cli.report_commands import manifest_of
    from spark_audit.report import named
    from spark_audit.report.folder import folder_of, read_report

    if not 0 < share < 1:
        raise InputError("must be between 0 and 1", where="--share", fix="give 0.1")
    if show_text and (manifest is None or not person):
        fix = "give --person ID and --manifest FILE"
        what = "needs the person and the manifest, which has the text"
        raise InputError(what, where="--show-text", fix=fix)
    told: list[dict[str, Any]] = []
    reports: dict[Path, Report] = {}
    changes: list[dict[str, Any]] | None = None
    sources, whole = dict[str, str](), None
    with spoken(language):
        for folder in map(folder_of, folders):
            reports[folder] = report = read_report(folder)
            whose = {"report": str(folder)} if len(folders) > 1 else {}
            if person:
                if manifest is not None:
                    whole = manifest_of(report, manifest)
                    sources = {row.source_id: row.cluster for row in whole.examples}
                found = named.persons(
                    report,
                    folder,
                    person,
                    sources=sources,
                    shown=whole if show_text else None,
                    share=share,
                )
                told += [whose | vars(one) | {"state": one.state} for one in found]
            else:
                evidence = named.evidence_of(report, folder)
                lists = named.named_rows(report, evidence, share=share)
                told += [whose | _listed(one, share) for one in lists]
        if person and len(reports) == 2:
            moved = named.changed(reports, person, sources=sources)
            changes = [vars(one) | {"change": one.state} for one in moved]
        if json:
            tell_json(told + (changes or []))
        elif person:
            _tell_sheet(told, changes, share)
        else:
            _tell_lists(told)


def _listed(one: Named, share: float) -> dict[str, Any]:
    return {
        "checkpoint": one.checkpoint,
        "summary": one.summary(share),
        "rows": one.rows.loc[one.rows["named"], "row"].tolist(),
        "groups": one.groups.loc[one.groups["named"], "group"].tolist(),
    }


def _tell_lists(told: list[dict[str, Any]]) -> None:
    for one in told:
        tell(_place(one) + one["summary"])
        if one["rows"]:
            tell(f"  {', '.join(one['rows'])}")
    tell(render("persons.limits"))


def _tell_sheet(
    told: list[dict[str, Any]], changes: list[dict[str, Any]] | None, share: float
) -> None:
    for key in dict.fromkeys(one["id"] for one in told):
        own = [one for one in told if one["id"] == key]
        tell(f"# {render('persons.rows', **own[0])}\n")
        for one in own:
            words = render(f"persons.{one['state']}", **one, share=share)
            back = (
                render("persons.back", **one) if one["trained"] or one["asked"] else ""
            )
            tell(f"- {_place(one)}**{one['checkpoint']}** {words} {back}".rstrip())
            for text in one["texts"]:
                tell(f"  - {text}")
        moved = [one for one in changes or () if one["id"] == key]
        for one in moved:
            tell(f"- {render('persons.' + one['change'], **one)}")
        if changes is not None and not moved:
            tell(f"- {render('persons.no_pair')}")
        tell("")
    tell(render("persons.limits"))


def _place(one: dict[str, Any]) -> str:
    return f"{one['report']}: " if "report" in one else ""
