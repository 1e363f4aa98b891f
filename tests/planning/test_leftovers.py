"""What a redaction left over, in rows made by hand."""

import pytest
from planned_rows import numbered, row

from spark_audit.data.redaction_rests import masked_rests, placeholders
from spark_audit.planning.leftovers import leftovers


def test_rows_without_a_placeholder_are_not_looked_at():
    rows = numbered([row("Ann Jones called.", [("Ann Jones", "NAME")]), row("Jones")])
    assert leftovers(rows) is None


def test_each_kind_of_left_over_is_counted_with_its_first_row():
    rows = numbered(
        [
            row("Ann Jones42 called.", [("Ann Jones42", "NAME")]),
            row("[NAME] called, then Jones42 again."),  # a fragment
            row("Write to [NAME]@a.org or j***@a.org."),  # a rest and a mask
            row("[PHONE] of Cy", source="s"),
            row("It was 555-0142.", [("555-0142", "PHONE")], source="s"),  # in clear
            row("Held out: [NAME]son", split="test"),
            row("Canary [NAME]son", canary="c"),
        ]
    )
    left = leftovers(rows)
    assert left is not None
    assert left.n_redacted_rows == 3
    assert left.placeholders == {"NAME": 2, "PHONE": 1}
    assert (left.n_rests, left.n_masked) == (1, 1)
    assert (left.n_fragments, left.n_fragment_rows) == (1, 1)
    assert (left.n_still_held, left.n_sources) == (1, 1)
    assert left.first_rows == {"rests": 3, "masked": 3, "fragments": 2, "still_held": 5}
    assert left.n_left == 4


def test_a_clean_redaction_leaves_nothing():
    rows = numbered([row(f"[NAME] called at [PHONE], {i}.") for i in range(5)])
    left = leftovers(rows)
    assert left is not None
    assert (left.n_redacted_rows, left.n_left) == (5, 0)


def test_words_of_the_language_are_no_fragments():
    rows = numbered(
        [
            row("Ann Young called.", [("Ann Young", "NAME")]),
            row("A young man, [NAME]. Young people came."),
        ]
    )
    left = leftovers(rows)
    assert left is not None
    assert left.n_fragments == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[NAME] <PERSON> [EMAIL_1] [**Known lastname 12**]", 4),
        ("[REDACTED] [redacted] {{PHONE}} [Name]", 4),
        ("<s>[INST] hi [/INST] <|im_start|> <div> [1] [John]", 0),
        ("array[ID2] and {name} and <Name>", 1),
    ],
)
def test_placeholders_of_common_tools_are_found(text, expected):
    assert len([*placeholders(text)]) == expected


def test_a_type_of_ones_own_makes_placeholders():
    assert [p.kind for p in placeholders("[ORDER]", {"ORDER"})] == ["ORDER"]
    assert not [*placeholders("[ORDER]")]


@pytest.mark.parametrize(
    "text",
    [
        *("jon***@a.org", "jon@e***.com", "XXX-XX-1234", "****1234", "Jon***"),
        *("**** **** **** 1111", "4111-XXXX-XXXX-1111", "555-01XX"),
    ],
)
def test_masked_identifiers_are_found_whole(text):
    assert [f"say {text} now"[a:b] for a, b in masked_rests(f"say {text} now")] == [
        text
    ]


@pytest.mark.parametrize(
    "text",
    ["**bold**", "* item", "***", "0.12***", "XXX 1999", "### 12", "5*3", "xx", "____"],
)
def test_other_marks_are_no_masks(text):
    assert not masked_rests(f"say {text} now")


@pytest.mark.parametrize("unit", ["a", "*", "x", "1 ", "12-", "a.b@", "**a", "[NAME"])
def test_long_texts_take_no_long_time(unit):
    import time

    text = unit * 20_000
    begun = time.process_time()
    masked_rests(text)
    list(placeholders(text))
    assert time.process_time() - begun < 2.0
