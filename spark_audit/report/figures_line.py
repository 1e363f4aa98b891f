"""The line of figures behind a sentence, of one form for all audits.

A further part of the line is a function that returns its words, or an empty text, and
an item of :func:`figures_line`. Parts are in the terms of ``matrix.py``: an effect is
above 0 where it is more of a leak.
"""

from __future__ import annotations

from typing import TypeVar

from spark_audit.audits import about, metric_of
from spark_audit.report.cells import limited
from spark_audit.report.matrix import effect_size, effect_text, limit_text, scale_of
from spark_audit.results import Finding, Report
from spark_audit.sentences import knows, render
from spark_audit.sentences.renderer import percent, probability, unit_name

SEPARATOR = " · "

ReportT = TypeVar("ReportT", bound=Report)


def with_figures(report: ReportT) -> ReportT:
    """Return a report with new lines of figures and verdicts in all findings.

    Earlier lines are ignored: figures may have been corrected, voided or rounded since,
    and a file may come from somebody else.
    """
    findings = []
    for finding in report.findings:
        line = figures_line(finding)
        if finding.figures != line:
            finding = finding.copy_unchecked(figures=line)
        # A verdict follows from the claim, and from what a setup guard voided.
        verdict = about(finding.audit).verdict_of(finding)
        if finding.verdict != verdict:
            finding = finding.copy_unchecked(verdict=verdict)
        findings.append(finding)

    return report.copy_unchecked(findings=findings)


def figures_line(finding: Finding) -> str:
    """Return the figures of a finding, on the scale of its cell of the matrix.

    ``estimate [interval] unit · without a leak X · p, corrected · n trained, m held out
    · at most Y``. Unknown parts are left out; the line is empty if all are unknown.

    Examples
    --------
    ``+12% [+8%, +16%] per token · without a leak 0% · p 0.0001, corrected 0.003 · 207
    trained, 102 held out · at most +21%``
    """
    figures = [
        _estimate(finding),
        _null(finding),
        _p(finding),
        _sides(finding),
        _at_most(finding),
    ]
    return SEPARATOR.join(figure for figure in figures if figure)


def plain_figures(finding: Finding) -> str:
    """Return the figure of an exploratory finding with its interval, as tables do.

    It is on its own scale, since it need not be an effect of a leak.
    """
    if finding.value is None:
        return ""

    estimate = limited(finding.value, finding.low, finding.high)
    return f"{estimate} {unit_name(finding.unit)}".rstrip()


def _estimate(finding: Finding) -> str:
    """Return the estimate with its interval and its scale."""
    if finding.value is None:
        return ""
    if not _has_scale(finding):
        return percent(finding) if _is_rate(finding) else plain_figures(finding)

    # A null that is withheld leaves the size of the effect unknown, too.
    size = effect_size(finding, finding.value)
    if size is None:
        return ""
    estimate = effect_text(finding.audit, size, finding.unit)

    low = effect_size(finding, finding.low)
    high = effect_size(finding, finding.high)
    if low is not None and high is not None:
        # A change of NLL below 0 is an effect above 0, so its limits change places.
        near, far = sorted([low, high])
        near_text = effect_text(finding.audit, near, finding.unit)
        far_text = effect_text(finding.audit, far, finding.unit)
        estimate += f" [{near_text}, {far_text}]"

    scale = scale_of(finding)
    return f"{estimate} {scale}".rstrip()


def _has_scale(finding: Finding) -> bool:
    """Return whether a figure is shown as an effect on the scale of its attack.

    Exploratory figures, and figures of audits that only describe, are no effects of a
    leak. Their sentence states their direction.
    """
    is_attack = about(finding.audit).covers is not None
    is_test = finding.family == "primary" or finding.detected
    return (
        is_attack and is_test and bool(finding.unit) and finding.no_effect is not None
    )


def _is_rate(finding: Finding) -> bool:
    """Return whether the figure is a share of something."""
    return not finding.unit and metric_of(finding.audit, finding.row_metric).rate


def _null(finding: Finding) -> str:
    """Return the value of no effect; empty if the figure is no effect of a leak."""
    if finding.value is None or not _has_scale(finding):
        return ""

    # On the scale of effects no effect is 0, whatever the null.
    null = effect_text(finding.audit, 0.0, finding.unit)
    return render("matrix.figures.null", null=null)


def _p(finding: Finding) -> str:
    """Return p, and p corrected over the tests of the report."""
    if finding.p is None:
        return ""
    p = probability(finding.p)
    if finding.p_adjusted is None:
        return render("matrix.figures.p", p=p)

    adjusted = probability(finding.p_adjusted)
    return render("matrix.figures.p_corrected", p=p, adjusted=adjusted)


def _sides(finding: Finding) -> str:
    """Return the numbers of trained and held-out units of the test, in words.

    An audit whose trained rows have another name has a sentence ``audit.NAME.sides``.
    """
    trained, held_out = sides_of(finding)
    if trained is None:
        return ""
    if held_out is None:
        return render("matrix.figures.trained", trained=trained)
    key = f"audit.{finding.audit}.sides"
    if not knows(key):
        key = "matrix.figures.sides"
    return render(key, trained=trained, held_out=held_out)


def sides_of(finding: Finding) -> tuple[int | None, int | None]:
    """Return the numbers of trained and held-out units of a test; None: not known."""
    audit = about(finding.audit)
    trained_fact, held_out_fact = audit.sides  # the facts that hold the sizes
    return (
        audit.size_of(finding.facts.get(trained_fact)),
        audit.size_of(finding.facts.get(held_out_fact)),
    )


def _at_most(finding: Finding) -> str:
    """Return the limit of what could still be there, if nothing was found."""
    # The estimate of a detected effect says more than a limit.
    if finding.detected or finding.at_most is None:
        return ""

    size = effect_size(finding, finding.at_most)
    if size is None:
        return ""

    limit = limit_text(finding.audit, size, finding.unit)
    return render("matrix.figures.at_most", limit=limit)
