"""What training did with each identifier: had loss on it, only read it, or cut it off.

A row is an example of the manifest. What training did is known of rows that carry
their training input. The state of an identifier is one of these, from the strongest to
the weakest; one that stands in several trained rows has the strongest of its states
there. Other modules match on these words (:data:`STRATA`, ``cut off``):

===============  ===================================================================
state            what training did
===============  ===================================================================
``in the loss``  it had loss on a part of the identifier
``""``           not known: the row does not carry its training input
``read only``    it read the identifier, such as in a prompt, without loss on it
``cut off``      it never saw the identifier, which ``max_length`` cut off
===============  ===================================================================

An identifier that was cut off in all of its trained rows was never trained on, and is
not held out either: audits leave it out. They report the others by these states (the
strata), while claims rest on all of them together.

``trained_identifiers`` makes a :class:`Trained` of a manifest, once per audit; audits
ask it for ``dose_of`` and ``supervision_of`` of each identifier. A further state is one
of ``Supervision`` (:mod:`spark_audit.data.training_input`), and has its place in
:data:`STRONGEST_FIRST`; if audits report it, also in :data:`STRATA`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pandas as pd

from spark_audit.data.occurrences import (
    cut_off_strings,
    doses,
    finder,
    folded,
    string_of,
    string_ranges,
)
from spark_audit.data.training_input import Supervision
from spark_audit.manifest.example_schema import ManifestExample, ManifestSpan
from spark_audit.manifest.schema import Manifest

COLUMN = "supervision"
"""Column of evidence; it is left out if training is known for no row. Also the first
part of the names of groups, such as ``supervision:read only``."""

STRATA: tuple[Supervision, ...] = ("in the loss", "read only")
"""The strata that audits report, in this order."""

NOT_READ = -1
"""Dose of an identifier that training cut off in all of its trained rows."""

SupervisionState = Supervision | Literal[""]
"""What training did with an identifier, or that it is not known."""

STRONGEST_FIRST: tuple[SupervisionState, ...] = (
    "in the loss",
    "",
    "read only",
    "cut off",
)
"""States in the order of the table; an unknown one may have been in the loss."""


@dataclass(frozen=True)
class Trained:
    """The supervision of the identifiers of a manifest.

    Identifiers are keyed by their strings as :func:`string_of` compares them, without
    case.

    Attributes
    ----------
    is_known
        Whether training is known of any train row.
    doses
        String -> number of trained rows in which it was read.
    cut_off
        Strings that trained rows hold only where training cut them off.
    by_string
        String -> its state, of all strings that trained rows hold; empty where training
        is known of no row.
    """

    is_known: bool
    doses: Mapping[str, int]
    cut_off: frozenset[str]
    by_string: Mapping[str, SupervisionState]

    def dose_of(self, example: ManifestExample, span: ManifestSpan) -> int:
        """Return the number of trained rows in which training read an identifier.

        It is 0 for a held-out one, and :data:`NOT_READ` if all rows cut it off.
        """
        string = string_of(example, span)
        if string in self.cut_off:
            return NOT_READ

        # An identifier that is read in this trained row has a dose of 1 at least.
        is_read_here = example.split == "train" and is_read(example, span)
        return max(self.doses.get(string, 0), int(is_read_here))

    def supervision_of(
        self, example: ManifestExample, span: ManifestSpan
    ) -> SupervisionState:
        """Return the state of an identifier; empty: held out, or not known."""
        return self.by_string.get(string_of(example, span), "")


def is_read(example: ManifestExample, span: ManifestSpan) -> bool:
    """Return whether training read an identifier there; True if that is not known."""
    return example.supervision_of(span.start, span.end) != "cut off"


def is_known(manifest: Manifest) -> bool:
    """Return whether any train row carries its training input."""
    return any(
        example.split == "train" and example.training_input is not None
        for example in manifest.examples
    )


def trained_identifiers(manifest: Manifest, *, canaries: bool = True) -> Trained:
    """Return the supervision of the identifiers of a manifest.

    Parameters
    ----------
    canaries
        Whether rows with a canary count.
    """
    examples = manifest.examples
    if not canaries:
        examples = [example for example in examples if example.canary_id is None]

    dose_by_string = doses(examples)
    if not is_known(manifest):
        return Trained(
            is_known=False,
            doses=dose_by_string,
            cut_off=frozenset(),
            by_string={},
        )

    return Trained(
        is_known=True,
        doses=dose_by_string,
        cut_off=frozenset(cut_off_strings(examples, dose_by_string)),
        by_string=_states_by_string(examples),
    )


def _states_by_string(
    examples: Collection[ManifestExample],
) -> dict[str, SupervisionState]:
    """Return the strongest state of each string that trained rows hold.

    Parameters
    ----------
    examples
        Rows of both splits, since a string that is annotated in one row counts in all.
    """
    annotated_anywhere: set[str] = set()
    for example in examples:
        annotated_anywhere |= _annotated_strings(example)
    strings_in = finder(annotated_anywhere)  # text -> the strings that it contains

    state_by_string: dict[str, SupervisionState] = {}
    for example in examples:
        if example.split != "train":
            continue

        annotated_here = _annotated_strings(example)
        for string in strings_in(folded(example.text)) | annotated_here:
            is_annotated = string in annotated_here
            states = {*_states_in_example(example, string, is_annotated=is_annotated)}
            if string in state_by_string:
                states.add(state_by_string[string])
            state_by_string[string] = _strongest(states)
    return state_by_string


def _annotated_strings(example: ManifestExample) -> set[str]:
    """Return the strings that are annotated in a row, as identifiers are compared.

    A span of white space gives an empty string, which identifies nobody.
    """
    return {string_of(example, span) for span in example.spans} - {""}


def _states_in_example(
    example: ManifestExample, string: str, *, is_annotated: bool
) -> Iterator[SupervisionState]:
    """Yield the state of a string at each of its occurrences in a row.

    Parameters
    ----------
    is_annotated
        Whether it is annotated in this row; else only whole words count: "Ann" is not
        meant by "planned".
    """
    if example.training_input is None:
        yield ""
        return

    for start, end, _ in string_ranges(example.text, [string]):
        if is_annotated or _is_whole_word(example.text, start, end):
            yield example.supervision_of(start, end) or ""


def _is_whole_word(text: str, start: int, end: int) -> bool:
    """Return whether no word goes on beyond the characters ``start:end`` of a text.

    Between two letters or digits a word goes on.
    """
    char_before = text[max(start - 1, 0) : start]  # empty at the start of the text
    char_behind = text[end : end + 1]  # empty at its end
    begins_inside = char_before.isalnum() and text[start].isalnum()
    ends_inside = char_behind.isalnum() and text[end - 1].isalnum()
    return not (begins_inside or ends_inside)


def _strongest(states: Collection[SupervisionState]) -> SupervisionState:
    """Return the strongest of some states; of none, ``cut off``."""
    for state in STRONGEST_FIRST:
        if state in states:
            return state
    return "cut off"


def canary_rows_cut(manifest: Manifest) -> Counter[str]:
    """Map each canary to the number of its trained rows with a secret part cut off."""
    n_rows_cut = Counter[str]()
    for canary_id, example, secret_spans in _planted_canaries(manifest):
        # A canary that lacks a part is not whole.
        is_cut = any(not is_read(example, span) for span in secret_spans)
        n_rows_cut[canary_id] += int(is_cut)
    return n_rows_cut


def canary_supervision(manifest: Manifest) -> dict[str, SupervisionState]:
    """Map each canary to its state; without any where training is known of no row.

    All secret parts of all trained rows count together: a canary is ``in the loss``
    where any of its parts had loss in any row.
    """
    if not is_known(manifest):
        return {}

    states_by_canary: dict[str, list[SupervisionState]] = {}
    for canary_id, example, secret_spans in _planted_canaries(manifest):
        states = states_by_canary.setdefault(canary_id, [])
        for span in secret_spans:
            states.append(example.supervision_of(span.start, span.end) or "")

    return {canary: _strongest(states) for canary, states in states_by_canary.items()}


class PlantedCanary(NamedTuple):
    """A canary in one of its trained rows, and the spans of its secret parts there."""

    canary_id: str
    example: ManifestExample
    secret_spans: list[ManifestSpan]


def _planted_canaries(manifest: Manifest) -> Iterator[PlantedCanary]:
    """Yield each trained row that holds a canary."""
    for example in manifest.examples:
        if example.canary_id is None or example.split != "train":
            continue
        secret_spans = [span for span in example.spans if span.part is not None]
        yield PlantedCanary(example.canary_id, example, secret_spans)


def by_supervision(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the group of each stratum in reports, and the lines of a frame that it has.

    Strata without a line are left out.

    Parameters
    ----------
    frame
        Column :data:`COLUMN`; without it there are no strata.
    """
    if COLUMN not in frame:
        return

    for stratum in STRATA:
        of_stratum = frame[frame[COLUMN] == stratum]
        if len(of_stratum):
            yield group_of(stratum), of_stratum


def group_of(stratum: Supervision) -> str:
    """Return the name of a stratum's group in reports."""
    return f"{COLUMN}:{stratum}"
