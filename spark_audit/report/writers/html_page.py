"""report.html: the report as one page that needs no network and no program beside it.

Without JavaScript all of it is there; with it, tables sort, checkpoints are switched on
and off in tables and drawings, and the page's address keeps what was chosen.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from spark_audit import sentences
from spark_audit.errors import visible
from spark_audit.manifest.redaction import Secrets, hidden_ranges
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.names import entry_of
from spark_audit.report.attachments import NLL, read_cases
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
from spark_audit.results import OF_REPORT, Report, Status, by_severity, number

FIRST = "memory"
"""The figure on the first screen."""
HEADING, LEAD = 60, 240
"""Characters up to which checkpoints are named in the heading, and below it."""


def write(report: Report, folder: Path, how: Rendering) -> Iterator[File]:
    """``report.html``; identifiers appear only with ``show_text``."""
    records = [] if how.manifest is None else read_cases(folder)
    heat = cases(report, records, how.manifest, show_text=how.show_text)
    # With words of an example it is as private as the manifest.
    yield File("report.html", render(report, heat, how), bool(heat["cases"]))


def render(report: Report, heat: dict[str, Any], how: Rendering) -> str:
    """The report as one HTML page.

    Parameters
    ----------
    heat
        The token heat map.
    how
        ``further`` are tables of a section "Beside the paper".
    """
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
        "heading": HEADING,
        "lead": LEAD,
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
        "glance": first and _parts(replace(first, key="glance"))[0],
        "switches": [
            {"name": name, "colour": colour, "outline": outline(marker)}
            for name, (colour, marker) in colours.items()
            if entry_of(name) == name
        ],
        "first": [drawing for drawing in drawn if drawing.name == FIRST],
        "sections": sections,
        "heat": heat,
        "entries": {name: entry_of(name) for name in (*colours, *heat["checkpoints"])},
        "switched": set(colours),
        "edges": EDGES,
        "shade": shade,
        "number": number,
        "show_text": how.show_text,
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
    """What is pooled, and groups apart; why a figure is missing stands below.

    Lines in which no figure is estimable are left out, unless there are no others.
    """
    lines = []
    for line in table.rows:
        rows = [cell.row for cell in line.cells if cell.row is not None]
        if not rows or any(row.value is not None or row.withheld for row in rows):
            lines.append(line)
    pooled = tuple(one for one in lines or table.rows if one.group == "pooled")
    groups = tuple(one for one in lines or table.rows if one.group != "pooled")
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


# --- the token heat map: a few examples, each token coloured by its NLL ---------------

# Words come from the manifest alone, and without them there is no heat map. What
# belongs to an identifier is replaced by signs of one length, token by token, before
# anything reaches the page. A figure depends on all that stands before its token, and
# with the model what is hidden there can be tried out against it: figures and colours
# end where hidden words begin.

EDGES = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Limits of the colours, in nats; the same for every checkpoint and example."""

BLOCK, _BLANK, _START = "·", "␣", "⊢"
"""What stands for a hidden token, a blank, the start of a text."""

Token = dict[str, Any]
"""What stands on the page for a token: its ``text``, the ``space`` before it, whether
it is ``hidden`` or the first of the ``response``, its ``role``, and its ``nll`` by
checkpoint, nats or ``None``."""


def shade(nll: float | None) -> str:
    """Class of a cell's colour; ``h`` where there is no prediction."""
    # Of the figure that is shown, so that no cell contradicts its number.
    return "h" if nll is None else f"h{bisect_right(EDGES, float(number(nll)))}"


