"""Rules that a report must pass before a checkpoint ships.

``AUDIT.METRIC[.OF].(value|low|high|p) OP NUMBER``, or ``claim OP CLAIM`` by severity,
of every checkpoint of the report, or ``for CHECKPOINT``, or ``except CHECKPOINT, ...``.
``guard trained_rows_fit`` trips where trained rows fit no better than held-out ones.
Behind a metric ``[type=EMAIL]`` or ``[type=*]`` names a part of the rows.
``AUDIT.METRIC[.OF] rose by NUMBER``, or ``fell by``, is of the change since an earlier
report: it trips where a change is shown that may be as large as that, and where one of
that size could not have been seen.
A figure that was not measured trips a rule as well, and so does a checkpoint whose
memory was not tested where a claim is asked for, because a gate must not pass for want
of evidence. Whom a rule leaves out is said.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from spark_audit.audits import about, audit_names
from spark_audit.audits.setup_guards import REMAINS, faults
from spark_audit.audits.trained_rows import TRAINED_ROWS_FIT, training_of
from spark_audit.errors import InputError, choose, one_of, visible
from spark_audit.files import parse_json, read_regular, sha256_file
from spark_audit.names import (
    ANY_NAME,
    BASE,
    RELEARN,
    CheckpointName,
    check_known,
    entry_of,
    series_of,
)
from spark_audit.provenance import canonical_json
from spark_audit.report.disclosure import (
    KEYED,
    disclosed,
    keyed_digest,
    manifest_facts,
)
from spark_audit.report.states import untested
from spark_audit.report.writers.pages import environment
from spark_audit.results import Contrast, Report, Row, grouped, number
from spark_audit.results import Finding as Claimed
from spark_audit.results.findings import SEVERITY, WITHHELD
from spark_audit.sentences import render

FIELDS = ("value", "low", "high", "p")
OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}
NO_CHECKPOINT = "-"
"""Stands for the checkpoint where a rule has none to judge."""

DEFAULT_RULES = ("claim >= membership",)
"""What trips where no rule is given: membership, memory, and verbatim extraction."""

_SCOPE = r"(?:\s+(?P<scope>for|except)\s+(?P<names>\S.*?))?\s*"
_CLAIM = re.compile(
    r"\s*claim\s*(?P<operator><=|>=|==|!=|<|>)\s*(?P<claim>[a-z_]+)" + _SCOPE
)
_GUARD = re.compile(r"\s*guard\s+(?P<guard>\w+)" + _SCOPE)
_RULE = re.compile(
    r"\s*(?P<figure>\S+?)(?:\[(?P<kind>\w+)=(?P<part>[^\]]+)\](?P<field>\.\w+)?)?\s*"
    r"(?P<operator><=|>=|==|!=|<|>|\s(?:rose|fell)\s+by\s)\s*"
    r"(?P<bound>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)" + _SCOPE
)
RULE_SHAPE = (
    "write AUDIT.METRIC[.OF].value|low|high|p OP NUMBER, AUDIT.METRIC[.OF] rose by "
    "NUMBER, claim OP CLAIM or guard NAME [for CHECKPOINT | except CHECKPOINT, ...]"
)
GUARDS = (TRAINED_ROWS_FIT,)
"""Guards that a rule may name; those that void claims violate every rule anyhow."""
CHANGES = ("rose", "fell")
"""Operators of a change since an earlier report."""


State: TypeAlias = Literal["ok", "tripped", "missing", "left_out"]


@dataclass(frozen=True)
class Rule:
    """One rule as it was read: of one checkpoint, or of all but some.

    A rule on claims has a claim and its severity as ``bound``, and no figure; one on a
    guard has its name alone. ``group`` is a part of the rows, ``type:*`` each of a
    kind.
    """

    text: str
    operator: str
    bound: float
    checkpoint: str | None = None
    but: str | None = None
    audit: str = ""
    metric: str = ""
    of: str = ""
    field: str = ""
    claim: str = ""
    guard: str = ""
    group: str = "pooled"

    @property
    def change(self) -> bool:
        """Whether it is of the change since an earlier report."""
        return self.operator in CHANGES

    def holds(self, group: str) -> bool:
        """Whether it is of such a part of the rows."""
        kind, _, part = self.group.partition(":")
        return group.startswith(f"{kind}:") if part == "*" else group == self.group


@dataclass(frozen=True)
class RuleOutcome:
    """What a rule came to on one checkpoint, or why it leaves it out."""

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


def parse_rule(text: str) -> Rule:
    """Read a rule.

    Raises
    ------
    InputError
        If it cannot be read, or names an audit, metric or variant that there is not;
        the known ones are listed.
    """
    where = f"--fail-if {text!r}"
    match = _CLAIM.fullmatch(text) or _GUARD.fullmatch(text) or _RULE.fullmatch(text)
    if match is None:
        raise InputError("is no rule", where=where, fix=RULE_SHAPE)
    told: dict[str, Any] = {"text": text.strip()}
    if match["scope"]:
        told["checkpoint" if match["scope"] == "for" else "but"] = match["names"]
    if match.re is _GUARD:
        guard = match["guard"]
        _check_guard(guard, where)
        return Rule(operator="", bound=0.0, guard=guard, **told)
    told["operator"] = match["operator"].split()[0]
    if match.re is _CLAIM:
        claim = match["claim"]
        if claim not in SEVERITY:
            known = "verbatim" if claim.startswith("extract") else claim
            fix = choose(known, SEVERITY)
            raise InputError(f"unknown claim {claim!r}", where=where, fix=fix)
        return Rule(bound=SEVERITY[claim], claim=claim, **told)
    audit, _, rest = match["figure"].partition(".")
    one_of(audit, where, audit_names())
    if match["kind"]:
        told["group"] = f"{match['kind']}:{match['part']}"
        rest += match["field"] or ""
    field = "value"
    if told["operator"] not in CHANGES:
        rest, _, field = rest.rpartition(".")
    if field not in FIELDS:
        fields = ", ".join(f".{one}" for one in FIELDS)
        fix = f"end {match['figure']} with one of: {fields}"
        raise InputError("the rule does not say which number", where=where, fix=fix)
    if not math.isfinite(bound := float(match["bound"])):
        raise InputError("its bound is not finite", where=where, fix=RULE_SHAPE)
    metric, of = _named(rest, audit, where)
    return Rule(audit=audit, metric=metric, of=of, field=field, bound=bound, **told)


def _check_guard(name: str, where: str) -> None:
    """Refuse a guard that no rule can name.

    Raises
    ------
    InputError
        With what can be named, or why there is no need to.
    """
    if name in GUARDS:
        return
    if name in REMAINS:
        fix = f"leave it out: a checkpoint for which {name} fails violates every rule"
        raise InputError(f"{name} needs no rule", where=where, fix=fix)
    fix = choose(name, GUARDS)
    raise InputError(f"unknown guard {name!r}", where=where, fix=fix)


def _named(text: str, audit: str, where: str) -> tuple[str, str]:
    """Metric and variant; of metrics that it may name the longest: names hold dots."""
    metrics = {metric.name: metric.variants for metric in about(audit).metrics}
    meant = (name for name in metrics if f"{text}.".startswith(f"{name}."))
    metric = max(meant, key=len, default=None)
    if metric is None:
        fix = choose(text.partition(".")[0], metrics)
        raise InputError(f"{audit} has no metric {text!r}", where=where, fix=fix)
    of, known = text[len(metric) + 1 :], metrics[metric]
    if of not in known and not (ANY_NAME in known and of):
        fix = "" if "" in known else f"write {audit}.{metric}.VARIANT; "
        fix += choose(of, (name or "(none)" for name in known))
        what = f"{audit}.{metric} has no variant {of!r}"
        raise InputError(what, where=where, fix=fix)
    return metric, of


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
    """What each rule comes to on every checkpoint, the base and the baseline too.

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
    known = {False: report} | ({} if changed is None else {True: changed})
    pairs = {change: (one, disclosed(one)) for change, one in known.items()}
    found: list[RuleOutcome] = []
    for rule in dict.fromkeys(rules):
        if rule.change not in pairs:
            where = f"--fail-if {rule.text!r}"
            raise InputError("is of a change", where=where, fix="add --against REPORT")
        own = list(_verdicts(*pairs[rule.change], rule, same))
        if all(state == "left_out" for _, state, _ in own):
            own.append((NO_CHECKPOINT, "missing", render("gate.nobody")))
        for name, state, detail in own:
            if state == "missing" and not allow_missing:
                state = "tripped"
            found.append(RuleOutcome(rule.text, name, state, detail))
    return found


