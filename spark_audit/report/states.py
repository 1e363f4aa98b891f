"""The state of each checkpoint: evidence, attacks, and next step.

Every format of a report begins with it. It follows from the typed findings alone, so
that all formats give the same answer.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context
from typing import Any, Literal, get_args

from spark_audit import sentences
from spark_audit.audits import AUDITS, AUDITS_ON_REQUEST, about, audit_names
from spark_audit.audits.claims import ALPHA, TESTS
from spark_audit.audits.setup_guards import REMAINS, faults
from spark_audit.audits.trained_rows import question_of
from spark_audit.names import (
    BASE,
    RELEARN,
    RELEARNED_BASE,
    CheckpointName,
    entry_of,
    series_of,
)
from spark_audit.report.tables import ReportTable, entries, records_table
from spark_audit.results import (
    OF_REPORT,
    Finding,
    Guard,
    Report,
    Row,
    by_severity,
    grouped,
)
from spark_audit.results.findings import DETECTED, SEVERITY
from spark_audit.sentences import capitalised, knows, optional, render, translated

State = Literal["LEAKS", "DETECTABLE", "NO LEAK FOUND", "NOT TESTED"]
SHAPES: dict[State, str] = {
    "LEAKS": "▲",
    "DETECTABLE": "◆",
    "NO LEAK FOUND": "○",
    "NOT TESTED": "?",
}
"""The states, the worst first, and a sign of each: colour is never the only sign."""
NOT_TESTED_CLAIMS = ("not_tested", "confounded")
"""Claims that state why memory was not tested."""
OF_IDENTIFIERS = ("matched", "twins", "extract")
"""Attacks on identifiers; canaries are nobody's, membership is of no identifier."""
UNITS_SHOWN = ("nats", "bits", "AUC")
"""Units that the first screen explains where it uses them."""

