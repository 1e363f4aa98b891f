"""What a dossier tells of a report: the attacks, their results, the data."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_audit.audits import AUDITS
from spark_audit.checkpoints.specs import BASE
from spark_audit.manifest.schema import Manifest
from spark_audit.report.assemble import SCOPE
from spark_audit.report.standing import Standing, Tried, covered
from spark_audit.report.writers.dossier.words import OUTCOMES, PLAIN
from spark_audit.results import Finding, Report, Row, number

_UNSEEN = re.compile(
    r"(?:one of|below|;) (\d[\d.]*)( bits| points)?"
    r"(?= would have been seen| go unseen| cannot be excluded|, up to)"
)
"""How the sentences of all audits name the smallest effect."""
_FIGURE = re.compile(r"(-?\d[\d.]*)%? \[-?[\d.]+, -?[\d.]+\]( points)?")
"""How they write a value with its interval."""


_SKILLED = re.compile(r"Delta_sel|DiD|epsilon")
"""Figures of the full report alone."""


@dataclass(frozen=True)
class Attack:
    """One class of attack over all checkpoints.

    Attributes
    ----------
    name, question, frames
        What it is called, what it asks, where frameworks ask for it.
    state
        ``tested``, ``void``, ``not tested`` or ``not applicable``; ``why`` if not.
    on, least
        On how much, and the smallest effect that would have been seen, in words.
    open
        Checkpoints of which it told nothing, and why.
    """

    name: str
    question: str
    frames: str
    state: str
    why: str
    on: str
    least: str
    open: str


@dataclass(frozen=True)
class Outcome:
    """What one attack on one checkpoint came to, with the figure that it rests on."""

    found: bool
    words: str
    figure: str = ""


def attacks(report: Report, found: Sequence[Standing]) -> list[Attack]:
    """Every class of attack, the untried ones too."""
    on = dict(line.split(": ", 1) for line in covered(report))
    made = []
    for tried in found[0].tried if found else ():
        by_name = {
            one.name: t for one in found for t in one.tried if t.audit == tried.audit
        }
        each = list(by_name.values())
        question, frames, unit = PLAIN.get(tried.audit, (tried.attack, "", ""))
        state, why = _state(report, each)
        made.append(
            Attack(
                name=tried.attack,
                question=question,
                frames=frames,
                state=state,
                why=why,
                on=on.get(tried.attack, "") if state in ("tested", "void") else "",
                least=_least(report, each, unit),
                open=_open(by_name) if state == "tested" else "",
            )
        )
    return made


def _state(report: Report, each: Sequence[Tried]) -> tuple[str, str]:
    """Whether an attack told anything of any checkpoint; if not, why."""
    outcomes = {tried.outcome for tried in each}
    if outcomes & {"FOUND", "not shown"}:
        return "tested", ""
    for told in ("confounded", "void"):
        if told in outcomes:
            return "void", OUTCOMES[told]
    audit = each[0].audit
    rows = [row for row in report.results if row.audit == audit]
    if not rows:
        return "not tested", "it was not run"
    if all(row.status == "not_estimable" for row in rows):
        return "not applicable", next((row.note for row in rows if row.note), "")
    said = (f for f in report.findings if f.audit == audit and f.checkpoint != BASE)
    told = next((f.sentence.removeprefix(f"{f.checkpoint}: ") for f in said), "")
    return "not tested", told.rstrip(".") or "nothing here was a test of it"


def _open(each: Mapping[str, Tried]) -> str:
    """Of whom an attack that was tried told nothing, and why."""
    parts = []
    for outcome in ("confounded", "void", "not tested"):
        names = [name for name, tried in each.items() if tried.outcome == outcome]
        if names:
            parts.append(f"{', '.join(names)}: {OUTCOMES[outcome]}")
    return "; ".join(parts)


def _least(report: Report, each: Sequence[Tried], unit: str) -> str:
    """The smallest effects that the sentences of what was not shown name.

    Where all was found, those of the figures.
    """
    named: dict[float, str] = {}
    for tried in each:
        if tried.outcome == "not shown" and tried.finding is not None:
            if match := _UNSEEN.search(tried.finding.sentence):
                named[float(match[1])] = match[1]
                unit = (match[2] or unit).strip()
    if not named:
        told = [tried.finding for tried in each if tried.outcome == "FOUND"]
        places = {(f.audit, f.checkpoint, f.metric, f.of, f.group) for f in told if f}
        for row in report.results:
            place = (row.audit, row.checkpoint, row.metric, row.of, row.group)
            if place in places and row.mde is not None:
                named[row.mde] = number(row.mde)
    if not named:
        return ""
    low, high = named[min(named)], named[max(named)]
    span = low if low == high else f"{low} to {high}"
    return f"{span} {unit}".strip()


def outcome(report: Report, tried: Tried) -> Outcome:
    """One attack on one checkpoint, with value, interval and null."""
    words = OUTCOMES[tried.outcome]
    told = tried.finding if tried.outcome != "void" else None
    figure = "" if told is None else _figure(report, told)
    return Outcome(tried.outcome == "FOUND", words, figure)


def _figure(report: Report, finding: Finding) -> str:
    """Value, interval and null as the finding's sentence says them.

    A sentence that rests on no single row names the value of one, and chance beside it.
    """
    if finding.value is None:
        row = next(_named(report, finding), None)
        if row is None:
            return ""
        told = f"{row.value:.2f}"
        told += "" if row.low is None else f" [{row.low:.2f}, {row.high:.2f}]"
        return told + ("" if row.null is None else f", null {row.null:.3g}")
    null = "" if finding.null is None else f", null {finding.null:.3g}"
    # Others beside it tell of what it was held against.
    value, figures = finding.value, _FIGURE.finditer(finding.sentence)

    def off(figure: re.Match[str]) -> float:
        share = "%" in figure[0] or "points" in figure[0]
        return abs(float(figure[1]) - value * (100 if share else 1))

    own = min(figures, key=off, default=None)
    return "" if own is None else f"{own[0]}{null}"


def _named(report: Report, finding: Finding) -> Iterator[Row]:
    """Rows of the audit's main figure whose value stands in a finding's sentence."""
    metric = AUDITS.about(finding.audit).covers[0]
    for row in report.results:
        place = (row.audit, row.checkpoint, row.metric, row.group)
        if place == (finding.audit, finding.checkpoint, metric, "pooled"):
            if row.value is not None and f" {row.value:.2f} " in finding.sentence:
                yield row


def limits(report: Report) -> list[str]:
    """What cannot be concluded from the attacks, of figures that a dossier shows."""
    own = set(SCOPE)
    for audit in {row.audit for row in report.results} & set(AUDITS.names()):
        if AUDITS.about(audit).attack:
            module = importlib.import_module(AUDITS.get(audit).run.__module__)
            own |= set(getattr(module, "SCOPE", ()))
    return [line for line in report.scope if line in own and not _SKILLED.search(line)]


def data(report: Report, manifest: Manifest | None) -> list[tuple[str, str]]:
    """On what data: name and digest, rows, identifiers, canaries."""
    facts = report.manifest
    told = [("manifest", facts.name), ("digest (SHA-256)", facts.digest)]
    if reference := report.settings.get("reference"):
        told.append(("how hard a text is was measured on", str(reference)))
    if manifest is not None:
        splits = [example.split for example in manifest.examples]
        trained = splits.count("train")
        words = f"{trained} trained on, {len(splits) - trained} never trained on"
        told.append(("rows", words))
    kinds = report.tables.get("matching_by_type", [])
    if kinds:
        counts = {k["type"]: k["matched"] + k["unmatched"] for k in kinds}
        each = ", ".join(f"{n} {kind}" for kind, n in counts.items())
        told.append(("annotated identifiers", f"{sum(counts.values())}: {each}"))
    told.append(
        (
            "of these held against equally hard text",
            f"{facts.n_spans} of trained rows, in {facts.n_clusters} groups",
        )
    )
    planted = [
        row.n
        for row in report.results
        if row.audit == "canary" and row.metric == "exposure_mean"
        if row.group == "pooled"
    ]
    told.append(("planted canaries", str(max(planted, default=0) or "none")))
    return told
