import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from importing import import_examples

from spark_audit.data.examples import Span, write_examples
from spark_audit.data.importers import import_rows
from spark_audit.errors import InputError, SparkError

TEMPLATE = r"Text: {text}\nLabel:"
ROWS = [
    {"id": "r1", "text": "Rates rose, Ann said.", "label": "hawkish"},
    {"id": "r2", "text": "We saw them fall.", "label": "dovish"},
]


def lines(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def refusal(source, **options):
    with pytest.raises(InputError) as caught:
        import_examples(source, **{"task": "t", **options})
    message = str(caught.value).replace(str(source), "SOURCE")
    assert "\n" not in message
    assert "Rates" not in message
    return message


def check_two(rows, *, ids=("r1", "r2")):
    assert [row.id for row in rows] == list(ids)
    assert [row.prompt for row in rows] == [
        "Text: Rates rose, Ann said.\nLabel:",
        "Text: We saw them fall.\nLabel:",
    ]
    assert [row.response for row in rows] == [" hawkish", " dovish"]
    assert {row.split for row in rows} == {"train"}
    assert rows[0].template == ((0, 6), (27, 34))
    assert [row.source_id for row in rows] == list(ids)


# --- formats --------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_is_read_with_any_delimiter(tmp_path, mark, delimiter):
    text = f"id{delimiter}text{delimiter}label\r\n"
    for row in ROWS:
        text += delimiter.join(f'"{value}"' for value in row.values()) + "\r\n"
    source = tmp_path / "x.csv"
    source.write_bytes(mark + text.encode())
    check_two(import_examples(source, task="t", split="train", template=TEMPLATE))


def test_csv_with_line_ends_quotes_and_long_cells(tmp_path):
    source = tmp_path / "x.csv"
    long = "a" * 200_000
    source.write_text(f'prompt,response\n"one ""x""\ntwo",a\n{long},b\n')
    rows = import_examples(source, task="t", split="test")
    assert [row.prompt for row in rows] == ['one "x"\ntwo', long]


def test_parquet_is_told_by_its_content(tmp_path):
    source = tmp_path / "x.bin"  # told by content, not by name
    pq.write_table(pa.Table.from_pylist(ROWS), source)
    check_two(import_examples(source, task="t", split="train", template=TEMPLATE))


def test_parquet_that_grows_or_holds_no_text(tmp_path):
    source = tmp_path / "x.parquet"
    code = pa.array(np.zeros(300_000, np.int32))
    many = pa.DictionaryArray.from_arrays(code, ["x" * 99])
    raw = pa.array([b"\xff"], pa.binary()).buffers()
    for column, message in (
        (many, "is not readable as Parquet or Arrow"),
        (
            pa.Array.from_buffers(pa.string(), 1, raw),
            "is not readable as Parquet or Arrow",
        ),
        (pa.array([2**30], pa.date32()), "is not readable as Parquet or Arrow"),
    ):
        pq.write_table(pa.table({"text": column, "label": column}), source)
        with pytest.raises(InputError, match=message):
            import_examples(source, task="t", split="train")


@pytest.mark.parametrize("format", ["auto", "trace"])
def test_rows_of_trace_are_read(tmp_path, format):
    source = tmp_path / "train.json"
    source.write_text(json.dumps([{"prompt": "Is it?", "answer": "yes"}] * 2))
    rows = import_examples(source, task="t", split="train", format=format)
    assert [row.id for row in rows] == ["t-train-000001", "t-train-000002"]
    assert (rows[0].prompt, rows[0].response) == ("Is it?", " yes")
    assert rows[0].template is None


def test_rows_of_olora_are_read(tmp_path):
    source = tmp_path / "dev.json"
    source.write_text(json.dumps([{"label": "good", "sentence": "It was."}]))
    (row,) = import_examples(
        source, task="t", split="test", template=r"{sentence}\nOption:"
    )
    assert (row.prompt, row.response) == ("It was.\nOption:", " good")
    (row,) = import_examples(source, task="t", split="test", format="olora")
    assert (row.prompt, row.response) == ("It was.", " good")


def saved(folder, *, parts):
    datasets = pytest.importorskip("datasets", reason="the extra `hub`")
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["dovish", "hawkish"]),
        }
    )
    rows = {"text": [r["text"] for r in ROWS], "label": [1, 0]}
    dataset = datasets.Dataset.from_dict(rows, features=features)
    if parts:
        dataset = datasets.DatasetDict(dict.fromkeys(parts, dataset))
    dataset.save_to_disk(folder)
    return folder


