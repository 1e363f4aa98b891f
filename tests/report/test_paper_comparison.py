"""A report beside the paper: which is which, which values, what differs."""

from __future__ import annotations

import hashlib
import html
from pathlib import Path
from typing import Any

import pytest

from spark_audit.cli.main import run
from spark_audit.errors import InputError
from spark_audit.report.folder import write_report
from spark_audit.report.paper.comparison import LEAD, beside, parse_named
from spark_audit.report.paper.values import setting
from spark_audit.results import CheckpointFacts, ManifestFacts, Report, Row

TASKS = [task.casefold() for task in setting().tasks]


def row(audit: str, checkpoint: str, metric: str, of: str = "", **columns: Any) -> Row:
    given = {"value": 0.25, "low": 0.1, "high": 0.4, "interval": "jackknife-t"}
    names = {"audit": audit, "checkpoint": checkpoint, "metric": metric, "of": of}
    return Row.model_validate(names | given | columns)


def made(*rows: Row, base: str | None = "tiny", **settings: Any) -> Report:
    names = dict.fromkeys(one.checkpoint for one in rows)
    return Report(
        status="complete",
        command=["spark-audit", "all"],
        created="2026-01-01T00:00:00+00:00",
        versions={},
        settings={"reference": "tiny", "caliper": 0.5, **settings},
        manifest=ManifestFacts(
            name="m", digest="d" * 64, n_sources=3, n_clusters=3, n_spans=4, n_tokens=9
        ),
        checkpoints=[
            CheckpointFacts(
                name=name,
                source=name,
                format="peft-adapter",
                base=base,
                weights_sha256="0" * 64,
                model_id="1" * 64,
                dtype="float32",
            )
            for name in names
        ],
        results=list(rows),
        contrasts=[],
        guards=[],
        scope=[],
    )


def by_task(audit: str, checkpoint: str, metric: str, of: str = "") -> list[Row]:
    return [row(audit, checkpoint, metric, of, group=f"task:{t}") for t in TASKS]


def series(name: str, tasks: list[str]) -> list[Row]:
    return [
        row("utility", name, "accuracy", str(k), group=f"task:{task}")
        for k in range(1, len(tasks) + 1)
        for task in tasks
    ]


def test_a_line_has_ours_theirs_and_what_differs() -> None:
    report = made(row("matched", "Spark", "delta_sel", n=9, clusters=3))
    block = beside(report)
    assert [line.texts[:4] for line in block.rows] == [
        (
            "Spark",
            "matched.delta_sel",
            "0.250 [0.100, 0.400]",
            "0.7464 [0.3853, 1.1692] "
            "(SPARK, tab:matched_full, fig:selectivity_ablation)",
        )
    ]
    assert block.rows[0].texts[4].split("; ") == [
        "model tiny / LLaMA-2-7B",
        "tasks not known / 6",
        "tokens 9 / 261",
        "sources 3 / 51",
        "another manifest, spans 4 / 70",
        "interval jackknife-t / cluster bootstrap",
    ]


def test_what_does_not_differ_is_not_said() -> None:
    same = row("matched", "er", "nll_pii", n=261, clusters=51, interval="percentile")
    report = made(same, *by_task("matched", "er", "nll_pii"), base="Llama-2-7b-hf")
    (line,) = beside(report).rows
    assert line.texts[4] == "another manifest, spans 4 / 70"
    other = report.model_copy(update={"settings": {"caliper": 0.25}})
    assert beside(other).rows[0].texts[4].endswith("; caliper 0.25 / 0.5")


def test_percent_are_shown_as_the_shares_that_we_measure() -> None:
    report = made(row("mia", "er", "tpr_at_fpr_5", "response"))
    assert (
        beside(report).rows[0].texts[3] == "0.0583 (printed 5.83 %) (ER, tab:mia_full)"
    )


def test_a_value_of_several_tables_stands_once_for_each_model() -> None:
    report = made(row("nll", "spark", "nll", "pii"))
    assert [line.texts[3] for line in beside(report).rows] == [
        "4.2028 (SPARK, tab:ptpc_internal_ablation, tab:privacy, tab:reorder_full)",
        "4.5651 (SPARK, tab:qwen)",
    ]
    assert "model tiny / Qwen2.5-1.5B" in beside(report).rows[1].texts[4]


def test_the_order_that_the_series_went_through_is_shown() -> None:
    backwards = [*reversed(TASKS)]
    report = made(
        row("utility", "er", "bwt"),
        *series("er", backwards),
        **{"utility.order": ",".join(backwards)},
    )
    block = beside(report)
    bwt = [line for line in block.rows if line.texts[1] == "utility.bwt"]
    assert [line.texts[3] for line in bwt] == ["-0.021 (ER, tab:reorder_full)"]
    assert "task order 2" in block.remarks[0]
    some = made(row("utility", "er", "bwt"), **{"utility.order": "amazon,fomc,yelp"})
    assert "task order 3" in beside(some).remarks[0]
    assert "tasks 3 (3 shared) / 6" in beside(some).rows[0].texts[4]


