"""Consequences: each finding in a reader's terms, with a line of figures.

A glance shows those of :func:`main_consequences`; the section of an audit on the page
shows those of :func:`consequences_of_audit`. The words are the sentences
``consequence.AUDIT.CLAIM``: a further claim needs one, else its own sentence is shown.
"Clean" is a checkpoint where an attack found nothing; a limit is how much it could
still hide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_audit.audits.strongest_leaks import strongest_leaks
from spark_audit.report.checkpoint_states import SHAPES, CheckpointState, State
from spark_audit.report.figures_line import figures_line
from spark_audit.report.matrix import (
    effect_size,
    effect_text,
    limit_text,
    names_or_count,
    scale_of,
)
from spark_audit.report.tried import (
    attack_name,
    comparison_in_words,
    effect_in_own_words,
    method_of,
)
from spark_audit.results import Finding
from spark_audit.sentences import capitalised, knows, render
from spark_audit.sentences.effects import effect_in_words
from spark_audit.sentences.renderer import likelier

MAX_CONSEQUENCES = 1
"""Most consequences at a glance; other checkpoints have only their row."""


@dataclass(frozen=True)
class Consequence:
    """A result on one or several checkpoints, and the figures behind it.

    Attributes
    ----------
    state
        Of the checkpoints.
    audit
        Whose result it is.
    names
        Its checkpoints: one, or all with an equal result.
    sentence
        At most 25 words.
    figures
        The line of figures; empty if the sentence is on several checkpoints.
    remarks
        Sentences that follow, each whole.
    """

    state: State
    audit: str
    names: tuple[str, ...]
    sentence: str
    figures: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The sign of the state, and the checkpoints."""
        return f"{SHAPES[self.state]} {self.whose}"

    @property
    def whose(self) -> str:
        """The name of the checkpoint, or the number of several."""
        if len(self.names) == 1:
            return self.names[0]
        return render("glance.count", count=len(self.names))


@dataclass(frozen=True)
class Limit:
    """The leak that could still be in a checkpoint where nothing was found.

    Attributes
    ----------
    checkpoint
        Its name.
    finding
        The test that gives the limit.
    size
        Distance of the limit from no effect, in the finding's unit.
    """

    checkpoint: str
    finding: Finding
    size: float

    @property
    def text(self) -> str:
        """The limit on the scale of its attack."""
        return limit_text(self.finding.audit, self.size, self.finding.unit)


def main_consequences(
    checkpoint_states: Sequence[CheckpointState],
) -> Iterator[Consequence]:
    """Yield a sentence on the worst checkpoint, then one on the clean ones.

    The rows of the matrix and the sections show the results of the others.
    """
    with_detections = [
        checkpoint_state
        for checkpoint_state in checkpoint_states
        if checkpoint_state.detections
    ]
    for checkpoint_state in with_detections[:MAX_CONSEQUENCES]:
        severest = checkpoint_state.detections[0]
        # A finding may be on a single seed, which is then named.
        yield Consequence(
            state=checkpoint_state.state,
            audit=severest.audit,
            names=(severest.checkpoint or checkpoint_state.name,),
            sentence=consequence_sentence(severest),
            figures=figures_line(severest),
        )

    clean = [
        checkpoint_state
        for checkpoint_state in checkpoint_states
        if checkpoint_state.state == "NO LEAK FOUND"
    ]
    if clean:
        yield Consequence(
            state="NO LEAK FOUND",
            audit=_first_bounded_audit(clean),
            names=tuple(checkpoint_state.name for checkpoint_state in clean),
            sentence=_nothing_in_short(clean, checkpoint_states),
        )


def consequences_of_audit(
    checkpoint_states: Sequence[CheckpointState],
    findings: Sequence[Finding],
    audit: str,
) -> Iterator[Consequence]:
    """Yield a sentence per finding of an attack, then one on where it found nothing."""
    # A finding may have no state, such as one on the base.
    states = {
        checkpoint_state.name: checkpoint_state.state
        for checkpoint_state in checkpoint_states
    }
    for finding in findings:
        if finding.audit == audit and finding.detected:
            yield Consequence(
                state=states.get(method_of(finding.checkpoint), "DETECTABLE"),
                audit=audit,
                names=(finding.checkpoint,),
                sentence=consequence_sentence(finding),
                figures=figures_line(finding),
                remarks=tuple(finding.remarks),
            )

    clean = []
    for checkpoint_state in checkpoint_states:
        outcome_by_audit = {
            tried.audit: tried.outcome for tried in checkpoint_state.tried
        }
        if outcome_by_audit.get(audit) == "not shown":
            clean.append(checkpoint_state)
    if clean:
        yield Consequence(
            state="NO LEAK FOUND",
            audit=audit,
            names=tuple(checkpoint_state.name for checkpoint_state in clean),
            sentence=nothing_found(clean, audit, checkpoint_states),
        )


