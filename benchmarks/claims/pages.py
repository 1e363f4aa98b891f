"""``claims.json``, ``claims.md``, ``claims.html``: the answer first, then the table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from jinja2 import Environment, StrictUndefined

from claims.rules import VERDICTS, Decision, Figure
from spark_audit.files import write_text
from spark_audit.report.cells import shown
from spark_audit.report.writers.markdown import table

COLUMNS = ("claim", "the paper", "here", "holds if the interval is")
HEADER = (*COLUMNS, "by seed or order")
UNTOLD = (*COLUMNS, "smallest that would be seen")
LEAD = {
    "holds": "Hold",
    "fails": "Fail",
    "not detectable here": "Cannot be judged",
    "not run": "Not run",
}
AGAINST = "Against the paper, but not judged"
SCOPE = (
    "Brackets are 95% intervals, each by itself: of so many claims one or two may be "
    "judged wrongly, and those of one figure fall together. What cannot be judged is "
    "neither confirmed nor refuted. Nothing here speaks of other models or data."
)
WORDS = {
    "Last, BWT": "mean accuracy over the tasks after the last one; how it changed "
    "since each was learned (below 0: forgotten)",
    "Delta_sel": "by how much less likely identifiers are than tokens that were as "
    "hard for the base, nats a token",
    "Low-sensitivity tokens": "those that are no identifiers",
    "SD-Replay, correction": "SPARK's learning of a task, and the steps after it: "
    "unlikelihood, dKL, and anchors to the current and the old model",
    "Exposure": "bits by which a canary is ranked above strings like it",
    "er-full": "ER that learns whole texts: the positive control, which the audits "
    "must find",
    "tab:, fig:": "labels in the source of the paper",
}


@dataclass(frozen=True)
class Study:
    """What a study is of, and what it came to.

    Attributes
    ----------
    subject
        Model, data and runs, in a sentence.
    caveat
        What else a reader must know before the table; may be empty.
    facts
        Name -> what stands at the foot of the page: base, data, seeds, settings.
    systems
        Header and rows of the table of all systems.
    notes
        What is ours in the systems, one sentence each.
    """

    decisions: tuple[Decision, ...]
    subject: str
    caveat: str
    facts: dict[str, str]
    systems: tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]
    notes: tuple[str, ...]


def write(study: Study, folder: Path) -> None:
    """Write the three pages; JSON first."""
    write_text(folder / "claims.json", json.dumps(_record(study), indent=1) + "\n")
    write_text(folder / "claims.md", markdown(study))
    write_text(folder / "claims.html", html(study))


def answer(decisions: Sequence[Decision]) -> str:
    """How many hold, fail and cannot be judged, in one sentence."""
    counts = Counter(decision.verdict for decision in decisions)
    against = sum(decision.against for decision in decisions)
    but = f" ({against} of them point against the paper)" if against else ""
    parts = [
        f"{counts['holds']} hold",
        f"{counts['fails']} fail",
        f"{counts['not detectable here']} cannot be judged here{but}",
    ]
    if counts["not run"]:
        parts.append(f"{counts['not run']} were not run")
    ours = sum(not decision.claim.table for decision in decisions)
    own = f", {ours} of them ours" if ours else ""
    return f"Of {len(decisions)} claims{own}: {', '.join(parts)}."


PLACES = (*VERDICTS[:2], "against", *VERDICTS[2:])
Group: TypeAlias = tuple[str, str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, one of ``PLACES``, header and rows of a table of claims."""


def groups(decisions: Sequence[Decision]) -> list[Group]:
    """What holds, what fails, and what cannot be judged, by reason."""
    found: list[Group] = []
    for verdict in VERDICTS:
        own = [one for one in decisions if one.verdict == verdict]
        if verdict in ("holds", "fails"):
            reasons = {"": own} if own else {}
        else:
            counts = Counter(one.why for one in own).most_common()
            reasons = {why: [one for one in own if one.why == why] for why, _ in counts}
        for why, alike in reasons.items():
            header = UNTOLD if why else HEADER
            for against in (True, False):
                rows = [
                    cells(one, told=not why) for one in alike if one.against == against
                ]
                lead = AGAINST if against else LEAD[verdict]
                title = f"{lead}: {why}" if why else lead
                place = "against" if against else verdict
                if rows:
                    found.append((f"{title} ({len(rows)})", place, header, rows))
    return sorted(found, key=lambda group: PLACES.index(group[1]))


def cells(decision: Decision, *, told: bool) -> tuple[str, ...]:
    """One line of a table of claims."""
    claim, figure = decision.claim, decision.figure
    says = claim.says if claim.table else f"{claim.says} *"
    paper = "-" if claim.paper is None else f"{shown(claim.paper)} ({claim.table})"
    return (
        says,
        paper,
        measured(figure),
        _rule(decision),
        ", ".join(shown(value) for value in figure.by_seed) or "-"
        if told
        else shown(figure.smallest),
    )


def _rule(decision: Decision) -> str:
    claim, chance = decision.claim, decision.figure.chance
    if decision.small:
        return f"{claim.rule} (here less than the {claim.least:g} that counts)"
    if claim.within == "chance" and chance is not None:
        return f"{claim.rule} (chance: {shown(chance)})"
    return claim.rule


def measured(figure: Figure) -> str:
    """A figure with its interval, or why there is none."""
    if figure.value is None:
        return "not estimable"
    if figure.low is None or figure.high is None:
        return f"{shown(figure.value)} (no interval)"
    text = f"{shown(figure.value)} [{shown(figure.low)}, {shown(figure.high)}]"
    return f"{text}, one seed" if figure.over == "sources" else text


def scope(study: Study) -> str:
    """What a reader must know before the tables."""
    return " ".join(filter(None, (study.subject, study.caveat, SCOPE)))


def markdown(study: Study) -> str:
    """The page as Markdown."""
    parts = [
        "# The paper's claims",
        answer(study.decisions),
        scope(study),
    ]
    for title, _, header, rows in groups(study.decisions):
        parts += [f"## {title}", table(header, rows)]
    parts += ["\\* ours, not the paper's.", "## Words", _listed(WORDS)]
    parts += ["## Systems", table(*study.systems)]
    parts += ["## What this is of", _listed(study.facts)]
    if study.notes:
        parts += ["## Ours", "\n".join(f"- {note}" for note in study.notes)]
    return "\n\n".join(parts) + "\n"


def _listed(told: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {text}" for name, text in told.items())


def html(study: Study) -> str:
    """The page as HTML that needs nothing else."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = (Path(__file__).parent / "claims.html.j2").read_text("utf-8")
    return environment.from_string(text).render(
        answer=answer(study.decisions),
        scope=scope(study),
        groups=groups(study.decisions),
        words=WORDS,
        systems=study.systems,
        facts=study.facts,
        notes=study.notes,
    )


def _record(study: Study) -> dict[str, Any]:
    return {
        "kind": "spark-train claims",
        "answer": answer(study.decisions),
        "subject": study.subject,
        "caveat": study.caveat,
        "claims": [_entry(one) for one in study.decisions],
        "systems": _records(*study.systems),
        "study": study.facts,
        "ours": list(study.notes),
    }


def _entry(decision: Decision) -> dict[str, Any]:
    claim = decision.claim.model_dump(exclude_none=True)
    return {
        **claim,
        "rule": decision.claim.rule,
        **asdict(decision.figure),
        "verdict": decision.verdict,
        "why": decision.why,
        "against": decision.against,
    }


def _records(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[Any]:
    return [dict(zip(header, row, strict=True)) for row in rows]
