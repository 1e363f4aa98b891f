"""Audits and rules that a user chooses for looks at a model in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_audit.audits import Audit, Matched
from spark_audit.audits.known import ALL_AUDITS, audit_of, audits_of
from spark_audit.audits.setup_guards import faults
from spark_audit.errors import InputError, one_of
from spark_audit.pipeline.request import GivenAudits
from spark_audit.report.gate.judge import check
from spark_audit.report.gate.rules import Rule, parse_rule
from spark_audit.results import Report


def audits_by_name(audits: GivenAudits) -> dict[str, Audit]:
    """Return the audits of each look by name; refuse those of series.

    Parameters
    ----------
    audits
        One or several, each by its name or class, or with its options.

    Raises
    ------
    InputError
        If an audit is unknown, or looks at series of checkpoints.
    """
    is_all = isinstance(audits, Sequence) and ALL_AUDITS in audits
    audit_by_name: dict[str, Audit] = {}
    for given in audits_of(audits):
        audit = audit_of(given)
        # Audits of series are no part of "all" here.
        if is_all and audit.of_series:
            continue
        if isinstance(audit, Matched) and not isinstance(given, Audit):
            # Placebos and rematching take long, and no look shows them.
            audit = Matched(placebo_draws=0, rematched=False)

        # A series has several checkpoints, and a look has one.
        if audit.of_series:
            raise InputError(
                f"{audit.name} looks at series, and a model in training is none",
                where="audits",
                fix="leave it out, and audit the run when it has ended",
            )
        audit_by_name[audit.name] = audit
    return audit_by_name


def rules_of(texts: Sequence[str], audits: Mapping[str, Audit]) -> list[Rule]:
    """Parse rules; refuse those that a look cannot check.

    Parameters
    ----------
    texts
        Rules as for ``spark-audit gate``.
    audits
        The audits of each look by name.

    Raises
    ------
    InputError
        If a rule is on an audit that no look has, or names checkpoints.
    """
    rules = [parse_rule(text) for text in texts]

    for text, rule in zip(texts, rules, strict=True):
        if rule.audit:
            one_of(rule.audit, f"rule {text!r}", [*audits])
        if rule.checkpoint is not None or rule.but is not None:
            raise InputError(
                "names checkpoints, and here it is on the model that is trained",
                where=f"rule {text!r}",
                fix="leave out for and except",
            )
    return rules


def tripped_rules(report: Report, rules: Sequence[Rule], name: str) -> tuple[str, ...]:
    """Return the rules that a look breaks, each with the reason.

    What is not estimable on so few rows breaks no rule. What a setup guard voids breaks
    every rule, as in the gate: a broken model must not pass.

    Parameters
    ----------
    report
        That of the look.
    name
        The checkpoint of the look.
    """
    is_void = bool(faults(report.guards, name))
    tripped: list[str] = []
    for outcome in check(report, rules, allow_missing=True):
        if outcome.checkpoint != name:
            continue
        is_void_outcome = is_void and outcome.state == "missing"
        if outcome.state == "tripped" or is_void_outcome:
            tripped.append(f"{outcome.rule}: {outcome.detail}")
    return tuple(tripped)
