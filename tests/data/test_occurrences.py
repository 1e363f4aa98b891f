"""Identifiers are found where they are annotated, repeated, or have a form."""

import pytest
from marked import make_example

from spark_audit.data.examples import Example
from spark_audit.data.occurrences import finder, folded, identifier_ranges, repeats


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("Ann met ANN and Joanna", "Ann", ["Ann", "ANN", "ann"]),
        ("Al paid, al also", "Al", ["Al", "al"]),
        ("x", "x", ["x"]),
        ("Stra\u00dfe and STRASSE", "Stra\u00dfe", ["Stra\u00dfe", "STRASSE"]),
        ("STRASSE and Stra\u00dfe", "STRASSE", ["STRASSE", "Stra\u00dfe"]),
        ("aaaa", "aaa", ["aaa", "aaa"]),
        ("no (a.b) axb", "a.b", ["a.b"]),
    ],
)
def test_repeats_are_found_whatever_their_case(text, place, expected):
    start = text.index(place)
    found = repeats(text, [(start, start + len(place))])
    assert [text[a:b] for a, b in found] == expected


def example(prompt: str, *given: str, response: str = " good") -> Example:
    return make_example("e", prompt, response, pii=dict.fromkeys(given, "OTHER"))


def strings(row: Example) -> list[str]:
    return sorted({row.text[start:end] for start, end in identifier_ranges(row)})


def test_annotated_repeated_and_rule_found_identifiers():
    row = example("Kim saw KIM, mail a.b@example.org", "Kim", response=" kim")
    assert strings(row) == ["KIM", "Kim", "a.b@example.org", "kim"]
    places = {(row.text[a:b], a) for a, b in identifier_ranges(row)}
    assert places == {
        ("Kim", 0),
        ("KIM", 8),
        ("a.b@example.org", 18),
        ("kim", len(row.prompt) + 1),
    }


def test_a_short_annotated_span_inside_a_word_counts_but_not_its_repeats():
    row = example("code x42y or z42", "42")
    assert identifier_ranges(row) == [(6, 8)]


@pytest.mark.parametrize(
    ("string", "text", "stands"),
    [
        ("Ann Lee", "ask ANN LEE, or Bo", True),
        ("Ann Lee", "Joann Lee and Ann Leeds", False),
        ("555-0100", "1 (555-0100)", True),
        ("555-0100", "555-01005", False),
        ("(212) 555-0100", "Call (212) 555-0100!", True),
        ("Stra\u00dfe 5", "STRASSE 5", True),
        ("p4$$", "it is p4$$x", True),  # its last character ends no word
        ("", "x", False),
        (" ", "x y", False),
    ],
)
def test_identifiers_stand_in_other_texts_as_whole_words(string, text, stands):
    key = folded(string)
    found = [*map(finder({key}), (folded(text), "", key[:-1]))]
    assert found == [{key} if stands else set(), set(), set()]
