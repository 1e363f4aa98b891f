"""report.html: the report as one page that needs no network and no program beside it.

Without JavaScript all of it is there; with it, tables sort, checkpoints are switched on
and off in tables and drawings, and the page's address keeps what was chosen.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from spark_audit import sentences
from spark_audit.audits import about
from spark_audit.files import write_text
from spark_audit.manifest.schema import Manifest
from spark_audit.names import entry_of, series_of
from spark_audit.report.attachments import read_cases
from spark_audit.report.attacks import covered
from spark_audit.report.cells import FURTHER, VOID, Line, Rendering, Table
from spark_audit.report.figures.entries import palette
from spark_audit.report.figures.svg import Picture, css_string, picture
from spark_audit.report.figures.theme import DARK, LIGHT, Drawing
from spark_audit.report.states import (
    SHAPES,
    advice,
    answer,
    doubts,
    gate,
    meanings,
    outcome_name,
    reading,
    standings,
    state_name,
)
from spark_audit.report.tables import (
    definitions_of,
    entries,
    further_tables,
    general,
    glance,
    tables,
)
from spark_audit.report.writers.html_page.cases import EDGES, Cases, cases, shade
from spark_audit.results import OF_REPORT, Finding, Report, Row, Status, by_severity

HEADING, LEAD = 60, 240
"""Characters up to which checkpoints are named in the heading, and below it."""

MARKERS = {
    "o": "M6 1.5a4.5 4.5 0 1 1 0 9a4.5 4.5 0 1 1 0-9z",
    "s": "M2 2h8v8H2z",
    "D": "M6 .8 11.2 6 6 11.2.8 6z",
    "d": "M6 .8 9.6 6 6 11.2 2.4 6z",
    "^": "M6 1.2 11 10.4H1z",
    "v": "M6 10.8 1 1.6h10z",
    "<": "M1.2 6 10.4 1v10z",
    ">": "M10.8 6 1.6 1v10z",
    "P": "M4.2 1h3.6v3.2H11v3.6H7.8V11H4.2V7.8H1V4.2h3.2z",
    "X": "M3.2 1 6 3.8 8.8 1 11 3.2 8.2 6 11 8.8 8.8 11 6 8.2 3.2 11 1 8.8 3.8 6 1 "
    "3.2z",
    "*": "M6 .6l1.4 3.8h4L8.2 6.9l1.2 4L6 8.5 2.6 10.9l1.2-4L.6 4.4h4z",
    "p": "M6 1l5 3.7-1.9 5.8H2.9L1 4.7z",
    "h": "M6 .8l4.5 2.6v5.2L6 11.2 1.5 8.6V3.4z",
}
"""Outlines of the drawings' markers in a box of 12."""


@dataclass(frozen=True)
class Grid:
    """A table as the template writes it: aligned by ``classes``, ``folded`` or not."""

    id: str
    title: str
    header: Sequence[str]
    lines: Sequence[Line]
    classes: str
    remarks: Sequence[str] = ()
    folded: bool = False


@dataclass(frozen=True)
class Section:
    """One section of the page; ``name`` is its audit's, if it is one's."""

    name: str
    id: str
    title: str
    question: str
    said: Sequence[Finding]
    pictures: Sequence[Picture]
    grids: Sequence[Grid]
    definitions: Sequence[tuple[str, str]]
    scope: Sequence[str]

    @property
    def unfolded(self) -> int:
        """How many pictures are open: the first, where its audit claims anything."""
        return 1 if about(self.name).claims else 0


@dataclass(frozen=True)
class Switch:
    """A checkpoint's switch: its name, the number of its colour, its marker."""

    name: str
    colour: int
    outline: str


def write(report: Report, folder: Path, how: Rendering) -> list[Path]:
    """Write ``report.html``; identifiers appear only with ``show_text``."""
    path = folder / "report.html"
    records = [] if how.manifest is None else read_cases(folder)
    heat = cases(report, records, how.manifest, show_text=how.show_text)
    text = _page(report, heat, how)
    # With words of an example it is as private as the manifest.
    write_text(path, text, mode=0o600 if heat.cases else 0o644)
    return [path]


