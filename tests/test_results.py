"""Estimates and rows refuse what a report must not hold."""

import json
import math
from typing import Any

import pytest
from made_reports import made_report
from pydantic import ValidationError

from spark_audit.results import Contrast, Report, Row
from spark_audit.stats.estimate import Estimate

ROW: dict[str, Any] = {"audit": "matched", "checkpoint": "a", "metric": "delta_sel"}


def test_a_row_without_value_is_not_estimable_and_says_why():
    with pytest.raises(ValidationError, match="not_estimable"):
        Row(**ROW)
    with pytest.raises(ValidationError, match="not_estimable"):
        Row(**ROW, value=0.0, status="not_estimable", note="no pairs")
    with pytest.raises(ValidationError, match=r"\bnote\b"):
        Row(**ROW, status="not_estimable")
    row = Row(**ROW, status="not_estimable", note="no pairs")
    assert json.loads(row.model_dump_json())["value"] is None


@pytest.mark.parametrize("status", ["invalid", "not_resolvable", "insensitive"])
def test_other_statuses_keep_their_value(status):
    assert Row(**ROW, value=0.4, status=status).value == 0.4
    with pytest.raises(ValidationError):
        Row(**ROW, status=status, note="why")


@pytest.mark.parametrize(
    "wrong",
    [
        {"colour": "red"},
        {"status": "fine"},
        {"interval_method": "wald"},
        {"family": "main"},
    ],
)
def test_a_row_has_no_other_columns_or_words(wrong):
    with pytest.raises(ValidationError):
        Row(**ROW, value=1.0, **wrong)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"value": math.nan}, "should be a finite number"),
        ({"no_effect_high": math.inf}, "should be a finite number"),
        ({"p_adjusted": math.nan}, "should be a finite number"),
        ({"value": None}, "exactly when status is not_estimable"),
        ({"status": "not_estimable"}, "exactly when status is not_estimable"),
        ({"value": None, "status": "not_estimable"}, "needs its reason in note"),
        ({"status": "fine"}, "Input should be"),
        ({"colour": "red"}, "Extra inputs"),
    ],
)
def test_a_changed_copy_is_held_to_the_same_rules(update, message):
    contrast = Contrast(**ROW, value=1.0, baseline="b")
    with pytest.raises(ValidationError, match=message):
        contrast.model_copy(update=update)
    if "p_adjusted" not in update:
        with pytest.raises(ValidationError, match=message):
            Row(**ROW, value=1.0).model_copy(update=update)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "name", ["value", "low", "high", "parity_low", "parity_high", "se", "mde"]
)
def test_an_estimate_is_finite(name, bad):
    with pytest.raises(ValueError, match=f"^{name} "):
        Estimate(**{"value": 1.0, name: bad})


def test_a_missing_estimate_gives_its_reason():
    with pytest.raises(ValueError, match=r"\bvalue\b"):
        Estimate(None)
    with pytest.raises(ValueError, match=r"\bvalue\b"):
        Estimate(0.0, status="not_estimable", note="empty")
    with pytest.raises(ValueError, match=r"\breason\b"):
        Estimate(None, status="not_estimable")
    missing = Estimate.missing("no pairs", n=3, clusters=2)
    assert (missing.value, missing.status, missing.note) == (
        None,
        "not_estimable",
        "no pairs",
    )
    assert missing.noting("and no spans").note == "no pairs; and no spans"
    assert Estimate(1.0).noting("a note").note == "a note"


def test_a_row_takes_over_an_estimate():
    shared: dict[str, Any] = {
        "value": 0.5,
        "low": 0.1,
        "high": 0.9,
    }
    shared |= {"parity_low": 0.2, "parity_high": 0.8}
    shared |= {"mde": 0.56, "n": 7, "clusters": 4}
    estimate = Estimate(
        **shared, level=0.9, interval="jackknife-t", se=0.2, note="from the estimate"
    )
    row = Row.of_estimate(
        estimate, **ROW, unit="nats", no_effect=0.1, note="from the audit"
    )
    note = "from the estimate; from the audit"
    assert row == Row(
        **ROW,
        **shared,
        interval_level=0.9,
        interval_method="jackknife-t",
        unit="nats",
        no_effect=0.1,
        note=note,
    )


def test_a_report_reads_back_what_it_wrote():
    report = made_report("a", results=[Row(**ROW, value=1.0)])
    text = report.model_dump_json()
    assert Report.model_validate_json(text) == report
    assert json.loads(text)["kind"] == "spark-audit-report"
    broken = json.loads(text) | {"schema_version": 3}
    with pytest.raises(ValidationError, match="schema_version"):
        Report.model_validate(broken)


def test_limitations_stand_in_the_file_under_their_key():
    report = made_report("ours")
    content = json.loads(report.model_dump_json())
    assert report.limitations == content["scope"] != []
    assert "limitations" not in content
    assert Report.model_validate(content) == report