@pytest.mark.parametrize("format", ["auto", "datasets"])
def test_a_folder_of_datasets_is_read(tmp_path, format):
    source = saved(tmp_path / "d", parts=())
    ids = ("t-train-000001", "t-train-000002")
    check_two(
        import_examples(
            source, task="t", split="train", template=TEMPLATE, format=format
        ),
        ids=ids,
    )


def test_datasets_missing_label_is_refused(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the extra `hub`")
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["dovish"]),
        }
    )
    dataset = datasets.Dataset.from_dict(
        {"text": ["a", "b"], "label": [0, -1]}, features=features
    )
    dataset.save_to_disk(tmp_path / "d")
    message = refusal(tmp_path / "d", split="train")
    assert ".arrow, row 2: field 'label' " in message


def test_datasets_files_of_an_earlier_map_are_no_data(tmp_path):
    dataset = saved(tmp_path / "d", parts=("train", "test"))
    for name in ("train", "test"):
        (file,) = (dataset / name).glob("*.arrow")
        file.with_name("cache-0123456789abcdef.arrow").write_bytes(file.read_bytes())
    assert len(import_examples(dataset, task="t", template=TEMPLATE)) == 4
    lines(tmp_path / "train.jsonl", ROWS[:1])  # a saved folder beside it is none of it
    assert len(import_examples(tmp_path, task="t", template=TEMPLATE)) == 1


@pytest.mark.parametrize(
    "state",
    [
        {},
        [],
        {"_data_files": None},
        *({"_data_files": [state_entry]} for state_entry in ("x", {}, {"filename": 1})),
        *({"_data_files": [{"filename": n}]} for n in ("../x.arrow", "/x", "..", "")),
    ],
)
def test_datasets_that_name_no_data_of_their_folder(tmp_path, state):
    stream(tmp_path / "x.arrow", {"prompt": ["a"], "response": ["b"]})
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "state.json").write_text(json.dumps(state))
    assert "data outside of its folder" in refusal(tmp_path / "d", split="train")
    (tmp_path / "d" / "state.json").rename(tmp_path / "state.json")
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": [".."]}')
    assert "data outside of its folder" in refusal(tmp_path / "d", split="train")


def stream(path, columns, told=b"{}"):
    table = pa.table(columns).replace_schema_metadata({b"huggingface": told})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as s:
        s.write_table(table)
    return path


def test_arrow_of_more_rows_than_bytes_is_refused_unless_it_holds_them(tmp_path):
    source = stream(tmp_path / "x.arrow", {"n": pa.nulls(50_000_000)})
    assert "is not readable as Parquet or Arrow" in refusal(source, split="train")
    source = stream(source, {"prompt": [f"row {i}" for i in range(3000)]})
    rows = import_examples(source, task="t", split="train", columns={"response": ""})
    assert [row.prompt for row in rows] == [f"row {i}" for i in range(3000)]
    table = pa.table({"prompt": [row.prompt for row in rows]})
    pa.feather.write_feather(table, tmp_path / "x.feather", chunksize=1000)
    source = tmp_path / "x.feather"
    examples = import_examples(
        source, task="t", split="train", columns={"response": ""}
    )
    assert [row.prompt for row in examples] == [row.prompt for row in rows]
    source.write_bytes(source.read_bytes()[:-100])
    assert "is not readable as Parquet or Arrow" in refusal(source, split="train")


