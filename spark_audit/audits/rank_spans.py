"""The spans of tokens that the audit of ranks reads, and where their ranks stand.

A matched identifier gives three spans: itself in the set ``pii``, its control in
``control``, and itself again in ``pii_all``, with the facts that the comparison with
held-out identifiers needs. A further fact on a span is a field of :class:`SpanFacts`,
and so a column of the evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from spark_audit.audits.identifiers import Facts, SpanKey, identifier_facts
from spark_audit.audits.supervision import Trained
from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.manifest.schema import Manifest
from spark_audit.scoring.table import TokenTable

RANK_SETS = ("pii", "control", "pii_all")
"""Sets of tokens, which are the variants of figures."""

PLACEHOLDER_FACTS = Facts(dose=0, form=0, cue=0)
"""Facts of matched identifiers and controls, whose figures need none."""


class SpanFacts(NamedTuple):
    """Facts on a span of tokens, which are columns of the evidence.

    Attributes
    ----------
    set
        One of :data:`RANK_SETS`.
    split, task, cluster
        Those of its example; the split is ``train`` or ``test``.
    type
        Type of the identifier; of a control, that of its identifier.
    dose, form, cue, stratum
        Of ``pii_all``, as in :class:`~spark_audit.audits.identifiers.Facts`; else 0,
        since only ``pii_all`` is compared with held-out identifiers.
    supervision
        What training did with the identifier; empty: not known.
    """

    set: str
    split: str
    task: str
    type: str
    cluster: str
    dose: int
    form: int
    cue: int
    stratum: int
    supervision: str


class RankedSpan(NamedTuple):
    """Tokens ``start`` to before ``end`` of an example, whose ranks are read.

    ``example`` is the example's id.
    """

    example: str
    start: int
    end: int
    facts: SpanFacts


def matched_spans(manifest: Manifest, trained_on: Trained) -> Iterator[RankedSpan]:
    """Yield the tokens of matched identifiers, and of their controls.

    A control has the supervision of its identifier.
    """
    # Pairs hold positions only, but what training did is known of spans.
    supervision_by_span: dict[SpanKey, str] = {}
    if trained_on.is_known:
        for example in manifest.examples:
            for span in example.spans:
                key = (example.id, span.start, span.end)
                supervision_by_span[key] = trained_on.supervision_of(example, span)

    for pair in manifest.pairs:
        example = manifest.by_id[pair.example]
        key = (example.id, pair.pii.char_start, pair.pii.char_end)
        for span_set, tokens in (("pii", pair.pii), ("control", pair.control)):
            facts = _span_facts(
                example,
                span_set,
                pii_type=pair.pii.type,
                facts=PLACEHOLDER_FACTS,
                supervision=supervision_by_span.get(key, ""),
            )
            yield RankedSpan(example.id, tokens.token_start, tokens.token_end, facts)


def annotated_spans(manifest: Manifest, trained_on: Trained) -> Iterator[RankedSpan]:
    """Yield the tokens of all annotated identifiers of examples without a canary."""
    facts_of = identifier_facts(manifest, trained_on)
    for example in manifest.examples:
        if example.canary_id is not None:
            continue
        for span, (start, end) in example.identifiers:
            facts = _span_facts(
                example,
                "pii_all",
                pii_type=span.type,
                facts=facts_of[example.id, span.start, span.end],
                supervision=trained_on.supervision_of(example, span),
            )
            yield RankedSpan(example.id, start, end, facts)


def _span_facts(
    example: ManifestExample,
    span_set: str,
    *,
    pii_type: str,
    facts: Facts,
    supervision: str,
) -> SpanFacts:
    """Return the facts on a span of an example.

    Parameters
    ----------
    span_set
        One of :data:`RANK_SETS`.
    facts
        Facts on the identifier, such as its dose.
    """
    return SpanFacts(
        set=span_set,
        split=example.split,
        task=example.task,
        type=pii_type,
        cluster=example.cluster,
        dose=facts.dose,
        form=facts.form,
        cue=facts.cue,
        stratum=facts.stratum,
        supervision=supervision,
    )


def table_lines(table: TokenTable, spans: Sequence[RankedSpan]) -> np.ndarray:
    """Return the lines of a table that hold the tokens of spans, ``(tokens,)``.

    They are in the order of the evidence: span by span.
    """
    lines_by_span = []
    for span in spans:
        token_slice = table.span(span.example, span.start, span.end)
        lines_by_span.append(np.arange(token_slice.start, token_slice.stop))
    return np.concatenate(lines_by_span)
