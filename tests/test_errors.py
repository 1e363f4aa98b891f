"""One line that says what, where and what to do, and an exit code each."""

import pickle

import pytest

from spark_audit import errors
from spark_audit.errors import (
    CheckpointError,
    EndpointError,
    IncompleteError,
    InputError,
    NotEstimableError,
    OutputError,
    SparkError,
)


@pytest.mark.parametrize(
    ("where", "fix", "line"),
    [
        (None, None, "no text"),
        ("a.jsonl:3", None, "a.jsonl:3: no text"),
        (None, "give one", "no text; give one"),
        ("a.jsonl:3", "give one", "a.jsonl:3: no text; give one"),
    ],
)
def test_the_message_is_where_what_and_fix(where, fix, line):
    error = InputError("no text", where=where, fix=fix)
    assert str(error) == line
    assert (error.what, error.where, error.fix) == ("no text", where, fix)


def test_each_kind_of_error_has_its_exit_code():
    # 1 belongs to the gate, 130 to Ctrl-C; 70 is a defect of ours.
    assert {
        kind: kind.exit_code
        for kind in (
            SparkError,
            InputError,
            CheckpointError,
            OutputError,
            EndpointError,
            IncompleteError,
            NotEstimableError,
        )
    } == {
        SparkError: 70,
        InputError: 2,
        CheckpointError: 3,
        OutputError: 4,
        EndpointError: 4,
        IncompleteError: 5,
        NotEstimableError: 2,
    }


@pytest.mark.parametrize(
    "kind",
    [k for k in vars(errors).values() if getattr(k, "exit_code", None)],
)
def test_every_error_is_of_the_family_and_survives_a_worker_process(kind):
    if not issubclass(kind, SparkError):
        pytest.fail(f"{kind} is no SparkError")
    copy = pickle.loads(pickle.dumps(kind("what", where="here", fix="do")))
    assert type(copy) is kind
    assert str(copy) == "here: what; do"
