"""What each rule of the gate comes to on each checkpoint of a report.

A figure that was not measured trips a rule as well, and so does a checkpoint whose
memory was not tested where a claim is asked for, because a gate must not pass for want
of evidence. Whom a rule leaves out is said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, TypeAlias

from spark_audit.audits import about
from spark_audit.audits.setup_guards import faults
from spark_audit.audits.trained_rows import training_of
from spark_audit.errors import InputError, visible
from spark_audit.names import (
    BASE,
    RELEARN,
    CheckpointName,
    check_known,
    entry_of,
    series_of,
)
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.gate.rules import OPERATORS, Rule
from spark_audit.report.standings import untested
from spark_audit.results import Contrast, Report, Row, grouped, number
from spark_audit.results import Finding as Claimed
from spark_audit.results.rows import WITHHELD
from spark_audit.sentences import render

NO_CHECKPOINT = "-"
"""Stands for the checkpoint where a rule has none to judge."""

State: TypeAlias = Literal["ok", "tripped", "missing", "left_out"]


@dataclass(frozen=True)
class RuleOutcome:
    """The outcome of a rule on one checkpoint, or why the rule leaves it out."""

    rule: str
    checkpoint: str
    state: State
    detail: str

    @property
    def whom(self) -> str:
        """The checkpoint, as logs show it."""
        return (
            "no checkpoint"
            if self.checkpoint == NO_CHECKPOINT
            else visible(self.checkpoint)
        )


Pairs: TypeAlias = Sequence[tuple[Row, Row]]
"""Rows with exact figures, which decide, and as shared: many read the logs."""


def check(
    report: Report,
    rules: Sequence[Rule],
    *,
    changed: Report | None = None,
    same: Collection[str] = (),
    allow_missing: bool = False,
) -> list[RuleOutcome]:
    """Return the outcome of each rule on every checkpoint, base and baseline too.

    A checkpoint is left out where the rule says so, or where there can be no figure of
    it. Only the pooled figure and its decision interval count; ``p`` is the adjusted
    one where there is one. Exact figures decide, those of shared files are shown.

    Parameters
    ----------
    changed, same
        The report with contrasts to an earlier one, and checkpoints that have not
        changed since, of :func:`spark_audit.pipeline.compare.changed_since`.

    Raises
    ------
    InputError
        If a rule names a checkpoint that the report has not, or is of a change and
        there is no earlier report.
    """
    reports = {False: report}
    if changed is not None:
        reports[True] = changed
    pairs = {
        is_change: (exact, disclosed(exact)) for is_change, exact in reports.items()
    }

    outcomes: list[RuleOutcome] = []
    for rule in dict.fromkeys(rules):
        if rule.change not in pairs:
            where = f"--fail-if {rule.text!r}"
            raise InputError("is of a change", where=where, fix="add --against REPORT")

        verdicts = list(_verdicts(*pairs[rule.change], rule, same))
        if all(state == "left_out" for _, state, _ in verdicts):
            verdicts.append((NO_CHECKPOINT, "missing", render("gate.nobody")))
        for name, state, detail in verdicts:
            if state == "missing" and not allow_missing:
                state = "tripped"
            outcomes.append(RuleOutcome(rule.text, name, state, detail))
    return outcomes


def _verdicts(
    report: Report, shared: Report, rule: Rule, same: Collection[str]
) -> Iterator[tuple[str, State, str]]:
    """Yield the name of each checkpoint, the outcome of the rule on it, and why."""
    names = _names(report)
    rows = _rows(report, rule)
    pairs_by_name = grouped(
        zip(rows, _rows(shared, rule), strict=True), lambda pair: pair[0].checkpoint
    )
    chosen = _chosen(rule, names)
    for name in names:
        if name not in chosen:
            yield name, "left_out", render("gate.rule")
            continue
        if reason := _impossible(report, rule, rows, name):
            yield name, "left_out", reason
            continue
        if rule.change and name in same:
            yield name, "ok", render("gate.same")
            continue

        state, detail = _judge(report, shared, rule, name, pairs_by_name.get(name, []))
        failed = faults(shared.guards, name)
        if failed:
            why = "; ".join(f"{guard.name}: {guard.detail}" for guard in failed)
            if state == "tripped":
                detail = f"{detail}; {why}"
            else:
                state, detail = "missing", why
        yield name, state, detail


def _judge(
    report: Report, shared: Report, rule: Rule, name: str, pairs: Pairs
) -> tuple[State, str]:
    """Return the outcome of a rule on a checkpoint, whatever guards say, and why."""
    if rule.claim:
        return _claimed(report, rule, name)
    if rule.guard:
        return _guarded(report, shared, rule, name)
    if rule.change:
        return _moved(rule, pairs)
    return _measured(report, rule, pairs)


def judged(found: Sequence[RuleOutcome]) -> list[str]:
    """Return a line per rule: how many checkpoints it judged, and which it left out."""
    lines = []
    for rule, outcomes in grouped(found, attrgetter("rule")).items():
        of_checkpoints = [
            outcome for outcome in outcomes if outcome.checkpoint != NO_CHECKPOINT
        ]
        left_out = [one for one in of_checkpoints if one.state == "left_out"]
        n_judged = len(of_checkpoints) - len(left_out)
        parts = [
            render("gate.judged", rule=rule, judged=n_judged, all=len(of_checkpoints))
        ]
        for reason, skipped in grouped(left_out, attrgetter("detail")).items():
            names = [one.checkpoint for one in skipped]
            parts.append(render("gate.left_out", names=names, reason=reason))
        lines.append("; ".join(parts))
    return lines


def _chosen(rule: Rule, names: Sequence[str]) -> set[str]:
    """Return the checkpoints of a rule; a method stands for its seeds."""
    texts = [rule.checkpoint or rule.but or ""]
    if rule.but is not None and rule.but not in names:
        # A name may hold a comma itself.
        texts = [text.strip() for text in rule.but.split(",")]
    for text in filter(None, texts):
        check_known(text, names, where=f"--fail-if {rule.text!r}")
    if rule.checkpoint is not None:
        return {rule.checkpoint}
    return {name for name in names if not {name, entry_of(name)} & {*texts}}


def _impossible(report: Report, rule: Rule, rows: Sequence[Row], name: str) -> str:
    """Return why a checkpoint can have no such figure; empty where it can."""
    if rule.change and name == BASE:
        return render("gate.baseline")
    if rule.checkpoint is not None:
        return ""
    if rule.guard and CheckpointName.parse(name).derived == RELEARN:
        return render("gate.relearned")
    if rule.claim or rule.guard:
        return render("gate.base") if name == BASE else ""
    here = [row for row in rows if row.checkpoint == name]
    if here and (name != BASE or any(row.value is not None for row in here)):
        return ""
    if contrasts := [row for row in rows if isinstance(row, Contrast)]:
        baseline = report.settings.get("baseline")
        others = {baseline} if baseline else {row.baseline for row in contrasts}
        if {name, entry_of(name)} & {BASE, *others}:
            return render("gate.baseline")
    if name == BASE and any(row.value is not None for row in rows):
        # Such as: it is the reference itself, of which there is no change.
        if not (figures := _of_metric(report, rule, BASE)):
            return render("gate.untrained")
        if all(row.value is None for row in figures):
            return figures[0].note
    rounded = {one.name for one in report.checkpoints if one.quantised_from is not None}
    if name in rounded and about(rule.audit).of_series:
        return render("gate.stages")
    return ""


def _names(report: Report) -> list[str]:
    """Return what a rule can name: checkpoints, and methods with several seeds.

    A series that only its stages were scored of is known from its rows; a stage speaks
    through its series.
    """
    said = dict.fromkeys(r.checkpoint for r in (*report.results, *report.contrasts))
    names = dict.fromkeys([*(one.name for one in report.checkpoints), *said])
    stages = {k for k in names if series_of(k) != k and series_of(k) in said}
    return [name for name in names if name in said or name not in stages]


def _rows(report: Report, rule: Rule) -> list[Row]:
    """Return the rows of the rule's figure; p values stand with contrasts only."""
    rows = [
        row
        for row in (*report.results, *report.contrasts)
        if (row.audit, row.metric, row.of) == (rule.audit, rule.metric, rule.of)
        and rule.holds(row.group)
    ]
    contrasts = [row for row in rows if isinstance(row, Contrast)]
    without_baseline = [row for row in rows if not isinstance(row, Contrast)]
    if rule.field == "p" or rule.change or not without_baseline:
        return [*contrasts]
    return without_baseline