LABEL = {"_type": "ClassLabel", "names": ["no", "yes"]}


@pytest.mark.parametrize(
    ("features", "response", "told"),
    [
        (None, 1, " 1"),
        ([], 1, " 1"),
        ({"response": None, "gone": LABEL}, 1, " 1"),
        ({"response": LABEL | {"_type": "Value"}}, 1, " 1"),
        ({"response": LABEL | {"names": "no"}}, 1, " 1"),
        ({"response": LABEL | {"names": [0, 1]}}, 1, " 1"),
        ({"response": LABEL}, "1", " 1"),
        ({"response": LABEL, "who": {"names": {"_type": "Value"}}}, 1, " yes"),
    ],
)
def test_only_numbered_labels_are_told_by_name(tmp_path, features, response, told):
    columns = {"prompt": ["a"], "response": [response], "who": [{"names": "Ann"}]}
    written = json.dumps({"info": {"features": features}}).encode()
    source = stream(tmp_path / "x.arrow", columns, written)
    assert import_examples(source, task="t", split="train")[0].response == told
    for content in (b"[]", b'{"info": []}'):
        stream(source, columns, content)
        assert import_examples(source, task="t", split="train")[0].response == " 1"


def test_datasets_with_a_link_out_of_the_folder(tmp_path):
    source = saved(tmp_path / "d", parts=())
    (file,) = source.glob("*.arrow")
    file.rename(tmp_path / "theirs")
    file.symlink_to(tmp_path / "theirs")
    with pytest.raises(SparkError, match=f"^{source}/state.json: "):
        import_examples(source, task="t", split="train", template=TEMPLATE)


def test_datasets_that_is_none(tmp_path):
    assert "has no data file" in refusal(tmp_path, format="datasets")
    (tmp_path / "x.arrow").write_bytes(b"ARROW1 nothing")
    refusal_text = refusal(tmp_path / "x.arrow", split="train")
    assert refusal_text.startswith("SOURCE: ")


@pytest.mark.parametrize("parts", [("train", "test"), ("train", "unsupervised")])
def test_parts_of_datasets_give_the_split(tmp_path, parts):
    rows = import_examples(
        saved(tmp_path / "d", parts=parts),
        task="t",
        template=TEMPLATE,
    )
    named = [split for split in parts if split != "unsupervised"]
    assert [row.split for row in rows] == [s for s in named for _ in ROWS]


def test_own_rows_are_copied_exactly(tmp_path):
    first = import_examples(
        lines(tmp_path / "x.jsonl"), task="t", split="train", template=TEMPLATE
    )
    write_examples(tmp_path / "own.jsonl", first)
    again = import_examples(tmp_path / "own.jsonl", task="u")
    assert [row.task for row in again] == ["u", "u"]
    assert [(r.text, r.template, r.id) for r in again] == [
        (r.text, r.template, r.id) for r in first
    ]


# --- prompt, response, spans ----------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "response", "text"),
    [
        ("Label:", "yes", "Label: yes"),
        ("Label: ", "yes", "Label: yes"),
        ("Label:\n", "yes", "Label:\nyes"),
        ("Label:", " yes", "Label: yes"),
        ("Label:", "\nyes", "Label:\nyes"),
    ],
)
def test_one_blank_stands_before_the_response(tmp_path, prompt, response, text):
    source = lines(tmp_path / "x.jsonl", [{"prompt": prompt, "response": response}])
    (row,) = import_examples(source, task="t", split="train")
    assert row.text == text


def test_spans_follow_the_blank(tmp_path):
    spans = [
        {"start": 0, "end": 3, "type": "NAME"},
        {"start": 4, "end": 7, "type": "NAME"},
    ]
    source = lines(
        tmp_path / "x.jsonl", [{"prompt": "Ann:", "response": "Bob", "spans": spans}]
    )
    (row,) = import_examples(source, task="t", split="train")
    assert [row.text[s.start : s.end] for s in row.spans] == ["Ann", "Bob"]
    assert row.spans[0] == Span(0, 3, "NAME")


