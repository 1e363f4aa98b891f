"""What training did with each identifier: had loss on it, only read it, or cut it off.

It is known of rows that carry their training input. An identifier of several rows has
the strongest of their states: one that had loss in any row is ``in the loss``. One that
was cut off in all of its rows was never trained on, and is not held out either.
Audits report identifiers by these states, as strata; claims rest on all identifiers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from spark_audit.data.occurrences import (
    cut_off_strings,
    doses,
    finder,
    folded,
    found_in,
    string_of,
)
from spark_audit.data.training_input import Supervision
from spark_audit.manifest.schema import Manifest, ManifestExample, ManifestSpan

COLUMN = "supervision"
"""Column of evidence; it is left out where training is known of no row."""

STRATA: tuple[Supervision, ...] = ("in the loss", "read only")
"""The strata that audits report."""

NOT_READ = -1
"""Dose of an identifier all of whose trained rows were cut off before it."""

Known = Supervision | Literal[""]
"""What training did, or that it is not known."""


@dataclass(frozen=True)
class Trained:
    """What training did with the identifiers of a manifest.

    Attributes
    ----------
    is_known
        Whether training is known of any train row.
    doses
        String, as identifiers are compared -> the trained rows that it was read in.
    cut_off
        Strings that trained rows hold only where training cut them off.
    by_string
        What training did with the strings of rows whose training is known.
    """

    is_known: bool
    doses: Mapping[str, int]
    cut_off: frozenset[str]
    by_string: Mapping[str, Known]

    def dose_of(self, row: ManifestExample, span: ManifestSpan) -> int:
        """Return in how many trained rows training read an identifier.

        It is 0 for a held-out one, and :data:`NOT_READ` where all rows cut it off.
        """
        # Cut off in all of its rows: neither trained nor held out.
        string = string_of(row, span)
        if string in self.cut_off:
            return NOT_READ
        is_trained = row.split == "train" and is_read(row, span)
        # What is trained on stands in one trained row at least.
        return max(self.doses.get(string, 0), int(is_trained))

    def supervision_of(self, row: ManifestExample, span: ManifestSpan) -> Known:
        """Return what training did with an identifier; empty: held out or not known."""
        return self.by_string.get(string_of(row, span), "")


def is_read(row: ManifestExample, span: ManifestSpan) -> bool:
    """Return whether training read an identifier, as far as is known."""
    return row.supervision_of(span.start, span.end) != "cut off"


def is_known(manifest: Manifest) -> bool:
    """Return whether it is known of any train row which part of it had loss."""
    return any(
        row.split == "train" and row.training_input is not None
        for row in manifest.examples
    )


def trained_identifiers(manifest: Manifest, *, canaries: bool = True) -> Trained:
    """Return what training did with the identifiers of a manifest.

    Parameters
    ----------
    canaries
        Whether rows with a canary count.
    """
    rows = manifest.examples
    if not canaries:
        rows = [row for row in rows if row.canary_id is None]
    counts = doses(rows)
    if not is_known(manifest):
        return Trained(False, counts, frozenset(), {})

    cut_off = frozenset(cut_off_strings(rows, counts))
    strings: set[str] = set()
    for row in rows:
        strings |= _strings_of(row)
    find = finder(strings)

    # Of several rows the strongest state counts; "cut off" is the weakest.
    by_string: dict[str, Known] = {}
    for row in rows:
        if row.split != "train":
            continue
        annotated = _strings_of(row)
        for string in find(folded(row.text)) | annotated:
            before = by_string.get(string, "cut off")
            states = [*_states(row, string, is_annotated=string in annotated)]
            by_string[string] = _most([before, *states])
    return Trained(True, counts, cut_off, by_string)


def _strings_of(row: ManifestExample) -> set[str]:
    """Return the strings that are annotated in a row, as identifiers are compared."""
    return {string_of(row, span) for span in row.spans} - {""}


def _states(
    row: ManifestExample, string: str, *, is_annotated: bool
) -> Iterator[Known]:
    """Yield what training did with a string, at each place where it stands in a row.

    Parameters
    ----------
    is_annotated
        Whether it is annotated in this row; else only whole words count.
    """
    if row.training_input is None:
        yield ""
        return

    text = row.text
    for start, end, _ in found_in(text, [string]):
        # Letters or digits on both sides of an edge: the edge is inside of a word.
        begins_inside = text[max(start - 1, 0) : start].isalnum() and (
            text[start].isalnum()
        )
        ends_inside = text[end : end + 1].isalnum() and text[end - 1].isalnum()
        is_inside_word = begins_inside or ends_inside
        if is_annotated or not is_inside_word:
            yield row.supervision_of(start, end) or ""


def _most(states: list[Known]) -> Known:
    """Return the strongest state; one that is not known may have been in the loss."""
    order: tuple[Known, ...] = ("in the loss", "", "read only")
    for state in order:
        if state in states:
            return state
    return "cut off"


def canary_rows_cut(manifest: Manifest) -> Counter[str]:
    """Map each canary to the number of its trained rows with a secret part cut off."""
    counts = Counter[str]()
    for row in manifest.examples:
        if row.canary_id is not None and row.split == "train":
            # Without one of its parts a canary is not whole.
            parts = [span for span in row.spans if span.part is not None]
            is_cut = any(not is_read(row, span) for span in parts)
            counts[row.canary_id] += is_cut
    return counts


def canary_supervision(manifest: Manifest) -> dict[str, Known]:
    """Map each canary to what training did with it; empty: training is not known.

    It is ``in the loss`` where any of its secret parts had loss in any trained row.
    """
    if not is_known(manifest):
        return {}
    # All secret parts of all trained rows count together.
    by_canary: dict[str, list[Known]] = {}
    for row in manifest.examples:
        if row.canary_id is None or row.split != "train":
            continue
        states = by_canary.setdefault(row.canary_id, [])
        for span in row.spans:
            if span.part is not None:
                states.append(row.supervision_of(span.start, span.end) or "")
    return {canary: _most(states) for canary, states in by_canary.items()}


def by_supervision(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each stratum, by the name of its group in reports.

    Parameters
    ----------
    frame
        Column :data:`COLUMN`; without it there are no strata.
    """
    if COLUMN in frame:
        for stratum in STRATA:
            part = frame[frame[COLUMN] == stratum]
            if len(part):
                yield group_of(stratum), part


def group_of(stratum: Supervision) -> str:
    """Return the name of a stratum's group in reports."""
    return f"{COLUMN}:{stratum}"
