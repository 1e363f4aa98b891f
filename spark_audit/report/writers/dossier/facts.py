"""What a dossier tells of a report: the attacks, their results, the data."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_audit.audits import AUDITS
from spark_audit.checkpoints.specs import BASE
from spark_audit.manifest.schema import Manifest
from spark_audit.report.assemble import SCOPE
from spark_audit.report.coverage import coverage
from spark_audit.report.states import Outcome, Standing, Tried
from spark_audit.results import Finding, Report, number
from spark_audit.sentences import DECIMALS, figure, percent, render

_SKILLED = ("Delta_sel", "DiD", "epsilon")
"""Figures of the full report alone."""


@dataclass(frozen=True)
class Attack:
    """One class of attack over all checkpoints.

    Attributes
    ----------
    name, question, frames
        What it is called, what it asks, where frameworks ask for it.
    state
        ``tested``, ``void``, ``not tested`` or ``not applicable``; ``why`` if not: an
        outcome, or in words.
    on, least
        On how much, and the smallest effect that would have been seen, in words.
    open
        Checkpoints of which it told nothing, and what it came to.
    """

    name: str
    question: str
    frames: str
    state: str
    why: str
    on: str
    least: str
    open: list[tuple[list[str], Outcome]]


@dataclass(frozen=True)
class Result:
    """What one attack on one checkpoint came to, with the figure that it rests on."""

    outcome: Outcome
    figure: str = ""


def attacks(report: Report, found: Sequence[Standing]) -> list[Attack]:
    """Every class of attack, the untried ones too."""
    on = {each.audit: each.on for each in coverage(report)}
    made = []
    for tried in found[0].tried if found else ():
        by_name = {
            one.name: t for one in found for t in one.tried if t.audit == tried.audit
        }
        each = list(by_name.values())
        about = AUDITS.about(tried.audit)
        state, why = _state(report, each)
        made.append(
            Attack(
                name=tried.attack,
                question=render(f"audit.{tried.audit}.asks"),
                frames=about.frames,
                state=state,
                why=why,
                on=on[tried.audit] if state in ("tested", "void") else "",
                least=_least(each, about.unit),
                open=_open(by_name) if state == "tested" else [],
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
            return "void", told
    audit = each[0].audit
    rows = [row for row in report.results if row.audit == audit]
    if not rows:
        return "not tested", render("dossier.not_run")
    if all(row.status == "not_estimable" for row in rows):
        return "not applicable", next((row.note for row in rows if row.note), "")
    said = (f for f in report.findings if f.audit == audit and f.checkpoint != BASE)
    told = next((f.text for f in said), "")
    return "not tested", told.rstrip(".") or render("dossier.no_test")


def _open(each: Mapping[str, Tried]) -> list[tuple[list[str], Outcome]]:
    """Of whom an attack that was tried told nothing, and what it came to."""
    skipped: tuple[Outcome, ...] = ("confounded", "void", "not tested")
    parts = [
        ([name for name, tried in each.items() if tried.outcome == outcome], outcome)
        for outcome in skipped
    ]
    return [(names, outcome) for names, outcome in parts if names]


def _least(each: Sequence[Tried], unit: str) -> str:
    """The smallest effects that were not shown; where all was found, those of it."""
    for outcome in ("not shown", "FOUND"):
        told = [t.finding for t in each if t.finding and t.outcome == outcome]
        never = next((f.why for f in told if f.why), "")
        mdes = {f.mde: f.unit for f in told if f.mde is not None}
        if never and not mdes:
            return render("dossier.never", why=never)
        if mdes:
            unit = next((u for u in mdes.values() if u in DECIMALS), unit)
            digits = DECIMALS.get(unit, 3)
            ends = [number(end, digits) for end in (min(mdes), max(mdes))]
            return render("dossier.least", ends=[*dict.fromkeys(ends)], unit=unit)
    return ""


def result(tried: Tried) -> Result:
    """One attack on one checkpoint, with value, interval and null."""
    finding = tried.finding if tried.outcome != "void" else None
    return Result(tried.outcome, _figure(finding) if finding else "")


def _figure(finding: Finding) -> str:
    """Value, interval and null that a finding claims, as its sentence writes them."""
    if finding.value is None:
        return ""
    if not finding.unit and AUDITS.metric(finding.audit, finding.metric).rate:
        told = percent(finding)
    else:
        told = figure(finding, DECIMALS.get(finding.unit, 3))
    unit = finding.unit if finding.unit == "points" else ""
    return render("dossier.figure", figure=told, unit=unit, null=finding.null)


def limits(report: Report) -> list[str]:
    """What cannot be concluded from the attacks, of figures that a dossier shows."""
    own = set(SCOPE)
    for audit in {row.audit for row in report.results} & set(AUDITS.names()):
        if AUDITS.about(audit).covers:
            module = importlib.import_module(AUDITS.get(audit).run.__module__)
            own |= set(getattr(module, "SCOPE", ()))
    plain = {line for line in own if not any(word in line for word in _SKILLED)}
    return [line for line in report.scope if line in plain]


def data(report: Report, manifest: Manifest | None) -> list[tuple[str, str]]:
    """On what data: name and digest, rows, identifiers, canaries."""
    facts = report.manifest
    told = [("manifest", facts.name), ("digest", facts.digest)]
    if reference := report.settings.get("reference"):
        told.append(("reference", str(reference)))
    if manifest is not None:
        splits = [example.split for example in manifest.examples]
        trained = splits.count("train")
        held_out = len(splits) - trained
        words = render("dossier.rows_split", trained=trained, held_out=held_out)
        told.append(("rows", words))
    kinds = report.tables.get("matching_by_type", [])
    if kinds:
        counts = {k["type"]: k["matched"] + k["unmatched"] for k in kinds}
        words = render("dossier.identifiers_by_type", counts=counts)
        told.append(("identifiers", words))
    counted = {"spans": facts.n_spans, "clusters": facts.n_clusters}
    told.append(("matched", render("dossier.matched_count", **counted)))
    planted = [
        row.n
        for row in report.results
        if row.audit == "canary" and row.metric == "exposure_mean"
        if row.group == "pooled"
    ]
    count = str(max(planted, default=0) or render("dossier.none"))
    told.append(("canaries", count))
    return [(render(f"dossier.{name}"), value) for name, value in told]
