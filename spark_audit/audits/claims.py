"""What is claimed once all primary tests of a report count: one family, by Holm.

Among many checkpoints and audits some test comes out by chance alone. A detection is
claimed only where its p holds once corrected over all primary tests of the report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from spark_audit.names import (
    ANY,
    BASE,
    RELEARN,
    CheckpointName,
    entry_of,
    original_of,
    series_of,
)
from spark_audit.results import Claim, Finding, Guard, Row
from spark_audit.results.findings import DETECTED, SEVERITY
from spark_audit.stats.bootstrap import holm
from spark_audit.stats.power import smallest

LEVEL = 0.05
TESTS = "primary_tests"
"""Setting of a report: how many tests its primary family has."""
HELD_OUT_BACK, BASE_READ, BROKEN = "held_out_back", "base_read_rows", "broken_model"
"""Setup guards: where one fails, the checkpoint's memory was not tested."""
ALARM = 0.005
"""p below which a test of a setup guard fails: it is asked twice at most for each guard
of a report, so that a sound setup fails in one of 100 **[ours]**."""
REMAINS: Mapping[str, Mapping[Claim, Collection[str]]] = {
    # Held-out rows that were trained on hide memory, and swapped lists reverse it:
    # neither makes trained identifiers likelier than held-out ones.
    HELD_OUT_BACK: {"verbatim": ("extract",), "memory": (ANY,)},
    # Changes since such a base say nothing. Strings that come back beyond those that
    # the base gives, and canaries among strings that nobody inserted, do.
    BASE_READ: {"verbatim": ("extract",), "memory": ("canary",)},
    # Drift by many nats enlarges every difference that there was before. Candidates
    # of a canary, and word for word, have no such difference.
    BROKEN: {"verbatim": ("extract",), "memory": ("canary",)},
}
"""Setup guard -> claims that its fault cannot cause, and of which audits. Where it
fails all other claims of the checkpoint are void, and so is that nothing was shown."""


def family(findings: Iterable[Finding]) -> list[Finding]:
    """The primary tests among findings; the base was trained on nothing."""
    return [
        one
        for one in findings
        if one.family == "primary" and one.p is not None and one.checkpoint != BASE
    ]


def corrected(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, each claiming what it may among all of these.

    ``p_adjusted`` of a primary finding is its p corrected by Holm over the primary
    findings, those that claim nothing included. A detection that does not hold claims
    ``nothing_shown`` and changes its sentences; given again among other findings it
    may claim it again, since all that is needed stays in it. Smallest effects are those
    of Holm's first step among so many tests.
    """
    tests = family(findings)
    ps = holm([one.p or 0.0 for one in tests]).tolist()
    adjusted = {id(one): p for one, p in zip(tests, ps, strict=True)}
    return [_judged(one, adjusted.get(id(one)), len(tests)) for one in findings]


def _judged(finding: Finding, p: float | None, tests: int) -> Finding:
    changes: dict[str, Any] = {}
    if p is not None:
        holds = p < LEVEL or SEVERITY[finding.alone] < DETECTED
        claim = finding.alone if holds else "nothing_shown"
        changes = {"p_adjusted": p, "claim": claim, "tests": tests}
    if finding.power:
        # What is no test of the family would be one more if it detected something.
        level = LEVEL / (tests + (p is None))
        power = [
            one.model_copy(update={"mde": smallest(one, level)})
            for one in finding.power
        ]
        needed = [one.mde for one in power if not one.of]
        known = [mde for mde in needed if mde is not None]
        least = max(known, default=None) if len(known) == len(needed) else None
        changes |= {"power": power, "mde": least}
    return finding.model_copy(update=changes) if changes else finding


R = TypeVar("R", bound=Row)


def at_level(rows: Iterable[R], findings: Iterable[Finding]) -> list[R]:
    """The rows, the figures of claims with the smallest effect of their findings."""
    claims = {_figure(one): one for one in findings if one.power}
    made = []
    for row in rows:
        one = claims.get(_figure(row))
        if one is not None and one.mde != row.mde:
            row = row.model_copy(update={"mde": one.mde})
        made.append(row)
    return made


def _figure(one: Row | Finding) -> tuple[object, ...]:
    place = (one.audit, one.checkpoint, one.metric, one.of, one.group, one.unit)
    ends = (one.value, one.low, one.high)
    # Sums in another order differ in their last digits.
    return (*place, *(None if end is None else f"{end:.9g}" for end in ends))


def faults(guards: Iterable[Guard], name: str) -> list[Guard]:
    """The setup guards that failed for a checkpoint, the first of each name.

    Those of its seeds, of its stages and of what it was rounded from count as its own,
    and those of the base as everybody's. The base itself has none: it is no suspect.
    """
    if name == BASE:
        return []
    whose = {BASE, _entry(name), _entry(original_of(name))}
    mended = CheckpointName.parse(name).derived == RELEARN
    found: dict[str, Guard] = {}
    # Its own reason first: the base of a checkpoint that is its base has read the rows.
    for one in sorted(guards, key=lambda one: one.checkpoint == BASE):
        # A short training may mend a broken model: it is asked of its own weights.
        own = one.name != BROKEN or not mended or _entry(one.checkpoint) == name
        if one.name in REMAINS and one.passed is False and own:
            if _entry(one.checkpoint) in whose:
                found.setdefault(one.name, one)
    return list(found.values())


def without_void(findings: Iterable[Finding], guards: Iterable[Guard]) -> list[Finding]:
    """The findings; those that a setup guard voids have the status ``invalid``.

    They keep their figures, and are no detections.
    """
    guards, made = list(guards), []
    for one in findings:
        tested = one.family == "primary" and one.alone == "nothing_shown"
        claims = tested or SEVERITY[one.alone] >= DETECTED
        for guard in faults(guards, one.checkpoint) if claims else ():
            remains = REMAINS[guard.name].get(one.alone, ())
            if one.status != "invalid" and not {one.audit, ANY} & {*remains}:
                void = {"status": "invalid", "voided_by": guard.name}
                one = one.model_copy(update=void)
        made.append(one)
    return made


def _entry(name: str) -> str:
    return entry_of(series_of(name))


def carriers(findings: Iterable[Finding], audit: str) -> dict[str, str]:
    """Method -> the variant that an audit's severest finding of it rests on.

    Of replicates it is that of the severest; methods whose findings rest on no figure
    are left out.
    """
    severest: dict[str, Finding] = {}
    for finding in findings:
        # Headlines of several seeds are figures chosen beforehand.
        if finding.audit != audit or not finding.of or finding.claim == "moved":
            continue
        method = entry_of(finding.checkpoint)
        if method not in severest or finding.severity > severest[method].severity:
            severest[method] = finding
    return {method: finding.of for method, finding in severest.items()}