Outcome = Literal["FOUND", "confounded", "void", "not tested", "not shown"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
RESULTS: tuple[tuple[Outcome, ...], ...] = (
    ("FOUND", "not shown"),
    ("void", "confounded"),
)
"""Outcomes that tell something, and those of which nothing can be concluded."""
OUTCOME_SIGNS: dict[Outcome, str] = dict(zip(OUTCOMES, "●××–○", strict=True))
"""Signs of what an attack came to: they differ without colour."""


@dataclass(frozen=True)
class Tried:
    """One attack on one checkpoint.

    Attributes
    ----------
    audit
        Its name.
    outcome
        ``void``: tried, but its figures say nothing.
    finding
        What the outcome rests on, if on one.
    ran
        Whether the report has this audit.
    """

    audit: str
    outcome: Outcome
    finding: Finding | None = None
    ran: bool = True

    @property
    def attack(self) -> str:
        """What it tries, in words."""
        return attack_name(self.audit)

    @property
    def shown(self) -> str:
        """What it tries, and by how much it found that."""
        finding = self.finding if self.outcome == "FOUND" else None
        facts = {"attack": self.attack, "finding": finding}
        return sentences.render("states.tried", seed=_seed(finding), **facts)


@dataclass(frozen=True)
class Standing:
    """Where one checkpoint, or method with several seeds, stands.

    Attributes
    ----------
    name, state
        Who, and in which state.
    detections
        All that was detected, the strongest evidence first.
    led_by
        Its strongest evidence; where nothing is claimed, its first test of memory.
    nearest
        Where nothing is claimed, the test of smallest p, if that is below 0.05.
    tried
        Every attack in the order of audits, the untried ones too.
    exposed
        Where something was detected, the figures of the types of identifiers that moved
        most: exploratory, to say where to look first.
    faults
        Setup guards that failed for it; the lead names them.
    question
        That its trained rows fit no better than held-out ones: the lead begins with
        the question whether list and template are right.
    memory
        How the NLL of trained identifiers changed relative to comparable ones that
        were never trained on, nats per token: below 0 is more likely.
    sides
        Groups of trained and of held-out identifiers; empty where they are not known.
    """

    name: str
    state: State
    detections: tuple[Finding, ...]
    tried: tuple[Tried, ...]
    exposed: tuple[Row, ...] = ()
    faults: tuple[Guard, ...] = ()
    question: Guard | None = None
    led_by: Finding | None = None
    nearest: Tried | None = None
    memory: Row | None = None
    sides: tuple[int, ...] = ()

    @property
    def lead(self) -> str:
        """What must be asked first, its strongest evidence, and failed guards."""
        question = self.question.detail if self.question else ""
        return " ".join(filter(None, [question, self._evidence]))

    @property
    def _evidence(self) -> str:
        """The sentence of its strongest evidence, and failed guards."""
        faults = " ".join(guard.detail for guard in self.faults)
        if self.led_by is not None:
            near = self.nearest
            nearest = sentences.render("states.nearest", tried=near) if near else ""
            one = self.led_by
            own = one.sentence if _seed(one) else one.lead
            return " ".join(filter(None, [own, nearest, faults]))
        key = "nothing" if self.state == "NO LEAK FOUND" else "untested"
        # The report says at its head why, once for all.
        return faults or sentences.render(f"states.{key}")

    @property
    def ships(self) -> bool:
        """Whether ``gate`` lets it pass where it is given no rule."""
        stops = any(SEVERITY["membership"] <= one.severity for one in self.detections)
        return not stops and self.state != "NOT TESTED"

    @property
    def missed(self) -> float | None:
        """The smallest change of memory that its test would have detected, nats.

        ``None`` where it detected one, or there is no such test.
        """
        clean = any(one.audit == "matched" for one in self.tally.get("not shown", ()))
        return self.memory.mde if clean and self.memory else None

    @property
    def attacks(self) -> list[Tried]:
        """All but the one whose figure the memory plot shows."""
        return [tried for tried in self.tried if tried.audit != "matched"]

    @property
    def unclear(self) -> bool:
        """Whether a measured difference may come from the texts alone."""
        doubts = (one.finding for one in self.tried if one.outcome == "confounded")
        return any(
            about(one.audit).memory or one.audit == "extract"
            for one in doubts
            if one is not None and one.checkpoint != BASE
        )

    @property
    def tally(self) -> dict[Outcome, list[Tried]]:
        """The attacks by outcome, detections first."""
        parts = grouped(self.tried, lambda one: one.outcome)
        return {outcome: parts[outcome] for outcome in OUTCOMES if outcome in parts}

    @property
    def outcomes(self) -> str:
        """What its attacks came to, and the types that it exposes most, in words."""
        parts = [
            f"{outcome_name(outcome)}: {', '.join(tried.shown for tried in part)}"
            for outcome, part in self.tally.items()
        ]
        return "; ".join(filter(None, [*parts, self.exposure]))

    @property
    def exposure(self) -> str:
        """The types that it exposes most, or that none is shown to be; else empty."""
        if self.exposed:
            return sentences.render("page.exposed", exposed=self.exposed)
        tested = {one.audit for one in self.tried if one.outcome == "not shown"}
        clean = self.state == "NO LEAK FOUND" and tested & {*OF_IDENTIFIERS}
        return sentences.render("page.no_type") if clean else ""


def _seed(finding: Finding | None) -> str:
    """The replicate that a finding on a method with several seeds is of; else empty."""
    name = finding.checkpoint if finding else ""
    return name if name and entry_of(name) != name else ""


def standings(report: Report) -> list[Standing]:
    """Every checkpoint but the base, the worst first; the base where it leaks itself.

    Empty where no audit of the report attacks anything.
    """
    # Of each audit that the report has, whom it scored.
    scored = {one.audit: set[str]() for one in (*report.results, *report.findings)}
    for row in report.results:
        if row.n:
            scored[row.audit].add(method_of(row.checkpoint))
    attacks = [
        name
        for name in audit_names()
        if name in scored or name not in AUDITS_ON_REQUEST
        if knows(f"audit.{name}.attack") or (name not in AUDITS and about(name).covers)
    ]
    if not scored.keys() & {*attacks}:
        return []
    told = grouped(report.findings, lambda one: method_of(one.checkpoint))
    # Why nothing was tested of anybody is the reason for each.
    lacking = [
        f for f in told.pop("", ()) if f.claim == "not_tested" and f.audit in attacks
    ]
    found = []
    for name in dict.fromkeys([*entries(report), *told]):
        own = [*told.get(name, ()), *lacking]
        if name != RELEARNED_BASE and (
            name != BASE or any(one.detected for one in own)
        ):
            found.append(_standing(report, name, own, attacks, scored))

    def place(one: Standing) -> tuple[int, int]:
        severest = one.detections[0].severity if one.detections else 0
        return list(SHAPES).index(one.state), -severest

    return sorted(found, key=place)


def method_of(name: str) -> str:
    """The method that a seed or a stage of a series is of, else the name."""
    return entry_of(series_of(name))


def remembers(finding: Finding) -> bool:
    """Whether a finding rests on a test of memory, whatever that came to."""
    if finding.alone in ("not_tested", "confounded") or finding.checkpoint == BASE:
        return False
    if finding.alone in ("verbatim", "memory"):
        return True
    tested = finding.family == "primary" and finding.p is not None
    return about(finding.audit).memory and (tested or finding.metric == "memory")


def untested(findings: Sequence[Finding], names: Iterable[str]) -> list[Finding]:
    """That memory was not tested: of no checkpoint, or of some.

    Of a method with several seeds or stages one test is enough.
    """
    tested = {method_of(one.checkpoint) for one in findings if remembers(one)}
    bases = (BASE, RELEARNED_BASE)
    entries = [k for k in dict.fromkeys(map(method_of, names)) if k not in bases]
    lacking = [name for name in entries if name not in tested]
    if lacking and len(lacking) == len(entries):
        lacking = [""]
    says = "report.untested"
    return [Finding.not_tested(OF_REPORT, says, checkpoint=name) for name in lacking]


def reach(found: Sequence[Standing]) -> float | None:
    """How far from 0 the memory plot goes, nats; ``None`` where it has no figure.

    An interval of few groups may be endless, and is cut.
    """
    rows = filter(None, (one.memory for one in found))
    values = [abs(row.value) for row in rows if row.value is not None]
    return 1.5 * max(values) + math.log(1.1) if values else None


def key_of(state: State) -> str:
    """A state as keys of sentences name it."""
    return state.lower().replace(" ", "_")


def state_name(state: State) -> str:
    """A state in the current language."""
    return sentences.render(f"state.{key_of(state)}.name")


def badge(state: State) -> str:
    """A state with its sign."""
    return f"{SHAPES[state]} {state_name(state)}"


def attack_name(audit: str) -> str:
    """What an audit tries, in words."""
    return sentences.optional(f"audit.{audit}.attack") or audit


def outcome_name(outcome: Outcome) -> str:
    """The outcome of an attack, in the current language."""
    return sentences.render(f"outcome.{outcome.replace(' ', '_')}")


def answer(found: Sequence[Standing]) -> str:
    """The report in one line: how many checkpoints are in which state.

    Also by how many of the attacks: next to a title that does not say that most were
    not run, readers took a checkpoint for cleared.
    """
    states: list[dict[str, Any]] = []
    for state, own in grouped(found, lambda one: one.state).items():
        tested = [sum(len(one.tally.get(k, ())) for k in RESULTS[0]) for one in own]
        names = [one.name for one in own]
        facts = {"key": key_of(state), "count": len(own), "names": names}
        facts |= {"attacks": len(own[0].tried), "tested": sorted({*tested})}
        states.append(facts)
    return sentences.render("states.answer", count=len(found), states=states)


def relearned(found: Sequence[Standing]) -> bool:
    """Whether checkpoints were audited again after a short training on other rows."""
    return any(CheckpointName.parse(one.name).derived == RELEARN for one in found)


def meanings() -> dict[State, str]:
    """What each state means."""
    return {state: sentences.render(f"state.{key_of(state)}") for state in SHAPES}


def advice(found: Sequence[Standing]) -> dict[State, str]:
    """What to do next, by the states that there are."""
    by_state = grouped(found, lambda one: one.state)
    known, lacking = (by_state.get(k, []) for k in ("DETECTABLE", "NOT TESTED"))
    gives: set[str] = set()
    faulty: dict[str, list[str]] = {}
    for one in lacking:
        if not one.faults:
            gives.add("give_alike" if one.unclear else "give")
        for guard in one.faults:
            faulty.setdefault(guard.name, []).append(one.name)
    facts = {
        "stopped": not all(one.ships for one in known),
        "relearned": relearned(found),
        "gives": sorted(gives),
        "faults": {k: _some(faulty[k], lacking) for k in REMAINS if k in faulty},
        **_open(by_state.get("NO LEAK FOUND", [])),
    }
    return {
        state: sentences.render(f"advice.{key_of(state)}", **facts)
        for state in by_state
    }


def _some(names: list[str], of: Sequence[Standing]) -> list[str]:
    """Names of some; nothing where it is all of them."""
    return names if len(names) < len(of) else []


def _open(clean: Sequence[Standing]) -> dict[str, Any]:
    """Open tests of checkpoints without a claim, and commands that run them."""
    commands: dict[str, None] = {}
    unanswered: dict[str, list[str]] = {}
    unplanted = False
    for one in clean:
        for each in one.tried:
            if not each.ran:
                commands[each.audit] = None
            elif (each.audit, each.outcome) == ("canary", "not tested"):
                unplanted = True
            elif each.outcome not in RESULTS[0]:
                unanswered.setdefault(each.attack, []).append(one.name)
    return {
        "commands": list(commands),
        "unplanted": unplanted,
        "unanswered": {k: _some(names, clean) for k, names in unanswered.items()},
    }


def checks(report: Report, found: Sequence[Standing]) -> list[str]:
    """Whether the audit's own checks held: a line, then one for each that did not.

    These say what happened, and what that does to the states. Not that something
    FAILED: next to a checkpoint that passes, readers took that for the checkpoint.
    """
    states = [one.passed for one in report.guards]
    counts = {"failed": states.count(False), "warnings": states.count(None)}
    lines = [sentences.render("states.checks", count=len(states), **counts)]
    faulty = (one for one in report.guards if one.passed is False)
    failed = grouped(faulty, lambda one: one.name)
    untested = {one.name for one in found if one.faults and one.state == "NOT TESTED"}
    told: set[str] = set()
    for name, guards in failed.items():
        names = list(dict.fromkeys(one.checkpoint for one in guards if one.checkpoint))
        void = bool(names) and untested.issuperset(names)
        facts = {"name": name, "guards": guards, "names": names, "void": void}
        lines.append(sentences.render("failed", **facts))
        told.update(names if void else ())
    if not failed:
        return lines
    verdicts: dict[tuple[Any, ...], list[str]] = {}
    for one in found:
        tested, open = (
            tuple(t.attack for outcome in of for t in one.tally.get(outcome, ()))
            for of in RESULTS
        )
        if open and one.name not in told:
            verdicts.setdefault((tested, open, one.ships), []).append(one.name)
    return [*lines, sentences.render("states.doubts", verdicts=verdicts)]


def reading(report: Report, found: Sequence[Standing]) -> str:
    """How to read the sentences of these checkpoints: every unit is explained."""
    led_by = filter(None, (one.led_by for one in found))
    used = {one.unit for one in led_by if one.claim != "not_tested"}
    units = [unit for unit in UNITS_SHOWN if unit in used]
    return sentences.render("states.reading", **_level(report), units=units)


def level(report: Report) -> str:
    """The level that a claim of a report must pass, in words."""
    return sentences.render("states.level", **_level(report))


def _level(report: Report) -> dict[str, Any]:
    """How many tests, and the level of the first step of Holm's correction.

    Three digits, rounded down: what is shown is no looser than what is applied.
    """
    tests = int(report.settings.get(TESTS, 0))
    down = Context(prec=3, rounding=ROUND_FLOOR)
    level = down.create_decimal(repr(ALPHA / (tests or 1)))
    return {"tests": tests, "limit": level}


def surety(found: Sequence[Standing]) -> str:
    """How sure the first screen is, as chances: of a false claim, and of a missed leak.

    A corrected p bounds how often a report in which nothing leaked would claim as much.
    """
    of_1000: dict[int, list[str]] = {}
    for one in found:
        led = one.led_by if one.detections else None
        if led and led.family == "primary" and led.p_adjusted is not None:
            n = max(1, math.ceil(1000 * led.p_adjusted))
            of_1000.setdefault(n, []).append(one.name)
    clean = any(
        tried.finding and tried.finding.mde is not None
        for one in found
        if one.state == "NO LEAK FOUND"
        for tried in one.tally.get("not shown", ())
    )
    claims = sorted(of_1000.items())
    return sentences.render("states.surety", claims=claims, clean=clean)


def gate(found: Sequence[Standing]) -> str:
    """The verdict of the gate without rules."""
    skipped = {"void", "confounded", "not tested"}
    unjudged = any(one.ships and skipped & {*one.tally} for one in found)
    return sentences.render("states.gate", found=found, unjudged=unjudged)


def _standing(
    report: Report,
    name: str,
    findings: Sequence[Finding],
    attacks: Collection[str],
    scored: Mapping[str, Collection[str]],
) -> Standing:
    own = [one for one in by_severity(findings) if one.audit in (*attacks, OF_REPORT)]
    tried = tuple(
        _tried(
            audit,
            [one for one in own if one.audit == audit],
            scored=name in scored.get(audit, ()),
            ran=audit in scored,
        )
        for audit in attacks
    )
    detections = tuple(one for one in own if one.detected)
    failed = tuple(faults(report.guards, name))
    near: Tried | None = None
    if detections:
        leaks = detections[0].severity >= SEVERITY["memory"]
        state: State = "LEAKS" if leaks else "DETECTABLE"
        led_by: Finding | None = detections[0]
    elif failed or not any(map(remembers, own)):
        state = "NOT TESTED"
        why = (f for f in own if f.claim in NOT_TESTED_CLAIMS and f.audit != OF_REPORT)
        led_by = None if failed else next(why, None)
    else:
        state = "NO LEAK FOUND"
        tests = [one for one in tried if one.outcome == "not shown"]
        led = (f for one in tests if (f := one.finding) and remembers(f))
        led_by = next(led, None) or _least(own)
        near = min(tests, key=lambda one: _p(one.finding), default=None)
        if near and (_p(near.finding) >= ALPHA or near.finding is led_by):
            near = None
    # Over sources, as the states are: over a few seeds an interval may be endless, and
    # next to what was found in these checkpoints it read as if nothing had been.
    wanted = ("matched", "memory", name, "sources")
    rows = [
        row
        for row in report.results
        if (row.audit, row.metric, row.checkpoint, row.over) == wanted
    ]
    pooled = (row for row in rows if (row.of, row.group) == ("", "pooled"))
    sides: tuple[int, ...] = ()
    for one in findings:
        both = one.facts.get("trained"), one.facts.get("held_out")
        counted = [row.clusters for row in both if isinstance(row, Row)]
        if (one.audit, one.checkpoint) == ("matched", name) and len(counted) == 2:
            sides = tuple(counted)
            break
    return Standing(
        name,
        state,
        detections,
        tried,
        exposed=_exposed(rows, findings),
        faults=failed,
        question=question_of(report.guards, name),
        led_by=led_by,
        nearest=near,
        # Where the setup is at fault, there is no valid figure.
        memory=None if failed else next(pooled, None),
        sides=sides,
    )


def _p(finding: Finding | None) -> float:
    return 1.0 if finding is None or finding.p is None else finding.p


def _least(own: Iterable[Finding]) -> Finding | None:
    """The primary test with the smallest p, whatever it claims; a void one last.

    Tests of all identifiers lead those of a part of them, such as a dose, unless the
    part would claim something by itself.
    """
    tests = (f for f in own if f.family == "primary" and f.claim != "not_tested")

    def place(one: Finding) -> tuple[bool, bool, float]:
        claims_alone = SEVERITY[one.alone] >= DETECTED
        is_part = one.group != "pooled" and not claims_alone
        return one.status != "ok", is_part, _p(one)

    return min(tests, key=place, default=None)


MAX_TYPES_NAMED = 3
"""Types that are named as the most exposed."""


def _exposed(memory: Iterable[Row], own: Sequence[Finding]) -> tuple[Row, ...]:
    """Types whose trained identifiers moved most, the way that was detected.

    Likelier than never-trained ones; where none is remembered and it is what was found,
    less likely.
    """
    claims = {one.claim for one in own if one.detected}
    less = any((one.audit, one.claim) == ("matched", "betrays") for one in own)
    less &= not claims & {"memory", "verbatim"}
    way = 1 if less else -1
    rows = []
    for row in memory if claims else ():
        end, null = (row.low, row.null_high) if less else (row.high, row.null_low)
        beyond = end is not None and way * end > way * (null or 0.0)
        if row.grouping[0] == "type" and row.status == "ok" and beyond:
            rows.append(row)
    rows.sort(key=lambda row: row.value or 0.0, reverse=less)
    return tuple(rows[:MAX_TYPES_NAMED])


def _tried(audit: str, own: Sequence[Finding], *, scored: bool, ran: bool) -> Tried:
    """The outcome of one audit; without a detection, the test of smallest p."""
    first = own[0] if own else None
    if first is not None and first.severity >= DETECTED:
        return Tried(audit, "FOUND", first)
    for one in own:
        if one.claim == "confounded":
            return Tried(audit, "confounded", one)
    if (least := _least(own)) is not None:
        return Tried(audit, "not shown" if least.status == "ok" else "void", least)
    return Tried(audit, "void" if scored else "not tested", first, ran=ran)


def attacks(report: Report, found: Sequence[Standing]) -> list[dict[str, Any]]:
    """Every class of attack over all checkpoints, the untried ones too.

    Each has its ``name``, its ``audit``, the ``question`` that it asks and the
    ``frames`` that ask for it; its ``state`` (``tested``, ``void``, ``not tested`` or
    ``not applicable``) and ``why``, an outcome or in words; in words ``on`` how much,
    what it finds without a leak (``null``) and the ``least`` effect that would have
    been detected; ``open``, outcome -> checkpoints that it has no result of.
    """
    by_attack: dict[str, dict[str, Tried]] = {}
    for one in found:
        for tried in one.tried:
            by_attack.setdefault(tried.audit, {})[one.name] = tried
    made = []
    for name, each in by_attack.items():
        by_outcome: dict[Outcome, list[str]] = {}
        for who, tried in each.items():
            by_outcome.setdefault(tried.outcome, []).append(who)
        state, why = _state(report, name, by_outcome)
        open = OUTCOMES[1:4] if state == "tested" else ()
        made.append(
            {
                "name": attack_name(name),
                "audit": name,
                "question": optional(f"audit.{name}.asks"),
                "frames": optional(f"audit.{name}.frameworks"),
                "state": state,
                "why": why,
                "on": _on(report, name) if state in ("tested", "void") else "",
                "null": optional(f"audit.{name}.null"),
                "least": _detectable(report, each, name),
                "open": {k: by_outcome[k] for k in open if k in by_outcome},
            }
        )
    return made


def _on(report: Report, name: str) -> str:
    """On how much an attack was tried, in words; empty: it came to no figure."""
    metric, size = about(name).covers or ("", "n")
    counted = [r for r in report.results if r.audit == name and r.n]
    # Without a base, an audit has no row of its change since the base.
    rows = [row for row in counted if row.metric == metric] or counted
    rows = [row for row in rows if row.checkpoint != BASE] or rows
    count = max((getattr(r, size) for r in rows if r.group == "pooled"), default=0)
    key = f"audit.{name}.covers"
    if not count or not knows(key):
        return str(count or "")
    own = [f for f in report.findings if f.audit == name and f.checkpoint != BASE]
    # The sizes of what is tested come first: a sentence may be of more, and findings
    # on canaries count other things under the same names.
    own.sort(key=lambda one: (one.family != "primary", one.metric != metric))
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
            ends = sorted({min(mdes.values()), max(mdes.values())})
            facts = {"names": [*mdes], "count": len(each)}
            facts["lacking"] = [name for name in found if name not in mdes]
            return render("dossier.least", ends=ends, unit=unit, **facts)
        if never := next((one.why for one in found.values() if one.why), ""):
            return render("dossier.never", why=never)
    return ""


def attack_table(tried: Sequence[Mapping[str, Any]]) -> ReportTable:
    """One line per attack: what it asks, on how much it was tested, what it detects."""
    records = []
    for one in tried:
        told = {"attack": f"{one['name']} ({one['audit']})"}
        told |= {name: one[name] for name in ("question", "on", "null", "least")}
        told["on"] = one["on"] or f"{outcome_name('not tested')}: {one['why']}"
        told["least"] = one["least"] if one["state"] == "tested" else "-"
        shown = {render(f"attacks.{k}"): capitalised(text) for k, text in told.items()}
        records.append(shown)
    return records_table(records, title=render("attacks.title"), key="attacks")


def uncovered(tried: Sequence[Mapping[str, Any]], found: Sequence[Standing]) -> str:
    """What was not tested."""
    return render(
        "states.uncovered",
        attacks=tried,
        untested=[one.name for one in found if one.state == "NOT TESTED"],
        nothing=all(one["state"] != "tested" for one in tried),
        faults=any(one.faults for one in found),
        relearned=relearned(found),
    )
