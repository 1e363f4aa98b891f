"""Rules of the gate, as they are typed behind ``--fail-if``.

==================================================  ================================
Rule                                                It trips where ...
==================================================  ================================
``AUDIT.METRIC[.VARIANT].value|low|high|p OP N``    the figure compares so with N
``AUDIT.METRIC[.VARIANT] rose by N``, ``fell by``   the change since an earlier report
                                                    may be as large as N, or one of that
                                                    size could not have been seen
``claim OP CLAIM``                                  a claim is made of such a severity
``guard trained_rows_fit``                          trained rows fit no better than
                                                    held-out ones
``AUDIT = VERDICT``, ``AUDIT != VERDICT``           the audit's verdict is this one, or
                                                    another one, as of ``erasure``
``membership[access=ACCESS] OP N``                  the AUC of an attacker with this
                                                    access compares so with N
``membership[group=GROUP] OP N``, ``memory...``,    the figure of a group of rows
``extraction...``                                   compares so with N
==================================================  ================================

Behind a metric, ``[type=EMAIL]`` or ``[type=*]`` names a group of the rows, or each
group of a kind. An audit may have a word for its variants (``Audit.bracket``): then
``[access=answers]`` names one of these, ``[access=*]`` all that have a figure, and a
short word stands for audit and metric (``Audit.short_rule``, and of groups of rows
``Audit.group_rule``). A rule is on every
checkpoint of the report, unless it ends with ``for CHECKPOINT`` or
``except CHECKPOINT, ...``.

A further kind of rule has an expression and a function that reads it here, fields of
:class:`Rule`, a ``judge_...`` in ``verdicts.py``, and its branch in
``judge.py`` (``_judge``, and ``_why_impossible`` for checkpoints that it leaves out).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spark_audit.audits import about, audit_names
from spark_audit.audits.setup_guards import REMAINS
from spark_audit.audits.trained_rows import TRAINED_ROWS_FIT
from spark_audit.errors import InputError, choose, one_of
from spark_audit.names import ANY_NAME
from spark_audit.results.findings import SEVERITY
from spark_audit.results.rows import ROW_GROUP

FIELDS = ("value", "low", "high", "p")
"""Numbers of a figure that a rule can name."""

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}
"""Sign -> comparison of a figure with the bound; True: the rule trips."""

DEFAULT_RULES = ("claim >= membership",)
"""Rules that apply if none is given: membership, memory, and verbatim extraction."""

_OPERATOR = r"<=|>=|==|!=|<|>"
"""An operator that compares, longer ones first."""

_OPERATOR_OF_WORDS = rf"{_OPERATOR}|="
"""An operator in front of a word: there ``=`` is ``==``."""

_HAS_OPERATOR = re.compile(r"[<>=]|\s(?:rose|fell)\s|^\s*guard\s")
"""What a text has that was meant as a whole rule."""

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
"""A decimal number, perhaps with an exponent."""

_GROUP = r"(?:\[(?P<grouping>\w+)=(?P<group_name>[^\]]+)\](?P<field>\.\w+)?)?"
"""Perhaps a group behind the metric, ``[type=EMAIL]``, and a field behind the group."""

_SCOPE = r"(?:\s+(?P<scope>for|except)\s+(?P<names>\S.*?))?\s*"
"""Perhaps the checkpoints at the end of a rule."""

_CLAIM = re.compile(
    rf"\s*claim\s*(?P<operator>{_OPERATOR_OF_WORDS})\s*(?P<claim>[a-z_]+){_SCOPE}"
)

_GUARD = re.compile(rf"\s*guard\s+(?P<guard>\w+){_SCOPE}")

_VERDICT = re.compile(
    rf"\s*(?P<audit>\w+)\s*(?P<operator>==?|!=)\s*"
    rf"(?P<verdict>[A-Z]+(?: [A-Z]+)*){_SCOPE}"
)

_FIGURE = re.compile(
    rf"\s*(?P<figure>\S+?){_GROUP}\s*"
    rf"(?P<operator>{_OPERATOR}|\s(?:rose|fell)\s+by\s)\s*"
    rf"(?P<bound>{_NUMBER}){_SCOPE}"
)

RULE_SHAPE = (
    "write AUDIT.METRIC[.VARIANT].value|low|high|p OP NUMBER, AUDIT.METRIC[.VARIANT] "
    "rose by NUMBER, claim OP CLAIM, guard NAME or AUDIT = VERDICT [for CHECKPOINT | "
    "except CHECKPOINT, ...]"
)

GUARDS = (TRAINED_ROWS_FIT,)
"""Guards that a rule may name; guards that void claims violate every rule anyway."""

EACH = "*"
"""Stands for each variant of a metric, or each group of rows, that has a figure."""

CHANGES = ("rose", "fell")
"""Operators of a change since an earlier report."""


@dataclass(frozen=True)
class Rule:
    """A rule as it was read: on a figure or its change, a claim, guard or verdict.

    Attributes
    ----------
    text
        The rule as it was typed.
    operator, bound
        What a figure, a change or a claim's severity is compared by, and with. A rule
        on a guard has none.
    checkpoint
        The only checkpoint that the rule is on; None: on all.
    but
        The names behind ``except``, as they were typed; None: no ``except``.
    audit, metric, variant, field
        The figure, and which of :data:`FIELDS` is its number. Empty in rules on claims
        and guards.
    claim, guard, verdict
        The claim, the guard, or the verdict of an audit, of a rule on one; else empty.
    group
        The group of rows, as reports name it; ``type:*`` is each type. A variant of
        :data:`EACH` is each one.
    """

    text: str
    operator: str
    bound: float
    checkpoint: str | None = None
    but: str | None = None
    audit: str = ""
    metric: str = ""
    variant: str = ""
    field: str = ""
    claim: str = ""
    guard: str = ""
    verdict: str = ""
    group: str = "pooled"

    @property
    def change(self) -> bool:
        """Return whether the rule is of the change since an earlier report."""
        return self.operator in CHANGES

    def is_on(self, audit: str, metric: str, variant: str) -> bool:
        """Return whether the rule is on the figure that has these names."""
        is_variant = self.variant in (variant, EACH)
        return (self.audit, self.metric) == (audit, metric) and is_variant

    def holds(self, group: str) -> bool:
        """Return whether the rule is on a group of rows that has this name."""
        grouping, _, name = self.group.partition(":")
        if name == EACH:
            return group.startswith(f"{grouping}:")
        return group == self.group


def parse_rule(text: str) -> Rule:
    """Parse the text of a rule.

    Raises
    ------
    InputError
        If it cannot be read, or names an unknown audit, metric or variant; the message
        lists the known ones.
    """
    where = f"--fail-if {text!r}"
    # The form of a figure is the widest: the others are tried first.
    narrow = (_CLAIM, _GUARD, _VERDICT)
    matches = [expression.fullmatch(text) for expression in (*narrow, _FIGURE)]
    match = next((found for found in matches if found is not None), None)
    if match is None:
        # A shell cuts a rule at its spaces, and takes `>` for a file.
        fix = RULE_SHAPE
        if text.strip() and not _HAS_OPERATOR.search(text):
            fix = f"write each rule in quotes, as a whole; {RULE_SHAPE}"
        raise InputError("is no rule", where=where, fix=fix)

    if match.re is _CLAIM:
        return _claim_rule(text.strip(), match, where)
    if match.re is _GUARD:
        return _guard_rule(text.strip(), match, where)
    if match.re is _VERDICT:
        return _verdict_rule(text.strip(), match, where)
    return _figure_rule(text.strip(), match, where)


def _claim_rule(text: str, match: re.Match[str], where: str) -> Rule:
    """Return a rule on claims, by severity.

    Raises
    ------
    InputError
        If there is no such claim.
    """
    claim = match["claim"]
    if claim not in SEVERITY:
        raise InputError(
            f"unknown claim {claim!r}",
            where=where,
            fix=choose(_nearest_claim(claim), SEVERITY),
        )

    return Rule(
        text=text,
        operator=_operator_of_words(match),
        bound=SEVERITY[claim],
        checkpoint=_names_behind("for", match),
        but=_names_behind("except", match),
        claim=claim,
    )


def _operator_of_words(match: re.Match[str]) -> str:
    """Return the operator of a rule on a word, in which ``=`` is ``==``."""
    return "==" if match["operator"] == "=" else match["operator"]


def _guard_rule(text: str, match: re.Match[str], where: str) -> Rule:
    """Return a rule on a guard, which has neither operator nor bound.

    Raises
    ------
    InputError
        If no rule can name the guard.
    """
    guard = match["guard"]
    _check_guard(guard, where)
    return Rule(
        text=text,
        operator="",
        bound=0.0,
        checkpoint=_names_behind("for", match),
        but=_names_behind("except", match),
        guard=guard,
    )


def _verdict_rule(text: str, match: re.Match[str], where: str) -> Rule:
    """Return a rule on the verdict of an audit.

    Raises
    ------
    InputError
        If there is no such audit, or it has no such verdict.
    """
    audit = match["audit"]
    one_of(audit, where, audit_names())
    verdicts = about(audit).verdicts
    if not verdicts:
        with_verdicts = [name for name in audit_names() if about(name).verdicts]
        raise InputError(
            f"{audit} gives no verdict",
            where=where,
            fix=choose(audit, with_verdicts),
        )
    one_of(match["verdict"], where, verdicts)
    return Rule(
        text=text,
        operator=_operator_of_words(match),
        bound=0.0,
        checkpoint=_names_behind("for", match),
        but=_names_behind("except", match),
        audit=audit,
        verdict=match["verdict"],
    )


def _figure_rule(text: str, match: re.Match[str], where: str) -> Rule:
    """Return a rule on a figure, or on how it changed since an earlier report.

    Raises
    ------
    InputError
        If there is no such audit, metric or variant, or the bound is not finite.
    """
    # ``rose by`` is typed in two words.
    operator_typed = match["operator"].split()[0]
    figure = match["figure"]
    field_behind = match["field"] or ""
    short_audit = _audit_of_short_rule(figure)
    group_figure = ""
    if match["grouping"] == ROW_GROUP:
        group_figure = _figure_of_group_rule(figure)

    if group_figure:
        figure = group_figure
        if not field_behind and operator_typed not in CHANGES:
            field_behind = ".value"
    elif short_audit:
        _check_bracket(short_audit, match["grouping"], where)
        figure = f"{short_audit}.{about(short_audit).metrics[0].name}"
        if not field_behind and operator_typed not in CHANGES:
            field_behind = ".value"

    # A suggestion keeps the group of rows: without it the rule would judge all rows.
    brackets = ""
    if match["grouping"]:
        brackets = f"[{match['grouping']}={match['group_name']}]"

    audit, _, metric_text = figure.partition(".")
    needs_field = operator_typed not in CHANGES
    _check_audit(
        audit,
        figure,
        where,
        brackets=brackets,
        field=field_behind or ".value" if needs_field else "",
    )

    # Without brackets a rule is on all rows.
    group = "pooled"
    bracket = about(audit).bracket
    if match["grouping"] and match["grouping"] == bracket:
        metric_text += f".{_variant_in_brackets(audit, match['group_name'], where)}"
        metric_text += field_behind
    elif match["grouping"]:
        group = f"{match['grouping']}:{match['group_name']}"
        # Brackets separate the field from the metric.
        metric_text += field_behind

    # A rule on a change names no number of it: the change is judged by its interval.
    field = "value"
    if operator_typed not in CHANGES:
        metric_text, _, field = metric_text.rpartition(".")
    if field not in FIELDS:
        fields = ", ".join(f".{name}" for name in FIELDS)
        raise InputError(
            "the rule does not say which number",
            where=where,
            fix=f"end {match['figure']}{brackets} with one of: {fields}",
        )

    bound = float(match["bound"])
    if not math.isfinite(bound):
        raise InputError("its bound is not finite", where=where, fix=RULE_SHAPE)

    metric, variant = _metric_and_variant(metric_text, audit, where)
    return Rule(
        text=text,
        operator=operator_typed,
        bound=bound,
        checkpoint=_names_behind("for", match),
        but=_names_behind("except", match),
        audit=audit,
        metric=metric,
        variant=variant,
        field=field,
        group=group,
    )


def _audit_of_short_rule(figure: str) -> str:
    """Return the audit whose first metric a word stands for; empty: none."""
    for name in audit_names():
        if figure and figure == about(name).short_rule:
            return name
    return ""


def _figure_of_group_rule(word: str) -> str:
    """Return the figure that a word stands for in rules on groups; empty: none."""
    for name in audit_names():
        rule_word, metric, variant = about(name).group_rule
        if word and word == rule_word:
            return f"{name}.{metric}.{variant}".rstrip(".")
    return ""


def _check_bracket(audit: str, grouping: str | None, where: str) -> None:
    """Refuse a short rule whose brackets do not name a variant.

    Raises
    ------
    InputError
        Says what must stand in the brackets.
    """
    bracket = about(audit).bracket
    if grouping == bracket:
        return
    word = about(audit).short_rule
    fix = (
        f"write {word}[{bracket}=NAME] OP NUMBER with one of: "
        f"{', '.join(_names_in_brackets(audit))}"
    )
    if _figure_of_group_rule(word):
        fix += f"; of a group of rows, write {word}[{ROW_GROUP}=NAME] OP NUMBER"
    raise InputError(
        f"{word} has no {grouping!r}" if grouping else f"{word} lacks its {bracket}",
        where=where,
        fix=fix,
    )


def _variant_in_brackets(audit: str, name: str, where: str) -> str:
    """Return the variant that a name in brackets stands for.

    Raises
    ------
    InputError
        If there is no such variant; the message lists the names.
    """
    name = name.strip()
    if name == EACH:
        return EACH
    names = _names_in_brackets(audit)
    if name not in names:
        raise InputError(
            f"unknown {about(audit).bracket} {name!r}",
            where=where,
            fix=choose(name, names),
        )
    return about(audit).bracket_names.get(name, name)


def _names_in_brackets(audit: str) -> list[str]:
    """Return the names that an audit's variants have in brackets, short ones first."""
    names = dict.fromkeys(about(audit).bracket_names)
    for metric in about(audit).metrics:
        names |= dict.fromkeys(metric.variants)
    return list(names)


