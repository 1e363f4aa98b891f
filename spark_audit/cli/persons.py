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


def persons(
    folders: Annotated[list[Path], Parameter(metavar="REPORT...")],
    /,
    *,
    person: Annotated[tuple[str, ...], Parameter(metavar="ID...")] = (),
    manifest: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    share: Annotated[float, Parameter(metavar="X")] = 0.1,
    language: Language = "en",
    json: Json = False,
) -> None:
    """What a report shows of single rows and persons; needs no model and no text.

    Parameters
    ----------
    folders
        Report folders: of two over one manifest, before and after an erasure, say.
    person
        Ids of rows, or of their groups (a group has the name of its smallest
        source). Default: the list of named rows.
    manifest
        For --person by any source of a row.
    share
        Expected share of false ones among named rows.
    """
    from spark_audit.cli.report_commands import manifest_of
    from spark_audit.report import named
    from spark_audit.report.folder import folder_of, read_report

    if not 0 < share < 1:
        raise InputError("must be between 0 and 1", where="--share", fix="give 0.1")
    told: list[dict[str, Any]] = []
    with spoken(language):
        for folder in map(folder_of, folders):
            report = read_report(folder)
            whose = {"report": str(folder)} if len(folders) > 1 else {}
            if person:
                sources = {}
                if manifest is not None:
                    rows = manifest_of(report, manifest).examples
                    sources = {row.source_id: row.cluster for row in rows}
                found = named.persons(
                    report, folder, person, sources=sources, share=share
                )
                told += [whose | vars(one) | {"state": one.state} for one in found]
            else:
                evidence = named.evidence_of(report, folder)
                lists = named.named_rows(report, evidence, share=share)
                told += [whose | _listed(one, share) for one in lists]
        if json:
            tell_json(told)
        elif person:
            _tell_sheet(told, share)
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


def _tell_sheet(told: list[dict[str, Any]], share: float) -> None:
    for key in dict.fromkeys(one["id"] for one in told):
        own = [one for one in told if one["id"] == key]
        tell(f"# {render('persons.rows', **own[0])}\n")
        for one in own:
            words = render(f"persons.{one['state']}", **one, share=share)
            back = render("persons.back", **one) if one["trained"] else ""
            tell(f"- {_place(one)}**{one['checkpoint']}** {words} {back}".rstrip())
        tell("")
    tell(render("persons.limits"))


def _place(one: dict[str, Any]) -> str:
    return f"{one['report']}: " if "report" in one else ""