def _verdicts(
    report: Report, shared: Report, rule: Rule, same: Collection[str]
) -> Iterator[tuple[str, State, str]]:
    """Of each checkpoint its name, what the rule comes to, and why."""
    names, rows = _names(report), _rows(report, rule)
    by_name = grouped(
        zip(rows, _rows(shared, rule), strict=True), lambda pair: pair[0].checkpoint
    )
    chosen = _chosen(rule, names)
    for name in names:
        pairs = by_name.get(name, [])
        if name not in chosen:
            yield name, "left_out", render("gate.rule")
        elif reason := _impossible(report, rule, rows, name):
            yield name, "left_out", reason
        elif rule.change and name in same:
            yield name, "ok", render("gate.same")
        else:
            if rule.claim:
                state, detail = _claimed(report, rule, name)
            elif rule.guard:
                state, detail = _guarded(report, shared, rule, name)
            else:
                judge = _moved if rule.change else _measured
                state, detail = judge(report, rule, pairs)
            if failed := faults(shared.guards, name):
                why = "; ".join(f"{guard.name}: {guard.detail}" for guard in failed)
                detail = f"{detail}; {why}" if state == "tripped" else why
                state = "tripped" if state == "tripped" else "missing"
            yield name, state, detail


def judged(found: Sequence[RuleOutcome]) -> list[str]:
    """One line per rule: how many checkpoints it judged, and which it left out."""
    lines = []
    for rule, own in grouped(found, attrgetter("rule")).items():
        mine = [one for one in own if one.checkpoint != NO_CHECKPOINT]
        skipped = [one for one in mine if one.state == "left_out"]
        why = grouped(skipped, attrgetter("detail")).items()
        out = {reason: [one.checkpoint for one in of] for reason, of in why}
        counted = len(mine) - len(skipped)
        facts = {"rule": rule, "judged": counted, "all": len(mine), "left_out": out}
        lines.append(render("gate.judged", **facts))
    return lines


