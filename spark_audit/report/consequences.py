"""What was found, in a reader's terms: a sentence and a line of figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_audit.audits.strongest_leaks import strongest_leaks
from spark_audit.report.figures_line import figures_line
from spark_audit.report.matrix import effect_size, limit_text, names_or_count
from spark_audit.report.standings import SHAPES, Standing, State
from spark_audit.report.tried import attack_name, comparison_in_words, method_of
from spark_audit.results import Finding
from spark_audit.sentences import capitalised, knows, optional, render
from spark_audit.sentences.effects import effect_in_words
from spark_audit.sentences.renderer import likelier

MAX_CONSEQUENCES = 1
"""Checkpoints whose consequence stands at a glance; the others have their row."""


@dataclass(frozen=True)
class Consequence:
    """What was found in a checkpoint, and the figures behind it.

    Attributes
    ----------
    state
        Of the checkpoints.
    names
        Checkpoints that it is said of: one, or all of equal result.
    sentence
        At most 25 words.
    figures
        The line of figures; empty where the sentence is of several checkpoints.
    remarks
        Sentences that follow, each whole.
    """

    state: State
    names: tuple[str, ...]
    sentence: str
    figures: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The sign of the state, and who it is said of."""
        return f"{SHAPES[self.state]} {self.whose}"

    @property
    def whose(self) -> str:
        """The checkpoint that it is said of; of several, how many they are."""
        if len(self.names) == 1:
            return self.names[0]
        return render("glance.count", count=len(self.names))


@dataclass(frozen=True)
class Limit:
    """How much could still be there in one checkpoint, where nothing was found.

    Attributes
    ----------
    checkpoint
        Its name.
    finding
        The test that bounds how much.
    size
        How far the limit of the test is from no effect, in the finding's unit.
    """

    checkpoint: str
    finding: Finding
    size: float

    @property
    def text(self) -> str:
        """The limit on the scale of its attack."""
        return limit_text(self.finding.audit, self.size, self.finding.unit)


def main_consequences(standings: Sequence[Standing]) -> Iterator[Consequence]:
    """Yield a sentence for the worst checkpoint, then one for the clean.

    What the others come to stands in their row of the matrix and in their sections.
    """
    leaking = [standing for standing in standings if standing.detections]
    for standing in leaking[:MAX_CONSEQUENCES]:
        severest = standing.detections[0]
        # A finding may be true of one seed alone: then its name stands here.
        yield Consequence(
            state=standing.state,
            names=(severest.checkpoint or standing.name,),
            sentence=consequence_sentence(severest),
            figures=figures_line(severest),
        )

    clean = [standing for standing in standings if standing.state == "NO LEAK FOUND"]
    if clean:
        yield Consequence(
            state="NO LEAK FOUND",
            names=tuple(standing.name for standing in clean),
            sentence=_nothing_in_short(clean, standings),
        )


def consequences_of_audit(
    standings: Sequence[Standing], findings: Sequence[Finding], audit: str
) -> Iterator[Consequence]:
    """Yield what one attack found, a sentence each, then one where it found nothing."""
    # A finding on the base, say, has no standing.
    states = {standing.name: standing.state for standing in standings}
    for finding in findings:
        if finding.audit == audit and finding.detected:
            yield Consequence(
                state=states.get(method_of(finding.checkpoint), "DETECTABLE"),
                names=(finding.checkpoint,),
                sentence=consequence_sentence(finding),
                figures=figures_line(finding),
                remarks=tuple(finding.remarks),
            )

    clean = []
    for standing in standings:
        outcome_by_audit = {tried.audit: tried.outcome for tried in standing.tried}
        if outcome_by_audit.get(audit) == "not shown":
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
        effect = likelier(finding)
    else:
        effect = effect_in_words(abs(size), finding.unit)

    # What it is held against depends on the test: the base, held-out ones or chance.
    return render(key, effect=effect, than=comparison_in_words(finding))


def _nothing_in_short(
    clean: Sequence[Standing], all_standings: Sequence[Standing]
) -> str:
    """Return which clean checkpoints could hide a leak as strong as the strongest.

    Where none could, or not all of them have a limit, return how much could still be
    there. How much each could hide stands in its row of the matrix.
    """
    audit = _first_bounded_audit(clean)
    limits = _limits(clean, audit)
    all_are_bounded = len(limits) == len(clean)
    if limits and all_are_bounded:
        could_hide = _could_hide_sentence(limits, all_standings)
        if could_hide:
            nothing_but = render("glance.nothing_but", attack=attack_name(audit))
            return f"{nothing_but} {could_hide}"
    return nothing_found(clean, audit, all_standings)


def nothing_found(
    clean: Sequence[Standing], audit: str, all_standings: Sequence[Standing]
) -> str:
    """Return how much could still be there in checkpoints where nothing was found.

    Parameters
    ----------
    clean
        Checkpoints where the attack found nothing.
    audit
        The attack.
    all_standings
        Of all checkpoints: where the attack found a leak that some of the clean ones
        could hide, that is said, too.
    """
    limits = _limits(clean, audit)
    if not limits:
        # The attack found nothing, and cannot say how much could still be there.
        return render("glance.nothing")

    sentences = [_range_sentence(limits)]
    bounded_names = {limit.checkpoint for limit in limits}
    unbounded_names = [
        standing.name for standing in clean if standing.name not in bounded_names
    ]
    if unbounded_names:
        # Many names would make the sentence too long.
        names = names_or_count(unbounded_names)
        sentences.append(render("glance.not_known", names=names))

    could_hide = _could_hide_sentence(limits, all_standings)
    if could_hide:
        sentences.append(could_hide)
    return " ".join(sentences)


def _range_sentence(limits: Sequence[Limit]) -> str:
    """Return the smallest and the largest limit in a sentence."""
    scale = optional(f"audit.{limits[0].finding.audit}.scale")
    least = min(limits, key=lambda limit: limit.size)
    most = max(limits, key=lambda limit: limit.size)
    if least.text == most.text:
        # They read the same, so that a range would have two equal ends.
        return render("glance.nothing_at_most", limit=most.text, scale=scale)

    return render(
        "glance.nothing_from_to",
        low=least.text,
        least=least.checkpoint,
        high=most.text,
        most=most.checkpoint,
        scale=scale,
    )


def _could_hide_sentence(
    limits: Sequence[Limit], all_standings: Sequence[Standing]
) -> str:
    """Return which checkpoints could hide the strongest leak; empty: none could.

    A limit that reads the same as the leak counts: a reader could not tell the two
    apart.
    """
    findings: list[Finding] = []
    for standing in all_standings:
        findings += standing.detections
    # The leak must be one that the attack itself found: others are on other scales.
    strongest = strongest_leaks(findings).get(limits[0].finding.audit)
    if strongest is None:
        return ""

    leak = strongest.finding
    leak_text = limit_text(leak.audit, strongest.effect, leak.unit)
    names = []
    for limit in limits:
        could_hide = strongest.could_hide(limit.finding)
        if could_hide is None:
            continue  # nothing is bounded in the unit of the leak
        if could_hide or limit.text == leak_text:
            names.append(limit.checkpoint)
    if not names:
        return ""

    hiding = names_or_count(names)
    return render("glance.could_hide", names=hiding, leaking=leak.checkpoint)


def _first_bounded_audit(clean: Sequence[Standing]) -> str:
    """Return the first attack that bounds what is left open; empty where none does."""
    for tried in clean[0].tried:
        if _limits(clean, tried.audit):
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
                limits.append(Limit(standing.name, finding, size))
    return limits
