"""Every argument of what Python exports refuses a value of a wrong type in one line."""

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest

import spark_audit as sa
import spark_train
from spark_audit.arguments import ArgumentError, checked_call, checked_value
from spark_audit.integrations.transformers import AuditCallback
from spark_audit.report.audit_report import AuditReport
from spark_audit.spoken_options import for_command_line

NEEDED: Mapping[str, Any] = {
    "base": "models/base",
    "checkpoint": "runs/mine",
    "checkpoints": "runs/mine",
    "data": "rows.jsonl",
    "examples": [],
    "folder": "reports/mine",
    "name": "m",
    "of": "results",
    "output": "out",
    "path": "m.json",
    "plan": {},
    "reference": "models/base",
    "seed": 0,
    "source": "m.json",
    "task": "notes",
}
"""Argument that a call needs -> a value of a right type."""

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{
        f"sa.{name}": getattr(sa, name)
        for name in sa.__all__
        if inspect.isfunction(getattr(sa, name))
    },
    "spark_train.run": spark_train.run,
    "spark_train.stages": spark_train.stages,
    "AuditCallback": AuditCallback,
    "AuditReport.to_frame": AuditReport.to_frame,
    "AuditReport.plot": AuditReport.plot,
    "AuditReport.gate": AuditReport.gate,
    "AuditReport.save": AuditReport.save,
    "AuditResult.to_frame": sa.AuditResult.to_frame,
}


class Choice(StrEnum):
    A = "a"


class Options(typing.TypedDict):
    limit: int


Limit = typing.NewType("Limit", int)


class Wrong:
    """A value that no argument takes."""


def calls() -> Iterator[Any]:
    """Yield each function with each of its arguments."""
    for label, function in FUNCTIONS.items():
        for name in inspect.signature(function).parameters:
            if name != "self":
                yield pytest.param(function, name, id=f"{label}-{name}")


@pytest.fixture(autouse=True)
def as_python_calls() -> Iterator[None]:
    with for_command_line(is_running=False):
        yield


@pytest.fixture
def folder_of_scene(scene_of_examples, monkeypatch) -> Mapping[str, Any]:
    """The folder of a scene, in which paths of examples exist."""
    monkeypatch.chdir(scene_of_examples["folder"])
    return scene_of_examples


@pytest.mark.parametrize(("function", "name"), [*calls()])
def test_a_value_of_a_wrong_type_is_named_in_one_line(function, name, folder_of_scene):
    scene = folder_of_scene
    values = {
        **NEEDED,
        "manifest": scene["manifest"],
        "loaded": scene["base"],
        "model": scene["model"],
        "request": sa.Request(checkpoints="runs/mine", manifest="m.json"),
        "tokenizer": scene["base"].tokenizer,
        "self": sa.read_report("reports/mine"),
    }
    parameters = inspect.signature(function).parameters
    given = {
        key: values[key]
        for key, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind is not inspect.Parameter.VAR_POSITIONAL
    }
    positional: list[Any] = []
    if parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
        positional = [Wrong()]
    else:
        given[name] = Wrong()

    with pytest.raises(TypeError) as error:
        function(*positional, **given)
    assert isinstance(error.value, sa.SparkError)
    assert str(error.value).startswith(name)
    assert "Wrong" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", "a", "seed: 'a' "),
        ("seed", True, "seed: True "),
        ("seed", 1.5, "seed: 1.5 "),
        ("shard", "1/2", "shard: '1/2' "),
        ("shard", (1, 2, 3), "shard: tuple "),
        ("jobs", "many", "jobs: 'many' "),
        ("relearn_lr", "high", "relearn_lr: 'high' "),
        ("data", ["a", 3], "data[1]: 3 "),
        ("formats", 3, "formats: 3 "),
        ("baseline", ["er"], "baseline: list "),
        ("scores", 3.5, "scores: 3.5 "),
        ("base", 3, "base: 3 "),
        ("show_text", "yes", "show_text: 'yes' "),
    ],
)
def test_the_message_begins_with_argument_and_value(name, value, message):
    with pytest.raises(ArgumentError) as error:
        sa.audit("runs/mine", "m.json", **{name: value})
    assert str(error.value).startswith(message)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("shard", [(4, 4), (-1, 4), (0, 0)])
def test_a_shard_is_a_part_of_the_work(shard):
    with pytest.raises(sa.SparkError, match="^shard: "):
        sa.audit("runs/mine", "m.json", shard=shard)


def test_an_open_base_that_is_none_is_named():
    with pytest.raises(ArgumentError, match="^base: 3 "):
        sa.open_checkpoint("runs/mine", base=3)  # type: ignore[arg-type]