def _check_audit(
    audit: str, figure: str, where: str, *, brackets: str, field: str
) -> None:
    """Refuse an unknown audit; of a metric without one, offer the audit's rule.

    Parameters
    ----------
    audit, figure
        The word in front, and all that was typed in front of the brackets.
    where
        The rule, for the message.
    brackets, field
        The group of rows and the number in the suggestion, such as ``[type=EMAIL]`` and
        ``.value``. A number that was typed in the figure goes before; a rule on a
        change has none.

    Raises
    ------
    InputError
        Suggests a figure, or lists the audits.
    """
    if audit in audit_names():
        return

    for name in audit_names():
        if audit in [metric.name for metric in about(name).metrics]:
            metric, _, field_typed = figure.partition(".")
            number_of_figure = f".{field_typed}" if field_typed else field
            raise InputError(
                f"{audit!r} is a metric, and a rule begins with its audit",
                where=where,
                fix=f"write {name}.{metric}{brackets}{number_of_figure}",
            )
    one_of(audit, where, audit_names())


def _names_behind(word: str, match: re.Match[str]) -> str | None:
    """Return the names behind ``for`` or ``except``; None where it is not typed."""
    if match["scope"] == word:
        return match["names"]
    return None


def _nearest_claim(text: str) -> str:
    """Return the severest claim of the audit that a text begins with, else the text."""
    for name in audit_names():
        claim = about(name).strongest_claim
        if claim is not None and text.startswith(name):
            return claim
    return text