def cases(
    report: Report,
    records: Sequence[Mapping[str, Any]],
    manifest: Manifest | None,
    *,
    show_text: bool,
) -> dict[str, Any]:
    """The examples of a report, without identifiers unless asked.

    Parameters
    ----------
    records
        Those of :func:`spark_audit.report.attachments.cases`.
    manifest
        Gives the words; examples that it has none of are left out.

    Returns
    -------
    dict
        ``cases``, each with ``name``, ``task``, ``types`` and ``tokens``; the
        ``checkpoints`` that they have figures of, the places among these of the pair
        that is shown first (``left``, ``right``), and whether words are ``hidden``.
    """
    keys = list(dict.fromkeys(k for r in records for k in r if k.startswith(NLL)))
    names = [visible(key.removeprefix(NLL)) for key in keys]
    found: list[dict[str, Any]] = []
    if names and manifest is not None:
        secrets = None if show_text else Secrets.of(manifest)
        for example in dict.fromkeys(str(r["example"]) for r in records):
            mine = [r for r in records if str(r["example"]) == example]
            own = manifest.by_id.get(example)
            # A redacted manifest has no words; one of another build may end too early.
            end = max(int(record["end"]) for record in mine)
            if own is not None and len(own.prompt + own.response) >= end:
                types = dict.fromkeys(
                    visible(str(r["type"])) for r in mine if r["type"]
                )
                found.append(
                    {
                        "name": visible(own.id),
                        "task": visible(str(mine[0]["task"] or "")),
                        "types": [*types],
                        "tokens": _tokens(mine, keys, own, secrets),
                    }
                )
    # The baseline, or else the reference, beside the last checkpoint.
    right = max(len(names) - 1, 0)
    given = [report.settings.get(key) for key in ("baseline", "reference")]
    pairs = ((key, k) for key in given for k in range(right))
    known = (k for key, k in pairs if key in (names[k], entry_of(names[k])))
    hidden = any(token["hidden"] for case in found for token in case["tokens"])
    return {
        "cases": found,
        "checkpoints": names,
        "left": next(known, 0),
        "right": right,
        "hidden": hidden,
    }


def _tokens(
    records: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    example: ManifestExample,
    secrets: Secrets | None,
) -> list[Token]:
    places = [(int(r["start"]), int(r["end"])) for r in records]
    hidden = [] if secrets is None else hidden_ranges(example, secrets)
    # Of the whole text, of which the records may be a part.
    first = min((start for start, _, _ in hidden), default=math.inf)
    told = sum(end <= first for _, end in places)
    if told < len(places):
        told -= 1  # The one beside what is hidden is left out, too.
    words = _tokens_of(example, places, hidden)
    return [
        {
            **word,
            "role": str(record.get("role") or ""),
            "nll": [record.get(key) if k < told else None for key in keys],
        }
        for k, (record, word) in enumerate(zip(records, words, strict=True))
    ]


def _tokens_of(
    example: ManifestExample,
    places: Sequence[tuple[int, int]],
    hidden: Sequence[tuple[int, int, str]],
) -> Iterator[Token]:
    """The tokens without their figures; one that touches what is hidden shows none."""
    text, response = example.prompt + example.response, len(example.prompt)
    kinds = [
        next((kind for low, high, kind in hidden if low < end and start < high), "")
        for start, end in places
    ]
    done = 0
    for k, (start, end) in enumerate(places):
        kind, before = kinds[k], kinds[k - 1] if k else ""
        # Several tokens of one character: its text stands in the first.
        own = text[max(start, done) : end]
        space = text[done:start]
        if kind:
            # A run of hidden tokens reads as one placeholder.
            first, last = before != kind, kinds[k + 1 :][:1] != [kind]
            shown = (f"[{kind}" if first else BLOCK) + "]" * last
            # Nothing tells where the words of an identifier begin.
            space = space if first else ""
        else:
            # Without blanks at its edges; a sign where nothing else is left.
            told = visible(own.strip().replace("\n", "⏎"))
            told = told or ("⏎" if "\n" in own else _BLANK)
            shown = told if own or k or end else _START
            space += own[: len(own) - len(own.lstrip())]
        yield {
            "text": shown,
            "hidden": bool(kind),
            "space": "\n" if "\n" in space and k else " " if space else "",
            "response": (places[k - 1][1] if k else 0) <= response < end,
        }
        done = max(done, end)
