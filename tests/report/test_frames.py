"""Frames of a report: their columns, types and pages, also of lists without records."""

import io
import json
import re
from pathlib import Path
from typing import Any

import frame_tables
import pandas as pd
import pyarrow as pa
import pytest
from made_reports import checkpoint, figure, guard, made_report, said

from spark_audit.report.frames import FRAME_LISTS, report_frame
from spark_audit.report.void_rows import with_states
from spark_audit.results import AuditResult
from spark_audit.results.frames import column_types
from spark_audit.stats.estimate import Bound, Power

FIGURE_LISTS = ("results", "contrasts", "findings")
TEST = {"family": "primary", "p": 0.02, "p_adjusted": 0.04}
POWER = Power(test="t", se=0.1, df=9.0, mde=0.3)
BOUND = Bound(test="t", value=0.5, se=0.1)


def full_report(**columns: Any) -> Any:
    """A report in which ``a`` is void, ``b`` is not, and every list has a record."""
    names = ("base", "a", "b")
    findings = [
        said("matched", name, "nothing_shown", "s", value=0.5, **TEST)
        for name in ("a", "b")
    ]
    tests = {"power": [POWER], "bounds": [BOUND], "mde": 0.3, "unit": "nats"}
    findings[1] = findings[1].model_copy(update=tests)
    report_fields = {
        "checkpoints": [checkpoint(name, notes=["é, a note"]) for name in names],
        "results": [
            *(figure(name, "matched|memory||type:EMAIL", 0.5) for name in names),
            figure("b", "matched|memory||dose:1", None),
        ],
        "contrasts": [
            figure(name, "matched|did", -0.5, baseline="base", p=0.25, unit="nats")
            for name in ("a", "b")
        ],
        "guards": [guard("broken_model", "It failed.", of="a")],
        "findings": findings,
        "tables": {
            "shares": [
                {"checkpoint": "a", "share": 1, "n": 3, "shown": True, "gap": None},
                {"checkpoint": "b", "share": 0.5, "n": None, "shown": None},
            ],
            "kept": [{"checkpoint": "a", "state": "kept", "status": "ok"}],
            "accuracy_matrix": [
                {"checkpoint": "b", "stage": 1, "after": "t", "t": 0.5, "u": None}
            ],
        },
        "origins": {"shares": "matched", "kept": "matched", "accuracy_matrix": "x"},
    }
    return made_report(*names, **{**report_fields, **columns})


def types_of(frame: pd.DataFrame) -> dict[str, str]:
    return {str(name): str(dtype) for name, dtype in frame.dtypes.items()}


@pytest.mark.parametrize("name", FRAME_LISTS)
@pytest.mark.parametrize("is_empty", [False, True])
def test_a_list_has_the_columns_of_its_type_with_or_without_records(name, is_empty):
    report = full_report(**({name: []} if is_empty else {}))
    frame = report.to_frame(name)
    assert len(frame) == len(getattr(report, name))
    assert types_of(frame) == column_types(FRAME_LISTS[name])
    assert {*types_of(frame).values()} <= {"string", "Float64", "Int64", "boolean"}


@pytest.mark.parametrize("name", ["results", "contrasts", "guards", "findings"])
def test_the_result_of_an_audit_has_them_too(name):
    assert types_of(AuditResult().to_frame(name)) == column_types(FRAME_LISTS[name])


def test_frames_say_what_the_file_says():
    report = with_states(full_report())
    stored = json.loads(report.model_dump_json())
    for name in FRAME_LISTS:
        frame = report_frame(report, name)
        for record, row in zip(stored[name], frame.to_dict("records"), strict=True):
            assert record.keys() - row.keys() <= {"facts"}
            for column in record.keys() - {"facts"}:
                value = row[column]
                if isinstance(record[column], list):
                    value = json.loads(value)
                assert (None if value is pd.NA else value) == record[column], column


def test_the_tests_of_a_finding_are_json_text():
    finding = full_report().to_frame("findings").iloc[1]
    (power,), (bound,) = json.loads(finding["power"]), json.loads(finding["bounds"])
    assert (power["se"], power["mde"], bound["value"]) == (0.1, 0.3, 0.5)
    notes = full_report().to_frame("checkpoints")["notes"]
    assert json.loads(notes[0]) == ["é, a note"]


@pytest.mark.parametrize("name", [*FIGURE_LISTS, "shares", "kept"])
def test_a_void_figure_is_never_ok(name):
    frame = full_report().to_frame(name)
    of_a = frame[frame["checkpoint"] == "a"]
    assert len(of_a)
    assert {*of_a["status"]} == {"void"}
    assert {*of_a["voided_by"]} == {"broken_model"}
    state = "checkpoint_state" if name == "kept" else "state"
    assert {*of_a[state]} == {"NOT TESTED"}
    others = frame[frame["checkpoint"] != "a"]
    assert {*others["status"]} <= {"ok", "not_estimable"}
    assert {*others["voided_by"]} <= {""}


