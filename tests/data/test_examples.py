import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_audit.data.examples import (
    SPLIT_FIX,
    Example,
    Span,
    data_files,
    read_examples,
    write_examples,
)
from spark_audit.data.json_rows import EMPTY_FIX
from spark_audit.errors import InputError

ROW = {
    "id": "a",
    "task": "t",
    "prompt": "Text: I am Ann.\nLabel:",
    "response": " good",
    "split": "train",
}
SECRET = "Ann"


def example(**changes):
    return Example(**{**ROW, "source_id": "a", **changes})


def file_of(tmp_path, *rows):
    path = tmp_path / "data.jsonl"
    lines = [
        row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows
    ]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def refusal(path):
    with pytest.raises(InputError) as caught:
        read_examples(path)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value).replace(str(path), "")
    return str(caught.value)


# --- round trip -----------------------------------------------------------------------


names = st.text(
    st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=8
).filter(lambda s: s.strip() and s.isprintable())
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


@given(id=names, prompt=texts, response=texts, cuts=st.lists(st.integers(0, 80)))
def test_any_valid_example_survives_a_file(
    tmp_path_factory, id, prompt, response, cuts
):
    length = len(prompt + response)
    if not (prompt + response).strip():
        return
    edges = sorted({cut for cut in cuts if cut <= length})
    spans = tuple(Span(a, b, "OTHER") for a, b in zip(edges[::2], edges[1::2]))  # noqa: B905
    rows = [example(id=id, prompt=prompt, response=response, spans=spans)]
    path = tmp_path_factory.mktemp("data") / "x.jsonl"
    write_examples(path, rows)
    assert read_examples(path) == rows


def test_spans_are_put_in_order():
    row = example(spans=(Span(11, 14, "NAME"), Span(0, 4, "ID")))
    assert [span.start for span in row.spans] == [0, 11]


def test_python_gives_an_example_what_a_row_of_a_file_may_hold(tmp_path):
    """A source of its own, spans as mappings, lists for ranges."""
    fields = {"id": "r1", "task": "t", "prompt": "Call 555-0142 ", "response": "now"}
    fields |= {"split": "train", "template": [[0, 5]]}
    fields |= {"spans": [{"start": 5, "end": 13, "type": "PHONE"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(fields))
    (of_file,) = read_examples(tmp_path / "rows.jsonl")
    example = Example(**fields)
    assert example == of_file
    assert example.source_id == "r1"
    assert example.spans == (Span(5, 13, "PHONE"),)
    assert hash(example.spans) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"id": 3.5},
        {"source_id": 1.5},
        {"source_id": ""},
        {"prompt": b"bytes"},
        {"split": "dev"},
        {"spans": "PHONE"},
        {"spans": [{"start": 0, "end": 3}]},
        {"spans": [{"start": "0", "end": 3, "type": "ID"}]},
        {"spans": [{"start": 0, "end": 99, "type": "ID"}]},
        {"spans": [{"start": 0, "end": 3, "type": "ID", "extra": SECRET}]},
        {"canary": {"id": "c"}},
    ],
)
def test_python_refuses_what_a_file_refuses_in_the_same_words(tmp_path, change):
    fields = {"id": "r1", "task": "t", "prompt": "Call me", "response": "now"}
    fields |= {"split": "train", **change}
    with pytest.raises(InputError) as error:
        Example(**fields)
    assert SECRET not in str(error.value)

    if change.get("prompt") == b"bytes":
        return
    (tmp_path / "rows.jsonl").write_text(json.dumps(fields))
    with pytest.raises(InputError) as error_of_file:
        read_examples(tmp_path / "rows.jsonl")
    assert error.value.what == error_of_file.value.what
    assert error.value.fix == error_of_file.value.fix


