"""The state of each checkpoint, with its detections, attacks and main finding.

Every format of a report begins with it. It follows from the typed findings alone, so
that all formats give the same answer.

A further state is an item of :data:`State` and :data:`SHAPES`, a line of
:func:`_state_of` and :func:`_led_by`, and has the sentences ``state.KEY``,
``state.KEY.name``, ``next.KEY`` and ``advice.KEY`` (:func:`key_of`). What one attack
came to on one checkpoint stands in ``tried.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spark_audit.audits import (
    AUDITS,
    AUDITS_ON_REQUEST,
    Membership,
    about,
    audit_names,
)
from spark_audit.audits.claims import ALPHA
from spark_audit.audits.setup_guards import faults
from spark_audit.audits.trained_rows import question_of
from spark_audit.cells_html import facts_html, short_repr
from spark_audit.names import BASE, RELEARNED_BASE
from spark_audit.report.memory_rows import (
    exposed_types,
    rows_of_memory,
    sides_of_memory_test,
)
from spark_audit.report.memory_tests import NOT_TESTED_CLAIMS, is_memory_test
from spark_audit.report.tables import entries
from spark_audit.report.tried import (
    INCONCLUSIVE,
    OUTCOMES,
    Outcome,
    Tried,
    attack_outcome,
    method_of,
    outcome_name,
    p_of,
    seed_of,
    smallest_p_test,
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
from spark_audit.results.findings import SEVERITY
from spark_audit.sentences import render

State = Literal["LEAKS", "DETECTABLE", "NO LEAK FOUND", "NOT TESTED"]

SHAPES: dict[State, str] = {
    "LEAKS": "▲",
    "DETECTABLE": "◆",
    "NO LEAK FOUND": "○",
    "NOT TESTED": "?",
}
"""The states, the worst first, and a sign of each: colour is never the only sign."""

TEXT_ON_CANARIES = ("extract.text.canaries", "extract.text.canaries_back")
"""Sentences of findings on canaries that an endpoint was asked for."""


@dataclass(frozen=True, repr=False)
class CheckpointState:
    """The state of one checkpoint or method, and the evidence for it.

    Attributes
    ----------
    name
        Name of the checkpoint or the method.
    state
        From :func:`_state_of`, which has a table of them.
    detections
        All detections, the strongest evidence first.
    tried
        Every attack in the order of audits, including untried ones.
    exposed
        If something was detected, the figures of the types of identifiers that moved
        most. They are exploratory and show where to look first.
    faults
        Setup guards that failed for the checkpoint; the reason names them.
    question
        The guard which found that its trained rows fit no better than held-out ones:
        the reason begins with the question whether list and template are right.
    led_by
        The strongest evidence; where nothing is claimed, the first test of memory.
    nearest
        Without a claim, the test with the smallest p, if that is below 0.05.
    memory
        How the NLL of trained identifiers changed relative to comparable ones that
        were never trained on, nats per token: below 0 is more likely.
    sides
        Numbers of groups of trained and of held-out identifiers; empty: not known.
    is_of_text
        Whether it is an endpoint that gives only text.
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

    is_of_text: bool = False

    def __repr__(self) -> str:
        return short_repr(self, self.name, self.state, detections=len(self.detections))

    def _repr_html_(self) -> str:
        """Return it as a notebook shows it, without figures."""
        facts: dict[str, object] = {"state": f"{SHAPES[self.state]} {self.state}"}
        for outcome, attacks in self.tally.items():
            facts[outcome_name(outcome)] = ", ".join(tried.attack for tried in attacks)
        return facts_html(f"State of {self.name}", facts, note="Sentences: reason.")

    @property
    def reason(self) -> str:
        """The question to ask first, its strongest evidence, and failed guards."""
        if self.question is None:
            return self._evidence
        return f"{self.question.detail} {self._evidence}".strip()

    @property
    def _evidence(self) -> str:
        """The sentence of its strongest evidence, and failed guards."""
        guard_sentences = [guard.detail for guard in self.faults]
        if self.led_by is None:
            # The head of the report says why, once for all checkpoints.
            key = "nothing" if self.state == "NO LEAK FOUND" else "untested"
            return " ".join(guard_sentences) or render(f"states.{key}")

        # The sentence names the seed; the name of the method stands in front already.
        strongest = self.led_by.lead
        if seed_of(self.led_by):
            strongest = self.led_by.sentence
        sentences = [strongest, *self._nearest_sentences, *guard_sentences]
        return " ".join(sentence for sentence in sentences if sentence)

    @property
    def _nearest_sentences(self) -> list[str]:
        """Sentences on the test of smallest p; none where no p is below 0.05."""
        if self.nearest is None:
            return []

        sentences = [render("states.nearest", tried=self.nearest)]
        finding = self.nearest.finding
        if finding is not None and finding.alone == "betrays":
            sentences.append(render("states.nearest_less_likely"))
        return sentences

    @property
    def is_judged(self) -> bool:
        """Return whether ``gate`` without rules judges it: it leaves the base out."""
        return self.name != BASE

    @property
    def ships(self) -> bool:
        """Return whether ``gate`` without rules lets it pass."""
        if self.state == "NOT TESTED":
            return False

        # Less likely identifiers are reported, but stop nothing.
        stopping = SEVERITY["membership"]
        return not any(finding.severity >= stopping for finding in self.detections)

    def doubt_of(self, audit: str) -> str:
        """Return why nothing can be concluded from an audit's figures, in words.

        Empty: something can be concluded, or the audit was not tried.
        """
        for tried in self.tried:
            if tried.audit == audit and tried.outcome in INCONCLUSIVE:
                return outcome_name(tried.outcome)
        return ""

    @property
    def unclear(self) -> bool:
        """Return whether a measured difference may come from the texts alone."""
        for tried in self.tried:
            if tried.outcome != "confounded" or tried.finding is None:
                continue
            # The base was trained on none of the texts: it can have learned nothing.
            is_of_base = tried.finding.checkpoint == BASE
            if not is_of_base and _can_show_leak(tried.finding.audit):
                return True
        return False

    @property
    def tally(self) -> dict[Outcome, list[Tried]]:
        """The attacks by outcome, detections first."""
        here = [tried for tried in self.tried if not tried.is_under_extraction]
        by_outcome = grouped(here, lambda tried: tried.outcome)
        return {
            outcome: by_outcome[outcome]
            for outcome in OUTCOMES
            if outcome in by_outcome
        }

    @property
    def outcomes(self) -> str:
        """Its attacks by outcome, and the types that it exposes most, in words."""
        texts = []
        for outcome, attacks in self.tally.items():
            attack_texts = ", ".join(tried.shown for tried in attacks)
            texts.append(f"{outcome_name(outcome)}: {attack_texts}")
        if self.exposure:
            texts.append(self.exposure)
        return "; ".join(texts)

    @property
    def exposure(self) -> str:
        """The types that it exposes most, or that none is shown to be; else empty."""
        if self.exposed:
            is_less_likely = (self.exposed[0].value or 0.0) > 0
            key = "page.exposed_less_likely" if is_less_likely else "page.exposed"
            return render(key, rows=self.exposed)

        # Only an attack on identifiers can show that no type is exposed.
        looked_for_identifiers = False
        can_name_persons = False
        for tried in self.tried:
            if tried.outcome == "not shown" and about(tried.audit).attacks_identifiers:
                looked_for_identifiers = True
            if tried.audit == Membership.name and tried.ran:
                can_name_persons = True

        if self.state != "NO LEAK FOUND" or not looked_for_identifiers:
            return ""
        return render("page.no_type_persons" if can_name_persons else "page.no_type")


