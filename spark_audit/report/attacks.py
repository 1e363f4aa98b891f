"""Every attack of a report over all checkpoints: whether and on what it was tried."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TypedDict

from spark_audit.audits import about
from spark_audit.names import BASE
from spark_audit.report.cells import ReportTable, records_table
from spark_audit.report.standings import (
    OUTCOMES,
    Outcome,
    Standing,
    Tried,
    attack_name,
    outcome_name,
)
from spark_audit.results import Finding, Report, Row
from spark_audit.results.findings import Fact
from spark_audit.sentences import (
    capitalised,
    knows,
    number,
    optional,
    render,
    translated,
)
from spark_audit.sentences.renderer import effect

UNITS_IN_WORDS = ("nats", "bits")
"""Units whose effects are said in words first, and as a number in brackets."""

MAX_NAMES_OF_EFFECT = 3
"""Checkpoints that are named with their smallest effect; more are counted."""


class AttackSummary(TypedDict):
    """An attack over all checkpoints.

    Attributes
    ----------
    name, audit, question
        What it tries, in words, its audit, and what it asks.
    frames
        The frameworks that ask for it.
    state, why
        ``tested``, ``void``, ``not tested`` or ``not applicable``; why, as an outcome
        or in words.
    on
        On how much it was tried, in words.
    null, least
        What it finds without a leak, and the least effect that would have been
        detected, in words.
    open
        Outcome -> checkpoints that it has no result of.
    """

    name: str
    audit: str
    question: str
    frames: str
    state: str
    why: str
    on: str
    null: str
    least: str
    open: dict[Outcome, list[str]]


def attacks(report: Report, found: Sequence[Standing]) -> list[AttackSummary]:
    """Every class of attack over all checkpoints, the untried ones too."""
    by_attack: dict[str, dict[str, Tried]] = {}
    for one in found:
        for tried in one.tried:
            by_attack.setdefault(tried.audit, {})[one.name] = tried
    summaries: list[AttackSummary] = []
    for name, each in by_attack.items():
        by_outcome: dict[Outcome, list[str]] = {}
        for who, tried in each.items():
            by_outcome.setdefault(tried.outcome, []).append(who)
        state, why = _state(report, name, by_outcome)
        open = OUTCOMES[1:4] if state == "tested" else ()
        summary = AttackSummary(
            name=attack_name(name),
            audit=name,
            question=optional(f"audit.{name}.asks"),
            frames=optional(f"audit.{name}.frameworks"),
            state=state,
            why=why,
            on=_on(report, name) if state in ("tested", "void") else "",
            null=optional(f"audit.{name}.null"),
            least=_detectable(report, each, name),
            open={k: by_outcome[k] for k in open if k in by_outcome},
        )
        summaries.append(summary)
    return summaries


def _on(report: Report, audit: str) -> str:
    """Return on how much an attack was tried, in words; empty: it came to no figure."""
    rows = _rows_of_size(report, audit)
    _, size = about(audit).covers or ("", "n")
    counts = [getattr(row, size) for row in rows if row.group == "pooled"]
    count = max(counts, default=0)
    if not count:
        return ""

    text = _sizes_in_words(report, audit, count)
    types = {row.grouping[1] for row in rows if row.grouping[0] == "type"}
    if len(types) > 1:
        text = render("audit.of_types", text=text, types=len(types))
    return text


def _rows_of_size(report: Report, audit: str) -> list[Row]:
    """Return the rows that tell on how much an attack was tried.

    They are of the metric that counts it; without a base, an audit has no row of its
    change since the base, and any of its rows do.
    """
    metric, _ = about(audit).covers or ("", "n")
    rows = [row for row in report.results if row.audit == audit and row.n]
    of_metric = [row for row in rows if row.metric == metric] or rows
    without_base = [row for row in of_metric if row.checkpoint != BASE]
    return without_base or of_metric


def _sizes_in_words(report: Report, audit: str, count: int) -> str:
    """Return the sizes of both sides where they are known, else what was tested.

    An audit of another package may have one sentence for both, or none.
    """
    facts = _facts_of_sizes(report, audit)
    trained, held_out = [
        about(audit).size_of(facts.get(name)) for name in about(audit).sides
    ]
    known = ["count"]
    if trained is not None:
        known.insert(0, "trained")
        if held_out is not None:
            known.insert(0, "sides")

    covers = f"audit.{audit}.covers"
    for key in (*(f"{covers}.{sizes}" for sizes in known), covers):
        if knows(key):
            return render(
                key, count=count, trained=trained, held_out=held_out, facts=facts
            )
    return str(count)


def _facts_of_sizes(report: Report, audit: str) -> Mapping[str, Fact]:
    """Return the facts of an audit's findings and guards: sizes stand among them.

    The sizes of what is tested come first: a sentence may be of more, and findings on
    canaries count other things under the same names.
    """
    metric, _ = about(audit).covers or ("", "n")
    findings = [
        finding
        for finding in report.findings
        if finding.audit == audit and finding.checkpoint != BASE
    ]
    findings.sort(key=lambda one: (one.family != "primary", one.row_metric != metric))
    guards = [one for one in report.guards if one.says.startswith(f"guard.{audit}.")]

    facts: dict[str, Fact] = {}
    for rendered in (*findings, *guards):
        facts = {**rendered.facts, **facts}
    return facts


def _state(report: Report, audit: str, outcomes: Container[str]) -> tuple[str, str]:
    """Whether an attack has a result for any checkpoint; if not, the reason."""
    if "FOUND" in outcomes or "not shown" in outcomes:
        return "tested", ""
    for told in ("confounded", "void"):
        if told in outcomes:
            return "void", told
    rows = [row for row in report.results if row.audit == audit]
    if not rows:
        return "not tested", render("dossier.not_run")
    if all(row.status == "not_estimable" for row in rows):
        note = next((row.note for row in rows if row.note), "")
        return "not applicable", translated("reason", note)
    said = (f for f in report.findings if f.audit == audit and f.checkpoint != BASE)
    told = next((f.text for f in said), "")
    return "not tested", told.rstrip(".") or render("dossier.no_test")


def _detectable(report: Report, each: Mapping[str, Tried], audit: str) -> str:
    """The smallest effects where no leak was found; where all was found, those of it.

    Of a checkpoint whose clearest test tells none, that of another of its tests in the
    same unit. The checkpoints are named where these are not all.
    """
    told: dict[str, Finding] = {}
    for one in report.findings:
        if (one.audit, one.family) == (audit, "primary") and one.mde is not None:
            told.setdefault(one.checkpoint, one)
    for outcome in ("not shown", "FOUND"):
        found: dict[str, Finding] = {}
        for name, tried in each.items():
            if tried.outcome == outcome and (test := tried.finding) is not None:
                found[name] = test if test.mde is not None else told.get(name, test)
        mdes = {name: one.mde for name, one in found.items() if one.mde is not None}
        if mdes:
            # Those of clearest tests first: theirs is the unit.
            own = sorted(mdes, key=lambda name: found[name] is not each[name].finding)
            units = filter(None, (found[name].unit for name in own))
            unit = next(units, about(audit).unit)
            mdes = {k: v for k, v in mdes.items() if found[k].unit in ("", unit)}
            lacking = [name for name in found if name not in mdes]
            return _least_in_words(mdes, unit, n_checkpoints=len(each), lacking=lacking)
        if never := next((one.why for one in found.values() if one.why), ""):
            return render("dossier.never", why=never)
    return ""


def _least_in_words(
    mde_by_name: Mapping[str, float],
    unit: str,
    *,
    n_checkpoints: int,
    lacking: Sequence[str],
) -> str:
    """Return the smallest detectable effects, and of which checkpoints they are.

    Parameters
    ----------
    n_checkpoints
        All checkpoints that the attack was tried on.
    lacking
        Checkpoints for which no smallest effect can be stated.
    """
    least, most = min(mde_by_name.values()), max(mde_by_name.values())
    least_effect, text = (effect(end, unit, brief=True) for end in (least, most))
    if least_effect != text:
        text = render("dossier.between", least=least_effect, most=text)

    if unit in UNITS_IN_WORDS:
        low, size = number(least, 2), number(most, 2)
        if low != size:
            size = render("word.from_to", low=low, high=size)
        in_unit = render("dossier.of_unit", size=size, unit=unit)
        text = render("states.with_remark", text=text, remark=in_unit)

    count = len(mde_by_name)
    if count < n_checkpoints and count > MAX_NAMES_OF_EFFECT:
        text = render("dossier.in_count", least=text, count=count, all=n_checkpoints)
    elif count < n_checkpoints:
        text = render("dossier.in_checkpoints", least=text, names=[*mde_by_name])

    if lacking:
        text = render("dossier.none_for", least=text, names=lacking)
    return text


def attack_table(tried: Sequence[AttackSummary]) -> ReportTable:
    """One line per attack: what it asks, on how much it was tested, what it detects."""
    records = []
    for one in tried:
        cells = {
            "attack": f"{one['name']} ({one['audit']})",
            "question": one["question"],
            "on": one["on"] or f"{outcome_name('not tested')}: {one['why']}",
            "null": one["null"],
            "least": one["least"] if one["state"] == "tested" else "-",
        }
        shown = {render(f"attacks.{k}"): capitalised(text) for k, text in cells.items()}
        records.append(shown)
    return records_table(records, title=render("attacks.title"), key="attacks")