def render(
    report: Report,
    *,
    tokens: Sequence[Mapping[str, Any]] = (),
    manifest: Manifest | None = None,
    show_text: bool = False,
    further: Sequence[Table] = (),
) -> str:
    """The report as one HTML page.

    Parameters
    ----------
    tokens
        Those of :func:`spark_audit.report.attachments.cases`, for the token heat map.
    manifest
        Gives the words of the token heat map; without it there is none.
    show_text
        Whether identifiers stand in the heat map; they are hidden otherwise.
    further
        Tables of a section "Beside the paper".
    """
    heat = cases(report, tokens, manifest, show_text=show_text)
    return _page(report, heat, Rendering(show_text=show_text, further=further))


def _page(report: Report, heat: Cases, how: Rendering) -> str:
    colours = palette(report)
    switches = [
        Switch(name, colour, MARKERS.get(marker, MARKERS["o"]))
        for name, (colour, marker) in colours.items()
        if entry_of(name) == name
    ]
    # Drawing takes a second to import, and most commands draw nothing.
    from spark_audit.report.figures.gallery import drawings

    pictures = drawings(report) if how.drawn is None else how.drawn()
    first = glance(report)
    stand, sections = standings(report), list(_sections(report, pictures))
    return (
        _environment()
        .from_string(_asset("page.html"))
        .render(
            report=report,
            audited=entries(report),
            heading=HEADING,
            lead=LEAD,
            language=sentences.language(),
            words=_words,
            glossary=sentences.glossary(),
            **_assets(),
            standings=stand,
            answer=answer(stand),
            states=meanings(),
            shapes=SHAPES,
            state_name=state_name,
            outcome_name=outcome_name,
            next=advice(stand),
            reading=reading(report, stand),
            meant=sentences.render("states.outcomes"),
            doubts=doubts(report, stand),
            gate=gate(stand),
            covered=covered(report, stand),
            checkpoints=[c for c in report.checkpoints if series_of(c.name) == c.name],
            **_told(report, sections),
            general=_unowned(report, sections),
            glance=first and next(_grids(first, id="glance")),
            switches=switches,
            sections=sections,
            heat=heat,
            entries={name: entry_of(name) for name in (*colours, *heat.checkpoints)},
            switched=set(colours),
            edges=EDGES,
            shade=shade,
            show_text=how.show_text,
            slug=_slug,
            private=sentences.render("table.private"),
            beside=[
                (table.lead, list(_grids(table, id=f"beside-{k}")))
                for k, table in enumerate(how.further)
            ],
        )
    )


def _words(key: str, **facts: Any) -> str:
    return sentences.render(f"page.{key}", **facts)


def _assets() -> dict[str, Any]:
    """Style and script, and the hash by which the page's policy lets the script run."""
    script = _asset("page.js")
    digest = hashlib.sha256(script.encode()).digest()
    return {
        "style": Markup(_asset("page.css")),
        "series": {"light": LIGHT, "dark": DARK},
        "script": Markup(script),
        "script_hash": base64.b64encode(digest).decode(),
    }


def _told(report: Report, sections: Iterable[Section]) -> dict[str, Any]:
    """Findings that stand in no section, guards by their state, counts of figures."""
    rows = [*report.results, *report.contrasts]
    named = {section.name for section in sections}
    return {
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
        "void": _void(rows),
    }


def _void(rows: Sequence[Row]) -> dict[str, int]:
    """How many figures say nothing, by the reason."""
    counts = Counter(row.status for row in rows)
    reasons: tuple[Status, ...] = (*VOID, "not_estimable")
    return {name.replace("_", " "): counts[name] for name in reasons if counts[name]}


def _environment() -> Environment:
    """Templates: all text is escaped, and a name that is not given is an error."""
    made = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["css"] = lambda text: Markup(css_string(text))
    made.filters["ticked"] = _ticked
    made.filters["capitalised"] = sentences.capitalised
    return made


