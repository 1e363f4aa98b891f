"""Doses of rows and identifiers, and what both sides have in common."""

import pytest
from planned_rows import numbered, row

from spark_audit.planning.repeats import DoseCounts, identifier_doses, repeats


@pytest.fixture
def rows():
    mail = [("ann@a.org", "EMAIL")]
    return numbered(
        [
            # Six rows and one without annotation: a dose of 7.
            *[row(f"Write to ann@a.org, {i}.", mail) for i in range(6)],
            row("ANN@A.ORG again, unmarked."),
            # Three equal texts, and one of them in the other split.
            *[row("Call  555-0142.", [("555-0142", "PHONE")]) for _ in range(3)],
            row("call 555-0142.", [("555-0142", "PHONE")], split="test"),
            row("Bo lives there.", [("Bo", "NAME")], cluster="g"),
            row("Cy lives there.", [("Cy", "NAME")], split="test", cluster="g"),
            # A canary is repeated on purpose.
            *[row("pin k7", [("k7", "PASSWORD")], canary="c") for _ in range(9)],
        ]
    )


def test_doses_of_identifiers_are_the_rows_that_hold_them(rows):
    counts = repeats(rows, identifier_doses(rows))
    assert counts.by_type == {
        "EMAIL": DoseCounts(once=0, few=0, many=1, most=7),
        "NAME": DoseCounts(once=1, few=0, many=0, most=1),
        "PHONE": DoseCounts(once=0, few=1, many=0, most=3),
    }
    assert counts.held_out_by_type == {"NAME": 1}
    assert counts.identifiers == DoseCounts(once=1, few=1, many=1, most=7)


def test_the_highest_dose_is_given_by_its_row_and_type(rows):
    (highest,) = repeats(rows, identifier_doses(rows)).highest
    assert (highest.type, highest.dose, highest.first_row) == ("EMAIL", 7, 1)


def test_an_identifier_that_only_held_out_rows_annotate_has_their_row():
    unmarked = [row(f"Write to ann@a.org, {i}.") for i in range(6)]
    marked = row("Write to ann@a.org.", [("ann@a.org", "EMAIL")], split="test")
    rows = numbered([*unmarked, marked])
    (highest,) = repeats(rows, identifier_doses(rows)).highest
    assert (highest.dose, highest.first_row) == (6, 7)


def test_texts_are_equal_apart_from_case_and_blanks(rows):
    counts = repeats(rows, identifier_doses(rows))
    # Six of the address, the one unmarked, one of Bo; three of the number.
    assert counts.texts == DoseCounts(once=8, few=1, many=0, most=3)
    assert (counts.n_copied_rows, counts.n_held_out_rows) == (1, 2)
    assert counts.n_shared_groups == 1
    assert counts.n_shared_identifiers == 1


def test_rows_that_hold_an_identifier_annotated_elsewhere_are_counted(rows):
    assert repeats(rows, identifier_doses(rows)).n_unannotated == 1


def test_groups_are_counted_by_their_trained_rows():
    rows = numbered([row(f"{i}", cluster="a" if i < 6 else "b") for i in range(8)])
    groups = repeats(rows, identifier_doses(rows)).groups
    assert groups == DoseCounts(once=0, few=1, many=1, most=6)


def test_without_text_nothing_is_said_of_equal_texts():
    rows = numbered([row(""), row("", split="test")])
    counts = repeats(rows, identifier_doses(rows))
    assert counts.texts is None
    assert counts.n_copied_rows == 0