def test_a_misspelt_choice_is_answered_with_the_nearest():
    with pytest.raises(ArgumentError, match="^format: 'jsnl'.*'jsonl'"):
        sa.import_rows("x", "y", task="t", format="jsnl")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AuditCallback("m.json", rules="x"), "AuditCallback() "),
        (lambda: AuditCallback("m.json", fail_on="x"), "'fail_if'?"),
        (lambda: sa.Request(checkpoints="x", sed=1), "'seed'?"),
        (lambda: sa.Request(checkpoints="x", seed="a"), "seed: 'a' "),
        (lambda: sa.Request(checkpoints=3), "checkpoints: 3 "),
        (lambda: sa.audits.Matched(replicats=3), "'replicates'?"),
        (lambda: sa.audits.Matched(replicates="x"), "replicates: 'x' "),
        (lambda: sa.audits.Noise(sigmas=0.1), "sigmas: 0.1 "),
        (lambda: sa.audits.Stages(order=["a"]), "order: list "),
        (lambda: spark_train.run("d", base="b", output="r", seed="a"), "seed: 'a' "),
    ],
)
def test_classes_and_training_refuse_alike(make, message):
    with pytest.raises(ArgumentError) as error:
        make()
    assert message in str(error.value)


def test_no_text_of_rows_stands_in_an_error():
    rows: Any = [{"prompt": "Call 555-0142"}, "Call 555-0142"]
    for given in (rows[:1], rows[1:]):
        with pytest.raises(ArgumentError) as error:
            sa.annotate(given)
        assert "examples[0]: " in str(error.value)
        assert "555" not in str(error.value)


@pytest.mark.parametrize(
    ("value", "wanted", "taken"),
    [
        (np.int64(3), int, 3),
        (np.float32(0.5), float, 0.5),
        (3, float, 3),
        (np.array(["a", "b"]), Sequence[str], ["a", "b"]),
        (pd.Series([1, 2]), Sequence[int], [1, 2]),
        ([1, np.int64(2)], tuple[int, int], (1, 2)),
        ("a.csv", Path | None, Path("a.csv")),
        ("a.csv", str | Path, "a.csv"),
        (None, Literal["a"] | None, None),
        ({"a": np.int64(1)}, Mapping[str, int], {"a": 1}),
        (len, Callable[..., int], len),
        (np.True_, bool, True),
        (np.float64(0.5), float, 0.5),
        (np.str_("a"), Literal["a", "b"], "a"),
        (Choice.A, Literal["a", "b"], "a"),
        (np.int64(3), Literal[3], 3),
        (PurePosixPath("a.csv"), str | Path, Path("a.csv")),
    ],
)
def test_values_of_other_libraries_are_taken(value, wanted, taken):
    got = checked_value("x", value, wanted)
    assert got == taken
    assert type(got) is type(taken)


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (typing.List, ["a"]),  # noqa: UP006  # audits of users may have it
        (typing.Tuple, (1,)),  # noqa: UP006
        (typing.Mapping, {"a": 1}),
        (typing.Sequence, ["a"]),
        (typing.Type, int),  # noqa: UP006
        (tuple[()], ()),
        (Options, {"limit": 1}),
        (Limit, 3),
        (typing.Final[int], 3),
    ],
)
def test_a_field_of_any_type_of_typing_takes_its_value(wanted, value):
    assert checked_value("x", value, wanted) == value


@pytest.mark.parametrize(
    ("wanted", "value", "message"),
    [
        (typing.List, 3, r"^x: 3 .*\bList$"),  # noqa: UP006
        (typing.Tuple | None, 3, r"^x: 3 .*\bTuple$"),  # noqa: UP006
        (typing.Type, 3, r"^x: 3 .*\bType$"),  # noqa: UP006
        (Limit, "many", "^x: 'many' "),
        (Literal[1], True, r"^x: True .*\b1$"),
        (int, np.True_, "^x: bool "),
    ],
)
def test_a_field_of_any_type_of_typing_refuses_others(wanted, value, message):
    with pytest.raises(ArgumentError, match=message):
        checked_value("x", value, wanted)


def test_what_fits_is_handed_on_itself():
    rows = ["a", "b"]
    generator = (row for row in rows)

    @checked_call
    def taken(rows: Sequence[str], lazy: Any = None) -> Any:
        return rows, lazy

    assert taken(rows, generator)[0] is rows
    assert taken(rows, generator)[1] is generator
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        taken()  # type: ignore[call-arg]