def test_further_tables_take_their_types_from_their_values():
    frame = full_report().to_frame("shares")
    assert types_of(frame) == {
        **{"checkpoint": "string", "share": "Float64", "n": "Int64"},
        **{"shown": "boolean", "gap": "Float64"},
        **{"state": "string", "voided_by": "string", "status": "string"},
    }
    assert frame["n"].to_list() == [3, pd.NA]
    accuracy = full_report().to_frame("accuracy_matrix")
    assert accuracy[["task", "accuracy", "after"]].to_numpy().tolist() == [
        ["t", 0.5, "t"]
    ]


@pytest.mark.parametrize("name", [*FRAME_LISTS, "shares", "accuracy_matrix"])
def test_parquet_and_arrow_keep_columns_and_types(name, tmp_path):
    for report in (full_report(), full_report(**dict.fromkeys(FRAME_LISTS, []))):
        frame = report.to_frame(name)
        frame.to_parquet(tmp_path / "x.parquet")
        again = pd.read_parquet(tmp_path / "x.parquet")
        pd.testing.assert_frame_equal(again, frame)
        kinds = {str(field.type) for field in pa.Table.from_pandas(frame).schema}
        assert kinds <= {"string", "large_string", "double", "int64", "bool"}


@pytest.mark.parametrize("name", ["results", "contrasts", "guards", "shares"])
def test_csv_has_the_columns_of_the_frame(name, tmp_path):
    report = full_report()
    report.save(tmp_path, ["csv"])
    frame = report.to_frame(name)
    text = (tmp_path / "tables" / f"{name}.csv").read_text(encoding="utf-8")
    table = pd.read_csv(io.StringIO(text))
    added = ["rounded", "beyond"] if name in FIGURE_LISTS else []
    assert [*table] == [*frame, *added]
    assert len(table) == len(frame)
    # A count beside a gap stays a whole number.
    if name == "shares":
        assert re.search(r"^a,1(\.0)?,3,True,", text, re.M)


@pytest.mark.parametrize("name", [None, 1, ["results"]])
def test_a_name_that_is_no_text_is_refused(name):
    shown = "list" if isinstance(name, list) else str(name)
    with pytest.raises(TypeError, match=f"of: {shown} "):
        full_report().to_frame(name)
    with pytest.raises(TypeError, match=f"of: {shown} "):
        AuditResult().to_frame(name)
    with pytest.raises(TypeError, match=f"name: {shown} "):
        full_report().plot(name)


@pytest.mark.parametrize("task", ["accuracy", "task", "value", "p", "status", "note"])
def test_a_task_may_have_the_name_of_a_column(task):
    record = {"checkpoint": "b", "stage": 1, "after": "u", task: 0.0, "u": 0.5}
    report = full_report(tables={"accuracy_matrix": [record]})
    accuracy = report.to_frame("accuracy_matrix").set_index("task")["accuracy"]
    assert accuracy.to_dict() == {task: 0.0, "u": 0.5}


@pytest.mark.parametrize("task", ["value", "note", "t"])
def test_an_accuracy_that_is_text_is_refused(task):
    record = {"checkpoint": "b", "stage": 1, "after": "u", task: "high"}
    with pytest.raises(ValueError, match="accuracy_matrix"):
        full_report(tables={"accuracy_matrix": [record]})


def test_an_accuracy_matrix_without_records_has_its_columns():
    report = full_report(tables={"accuracy_matrix": []})
    full = full_report()
    assert types_of(report.to_frame("accuracy_matrix")) == types_of(
        full.to_frame("accuracy_matrix")
    )


def test_only_a_p_of_0_is_replaced():
    record = {"log_p": -3.5, "p": 0.25, "gain_p": 0.0}
    report = full_report(tables={"own": [record]})
    (row,) = report.to_frame("own").to_dict("records")
    assert row == {"log_p": -3.5, "p": 0.25, "gain_p": 1e-300}


def test_no_p_is_0():
    """Far out in the tail a formula underflows: its p is at most the smallest one."""
    contrast = figure("b", "matched|did", -0.5, baseline="base", p=0.0, p_adjusted=0.0)
    finding = said("matched", "b", "nothing_shown", "s", p=0.0, p_adjusted=0.0)
    table = {"covariates": [{"task": "t", "p": 0.0, "step_p_adjusted": 0.0, "sp": 0.0}]}
    report = full_report(contrasts=[contrast], findings=[finding], tables=table)
    for name in ("contrasts", "findings"):
        assert (report.to_frame(name)[["p", "p_adjusted"]] == 1e-300).all(axis=None)
    (record,) = report.to_frame("covariates").to_dict("records")
    assert record == {"task": "t", "p": 1e-300, "step_p_adjusted": 1e-300, "sp": 0.0}


def test_the_page_has_every_column_with_its_type_and_meaning():
    page = frame_tables.PAGE.read_text(encoding="utf-8")
    _, mark, tables = page.partition(frame_tables.MARK)
    assert mark
    assert tables == frame_tables.tables(), "run: python docs/frame_tables.py"
    for line in tables.splitlines():
        if line.startswith("| `"):
            _, name, dtype, _, meaning, _ = re.split(r"(?<!\\)\|", line)
            assert dtype.strip(), name
            assert meaning.strip(), name
    assert Path(frame_tables.__file__).name in mark
