"""Where each checkpoint stands: its state, the evidence, what was tried, what is next.

The answer that every format of a report says first. It is read from the typed findings
alone, so that no two formats can answer differently.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spark_audit.audits import AUDITS
from spark_audit.audits.claims import (
    BASE_READ,
    BROKEN,
    GIVE,
    GIVE_ALIKE,
    HELD_OUT_BACK,
    TESTS,
    faults,
    level_of,
    remembers,
    unclear,
)
from spark_audit.audits.contract import About
from spark_audit.audits.matched.matched_findings import BALANCE
from spark_audit.checkpoints.specs import BASE
from spark_audit.names import entry_of, series_of
from spark_audit.report.tables import entries
from spark_audit.results import OF_REPORT, Finding, Guard, Report, by_severity, number
from spark_audit.results.findings import DETECTED, SEVERITY

State = Literal["LEAKS", "DETECTABLE", "NOT SHOWN", "NOT TESTED"]
STATES: dict[State, str] = {
    "LEAKS": "what it was trained on comes back, or is shown to be remembered",
    "DETECTABLE": "it can be told whose rows were in its training",
    "NOT SHOWN": "tested, and nothing is claimed; how small an effect would have been "
    "found is told",
    "NOT TESTED": "nothing here could have shown what it remembers",
}
"""The states, the worst first, and what they mean."""
SHAPES: dict[State, str] = {
    "LEAKS": "▲",
    "DETECTABLE": "◆",
    "NOT SHOWN": "○",
    "NOT TESTED": "?",
}
"""A sign a state: none is told by its colour alone."""
NEXT: dict[State, str] = {
    "LEAKS": "Do not ship it as it is: train it again without the rows at risk, or "
    "with a privacy correction, and audit it again.",
    "DETECTABLE": "Ship it only where nobody is harmed by its being known whose rows "
    "it was trained on.",
    "NOT SHOWN": "Nothing is claimed, which proves no absence: decide whether an "
    "effect smaller than the one named would matter",
    "NOT TESTED": f"{GIVE}.",
}
"""What to do next, by state."""
MENDED: dict[str, str] = {
    HELD_OUT_BACK: "Find out which rows were in the training, build the manifest with "
    "held-out rows that were in none, and audit again.",
    BASE_READ: "Name as --base the model as it was before it read any of these rows, "
    "and audit again.",
    BROKEN: "A short training on other rows may bring back what a broken model knew: "
    "run `spark-train relearn` on it, and audit the result.",
}
"""What to do next where a setup guard failed."""
READING = "brackets are 95% intervals"
"""How the sentences of the first screen are to be read."""
UNITS = {
    "nats": "Nats a token: below 0, identifiers became likelier than those of rows "
    "never trained on (-0.69: twice as likely a token); so far below 0 would have been "
    "detected",
    "bits": "A bit: half as many other strings are likelier than the true one",
    "AUC": "An AUC is how often a row trained on looks more so than one that is not: "
    "0.5 is chance, 1 always",
}
"""What the units of those sentences mean; only those that they use are explained."""
MEANT = (
    "confounded: cannot be told from what has nothing to do with training; void: "
    "tried, but its figures say nothing; not tested: not in these data, or not run"
)
"""What the outcomes mean that do not say it themselves."""

Outcome = Literal["FOUND", "confounded", "not shown", "void", "not tested"]
OUTCOMES: tuple[Outcome, ...] = (
    "FOUND",
    "confounded",
    "void",
    "not tested",
    "not shown",
)


@dataclass(frozen=True)
class Tried:
    """One attack on one checkpoint.

    Attributes
    ----------
    audit, attack
        Its name, and what it tries, in words.
    outcome
        ``void``: tried, but its figures say nothing.
    finding
        What the outcome rests on, if on one.
    ran
        Whether the report has this audit.
    """

    audit: str
    attack: str
    outcome: Outcome
    finding: Finding | None = None
    ran: bool = True


@dataclass(frozen=True)
class Standing:
    """Where one checkpoint, or method with several seeds, stands.

    Attributes
    ----------
    name, state
        Who, and in which state.
    detections
        All that was detected, the strongest evidence first.
    lead, led_by
        The sentence to be told, without its subject, and its finding: the strongest
        evidence, of which that of smallest p where nothing is claimed.
    tried
        Every attack in the order of audits, the untried ones too.
    exposed
        Of one that remembers identifiers, the types that it remembers most, each with
        its figure: exploratory, to say where to look first.
    faults
        Setup guards that failed for it; the lead names them.
    """

    name: str
    state: State
    detections: tuple[Finding, ...]
    lead: str
    tried: tuple[Tried, ...]
    exposed: str = ""
    faults: tuple[Guard, ...] = ()
    led_by: Finding | None = None

    @property
    def ships(self) -> bool:
        """Whether ``gate`` lets it pass where it is given no rule."""
        told = any(SEVERITY["membership"] <= one.severity for one in self.detections)
        return not told and self.state != "NOT TESTED"

    @property
    def audit(self) -> str:
        """Where the evidence for the lead stands; empty: nowhere."""
        return self.led_by.audit if self.led_by else ""

    @property
    def unclear(self) -> bool:
        """Whether something was measured that the texts may have caused."""
        return any(one.finding and unclear(one.finding) for one in self.tried)

    @property
    def tally(self) -> dict[Outcome, list[Tried]]:
        """The attacks by what they came to, what was found first."""
        parts = {
            outcome: [one for one in self.tried if one.outcome == outcome]
            for outcome in OUTCOMES
        }
        return {outcome: part for outcome, part in parts.items() if part}


def standings(report: Report) -> list[Standing]:
    """Every checkpoint but the base, the worst first; the base where it leaks itself.

    Empty where no audit of the report attacks anything.
    """
    attacks = {name: about.attack for name, about in _attacks()}
    if not any(row.audit in attacks for row in report.results):
        return []
    by_entry: dict[str, list[Finding]] = {name: [] for name in entries(report)}
    for finding in report.findings:
        by_entry.setdefault(_entry(finding.checkpoint), []).append(finding)
    scored = {(row.audit, _entry(row.checkpoint)) for row in report.results if row.n}
    scored |= {(row.audit, "") for row in report.results}
    scored |= {(one.audit, "") for one in report.findings}
    found = [
        replace(
            _standing(name, own, attacks, scored, faults(report.guards, name)),
            exposed=_exposed(report, name, own),
        )
        for name, own in by_entry.items()
        if name and (name != BASE or any(one.detected for one in own))
    ]
    return sorted(found, key=lambda one: (list(STATES).index(one.state), _place(one)))


def answer(found: Sequence[Standing]) -> str:
    """The report in one line: how many checkpoints are in which state."""
    if len(found) == 1:
        return f"{found[0].name}: {found[0].state}"
    parts = []
    for state in STATES:
        names = [one.name for one in found if one.state == state]
        if names:
            named = f" ({names[0]})" if len(names) == 1 else ""
            parts.append(f"{len(names)} {state}{named}")
    return f"Of {len(found)} checkpoints: {', '.join(parts)}"


def advice(found: Sequence[Standing]) -> dict[State, str]:
    """What to do next, by the states that there are."""
    told = {state: NEXT[state] for state in dict.fromkeys(one.state for one in found)}
    if "NOT SHOWN" in told:
        more = _open([one for one in found if one.state == "NOT SHOWN"])
        told["NOT SHOWN"] = ". ".join([told["NOT SHOWN"], *more]) + "."
    if "NOT TESTED" in told:
        lacking = [one for one in found if one.state == "NOT TESTED"]
        parts = [
            f"{give}."
            for give in (GIVE, GIVE_ALIKE)
            if any(not k.faults and k.unclear == (give == GIVE_ALIKE) for k in lacking)
        ]
        for name, mended in MENDED.items():
            of = [k.name for k in lacking if name in {guard.name for guard in k.faults}]
            whose = f"{', '.join(of)}: " if len(of) < len(lacking) else ""
            parts += [f"{whose}{mended}"] if of else []
        told["NOT TESTED"] = " ".join(parts)
    return told


def _open(clean: Sequence[Standing]) -> list[str]:
    """What tests of checkpoints without a claim are open, and who can close them."""
    again: dict[str, None] = {}
    unanswered: dict[str, list[str]] = {}
    planted = True
    for one in clean:
        for tried in one.tried:
            if not tried.ran:
                again[tried.audit] = None
            elif tried.outcome == "not tested" and tried.audit == "canary":
                planted = False
            elif tried.outcome not in ("FOUND", "not shown"):
                unanswered.setdefault(tried.attack, []).append(one.name)
    told = []
    if again:
        command = ", ".join(f"`spark-audit {audit}`" for audit in again)
        told.append(f"Not run yet: {command}, with the same options")
    if not planted:
        told.append("Canaries were not planted: only a new training run can test this")
    if unanswered:
        named = [
            attack + ("" if len(names) == len(clean) else f" ({', '.join(names)})")
            for attack, names in unanswered.items()
        ]
        told.append(
            f"Without an answer, for the reasons in the report: {', '.join(named)}"
        )
    return told


def doubts(report: Report, found: Sequence[Standing]) -> str:
    """Which of the audit's own checks did not hold, and what that does to the states.

    Not that something FAILED: beside a checkpoint that passes, readers took that for
    the checkpoint. Empty where all held.
    """
    failed: dict[str, list[str]] = {}
    for guard in report.guards:
        if guard.passed is False:
            failed.setdefault(guard.name, []).append(guard.checkpoint)
    if not failed:
        return ""
    named = [
        f"{name} ({', '.join(of)})" if all(of) else name for name, of in failed.items()
    ]
    one = len(failed) == 1
    told = f"{'A check' if one else f'{len(failed)} checks'} of this audit's own did "
    told += f"not hold: {', '.join(named)}."
    worst = [g.detail for g in report.guards if g.name == BALANCE and not g.passed]
    told += "".join(f" {one[0].upper()}{one[1:]}." for one in worst)
    marked = any({"void", "confounded"} & {*standing.tally} for standing in found)
    if found and marked:
        them = "it" if one else "them"
        told += f" What rests on {them} is void or confounded below and counts for "
        told += "nothing, neither way."
    return told


def reading(report: Report, found: Sequence[Standing]) -> str:
    """How the sentences about these are to be read: no unit is left unexplained."""
    said = " ".join(f"{one.lead} {'nats' if one.exposed else ''}" for one in found)
    units = [text for unit, text in UNITS.items() if unit in said]
    level = level_of(int(report.settings.get(TESTS, 0)))
    return ". ".join([f"{READING}; {level}", *units])


def gate(found: Sequence[Standing]) -> str:
    """What the gate without rules makes of each."""
    parts = {"stops": [], "passes": []}  # type: dict[str, list[str]]
    for one in found:
        why = [guard.name for guard in one.faults]
        if one.ships and one.detections:
            why = ["DETECTABLE by suppression, which only 'claim >= betrays' stops"]
        name = f"{one.name} ({', '.join(why)})" if why else one.name
        parts["passes" if one.ships else "stops"].append(name)
    told = [f"{k} {', '.join(names)}" for k, names in parts.items() if names]
    if any(
        one.ships and {"void", "confounded", "not tested"} & {*one.tally}
        for one in found
    ):
        told.append("what was void, confounded or not tested it does not judge")
    return "; ".join(told)


def covered(report: Report) -> list[str]:
    """What each attack was tried on, and which came to no figure."""
    told, lacking = [], []
    for name, about in _attacks():
        rows = [row for row in report.results if row.audit == name and row.n]
        metric, unit, words = about.covers
        mine = [row for row in rows if row.metric == metric]
        mine = [row for row in mine if row.checkpoint != BASE] or mine
        pooled = [getattr(row, unit) for row in mine if row.group == "pooled"]
        if not pooled:
            lacking.append(about.attack)
            continue
        types = [r.grouping[1] for r in mine if r.grouping[0] == "type"]
        of = f" ({len(set(types))} types)" if len(set(types)) > 1 else ""
        told.append(f"{about.attack}: {max(pooled)} {words}{of}")
    if lacking:
        told.append(f"without a figure: {', '.join(lacking)}")
    return told


def _attacks() -> Iterator[tuple[str, About]]:
    for name in AUDITS.in_order():
        about = AUDITS.about(name)
        if about.attack:
            yield name, about


def _entry(name: str) -> str:
    return entry_of(series_of(name)) if name else ""


def _place(one: Standing) -> float:
    return -max((finding.severity for finding in one.detections), default=0)


def _standing(
    name: str,
    findings: Iterable[Finding],
    attacks: dict[str, str],
    scored: Collection[tuple[str, str]],
    failed: Sequence[Guard],
) -> Standing:
    own = [one for one in by_severity(findings) if one.audit in (*attacks, OF_REPORT)]
    tried = tuple(
        _tried(
            audit,
            attack,
            [one for one in own if one.audit == audit],
            scored=(audit, name) in scored,
            ran=(audit, "") in scored,
        )
        for audit, attack in attacks.items()
    )
    detections = tuple(one for one in own if one.detected)
    why = " ".join(guard.detail for guard in failed)
    if detections:
        leaks = detections[0].severity >= SEVERITY["memory"]
        state: State = "LEAKS" if leaks else "DETECTABLE"
        first = detections[0]
        lead = " ".join(filter(None, [_told(first, name), why]))
        return Standing(
            name, state, detections, lead, tried, faults=tuple(failed), led_by=first
        )
    if failed:
        return Standing(name, "NOT TESTED", (), why, tried, faults=tuple(failed))
    if not any(map(remembers, own)):
        # The report says at its head why, once for all.
        return Standing(name, "NOT TESTED", (), "Memory was not tested.", tried)
    least = _least(own)
    lead = "Nothing was found." if least is None else _told(least, name)
    return Standing(name, "NOT SHOWN", (), lead, tried, led_by=least)


def _least(own: Iterable[Finding]) -> Finding | None:
    """The primary test with the smallest p, whatever it claims; a void one last."""
    tests = (f for f in own if f.family == "primary" and f.claim != "not_tested")

    def place(one: Finding) -> tuple[bool, float]:
        return one.status != "ok", 1.0 if one.p is None else one.p

    return min(tests, key=place, default=None)


MOST = 3
"""Types that are named as the most exposed."""


def _exposed(report: Report, name: str, own: Sequence[Finding]) -> str:
    """Types whose trained identifiers became likelier than never-trained ones."""
    if not any(one.severity >= SEVERITY["memory"] for one in own):
        return ""
    rows = [
        row
        for row in report.results
        if (row.audit, row.metric, row.checkpoint) == ("matched", "memory", name)
        and row.grouping[0] == "type"
        and row.status == "ok"
        and row.value is not None
        and row.high is not None
        and row.high < (row.null_low or 0.0)
    ]
    rows.sort(key=lambda row: row.value or 0.0)
    return ", ".join(f"{row.grouping[1]} {number(row.value)}" for row in rows[:MOST])


def _tried(
    audit: str, attack: str, own: Sequence[Finding], *, scored: bool, ran: bool
) -> Tried:
    """What one audit came to; where nothing was found, the smallest p speaks for it."""
    first = own[0] if own else None
    if first is not None and first.severity >= DETECTED:
        return Tried(audit, attack, "FOUND", first)
    tests = [one for one in own if one.family == "primary"]
    confounded = next((one for one in own if one.claim == "confounded"), None)
    if confounded is not None:
        return Tried(audit, attack, "confounded", confounded)
    shown = _least(tests)
    if shown is not None:
        sound = shown.status == "ok"
        return Tried(audit, attack, "not shown" if sound else "void", shown)
    return Tried(audit, attack, "void" if scored else "not tested", first, ran=ran)


def _told(finding: Finding, name: str) -> str:
    """A finding's sentence without the name that stands before it."""
    for subject in (finding.checkpoint, name):
        if subject and finding.sentence.startswith(f"{subject}: "):
            rest = finding.sentence.removeprefix(f"{subject}: ")
            return f"{rest[:1].upper()}{rest[1:]}"
    return finding.sentence
