"""The table on training has the settings in which runs differ, and shares no seed."""

from typing import Any

import pandas as pd
import pytest
from made_reports import checkpoint, manifest_facts

from spark_audit.report.assemble import assemble
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.folder import read_report, write_report
from spark_audit.report.tables import further_tables
from spark_audit.report.writers.page_tables import MAX_LINES_ON_PAGE, page_table
from spark_audit.results import AuditResult, Report
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH

SETTINGS = {"epochs": 6, "lr": 0.00032, "seed": 5, "ptpc.alpha_ul": 2.0, "clip": 1.0}
LOSS = 0.12345678901234567


def training(rows: int = 40, **settings: Any) -> dict[str, Any]:
    part = {"part": "task", "steps": 30, "seconds": {"task": 1.5, "end": 0.25}}
    part |= {"loss": LOSS, "terms": {"task": LOSS}, "last_steps": 10, "rows": rows}
    correction = {"part": "priv", "steps": 7, "seconds": {"correction": 4.0}}
    correction |= {"loss": 2 * LOSS, "rows": rows}
    return {
        "method": "spark",
        "tasks": ["a", "b"],
        "settings": SETTINGS | settings,
        "changed": ["epochs", "lr", "seed", *settings],
        "clock": "processor",
        "parts": [part, correction],
    }


def a_report(*checkpoints: Any) -> Report:
    return assemble(
        {"nll": AuditResult(results=[])},
        status="complete",
        command=["spark-audit", "all"],
        manifest=manifest_facts(),
        checkpoints=checkpoints,
    )


@pytest.fixture
def swept() -> Report:
    """Runs of a sweep, one of another method, and what is no run."""
    er = training(rows=MIN_CLUSTERS_TO_PUBLISH - 1)
    er["settings"] = {"epochs": 6, "lr": 0.00032, "seed": 5}
    er |= {"method": "er", "privacy": "dpsgd", "parts": er["parts"][:1]}
    return a_report(
        checkpoint("base"),
        checkpoint("ul-0", training=training(**{"ptpc.alpha_ul": 0.0})),
        checkpoint("plain", training=training()),
        checkpoint("er", training=er),
        checkpoint("theirs"),
    )


def test_a_line_for_each_run_has_what_differs_or_was_changed(swept):
    records = swept.tables["training"]
    assert [record["checkpoint"] for record in records] == ["ul-0", "plain", "er"]
    assert [record["ptpc.alpha_ul"] for record in records] == [0.0, 2.0, None]
    assert [record["privacy"] for record in records] == [None, None, "dpsgd"]
    for record in records:
        assert record["epochs"] == 6
        # A default in all runs is no column, nor is a part that no run has.
        assert not {"clip", "seconds_answers"} & set(record)
    plain = records[1]
    assert (plain["steps_learning"], plain["steps_correction"]) == (30, 7)
    assert (plain["seconds_learning"], plain["seconds_correction"]) == (1.8, 4.0)
    assert (plain["loss_learning"], plain["loss_correction"]) == (LOSS, 2 * LOSS)
    assert records[2]["loss_correction"] is None


def test_readers_see_what_differs_in_columns_and_the_rest_below(swept):
    (table,) = further_tables(swept)
    assert {"ptpc.alpha_ul", "loss learning"} <= set(table.header)
    assert not {"epochs", "lr", "clock"} & set(table.header)
    alike = table.remarks[0]
    assert "epochs 6" in alike
    assert "lr 0.00032" in alike
    assert "alpha" not in alike


def test_a_shared_file_has_no_seed_and_no_loss_of_few_rows(swept):
    shared = disclosed(swept)
    for facts in (facts.training for facts in shared.checkpoints if facts.training):
        assert "seed" not in facts.settings
        assert "seed" not in facts.changed
    records = shared.tables["training"]
    assert [record["loss_learning"] for record in records] == [0.12, 0.12, None]
    assert not any("seed" in record for record in records)
    assert "seed" in swept.tables["training"][0]


