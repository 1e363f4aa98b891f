"""Find rows and identifiers that are both trained and held out.

A comparison needs rows that the model was not trained on. Trained rows are often listed
again as held out, under other ids. Then no conclusion is possible, and the user learns
this before anything is scored.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_audit.data.examples import Example
from spark_audit.data.occurrences import AnnotatedRow, folded, string_of
from spark_audit.errors import InputError

MOST_SHARED = 0.5
"""Share of held-out rows that may be trained rows; with more, the data is refused."""


def check_splits(examples: Sequence[Example]) -> list[str]:
    """Refuse splits whose held-out rows are mostly trained rows; return notes on a few.

    Two rows are the same if their texts are equal apart from case and the width of
    white space. Rows with a canary are ignored: they are synthetic and show nothing
    about the split.

    Returns
    -------
    list of str
        Notes on held-out rows and identifiers that also stand in trained rows.

    Raises
    ------
    InputError
        If more than :data:`MOST_SHARED` of the held-out rows are trained rows.
    """
    trained: list[Example] = []
    held_out: list[Example] = []
    for example in examples:
        if example.canary is None:
            side = trained if example.split == "train" else held_out
            side.append(example)

    # A few are a mistake in the data. If most are, the split is not a real split.
    trained_texts = {comparable_text(row) for row in trained}
    n_held_out_trained = sum(comparable_text(row) in trained_texts for row in held_out)
    if n_held_out_trained > MOST_SHARED * len(held_out):
        raise InputError(
            f"{n_held_out_trained} of {len(held_out)} held-out rows (split test) have "
            "the text of a trained row (split train)",
            where="--data",
            fix="list as held out only rows that the model was not trained on",
        )

    # manifest.membership_rows leaves such rows out, as near-duplicates across splits.
    # Their identifiers stand in a trained row, so data.occurrences.doses counts them
    # as trained.
    notes = []
    if n_held_out_trained:
        notes.append(
            f"{n_held_out_trained} of {len(held_out)} held-out rows have the text of a "
            "trained row: they are not held out, and are left out of membership and of "
            "the comparison of identifiers"
        )

    held_out_strings = _annotated_identifiers(held_out)
    shared_strings = held_out_strings & _annotated_identifiers(trained)
    if shared_strings:
        notes.append(
            f"{len(shared_strings)} of {len(held_out_strings)} identifiers of held-out "
            "rows are annotated in trained rows, too: they are not held out"
        )
    return notes


def comparable_text(row: AnnotatedRow) -> str:
    """Return a row's text, case-folded, with one blank for each run of white space."""
    return " ".join(folded(row.text).split())


def _annotated_identifiers(rows: Sequence[Example]) -> set[str]:
    """Return the identifiers that are annotated in the rows, folded."""
    strings: set[str] = set()
    for row in rows:
        strings.update(string_of(row, span) for span in row.spans)
    strings.discard("")  # annotated white space
    return strings
