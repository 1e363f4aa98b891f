"""Pages in HTML, and the templates of all writers with what they read of a report.

report.html is one page that needs no network and no program beside it.

Without JavaScript all of it is there; with it, tables sort, checkpoints are switched on
and off in tables and drawings, and the page's address keeps what was chosen.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from spark_audit import sentences
from spark_audit.audits import Matched, about, metric_of
from spark_audit.errors import InputError, OutputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import entry_of, original_of, series_of
from spark_audit.report import first_screen, standings, tried
from spark_audit.report.at_a_glance import glance_of
from spark_audit.report.attacks import attack_table, attacks
from spark_audit.report.cells import FURTHER_TABLES, ReportTable, records_table
from spark_audit.report.consequences import consequences_of_audit
from spark_audit.report.figures.drawing import Drawing
from spark_audit.report.figures.figure_files import inline_svg
from spark_audit.report.figures.styling import DARK, LIGHT, palette
from spark_audit.report.finding_groups import groups_of_tests, table_of_the_rest
from spark_audit.report.first_screen import uncovered
from spark_audit.report.glance import glance
from spark_audit.report.named import NAMED_SHARE, evidence_of, named_rows
from spark_audit.report.tables import entries, further_tables, general, tables
from spark_audit.report.writers.page_tables import PageTable, page_table
from spark_audit.report.writers.writer import File, WriterInput
from spark_audit.results import OF_REPORT, Report, by_severity, grouped
from spark_audit.sentences import DECIMALS, knows, render, under
from spark_audit.sentences.renderer import figure as figure_in_words
from spark_audit.sentences.renderer import percent

if TYPE_CHECKING:
    import pandas as pd

FIRST_SCREEN_FUNCTIONS = (
    *(
        first_screen.advice,
        first_screen.headline,
        first_screen.urgent_remarks,
        first_screen.checks,
        first_screen.gate,
        first_screen.level,
    ),
    *(
        first_screen.meanings,
        first_screen.page_lead,
        tried.outcome_name,
        first_screen.reading,
        standings.state_name,
    ),
    *(first_screen.surety, standings.badge, sentences.capitalised, sentences.optional),
    *(sentences.terms, original_of, uncovered),
)
"""What templates may call, by name; ``say`` and ``words`` render a sentence."""


def environment(**filters: Callable[..., Any]) -> Environment:
    """In HTML and XML all text is escaped; a name that is not given is an error."""
    made = Environment(
        loader=PackageLoader("spark_audit.report.writers"),
        autoescape=select_autoescape(default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.globals |= {one.__name__: one for one in FIRST_SCREEN_FUNCTIONS}
    made.globals |= {
        "say": sentences.render,
        "words": _words,
        "shapes": standings.SHAPES,
    }
    made.globals |= {"size": _size, "ticked": _ticked}
    made.filters |= filters
    return made


def _ticked(text: str) -> Markup:
    """A sentence with what stands between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return Markup("{}").format(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if k % 2 else part
        for k, part in enumerate(parts)
    )


def _size(parameters: int | None) -> str:
    return "-" if parameters is None else f"{parameters:,}"


def _words(key: str, **facts: Any) -> str:
    return sentences.render(f"page.{key}", **facts)


def facts(report: Report) -> dict[str, Any]:
    """The report and its first screen, by the names that templates use."""
    stand = standings.standings(report)
    tried = attacks(report, stand)
    # Stages stand in their series.
    whole = [one for one in report.checkpoints if series_of(one.name) == one.name]
    columns = ("name", "source", "format", "base", "dtype")
    opened = [
        {name: getattr(one, name) for name in columns}
        | {"parameters": _size(one.parameters), "SHA-256": one.weights_sha256[:16]}
        | {"notes": "; ".join(one.notes)}
        for one in whole
    ]
    return {
        "report": report,
        "findings": by_severity(report.findings),
        "of_report": OF_REPORT,
        "audited": entries(report),
        "checkpoints": whole,
        "opened": records_table(opened, title="Checkpoints", key="opened"),
        "standings": stand,
        "attacks": tried,
        "attack_table": attack_table(tried),
        "key_figures": glance(report),
        "answer": glance_of(report),
    }


def write_page(report: Report, folder: Path, how: WriterInput) -> Iterator[File]:
    """``report.html``; no text of an example is ever in it."""
    drawn = how.drawn()
    told = _sections(report, drawn)
    sections = {f"section-{k}": section for k, section in enumerate(told)}
    made = environment()
    assert made.loader is not None
    script = made.loader.get_source(made, "page.js")[0]
    digest = hashlib.sha256(script.encode()).digest()
    guards = grouped(report.guards, lambda guard: guard.passed)
    shared = facts(report) | {
        "numeric": _numeric,
        "svg": inline_svg,
        "script": Markup(script),
        "script_hash": base64.b64encode(digest).decode(),
        "series": {"light": LIGHT, "dark": DARK},
        "guards": {state: guards.get(state, []) for state in (False, None, True)},
        "general": [*sentences.under("scope.all."), *report.caveats],
        "looks": {
            name: (entry_of(name), place % len(LIGHT))
            for name, place in palette(report).items()
        },
        "general_terms": general(report),
        "contents": _contents(report, sections),
        "sections": sections,
        "places": {section["name"]: key for key, section in sections.items()},
    }
    yield File("report.html", made.get_template("page.html").render(shared))