def test_spans_of_a_templates_only_column_are_moved_with_it(tmp_path):
    spans = [{"start": 0, "end": 3, "type": "NAME"}]
    row = {"body": "Ann:", "label": "Bob", "spans": spans}
    source = lines(tmp_path / "x.jsonl", [row])
    same = {"columns": {"response": "label"}}
    (example,) = import_examples(
        source, task="t", split="train", template="{{Text}}: {body}\\nLabel:", **same
    )
    assert [example.text[s.start : s.end] for s in example.spans] == ["Ann"]
    assert refusal(source, split="train", template="{body}{label}", **same).startswith(
        "SOURCE:1: field 'spans' "
    )
    spans[0]["end"] = 5
    source = lines(tmp_path / "x.jsonl", [row])
    assert "only column" in refusal(source, split="train", template="{body}!", **same)


def test_columns_are_taken_as_they_are_mapped(tmp_path):
    rows = [{"q": "Is it?", "a": 1, "user": 7, "part": "validation", "id": "x"}]
    (row,) = import_examples(
        lines(tmp_path / "x.jsonl", rows),
        task="t",
        columns={
            "prompt": "q",
            "response": "a",
            "source_id": "user",
            "split": "part",
            "id": "",
        },
    )
    assert (row.prompt, row.response, row.source_id) == ("Is it?", " 1", "7")
    assert (row.split, row.id) == ("test", "t-test-000001")


def test_data_that_brings_its_own_wording(tmp_path):
    rows = [{"text": f"Title: {word}", "label": "x"} for word in ("One", "Two")]
    source = lines(tmp_path / "x.jsonl", rows)
    row = import_examples(source, task="t", split="train", template=TEMPLATE)[0]
    assert [row.text[a:b] for a, b in row.template] == ["Text: Title: ", "\nLabel:"]


def test_template_with_several_columns_and_escapes(tmp_path):
    rows = [{"a": "x{b}", "b": "\\n", "c d": "z", "label": "l"}]
    source = lines(tmp_path / "x.jsonl", rows)
    template = r"{{A}}\t{a}\\{b}\n{c d}"
    (row,) = import_examples(source, task="t", split="train", template=template)
    # What stands in a column is text: neither its braces nor its backslashes count.
    assert row.prompt == "{A}\tx{b}\\\\n\nz"
    assert [row.prompt[a:b] for a, b in row.template] == ["{A}\t", "\\", "\n"]


def test_field_of_a_template_is_the_whole_name_of_a_column(tmp_path):
    rows = [{"a.b": "one", "c[0]": "two", "label": "l"}]
    source = lines(tmp_path / "x.jsonl", rows)
    template = "{a.b} {c[0]}"
    (row,) = import_examples(source, task="t", split="train", template=template)
    assert row.prompt == "one two"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("Text:", "it names no column, or a field has no name"),
        ("{}", "it names no column, or a field has no name"),
        ("{text!r}", "it has a field with ':' or '!'"),
        ("{text:>9}", "it has a field with ':' or '!'"),
        ("{text", "expected '}' before end of string"),
        (r"{text}\d", "a backslash"),
        ("{text}\\", "a backslash"),
    ],
)
def test_a_bad_template_is_refused_with_its_fault(tmp_path, template, message):
    source = lines(tmp_path / "x.jsonl")
    got = refusal(source, split="train", template=template)
    assert got.startswith("option --template: ")
    assert f"({message})" in got


@pytest.mark.parametrize("field", ["text.__class__", "text[0]", "body"])
def test_a_template_reaches_columns_only(tmp_path, field):
    source = lines(tmp_path / "x.jsonl")
    message = refusal(source, split="train", template=f"{{{field}}}")
    assert message.startswith(f"SOURCE:1: field '{field}' ")
    assert "(columns: id, text, label)" in message