def _of_metric(report: Report, rule: Rule, name: str) -> list[Row]:
    """Return the rows of a checkpoint that the rule's metric has, in any group."""
    wanted = (rule.audit, rule.metric, rule.of, name)
    return [
        row
        for row in report.results
        if (row.audit, row.metric, row.of, row.checkpoint) == wanted
    ]


def _measured(report: Report, rule: Rule, pairs: Pairs) -> tuple[State, str]:
    """Return whether a figure trips the rule, and the figures as shared."""
    field = "best_p" if rule.field == "p" else rule.field
    values: list[float] = []
    numbers: list[str] = []
    for exact, shown in pairs:
        value = getattr(exact, field)
        if exact.status == "ok" and value is not None:
            values.append(value)
            numbers.append(_part(shown) + _number(shown, field))

    detail = f"{rule.field} {', '.join(numbers)}"
    if rule.field != "p" and about(rule.audit).metric(rule.metric).learned < 0:
        detail += f" ({render('gate.lower')})"
    # What was measured trips, whatever is missing beside it.
    if any(OPERATORS[rule.operator](value, rule.bound) for value in values):
        return "tripped", detail
    if report.status == "partial":
        return "missing", render("gate.partial")
    if not pairs:
        return "missing", _why_unmeasured(report, rule)

    for exact, _ in pairs:
        if exact.status != "ok":
            reasons = [exact.status.replace("_", " "), exact.note]
            return "missing", ": ".join(filter(None, reasons))
    return ("ok", detail) if values else ("missing", f"has no {rule.field}")