def _chosen(rule: Rule, names: Sequence[str]) -> set[str]:
    """Whom a rule speaks of; a method that is left out takes its seeds along."""
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
    """Why there is no such figure of a checkpoint, whatever is measured; else empty."""
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
    """Whom a rule can speak of: checkpoints, and methods that have several seeds.

    A series that only its stages were scored of is known from its rows; a stage speaks
    through its series.
    """
    said = dict.fromkeys(r.checkpoint for r in (*report.results, *report.contrasts))
    names = dict.fromkeys([*(one.name for one in report.checkpoints), *said])
    stages = {k for k in names if series_of(k) != k and series_of(k) in said}
    return [name for name in names if name in said or name not in stages]


def _rows(report: Report, rule: Rule) -> list[Row]:
    """The rows of the rule's figure; p values stand with contrasts only."""
    wanted = (rule.audit, rule.metric, rule.of)
    found = [
        row
        for row in (*report.results, *report.contrasts)
        if (row.audit, row.metric, row.of) == wanted and rule.holds(row.group)
    ]
    plain = [row for row in found if not isinstance(row, Contrast)]
    if rule.field == "p" or rule.change or not plain:
        return [row for row in found if isinstance(row, Contrast)]
    return plain


def _of_metric(report: Report, rule: Rule, name: str) -> list[Row]:
    """The rows of a checkpoint that the rule's metric has, in any group."""
    wanted = (rule.audit, rule.metric, rule.of, name)
    return [
        row
        for row in report.results
        if (row.audit, row.metric, row.of, row.checkpoint) == wanted
    ]


def _measured(report: Report, rule: Rule, pairs: Pairs) -> tuple[State, str]:
    field = "best_p" if rule.field == "p" else rule.field
    sound = [
        (value, _part(shown) + _number(shown, field))
        for row, shown in pairs
        if row.status == "ok" and (value := getattr(row, field)) is not None
    ]
    words = f"{rule.field} " + ", ".join(told for _, told in sound)
    if rule.field != "p" and about(rule.audit).metric(rule.metric).learned < 0:
        words += f" ({render('gate.lower')})"
    # What was measured trips, whatever is missing beside it.
    if any(OPERATORS[rule.operator](value, rule.bound) for value, _ in sound):
        return "tripped", words
    if report.status == "partial":
        return "missing", render("gate.partial")
    if not pairs:
        audits = dict.fromkeys(row.audit for row in report.results)
        return "missing", render("gate.unmeasured", audit=rule.audit, audits=audits)
    for row, _ in pairs:
        if row.status != "ok":
            told = (row.status.replace("_", " "), row.note)
            return "missing", ": ".join(filter(None, told))
    return ("ok", words) if sound else ("missing", f"has no {rule.field}")