def _asset(name: str) -> str:
    path = files("spark_audit.report.writers.html_page").joinpath("templates", name)
    return path.read_text(encoding="utf-8")


def _ticked(text: str) -> Markup:
    """A sentence with what stands between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return Markup("{}").format(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if k % 2 else part
        for k, part in enumerate(parts)
    )


# --- sections -------------------------------------------------------------------------


def _sections(report: Report, drawn: Sequence[Drawing]) -> Iterator[Section]:
    rows = (*report.results, *report.contrasts)
    audits = list(dict.fromkeys(row.audit for row in rows))
    order = [*audits, "manifest", FURTHER]
    grids: dict[str, list[Grid]] = {name: [] for name in order}
    given = [(f"table-{k}", table) for k, table in enumerate(tables(report))]
    given += [(f"table-{_slug(one.key)}", one) for one in further_tables(report)]
    for id, table in given:
        place = table.section if table.section in grids else FURTHER
        words = table.short if place == table.section else ""
        grids[place] += _grids(table, id=id, title=words or table.title)
    pictures: dict[str, list[Picture]] = {name: [] for name in order}
    for drawing in drawn:
        place = drawing.audit if drawing.audit in pictures else FURTHER
        pictures[place].append(picture(drawing))
    for name in order:
        if not grids[name] and not pictures[name]:
            continue
        title = sentences.optional(f"audit.{name}.title") or name
        question = sentences.optional(f"audit.{name}.question")
        yield Section(
            name=name,
            id=_slug(name),
            title=title,
            question=question,
            said=by_severity(f for f in report.findings if f.audit == name),
            pictures=pictures[name],
            grids=_folded(grids[name], bool(pictures[name])),
            definitions=[*definitions_of(name), *general(report)]
            if name in audits
            else (),
            scope=_scope(report, name),
        )


def _folded(grids: Sequence[Grid], drawn: bool) -> list[Grid]:
    """What is in sight first: the first table, where nothing is drawn."""
    order = sorted(grids, key=lambda grid: grid.folded)
    return [replace(grid, folded=drawn or k > 0) for k, grid in enumerate(order)]


def _grids(table: Table, *, id: str, title: str = "") -> Iterator[Grid]:
    """A table as the page has it: what is pooled in sight, groups folded below it."""
    title = title[:1].upper() + title[1:] or table.title
    header = table.header
    if table.key:
        header = tuple(name.replace("_", " ") for name in header)
    columns = zip(*(line.cells for line in table.rows), strict=True)
    told = [[cell for cell in column if not cell.missing] for column in columns]
    numeric = [bool(one) and all(cell.numeric for cell in one) for one in told]
    classes = " ".join(f"n{k}" for k, n in enumerate(numeric, 1) if n and k > 1)
    pooled = [line for line in table.rows if line.group == "pooled"]
    groups = [line for line in table.rows if line.group != "pooled"]
    if pooled or not groups:
        folded = bool(table.key)
        yield Grid(id, title, header, pooled, classes, table.remarks, folded)
    if groups:
        words, remarks = (
            (f"{title}, by group", ()) if pooled else (title, table.remarks)
        )
        yield Grid(f"{id}-groups", words, header, groups, classes, remarks, True)


def _slug(name: str) -> str:
    return "s-" + re.sub(r"[^A-Za-z0-9]+", "-", name)


def _unowned(report: Report, sections: Sequence[Section]) -> list[str]:
    """Statements on scope that are of no section of their own."""
    own = {line for section in sections for line in section.scope}
    lines = [sentences.translated("scope", line) for line in report.scope]
    return [line for line in lines if line not in own]


def _scope(report: Report, audit: str) -> list[str]:
    """The report's statements on scope that are this audit's own."""
    lines = [line for line in report.scope if line in about(audit).scope]
    return [sentences.translated("scope", line) for line in lines]