# --- refusals: every one names file, line and field, none shows text ------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": None}, "field 'id' (field required); `data"),
        ({"prompt": None}, "field 'prompt' (field required"),
        ({"prompt": 3}, "field 'prompt' (input should be a valid string"),
        ({"response": [SECRET]}, "field 'response' (input should be a valid string"),
        ({"id": True}, "field 'id' (input should be a valid string"),
        ({"source_id": 1.5}, "field 'source_id' (input should be a valid string"),
        ({"id": " "}, "field 'id' is blank or holds control"),
        ({"id": "a\nb"}, "field 'id' is blank or holds control"),
        ({"task": "../x"}, "field 'task' is not a plain name"),
        ({"task": ".x"}, "field 'task' is not a plain name"),
        ({"split": None}, f"field 'split' (field required); {SPLIT_FIX}"),
        ({"split": "dev"}, "field 'split' (input should be 'train' or 'test'"),
        (
            {"prompt": "\ud800 Ann"},
            "field 'prompt' holds half a surrogate pair",
        ),
        ({"prompt": " \n", "response": ""}, "field 'prompt' and response are blank"),
        (
            {SECRET: 1},
            "field '*' (a key that is not known",
        ),
        ({"spans": {"start": 1}}, "field 'spans' (input should be a valid tuple"),
        ({"spans": ["Ann"]}, "field 'spans[0]' (input should be a dict"),
        ({"template": [[0, 6], [3, 9]]}, "field 'template[1]' 3:9 is empty, out of"),
        ({"template": [[0, 60]]}, "field 'template[0]' 0:60 is empty, out of order"),
        ({"template": [[0]]}, "field 'template[0][1]' (field required"),
        (
            {"template": [[0, True]]},
            "field 'template[0][1]' (input should be a valid int",
        ),
        ({"template": "Ann"}, "field 'template' (input should be a valid tuple"),
        ({"frames": [[0, 60]]}, "field 'frames[0]' 0:60 is empty, out of order"),
        ({"frames": "Ann"}, "field 'frames' (input should be a valid tuple"),
        ({"canary": {"id": "c"}}, "field 'canary.format' (field required"),
        ({"canary": {"id": 1}}, "field 'canary.id' (input should be a valid string"),
        ({"canary": "Ann"}, "field 'canary' (input should be a dict"),
    ],
)
def test_a_bad_field_is_refused_by_its_name(tmp_path, change, message):
    path = file_of(tmp_path, ROW, {**ROW, "id": "b", **change})
    assert refusal(path).startswith(f"{path}:2: {message}")


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ({"start": 11}, "field 'spans[1].end' (field required"),
        ({"end": "14"}, "field 'spans[1].end' (input should be a valid int"),
        (
            {"end": 14.0},
            "field 'spans[1].end' (input should be a valid int",
        ),
        ({"start": False}, "field 'spans[1].start' (input should be a valid int"),
        ({"end": 28}, "field 'spans[1]' 11:28 is empty, out of order,"),
        ({"start": -1}, "field 'spans[1]' -1:14 is empty, out of order,"),
        ({"start": 14}, "field 'spans[1]' 14:14 is empty, out of order,"),
        ({"start": 15}, "field 'spans[1]' 15:14 is empty, out of order,"),
        ({"start": 3}, "field 'spans[1]' 3:14 is empty, out of order,"),
        ({"type": "iban"}, "field 'spans[1].type' is not a type; use one of: NAME"),
        ({"origin": "real"}, "field 'spans[1].origin' (input should be 'natural' or"),
        (
            {"part": "mail"},
            "field 'spans[1].part' (input should be 'name', 'pass",
        ),
        ({SECRET: 1}, "field 'spans[1]' (a key that is not known"),
    ],
)
def test_a_bad_span_is_refused_by_its_field(tmp_path, span, message):
    good = {"start": 11, "end": 14, "type": "NAME"}
    bad = {"start": 11} if span == {"start": 11} else {**good, **span}
    row = {**ROW, "spans": [{"start": 0, "end": 4, "type": "ID"}, bad]}
    path = file_of(tmp_path, row)
    assert refusal(path).startswith(f"{path}:1: {message}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "Ann', "2: is not JSON (column 8)"),
        (b"", "2: is a blank line; remove it"),
        (b"  \r", "2: is a blank line; remove it"),
        (b'["Ann"]', "2: is not an object"),
        (b'{"id": NaN}', "2: contains NaN, Infinity, a number that is too long"),
        (b'{"id": -Infinity}', "2: contains NaN, Infinity, a number that is too long"),
        (b'{"id": "Ann \xff"}', "2: is not UTF-8; save as UTF-8"),
        (b"[" * 200_000, "2: contains NaN, Infinity, a number that is too long"),
        (b'{"id": ' + b"1" * 5000 + b"}", "2: contains NaN, Infinity, a number"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(tmp_path, line, message):
    path = file_of(tmp_path, ROW, line, {**ROW, "id": "c"})
    assert refusal(path).startswith(f"{path}:{message}")


def test_a_byte_order_mark_of_utf_8_is_read_over_and_others_are_refused(tmp_path):
    line = json.dumps(ROW).encode()
    assert read_examples(file_of(tmp_path, b"\xef\xbb\xbf" + line))
    path = file_of(tmp_path, b"\xff\xfe" + line)
    assert refusal(path).startswith(f"{path}: is not UTF-8")


def test_an_empty_file_is_refused(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"")
    assert refusal(path) == f"{path}: is empty; {EMPTY_FIX}"


def test_an_id_that_stands_twice(tmp_path):
    path = file_of(tmp_path, ROW, {**ROW, "id": "b"}, ROW)
    message = refusal(path)
    assert message.startswith(f"{path}:3, field 'id': ")
    assert f"{path}:1;" in message
    other_file = tmp_path / "other.jsonl"
    other_file.write_bytes(json.dumps(ROW).encode())
    with pytest.raises(InputError, match=r"other\.jsonl:1, field 'id'"):
        read_examples(file_of(tmp_path, ROW), other_file)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"no\.jsonl: "):
        read_examples(tmp_path / "no.jsonl")
    with pytest.raises(InputError):
        read_examples()


def test_data_files_of_folders_come_in_order(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "c.txt"):
        (tmp_path / name).write_text("")
    text_file = tmp_path / "c.txt"
    files = data_files([text_file, tmp_path])
    assert [path.name for path in files] == ["c.txt", "a.jsonl", "b.jsonl"]


def test_a_folder_without_data_files_is_an_error(tmp_path):
    with pytest.raises(InputError, match=f"^{tmp_path}: "):
        data_files([tmp_path])