# --- splits ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["test.jsonl", "eval_1.jsonl", "DEV.jsonl", "val.jsonl"]
)
def test_folder_gives_the_split(tmp_path, name):
    lines(tmp_path / name, ROWS[:1])
    lines(tmp_path / "train-a.jsonl", ROWS[1:])
    lines(tmp_path / "labels.jsonl")
    (tmp_path / "train.txt").write_text("no data")
    rows = import_examples(tmp_path, task="t", template=TEMPLATE)
    assert [(row.id, row.split) for row in rows] == [("r2", "train"), ("r1", "test")]


def test_splits_that_disagree_are_refused(tmp_path):
    lines(tmp_path / "train.jsonl")
    message = refusal(tmp_path, split="test")
    assert "train.jsonl:1: field 'split' " in message
    assert "`--split`" in message
    rows = [{**ROWS[0], "split": "other"}]
    message = refusal(lines(tmp_path / "x.jsonl", rows), split="train")
    assert message.startswith("SOURCE:1: field 'split' ")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.jsonl", "train"),
        ("Test.jsonl", "test"),
        ("validation.jsonl", "test"),
        ("train-00000-of-00001.jsonl", "train"),
        ("training_2.jsonl", "train"),
    ],
)
def test_a_single_file_gives_its_split(tmp_path, name, split):
    source = lines(tmp_path / name)
    rows = import_examples(source, task="t", template=TEMPLATE)
    assert {row.split for row in rows} == {split}
    other_split = "test" if split == "train" else "train"
    assert "is one thing by the option" in refusal(
        source, split=other_split, template=TEMPLATE
    )


# --- refusals -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "Rates", "label": None}, "field 'label' is missing"),
        ({"text": "Rates", "label": " "}, "field 'label' is blank"),
        ({"text": "Rates", "label": {"a": 1}}, "field 'label' is not text"),
        ({"text": ["Rates"], "label": "x"}, "field 'text' is not text"),
        (
            {"text": "Rates"},
            "field 'response' has no column of a usual name (columns: text);"
            " give `--map response=COLUMN`",
        ),
        (
            {"Rates rose.": "x"},
            "field 'prompt' has no column of a usual name (its 1 columns are not",
        ),
        (
            {"text": "Rates", "label": "x", "id": "\x07"},
            "field 'id' is blank or holds",
        ),
    ],
)
def test_a_bad_row_is_refused_by_its_field(tmp_path, row, message):
    source = lines(tmp_path / "x.jsonl", [ROWS[0], row])
    assert refusal(source, split="train").startswith(f"SOURCE:2: {message}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "SOURCE: holds no rows"),
        (b"text,label\na,b,c\n", "SOURCE:2: has 3 cells where the first line has 2"),
        (b"text,label\na\xff,b\n", "SOURCE, behind line 1: is not UTF-8; save as"),
        (b"text,text\na,b\n", "SOURCE:1: the first line is empty, or does not name"),
        (
            b'text,label\n"Rates,b\n',
            "SOURCE, behind line 1: has a quote that is not CSV",
        ),
        (b"text,label\n", "SOURCE: holds no rows"),
        (b"[]", "SOURCE: holds no rows"),
        (b"[1]", "SOURCE, row 1: is not an object"),
        (b'[{"text": "a", "label": NaN}]', "SOURCE, row 1: field 'label' is missing"),
        (b'[\n{"a": Rates}]', "SOURCE: is not JSON (line 2, column 7)"),
        (b"PAR1 Rates", "SOURCE: is not readable as Parquet or Arrow"),
        (b'{"text": "Rates', "SOURCE:1: is not JSON (column 10); its end is missing"),
    ],
)
def test_a_bad_file_is_refused_by_its_place(tmp_path, content, message):
    source = tmp_path / "data"
    source.write_bytes(content)
    assert refusal(source, split="train").startswith(message)


