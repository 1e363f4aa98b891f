"""``spark-audit gate``: rules that a report must pass.

Rules are read and judged in ``report/gate/``; here their outcomes are printed and
written. A further file for a pipeline is an option of :func:`gate` and a branch where
``junit`` and ``sarif`` are written.
"""

from __future__ import annotations

from collections.abc import Collection
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from spark_audit import options
from spark_audit.cli.report_inputs import Folder, opened
from spark_audit.errors import InputError
from spark_audit.previous import keeping_previous
from spark_audit.terminal.console import keep_apart, tell, tell_json

if TYPE_CHECKING:
    from spark_audit.results import Report


def gate(
    folder: Folder,
    /,
    *,
    fail_if: Annotated[tuple[str, ...], Parameter(metavar="RULE...")] = (),
    against: Annotated[Path | None, Parameter(metavar="REPORT")] = None,
    allow_missing: bool = False,
    junit: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    sarif: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    attest: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    json: options.Json = False,
) -> None:
    """Fail with exit code 1 if a rule is violated; needs no model.

    The last line is PASS or FAIL, with the rule that decided.

    Rules judge every checkpoint, unless they end with 'for NAME' or 'except NAMES':

    'claim >= membership': a claim of this severity or more.

    'mia.auc.loss.low > 0.55': a figure, or an end of its interval. Of NLL, as in
    matched.memory.value, lower is more memory.

    'extract.greedy_rate[type=*].high > 0.01': the same by type.

    'guard trained_rows_fit': trained rows do not fit better than held-out ones; the
    list of rows or the template may be wrong.

    'matched.memory rose by 0.05': since --against, towards more memory.

    Parameters
    ----------
    fail_if
        Conditions under which the gate fails. Default: 'claim >= membership', which
        covers memory and verbatim.
    against
        An earlier report over the same manifest, for rules on what rose or fell.
    allow_missing
        Missing figures do not violate a rule.
    junit
        Write the result of each rule as JUnit XML.
    sarif
        Write what trips as SARIF 2.1.0, which code scanning reads.
    attest
        Write an in-toto statement on the report, for you to sign; ``spark-audit
        verify`` reads it.
    """
    from spark_audit.audits.supervision_guards import supervision_warnings
    from spark_audit.files import write_text
    from spark_audit.report.gate import pipeline_files, statement
    from spark_audit.report.gate.judge import check
    from spark_audit.report.gate.lines import gate_lines
    from spark_audit.report.gate.rules import DEFAULT_RULES, parse_rule

    # A bad rule is refused before a report is read.
    rules = [parse_rule(text) for text in fail_if or DEFAULT_RULES]
    folder, report = opened(folder)
    # With --against: the report with contrasts to the earlier one, and the checkpoints
    # that are the very model that they are compared with.
    changed = None
    unchanged: Collection[str] = ()
    if against is not None:
        audits_of_changes = {rule.audit for rule in rules if rule.change}
        _check_asks_for_changes(audits_of_changes)
        from spark_audit.pipeline.compare import changed_since

        earlier_folder = opened(against)[0]
        changed, unchanged = changed_since(
            folder, earlier_folder, only=audits_of_changes
        )
    outcomes = check(
        report, rules, allow_missing=allow_missing, changed=changed, same=unchanged
    )

    # All refusals come before the first file: a pipeline must not read half of them.
    outputs = [path for path in (junit, sarif, attest) if path]
    keep_apart(outputs, [folder, folder / "report.json"])
    if attest is not None:
        _check_attestable(report, folder, is_of_change=changed is not None)

    report_name = folder.resolve().name
    with keeping_previous(outputs):
        if junit is not None:
            write_text(junit, pipeline_files.junit(outcomes, name=report_name))
        if sarif is not None:
            write_text(sarif, dumps(pipeline_files.sarif(outcomes, name=report_name)))
        if attest is not None:
            statement_bytes = statement.statement(
                report, folder, outcomes, allow_missing=allow_missing
            )
            write_text(attest, statement_bytes.decode())

    try:
        if json:
            tell_json([vars(outcome) for outcome in outcomes])
        else:
            # Warnings come first, because the last line is the verdict.
            warnings = supervision_warnings(report.guards)
            tell("\n".join([*warnings, *gate_lines(outcomes)]))
    finally:
        # The exit code stands even if output fails: a violation must not look like a
        # pass.
        if any(outcome.state == "tripped" for outcome in outcomes):
            raise SystemExit(1)


def _check_asks_for_changes(audits_of_changes: Collection[str]) -> None:
    """Refuse ``--against`` if no rule is about a rise or a fall."""
    if audits_of_changes:
        return
    example = "--fail-if 'mia.auc.loss rose by 0.05'"
    raise InputError(
        "is for rules on what rose or fell, and there is none",
        where="--against",
        fix=f"add one, such as {example}, or leave it out",
    )


def _check_attestable(report: Report, folder: Path, *, is_of_change: bool) -> None:
    """Refuse to attest a report that does not follow from its evidence.

    A statement covers one report, so it says nothing about a change since another one.

    Parameters
    ----------
    is_of_change
        Whether the outcomes depend on an earlier report (``--against``).
    """
    from spark_audit.pipeline.verification.verify import evidence_checks

    if is_of_change:
        raise InputError(
            "is on one report, without an earlier one",
            where="--attest",
            fix="leave --against out",
        )
    # A part without a difference follows from the evidence.
    for part_name, difference in evidence_checks(report, folder):
        if difference:
            raise InputError(
                f"nothing can be stated on this report: {part_name} {difference}",
                where="--attest",
                fix=f"see `spark-audit verify {folder}`, and audit again",
            )
