"""Units of the matched audit, from a manifest, without scores.

A unit is a range or a set of tokens of one row of the manifest. Its role says what it
is for: see :meth:`~spark_audit.audits.matched.audit.Matched.evidence`, which also lists
the columns. A new column of identifiers is added in :func:`range_units` and named in
:func:`complete`, or else it is lost there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits import supervision
from spark_audit.audits.identifiers import audited_spans, identifier_facts
from spark_audit.audits.token_sums import TokenSet
from spark_audit.errors import InputError
from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.manifest.schema import Manifest
from spark_audit.stats import matching

ROW_COLUMNS = ["example", "cluster", "task", "split"]
"""Columns on the row of a unit: its id, cluster of sources, task and split."""

CLASS_NAMES = {"d": "digits", "A": "capitals", "a": "letters", "-": "marks"}
"""Class of a token (``ManifestExample.classes``) -> the column that counts an
identifier's tokens of it."""

WHOLE_COLUMNS = ("start", "n_tokens", "trained", "dose", "form", "cue", "stratum")
"""Columns of whole numbers, 0 where missing; ``start`` is the first token."""

IdentifierKey: TypeAlias = tuple[str, int, int, int, int]
"""Id of the row, first and last character, first and last token; ends exclusive."""


class Control(NamedTuple):
    """The control of an identifier: index of the pair in the manifest, first token."""

    pair: int
    start: int


def range_units(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the units that are ranges of tokens, row by row, as records of columns.

    Each row gives its identifiers, each followed by its control, and then its windows.
    ``index`` is that of the example in ``manifest.examples``; for other columns see
    :meth:`~spark_audit.audits.matched.audit.Matched.evidence`.

    Raises
    ------
    InputError
        If a pair of the manifest belongs to no annotated identifier.
    """
    trained_on = supervision.trained_identifiers(manifest)
    facts = identifier_facts(manifest, trained_on)
    controls = _controls(manifest)

    for example_index, example, spans in audited_spans(manifest):
        for span, (start, end) in spans:
            # A pair belongs to the span with the same characters and tokens. What is
            # left in `controls` at the end belongs to no span.
            key = (example.id, span.start, span.end, start, end)
            control = controls.pop(key, None)
            facts_of_span = facts[example.id, span.start, span.end]
            unit: dict[str, Any] = {
                "index": example_index,
                "type": span.type,
                "n_tokens": end - start,
                "pair": None if control is None else control.pair,
                **_tokens_by_class(example, start, end),
                "trained": int(facts_of_span.dose > 0),
                **vars(facts_of_span),
            }
            if trained_on.is_known:
                unit[supervision.COLUMN] = trained_on.supervision_of(example, span)

            # The control stands right behind its identifier and has its facts, such as
            # type and dose.
            role = "unmatched" if control is None else "pii"
            yield {**unit, "role": role, "start": start}
            if control is not None:
                yield {**unit, "role": "control", "start": control.start}

        # Windows of the lengths that identifiers have.
        sizes = {end - start for _, (start, end) in spans}
        for size in sorted(sizes):
            yield from _window_units(example_index, example, size)

    if controls:
        what = f"{len(controls)} of its pairs are of no annotated identifier"
        raise InputError(what, where=manifest.name, fix="build the manifest again")


def _controls(manifest: Manifest) -> dict[IdentifierKey, Control]:
    """Return the control of each matched identifier."""
    controls = dict[IdentifierKey, Control]()
    for number, pair in enumerate(manifest.pairs):
        pii = pair.pii
        # Several spans may share a token, so the key includes the characters.
        key = (
            pair.example,
            pii.char_start,
            pii.char_end,
            pii.token_start,
            pii.token_end,
        )
        controls[key] = Control(pair=number, start=pair.control.token_start)
    return controls


def _tokens_by_class(
    example: ManifestExample, start: int, end: int
) -> Mapping[str, int]:
    """Return how many tokens of each class a range of tokens has."""
    counts = Counter(example.classes[start:end])
    return {column: counts[letter] for letter, column in CLASS_NAMES.items()}


def _window_units(
    example_index: int, example: ManifestExample, size: int
) -> Iterator[dict[str, Any]]:
    """Yield windows of ``size`` eligible tokens of an example, without overlap."""
    starts = matching.non_overlapping_windows(example.eligible, size)
    for start in starts.tolist():
        yield {
            "index": example_index,
            "role": "window",
            "n_tokens": size,
            "start": start,
        }


def token_set_units(manifest: Manifest) -> Iterator[TokenSet[dict[str, Any]]]:
    """Yield the units that are sets of tokens, row by row: ``low``, then ``alike``.

    ``low`` are all tokens of low sensitivity of a row, ``alike`` the eligible tokens of
    one class. They have the facts of :func:`range_units` that apply to sets.
    """
    for example_index, example, _ in audited_spans(manifest):
        # Tokens by role and class; low-sensitivity tokens have no class.
        tokens_by_unit = {("low", ""): np.array(example.low, np.int32)}
        classes = np.array(list(example.classes))  # (tokens,), letters
        for letter in CLASS_NAMES:
            is_of_class = example.eligible & (classes == letter)
            tokens = np.flatnonzero(is_of_class).astype(np.int32)
            tokens_by_unit["alike", letter] = tokens

        for (role, letter), tokens in tokens_by_unit.items():
            if not len(tokens):
                continue
            facts = {
                "index": example_index,
                "role": role,
                "type": letter,
                "n_tokens": len(tokens),
            }
            yield TokenSet(example_index, tokens, facts)


def complete(units: pd.DataFrame) -> pd.DataFrame:
    """Return units with all columns of the evidence but scores, and no others.

    Columns are those of a row (:data:`ROW_COLUMNS`), ``role``, ``type`` and, where it
    is known, the supervision; ``pair``, -1 for none; whole numbers
    (:data:`WHOLE_COLUMNS`, :data:`CLASS_NAMES`) and ``text_auc``. Missing facts are 0
    or empty, and NaN in ``text_auc``.
    """
    text_columns = [*ROW_COLUMNS, "role", "type"]
    if supervision.COLUMN in units:
        text_columns.append(supervision.COLUMN)
    count_columns = [*WHOLE_COLUMNS, *CLASS_NAMES.values()]

    # Whole numbers have no NaN, so a unit without a pair has -1.
    value_if_missing: dict[str, Any] = {
        **dict.fromkeys(text_columns, ""),
        "pair": -1,
        **dict.fromkeys(count_columns, 0),
    }
    type_by_column: dict[str, Any] = {
        **dict.fromkeys(["pair", *count_columns], np.int64),
        "text_auc": np.float64,
    }

    units = units.reindex(columns=[*value_if_missing, "text_auc"])
    units = units.astype(dict.fromkeys(text_columns, object))
    return units.fillna(value_if_missing).astype(type_by_column)
