"""Identifiers: where each stands, which are audited, and which can be compared.

An identifier that a trained row contains is not held out, whatever other row contains
it. Its dose is the number of trained rows in which training read it. A model that
learned a form makes all identifiers of this form likelier: held-out ones are a control
for trained ones of the same form and position only, and only where the text alone does
not distinguish the two sides (:mod:`~spark_audit.audits.identifier_texts`).

Injected identifiers were planted (:mod:`spark_audit.data.injection`), each with a
sentence around it; annotated ones stood in the data.

``identifier_facts`` -> columns of an audit's evidence -> ``comparable`` and
``sides_of`` -> the memory contrast (:mod:`spark_audit.stats.memory_contrast`). A
further stratum is a field of :class:`Facts` and a column in :func:`sides_of`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.base import Plan
from spark_audit.audits.identifier_texts import (
    ON_HELD_OUT_SIDE,
    ON_NO_SIDE,
    ON_TRAINED_SIDE,
    strata,
)
from spark_audit.audits.supervision import Trained, is_read, trained_identifiers
from spark_audit.data.injection import FRAMES
from spark_audit.data.occurrences import string_of
from spark_audit.manifest.example_schema import (
    ManifestExample,
    ManifestSpan,
    TokenRange,
)
from spark_audit.manifest.schema import Manifest
from spark_audit.results import Claim, Row
from spark_audit.scoring.table import Pass
from spark_audit.stats.memory_contrast import Sides

TOLD_APART = (
    "the texts of trained and held-out identifiers differ, or too few can be compared"
)

REPRODUCED = 1e-3
"""Largest difference in nats between the manifest's scores and new ones of the same
model.
"""

THIRDS = 3
"""Parts of equal length that prompt and response are divided into."""

SpanKey: TypeAlias = tuple[str, int, int]
"""Id of an example, and start and end of a span in its text, characters."""


@dataclass(frozen=True)
class Facts:
    """Facts on one occurrence of an identifier, without its scores.

    Attributes
    ----------
    dose
        Number of trained rows in which its string was read; 0: it is held out, -1:
        training cut it off in all of its rows.
    form, cue
        For an injected identifier, the numbers of its form and of the sentence around
        it, from 1; cue 0: none of our sentences. For an annotated one, form 0 and as
        cue the third of the prompt or response that it begins in, from 1. For one in a
        row with a canary or without text, 0 both.
    stratum, text_auc
        For an annotated identifier, the results of
        :func:`~spark_audit.audits.identifier_texts.strata`. For an injected one 0 and
        NaN, since chance dealt it to its side.
    """

    dose: int
    form: int
    cue: int
    stratum: int = 0
    text_auc: float = np.nan


def identifier_facts(
    manifest: Manifest, trained_on: Trained | None = None
) -> dict[SpanKey, Facts]:
    """Return the facts on every annotated span.

    Parameters
    ----------
    trained_on
        What training did with the identifiers, if it is known already.
    """
    if trained_on is None:
        trained_on = trained_identifiers(manifest)

    facts_of = dict[SpanKey, Facts]()
    number_of_form = dict[str, int]()
    annotated: list[dict[str, Any]] = []
    for example in manifest.examples:
        for span in example.spans:
            key = (example.id, span.start, span.end)
            dose = trained_on.dose_of(example, span)
            form = 0
            cue = 0
            if span.origin == "injected":
                form = number_of_form.setdefault(
                    _injected_form(example, span), len(number_of_form) + 1
                )
                cue = _cue(example.text, span)
            elif example.canary_id is None and example.text:
                cue = _third(example, span)
                annotated.append({"key": key, **_text_record(example, span, dose)})
            facts_of[key] = Facts(dose=dose, form=form, cue=cue)

    # Annotated identifiers can be compared only if their texts do not differ by side.
    if annotated:
        spans = pd.DataFrame.from_records(annotated, index="key")
        for key, stratum, auc in strata(spans).itertuples(name=None):
            facts_of[key] = replace(facts_of[key], stratum=stratum, text_auc=auc)
    return facts_of


def _injected_form(example: ManifestExample, span: ManifestSpan) -> str:
    """Return the form of an injected identifier: its type, and the marks in it."""
    marks = re.sub(r"[^\W_]", "", string_of(example, span))
    return f"{span.type} {marks}"


def _cue(text: str, span: ManifestSpan) -> int:
    """Return the number of the frame that an identifier was injected with; 0: none.

    A frame is a sentence with ``{}`` where the identifier stands.
    """
    for number, frame in enumerate(FRAMES.get(span.type, ()), start=1):
        head, tail = frame.split("{}")
        if text[: span.start].endswith(head) and text[span.end :].startswith(tail):
            return number
    return 0


def _third(example: ManifestExample, span: ManifestSpan) -> int:
    """Return the third of the prompt or response that a span begins in, 1 to 3.

    Positions are characters of the example's text, which is the prompt and then the
    response.
    """
    n_prompt_characters = len(example.prompt)
    start_in_response = span.start - n_prompt_characters
    if start_in_response >= 0:
        return 1 + THIRDS * start_in_response // len(example.response)

    return 1 + THIRDS * span.start // n_prompt_characters


def _text_record(
    example: ManifestExample, span: ManifestSpan, dose: int
) -> dict[str, object]:
    """Return the columns that :func:`strata` needs for an annotated identifier.

    ``part`` is True in the response, ``later`` behind another identifier of the row.
    """
    return {
        "type": span.type,
        "string": example.text[span.start : span.end].strip(),
        "part": span.start >= len(example.prompt),
        "later": any(earlier.end <= span.start for earlier in example.spans),
        "context": example.text[: span.start],
        "cluster": example.cluster,
        "side": _side(example, span, dose),
    }


def _side(example: ManifestExample, span: ManifestSpan, dose: int) -> int:
    """Return the side of an occurrence, by the codes of :func:`strata`.

    It is on neither side if training cut it off in this example, or if the example is
    held out but its identifier was trained on elsewhere, or cut off there.
    """
    if not is_read(example, span):
        return ON_NO_SIDE
    if example.split == "train":
        return ON_TRAINED_SIDE
    return ON_HELD_OUT_SIDE if dose == 0 else ON_NO_SIDE


class ComparableSpans(NamedTuple):
    """Identifiers that can be compared.

    Attributes
    ----------
    spans
        Occurrences of both sides, lines of the frame that was given.
    is_told_by_text
        Whether text alone distinguishes all of them, so that no difference of the sides
        can be called memory.
    """

    spans: pd.DataFrame
    is_told_by_text: bool


def comparable(spans: pd.DataFrame) -> ComparableSpans:
    """Return identifiers that can be compared with the other side.

    Annotated identifiers that text distinguishes are left out. If no others are left on
    one of the sides, all stay, and their figures are confounded with their text.

    Parameters
    ----------
    spans
        A line per occurrence or per token of it: ``split`` (the side), ``stratum`` (of
        :class:`Facts`).
    """
    is_refused = spans["stratum"] < 0
    not_refused = spans[~is_refused]
    has_both_sides = set(not_refused["split"]) == {"train", "test"}
    if has_both_sides or not is_refused.any():
        return ComparableSpans(not_refused, is_told_by_text=False)
    return ComparableSpans(spans, is_told_by_text=True)


def sides_of(spans: pd.DataFrame) -> Sides:
    """Return side, tokens, cluster and strata of each occurrence.

    Strata go from coarse to fine: type (and form of annotated identifiers), form of
    injected ones, and cue. Annotated identifiers are never compared with those of
    another form, since only finer strata are given up where one side lacks them.

    Parameters
    ----------
    spans
        A line per occurrence or per token of it: ``split``, ``cluster``, ``type``, and
        ``stratum``, ``form`` and ``cue`` of :class:`Facts`. The weight of a line is
        ``n_tokens``; without that column all weigh the same.
    """
    # The sign only marks strata that text distinguishes.
    keys = spans[["type", "stratum"]].assign(stratum=spans["stratum"].abs())
    coarse = keys.groupby([*keys]).ngroup()

    return Sides.of(
        trained=spans["split"] == "train",
        clusters=spans["cluster"],
        strata=[
            pd.factorize(coarse)[0],
            pd.factorize(spans["form"])[0],
            pd.factorize(spans["cue"])[0],
        ],
        tokens=spans.get("n_tokens"),
    )


class AuditedExample(NamedTuple):
    """An example with its audited spans.

    Attributes
    ----------
    example_index
        Its index in ``manifest.examples``.
    example
        The example itself.
    spans
        Its audited spans, with their tokens in the example.
    """

    example_index: int
    example: ManifestExample
    spans: list[tuple[ManifestSpan, TokenRange]]


def audited_spans(
    manifest: Manifest, splits: Sequence[str] = ("train", "test")
) -> Iterator[AuditedExample]:
    """Yield the examples that have an audited span, split by split.

    These are the matched and the unmatched spans. Canaries and cut spans are no part of
    the matched audit.
    """
    audited = set[SpanKey]()
    for pair in manifest.pairs:
        audited.add((pair.example, pair.pii.char_start, pair.pii.char_end))
    for span in manifest.unmatched:
        audited.add((span.example, span.char_start, span.char_end))

    for split in splits:
        for index, example in enumerate(manifest.examples):
            if example.split != split:
                continue
            spans = [
                (span, tokens)
                for span, tokens in example.identifiers
                if (example.id, span.start, span.end) in audited
            ]
            if spans:
                yield AuditedExample(index, example, spans)


def plan_of_identifiers(manifest: Manifest) -> Plan:
    """Return the plan of the plain pass: all examples with an audited span."""
    ids = sorted(audited.example.id for audited in audited_spans(manifest))
    return {Pass(): ids} if ids else {}


def memory_claim(row: Row) -> Claim:
    """Return the claim of a row of the memory contrast by itself.

    The row is a figure: a difference of NLL changes, nats per token. Below 0, trained
    identifiers became likelier than held-out ones: they are remembered. If the sides
    were unequally hard on the reference, a difference between ``no_effect_low`` and
    ``no_effect_high`` is possible without memory, so the interval must lie outside of
    these.
    """
    if row.value is None:
        return "not_tested"

    if row.high is not None and row.high < (row.no_effect_low or 0.0):
        return "memory"
    if row.low is not None and row.low > (row.no_effect_high or 0.0):
        return "betrays"
    return "nothing_shown"
