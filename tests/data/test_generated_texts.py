"""Files that a model wrote are read by their columns, and refused without any."""

import json

import pandas as pd
import pytest

from spark_audit.data.generated_texts import read_generated
from spark_audit.errors import InputError

ROWS = {
    "text": ({"text": "a b"}, "a b"),
    "pair": ({"prompt": "Q?", "answer": "A."}, "Q?\nA."),
    "completion": ({"prompt": "Q?", "completion": " A."}, "Q?\n A."),
    "chat": (
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Ho"},
            ]
        },
        "Hi\nHo",
    ),
    "output": ({"id": 1, "output": "out"}, "out"),
    "capital": ({"Text": "a"}, "a"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_all_that_was_written(name, tmp_path):
    row, text = ROWS[name]
    path = tmp_path / "file.jsonl"
    path.write_text(f"{json.dumps(row)}\n")
    assert read_generated(path) == [text]


def test_other_formats_are_read_and_blank_rows_left_out(tmp_path):
    frame = pd.DataFrame({"text": ["one", " ", "two, or three"]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_text("one\n\ntwo, or three\n")
    for suffix in ("csv", "parquet", "txt"):
        assert read_generated(tmp_path / f"a.{suffix}") == ["one", "two, or three"]


def test_a_named_column_is_the_only_one(tmp_path):
    path = tmp_path / "file.jsonl"
    path.write_text('{"text": "no", "body": "yes"}\n')
    assert read_generated(path, column="body") == ["yes"]
    with pytest.raises(InputError, match="columns: text, body"):
        read_generated(path, column="other")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"id": 1, "score": 2}\n', "columns: id, score"),
        ("", "empty"),
        ('{"text": " "}\n', "no text"),
    ],
)
def test_a_file_without_text_is_refused_with_what_it_has(content, words, tmp_path):
    path = tmp_path / "file.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=words):
        read_generated(path)


def test_a_folder_and_a_path_without_a_file_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.jsonl"):
        with pytest.raises(InputError):
            read_generated(path)
