"""No traceback shows text of a row: notebooks that are saved keep their tracebacks."""

import json
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

import spark_audit as sa
from spark_audit.errors import memory_failure, out_of_memory
from spark_audit.spoken_options import for_command_line

SECRET = "anna.private@example.org"
ROW: Mapping[str, Any] = {
    "id": "a",
    "task": "notes",
    "prompt": f"write to {SECRET}",
    "response": " done",
    "split": "train",
}

BAD_FIELDS: Mapping[str, Any] = {
    "prompt": [f"write to {SECRET}"],
    "response": {"text": SECRET},
    "id": [SECRET],
    "task": f"/{SECRET}",
    "split": SECRET,
    "spans": [{"start": SECRET, "end": 3, "type": SECRET}],
    "canary": {"id": SECRET},
    "template": SECRET,
    "frames": [[SECRET, 3]],
    "training_input": {"max_length": SECRET},
}
"""Field -> a value that is refused, and that holds the text."""

BAD_LINES: Mapping[str, str] = {
    "cut": json.dumps(dict(ROW))[:-20],
    "two objects": json.dumps(dict(ROW)) + "x",
    "unknown key": json.dumps({**ROW, SECRET: 1}),
    "repeated key": f'{{"{SECRET}": 1, "{SECRET}": 2}}',
    "no object": json.dumps([SECRET]),
    "NaN": f'{{"prompt": "{SECRET}", "id": NaN}}',
    "half a pair": json.dumps({**ROW, "prompt": SECRET + "\ud83d"}),
    **{key: json.dumps({**ROW, key: value}) for key, value in BAD_FIELDS.items()},
}
"""Fault -> a line of a data file that has it."""


def traceback_of(call: Callable[[], object]) -> str:
    """Return the whole traceback of a call, without lines of code."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  (the text is what counts)
        call()
    printed = traceback.TracebackException.from_exception(caught.value)
    return "".join(_messages(printed))


def _messages(error: traceback.TracebackException) -> Iterator[str]:
    """Yield the messages of an error and of those that Python prints before it."""
    earlier = error.__cause__
    if earlier is None and not error.__suppress_context__:
        earlier = error.__context__
    if earlier is not None:
        yield from _messages(earlier)
    yield from error.format_exception_only()


@pytest.fixture(autouse=True)
def as_python_calls() -> Iterator[None]:
    with for_command_line(is_running=False):
        yield


@pytest.mark.parametrize("field", BAD_FIELDS)
def test_an_example_that_is_refused_is_not_shown(field):
    message = traceback_of(lambda: sa.Example(**{**ROW, field: BAD_FIELDS[field]}))
    assert field in message
    assert SECRET not in message


def test_the_traceback_as_python_prints_it_has_one_error():
    with pytest.raises(sa.SparkError) as caught:
        sa.Example(**{**ROW, "prompt": [f"write to {SECRET}"]})
    printed = "".join(traceback.format_exception(caught.value))
    assert SECRET not in printed
    assert "input_value" not in printed
    assert "pydantic_core" not in printed


@pytest.mark.parametrize("call", ["annotate", "inject", "build", "write", "score"])
@pytest.mark.parametrize(
    "given",
    [SECRET, [SECRET], {SECRET: SECRET}, [{"prompt": SECRET}], [[SECRET]]],
    ids=["text", "texts", "mapping", "mappings", "lists"],
)
def test_what_is_given_instead_of_examples_is_not_shown(
    call, given, scene_of_examples, tmp_path
):
    base = scene_of_examples["base"]
    calls = {
        "annotate": lambda: sa.annotate(given),
        "inject": lambda: sa.inject(given, seed=0),
        "build": lambda: sa.build_manifest(given, base, name="m"),
        "write": lambda: sa.write_examples(tmp_path / "rows.jsonl", given),
        "score": lambda: sa.score(base, [given]),
    }
    assert SECRET not in traceback_of(calls[call])


@pytest.mark.parametrize("fault", BAD_LINES)
@pytest.mark.parametrize("call", ["read", "import", "chat", "manifest", "report"])
def test_a_line_that_is_refused_is_not_shown(call, fault, scene_of_examples, tmp_path):
    path = tmp_path / "report.json"
    lines = tmp_path / "rows.jsonl"
    for file in (path, lines):
        file.write_text(BAD_LINES[fault] + "\n")
    tokenizer = scene_of_examples["base"].tokenizer
    output = tmp_path / "out.jsonl"
    calls = {
        "read": lambda: sa.read_examples(lines),
        "import": lambda: sa.import_rows(lines, output, task="../t"),
        "chat": lambda: sa.import_chat(lines, output, task="t", tokenizer=tokenizer),
        "manifest": lambda: sa.read_manifest(path),
        "report": lambda: sa.read_report(tmp_path),
    }
    assert SECRET not in traceback_of(calls[call])


@pytest.mark.parametrize("part", ["manifest", "report"])
def test_records_of_files_show_no_input(part, scene_of_examples, tmp_path):
    folder = Path(scene_of_examples["folder"])
    sources = {
        "manifest": folder / "m.json",
        "report": folder / "reports" / "mine" / "report.json",
    }
    content = json.loads(sources[part].read_bytes())
    if part == "manifest":
        content["settings"] = SECRET
        content["notes"] = [[SECRET]]
    else:
        content["results"][0] = {"metric": [SECRET]}
    path = tmp_path / "report.json"
    path.write_text(json.dumps(content))
    readers = {
        "manifest": lambda: sa.read_manifest(path),
        "report": lambda: sa.read_report(tmp_path),
    }
    assert SECRET not in traceback_of(readers[part])

    # pydantic's own error, which nothing of ours hides, leaves its input out, too.
    model = sa.Manifest if part == "manifest" else sa.Report
    with pytest.raises(ValidationError) as caught:
        model.model_validate(content)
    assert SECRET not in str(caught.value)


def test_a_table_that_cannot_be_read_is_not_shown(tmp_path):
    path = tmp_path / "rows.parquet"
    bad_text = pa.array([SECRET.encode() + b"\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"prompt": bad_text}), path)
    message = traceback_of(
        lambda: sa.import_rows(path, tmp_path / "out.jsonl", task="t", split="train")
    )
    assert SECRET not in message


def test_a_failure_of_memory_stays_in_the_chain():
    assert memory_failure(ValueError(SECRET)) is None
    failure = pa.ArrowMemoryError("malloc of size 64 failed")
    assert memory_failure(failure) is failure
    error = ValueError("not readable")
    error.__cause__ = memory_failure(failure)
    assert out_of_memory(error)
