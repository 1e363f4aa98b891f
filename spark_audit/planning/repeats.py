"""How often rows, near copies and identifiers stand in the rows of a training.

The more rows hold a text or an identifier, the better a model remembers it. The number
of trained rows that hold something is its dose. Canaries are repeated on purpose, so
rows with a canary are left out here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_audit.data.occurrences import (
    annotated_strings,
    doses,
    finder,
    folded,
    string_of,
)
from spark_audit.manifest.overlap import comparable_text
from spark_audit.planning.rows import PlannedRow

MOST_OF_FEW = 5
"""Doses from 2 to this one are few; higher ones are many."""

N_HIGHEST = 5
"""Identifiers with the highest dose that are listed."""


@dataclass(frozen=True, kw_only=True)
class DoseCounts:
    """How many things stand in one trained row, in a few, and in more.

    Attributes
    ----------
    once, few, many
        Things in one row, in 2 to :data:`MOST_OF_FEW` rows, and in more.
    most
        Rows that hold the one with the highest dose; 0: there is none.
    """

    once: int
    few: int
    many: int
    most: int

    @classmethod
    def of(cls, dose_of_each: Iterable[int]) -> DoseCounts:
        """Count doses; those of 0 are left out.

        Examples
        --------
        >>> DoseCounts.of([1, 1, 2, 5, 6, 0])
        DoseCounts(once=2, few=2, many=1, most=6)
        """
        above_0 = [dose for dose in dose_of_each if dose]
        once = sum(dose == 1 for dose in above_0)
        many = sum(dose > MOST_OF_FEW for dose in above_0)
        return cls(
            once=once,
            few=len(above_0) - once - many,
            many=many,
            most=max(above_0, default=0),
        )

    @property
    def total(self) -> int:
        """Return how many things stand in trained rows."""
        return self.once + self.few + self.many


@dataclass(frozen=True, kw_only=True)
class HighDose:
    """An identifier with a high dose, which is not named.

    Attributes
    ----------
    type, dose
        Its type, and the trained rows that hold it.
    first_row
        Number of the first trained row with its annotation, from 1; if only held-out
        rows annotate it, that of the first of them.
    """

    type: str
    dose: int
    first_row: int


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """Doses of texts, groups and identifiers, and copies across both sides.

    Attributes
    ----------
    texts
        Different texts of trained rows, by the rows that have them; equal apart from
        case and white space. ``None``: the manifest was redacted.
    groups
        Clusters of trained rows, by their rows.
    by_type
        Type -> different identifiers of trained rows, by the rows that hold them.
    held_out_by_type
        Type -> different identifiers that only held-out rows hold.
    highest
        The identifiers with the highest doses above :data:`MOST_OF_FEW`.
    n_held_out_rows
        Held-out rows.
    n_copied_rows
        Held-out rows whose text a trained row has.
    n_shared_groups
        Clusters with rows on both sides.
    n_shared_identifiers
        Identifiers annotated in held-out rows that trained rows hold, too.
    n_unannotated
        Trained rows that hold an identifier which is annotated only in other rows.
    """

    texts: DoseCounts | None
    groups: DoseCounts
    by_type: Mapping[str, DoseCounts]
    held_out_by_type: Mapping[str, int]
    highest: Sequence[HighDose]
    n_held_out_rows: int
    n_copied_rows: int
    n_shared_groups: int
    n_shared_identifiers: int
    n_unannotated: int

    @property
    def identifiers(self) -> DoseCounts:
        """Return the doses of identifiers of all types."""
        counts = self.by_type.values()
        return DoseCounts(
            once=sum(count.once for count in counts),
            few=sum(count.few for count in counts),
            many=sum(count.many for count in counts),
            most=max((count.most for count in counts), default=0),
        )


def identifier_doses(rows: Sequence[PlannedRow]) -> Counter[str]:
    """Return the number of trained rows that hold each identifier, by its string.

    Rows with a canary do not count; strings are those of
    :func:`~spark_audit.data.occurrences.string_of`.
    """
    natural = [row for row in rows if row.canary_id is None]
    return doses(natural, annotated_strings(natural).keys())


def repeats(rows: Sequence[PlannedRow], dose_of: Mapping[str, int]) -> Repeats:
    """Return how often texts and identifiers stand in trained rows.

    Parameters
    ----------
    dose_of
        Identifier -> trained rows that hold it, from :func:`identifier_doses`.
    """
    natural = [row for row in rows if row.canary_id is None]
    trained = [row for row in natural if row.is_trained]
    held_out = [row for row in natural if not row.is_trained]

    has_text = any(row.text for row in natural)
    n_rows_by_text = Counter(comparable_text(row) for row in trained)
    n_copied = 0
    if has_text:
        n_copied = sum(comparable_text(row) in n_rows_by_text for row in held_out)

    n_rows_by_group = Counter(row.cluster for row in trained)
    shared_groups = n_rows_by_group.keys() & {row.cluster for row in held_out}

    type_of = annotated_strings(natural)
    doses_by_type: dict[str, list[int]] = defaultdict(list)
    held_out_by_type: Counter[str] = Counter()
    for string, type in type_of.items():
        dose = dose_of.get(string, 0)
        if dose:
            doses_by_type[type].append(dose)
        else:
            held_out_by_type[type] += 1

    strings_of_held_out = annotated_strings(held_out).keys()
    return Repeats(
        texts=DoseCounts.of(n_rows_by_text.values()) if has_text else None,
        groups=DoseCounts.of(n_rows_by_group.values()),
        by_type={
            type: DoseCounts.of(doses_by_type[type]) for type in sorted(doses_by_type)
        },
        held_out_by_type=dict(sorted(held_out_by_type.items())),
        highest=_highest([*trained, *held_out], type_of, dose_of),
        n_held_out_rows=len(held_out),
        n_copied_rows=n_copied,
        n_shared_groups=len(shared_groups),
        n_shared_identifiers=sum(
            dose_of.get(string, 0) > 0 for string in strings_of_held_out
        ),
        n_unannotated=_n_unannotated(trained, dose_of),
    )


def _highest(
    rows: Sequence[PlannedRow],
    type_of: Mapping[str, str],
    dose_of: Mapping[str, int],
) -> list[HighDose]:
    """Return the identifiers with the highest doses, the highest first.

    Parameters
    ----------
    rows
        The trained rows, and then the held-out ones.
    type_of, dose_of
        Identifier -> its type, and the trained rows that hold it.
    """
    many = [string for string in type_of if dose_of.get(string, 0) > MOST_OF_FEW]
    many.sort(key=lambda string: -dose_of[string])
    highest = dict.fromkeys(many[:N_HIGHEST], 0)

    # Earlier rows overwrite later ones, so that the first that annotates it stays.
    for row in reversed(rows):
        for span in row.personal_spans:
            string = string_of(row, span)
            if string in highest:
                highest[string] = row.number

    return [
        HighDose(type=type_of[string], dose=dose_of[string], first_row=first_row)
        for string, first_row in highest.items()
    ]


def _n_unannotated(trained: Sequence[PlannedRow], dose_of: Mapping[str, int]) -> int:
    """Return how many trained rows hold identifiers that are annotated elsewhere only.

    A redaction of what is annotated would leave them. Strings without a digit or an
    ``@`` may be plain words there, so they do not count.
    """
    marked = {
        string
        for string, dose in dose_of.items()
        if dose > 1 and ("@" in string or any(letter.isdigit() for letter in string))
    }
    find = finder(marked)
    n_rows = 0
    for row in trained:
        annotated = {string_of(row, span) for span in row.spans}
        n_rows += bool(find(folded(row.text)) - annotated)
    return n_rows
