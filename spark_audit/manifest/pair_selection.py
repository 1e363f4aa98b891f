"""Pairs of an identifier and a control, and their balance."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from spark_audit.data.encoding import TokenSpan
from spark_audit.data.examples import Span
from spark_audit.manifest import layout, token_corpus
from spark_audit.manifest.records import CUT_OFF, NO_TOKEN, Record
from spark_audit.manifest.schema import ManifestSettings
from spark_audit.stats.balance import balance_rows
from spark_audit.stats.matching import match_spans


class SelectedPairs(NamedTuple):
    """Matched and unmatched spans as the manifest's records.

    ``places`` has shape ``(n, 4)``, int64: example (its index), first token, length and
    first token of the control, or -1, of all spans that can be compared.
    """

    pairs: list[Record]
    unmatched: list[Record]
    places: np.ndarray


def match(
    texts: token_corpus.TokenCorpus, eligible: np.ndarray, settings: ManifestSettings
) -> SelectedPairs:
    """Match every span that is no part of a canary with text of its own example.

    Parameters
    ----------
    eligible
        Shape ``(N,)``, bool: tokens that a control may use.
    """
    pairs, unmatched, places = list[Record](), list[Record](), list[int]()
    for i, row in enumerate(texts.rows):
        unll = texts.unll[texts.of(i)]
        spans = [(span, at) for span, at in row.spans if span.part is None]
        kept = [(span, at) for span, at in spans if at and row.within(at)]
        matching = match_spans(
            unll,
            eligible[texts.of(i)],
            [(at.start, at.end) for _, at in kept],
            caliper_u=round(1e6 * settings.caliper),
            distance=settings.distance,
            controls=settings.controls,
            shows=row.encoding.start < row.encoding.end,
        )
        controls = {kept[one.span][0]: one.start for one in matching.pairs}
        reasons = {kept[n][0]: why for n, why in matching.unmatched.items()}
        for span, at in spans:
            control = controls.get(span, -1)
            if at and (unll[at.start : at.end] >= 0).all():
                places += [i, at.start, at.end - at.start, control]
            if at and control >= 0:
                pairs.append(_pair(row, span, at, control, unll))
                continue
            unmatched.append(
                {
                    "example": row.example.id,
                    "char_start": span.start,
                    "char_end": span.end,
                    "type": span.type,
                    "reason": reasons.get(span, CUT_OFF if at else NO_TOKEN),
                }
            )
    return SelectedPairs(pairs, unmatched, np.array(places, np.int64).reshape(-1, 4))


def _pair(
    row: layout.ManifestLayout,
    span: Span,
    tokens: TokenSpan,
    control: int,
    unll: np.ndarray,
) -> Record:
    """The record of a span and its control, which begins at a token."""
    start, end, _ = tokens
    length = end - start

    def side(at: int, char_start: int, char_end: int) -> Record:
        return {
            "token_start": at,
            "token_end": at + length,
            "char_start": int(char_start),
            "char_end": int(char_end),
            "nll": int(unll[at : at + length].sum()) / (1e6 * length),
        }

    apart = int((unll[start:end] - unll[control : control + length]).sum())
    edges = row.encoding.start[control], row.encoding.end[control + length - 1]
    return {
        "example": row.example.id,
        "pii": {**side(start, span.start, span.end), "type": span.type},
        "control": side(control, *edges),
        "distance": abs(apart) / (1e6 * length),
        "weight": 1.0,
    }


CONTROLS_ONLY = {
    "distance_to_pii": "tokens between the control and its span",
    "control_before": "share of controls before their span",
}
"""Covariates of controls alone, and what is noted of them."""

SIDES = ("spans", "pool", "matched", "controls")


class Balance:
    """Balance over the train rows, which are what is audited, from slices of rows."""

    def __init__(self) -> None:
        # By covariate and side: what one slice has after that of another.
        self._parts: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)

    def add(
        self,
        texts: token_corpus.TokenCorpus,
        eligible: np.ndarray,
        pairs: SelectedPairs,
    ) -> None:
        """Take a slice's spans, windows and pairs."""
        train = np.array([row.example.split == "train" for row in texts.rows])
        places = pairs.places[train[pairs.places[:, 0]]]
        if not len(places):
            return
        spans, both = places[:, :3], places[places[:, 3] >= 0]
        _, start, length, control = both.T
        for side, ranges in zip(
            SIDES,
            (
                spans,
                token_corpus.pool(eligible, texts, spans),
                both[:, :3],
                both[:, [0, 3, 2]],
            ),
            strict=True,
        ):
            for name, values in token_corpus.covariates(texts, ranges).items():
                self._parts[name, side].append(values)
        between = np.abs(control - start) - length
        self._parts["distance_to_pii", "controls"].append(between)
        self._parts["control_before", "controls"].append(control < start)

    def records(self) -> list[Record]:
        """As :func:`spark_audit.stats.balance.balance_rows`; none without a span.

        Two more rows have values for controls only: their distance to the PII span in
        tokens, and the share of them that stand before it. What was taken is gone
        afterwards.
        """
        rows: list[Record] = []
        for name in dict.fromkeys(name for name, _ in self._parts):
            spans, windows, matched, controls = (
                {name: np.concatenate([*self._parts.pop((name, side), []), []])}
                for side in SIDES
            )
            own = balance_rows(spans, windows, controls, covariates_matched=matched)
            for row in own:
                if name in CONTROLS_ONLY and len(controls[name]):
                    row["note"] = CONTROLS_ONLY[name]
                # The last digits of a mean depend on the machine.
                rounded = {
                    k: round(v, 9) for k, v in row.items() if isinstance(v, float)
                }
                rows.append({**row, **rounded})
        return rows
