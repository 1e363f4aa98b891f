"""Rows imported as a user would, and files that are refused in a line."""

import pandas as pd
import pyarrow as pa
import pytest

from spark_audit.data.examples import read_examples
from spark_audit.data.importers import import_rows
from spark_audit.errors import InputError

TEXTS = [f"The parcel number {i} came late on day {i}." for i in range(4)]
LABELS = ["good", "bad", "good", "bad"]
TABLE = pd.DataFrame({"text": TEXTS, "label": LABELS})
LINES = TABLE.to_json(orient="records", lines=True)


def imported(path, **options):
    """The rows that an import writes, and what it tells."""
    lines = []
    output = path.parent / "out" / "rows.jsonl"
    options = {"task": "t", "split": "train", **options}
    import_rows(path, output, note=lines.append, **options)
    return read_examples(output), lines


def check_four(rows):
    assert [row.prompt for row in rows] == TEXTS
    assert [row.response.strip() for row in rows] == LABELS


def refusal(path, **options):
    with pytest.raises(InputError) as caught:
        imported(path, **options)
    message = str(caught.value)
    assert "parcel" not in message
    assert "\n" not in message
    return message


def zstd(raw):
    return pa.Codec("zstd").compress(raw, asbytes=True)
