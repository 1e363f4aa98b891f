"""What was found, in a reader's terms: a sentence and a line of figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_audit.audits import about
from spark_audit.audits.strongest_leaks import strongest_leaks
from spark_audit.report.figures_line import figures_line
from spark_audit.report.matrix import effect_size, effect_text
from spark_audit.report.standings import SHAPES, Standing, State, method_of
from spark_audit.results import Finding
from spark_audit.sentences import capitalised, knows, optional, render
from spark_audit.sentences.effects import effect_in_words
from spark_audit.sentences.renderer import likelier, listed

MAX_CONSEQUENCES = 3
"""Checkpoints whose consequence stands at a glance; the others have their row."""


@dataclass(frozen=True)
class Consequence:
    """What was found in a checkpoint, and the figures behind it.

    Attributes
    ----------
    state, names
        Checkpoints that it is said of: one, or all of equal result.
    sentence
        At most 25 words.
    figures
        The line of figures; empty where the sentence is of several checkpoints.
    """

    state: State
    names: tuple[str, ...]
    sentence: str
    figures: str = ""

    @property
    def label(self) -> str:
        """Return the sign of the state, and who it is said of."""
        if len(self.names) == 1:
            return f"{SHAPES[self.state]} {self.names[0]}"

        count = render("glance.count", count=len(self.names))
        return f"{SHAPES[self.state]} {count}"


@dataclass(frozen=True)
class Limit:
    """How much could still be there in one checkpoint, where nothing was found."""

    checkpoint: str
    size: float
    unit: str


def main_consequences(standings: Sequence[Standing]) -> Iterator[Consequence]:
    """Yield a sentence for each of the worst checkpoints, then one for the clean."""
    leaking = [standing for standing in standings if standing.detections]
    for standing in leaking[:MAX_CONSEQUENCES]:
        severest = standing.detections[0]
        yield Consequence(
            state=standing.state,
            names=(standing.name,),
            sentence=consequence_sentence(severest),
            figures=figures_line(severest),
        )

    others = leaking[MAX_CONSEQUENCES:]
    if others:
        yield Consequence(
            state=others[0].state,
            names=tuple(standing.name for standing in others),
            sentence=render("glance.see_matrix"),
        )

    clean = [standing for standing in standings if standing.state == "NO LEAK FOUND"]
    if clean:
        yield Consequence(
            state="NO LEAK FOUND",
            names=tuple(standing.name for standing in clean),
            sentence=nothing_found(clean, _audit_of_memory(clean[0]), standings),
        )


def consequences_of_audit(
    standings: Sequence[Standing], findings: Sequence[Finding], audit: str
) -> Iterator[Consequence]:
    """Yield what one attack found, a sentence each, then one where it found nothing."""
    states = {standing.name: standing.state for standing in standings}
    for finding in findings:
        if finding.audit == audit and finding.detected:
            yield Consequence(
                state=states.get(method_of(finding.checkpoint), "DETECTABLE"),
                names=(finding.checkpoint,),
                sentence=consequence_sentence(finding),
                figures=figures_line(finding),
            )

    clean = []
    for standing in standings:
        outcomes = {tried.audit: tried.outcome for tried in standing.tried}
        if outcomes.get(audit) == "not shown":
            clean.append(standing)
    if clean:
        yield Consequence(
            state="NO LEAK FOUND",
            names=tuple(standing.name for standing in clean),
            sentence=nothing_found(clean, audit, standings),
        )


def consequence_sentence(finding: Finding) -> str:
    """Return what a finding means in a reader's terms, in at most 25 words.

    A finding without such a sentence, or on no figure, says its own.
    """
    key = f"consequence.{finding.audit}.{finding.claim}"
    size = effect_size(finding, finding.value)
    if size is None or not finding.unit or not knows(key):
        return capitalised(finding.text)

    # A change of NLL is said as it stands: which way it goes is part of the words.
    if finding.unit == "nats":
        return render(key, effect=likelier(finding))
    return render(key, effect=effect_in_words(abs(size), finding.unit))


def nothing_found(
    clean: Sequence[Standing], audit: str, found: Sequence[Standing]
) -> str:
    """Return how much could still be there in checkpoints where nothing was found.

    Parameters
    ----------
    clean
        Checkpoints where the attack found nothing.
    found
        All checkpoints: where the attack found a leak that some of the clean ones could
        hide, that is said, too.
    """
    limits = _limits(clean, audit)
    if not limits:
        return render("glance.nothing")
    return " ".join(
        filter(None, [_range(limits, audit), _hidden(limits, audit, found)])
    )


def _range(limits: Sequence[Limit], audit: str) -> str:
    """Return the smallest and the largest limit in a sentence."""
    scale = optional(f"audit.{audit}.scale")
    least = min(limits, key=lambda limit: limit.size)
    most = max(limits, key=lambda limit: limit.size)
    low = effect_text(audit, least.size, least.unit)
    high = effect_text(audit, most.size, most.unit)
    if low == high:
        return render("glance.nothing_at_most", limit=high, scale=scale)

    return render(
        "glance.nothing_from_to",
        low=low,
        least=least.checkpoint,
        high=high,
        most=most.checkpoint,
        scale=scale,
    )


def _hidden(limits: Sequence[Limit], audit: str, found: Sequence[Standing]) -> str:
    """Return which checkpoints could hide the strongest leak; empty: none could."""
    findings = [finding for standing in found for finding in standing.detections]
    strongest = strongest_leaks(findings).get(audit)
    if strongest is None:
        return ""

    unit = strongest.finding.unit
    names = [
        limit.checkpoint
        for limit in limits
        if limit.unit == unit and limit.size >= strongest.effect
    ]
    if not names:
        return ""
    leaking = strongest.finding.checkpoint
    return render("glance.could_hide", names=listed(names), leaking=leaking)


def _audit_of_memory(standing: Standing) -> str:
    """Return the audit that tests memory of identifiers; empty where none was run."""
    for tried in standing.tried:
        if about(tried.audit).memory_metric:
            return tried.audit
    return ""


def _limits(clean: Sequence[Standing], audit: str) -> list[Limit]:
    """Return how much could still be there, of each checkpoint where it is known."""
    limits = []
    for standing in clean:
        for tried in standing.tried:
            finding = tried.bounded
            if tried.audit != audit or finding is None:
                continue

            size = effect_size(finding, finding.at_most)
            if size is not None:
                limits.append(Limit(standing.name, size, finding.unit))
    return limits