def _contents(report: Report, sections: Iterable[str]) -> list[str]:
    """Return the ids of the page's parts, in their order."""
    tested = ["tested"] if standings.standings(report) or glance(report) else []
    return ["verdict", *tested, "guards", "limits", *sections, "audited", "glossary"]


def _sections(report: Report, drawn: Sequence[Drawing]) -> Iterator[dict[str, Any]]:
    """What the template writes of each audit, of the matching, and of all else."""
    found = standings.standings(report)
    rows = (*report.results, *report.contrasts)
    of_audits = [f.audit for f in report.findings if f.audit != OF_REPORT]
    audits = list(dict.fromkeys([*(row.audit for row in rows), *of_audits]))
    grids: dict[str, list[PageTable]] = {
        k: [] for k in (*audits, "manifest", FURTHER_TABLES)
    }
    pictures: dict[str, list[Drawing]] = {name: [] for name in grids}
    for k, table in enumerate([*tables(report), *further_tables(report)]):
        place = table.section if table.section in grids else FURTHER_TABLES
        words = table.short if place == table.section else ""
        title = sentences.capitalised(words) or table.title
        shown = page_table(table, report)
        named = replace(shown.table, title=title, key=table.key or str(k))
        grids[place].append(replace(shown, table=named))
    for one in drawn:
        pictures[one.audit if one.audit in pictures else FURTHER_TABLES].append(one)
    for name in grids:
        said = by_severity(f for f in report.findings if f.audit == name)
        if not (grids[name] or pictures[name] or said):
            continue
        yield {
            "name": name,
            "title": sentences.optional(f"audit.{name}.title") or name,
            "question": sentences.optional(f"audit.{name}.question"),
            "consequences": list(consequences_of_audit(found, said, name)),
            "tests": groups_of_tests(said),
            "rest": table_of_the_rest(said, name),
            "pictures": pictures[name],
            "grids": grids[name],
            "definitions": sentences.terms(f"definition.{name}"),
            "scope": sentences.under(f"scope.{name}."),
        }


def _numeric(table: ReportTable) -> list[bool]:
    """Which columns hold numbers, and are aligned at the right."""
    columns = zip(*(line.cells for line in table.rows), strict=True)
    told = ([cell.numeric for cell in column if not cell.missing] for column in columns)
    return [bool(column) and all(column) for column in told]


def notebook_html(report: Report) -> str:
    """Return a report at a glance as HTML for a notebook; empty where it has none."""
    answer = glance_of(report)
    if answer is None:
        return ""
    template = environment().get_template("notebook.html")
    return template.render(answer=answer, report=report)


MAX_EXPOSED_ROWS = 10
"""The most exposed rows that are told of each checkpoint."""


def write_dossier(report: Report, folder: Path, how: WriterInput) -> Iterator[File]:
    """``dossier.html``; a browser prints it on A4.

    Parameters
    ----------
    folder
        The report's, whose evidence tells the most exposed rows.
    how
        Its manifest is for the number of rows, and with ``show_text`` for the
        identifiers.
    """
    shared = facts(report)
    found: list[standings.Standing] = shared["standings"]
    by_state = grouped(found, lambda one: one.state)
    named = how.manifest if how.show_text else None
    audits = ["all", *dict.fromkeys(row.audit for row in report.results)]
    lists = []
    # No audit of membership, or its scores are elsewhere, or others.
    with suppress(InputError, OutputError):
        lists = named_rows(report, evidence_of(report, folder))
    shared |= {
        "words": _dossier_words,
        "stages": len(report.checkpoints) - len(shared["checkpoints"]),
        "data": _data(report, how.manifest),
        "by_state": {s: [one.name for one in own] for s, own in by_state.items()},
        "guards": sorted(
            (g for g in report.guards if g.passed is not True),
            key=lambda g: g.passed is not False,
        ),
        "exposed": {
            one.name: exposed(report, folder, one, manifest=named)
            for one in found
            if one.state == "LEAKS"
        },
        "limits": [line for name in audits for line in under(f"scope.{name}.dossier.")],
        "named": named is not None,
        # How many rows of each checkpoint are shown to have been trained on.
        "shown": [
            one.summary(NAMED_SHARE)
            for one in lists
            if entry_of(one.checkpoint) in {k.name for k in found if k.detections}
        ],
    }
    made = environment(figure=_figure, attack=tried.attack_name, words=_dossier_words)
    # With identifiers it is as private as the manifest.
    text = made.get_template("dossier.html").render(shared)
    yield File("dossier.html", text, private=named is not None)


def _dossier_words(key: str, **facts: Any) -> str:
    """The words of a key; empty where there are none."""
    key = f"dossier.page.{key.lower().replace(' ', '_')}"
    return render(key, **facts) if knows(key) else ""