def _check_guard(name: str, where: str) -> None:
    """Refuse a guard that no rule can name.

    Raises
    ------
    InputError
        The message lists the guards that can be named, or says why none need be.
    """
    if name in GUARDS:
        return

    # Setup guards: what they void trips every rule, with their words.
    if name in REMAINS:
        raise InputError(
            f"{name} needs no rule",
            where=where,
            fix=f"leave it out: a checkpoint for which {name} fails violates every "
            "rule",
        )
    raise InputError(f"unknown guard {name!r}", where=where, fix=choose(name, GUARDS))


def _metric_and_variant(text: str, audit: str, where: str) -> tuple[str, str]:
    """Return the metric and the variant of it that a text names.

    Names contain dots, so several metrics may match; the longest is meant.

    Raises
    ------
    InputError
        If the audit has no such metric, or the metric no such variant.
    """
    variants_by_metric = {
        metric.name: metric.variants for metric in about(audit).metrics
    }
    named_metrics = []
    for name in variants_by_metric:
        if f"{text}.".startswith(f"{name}."):
            named_metrics.append(name)
    if not named_metrics:
        raise InputError(
            f"{audit} has no metric {text!r}",
            where=where,
            fix=choose(text.partition(".")[0], variants_by_metric),
        )

    metric = max(named_metrics, key=len)
    variant = text[len(metric) + 1 :]

    # Some metrics have variants that a user names, such as attacks of other tools.
    known_variants = variants_by_metric[metric]
    is_any_allowed = ANY_NAME in known_variants and variant != ""
    if variant == EACH and about(audit).bracket:
        return metric, variant
    if variant not in known_variants and not is_any_allowed:
        fix = choose(variant, (name or "(none)" for name in known_variants))
        if "" not in known_variants:
            fix = f"write {audit}.{metric}.VARIANT; {fix}"
        raise InputError(
            f"{audit}.{metric} has no variant {variant!r}", where=where, fix=fix
        )
    return metric, variant
