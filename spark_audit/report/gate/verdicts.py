"""The verdict of one rule on one checkpoint, by the kind of rule.

A figure that was not measured is ``missing``, and so is a claim if memory was not
tested. :mod:`~spark_audit.report.gate.judge` decides whether that trips a rule. A
violation that was measured trips it, whatever else is missing.

A further kind of rule is a function ``judge_...`` here, which ``judge.py`` calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from spark_audit.audits import about
from spark_audit.audits.trained_rows import training_of
from spark_audit.report.gate.rules import EACH, OPERATORS, Rule
from spark_audit.report.memory_tests import untested
from spark_audit.report.tried import method_of
from spark_audit.results import Contrast, Finding, Report, Row, number
from spark_audit.results.rows import ROW_GROUP, WITHHELD
from spark_audit.sentences import render

RuleState: TypeAlias = Literal["ok", "tripped", "missing", "left_out"]
"""``missing``: there is no figure; ``left_out``: the rule is not on this checkpoint."""


@dataclass(frozen=True)
class RuleVerdict:
    """The state of a rule on one checkpoint, and why it is so, in words."""

    state: RuleState
    detail: str


@dataclass(frozen=True)
class GatedFigure:
    """A row in two forms: exact figures decide, shared ones go into logs."""

    exact: Row
    shared: Row


def rows_of_rule(report: Report, rule: Rule) -> list[Row]:
    """Return the rows of a rule's figure; p values stand with contrasts only.

    If a figure has rows with and without a baseline, a rule judges those without,
    unless it is on p or on a change.
    """
    contrasts: list[Row] = []
    without_baseline: list[Row] = []
    for row in (*report.results, *report.contrasts):
        is_figure = rule.is_on(row.audit, row.metric, row.variant)
        if not is_figure or not rule.holds(row.group):
            continue
        if isinstance(row, Contrast):
            contrasts.append(row)
        else:
            without_baseline.append(row)

    if rule.field == "p" or rule.change or not without_baseline:
        return _without_empty_variants(rule, contrasts)
    return _without_empty_variants(rule, without_baseline)


def _without_empty_variants(rule: Rule, rows: list[Row]) -> list[Row]:
    """Return the rows of a rule on each variant without those that have no figure.

    Not every checkpoint can have each: one that is no series has no stages. If a
    checkpoint has no figure at all, its rows stay, and the rule is not met.
    """
    if rule.variant != EACH:
        return rows
    # A withheld figure is one, so that exact and shared reports keep the same rows.
    has_figure = [row.value is not None or row.withheld for row in rows]
    with_figure = {
        row.checkpoint for row, has in zip(rows, has_figure, strict=True) if has
    }
    kept = []
    for row, has in zip(rows, has_figure, strict=True):
        if has or row.checkpoint not in with_figure:
            kept.append(row)
    return kept


def judge_figure(
    report: Report, rule: Rule, figures: Sequence[GatedFigure]
) -> RuleVerdict:
    """Return whether a figure trips a rule, with the figures as they are shared."""
    field = "best_p" if rule.field == "p" else rule.field
    values: list[float] = []
    texts: list[str] = []
    for figure in figures:
        value = getattr(figure.exact, field)
        if figure.exact.status == "ok" and value is not None:
            values.append(value)
            shared_number = _number(figure.shared, field)
            texts.append(f"{_group_in_front(figure.shared)}{shared_number}")

    # Readers take a high figure for much memory, but a high NLL means little.
    # ``learned`` is the sign of a change towards memory: 1, -1, or 0 for neither.
    detail = f"{rule.field} {', '.join(texts)}"
    is_lower_more_memory = about(rule.audit).metric(rule.metric).learned < 0
    if rule.field != "p" and is_lower_more_memory:
        detail += f" ({render('gate.lower')})"

    # A measured violation trips, whatever else is missing.
    violates = OPERATORS[rule.operator]
    if any(violates(value, rule.bound) for value in values):
        return RuleVerdict("tripped", detail)

    if report.status == "partial":
        return RuleVerdict("missing", render("gate.partial"))
    if not figures:
        return RuleVerdict("missing", _why_unmeasured(report, rule))
    for figure in figures:
        if figure.exact.status != "ok":
            status = figure.exact.status.replace("_", " ")
            note = figure.exact.note
            return RuleVerdict("missing", f"{status}: {note}" if note else status)
    if not values:
        return RuleVerdict("missing", f"has no {rule.field}")
    return RuleVerdict("ok", detail)


def _why_unmeasured(report: Report, rule: Rule) -> str:
    """Return the sentence that a figure was not measured, and what the report has.

    That is the audits, if that of the figure was not run, or the types of identifiers,
    if the figure has others. Names of groups of rows are not listed: a table of the
    owner has them, and logs have more readers.
    """
    # In the order of the report, each once.
    audits = dict.fromkeys(row.audit for row in report.results)
    if rule.audit not in audits:
        return render("gate.unmeasured_audit", audit=rule.audit, audits=audits)

    # The values of the grouping that the rule names: types, or groups of rows.
    kind, _, value_of_rule = rule.group.partition(":")
    values = dict.fromkeys(
        row.group_value
        for row in report.results
        if rule.is_on(row.audit, row.metric, row.variant) and row.group_kind == kind
    )
    if kind == ROW_GROUP and not values:
        return render("gate.unmeasured_without_groups", audit=rule.audit)
    if kind == ROW_GROUP and value_of_rule not in (*values, EACH):
        return render("gate.unmeasured_group", audit=rule.audit)
    if kind == "type" and values and value_of_rule not in values:
        return render("gate.unmeasured_type", type=value_of_rule, types=values)
    return render("gate.unmeasured")


def judge_change(rule: Rule, figures: Sequence[GatedFigure]) -> RuleVerdict:
    """Return the verdict on whether a figure moved as far as a rule forbids.

    ``rose`` is towards more remembering where the metric has such a direction. A change
    as large as the bound is detected in 80 of 100 cases if the contrast's smallest
    detectable effect is no larger. Among several groups of rows the worst state counts,
    with the details of all that have it.
    """
    details_by_state: dict[RuleState, list[str]] = {
        "tripped": [],
        "missing": [],
        "ok": [],
    }

    for figure in figures:
        verdict = _judge_change_of_group(rule, figure)
        detail = f"{_group_in_front(figure.exact)}{verdict.detail}"
        details_by_state[verdict.state].append(detail)

    for state, details in details_by_state.items():
        if details:
            return RuleVerdict(state, ", ".join(details))
    return RuleVerdict("missing", render("gate.unchanged"))


def _judge_change_of_group(rule: Rule, figure: GatedFigure) -> RuleVerdict:
    """Return the verdict on the change of one group of rows."""
    exact = figure.exact
    if exact.value is None or exact.ends is None:
        return RuleVerdict("missing", f"not estimable: {exact.note}")

    # Turn the change so that the rule forbids values above its bound; ``low`` and
    # ``high`` are the ends of the interval of the turned change.
    towards_memory = about(rule.audit).metric(rule.metric).learned or 1
    sign = towards_memory if rule.operator == "rose" else -towards_memory
    low, high = sorted(sign * end for end in exact.ends)
    may_be_as_large = high >= rule.bound
    is_shown = low > 0

    is_detectable = exact.mde is not None and exact.mde <= rule.bound
    if may_be_as_large and not is_shown and not is_detectable:
        # No change was shown, and none could have been detected.
        if exact.mde is None:
            return RuleVerdict("missing", render("gate.power"))
        least = number(exact.mde)
        return RuleVerdict("missing", render("gate.power_with_least", least=least))

    detail = figure.shared.note
    shared_value = figure.shared.value
    if shared_value is not None:
        direction = "rose" if towards_memory * shared_value >= 0 else "fell"
        detail = f"{direction} by {number(abs(shared_value), 4)}"
    if may_be_as_large and is_shown:
        return RuleVerdict("tripped", detail)
    return RuleVerdict("ok", detail)


def _group_in_front(row: Row) -> str:
    """Return the group of rows, or the access, that a figure is of, and a space."""
    if row.group == "pooled":
        # Of several variants each is named.
        return f"{row.variant} " if about(row.audit).bracket else ""
    return f"{row.group_value} "


def _number(shared: Row, field: str) -> str:
    """Return a figure of a shared row, or the word for a withheld one."""
    if shared.withheld:
        return WITHHELD
    return number(getattr(shared, field), 4)


def judge_claim(report: Report, rule: Rule, name: str) -> RuleVerdict:
    """Return whether a claim on a checkpoint trips a rule; untested, it is missing."""
    findings = [finding for finding in report.findings if finding.checkpoint == name]
    violating = [finding for finding in findings if _violates(rule, finding)]
    if violating:
        return RuleVerdict("tripped", _claims_in_words(violating))

    # An untested claim must not count as not found.
    if report.status == "partial":
        return RuleVerdict("missing", render("gate.partial"))
    if untested(report.findings, [name]):
        return RuleVerdict("missing", render("gate.untested"))

    detected = [finding for finding in findings if finding.detected]
    if not detected:
        return RuleVerdict("ok", render("gate.nothing"))

    mildest = min(detected, key=lambda finding: finding.severity)
    detail = render(
        "gate.passes", shown=_claims_in_words(detected), least=mildest.claim
    )
    return RuleVerdict("ok", detail)


def _violates(rule: Rule, finding: Finding) -> bool:
    """Return whether a finding makes a claim that a rule forbids.

    Claims are compared by severity. If several have the same severity, only the named
    one counts.
    """
    if rule.operator == "==":
        return finding.claim == rule.claim
    if rule.operator == "!=":
        return finding.claim != rule.claim
    return OPERATORS[rule.operator](finding.severity, rule.bound)


def judge_verdict(report: Report, rule: Rule, name: str) -> RuleVerdict:
    """Return whether the verdict of an audit trips a rule; without one, it is missing.

    Of a method with several seeds, each verdict counts.
    """
    verdicts = []
    for finding in report.findings:
        if finding.audit == rule.audit and method_of(finding.checkpoint) == name:
            verdicts.append(finding.verdict)
    given = [verdict for verdict in verdicts if verdict]
    if not given:
        return RuleVerdict("missing", render("gate.no_verdict", audit=rule.audit))

    is_other = rule.operator == "!="
    tripping = [verdict for verdict in given if (verdict != rule.verdict) == is_other]
    if tripping:
        return RuleVerdict("tripped", ", ".join(dict.fromkeys(tripping)))
    if report.status == "partial":
        return RuleVerdict("missing", render("gate.partial"))
    return RuleVerdict("ok", ", ".join(dict.fromkeys(given)))


def has_no_verdict(report: Report, audit: str, name: str) -> bool:
    """Return whether an audit tested a checkpoint, but gives no verdict on it.

    Those are models that it compares others with, and copies of checkpoints.
    """
    findings = [
        finding
        for finding in report.findings
        if finding.audit == audit and method_of(finding.checkpoint) == name
    ]
    tested = [finding for finding in findings if finding.claim != "not_tested"]
    return bool(tested) and not any(finding.verdict for finding in findings)


def judge_guard(report: Report, shared: Report, rule: Rule, name: str) -> RuleVerdict:
    """Return whether a guard holds for a checkpoint; without a test it is missing.

    Any detection shows that the rows were trained on, which answers the guard.

    Parameters
    ----------
    shared
        The same report as it is shared, for what the guards say.
    """
    training = training_of(name)
    guards = []
    for guard in shared.guards:
        if guard.name == rule.guard and training_of(guard.checkpoint) == training:
            guards.append(guard)

    for guard in guards:
        if not guard.passed:
            return RuleVerdict("tripped", guard.detail)
    if guards:
        return RuleVerdict("ok", guards[0].detail)

    # With too few rows there is no guard, but a detection replaces it.
    detected = [
        finding
        for finding in report.findings
        if finding.detected and training_of(finding.checkpoint) == training
    ]
    if detected:
        detail = render("gate.detected", shown=_claims_in_words(detected))
        return RuleVerdict("ok", detail)

    if report.status == "partial":
        return RuleVerdict("missing", render("gate.partial"))
    return RuleVerdict("missing", render("gate.untested_rows"))


def _claims_in_words(findings: Sequence[Finding]) -> str:
    """Return claims in the order of findings, each once with its audits."""
    # A dictionary keeps the order, and each audit once.
    audits_by_claim: dict[str, dict[str, None]] = {}
    for finding in findings:
        audits_by_claim.setdefault(finding.claim, {})[finding.audit] = None

    texts = []
    for claim, audits in audits_by_claim.items():
        texts.append(f"{claim} ({', '.join(audits)})")
    return ", ".join(texts)
