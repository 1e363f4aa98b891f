"""report.html: the report as one page that needs no network and no program beside it.

Without JavaScript all of it is there; with it, tables sort, checkpoints are switched on
and off in tables and drawings, and the page's address keeps what was chosen.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from spark_audit.audits import AUDITS
from spark_audit.files import write_text
from spark_audit.manifest.schema import Manifest
from spark_audit.names import entry_of
from spark_audit.report.attachments import read_cases
from spark_audit.report.definitions import GENERAL, definitions_of, intervals
from spark_audit.report.figures.entries import palette
from spark_audit.report.figures.gallery import drawings
from spark_audit.report.figures.theme import DARK, LIGHT, Drawing, Drawn
from spark_audit.report.tables import (
    NO_VERDICT,
    PRIVATE,
    Block,
    blocks,
    entries,
    glance,
)
from spark_audit.report.writers import WRITERS
from spark_audit.report.writers.html_page.cases import EDGES, Cases, cases, shade
from spark_audit.report.writers.html_page.drawings import (
    Picture,
    css_string,
    darkened,
    picture,
)
from spark_audit.report.writers.html_page.tables import (
    Grid,
    Switches,
    further_tables,
    grids,
)
from spark_audit.results import Finding, Guard, Report, by_severity

TITLES: Mapping[str, tuple[str, str]] = {
    "matched": (
        "Matched selectivity",
        "Are identifiers treated differently from equally hard other text?",
    ),
    "rank": ("Ranks", "How often is an identifier the model's first guess?"),
    "nll": ("Likelihood", "How likely are identifiers, and other text, by themselves?"),
    "canary": ("Canaries", "Are strings that were planted before training remembered?"),
    "mia": ("Membership", "Can rows of the training set be told from others?"),
    "extract": ("Extraction", "Does the model write identifiers out?"),
    "noise": ("Noise", "Do predictions of identifiers break sooner under noise?"),
    "utility": ("Utility", "Are the tasks still solved?"),
    "manifest": ("Matched pairs", "Were identifiers and their controls equally hard?"),
    "training": ("Training", "How were the checkpoints made?"),
}
"""Heading and question of a section; any other audit goes by its own name."""

PLACES = {
    "balance": "manifest",
    "matching": "manifest",
    "accuracy_matrix": "utility",
}
"""Tables whose names do not begin with their section's."""

OTHER = "further"
"""The section of tables that belong to no audit of the report."""
HEADING, LEAD = 60, 240
"""Characters up to which checkpoints are named in the heading, and below it."""
IN_SIGHT = 8
"""Sentences in sight where fewer are detections; no detection is ever folded."""

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
class Section:
    """One section of the page."""

    id: str
    title: str
    question: str
    pictures: Sequence[Picture]
    grids: Sequence[Grid]
    definitions: Sequence[tuple[str, str]]
    scope: Sequence[str]


@dataclass(frozen=True)
class Switch:
    """A checkpoint's switch: its name, the number of its colour, its marker."""

    name: str
    colour: int
    outline: str


@WRITERS.register()
def write(
    report: Report,
    folder: Path,
    *,
    manifest: Manifest | None = None,
    show_text: bool = False,
    further: Sequence[Block] = (),
    drawn: Drawn | None = None,
) -> list[Path]:
    """Write ``report.html``; identifiers appear only with ``show_text``."""
    path = folder / "report.html"
    records = [] if manifest is None else read_cases(folder)
    heat = cases(report, records, manifest, show_text=show_text)
    text = _page(report, heat, drawn, show_text=show_text, further=further)
    # With words of an example it is as private as the manifest.
    write_text(path, text, mode=0o600 if heat.cases else 0o644)
    return [path]


