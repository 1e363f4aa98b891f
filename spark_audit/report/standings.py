"""The state of each checkpoint: what was detected, tried and led by.

Every format of a report begins with it. It follows from the typed findings alone, so
that all formats give the same answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from spark_audit.audits import AUDITS_ON_REQUEST, about, audit_names
from spark_audit.audits.claims import ALPHA
from spark_audit.audits.setup_guards import faults
from spark_audit.audits.strongest_leaks import leak_of
from spark_audit.audits.trained_rows import question_of
from spark_audit.names import (
    BASE,
    RELEARN,
    RELEARNED_BASE,
    CheckpointName,
    entry_of,
    series_of,
)
from spark_audit.report.tables import entries
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
from spark_audit.sentences import knows, optional, render
from spark_audit.sentences.renderer import effect

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

Outcome = Literal["FOUND", "confounded", "void", "not tested", "not shown"]

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

RESULTS: tuple[tuple[Outcome, ...], ...] = (
    ("FOUND", "not shown"),
    ("void", "confounded"),
)
"""Outcomes that tell something, and those of which nothing can be concluded."""


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
    bounded
        Where nothing was found, the test that says how much could still be there.
    """

    audit: str
    outcome: Outcome
    finding: Finding | None = None
    ran: bool = True
    bounded: Finding | None = None

    @property
    def attack(self) -> str:
        """What it tries, in words."""
        return attack_name(self.audit)

    @property
    def seed(self) -> str:
        """The replicate that it found something in; else empty."""
        return _seed(self.finding) if self.outcome == "FOUND" else ""

    @property
    def shown(self) -> str:
        """What it tries, and by how much it found that."""
        found = self._found
        if not found:
            return self.attack
        if self.seed:
            found = render("states.in_seed", found=found, seed=self.seed)
        return render("states.with_remark", text=self.attack, remark=found)

    @property
    def _found(self) -> str:
        """What it found, in words; empty: nothing, or nothing towards a leak."""
        finding = self.finding
        if self.outcome != "FOUND" or finding is None:
            return ""
        if finding.claim == "betrays":
            return render("outcome.betrays")
        if finding.value is None or not finding.unit:
            return ""

        is_change_of_nll = finding.unit == "nats"
        size = -finding.value if is_change_of_nll else _beyond_null(finding)
        if size <= 0:
            return ""
        found = effect(size, finding.unit, brief=True)
        return f"{found} {comparison_in_words(finding)}".rstrip()


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
            has_seed = bool(_seed(self.led_by))
            strongest = self.led_by.sentence if has_seed else self.led_by.lead
            return " ".join(filter(None, [strongest, *self._nearest, faults]))

        # The report says at its head why, once for all.
        key = "nothing" if self.state == "NO LEAK FOUND" else "untested"
        return faults or render(f"states.{key}")

    @property
    def _nearest(self) -> list[str]:
        """Sentences on the test of smallest p; none where no p is below 0.05."""
        if self.nearest is None:
            return []
        parts = [render("states.nearest", tried=self.nearest)]
        finding = self.nearest.finding
        if finding is not None and finding.alone == "betrays":
            parts.append(render("states.nearest_less_likely"))
        return parts

    @property
    def ships(self) -> bool:
        """Whether ``gate`` lets it pass where it is given no rule."""
        stops = any(SEVERITY["membership"] <= one.severity for one in self.detections)
        return not stops and self.state != "NOT TESTED"

    def doubt_of(self, audit: str) -> str:
        """Return why nothing can be concluded from an audit's figures, in words.

        Empty where something can, or where it was not tried.
        """
        for tried in self.tried:
            if tried.audit == audit and tried.outcome in RESULTS[1]:
                return outcome_name(tried.outcome)
        return ""

    @property
    def unclear(self) -> bool:
        """Whether a measured difference may come from the texts alone."""
        doubts = (one.finding for one in self.tried if one.outcome == "confounded")
        return any(
            _can_show_leak(finding.audit)
            for finding in doubts
            if finding is not None and finding.checkpoint != BASE
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
            is_less_likely = (self.exposed[0].value or 0.0) > 0
            key = "page.exposed_less_likely" if is_less_likely else "page.exposed"
            return render(key, rows=self.exposed)
        tested = [one.audit for one in self.tried if one.outcome == "not shown"]
        looked = any(about(audit).attacks_identifiers for audit in tested)
        clean = self.state == "NO LEAK FOUND" and looked
        return render("page.no_type") if clean else ""


def _can_show_leak(audit: str) -> bool:
    """Whether the severest claim of an audit is more than membership."""
    claim = about(audit).strongest_claim
    return claim is not None and SEVERITY[claim] > SEVERITY["membership"]


def _beyond_null(finding: Finding) -> float:
    """Return how far above its value without an effect a figure is."""
    return (finding.value or 0.0) - (finding.null or 0.0)


def comparison_in_words(finding: Finding) -> str:
    """Return what an effect is held against, as ``than by chance``.

    The audit chooses the sentence; empty where it has none.
    """
    compared_with = about(finding.audit).compared_with(finding)
    key = f"audit.{finding.audit}.than"
    if compared_with:
        return optional(f"{key}.{compared_with}")
    return render(key, finding=finding) if knows(key) else ""


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
        if about(name).covers is not None
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


def key_of(state: State) -> str:
    """A state as keys of sentences name it."""
    return state.lower().replace(" ", "_")


def state_name(state: State) -> str:
    """A state in the current language."""
    return render(f"state.{key_of(state)}.name")


def badge(state: State) -> str:
    """A state with its sign."""
    return f"{SHAPES[state]} {state_name(state)}"


def attack_name(audit: str) -> str:
    """What an audit tries, in words."""
    return optional(f"audit.{audit}.attack") or audit


def outcome_name(outcome: Outcome) -> str:
    """The outcome of an attack, in the current language."""
    return render(f"outcome.{outcome.replace(' ', '_')}")


def relearned(found: Sequence[Standing]) -> bool:
    """Whether checkpoints were audited again after a short training on other rows."""
    return any(CheckpointName.parse(one.name).derived == RELEARN for one in found)


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
    memory_rows = _memory_rows(report, name)
    pooled = (row for row in memory_rows if (row.of, row.group) == ("", "pooled"))
    return Standing(
        name,
        state,
        detections,
        tried,
        exposed=_exposed(memory_rows, findings),
        faults=failed,
        question=question_of(report.guards, name),
        led_by=led_by,
        nearest=near,
        # Where the setup is at fault, there is no valid figure.
        memory=None if failed else next(pooled, None),
        sides=_sides(findings, name),
    )


def _memory_rows(report: Report, name: str) -> list[Row]:
    """Return a checkpoint's rows of the metric that the memory plot shows.

    They are over sources, as the states are: over a few seeds an interval may be
    endless, and next to what was found in these checkpoints it read as if nothing had
    been.
    """
    return [
        row
        for row in report.results
        if row.checkpoint == name
        and row.over == "sources"
        and row.metric == about(row.audit).memory_metric
    ]


def _sides(findings: Iterable[Finding], name: str) -> tuple[int, ...]:
    """Return groups of trained and of held-out identifiers of a test of memory."""
    for finding in findings:
        if finding.checkpoint != name or not about(finding.audit).memory_metric:
            continue
        sides = [finding.facts.get("trained"), finding.facts.get("held_out")]
        counts = [side.clusters for side in sides if isinstance(side, Row)]
        if len(counts) == 2:
            return tuple(counts)
    return ()


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
    less = any(
        one.claim == "betrays" and bool(about(one.audit).memory_metric) for one in own
    )
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
    least = _least(own)
    if least is not None and least.status == "ok":
        return Tried(audit, "not shown", least, bounded=_bounded(audit, own))
    if least is not None:
        return Tried(audit, "void", least)
    return Tried(audit, "void" if scored else "not tested", first, ran=ran)


def _bounded(audit: str, own: Sequence[Finding]) -> Finding | None:
    """Return the test that bounds what could still be there; None where none does.

    It is of the figure that counts what was tested, of all identifiers rather than of
    those of a dose, and of several such tests the one that leaves most open.
    """
    covered = about(audit).covers
    bounded = [
        finding
        for finding in own
        if finding.at_most is not None
        and covered is not None
        and finding.row_metric == covered[0]
    ]
    pooled = [finding for finding in bounded if finding.group == "pooled"]
    return max(pooled or bounded, key=_left_open, default=None)


def _left_open(finding: Finding) -> float:
    """Return how much a test leaves open, in the direction of a leak."""
    return 0.0 if finding.at_most is None else leak_of(finding, finding.at_most)
