"""Choose pairs of an identifier and a control, and measure their balance.

The rule of the choice stands in :mod:`spark_audit.stats.matching`, and the figures of
the balance in :mod:`spark_audit.stats.balance`. A further covariate goes into
:func:`spark_audit.manifest.token_corpus.covariates`, or, if only controls have it, into
:meth:`Balance.add` and :data:`CONTROLS_ONLY`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from spark_audit.data.encoding import TokenSpan
from spark_audit.data.examples import Span
from spark_audit.manifest import layout, token_corpus
from spark_audit.manifest.records import CUT_OFF, NO_TOKEN, Record
from spark_audit.manifest.schema import ManifestSettings
from spark_audit.stats.balance import balance_rows
from spark_audit.stats.matching import MICRO_NATS_PER_NAT, match_spans

NO_CONTROL_START = -1
"""Stands for the first token of a control if a span has none."""

CONTROLS_ONLY = {
    "distance_to_pii": "tokens between the control and its span",
    "control_before": "share of controls before their span",
}
"""Covariates that only controls have, with the note on each."""

BALANCE_SIDES = ("spans", "pool", "matched", "controls")
"""Sides of the balance: spans, possible controls, matched spans, their controls."""


class SelectedPairs(NamedTuple):
    """Matched and unmatched spans of some rows, as the manifest's records.

    ``comparable_spans`` has shape ``(n, 4)``, int64, with a line for each span that is
    scored as a whole: index of the example, first token, length in tokens, and first
    token of the control or :data:`NO_CONTROL_START`.
    """

    pairs: list[Record]
    unmatched: list[Record]
    comparable_spans: np.ndarray


def match_identifiers(
    corpus: token_corpus.TokenCorpus,
    is_eligible: np.ndarray,
    settings: ManifestSettings,
) -> SelectedPairs:
    """Match every identifier outside of canaries with text of its own example.

    Parameters
    ----------
    corpus
        The rows' tokens on one axis, N in all.
    is_eligible
        Shape ``(N,)``, bool: tokens that a control may use.
    """
    pairs: list[Record] = []
    unmatched: list[Record] = []
    comparable_spans: list[tuple[int, int, int, int]] = []

    for i, row in enumerate(corpus.rows):
        row_tokens = corpus.tokens_of(i)
        micronats = corpus.nll_micronats[row_tokens]  # (tokens of the row,)
        matching = _match_row(row, micronats, is_eligible[row_tokens], settings)
        for span, tokens in row.spans:
            if span.part is not None:  # canaries have their own audit
                continue

            # All scored spans count in the balance, matched or not.
            control_start = matching.control_starts.get(span, NO_CONTROL_START)
            if tokens and (micronats[tokens.start : tokens.end] >= 0).all():
                length = tokens.end - tokens.start
                comparable_spans.append((i, tokens.start, length, control_start))

            if tokens and control_start != NO_CONTROL_START:
                pairs.append(_pair(row, span, tokens, control_start, micronats))
            else:
                # A span that was not tried has no reason of the matching.
                why_not_tried = CUT_OFF if tokens else NO_TOKEN
                reason = matching.reasons.get(span, why_not_tried)
                unmatched.append(_unmatched(row, span, reason))

    return SelectedPairs(
        pairs=pairs,
        unmatched=unmatched,
        comparable_spans=np.array(comparable_spans, np.int64).reshape(-1, 4),
    )


class _RowMatching(NamedTuple):
    """The first token of each span's control, or the reason why it has none.

    Spans that were not tried are in neither: parts of canaries, and spans cut off.
    """

    control_starts: dict[Span, int]
    reasons: dict[Span, str]


def _match_row(
    row: layout.ManifestLayout,
    micronats: np.ndarray,
    is_eligible: np.ndarray,
    settings: ManifestSettings,
) -> _RowMatching:
    """Match the fully kept spans of a row that are not part of a canary.

    Parameters
    ----------
    micronats
        Micro-nats of the row's tokens, shape ``(n,)``; -1: not scored.
    is_eligible
        Tokens that a control may use, shape ``(n,)``, bool.
    """
    # A span with a token cut off has no mean NLL to match.
    spans: list[Span] = []
    token_ranges: list[tuple[int, int]] = []
    for span, tokens in row.spans:
        if span.part is None and tokens and row.keeps(tokens):
            spans.append(span)
            token_ranges.append((tokens.start, tokens.end))

    matching = match_spans(
        micronats,
        is_eligible,
        token_ranges,
        caliper_u=round(MICRO_NATS_PER_NAT * settings.caliper),
        distance=settings.distance,
        controls=settings.controls,
        shows=row.encoding.char_start < row.encoding.char_end,
    )
    # The matching returns indices into the list of these spans.
    return _RowMatching(
        control_starts={spans[pair.span]: pair.start for pair in matching.pairs},
        reasons={
            spans[number]: reason for number, reason in matching.unmatched.items()
        },
    )


def _pair(
    row: layout.ManifestLayout,
    span: Span,
    tokens: TokenSpan,
    control_start: int,
    micronats: np.ndarray,
) -> Record:
    """Return the record of a span and of its control."""
    # Sums of whole micro-nats are exact on every machine.
    length = tokens.end - tokens.start
    control_end = control_start + length
    of_span = micronats[tokens.start : tokens.end]  # (length,)
    of_control = micronats[control_start:control_end]  # (length,)
    distance = abs(int((of_span - of_control).sum()))  # micro-nat-tokens

    identifier = _side(micronats, tokens.start, length, (span.start, span.end))
    control_characters = (
        row.encoding.char_start[control_start],
        row.encoding.char_end[control_end - 1],
    )
    return {
        "example": row.example.id,
        "pii": {**identifier, "type": span.type},
        "control": _side(micronats, control_start, length, control_characters),
        "distance": distance / (MICRO_NATS_PER_NAT * length),
        "weight": 1.0,
    }


def _side(
    micronats: np.ndarray, token_start: int, length: int, characters: tuple[int, int]
) -> Record:
    """Return the record of one side of a pair, with its NLL in nats per token.

    Parameters
    ----------
    micronats
        Micro-nats of the row's tokens, shape ``(n,)``.
    characters
        First character, and the one behind the last.
    """
    token_end = token_start + length
    total = int(micronats[token_start:token_end].sum())
    return {
        "token_start": token_start,
        "token_end": token_end,
        "char_start": int(characters[0]),
        "char_end": int(characters[1]),
        "nll": total / (MICRO_NATS_PER_NAT * length),
    }


def _unmatched(row: layout.ManifestLayout, span: Span, reason: str) -> Record:
    """Return the record of a span without a control, with the reason."""
    return {
        "example": row.example.id,
        "char_start": span.start,
        "char_end": span.end,
        "type": span.type,
        "reason": reason,
    }


class Balance:
    """The balance of pairs over train rows, which audits compare, slice by slice.

    Slices come from :class:`spark_audit.manifest.row_slices.RowSlices`.
    """

    def __init__(self) -> None:
        # (covariate, side) -> the values of each slice, in order.
        self._values: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)

    def add(
        self,
        corpus: token_corpus.TokenCorpus,
        is_eligible: np.ndarray,
        pairs: SelectedPairs,
    ) -> None:
        """Add a slice's spans, windows and pairs.

        Parameters
        ----------
        is_eligible
            Shape ``(N,)``, bool: tokens that a control may use.
        """
        # Only train rows count: nothing is concluded from pairs of test rows alone.
        is_train = np.array([row.example.split == "train" for row in corpus.rows])
        all_spans = pairs.comparable_spans
        train_spans = all_spans[is_train[all_spans[:, 0]]]  # (spans, 4)
        if not len(train_spans):
            return

        # Token ranges: example, first token, length.
        spans = train_spans[:, :3]  # (spans, 3)
        matched = train_spans[train_spans[:, 3] != NO_CONTROL_START]  # (pairs, 4)
        ranges_by_side = {
            "spans": spans,
            "pool": token_corpus.control_pool(is_eligible, corpus, spans),
            "matched": matched[:, :3],
            "controls": matched[:, [0, 3, 2]],
        }
        for side, ranges in ranges_by_side.items():
            for name, values in token_corpus.covariates(corpus, ranges).items():
                self._values[name, side].append(values)

        # The distance is that of the nearest ends.
        _, start, length, control_start = matched.T  # (pairs,) each
        tokens_between = np.abs(control_start - start) - length
        self._values["distance_to_pii", "controls"].append(tokens_between)
        self._values["control_before", "controls"].append(control_start < start)

    def records(self) -> list[Record]:
        """Return the manifest's balance: one record per covariate, none without a span.

        The figures are those of :func:`spark_audit.stats.balance.balance_rows`. Two
        covariates have values for controls only (:data:`CONTROLS_ONLY`). The call
        consumes the added values.
        """
        records: list[Record] = []
        names = dict.fromkeys(name for name, _ in self._values)
        for name in names:
            # A side without values is an empty array.
            values: dict[str, np.ndarray] = {}
            for side in BALANCE_SIDES:
                slices = self._values.pop((name, side), [])
                values[side] = np.concatenate([*slices, []])

            for record in balance_rows(
                {name: values["spans"]},
                {name: values["pool"]},
                {name: values["controls"]},
                covariates_matched={name: values["matched"]},
            ):
                if name in CONTROLS_ONLY and len(values["controls"]):
                    record["note"] = CONTROLS_ONLY[name]
                records.append(_rounded(record))
        return records


def _rounded(record: Mapping[str, Any]) -> Record:
    """Return a record with rounded figures, whose last digits depend on the machine."""
    return {
        name: round(value, 9) if isinstance(value, float) else value
        for name, value in record.items()
    }