def _can_show_leak(audit: str) -> bool:
    """Return whether the severest claim of an audit is more than membership."""
    # An audit that only describes has no claim.
    claim = about(audit).strongest_claim
    return claim is not None and SEVERITY[claim] > SEVERITY["membership"]


def checkpoint_states(report: Report) -> list[CheckpointState]:
    """Return the state of every checkpoint, the worst first.

    The base is left out unless it leaks, and so are checkpoints that others are only
    compared with. The list is empty if no audit of the report
    attacks anything.
    """
    scored = _scored_checkpoints(report)  # audit -> checkpoints
    attacks = _attacks(scored)
    if scored.keys().isdisjoint(attacks):
        return []

    findings_by_name = grouped(
        report.findings, lambda finding: method_of(finding.checkpoint)
    )
    # A finding without a checkpoint, such as "not tested", holds for all of them.
    reasons_for_all = []
    for finding in findings_by_name.pop("", ()):
        if finding.claim == "not_tested" and finding.audit in attacks:
            reasons_for_all.append(finding)

    memory_rows_by_name = grouped(rows_of_memory(report), lambda row: row.checkpoint)
    endpoints = {facts.name for facts in report.checkpoints if facts.is_endpoint}
    # Findings may be on checkpoints without a figure.
    all_checkpoint_states = []
    for name in dict.fromkeys([*entries(report), *findings_by_name]):
        findings = [*findings_by_name.get(name, ()), *reasons_for_all]
        has_detection = any(finding.detected for finding in findings)
        is_clean_base = name == BASE and not has_detection
        if is_reference(findings_by_name.get(name, ())):
            continue
        if name != RELEARNED_BASE and not is_clean_base:
            memory_rows = memory_rows_by_name.get(name, [])
            checkpoint_state = _checkpoint_state(
                name,
                findings,
                memory_rows,
                report.guards,
                attacks,
                scored,
                is_of_text=name in endpoints,
            )
            all_checkpoint_states.append(checkpoint_state)
    return sorted(all_checkpoint_states, key=_badness)