def _why_unmeasured(report: Report, rule: Rule) -> str:
    """Return that a figure was not measured, and if so that its audit was not run."""
    audits = dict.fromkeys(row.audit for row in report.results)
    if rule.audit in audits:
        return render("gate.unmeasured")
    return render("gate.unmeasured_audit", audit=rule.audit, audits=audits)


def _moved(rule: Rule, pairs: Pairs) -> tuple[State, str]:
    """Return whether a figure moved as far as the rule forbids, and the figures.

    ``rose`` is towards more remembering where the metric has such a direction. A change
    as large as the bound is seen in 80 of 100 cases where the smallest effect that the
    contrast can detect is no larger.
    """
    details_by_state: dict[State, list[str]] = {"tripped": [], "missing": [], "ok": []}
    for exact, shown in pairs:
        state, detail = _moved_part(rule, exact, shown)
        details_by_state[state].append(_part(exact) + detail)

    for state, details in details_by_state.items():
        if details:
            return state, ", ".join(details)
    return "missing", render("gate.unchanged")


def _moved_part(rule: Rule, exact: Row, shown: Row) -> tuple[State, str]:
    """Return whether the figure of one part moved as far, and by how much."""
    if exact.value is None or exact.ends is None:
        return "missing", f"not estimable: {exact.note}"

    towards_memory = about(rule.audit).metric(rule.metric).learned or 1
    sign = towards_memory if rule.operator == "rose" else -towards_memory
    low, high = sorted(sign * end for end in exact.ends)
    is_as_large = high >= rule.bound
    if is_as_large and low <= 0 and (exact.mde is None or exact.mde > rule.bound):
        if exact.mde is None:
            return "missing", render("gate.power")
        return "missing", render("gate.power_with_least", least=number(exact.mde))

    detail = shown.note
    if shown.value is not None:
        way = "rose" if towards_memory * shown.value >= 0 else "fell"
        detail = f"{way} by {number(abs(shown.value), 4)}"
    return ("tripped" if is_as_large and low > 0 else "ok"), detail


def _part(row: Row) -> str:
    """Return the part of the rows that a figure is of, with a space behind it."""
    return "" if row.group == "pooled" else f"{row.grouping[1]} "


def _number(shown: Row, field: str) -> str:
    """Return a figure of a shared row, or that it is withheld."""
    return WITHHELD if shown.withheld else number(getattr(shown, field), 4)


def _claimed(report: Report, rule: Rule, name: str) -> tuple[State, str]:
    """Return whether a claim on a checkpoint trips; without a test it is missing."""
    findings = [one for one in report.findings if one.checkpoint == name]
    violating = [finding for finding in findings if _violates(rule, finding)]
    if violating:
        return "tripped", _claims(violating)
    if report.status == "partial":
        return "missing", render("gate.partial")
    if untested(report.findings, [name]):
        return "missing", render("gate.untested")

    detected = [finding for finding in findings if finding.detected]
    if not detected:
        return "ok", render("gate.nothing")

    least = min(detected, key=lambda finding: finding.severity).claim
    return "ok", render("gate.passes", shown=_claims(detected), least=least)


def _violates(rule: Rule, finding: Claimed) -> bool:
    """Return whether a finding makes a claim that a rule forbids.

    Claims are compared by severity; one of several of the same severity is meant by
    its name.
    """
    if rule.operator == "==":
        return finding.claim == rule.claim
    if rule.operator == "!=":
        return finding.claim != rule.claim
    return OPERATORS[rule.operator](finding.severity, rule.bound)


def _guarded(
    report: Report, shared: Report, rule: Rule, name: str
) -> tuple[State, str]:
    """Return whether a guard holds for a checkpoint; without a test it is missing.

    Whatever gives trained rows away shows that these are the rows.
    """
    training = training_of(name)
    guards = [
        guard
        for guard in shared.guards
        if guard.name == rule.guard and training_of(guard.checkpoint) == training
    ]
    for guard in guards:
        if not guard.passed:
            return "tripped", guard.detail
    if guards:
        return "ok", guards[0].detail

    detected = [
        finding
        for finding in report.findings
        if finding.detected and training_of(finding.checkpoint) == training
    ]
    if detected:
        return "ok", render("gate.detected", shown=_claims(detected))
    if report.status == "partial":
        return "missing", render("gate.partial")
    return "missing", render("gate.untested_rows")


def _claims(findings: Sequence[Claimed]) -> str:
    """Return claims in the order of findings, each once with its audits."""
    audits_by_claim: dict[str, dict[str, None]] = {}
    for finding in findings:
        audits_by_claim.setdefault(finding.claim, {})[finding.audit] = None
    return ", ".join(
        f"{claim} ({', '.join(audits)})" for claim, audits in audits_by_claim.items()
    )
