"""The state of each checkpoint: what was detected, tried and led by.

Every format of a report begins with it. It follows from the typed findings alone, so
that all formats give the same answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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
)
from spark_audit.report.tables import entries
from spark_audit.report.tried import (
    OUTCOMES,
    RESULTS,
    Outcome,
    Tried,
    method_of,
    outcome_name,
    seed_of,
)
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
from spark_audit.sentences import render

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


MAX_TYPES_NAMED = 3
"""Types that are named as the most exposed."""


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
        """The question to ask first, its strongest evidence, and failed guards."""
        question = self.question.detail if self.question else ""
        return " ".join(filter(None, [question, self._evidence]))

    @property
    def _evidence(self) -> str:
        """The sentence of its strongest evidence, and failed guards."""
        faults = " ".join(guard.detail for guard in self.faults)
        if self.led_by is not None:
            has_seed = bool(seed_of(self.led_by))
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
        if self.state == "NOT TESTED":
            return False
        stopped = SEVERITY["membership"]
        return all(finding.severity < stopped for finding in self.detections)

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
        for tried in self.tried:
            finding = tried.finding if tried.outcome == "confounded" else None
            if finding is None or finding.checkpoint == BASE:
                continue
            if _can_show_leak(finding.audit):
                return True
        return False

    @property
    def tally(self) -> dict[Outcome, list[Tried]]:
        """The attacks by outcome, detections first."""
        by_outcome = grouped(self.tried, lambda tried: tried.outcome)
        return {
            outcome: by_outcome[outcome]
            for outcome in OUTCOMES
            if outcome in by_outcome
        }

    @property
    def outcomes(self) -> str:
        """Its attacks by outcome, and the types that it exposes most, in words."""
        parts = []
        for outcome, attacks in self.tally.items():
            shown = ", ".join(tried.shown for tried in attacks)
            parts.append(f"{outcome_name(outcome)}: {shown}")
        if self.exposure:
            parts.append(self.exposure)
        return "; ".join(parts)

    @property
    def exposure(self) -> str:
        """The types that it exposes most, or that none is shown to be; else empty."""
        if self.exposed:
            is_less_likely = (self.exposed[0].value or 0.0) > 0
            key = "page.exposed_less_likely" if is_less_likely else "page.exposed"
            return render(key, rows=self.exposed)

        looked_for_identifiers = any(
            tried.outcome == "not shown" and about(tried.audit).attacks_identifiers
            for tried in self.tried
        )
        is_clean = self.state == "NO LEAK FOUND" and looked_for_identifiers
        return render("page.no_type") if is_clean else ""


def _can_show_leak(audit: str) -> bool:
    """Return whether the severest claim of an audit is more than membership."""
    claim = about(audit).strongest_claim
    return claim is not None and SEVERITY[claim] > SEVERITY["membership"]


def standings(report: Report) -> list[Standing]:
    """Return every checkpoint but the base, the worst first; a base that leaks, too.

    Empty where no audit of the report attacks anything.
    """
    scored = _scored_checkpoints(report)
    attacks = [
        audit
        for audit in audit_names()
        if about(audit).covers is not None
        and (audit in scored or audit not in AUDITS_ON_REQUEST)
    ]
    if scored.keys().isdisjoint(attacks):
        return []

    findings_by_name = grouped(report.findings, lambda one: method_of(one.checkpoint))
    # The reason why nothing was tested of any checkpoint is that of each.
    reasons = [
        finding
        for finding in findings_by_name.pop("", ())
        if finding.claim == "not_tested" and finding.audit in attacks
    ]

    found = []
    for name in dict.fromkeys([*entries(report), *findings_by_name]):
        findings = [*findings_by_name.get(name, ()), *reasons]
        has_detection = any(finding.detected for finding in findings)
        if name == RELEARNED_BASE or (name == BASE and not has_detection):
            continue
        found.append(_standing(report, name, findings, attacks, scored))

    def worst_first(standing: Standing) -> tuple[int, int]:
        severest = standing.detections[0].severity if standing.detections else 0
        return list(SHAPES).index(standing.state), -severest

    return sorted(found, key=worst_first)


def _scored_checkpoints(report: Report) -> dict[str, set[str]]:
    """Return the checkpoints that each audit of a report scored, by the audit."""
    scored: dict[str, set[str]] = {}
    for figure in (*report.results, *report.findings):
        scored.setdefault(figure.audit, set())
    for row in report.results:
        if row.n:
            scored[row.audit].add(method_of(row.checkpoint))
    return scored


def remembers(finding: Finding) -> bool:
    """Return whether a finding rests on a test of memory, whatever that came to."""
    if finding.alone in ("not_tested", "confounded") or finding.checkpoint == BASE:
        return False
    if finding.alone in ("verbatim", "memory"):
        return True
    tested = finding.family == "primary" and finding.p is not None
    return about(finding.audit).memory and (tested or finding.metric == "memory")


def untested(findings: Sequence[Finding], names: Iterable[str]) -> list[Finding]:
    """Return that memory was not tested: of any checkpoint, or of some.

    Of a method with several seeds or stages one test is enough.
    """
    tested = {method_of(one.checkpoint) for one in findings if remembers(one)}
    methods = dict.fromkeys(method_of(name) for name in names)
    audited = [name for name in methods if name not in (BASE, RELEARNED_BASE)]
    untested_names = [name for name in audited if name not in tested]
    if untested_names and len(untested_names) == len(audited):
        untested_names = [""]
    return [
        Finding.not_tested(
            OF_REPORT,
            "report.untested",
            checkpoint=name,
            further=["report.tests_of_memory"],
        )
        for name in untested_names
    ]


def key_of(state: State) -> str:
    """Return a state as keys of sentences name it."""
    return state.lower().replace(" ", "_")


def state_name(state: State) -> str:
    """Return a state in words."""
    return render(f"state.{key_of(state)}.name")


def badge(state: State) -> str:
    """Return a state with its sign."""
    return f"{SHAPES[state]} {state_name(state)}"


def relearned(found: Sequence[Standing]) -> bool:
    """Return whether checkpoints were audited again after relearning on other rows."""
    return any(CheckpointName.parse(one.name).derived == RELEARN for one in found)


def _standing(
    report: Report,
    name: str,
    findings: Sequence[Finding],
    attacks: Collection[str],
    scored: Mapping[str, Collection[str]],
) -> Standing:
    """Return where one checkpoint stands.

    Parameters
    ----------
    findings
        Of the checkpoint, with the reasons why nothing was tested of any.
    attacks
        The audits that attack.
    scored
        The checkpoints that each audit scored.
    """
    of_attacks = [
        finding
        for finding in by_severity(findings)
        if finding.audit in (*attacks, OF_REPORT)
    ]
    tried = tuple(
        _tried(
            audit,
            [finding for finding in of_attacks if finding.audit == audit],
            scored=name in scored.get(audit, ()),
            ran=audit in scored,
        )
        for audit in attacks
    )
    detections = tuple(finding for finding in of_attacks if finding.detected)
    failed_guards = tuple(faults(report.guards, name))

    state = _state_of(of_attacks, detections, failed_guards)
    led_by = _led_by(state, of_attacks, tried, failed_guards)
    memory_rows = _memory_rows(report, name)
    return Standing(
        name=name,
        state=state,
        detections=detections,
        tried=tried,
        exposed=_exposed(memory_rows, findings),
        faults=failed_guards,
        question=question_of(report.guards, name),
        led_by=led_by,
        nearest=_nearest(state, tried, led_by),
        # Where the setup is at fault, there is no valid figure.
        memory=None if failed_guards else _pooled(memory_rows),
        sides=_sides(findings, name),
    )


def _state_of(
    findings: Sequence[Finding],
    detections: Sequence[Finding],
    failed_guards: Sequence[Guard],
) -> State:
    """Return the state of a checkpoint; its findings stand in order of severity."""
    if detections:
        leaks = detections[0].severity >= SEVERITY["memory"]
        return "LEAKS" if leaks else "DETECTABLE"
    is_tested = any(remembers(finding) for finding in findings)
    return "NO LEAK FOUND" if is_tested and not failed_guards else "NOT TESTED"


def _led_by(
    state: State,
    findings: Sequence[Finding],
    tried: Sequence[Tried],
    failed_guards: Sequence[Guard],
) -> Finding | None:
    """Return the finding that a checkpoint is introduced by.

    That is its severest detection; where no leak was found, its first test of memory;
    where memory was not tested, the reason, if that is no failed guard.
    """
    if state in ("LEAKS", "DETECTABLE"):
        return next(finding for finding in findings if finding.detected)

    if state == "NOT TESTED":
        if failed_guards:
            return None
        for finding in findings:
            if finding.claim in NOT_TESTED_CLAIMS and finding.audit != OF_REPORT:
                return finding
        return None

    for attack in tried:
        tested = attack.finding if attack.outcome == "not shown" else None
        if tested is not None and remembers(tested):
            return tested
    return _least(findings)


def _nearest(
    state: State, tried: Sequence[Tried], led_by: Finding | None
) -> Tried | None:
    """Return the attack that came closest to a claim where no leak was found.

    None where its p is not below 0.05, and where it leads already.
    """
    if state != "NO LEAK FOUND":
        return None
    tests = [attack for attack in tried if attack.outcome == "not shown"]
    nearest = min(tests, key=lambda attack: _p(attack.finding), default=None)
    if nearest is None or nearest.finding is led_by:
        return None
    return nearest if _p(nearest.finding) < ALPHA else None


def _pooled(rows: Sequence[Row]) -> Row | None:
    """Return the row of all identifiers; None where there is none."""
    for row in rows:
        if (row.of, row.group) == ("", "pooled"):
            return row
    return None


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
    """Return the p of a test; 1 where there is none."""
    return 1.0 if finding is None or finding.p is None else finding.p


def _least(findings: Iterable[Finding]) -> Finding | None:
    """Return the primary test with the smallest p, whatever it claims; a void one last.

    Tests of all identifiers lead those of a part of them, such as a dose, unless the
    part would claim something by itself.
    """
    tests = [
        finding
        for finding in findings
        if finding.family == "primary" and finding.claim != "not_tested"
    ]

    def order(test: Finding) -> tuple[bool, bool, float]:
        claims_alone = SEVERITY[test.alone] >= DETECTED
        is_part = test.group != "pooled" and not claims_alone
        return test.status != "ok", is_part, _p(test)

    return min(tests, key=order, default=None)


def _exposed(
    memory_rows: Iterable[Row], findings: Sequence[Finding]
) -> tuple[Row, ...]:
    """Return the types whose trained identifiers moved most, the way that was detected.

    They became likelier than never-trained ones; or less likely, where none is
    remembered and that is what was found.
    """
    claims = {finding.claim for finding in findings if finding.detected}
    if not claims:
        return ()

    became_less_likely = any(
        finding.claim == "betrays" and bool(about(finding.audit).memory_metric)
        for finding in findings
    )
    if claims & {"memory", "verbatim"}:
        became_less_likely = False

    exposed = []
    for row in memory_rows:
        is_type = row.grouping[0] == "type" and row.status == "ok"
        if is_type and _is_beyond_null(row, above=became_less_likely):
            exposed.append(row)
    exposed.sort(key=lambda row: row.value or 0.0, reverse=became_less_likely)
    return tuple(exposed[:MAX_TYPES_NAMED])


def _is_beyond_null(row: Row, *, above: bool) -> bool:
    """Return whether the interval of a row lies above, or below, the null's band."""
    if above:
        return row.low is not None and row.low > (row.null_high or 0.0)
    return row.high is not None and row.high < (row.null_low or 0.0)