def is_reference(findings: Sequence[Finding]) -> bool:
    """Return whether others are compared with a checkpoint: it is not under test.

    One audit that takes it as such is enough: what others find on it is no reason to
    stop it, since nobody means to release it.

    Parameters
    ----------
    findings
        All findings on the checkpoint.
    """
    return any(about(finding.audit).is_reference(finding) for finding in findings)


def _attacks(scored: Mapping[str, Collection[str]]) -> list[str]:
    """Return the audits that attack, in order.

    An audit that runs only on request, or that is not of this package, is left out if
    the report has no figure of it. What a process knows changes no older report. In a
    report on files of text, attacks on models are left out.
    """
    of_files = [about(audit).of_files for audit in scored if audit != OF_REPORT]
    has_only_files = bool(of_files) and all(of_files)
    attacks = []
    for audit in audit_names():
        always_runs = audit in AUDITS and audit not in AUDITS_ON_REQUEST
        is_expected = audit in scored or always_runs
        is_attack = about(audit).covers is not None
        is_possible = about(audit).of_files or not has_only_files
        if is_attack and is_expected and is_possible:
            attacks.append(audit)
    return attacks


def _badness(checkpoint_state: CheckpointState) -> tuple[int, int]:
    """Return the key by which states are sorted: the worst has the lowest."""
    severest = (
        checkpoint_state.detections[0].severity if checkpoint_state.detections else 0
    )
    return list(SHAPES).index(checkpoint_state.state), -severest


def _scored_checkpoints(report: Report) -> dict[str, set[str]]:
    """Return the checkpoints that each audit of a report scored, by the audit.

    An audit of which the report has findings alone scored none.
    """
    scored: dict[str, set[str]] = {}
    for figure in (*report.results, *report.findings):
        scored.setdefault(figure.audit, set())

    for row in report.results:
        if row.n:
            scored[row.audit].add(method_of(row.checkpoint))
    return scored


def key_of(state: State) -> str:
    """Return a state as keys of sentences name it."""
    return state.lower().replace(" ", "_")


def state_name(state: State) -> str:
    """Return a state in words."""
    return render(f"state.{key_of(state)}.name")


def badge(state: State) -> str:
    """Return a state with its sign."""
    return f"{SHAPES[state]} {state_name(state)}"


def _checkpoint_state(
    name: str,
    findings: Sequence[Finding],
    memory_rows: Sequence[Row],
    guards: Sequence[Guard],
    attacks: Collection[str],
    scored: Mapping[str, Collection[str]],
    *,
    is_of_text: bool,
) -> CheckpointState:
    """Return the state of one checkpoint.

    Parameters
    ----------
    findings, memory_rows
        Those of the checkpoint, with the reasons why nothing was tested on any.
    attacks
        The audits that attack.
    scored
        The checkpoints that each audit scored.
    is_of_text
        Whether it is an endpoint that gives only text.
    """
    # Findings of other audits, such as utility, decide no state.
    of_attacks = []
    for finding in by_severity(findings):
        if finding.audit in attacks or finding.audit == OF_REPORT:
            of_attacks.append(finding)

    tried = []
    for audit in attacks:
        outcome = attack_outcome(
            audit,
            [finding for finding in of_attacks if finding.audit == audit],
            scored=name in scored.get(audit, ()),
            ran=audit in scored,
        )
        tried.append(_of_text(outcome, of_attacks) if is_of_text else outcome)
    detections = tuple(finding for finding in of_attacks if finding.detected)
    failed_guards = tuple(faults(guards, name))

    state = _state_of(of_attacks, detections, failed_guards)
    led_by = _led_by(state, of_attacks, tried, failed_guards)
    return CheckpointState(
        name=name,
        state=state,
        detections=detections,
        tried=tuple(tried),
        exposed=exposed_types(memory_rows, findings),
        faults=failed_guards,
        question=question_of(guards, name),
        led_by=led_by,
        nearest=_nearest(state, tried, led_by),
        # A faulty setup leaves no valid figure.
        memory=None if failed_guards else _pooled(memory_rows),
        sides=sides_of_memory_test(findings, name),
        is_of_text=is_of_text,
    )


