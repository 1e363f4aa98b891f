"""report.html: one page that needs no network and no program beside it.

Without JavaScript all of it is there. With it, tables sort, checkpoints are switched on
and off in tables and drawings, and the page's address keeps what was chosen.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from spark_audit import sentences
from spark_audit.names import entry_of
from spark_audit.report.cells import AUDITED_SECTION, FURTHER_TABLES, ReportTable
from spark_audit.report.consequences import consequences_of_audit
from spark_audit.report.figures.drawing import Drawing
from spark_audit.report.figures.figure_files import inline_svg
from spark_audit.report.figures.styling import DARK, LIGHT, palette
from spark_audit.report.finding_groups import AuditFindings
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.tables import general
from spark_audit.report.writers.page_tables import PageTable, page_table
from spark_audit.report.writers.page_templates import (
    environment,
    template_facts,
    ticked_code,
)
from spark_audit.report.writers.writer import File, WriterInput
from spark_audit.results import OF_REPORT, Report, grouped
from spark_audit.spoken_options import as_called


def write_page(
    prepared: PreparedReport, folder: Path, writer_input: WriterInput
) -> Iterator[File]:
    """Yield ``report.html``; no text of an example is ever in it."""
    report = prepared.report
    # What belongs to no audit comes last.
    names = [*_audits_of(report), "manifest", FURTHER_TABLES]
    tables_by_section = _tables_by_section(prepared, [*names, AUDITED_SECTION])
    sections = {}
    drawn = writer_input.drawn()
    for number, section in enumerate(
        _sections(prepared, drawn, tables_by_section, names)
    ):
        sections[f"section-{number}"] = section

    templates = environment()
    assert templates.loader is not None
    script, _, _ = templates.loader.get_source(templates, "page.js")
    # The page allows no script but this one, by its digest.
    script_digest = hashlib.sha256(script.encode()).digest()

    # The page shows failed guards first, then warnings, then those that held.
    guards = grouped(report.guards, lambda guard: guard.passed)
    page_facts = template_facts(prepared) | {
        "numeric": _numeric_columns,
        "svg": inline_svg,
        "script": Markup(script),
        "script_hash": base64.b64encode(script_digest).decode(),
        "series": {"light": LIGHT, "dark": DARK},
        "guards": {passed: guards.get(passed, []) for passed in (False, None, True)},
        "general": [*sentences.under("scope.all."), *report.caveats],
        "looks": {
            name: (entry_of(name), number % len(LIGHT))
            for name, number in palette(report).items()
        },
        "general_terms": general(report),
        "contents": _contents(prepared, sections),
        "sections": sections,
        "grids_of_audited": tables_by_section[AUDITED_SECTION],
        "places": {section["name"]: key for key, section in sections.items()},
    }
    html = templates.get_template("page.html").render(page_facts)
    yield File("report.html", html)


def _contents(prepared: PreparedReport, section_ids: Iterable[str]) -> list[str]:
    """Return the ids of the page's parts, in their order."""
    ids = ["verdict"]
    if prepared.checkpoint_states or prepared.key_figures:
        ids.append("tested")
    return [*ids, "guards", "limits", *section_ids, "audited", "glossary"]


def _sections(
    prepared: PreparedReport,
    drawn: Sequence[Drawing],
    tables_by_section: Mapping[str, Sequence[PageTable]],
    names: Sequence[str],
) -> Iterator[dict[str, Any]]:
    """Yield the facts of each section: of an audit, of the matching, of all else.

    A section without tables, drawings and findings is left out.

    Parameters
    ----------
    names
        Names of the sections, in order.
    """
    drawings_by_section: dict[str, list[Drawing]] = {name: [] for name in names}
    for picture in drawn:
        name = picture.audit if picture.audit in names else FURTHER_TABLES
        drawings_by_section[name].append(picture)

    nothing_found = AuditFindings(findings=[], tests=[], exploratory=None)
    for name in names:
        found = prepared.findings_by_audit.get(name, nothing_found)
        findings = found.findings
        if not (tables_by_section[name] or drawings_by_section[name] or findings):
            continue

        consequences = consequences_of_audit(prepared.checkpoint_states, findings, name)
        yield {
            "name": name,
            "title": sentences.optional(f"audit.{name}.title") or name,
            "question": sentences.optional(f"audit.{name}.question"),
            "consequences": list(consequences),
            "tests": found.tests,
            "rest": found.exploratory,
            "pictures": drawings_by_section[name],
            "grids": tables_by_section[name],
            "definitions": sentences.terms(f"definition.{name}"),
            "scope": sentences.under(f"scope.{name}."),
        }


def _audits_of(report: Report) -> list[str]:
    """Return the audits of a report's figures, then those of findings alone."""
    audits = [row.audit for row in report.results]
    audits += [contrast.audit for contrast in report.contrasts]
    for finding in report.findings:
        if finding.audit != OF_REPORT:
            audits.append(finding.audit)
    return list(dict.fromkeys(audits))


def _tables_by_section(
    prepared: PreparedReport, section_names: Sequence[str]
) -> dict[str, list[PageTable]]:
    """Return the tables of each section of the page, titled as in their section."""
    tables_by_section: dict[str, list[PageTable]] = {name: [] for name in section_names}
    for number, table in enumerate(prepared.tables):
        if table.section in tables_by_section:
            section = table.section
            title = sentences.capitalised(table.short) or table.title
        else:
            # The short title would stand under the heading of its own section.
            section = FURTHER_TABLES
            title = table.title

        # Without a key of its own a table is found by its number.
        shown = page_table(table, prepared.report)
        titled = replace(shown.table, title=title, key=table.key or str(number))
        tables_by_section[section].append(replace(shown, table=titled))
    return tables_by_section


def _numeric_columns(table: ReportTable) -> list[bool]:
    """Return for each column whether it holds numbers, which are aligned at the right.

    Empty cells do not count; a column of empty cells holds no numbers.
    """
    has_number = [False] * len(table.header)
    has_text = [False] * len(table.header)
    for line in table.rows:
        for number, cell in enumerate(line.cells):
            if not cell.missing and cell.numeric:
                has_number[number] = True
            elif not cell.missing:
                has_text[number] = True
    return [
        number and not text for number, text in zip(has_number, has_text, strict=True)
    ]


def notebook_html(prepared: PreparedReport) -> str:
    """Return a report at a glance as HTML for a notebook; empty where it has none."""
    if prepared.answer is None:
        return ""

    template = environment().get_template("notebook.html")
    # A notebook is Python, so its options are arguments.
    return template.render(
        answer=prepared.answer,
        report=prepared.report,
        ticked=lambda text: ticked_code(as_called(text)),
    )
