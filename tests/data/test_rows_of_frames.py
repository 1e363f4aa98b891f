"""Rows of a data frame become examples, as docs/data.md shows."""

import numpy as np
import pandas as pd
import pytest

import spark_audit as sa

FRAME = pd.DataFrame(
    {
        "id": [76, 77],
        "task": "notes",
        "prompt": ["Call 555-0142", "Call me"],
        "response": " now",
        "split": ["train", "test"],
    }
)


def test_whole_numbers_are_ids_and_sources():
    rows = [sa.Example(**row) for row in FRAME.to_dict("records")]
    assert [row.id for row in rows] == ["76", "77"]
    assert [row.source_id for row in rows] == ["76", "77"]

    fields = FRAME.iloc[0].to_dict()
    row = sa.Example(**{**fields, "id": np.int64(5), "source_id": np.int64(6)})
    assert (row.id, row.source_id) == ("5", "6")


@pytest.mark.parametrize("bad_id", [True, 1.5, np.nan, ["a"]])
def test_other_values_are_no_ids(bad_id):
    fields = FRAME.iloc[0].to_dict()
    with pytest.raises(sa.SparkError, match="field 'id'"):
        sa.Example(**{**fields, "id": bad_id})


def test_a_missing_text_is_named_with_the_number_of_its_row():
    fields = FRAME.iloc[1].to_dict()
    with pytest.raises(sa.SparkError) as error:
        sa.Example(**{**fields, "prompt": np.nan})
    assert "77" in str(error.value)
    assert "prompt" in str(error.value)
    assert "NaN" in str(error.value)


def test_an_id_that_may_be_a_name_is_not_shown():
    fields = FRAME.iloc[1].to_dict()
    with pytest.raises(sa.SparkError) as error:
        sa.Example(**{**fields, "id": "anna@example.org", "prompt": np.nan})
    assert "anna" not in str(error.value)


def test_a_frame_instead_of_examples_is_told_what_to_do(scene_of_examples):
    for call in (
        lambda: sa.annotate(FRAME),
        lambda: sa.inject(FRAME, seed=0),
        lambda: sa.build_manifest(FRAME, scene_of_examples["base"], name="m"),
    ):
        with pytest.raises(sa.SparkError) as error:
            call()
        assert "DataFrame" in str(error.value)
        assert "to_dict" in str(error.value)