def test_stages_stand_beside_the_same_stage_only() -> None:
    whole = made(*series("pecl", TASKS), **{"utility.order": ",".join(TASKS)})
    lines: dict[str, list[str]] = {line.texts[1]: [] for line in beside(whole).rows}
    for line in beside(whole).rows:
        lines[line.texts[1]].append(line.texts[3])
    assert lines["utility.accuracy.2 task:yelp"] == [
        "0.013 (PeCL (reproduced), tab:pecl_matrix, tab:instability)"
    ]
    assert lines["utility.accuracy.6 task:yelp"] == [
        "0.521 (PeCL (cited), tab:main_cl)",
        "0.460 (PeCL (reproduced), tab:pecl_matrix, tab:main_cl)",
    ]
    assert "utility.accuracy.2 task:amazon" not in lines
    # A checkpoint by itself has one stage: its last, and not the paper's first.
    alone = made(
        row("utility", "pecl", "accuracy", "1", group="task:FOMC"),
        **{"utility.order": ",".join(TASKS)},
    )
    assert [line.texts[3] for line in beside(alone).rows] == [
        "0.436 (PeCL (cited), tab:main_cl)",
        "0.780 (PeCL (reproduced), tab:main_cl)",
    ]
    assert all("stages 1 / 6" in line.texts[4] for line in beside(alone).rows)


def test_several_seeds_stand_as_their_entry_over_both() -> None:
    report = made(
        row("matched", "spark[1]", "delta_sel", value=0.3),
        row("matched", "spark[2]", "delta_sel", value=0.2),
        row("matched", "spark", "delta_sel", value=0.25),
        row("matched", "spark", "delta_sel", value=0.26, over="both"),
    )
    (line,) = beside(report).rows
    assert line.texts[0] == "spark"
    assert line.texts[2].startswith("0.260")
    assert "interval over both / sources" in line.texts[4]


def test_what_could_not_be_estimated_is_left_out_and_named() -> None:
    none = {"value": None, "low": None, "high": None, "interval": "none"}
    report = made(
        row("matched", "spark", "nll_pii"),
        row("matched", "spark", "delta_sel", **none, status="not_estimable", note="x"),
        row("extract", "spark", "greedy_rate"),
        row("matched", "mine", "nll_pii"),
    )
    block = beside(report)
    assert [line.texts[1] for line in block.rows] == ["matched.nll_pii"]
    assert block.remarks[1:] == (
        "Not estimable here and left out: matched.delta_sel (spark).",
        "Named like no method of the paper: mine "
        "(--paper-method NAME=METHOD says which one it is).",
    )


def test_names_are_told_by_the_user() -> None:
    report = made(row("matched", "mine", "delta_sel"), row("matched", "er", "nll_pii"))
    told = beside(report, named=parse_named(["mine=w/o dKL", "er=SPARK"]))
    assert [line.texts[3].split(" (")[1].split(",")[0] for line in told.rows] == [
        "SPARK w/o dKL",
        "SPARK",
    ]
    for bad, said in (
        (["mine"], "'mine' names no checkpoint and method; write it as NAME=METHOD"),
        (["mine="], "'mine=' names no checkpoint and method"),
        (["x=SPARK"], "the report has no checkpoint 'x'; choose one of: mine, er"),
        (["mine=x"], "the paper has no method 'x'; choose one of: Pretrained, SeqFT"),
    ):
        with pytest.raises(InputError, match=f"^--paper-method: {said}"):
            beside(report, named=parse_named(bad))


def test_nothing_to_put_side_by_side_is_an_error() -> None:
    with pytest.raises(InputError, match="no checkpoint of the report is named like"):
        beside(made(row("matched", "mine", "delta_sel")))
    with pytest.raises(InputError, match="none of the report's figures is printed"):
        beside(made(row("extract", "spark", "greedy_rate")))


def test_the_command_prints_and_adds_to_what_people_read_only(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    report = made(row("matched", "mine", "delta_sel"), row("matched", "er", "nll_pii"))
    write_report(report, tmp_path)

    def content() -> dict[str, str]:
        return {
            str(path.relative_to(tmp_path)): hashlib.sha256(
                path.read_bytes()
            ).hexdigest()
            for path in tmp_path.rglob("*")
            if path.is_file()
        }

    before = content()
    call = ["report", str(tmp_path)]
    assert run([*call, "--against", "paper", "--paper-method", "mine=x"]) == 2
    assert run([*call, "--paper-method", "mine=SPARK"]) == 2
    assert run([*call, "--against", "other"]) == 2
    assert content() == before
    capsys.readouterr()
    methods = ["--paper-method", "mine=SPARK", "er=er-ptpc"]
    assert run([*call, "--against", "paper", *methods]) == 0
    shown = capsys.readouterr().out
    assert shown.index(LEAD) < shown.index("0.7464 [0.3853, 1.1692]")
    after = content()
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"report.md", "report.html"}
    page = html.unescape((tmp_path / "report.html").read_text())
    assert LEAD in page
    assert "3.3898 [2.9776, 3.8481] (ER+PTPC, tab:matched_full)" in page
    text = (tmp_path / "report.md").read_text()
    section = text[text.index("## Beside the paper") : text.index("## Definitions")]
    assert section.index(LEAD) < section.index("| mine | matched.delta_sel |")
    assert "3.3898 [2.9776, 3.8481] (ER+PTPC, tab:matched_full)" in section
    assert run(call) == 0
    assert content() == before, "nothing stays without --against"
    assert run([*call, "--format", "csv", "--against", "paper", *methods]) == 0
    assert content() == before