def render(
    report: Report,
    *,
    tokens: Sequence[Mapping[str, Any]] = (),
    manifest: Manifest | None = None,
    show_text: bool = False,
    further: Sequence[Block] = (),
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
    return _page(report, heat, None, show_text=show_text, further=further)


def _page(
    report: Report,
    heat: Cases,
    drawn: Drawn | None,
    *,
    show_text: bool,
    further: Sequence[Block],
) -> str:
    colours = palette(report)
    known = Switches(frozenset(colours))
    switches = [
        Switch(name, colour, MARKERS.get(marker, MARKERS["o"]))
        for name, (colour, marker) in colours.items()
        if entry_of(name) == name
    ]
    script = _asset("page.js")
    pictures = drawings(report) if drawn is None else drawn()
    sections = list(_sections(report, known, pictures))
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["css"] = lambda text: Markup(css_string(text))
    environment.filters["ticked"] = _ticked
    environment.filters["led"] = _led
    environment.filters["entry"] = entry_of
    return environment.from_string(_asset("page.html")).render(
        report=report,
        names=_named(report, seeds=False) or f"{_count(report)} checkpoints",
        style=Markup(_asset("page.css")),
        series={"light": [darkened(colour) for colour in LIGHT], "dark": DARK},
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        audited=_audited(report),
        verdict=_verdict(report),
        no_verdict=NO_VERDICT,
        places={
            finding.audit: (
                _slug(finding.audit),
                TITLES.get(finding.audit, (finding.audit, ""))[0],
            )
            for finding in report.findings
        },
        section_ids=[section.id for section in sections],
        glance=_glance(report, known),
        guards={state: _guards(report, state) for state in (False, None, True)},
        void=_void(report),
        scope=report.scope,
        switches=switches,
        sections=sections,
        heat=heat,
        entries={name: entry_of(name) for name in heat.checkpoints},
        edges=EDGES,
        shade=shade,
        privacy=_privacy(heat, show_text=show_text),
        private=PRIVATE,
        beside=[
            (block.lead, list(grids(block, known, id=f"beside-{k}", fold=False)))
            for k, block in enumerate(further)
        ],
    )


def _asset(name: str) -> str:
    path = files("spark_audit.report.writers.html_page").joinpath("templates", name)
    return path.read_text(encoding="utf-8")


# --- the verdict ----------------------------------------------------------------------


def _named(report: Report, *, seeds: bool) -> str:
    """The checkpoints, replicates under their entry's name; empty if they are many."""
    found = entries(report)
    names = [name + f" ({n} seeds)" * (seeds and n > 0) for name, n in found.items()]
    text = ", ".join(names)
    return text if len(text) <= (LEAD if seeds else HEADING) else ""


def _count(report: Report) -> int:
    return sum(max(n, 1) for n in entries(report).values())


def _audited(report: Report) -> str:
    """What was audited against what, in a sentence or two."""
    facts, n = report.manifest, _count(report)
    names = _named(report, seeds=True)
    text = (
        f"{n} checkpoint{'s' * (n != 1)} audited against the manifest {facts.name}"
        f"{': ' if names else ''}{names}. The manifest holds {facts.n_spans} matched "
        f"identifiers of {facts.n_tokens} tokens, from {facts.n_sources} sources in "
        f"{facts.n_clusters} clusters."
    )
    if reference := report.settings.get("reference"):
        text += f" How hard a text is was measured on {reference}."
    baselines = dict.fromkeys(row.baseline for row in report.contrasts)
    if (baseline := report.settings.get("baseline")) in baselines:
        text += f" Changes are told against {baseline}."
    return text


def _glance(report: Report, switches: Switches) -> Grid | None:
    block = glance(report)
    if block is None:
        return None
    return next(grids(block, switches, id="glance", fold=False))


@dataclass(frozen=True)
class Told:
    """The findings in their order: every detection is in sight."""

    in_sight: list[Finding]
    folded: list[Finding]


def _verdict(report: Report) -> Told:
    findings = by_severity(report.findings)
    seen = max(IN_SIGHT, sum(finding.detected for finding in findings))
    return Told(findings[:seen], findings[seen:])


def _led(finding: Finding) -> Markup:
    """A sentence whose subject, where it is a checkpoint, stands out."""
    name, sentence = finding.checkpoint, finding.sentence
    if name and sentence.startswith(name):
        return Markup("<b>{}</b>{}").format(name, sentence.removeprefix(name))
    return Markup("{}").format(sentence)


def _ticked(text: str) -> Markup:
    """A sentence with what stands between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return Markup("{}").format(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if k % 2 else part
        for k, part in enumerate(parts)
    )


def _guards(report: Report, state: bool | None) -> list[Guard]:
    return [guard for guard in report.guards if guard.passed is state]


def _void(report: Report) -> str:
    """How many figures say nothing, by status."""
    rows = [*report.results, *report.contrasts]
    counts = {
        status.replace("_", " "): sum(row.status == status for row in rows)
        for status in ("invalid", "insensitive", "not_resolvable", "not_estimable")
    }
    told = [f"{n} {word}" for word, n in counts.items() if n]
    if not told:
        return ""
    return (
        f"Of {len(rows)} figures, nothing can be concluded from some: "
        f"{', '.join(told)}. They say so in their cells."
    )


def _privacy(heat: Cases, *, show_text: bool) -> str:
    if not heat.cases:
        return "This page holds no text of any example."
    if show_text:
        return (
            "This page SHOWS IDENTIFIERS in the text of some examples: it is as "
            "private as the manifest, and its file is for its owner only."
        )
    return (
        "This page holds words of some examples, with identifiers hidden as far as "
        "they are known: keep it as private as the manifest. Its file is for its owner "
        "only. Colours and figures end where an example's first hidden word begins: "
        "with the model, what is hidden could be found out from those behind it; "
        "--show-text shows all."
    )


# --- sections -------------------------------------------------------------------------


def _sections(
    report: Report, switches: Switches, drawn: Sequence[Drawing]
) -> Iterator[Section]:
    audits = list(
        dict.fromkeys(row.audit for row in (*report.results, *report.contrasts))
    )
    order = [*audits, "manifest", "training", OTHER]
    tables: dict[str, list[Grid]] = {name: [] for name in order}
    for k, block in enumerate(blocks(report)):
        place = _place(block.title.partition(":")[0].partition(",")[0], audits)
        own = replace(block, title=_untitled(block.title, place))
        tables[place] += grids(own, switches, id=f"table-{k}", fold=False)
    for name, block in further_tables(report).items():
        place = _place(name, audits)
        own = replace(block, title=_untitled(block.title, place))
        found = grids(own, switches, id=f"table-{_slug(name)}", fold=True)
        tables[place] += found
    pictures: dict[str, list[Picture]] = {name: [] for name in order}
    for drawing in drawn:
        place = drawing.audit if drawing.audit in pictures else OTHER
        pictures[place].append(picture(drawing))

    def terms(audit: str) -> list[tuple[str, str]]:
        return [*definitions_of(audit), *GENERAL.items(), intervals(report)]

    for name in order:
        if not tables[name] and not pictures[name]:
            continue
        title, question = TITLES.get(name, (name, ""))
        if name == OTHER:
            title, question = "Further tables", ""
        yield Section(
            id=_slug(name),
            title=title,
            question=question,
            pictures=pictures[name],
            # What is in sight comes first.
            grids=sorted(tables[name], key=lambda grid: grid.folded),
            definitions=terms(name) if name in audits else (),
            scope=_scope(report, name),
        )


def _place(name: str, audits: Sequence[str]) -> str:
    """The section of a table: its audit's, by the beginning of its name."""
    if name in PLACES:
        return PLACES[name]
    first = name.partition("_")[0]
    if name in audits or first in audits:
        return name if name in audits else first
    return OTHER


def _untitled(title: str, audit: str) -> str:
    """A table's title without the audit that its section is of."""
    for lead in (f"{audit}: ", f"{audit} "):
        title = title.removeprefix(lead)
    return title[:1].upper() + title[1:]


def _slug(name: str) -> str:
    return "s-" + re.sub(r"[^A-Za-z0-9]+", "-", name)


def _scope(report: Report, audit: str) -> list[str]:
    """The report's statements on scope that are this audit's own."""
    if audit not in AUDITS.names():
        return []
    module = importlib.import_module(AUDITS.get(audit).run.__module__)
    own = getattr(module, "SCOPE", ())
    return [line for line in report.scope if line in own]
