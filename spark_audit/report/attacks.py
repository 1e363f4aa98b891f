"""The attacks of a report: on how much each was tried, and what it could detect."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from spark_audit.audits import about
from spark_audit.names import BASE
from spark_audit.report.states import (
    OUTCOMES,
    Outcome,
    Standing,
    Tried,
    attack_name,
    outcome_name,
    relearned,
)
from spark_audit.report.table_cells import Table, records_table
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
        Outcome -> checkpoints without a result of this attack.
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
    open: Mapping[Outcome, list[str]]


def attacks(report: Report, found: Sequence[Standing]) -> list[Attack]:
    """Every class of attack, the untried ones too."""
    made = []
    for name in (tried.audit for tried in (found[0].tried if found else ())):
        each = {one.name: t for one in found for t in one.tried if t.audit == name}
        by_outcome: dict[Outcome, list[str]] = {}
        for who, tried in each.items():
            by_outcome.setdefault(tried.outcome, []).append(who)
        state, why = _state(report, name, by_outcome)
        open = OUTCOMES[1:4] if state == "tested" else ()
        made.append(
            Attack(
                name=attack_name(name),
                audit=name,
                question=optional(f"audit.{name}.asks"),
                frames=about(name).frameworks,
                state=state,
                why=why,
                on=_on(report, name) if state in ("tested", "void") else "",
                null=optional(f"audit.{name}.null"),
                least=_least(each, about(name).unit),
                open={k: by_outcome[k] for k in open if k in by_outcome},
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
    records = [
        {
            "attack": f"{one.name} ({one.audit})",
            "question": one.question,
            "on": one.on or f"{outcome_name('not tested')}: {one.why}",
            "null": one.null,
            "least": one.least if one.state == "tested" else "-",
        }
        for one in tried
    ]
    shown = [
        {render(f"attacks.{name}"): capitalised(text) for name, text in one.items()}
        for one in records
    ]
    return records_table(shown, title=render("attacks.title"), key="attacks")


def uncovered(tried: Sequence[Attack], found: Sequence[Standing]) -> str:
    """What was not tested."""
    return render(
        "states.uncovered",
        attacks=tried,
        untested=[one.name for one in found if one.state == "NOT TESTED"],
        nothing=all(one.state != "tested" for one in tried),
        faults=any(one.faults for one in found),
        relearned=relearned(found),
    )
