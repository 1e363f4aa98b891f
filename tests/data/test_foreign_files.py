"""Data files as pandas, datasets, pyarrow, spreadsheets and shells leave them."""

import codecs
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from imported_rows import (
    LABELS,
    LINES,
    TABLE,
    TEXTS,
    check_four,
    imported,
    refusal,
    zstd,
)

from spark_audit.data.examples import read_examples
from spark_audit.errors import InputError

FILES = {
    "pandas-index.csv": TABLE.to_csv().encode(),
    "trailing.csv": TABLE.to_csv(index=False).replace("\n", ",\n").encode(),
    "trailing-rows.csv": TABLE.to_csv(index=False)
    .replace("good\n", "good,\n")
    .encode(),
    "blanks-between.csv": TABLE.to_csv(index=False)
    .replace("good\n", "good\n  \n")
    .encode(),
    "together.jsonl": LINES.replace("}\n", "}").encode(),
    "together.json": LINES.replace("}\n", "} ").encode(),
    "quoted-sep.csv": b'"sep=;"\r\n' + TABLE.to_csv(index=False, sep=";").encode(),
    "names.csv": TABLE.rename(columns=str.title).to_csv(index=False).encode(),
    "names.jsonl": LINES.replace("text", "TEXT").encode(),
    "excel.csv": b"sep=;\r\n" + TABLE.to_csv(index=False, sep=";").encode(),
    "commas.jsonl": LINES.replace("}\n", "},\n").encode(),
    "cr.jsonl": LINES.replace("\n", "\r").encode(),
    "pipe.csv": TABLE.to_csv(index=False, sep="|").encode(),
    "bom.csv": codecs.BOM_UTF8 + TABLE.to_csv(index=False).encode(),
    "blank-end.csv": TABLE.to_csv(index=False).encode() + b"\n\r\n",
    "rows.csv.gz": gzip.compress(TABLE.to_csv(index=False).encode()),
    "bom.jsonl": codecs.BOM_UTF8 + LINES.encode(),
    "blank-end.jsonl": LINES.encode() + b"\n\n",
    "blank-between.jsonl": LINES.replace("}\n", "}\n\n \r\n", 2).encode(),
    "blank-first.jsonl": b"\n" + LINES.encode(),
    "blank-between.csv": TABLE.to_csv(index=False)
    .replace("good\n", "good\n\n")
    .encode(),
    "blank-first-indented.json": b"\n"
    + json.dumps(TABLE.to_dict(orient="records")[0:4], indent=2).encode(),
    "rows.jsonl.gz": gzip.compress(LINES.encode()),
    "rows.jsonl.zst": zstd(LINES.encode()),
    "crlf.jsonl": LINES.replace("\n", "\r\n").encode(),
    "bom.json": codecs.BOM_UTF8 + TABLE.to_json(orient="records").encode(),
    "columns.json": TABLE.to_json().encode(),
    "lists.json": json.dumps(TABLE.to_dict(orient="list")).encode(),
    "index.json": TABLE.to_json(orient="index").encode(),
    "split.json": TABLE.to_json(orient="split").encode(),
    "table.json": TABLE.to_json(orient="table", index=False).encode(),
    "wrapped.json": json.dumps(
        {"version": "1", "data": TABLE.to_dict(orient="records")}, indent=1
    ).encode(),
    "indented.json": "\n".join(
        json.dumps(row, indent=2) for row in TABLE.to_dict(orient="records")
    ).encode(),
    "nan.jsonl": b"".join(
        json.dumps({**row, "score": float("nan")}).encode() + b"\n"
        for row in TABLE.to_dict(orient="records")
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_tool_gives_its_four_rows(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(FILES[name])
    check_four(imported(path)[0])


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.csv.gz", "rows.jsonl.zst"])
def test_a_folder_gives_the_split_of_compressed_files(name, tmp_path):
    (tmp_path / f"train.{name}").write_bytes(FILES[name])
    (tmp_path / "test.jsonl").write_text(LINES)
    rows, _ = imported(tmp_path, split=None)
    assert [row.split for row in rows] == ["train"] * 4 + ["test"] * 4


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_a_compressed_file_that_is_damaged_is_refused(compress, tmp_path):
    compressed = compress(LINES.encode() * 50)
    path = tmp_path / "rows.jsonl"
    for length in (len(compressed) // 4, len(compressed) // 2, len(compressed) - 3):
        path.write_bytes(compressed[:length])
        assert refusal(path).endswith("; copy or download it again")


def test_gzip_with_a_wrong_byte_is_refused_wherever_it_stands(tmp_path):
    compressed = gzip.compress(LINES.encode(), mtime=0)
    path = tmp_path / "rows.jsonl.gz"
    # Behind its head, whose name and time are free.
    for position in range(10, len(compressed)):
        path.write_bytes(
            compressed[:position]
            + bytes([compressed[position] ^ 0xFF])
            + compressed[position + 1 :]
        )
        assert path.name in refusal(path)


def test_what_is_left_out_of_a_csv_is_told(tmp_path):
    for name, words in (
        ("pandas-index.csv", "the first column has no name (an index)"),
        ("trailing-rows.csv", "2 rows end in a separator"),
        ("wrapped.json", "its rows are those under 'data'"),
        ("columns.json", "is a table by column"),
        ("blank-between.jsonl", "blank-between.jsonl:2: blank lines"),
        ("blank-between.jsonl", "(4 of them"),
        ("blank-between.csv", "(2 of them"),
        ("blank-first.jsonl", "blank-first.jsonl:1: a blank line"),
    ):
        path = tmp_path / name
        path.write_bytes(FILES[name])
        assert words in " ".join(imported(path)[1])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,,label\nx,extra,good\n", "does not name every column once"),
        (",,text,label\n0,5,x,good\n", "leave out an index of several columns"),
        (",text,label\nAnn,x,good\n", "does not number the rows"),
        (",text,label\n0,x,good\n2,y,bad\n", "does not number the rows"),
        ("text,label\nx,good,late\n", "has 3 cells where the first line has 2"),
        ("text,label,\nx,good,late\n", "has 3 cells where the first line has 3"),
        ("text,label\nx\n", "has 1 cells"),
    ],
)
def test_a_column_that_would_be_lost_is_refused(content, words, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(content)
    assert words in refusal(path)


RECORDS = json.dumps(TABLE.to_dict(orient="records"))


@pytest.mark.parametrize(
    ("name", "content", "fix"),
    [
        ("x.json", f"// of July\n{RECORDS}", "remove the comment"),
        ("x.json", f"/* of July */\n{RECORDS}", "remove the comment"),
        ("x.json", RECORDS.replace("}, ", "}, // late\n"), "remove the comment"),
        ("x.jsonl", f"# of July\n{LINES}", "remove the comment"),
        ("x.json", RECORDS.replace("]", ",]"), "remove the comma before the closing"),
        ("x.jsonl", LINES.replace("}", ",}"), "remove the comma before the closing"),
        ("x.jsonl", f"{TABLE.to_dict(orient='records')[0]}\n", "json.dump"),
        ("x.jsonl", '{"text": None, "label": "a"}\n', "json.dump"),
        ("x.jsonl", "parcel: 1\n", "json.dump"),
        ("x.json", TABLE.to_json(orient="values"), "as an object, with a name"),
        ("x.json", TABLE.T.to_json().replace('"0":{', '"r0":{'), "a list of objects"),
        ("x.json", json.dumps({"set": {"rows": []}}), "a list of objects"),
        (
            "x.csv",
            f"# of July\n{TABLE.to_csv(index=False)}",
            "remove what stands before",
        ),
        ("x.csv", "| text | label |\n|---|:-:|\n| a | b |\n", "save it as CSV"),
        ("x.csv", 'text,label\n"a \\"b\\" c",x\n', "double one that is text"),
        ("x.csv", 'text,label\n"a,x\nb,y\n', "close every quote"),
        ("x.orc", "ORC" + "0" * 99, "convert it"),
        ("x.jsonl", '{"text": ["a"], "label": "b"}\n', "make the column one of text"),
        ("x.jsonl", '{"text": "' + "a" * (1 << 24) + '"}\n', "divide its text"),
    ],
)
def test_what_is_no_table_is_refused_with_what_to_do(name, content, fix, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    assert fix in refusal(path)


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.csv", "x.txt"])
def test_an_encoding_is_asked_for_in_every_kind_of_text(name, tmp_path):
    path = tmp_path / name
    row = json.dumps({"text": "spät", "label": "bad"}, ensure_ascii=False)
    texts = {"x.jsonl": f"{row}\n", "x.json": f"[{row}]", "x.txt": "spät\n"}
    path.write_bytes(texts.get(name, "text,label\nspät,bad\n").encode("latin-1"))
    assert "--encoding" in refusal(path)


def test_columns_that_differ_in_case_alone_are_no_usual_ones(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("Text,TEXT,Label\na,b,c\n")
    assert "no column of a usual name" in refusal(path)
    path.write_text("Text,Label,Split\na,b,test\n")
    assert "by the option and another by file name or row" in refusal(path)
    (row,), _ = imported(path, split=None)
    assert (row.prompt, row.split) == ("a", "test")


@pytest.mark.parametrize(
    ("ends", "why"), [(",\n", "ends with a comma"), ("\r", "holds CR")]
)
def test_rows_of_our_own_format_say_what_is_wrong_at_their_ends(ends, why, tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {"id": "1", "task": "t", "prompt": "parcel", "response": "b"}
    rows = [row | {"split": "train"}, row | {"id": "2", "split": "test"}]
    path.write_text("".join(json.dumps(row) + ends for row in rows))
    with pytest.raises(InputError, match=why) as caught:
        read_examples(path)
    assert "parcel" not in str(caught.value)


def test_numbers_and_truth_values_become_text_as_json_writes_them(tmp_path):
    path = tmp_path / "x.jsonl"
    values = [0.0, 1.5, True, False, 7, -1, 1e21]
    path.write_text(
        "".join(json.dumps({"text": "a", "label": value}) + "\n" for value in values)
    )
    rows, _ = imported(path)
    expected = ["0.0", "1.5", "true", "false", "7", "-1", "1e+21"]
    assert [row.response.strip() for row in rows] == expected


def test_parquet_of_numbers_truth_values_categories_and_views_is_read(tmp_path):
    path = tmp_path / "x.parquet"
    for label, expected in (
        (pa.array([0.0, 1.0, 2.0, 3.0]), ["0.0", "1.0", "2.0", "3.0"]),
        (pa.array([True, False, True, False]), ["true", "false", "true", "false"]),
        (pa.array(LABELS).dictionary_encode(), LABELS),
        (pa.array(LABELS, pa.string_view()), LABELS),
    ):
        pq.write_table(pa.table({"text": TEXTS, "label": label}), path)
        rows, _ = imported(path)
        assert [row.response.strip() for row in rows] == expected
    TABLE.assign(label=[0.0, 1.0, None, 3.0]).to_parquet(path)
    assert "row 3: field 'label' is missing" in refusal(path)
    rows, notes = imported(path, empty="drop")
    assert len(rows) == 3
    assert "1 row with an empty field dropped" in notes[0]
    assert "row 3" in notes[0]


def test_ids_are_text_or_whole_numbers(tmp_path):
    path = tmp_path / "x.jsonl"
    for key, expected in ((2**70, str(2**70)), (-1, "-1"), ("mañana 🎉", "mañana 🎉")):
        path.write_text(json.dumps({"text": "a", "label": "b", "id": key}) + "\n")
        assert imported(path)[0][0].id == expected
    for key in (1.0, True, "row\u00a01"):
        path.write_text(json.dumps({"text": "a", "label": "b", "id": key}) + "\n")
        assert "field 'id'" in refusal(path)


ALPACA = [
    {"instruction": "Say it.", "input": "" if i % 2 else TEXTS[i], "output": LABELS[i]}
    for i in range(4)
]
TEMPLATE = r"### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"


def alpaca(path, rows=ALPACA):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"template": TEMPLATE, "columns": {"response": "output"}}


def test_an_empty_column_of_a_template_is_kept_and_counted(tmp_path):
    path = tmp_path / "x.jsonl"
    options = alpaca(path)
    rows, notes = imported(path, **options)
    assert len(rows) == 4
    assert "### Input:\n\n\n### Response:" in rows[1].prompt
    assert notes == ["2 rows with an empty field 'input' kept"]
    rows, notes = imported(path, **options, empty="drop")
    assert len(rows) == 2
    assert notes == [
        f"2 rows with an empty field dropped, first: {path}:2, {path}:4",
    ]


def test_an_empty_response_is_refused_kept_or_dropped(tmp_path):
    path = tmp_path / "x.jsonl"
    options = alpaca(path, [{**ALPACA[0], "output": ""}, *ALPACA[1:]])
    assert "field 'output' " in refusal(path, **options)
    rows, notes = imported(path, **options, empty="keep")
    assert (len(rows), rows[0].response) == (4, "")
    assert "1 row with an empty field 'output' kept" in notes
    assert len(imported(path, **options, empty="drop")[0]) == 1
    alpaca(path, [{**ALPACA[1]}])
    assert "empty field in every row" in refusal(path, **options, empty="drop")


@pytest.mark.parametrize("encoding", ["utf-16", "cp1252", "latin-1", "utf-8-sig"])
def test_another_encoding_is_read_by_its_name(encoding, tmp_path):
    path = tmp_path / "x.csv"
    text = "text,label\nDer Brief kam spät\u00a0an,bad\nGut,good\n"
    path.write_bytes(text.encode(encoding))
    rows, _ = imported(path, encoding=encoding)
    assert [row.prompt for row in rows] == ["Der Brief kam spät\u00a0an", "Gut"]
    if encoding != "utf-8-sig":
        assert "--encoding" in refusal(path)


@pytest.mark.parametrize("width", [16, 32])
@pytest.mark.parametrize("order", ["le", "be"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_letters_of_several_bytes_are_told_by_their_encoding(
    width, order, mark, tmp_path
):
    encoding = f"utf-{width}-{order}"
    path = tmp_path / "x.jsonl"
    path.write_bytes((mark + LINES).encode(encoding))
    proposed = f"utf-{width}" if mark else encoding
    assert f"give --encoding {proposed}, or" in refusal(path)
    check_four(imported(path, encoding=proposed)[0])


def test_an_encoding_that_is_unknown_or_wrong_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes("text,label\nspät,bad\n".encode("latin-1"))
    assert "cp1252?" in refusal(path, encoding="cp-1252x")
    assert "--encoding" in refusal(path, encoding="base64")
    assert "utf-8" in refusal(path, encoding="utf-8")
    TABLE.to_parquet(tmp_path / "x.parquet")
    assert "--encoding" in refusal(tmp_path / "x.parquet", encoding="cp1252")


def test_nul_and_quotes_are_text(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"text": "before\0after", "label": "a"}) + "\n")
    assert imported(path)[0][0].prompt == "before\0after"


def test_a_damaged_compressed_file_is_refused(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(FILES["rows.jsonl.gz"][:-30])
    assert "cannot be decoded" in refusal(path)
    path.write_bytes(b"\x1f\x8bnothing")
    assert "cannot be decoded" in refusal(path)


def test_lists_of_several_splits_in_a_file_are_told(tmp_path):
    path = tmp_path / "x.json"
    rows = TABLE.to_dict(orient="records")
    path.write_text(json.dumps({"train": rows[:2], "test": rows[2:]}))
    assert "holds several lists of rows (train, test)" in refusal(path)


def test_a_row_of_token_ids_is_no_table(tmp_path):
    from spark_audit.data.json_rows import json_rows

    path = tmp_path / "x.jsonl"
    row = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}
    path.write_text(json.dumps(row) + "\n")
    assert [row for _, row in json_rows(path, note=print)] == [row]


def test_nested_columns_are_read_row_by_row(tmp_path):
    path = tmp_path / "x.parquet"
    column = pa.array([{"a": ["x", "y"]}, None, {"a": []}, {"a": None}])
    pq.write_table(pa.table({"text": TEXTS, "label": LABELS, "more": column}), path)
    check_four(imported(path)[0])


def page_of_the_datasets_server(*, cut=(), n_rows=4):
    rows = TABLE.to_dict("records")
    return {
        "features": [{"feature_idx": 0, "name": "text", "type": {"dtype": "string"}}],
        "rows": [
            {"row_idx": number, "row": row, "truncated_cells": list(cut)}
            for number, row in enumerate(rows)
        ],
        "num_rows_total": n_rows,
        "partial": False,
    }


def test_a_page_of_the_datasets_server_gives_its_rows(tmp_path):
    path = tmp_path / "page.json"
    path.write_text(json.dumps(page_of_the_datasets_server(n_rows=900)))
    rows, notes = imported(path)
    check_four(rows)
    assert any("4 of 900 rows" in remark for remark in notes)


def test_a_page_of_the_datasets_server_with_cut_cells_is_refused(tmp_path):
    path = tmp_path / "page.json"
    path.write_text(json.dumps(page_of_the_datasets_server(cut=["text"])))
    assert "hf:OWNER/NAME" in refusal(path)


@pytest.mark.parametrize("value", [0.5, None, float("nan"), {"a": 1}])
def test_columns_beside_all_of_our_own_are_told_and_not_read(value, tmp_path):
    rows = [
        {"id": f"r{number}", "task": "t", "split": "train", "prompt": text}
        | {"response": f" {label}", "score": value, "jo@example.org": 1}
        for number, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True))
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    imported_rows, notes = imported(path)
    check_four(imported_rows)
    assert any("column 'score' is not read" in remark for remark in notes)
    assert not any("jo@example" in remark for remark in notes)
