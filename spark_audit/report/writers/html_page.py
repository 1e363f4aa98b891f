"""report.html: the report as one page that needs no network and no program beside it.

Without JavaScript all of it is there; with it, tables sort, checkpoints are switched on
and off in tables and drawings, and the page's address keeps what was chosen.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
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
    css_string,
    inline_svg,
    outline,
)
from spark_audit.report.figures.entries import palette
from spark_audit.report.summary_tables import further_tables, general, tables
from spark_audit.report.table_cells import FURTHER, VOID, File, Rendering, Table
from spark_audit.report.writers.template import environment, facts
from spark_audit.results import OF_REPORT, Report, Status, by_severity

FIRST = "memory"
"""The figure on the first screen."""


def write(report: Report, folder: Path, how: Rendering) -> Iterator[File]:
    """``report.html``; no text of an example is ever in it."""
    yield File("report.html", render(report, how))


def render(report: Report, how: Rendering) -> str:
    """The report as one HTML page; ``how.further`` are tables beside the paper's."""
    colours, drawn = palette(report), how.drawn()
    sections = list(_sections(report, [d for d in drawn if d.name != FIRST]))
    shared = facts(report)
    first = shared["glance"]
    made = environment(
        numeric=_numeric,
        css=lambda text: Markup(css_string(text)),
        svg=inline_svg,
    )
    assert made.loader is not None
    script = made.loader.get_source(made, "page.js")[0]
    digest = hashlib.sha256(script.encode()).digest()
    rows = [*report.results, *report.contrasts]
    counts = Counter(row.status for row in rows)
    reasons: tuple[Status, ...] = (*VOID, "not_estimable")
    named = {section["name"] for section in sections}
    shared |= {
        "script": Markup(script),
        "script_hash": base64.b64encode(digest).decode(),
        "series": {"light": LIGHT, "dark": DARK},
        "meant": sentences.render("states.outcomes"),
        # Those that stand in no section.
        "findings": [
            f
            for f in by_severity(report.findings)
            if f.audit not in named and not (f.audit == OF_REPORT and f.checkpoint)
        ],
        "no_verdict": not report.findings,
        "guards": {
            state: [guard for guard in report.guards if guard.passed is state]
            for state in (False, None, True)
        },
        "figures": len(rows),
        # How many figures say nothing, by the reason.
        "void": {k.replace("_", " "): counts[k] for k in reasons if counts[k]},
        "general": [*sentences.under("scope.all."), *report.caveats],
        "glance": first and replace(first, key="glance"),
        "switches": [
            {"name": name, "colour": colour, "outline": outline(marker)}
            for name, (colour, marker) in colours.items()
            if entry_of(name) == name
        ],
        "first": [drawing for drawing in drawn if drawing.name == FIRST],
        "sections": sections,
        "entries": {name: entry_of(name) for name in colours},
        "slug": _slug,
        "beside": [
            (table.lead, _parts(replace(table, key=f"beside-{k}")))
            for k, table in enumerate(how.further)
        ],
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
        grids[place] += _parts(replace(table, title=title, key=table.key or str(k)))
    for one in drawn:
        pictures[one.audit if one.audit in pictures else FURTHER].append(one)
    for name in grids:
        if not grids[name] and not pictures[name]:
            continue
        terms = [*sentences.terms(f"definition.{name}"), *general(report)]
        yield {
            "name": name,
            "id": _slug(name),
            "title": sentences.optional(f"audit.{name}.title") or name,
            "question": sentences.optional(f"audit.{name}.question"),
            "said": by_severity(f for f in report.findings if f.audit == name),
            "pictures": pictures[name],
            "grids": grids[name],
            "definitions": terms if name in audits else (),
            "scope": sentences.under(f"scope.{name}."),
        }


def _parts(table: Table) -> list[Table]:
    """What is pooled, and groups apart."""
    pooled = tuple(one for one in table.rows if one.group == "pooled")
    groups = tuple(one for one in table.rows if one.group != "pooled")
    whole = replace(table, rows=pooled)
    if not groups:
        return [whole]
    parts = replace(table, key=f"{table.key}-groups", rows=groups)
    if not pooled:
        return [parts]
    return [whole, replace(parts, title=f"{table.title}, by group", remarks=())]


def _numeric(table: Table) -> str:
    """Classes for the columns that hold numbers, which are aligned at the right."""
    columns = zip(*(line.cells for line in table.rows), strict=True)
    told = [[cell for cell in column if not cell.missing] for column in columns]
    numeric = [bool(one) and all(cell.numeric for cell in one) for one in told]
    return " ".join(f"n{k}" for k, n in enumerate(numeric, 1) if n and k > 1)


def _slug(name: str) -> str:
    return "s-" + re.sub(r"[^A-Za-z0-9]+", "-", name)