def _moved(report: Report, rule: Rule, pairs: Pairs) -> tuple[State, str]:
    """Whether a figure has moved: it trips, is shown to have moved less, or neither.

    ``rose`` is towards more remembering where the metric has such a direction. A change
    as large as the bound is seen in 80 of 100 cases where the smallest effect that the
    contrast can detect is no larger.
    """
    states: dict[State, list[str]] = {"tripped": [], "missing": [], "ok": []}
    toward = about(rule.audit).metric(rule.metric).learned or 1
    sign = toward if rule.operator == "rose" else -toward
    for row, shown in pairs:
        part = _part(row)
        if row.value is None or row.ends is None:
            states["missing"].append(f"{part}not estimable: {row.note}")
            continue
        low, high = sorted(sign * end for end in row.ends)
        words = part + shown.note
        if shown.value is not None:
            way = "rose" if toward * shown.value >= 0 else "fell"
            words = f"{part}{way} by {number(abs(shown.value), 4)}"
        if high >= rule.bound and low > 0:
            states["tripped"].append(words)
        elif high >= rule.bound and (row.mde is None or row.mde > rule.bound):
            least = "" if row.mde is None else number(row.mde)
            states["missing"].append(part + render("gate.power", least=least))
        else:
            states["ok"].append(words)
    told = ((state, ", ".join(said)) for state, said in states.items() if said)
    return next(told, ("missing", render("gate.unchanged")))


def _part(row: Row) -> str:
    return "" if row.group == "pooled" else f"{row.grouping[1]} "


def _number(shown: Row, field: str) -> str:
    return WITHHELD if shown.withheld else number(getattr(shown, field), 4)


def _claimed(report: Report, rule: Rule, name: str) -> tuple[State, str]:
    """What is claimed of a checkpoint; one whose memory was not tested is missing."""
    own = [one for one in report.findings if one.checkpoint == name]
    # One of several claims of the same severity is meant by its name.
    named = rule.operator in ("==", "!=")
    field, bound = ("claim", rule.claim) if named else ("severity", rule.bound)
    holds: Callable[[Any, Any], bool] = OPERATORS[rule.operator]
    tripped = [one for one in own if holds(getattr(one, field), bound)]
    shown = _claims(tripped or own) or render("gate.nothing")
    if tripped:
        return "tripped", shown
    if report.status == "partial":
        return "missing", render("gate.partial")
    if untested(report.findings, [name]):
        return "missing", render("gate.untested")
    if passed := [one for one in own if one.detected]:
        least = min(passed, key=lambda one: one.severity).claim
        shown = render("gate.passes", shown=shown, least=least)
    return "ok", shown


def _guarded(
    report: Report, shared: Report, rule: Rule, name: str
) -> tuple[State, str]:
    """Whether a guard holds for a checkpoint; what was not tested is missing.

    Whatever gives trained rows away shows that these are the rows.
    """
    training = training_of(name)
    own = [
        guard
        for guard in shared.guards
        if guard.name == rule.guard and training_of(guard.checkpoint) == training
    ]
    if opened := [guard for guard in own if not guard.passed]:
        return "tripped", opened[0].detail
    if own:
        return "ok", own[0].detail
    detected = [
        one
        for one in report.findings
        if one.detected and training_of(one.checkpoint) == training
    ]
    if detected:
        return "ok", render("gate.detected", shown=_claims(detected))
    if report.status == "partial":
        return "missing", render("gate.partial")
    return "missing", render("gate.untested_rows")


def _claims(findings: Sequence[Claimed]) -> str:
    """Claims in the order of findings, each once with the audits that make it."""
    by_claim: dict[str, dict[str, None]] = {}
    for one in findings:
        by_claim.setdefault(one.claim, {})[one.audit] = None
    return ", ".join(f"{claim} ({', '.join(of)})" for claim, of in by_claim.items())


# --- what the tools of a pipeline read ------------------------------------------------

SARIF_LEVELS = {"tripped": "error", "missing": "warning"}
"""States that a log names, and as what."""


def junit(found: Sequence[RuleOutcome], *, name: str) -> str:
    """One suite a rule, one case a checkpoint: failed where it tripped.

    Cases whose figure is missing, where that may be, and those that a rule leaves out
    are skipped.

    Parameters
    ----------
    name
        Of all suites, such as the report's folder.
    """
    template = environment(visible=visible).get_template("junit.xml")
    return template.render(
        name=name, found=found, rules=grouped(found, attrgetter("rule"))
    )