def _of_text(tried: Tried, findings: Iterable[Finding]) -> Tried:
    """Return an attack as one on an endpoint that gives only text.

    The extraction audit asks it for canaries, too: text shows only whether they come
    out, as it does of identifiers.

    Parameters
    ----------
    findings
        On the endpoint.
    """
    is_asked_for_canaries = any(
        finding.says in TEXT_ON_CANARIES for finding in findings
    )
    return replace(
        tried,
        is_of_text=True,
        is_under_extraction=is_asked_for_canaries and about(tried.audit).needs_canaries,
    )


def _state_of(
    findings: Sequence[Finding],
    detections: Sequence[Finding],
    failed_guards: Sequence[Guard],
) -> State:
    """Return the state of a checkpoint.

    =================  =========================================================
    State              Condition; the first that is met decides
    =================  =========================================================
    ``LEAKS``          The severest detection is memory, or worse.
    ``DETECTABLE``     There is a detection.
    ``NO LEAK FOUND``  Memory was tested, and no guard of its setup failed.
    ``NOT TESTED``     Else.
    =================  =========================================================

    Parameters
    ----------
    findings, detections
        The severest first.
    """
    if detections and detections[0].severity >= SEVERITY["memory"]:
        return "LEAKS"
    if detections:
        return "DETECTABLE"

    is_tested = any(is_memory_test(finding) for finding in findings)
    if is_tested and not failed_guards:
        return "NO LEAK FOUND"
    return "NOT TESTED"


def _led_by(
    state: State,
    findings: Sequence[Finding],
    tried: Sequence[Tried],
    failed_guards: Sequence[Guard],
) -> Finding | None:
    """Return the finding that a checkpoint is introduced by.

    ===========================  ===============================================
    State                        Finding
    ===========================  ===============================================
    ``LEAKS``, ``DETECTABLE``    The severest detection.
    ``NOT TESTED``               The reason; None where that is a failed guard.
    ``NO LEAK FOUND``            The first test of memory that showed nothing,
                                 else the test of smallest p.
    ===========================  ===============================================

    Parameters
    ----------
    findings
        The severest first.
    """
    if state in ("LEAKS", "DETECTABLE"):
        return next(finding for finding in findings if finding.detected)

    if state == "NOT TESTED":
        if failed_guards:
            # The reason consists of the sentences of these guards.
            return None
        for finding in findings:
            # The head of the report says what is true of all checkpoints.
            if finding.claim in NOT_TESTED_CLAIMS and finding.audit != OF_REPORT:
                return finding
        return None

    for attack in tried:
        test = attack.finding
        if attack.outcome == "not shown" and test is not None and is_memory_test(test):
            return test
    return smallest_p_test(findings)


def _nearest(
    state: State, tried: Sequence[Tried], led_by: Finding | None
) -> Tried | None:
    """Return the attack that came closest to a claim where no leak was found.

    None: its p is not below 0.05, or it is already the leading finding.
    """
    if state != "NO LEAK FOUND":
        return None

    tests = [attack for attack in tried if attack.outcome == "not shown"]
    nearest = min(tests, key=lambda attack: p_of(attack.finding), default=None)
    if nearest is None or nearest.finding is led_by:
        return None
    return nearest if p_of(nearest.finding) < ALPHA else None


def _pooled(rows: Sequence[Row]) -> Row | None:
    """Return the row of all identifiers; None where there is none."""
    for row in rows:
        if (row.variant, row.group) == ("", "pooled"):
            return row
    return None
