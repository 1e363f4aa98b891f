import pytest

from spark_audit.scoring.items import begins_with, normalised


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
def test_normalised(text, expected):
    assert normalised(text) == expected


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
        ("sci/tech news", "Sci/Tech"),
        ("", None),
    ],
)
def test_an_answer_that_runs_on_counts_as_the_longest_label_that_it_begins_with(
    text, label
):
    found = [one for one in LABELS if begins_with(text, one, LABELS)]
    # Normalised, "1.5" and "15" are one label, which a guard says.
    alike = {"1.5": ["1.5", "15"]}
    assert found == (alike.get(label, [label]) if label else [])
    assert not begins_with(text, "negative", ())