def sarif(found: Sequence[RuleOutcome], *, name: str) -> dict[str, Any]:
    """A log of what tripped or lacks a figure, in SARIF 2.1.0 (OASIS, 2020).

    ``name`` is that of the report's folder. GitHub's code scanning asks for both
    descriptions, help and a line as well.
    """
    place = {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(f"{name}/report.json")},
            "region": {"startLine": 1},
        }
    }
    texts = list(dict.fromkeys(visible(one.rule) for one in found))
    help = {"text": "Rules are explained by `spark-audit gate --help`."}
    words = ("shortDescription", "fullDescription")
    rules = [
        {"id": f"gate/{k}", "help": help, **dict.fromkeys(words, {"text": text})}
        for k, text in enumerate(texts)
    ]
    results = [
        {
            "ruleId": f"gate/{texts.index(visible(one.rule))}",
            "level": SARIF_LEVELS[one.state],
            "message": {"text": visible(f"{one.whom}: {one.rule}: {one.detail}")},
            "locations": [place | {"logicalLocations": [{"name": one.whom}]}],
        }
        for one in found
        if one.state in SARIF_LEVELS
    ]
    driver = {"name": "spark-audit", "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


STATEMENT = "https://in-toto.io/Statement/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
SHARED = ("html", "md", "csv", "latex", "figures", "card")
"""Formats whose files never hold anything private, by their writers."""


def statement(
    report: Report, folder: Path, found: Sequence[RuleOutcome], *, allow_missing: bool
) -> bytes:
    """What the rules of a gate came to on the checkpoints of a report, as JSON.

    Parameters
    ----------
    folder
        Of the report: its files are named, each with its digest. Of private files it
        is keyed by the report, and left out where a report has no key.
    found
        Of :func:`spark_audit.report.gate.check`.
    """
    keyed = manifest_facts(report.manifest).digest.removeprefix(KEYED)
    parts = [{"name": "manifest", "digest": {"hmacSha256": keyed}}]
    shared_files = {n for kind in SHARED for n in report.files.get(kind, ())}
    for name in sorted({"report.json", *chain(*report.files.values())}):
        path = folder / name
        if not path.exists():
            continue
        digest = sha256_file(path)
        # Whatever is unknown of a private file could be tried out against its digest.
        # The key is in report.json itself: nobody can try that out.
        if name in shared_files or (name == "report.json" and report.manifest.key):
            parts.append({"name": name, "digest": {"sha256": digest}})
        elif report.manifest.key:
            keyed = keyed_digest(report.manifest, digest)
            parts.append({"name": name, "digest": {"hmacSha256": keyed}})
    gate = {
        "rules": list(dict.fromkeys(one.rule for one in found)),
        "allowMissing": allow_missing,
        "versions": report.versions,
    }
    passed, warned, failed = (
        [f"{one.whom}: {one.rule}" for one in found if one.state == state]
        for state in ("ok", "missing", "tripped")
    )
    return canonical_json(
        {
            "_type": STATEMENT,
            "subject": [
                {"name": one.name, "digest": {"sha256": one.weights_sha256}}
                for one in report.checkpoints
            ],
            "predicateType": TEST_RESULT,
            "predicate": {
                "result": "FAILED" if failed else "WARNED" if warned else "PASSED",
                "configuration": [*parts, {"name": "gate", "annotations": gate}],
                "passedTests": passed,
                "warnedTests": warned,
                "failedTests": failed,
            },
        }
    )


def read_rules(path: Path) -> tuple[bytes, list[str], bool]:
    """A statement's bytes, its rules, and whether missing figures pass.

    Raises
    ------
    InputError
        If it is none of ours.
    """
    content = read_regular(path)
    whole = parse_json(content, place=str(path))
    try:
        gate = whole["predicate"]["configuration"][-1]["annotations"]
        known = [whole["_type"], whole["predicateType"]] == [STATEMENT, TEST_RESULT]
        known = known and all(isinstance(one, str) for one in gate["rules"])
        rules, allow_missing = [*gate["rules"]], bool(gate["allowMissing"])
    except (LookupError, TypeError):
        known = False
    if not known:
        fix = "give what `spark-audit gate --attest` wrote, without its signature"
        raise InputError("is no statement on a report", where=str(path), fix=fix)
    return content, rules, allow_missing


def differences(ours: bytes, theirs: bytes) -> list[str]:
    """What a statement says otherwise than one made now, by name."""
    here, there = (
        grouped(_parts(json.loads(one)), itemgetter(0)) for one in (ours, theirs)
    )
    names = sorted(k for k in {*here, *there} if here.get(k) != there.get(k))
    return names or ["its form"] * (ours != theirs)


def _parts(whole: Any, name: str = "its form") -> Iterator[tuple[str, Any]]:
    """Each part of a statement under the name of the file, model or list it is of."""
    if isinstance(whole, dict) and "name" in whole:
        place = "weights of " * (name == "subject")
        yield f"{place}{whole['name']}", whole
    elif isinstance(whole, dict):
        for key, part in whole.items():
            yield from _parts(part, key)
    elif isinstance(whole, list):
        yield name, len(whole)
        for part in whole:
            yield from _parts(part, name)
    else:
        yield name, whole