def test_every_format_has_the_table_and_report_json_the_exact_losses(swept, tmp_path):
    write_report(swept, tmp_path, formats=["json", "csv", "md", "html", "latex"])
    table = pd.read_csv(tmp_path / "tables" / "training.csv")
    assert list(table["checkpoint"]) == ["ul-0", "plain", "er"]
    assert list(table["lr"]) == [0.00032] * 3
    assert list(table["ptpc.alpha_ul"])[:2] == [0.0, 2.0]
    for name in ("report.md", "report.html"):
        text = (tmp_path / name).read_text()
        assert "lr 0.00032" in text
        assert "1.8" in text
    tex = (tmp_path / "tables" / "training.tex").read_text()
    assert r"ptpc.alpha\_ul" in tex
    assert r"\input{training}" in (tmp_path / "tables" / "all.tex").read_text()

    report = read_report(tmp_path)
    assert report == swept.model_copy(update={"files": report.files})
    assert report.checkpoints[1].training.part("task").loss == LOSS


def unsaid(name: str, **settings: Any) -> Any:
    """A run whose record does not say which settings differ from the defaults."""
    settings = {"save_every": 50, "ptpc.ul": True, **settings}
    facts = training(**settings)
    return checkpoint(name, training=facts | {"changed": None})


def test_a_record_that_does_not_say_what_was_changed_shows_all_that_matters():
    report = a_report(unsaid("spark"), unsaid("no-ul", **{"ptpc.ul": False}))
    records = report.tables["training"]
    assert [record["lr"] for record in records] == [0.00032, 0.00032]
    assert [record["clip"] for record in records] == [1.0, 1.0]
    assert [record["ptpc.ul"] for record in records] == ["on", "off"]
    assert not any("save_every" in record for record in records)

    # Where runs differ is a column; the rest is not said to differ from the defaults.
    (table,) = further_tables(report)
    assert "ptpc.ul" in table.header
    assert not {"lr", "clip"} & set(table.header)
    (shared,) = [remark for remark in table.remarks if "lr 0.00032" in remark]
    assert "clip 1" in shared


def test_what_one_record_says_and_another_leaves_open_stands_apart():
    said = checkpoint("said", training=training(**{"ptpc.ul": True}))
    (table,) = further_tables(a_report(said, unsaid("spark")))
    (known,) = [remark for remark in table.remarks if "lr 0.00032" in remark]
    (uncertain,) = [remark for remark in table.remarks if "clip 1" in remark]
    assert known != uncertain


def test_of_many_runs_the_page_shows_the_first_ones_and_names_the_file():
    runs = [
        checkpoint(f"run-{k}", training=training(lr=1 / (k + 1))) for k in range(40)
    ]
    report = a_report(*runs)
    (table,) = further_tables(report)
    shown = page_table(table, report)
    assert [line.checkpoint for line in shown.table.rows] == [
        f"run-{k}" for k in range(MAX_LINES_ON_PAGE)
    ]
    assert shown.is_cut
    assert shown.file == "tables/training.csv"


def test_the_last_stage_stands_for_a_series_unless_the_run_was_audited():
    stages = [checkpoint(f"run@{k}", training=training(lr=k / 8)) for k in (1, 2)]
    records = a_report(*stages).tables["training"]
    assert [(record["checkpoint"], record["lr"]) for record in records] == [
        ("run", 0.25)
    ]
    whole = checkpoint("run", training=training(lr=0.5))
    records = a_report(*stages, whole).tables["training"]
    assert [record["lr"] for record in records] == [0.5]


def test_a_report_on_no_run_has_no_such_table():
    assert "training" not in a_report(checkpoint("a"), checkpoint("b")).tables


def test_seeds_of_any_size_and_switches_are_shown_as_they_are_typed():
    first = checkpoint("a", training=training(**{"ptpc.ul": False, "seed": 10**30}))
    second = checkpoint("b", training=training(**{"ptpc.ul": True}))
    records = a_report(first, second).tables["training"]
    assert [record["ptpc.ul"] for record in records] == ["off", "on"]
    assert float(records[0]["seed"]) == 1e30
