"""report.html: the report as one page that needs no network and no program beside it.

Without JavaScript all of it is there; with it, tables sort, checkpoints are switched on
and off in tables and drawings, and the page's address keeps what was chosen.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from spark_audit import sentences
from spark_audit.names import entry_of
from spark_audit.report.figures.drawing import (
    DARK,
    LIGHT,
    Drawing,
    inline_svg,
)
from spark_audit.report.figures.entries import palette
from spark_audit.report.summary_tables import further_tables, general, tables
from spark_audit.report.table_cells import FURTHER, File, Rendering, Table
from spark_audit.report.writers.template import environment, facts
from spark_audit.results import Report, by_severity, grouped

FIRST = "memory"
"""The figure on the first screen."""


def write(report: Report, folder: Path, how: Rendering) -> Iterator[File]:
    """``report.html``; no text of an example is ever in it."""
    yield File("report.html", render(report, how))


def render(report: Report, how: Rendering) -> str:
    """The report as one HTML page."""
    drawn = how.drawn()
    sections = list(_sections(report, [d for d in drawn if d.name != FIRST]))
    made = environment(numeric=_numeric, svg=inline_svg)
    assert made.loader is not None
    script = made.loader.get_source(made, "page.js")[0]
    digest = hashlib.sha256(script.encode()).digest()
    guards = grouped(report.guards, lambda guard: guard.passed)
    shared = facts(report) | {
        "script": Markup(script),
        "script_hash": base64.b64encode(digest).decode(),
        "series": {"light": LIGHT, "dark": DARK},
        "guards": {state: guards.get(state, []) for state in (False, None, True)},
        "general": [*sentences.under("scope.all."), *report.caveats],
        "looks": {
            name: (entry_of(name), place % len(LIGHT))
            for name, place in palette(report).items()
        },
        "first": [drawing for drawing in drawn if drawing.name == FIRST],
        "sections": sections,
        "places": {
            section["name"]: f"section-{k}" for k, section in enumerate(sections)
        },
    }
    return made.get_template("page.html").render(shared)


# --- sections -------------------------------------------------------------------------


def _sections(report: Report, drawn: Sequence[Drawing]) -> Iterator[dict[str, Any]]:
    """What the template writes of each audit, of the matching, and of all else."""
    rows = (*report.results, *report.contrasts)
    audits = list(dict.fromkeys(row.audit for row in rows))
    grids: dict[str, list[Table]] = {k: [] for k in (*audits, "manifest", FURTHER)}
    pictures: dict[str, list[Drawing]] = {name: [] for name in grids}
    for k, table in enumerate([*tables(report), *further_tables(report)]):
        place = table.section if table.section in grids else FURTHER
        words = table.short if place == table.section else ""
        title = sentences.capitalised(words) or table.title
        grids[place].append(replace(table, title=title, key=table.key or str(k)))
    for one in drawn:
        pictures[one.audit if one.audit in pictures else FURTHER].append(one)
    for name in grids:
        if not grids[name] and not pictures[name]:
            continue
        terms = [*sentences.terms(f"definition.{name}"), *general(report)]
        yield {
            "name": name,
            "title": sentences.optional(f"audit.{name}.title") or name,
            "question": sentences.optional(f"audit.{name}.question"),
            "said": by_severity(f for f in report.findings if f.audit == name),
            "pictures": pictures[name],
            "grids": grids[name],
            "definitions": terms if name in audits else (),
            "scope": sentences.under(f"scope.{name}."),
        }


def _numeric(table: Table) -> list[bool]:
    """Which columns hold numbers, and are aligned at the right."""
    columns = zip(*(line.cells for line in table.rows), strict=True)
    told = [[cell for cell in column if not cell.missing] for column in columns]
    return [bool(one) and all(cell.numeric for cell in one) for one in told]
