import pytest

from spark_audit.scoring.answers import begins_with, normalised


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" The  «Good», one! ", "the good one"),
        ("Sci/Tech", "scitech"),
        ("?!", "?!"),
        (" - ", "-"),
        ("ÄRGER\n", "ärger"),
        ("", ""),
    ],
)
def test_answers_are_normalised_to_plain_words(text, expected):
    assert normalised(text) == expected


@pytest.mark.parametrize(
    "alike",
    [
        ["35", " 35.", "+35", "35.0", "(35)", "**35**", '"35"'],
        ["-35", "\u221235", "-35.00", "(-35)", " -35,"],
        ["3.5", "3.50", "+3.5"],
        ["3,5"],
        ["0.35", ".35", "0.350"],
        ["35%", "35 %", "35.0%."],
        ["$35", "$ 35", "35$", "$35.00"],
        ["-$35", "$-35"],
        ["\u20ac35", "35 \u20ac"],
        ["1000", "1,000", "1,000.0"],
        ["1", "1.000"],
        ["0", "-0", "0.0"],
        ["007"],
        ["7"],
        ["2004-1-12", "2004\u20131-12"],
        ["2004-11-2"],
        ["3/4"],
        ["34"],
        ["1:30"],
        ["130"],
        ["score: -2", "Score -2"],
        ["score: 2", "score 2!"],
        ["covid-19", "covid19"],
        ["a 5 - 6", "a 5 6"],
    ],
)
def test_numbers_are_compared_as_numbers(alike):
    assert len({normalised(text) for text in alike}) == 1
    others = ["35", "-35", "3.5", "3,5", "0.35", "35%", "$35", "-$35", "1000", "1"]
    others += ["0", "007", "7", "2004-1-12", "2004-11-2", "3/4", "34", "1:30", "130"]
    others += ["score -2", "score 2"]
    same = [other for other in others if normalised(other) == normalised(alike[0])]
    assert len(same) <= 1


LABELS = ("negative", "very negative", "very", "positive", "1", "1.5", "15", "Sci/Tech")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Negative, as it cost more", "negative"),
        (" negative\tnegative positive", "negative"),
        ("Very negative.", "very negative"),
        ("very  Negative: no", "very negative"),
        ("very good", "very"),
        ("very negatively", "very"),
        ("negatives", None),
        ("not negative", None),
        ("**positive** - 5", "positive"),
        ("1 of 5", "1"),
        ("1.", "1"),
        ("1.5 of 5", "1.5"),
        ("1.7", None),
        ("12", None),
        ("-1", None),
        ("1%", None),
        ("1 %", None),
        ("$1", None),
        ("1/5", None),
        ("1-5", None),
        ("1.50, or so", "1.5"),
        ("+15!", "15"),
        ("sci/tech news", "Sci/Tech"),
        ("", None),
    ],
)
def test_an_answer_that_runs_on_counts_as_the_longest_label_that_it_begins_with(
    text, label
):
    found = [one for one in LABELS if begins_with(text, one, LABELS)]
    assert found == ([label] if label else [])
    assert not begins_with(text, "negative", ())