def consequence_sentence(finding: Finding) -> str:
    """Return a finding in a reader's terms, in at most 25 words.

    If there is no such sentence, or the finding has no figure, its own sentence is
    returned.
    """
    key = f"consequence.{finding.audit}.{finding.claim}"
    size = effect_size(finding, finding.value)
    if size is None or not finding.unit or not knows(key):
        return capitalised(finding.text)

    # A change of NLL keeps its sign, since the words state its direction.
    if finding.unit == "nats":
        effect = likelier(finding)
    else:
        effect = effect_in_own_words(finding, abs(size), digits=0)
        effect = effect or effect_in_words(abs(size), finding.unit)

    # The comparison depends on the test: the base, held-out units or chance.
    return render(key, effect=effect, than=comparison_in_words(finding))


def _nothing_in_short(
    clean: Sequence[CheckpointState], all_checkpoint_states: Sequence[CheckpointState]
) -> str:
    """Return the sentence on clean checkpoints that could hide the strongest leak.

    If none could, or some have no limit, the sentence states how much could still be
    there. The matrix shows the limit of each checkpoint.
    """
    audit = _first_bounded_audit(clean)
    limits = _limits(clean, audit)
    has_all_limits = len(limits) == len(clean)
    if limits and has_all_limits:
        could_hide = _could_hide_sentence(limits, all_checkpoint_states)
        if could_hide:
            nothing_but = render(
                "glance.nothing_but",
                nothing=_nothing_of(audit),
                attack=attack_name(audit),
            )
            return f"{nothing_but} {could_hide}"
    return nothing_found(clean, audit, all_checkpoint_states)


def nothing_found(
    clean: Sequence[CheckpointState],
    audit: str,
    all_checkpoint_states: Sequence[CheckpointState],
) -> str:
    """Return the sentence on the limits of checkpoints where nothing was found.

    Parameters
    ----------
    clean
        Checkpoints where the attack found nothing.
    audit
        The attack.
    all_checkpoint_states
        States of all checkpoints. If the attack found a leak that some clean ones
        could hide, the sentence says so.
    """
    limits = _limits(clean, audit)
    if not limits:
        # The attack found nothing and has no limit.
        return render("glance.nothing", nothing=_nothing_of(audit))

    sentences = [_range_sentence(limits)]
    bounded_names = {limit.checkpoint for limit in limits}
    unbounded_names = [
        checkpoint_state.name
        for checkpoint_state in clean
        if checkpoint_state.name not in bounded_names
    ]
    if unbounded_names:
        # Many names would make the sentence too long.
        names = names_or_count(unbounded_names)
        sentences.append(render("glance.not_known", names=names))

    could_hide = _could_hide_sentence(limits, all_checkpoint_states)
    if could_hide:
        sentences.append(could_hide)
    return " ".join(sentences)


def _range_sentence(limits: Sequence[Limit]) -> str:
    """Return the smallest and the largest limit in a sentence."""
    scale = scale_of(limits[0].finding)
    nothing = _nothing_of(limits[0].finding.audit)
    least = min(limits, key=lambda limit: limit.size)
    most = max(limits, key=lambda limit: limit.size)
    if least.text == most.text:
        # If both ends look the same, a range makes no sense.
        return render(
            "glance.nothing_at_most", nothing=nothing, limit=most.text, scale=scale
        )

    return render(
        "glance.nothing_from_to",
        nothing=nothing,
        low=least.text,
        least=least.checkpoint,
        high=most.text,
        most=most.checkpoint,
        scale=scale,
    )


def _nothing_of(audit: str) -> str:
    """Return the words for no finding of an attack.

    An attack that counts what it sees has words of its own: a count that is not beyond
    chance need not be 0.
    """
    key = f"audit.{audit}.nothing"
    return render(key if knows(key) else "glance.nothing_found")


def _could_hide_sentence(
    limits: Sequence[Limit], all_checkpoint_states: Sequence[CheckpointState]
) -> str:
    """Return the sentence on checkpoints that could hide the strongest leak, or "".

    A limit counts if it looks the same as the leak, since a reader could not tell them
    apart.
    """
    findings: list[Finding] = []
    for checkpoint_state in all_checkpoint_states:
        findings += checkpoint_state.detections
    # Use only a leak of the same attack, since others have other scales.
    strongest = strongest_leaks(findings).get(limits[0].finding.audit)
    if strongest is None:
        return ""

    leak = strongest.finding
    leak_text = effect_text(leak.audit, strongest.effect, leak.unit).removeprefix("+")
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


def _first_bounded_audit(clean: Sequence[CheckpointState]) -> str:
    """Return the first attack with a limit of what is left open.

    If none has, the attack that was tested; empty: several were, or none.
    """
    for tried in clean[0].tried:
        if _limits(clean, tried.audit):
            return tried.audit

    tested = [tried.audit for tried in clean[0].tried if tried.outcome == "not shown"]
    return tested[0] if len(tested) == 1 else ""


def _limits(clean: Sequence[CheckpointState], audit: str) -> list[Limit]:
    """Return the known limits of an attack on clean checkpoints, one for each."""
    limits = []
    for checkpoint_state in clean:
        for tried in checkpoint_state.tried:
            finding = tried.bounded  # the test that gives the limit
            if tried.audit != audit or finding is None:
                continue

            size = effect_size(finding, finding.at_most)
            if size is not None:
                limits.append(Limit(checkpoint_state.name, finding, size))
    return limits