def test_a_wrong_source_or_option_is_refused_by_its_name(tmp_path):
    message = refusal(tmp_path / "no")
    assert message.startswith("SOURCE: ")
    assert "hf:OWNER/NAME[:CONFIG]" in message
    message = refusal(tmp_path)
    assert message.startswith("SOURCE: ")
    assert "train*" in message
    source = lines(tmp_path / "x.jsonl")
    assert refusal(source, task="a/b").startswith("field 'task' ")
    message = refusal(source, columns={"text": "x"})
    assert message.startswith("option --map: 'text' ")
    assert ": prompt" in message
    assert refusal(source, columns={"prompt": "text"}, template="{text}").startswith(
        "option --map: 'prompt' "
    )
    message = refusal(source, split="train", columns={"response": "stars"})
    assert message.startswith("SOURCE:1: field 'stars' ")
    assert "(columns: id, text, label)" in message


def test_ids_that_stand_twice(tmp_path):
    lines(tmp_path / "train.jsonl")
    lines(tmp_path / "test.jsonl")
    assert "the id occurs twice" in refusal(tmp_path)
    rows = import_examples(tmp_path, task="t", columns={"id": "", "response": "label"})
    assert len({row.id for row in rows}) == 4


# --- lines of text, rows without a response, files of any size ------------------------


def test_each_line_of_a_text_file_is_a_row(tmp_path):
    source = tmp_path / "train_mails.txt"
    source.write_text("\ufeffRates rose, Ann said.\n\n  We saw them fall. \r\n")
    rows = import_examples(source, task="t")
    assert [row.text for row in rows] == ["Rates rose, Ann said.", "We saw them fall."]
    assert {(row.prompt, row.response, row.split) for row in rows} == {
        (row.text, "", "train") for row in rows
    }
    (tmp_path / "x").write_text("Ann, Bob\n")
    (row,) = import_examples(tmp_path / "x", task="t", split="test", format="text")
    assert row.text == "Ann, Bob"
    source.write_bytes(b"Rates \xff")
    assert refusal(source).startswith("SOURCE:1: is not UTF-8")
    source.write_text("\n \n")
    assert refusal(source).startswith("SOURCE: holds no rows; give a file with rows")


def test_a_row_may_have_no_response_or_no_prompt(tmp_path):
    source = lines(tmp_path / "x.jsonl")
    columns = {"prompt": "text", "response": ""}
    row = import_examples(source, task="t", split="train", columns=columns)[0]
    assert (row.prompt, row.response) == ("Rates rose, Ann said.", "")
    columns = {"prompt": "", "response": "text"}
    row = import_examples(source, task="t", split="train", columns=columns)[0]
    assert (row.prompt, row.response) == ("", "Rates rose, Ann said.")
    columns = {"prompt": "", "response": ""}
    assert "are blank" in refusal(source, split="train", columns=columns)


def test_row_by_row_leaves_nothing_of_a_bad_file(tmp_path):
    for rows, message in (
        ([*ROWS, {"text": 1.5}], "x.jsonl:3: field"),
        ([*ROWS, *ROWS], "x.jsonl:3, field 'id': the id occurs twice, first at"),
        ([], "x.jsonl: is empty"),
    ):
        source = lines(tmp_path / "x.jsonl", rows)
        with pytest.raises(InputError) as caught:
            import_rows(source, tmp_path / "out" / "o.jsonl", task="t", split="train")
        assert message in str(caught.value)
        assert not [*(tmp_path / "out").glob("*")]


def test_python_shows_progress_where_it_is_asked_for(tmp_path, capsys):
    source = tmp_path / "rows.csv"
    source.write_text("text,label\n" + "call me,good\n" * 1000, encoding="utf-8")

    def shown(progress: Any) -> str:
        import_rows(
            source, tmp_path / "x.jsonl", task="t", split="train", progress=progress
        )
        return capsys.readouterr().err

    assert "rows written" in shown(True)
    assert shown(False) == shown(None) == ""
    calls: list[tuple[str, int, int]] = []
    assert shown(lambda *call: calls.append(call)) == ""
    assert calls == [("rows written", 1000, 0)]
