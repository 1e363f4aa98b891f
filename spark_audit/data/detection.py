"""How well a detector finds identifiers: against injected ones, which are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from spark_audit.data.examples import PII_TYPES, Example, Span
from spark_audit.data.pii import Detector, detector_of, mark, own_hits, resolved
from spark_audit.data.templates import task_templates
from spark_audit.errors import InputError


@dataclass(frozen=True)
class Agreement:
    """Annotated against true spans of one type.

    ``recalled`` true spans are overlapped by an annotated one of the type, ``correct``
    annotated spans overlap a true one, ``exact`` have its very characters.
    """

    truth: int
    found: int
    recalled: int
    correct: int
    exact: int

    @property
    def precision(self) -> float | None:
        """``correct / found``; ``None`` where nothing was found."""
        return self.correct / self.found if self.found else None

    @property
    def recall(self) -> float | None:
        """``recalled / truth``; ``None`` where there was nothing to find."""
        return self.recalled / self.truth if self.truth else None


def precision_recall(
    annotated: Sequence[Sequence[Span]], truth: Sequence[Sequence[Span]]
) -> dict[str, Agreement]:
    """Agreement by type of two annotations of the same texts.

    Raises
    ------
    InputError
        If they are not of the same number of texts.
    """
    if len(annotated) != len(truth):
        what = f"{len(annotated)} annotated texts against {len(truth)}"
        raise InputError(what, where="precision_recall")
    every = (span.type for spans in (*annotated, *truth) for span in spans)
    counts = {type: [0] * 5 for type in dict.fromkeys((*PII_TYPES, *every))}
    for found, true in zip(annotated, truth, strict=True):
        theirs, ours = _touching(found), _touching(true)
        exact = {(span.start, span.end, span.type) for span in true}
        for span in true:
            counts[span.type][0] += 1
            counts[span.type][2] += theirs(span)
        for span in found:
            counts[span.type][1] += 1
            counts[span.type][3] += ours(span)
            counts[span.type][4] += (span.start, span.end, span.type) in exact
    return {type: Agreement(*c) for type, c in counts.items() if c[0] or c[1]}


def _touching(spans: Sequence[Span]) -> Callable[[Span], bool]:
    """Whether a span shares a character with one of its type among these."""
    end = max((span.end for span in spans), default=0)
    taken = {span.type: bytearray(end) for span in spans}
    for span in spans:
        mark(taken[span.type], span)
    return lambda s: s.type in taken and taken[s.type].find(1, s.start, s.end) >= 0


def detection(
    examples: Sequence[Example],
    *,
    detector: Detector = "rules",
    patterns: Mapping[str, str] | None = None,
) -> dict[str, Agreement]:
    """How well a detector finds the injected identifiers, from the bare texts.

    Spans that were annotated as natural are left out on both sides. Natural identifiers
    that nobody annotated count against precision, and the frames of injected ones are
    easier than natural text: neither figure tells how well natural ones are found.
    """
    find, templates = detector_of(detector, patterns), task_templates(examples)
    annotated, truth = [], []
    for example in examples:
        natural = [s for s in example.spans if s.origin == "natural"]
        found = resolved(own_hits(example, find, templates), natural)
        known = set(natural)
        annotated.append([s for s in found if s not in known])
        truth.append([s for s in example.spans if s.origin == "injected"])
    return precision_recall(annotated, truth)
