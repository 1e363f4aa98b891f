"""The attacks of a report: on how much each was tried, and what it could detect."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_audit.audits import about
from spark_audit.names import BASE
from spark_audit.report.states import Outcome, Standing, Tried, outcome_name
from spark_audit.report.table_cells import Cell, Line, Table
from spark_audit.results import Report
from spark_audit.sentences import capitalised, knows, optional, render, translated


@dataclass(frozen=True)
class Attack:
    """One class of attack over all checkpoints.

    Attributes
    ----------
    name, audit, question, frames
        What it is called, its command, what it asks, where frameworks ask for it.
    state
        ``tested``, ``void``, ``not tested`` or ``not applicable``; ``why`` if not: an
        outcome, or in words.
    on, null, least
        On how much, what it finds without a leak, and the smallest effect that would
        have been detected, in words.
    open
        Checkpoints without a result of this attack, and their outcome.
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
    open: list[tuple[list[str], Outcome]]


def attacks(report: Report, found: Sequence[Standing]) -> list[Attack]:
    """Every class of attack, the untried ones too."""
    made = []
    for tried in found[0].tried if found else ():
        by_name = {
            one.name: t for one in found for t in one.tried if t.audit == tried.audit
        }
        each = list(by_name.values())
        audit = about(tried.audit)
        state, why = _state(report, each)
        made.append(
            Attack(
                name=tried.attack,
                audit=tried.audit,
                question=optional(f"audit.{tried.audit}.asks"),
                frames=audit.frameworks,
                state=state,
                why=why,
                on=_on(report, tried.audit) if state in ("tested", "void") else "",
                null=optional(f"audit.{tried.audit}.null"),
                least=_least(by_name, audit.unit),
                open=_open(by_name) if state == "tested" else [],
            )
        )
    return made


def _on(report: Report, name: str) -> str:
    """On how much an attack was tried, in words; empty: it came to no figure."""
    metric, size = about(name).covers or ("", "n")
    rows = [r for r in report.results if (r.audit, r.metric) == (name, metric) and r.n]
    rows = [row for row in rows if row.checkpoint != BASE] or rows
    count = max((getattr(r, size) for r in rows if r.group == "pooled"), default=0)
    key = f"audit.{name}.covers"
    if not count or not knows(key):
        return str(count or "")
    own = (f for f in report.findings if f.audit == name and f.checkpoint != BASE)
    guards = (g for g in report.guards if g.says.startswith(f"guard.{name}."))
    # Sizes of the two sides stand among them.
    facts = ChainMap(*(dict(one.facts) for one in (*own, *guards)))
    types = {r.grouping[1] for r in rows if r.grouping[0] == "type"}
    return render(key, audit=name, count=count, types=len(types), facts=facts)


def _state(report: Report, each: Sequence[Tried]) -> tuple[str, str]:
    """Whether an attack has a result for any checkpoint; if not, the reason."""
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
        note = next((row.note for row in rows if row.note), "")
        return "not applicable", translated("reason", note)
    said = (f for f in report.findings if f.audit == audit and f.checkpoint != BASE)
    told = next((f.text for f in said), "")
    return "not tested", told.rstrip(".") or render("dossier.no_test")


def _open(each: Mapping[str, Tried]) -> list[tuple[list[str], Outcome]]:
    """Checkpoints without a result of an attack, by outcome."""
    skipped: tuple[Outcome, ...] = ("confounded", "void", "not tested")
    found = {k: [name for name, t in each.items() if t.outcome == k] for k in skipped}
    return [(names, outcome) for outcome, names in found.items() if names]


def _least(each: Mapping[str, Tried], unit: str) -> str:
    """The smallest effects where no leak was found; where all was found, those of it.

    The checkpoints are named where these are not all.
    """
    for outcome in ("not shown", "FOUND"):
        tests = {k: t.finding for k, t in each.items() if t.outcome == outcome}
        found = {name: one for name, one in tests.items() if one is not None}
        never = next((one.why for one in found.values() if one.why), "")
        mdes = {name: one.mde for name, one in found.items() if one.mde is not None}
        if never and not mdes:
            return render("dossier.never", why=never)
        if mdes:
            unit = next(filter(None, (found[name].unit for name in mdes)), unit)
            ends = sorted({min(mdes.values()), max(mdes.values())})
            facts = {"names": [*mdes], "count": len(each)}
            facts["lacking"] = [name for name in found if name not in mdes]
            return render("dossier.least", ends=ends, unit=unit, **facts)
    return ""


def attack_table(tried: Sequence[Attack]) -> Table:
    """One line per attack: what it asks, on how much it was tested, what it detects."""
    columns = ("attack", "question", "on", "null", "least")
    lines = [
        Line(
            tuple(
                Cell(capitalised(text))
                for text in (
                    f"{one.name} ({one.audit})",
                    one.question,
                    one.on or f"{outcome_name('not tested')}: {one.why}",
                    one.null,
                    one.least if one.state == "tested" else "-",
                )
            )
        )
        for one in tried
    ]
    return Table(
        title=render("attacks.title"),
        header=tuple(render(f"attacks.{name}") for name in columns),
        rows=tuple(lines),
    )


def uncovered(tried: Sequence[Attack], found: Sequence[Standing]) -> str:
    """What was not tested."""
    return render(
        "states.uncovered",
        attacks=tried,
        untested=[one.name for one in found if one.state == "NOT TESTED"],
        nothing=all(one.state != "tested" for one in tried),
        checks=list({guard.title: 0 for one in found for guard in one.faults}),
    )