def _figure(attack: tried.Tried) -> str:
    """Value, interval and null of one attack on one checkpoint, as its sentence has."""
    finding = attack.finding if attack.outcome != "void" else None
    if finding is None or finding.value is None:
        return ""
    is_rate = not finding.unit and metric_of(finding.audit, finding.metric).rate
    digits = DECIMALS.get(finding.unit, 3)
    figure = percent(finding) if is_rate else figure_in_words(finding, digits)
    if finding.unit == "points":
        figure = render("dossier.of_unit", size=figure, unit=finding.unit)
    if finding.null is None:
        return figure
    null = f"{finding.null:.3g}"
    return render("dossier.figure_with_null", figure=figure, null=null)


def _data(report: Report, manifest: Manifest | None) -> list[tuple[str, str]]:
    """On what data: name and digest, rows, identifiers, canaries."""
    facts = report.manifest
    told = {"manifest": facts.name, "digest": facts.digest}
    if reference := report.settings.get("reference"):
        told["reference"] = str(reference)
    if manifest is not None:
        trained = [example.split == "train" for example in manifest.examples]
        told["rows"] = render(
            "dossier.rows_split",
            trained=sum(trained),
            held_out=len(trained) - sum(trained),
        )
    if kinds := report.tables.get("matching_by_type", []):
        counts = {k["type"]: k["matched"] + k["unmatched"] for k in kinds}
        told["identifiers"] = render(
            "dossier.identifiers_by_type", count=sum(counts.values()), counts=counts
        )
    told["matched"] = render(
        "dossier.matched_count", spans=facts.n_spans, clusters=facts.n_clusters
    )
    # Of canaries that no audit of this report asked for nothing is said.
    if n_planted := _planted(report):
        told["canaries"] = str(n_planted)
    return [(render(f"dossier.{name}"), value) for name, value in told.items()]


def _planted(report: Report) -> int:
    """Return how many canaries were tested; 0 where no audit asked for them."""
    counts = []
    for row in report.results:
        audit = about(row.audit)
        if audit.needs_canaries and audit.covers is not None and row.group == "pooled":
            metric, _ = audit.covers
            if row.metric == metric:
                counts.append(row.n)
    return max(counts, default=0)


def exposed(
    report: Report,
    folder: Path,
    one: standings.Standing,
    *,
    manifest: Manifest | None = None,
) -> list[dict[str, Any]] | str:
    """The rows whose identifiers a checkpoint gives away most, or why there are none.

    Each has its ``id``, or without a manifest its number in the evidence, its ``task``,
    the ``types`` of its identifiers that became likelier, the most exposed first, and
    with a manifest the ``texts`` of these.
    """
    attacks = {t.audit: t.attack for t in one.tried if t.outcome == "FOUND"}
    if not any(about(audit).attacks_identifiers for audit in attacks):
        return render("dossier.exposed_nobody", attacks=[*attacks.values()])
    try:
        spans = evidence_of(report, folder, Matched.name).frame()
    except (InputError, OutputError):
        file = f"scores/{Matched.evidence_file()}"
        return render("dossier.exposed_missing", file=file)
    if manifest is None:
        # An id may name somebody.
        keys = enumerate(spans["example"].unique(), start=1)
        numbers = {key: render("dossier.row", number=k) for k, key in keys}
        spans["example"] = spans["example"].map(numbers)
    spans = spans[spans["checkpoint"].map(entry_of) == one.name]
    moved = _moved(spans[spans["role"].isin(("pii", "unmatched"))])
    rows = []
    for example, part in islice(moved.groupby("example", sort=False), MAX_EXPOSED_ROWS):
        own = manifest and manifest.by_id.get(str(example))
        spans_of = own.spans if own else ()
        texts = {s.tokens: own.text[s.start : s.end] for s in spans_of if own}
        places = zip(part["start"], part["start"] + part["n_tokens"], strict=True)
        rows.append(
            {
                "id": str(example),
                "task": str(part["task"].iloc[0]),
                "types": [*part["type"].unique()],
                "texts": list(dict.fromkeys(texts[at] for at in places if at in texts)),
            }
        )
    return rows or render("dossier.exposed_none")


def _moved(spans: pd.DataFrame) -> pd.DataFrame:
    """Each identifier of a training row with ``drop``, in nats, the largest first.

    It is by how much likelier the identifier is than to the reference, beyond what
    identifiers of its type in rows never trained on became; over seeds the mean.
    """
    keys = ["example", "task", "split", "type", "start", "n_tokens"]
    spans = spans.assign(drop=spans["ref_sum"] - spans["nll_sum"])
    spans = spans.groupby(keys, as_index=False)[["drop"]].mean()
    trained = spans["split"] == "train"
    sums = spans[~trained].groupby("type")[["drop", "n_tokens"]].sum()
    own = spans[trained]
    usual = own["type"].map(sums["drop"] / sums["n_tokens"]).fillna(0.0)
    own = own.assign(drop=own["drop"] - usual * own["n_tokens"])
    return own[own["drop"] > 0].sort_values("drop", ascending=False, kind="stable")