def _tried(
    audit: str, findings: Sequence[Finding], *, scored: bool, ran: bool
) -> Tried:
    """Return the outcome of one audit; without a detection, the test of smallest p."""
    first = findings[0] if findings else None
    if first is not None and first.severity >= DETECTED:
        return Tried(audit, "FOUND", first)
    for finding in findings:
        if finding.claim == "confounded":
            return Tried(audit, "confounded", finding)

    least = _least(findings)
    if least is not None and least.status == "ok":
        return Tried(audit, "not shown", least, bounded=_bounded(audit, findings))
    if least is not None:
        return Tried(audit, "void", least)
    return Tried(audit, "void" if scored else "not tested", first, ran=ran)


def _bounded(audit: str, findings: Sequence[Finding]) -> Finding | None:
    """Return the test that bounds what could still be there; None where none does.

    It is of the figure that counts what was tested, of all identifiers rather than of
    those of a dose, and of several such tests the one that leaves most open.
    """
    covered = about(audit).covers
    bounded = [
        finding
        for finding in findings
        if finding.at_most is not None
        and covered is not None
        and finding.row_metric == covered[0]
    ]
    pooled = [finding for finding in bounded if finding.group == "pooled"]
    return max(pooled or bounded, key=_left_open, default=None)


def _left_open(finding: Finding) -> float:
    """Return how much a test leaves open, in the direction of a leak."""
    return 0.0 if finding.at_most is None else leak_of(finding, finding.at_most)
