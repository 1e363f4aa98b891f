"""The demo in a smaller size still: every step is real."""

import importlib
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from spark_audit import demo
from spark_audit.audits import all_audits
from spark_audit.data.examples import read_examples
from spark_audit.data.pii import find_identifiers
from spark_audit.demo_rows import TASKS, make_examples
from spark_audit.errors import InputError, OutputError
from spark_audit.manifest.file import read_manifest
from spark_audit.pipeline.engines.local import helpers_kept, run_jobs
from spark_audit.pipeline.run import Outcome
from spark_audit.report.folder import read_report, write_report

SMALL = demo.Size(
    runs=("sd-replay", "spark", "er-full"),
    tasks=2,
    base_rows=12,
    train_rows=15,
    test_rows=9,
    canaries=2,
    doses=(1, 2),
    candidates=16,
    epochs=1,
    correction_steps=2,
)
SHOWN_AUDITS = set(all_audits()) - {"erasure", "doors", "passages", "generated"}
"""The demo erases no row, leaves out what breaks down another audit's figures, and has
rows that are too short for passages; its models write no files."""

FORMATS = ("md", "csv")
"""Figures take longer than all the rest; the full size draws them."""
Told = list[tuple[str, int, int]]


def interrupt(what: str, done: int, total: int) -> None:
    """What is told of progress, until a run was trained."""
    if what.startswith("training runs") and done:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def told() -> Told:
    """What was told of the demo after its interrupt."""
    return []


@pytest.fixture(scope="module")
def outcome(told, tmp_path_factory) -> Outcome:
    """The demo in one process, after an interrupt while it trains."""
    out = tmp_path_factory.mktemp("demo") / "out"
    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(out, size=SMALL, processes=1, progress=interrupt)
    assert not (out / "report.json").exists()
    assert any((out / "runs").glob("*/run.json"))
    return demo.run_demo(
        out,
        size=SMALL,
        processes=1,
        formats=FORMATS,
        progress=lambda *done: told.append(done),
    )


def test_the_folder_is_a_whole_report(outcome):
    report = read_report(outcome.folder)
    assert report.status == "complete"
    names = ["base", *SMALL.runs]
    assert [c.name for c in report.checkpoints if "@" not in c.name] == names
    assert {row.audit for row in report.results} == SHOWN_AUDITS
    assert {c.baseline for c in report.contrasts if c.audit == "matched"} == {
        "sd-replay"
    }
    for name in SMALL.runs:
        audited = {row.audit for row in report.results if row.checkpoint == name}
        assert audited == SHOWN_AUDITS, name
    assert {path.name for path in outcome.folder.iterdir()} >= {
        "data",
        "manifest",
        "report.json",
        "report.md",
        "runs",
        "scores",
        "tables",
    }


def test_runs_are_those_of_the_trainer(outcome):
    for name in SMALL.runs:
        method, differs = demo.RUNS[name]
        record = json.loads((outcome.folder / "runs" / name / "run.json").read_text())
        assert (record["method"], record["status"]) == (method, "complete")
        assert {"epochs", "lr"} <= {*record["changed"]}
        assert record["tasks"] == SMALL.order
        assert record["settings"]["epochs"] == SMALL.epochs
        for key, value in demo.SETTINGS.items():
            expected = differs.get(key, value)
            assert record["settings"].get(key, expected) == expected, (name, key)
    stages = outcome.folder / "runs" / "spark" / "stages"
    parts = {p.name for stage in stages.iterdir() for p in stage.iterdir()}
    assert parts == {"task", "priv"}
    assert len(list(stages.iterdir())) == SMALL.tasks


def test_the_report_says_what_the_runs_were_trained_with(outcome):
    records = read_report(outcome.folder).tables["training"]
    assert [record["checkpoint"] for record in records] == list(SMALL.runs)
    for record in records:
        method, differs = demo.RUNS[record["checkpoint"]]
        assert (record["method"], record["tasks"]) == (method, SMALL.tasks)
        assert record["lr"] == demo.SETTINGS["lr"]
        assert record["loss.scope"] == differs.get("loss.scope", "response")
        metrics = outcome.folder / "runs" / record["checkpoint"] / "metrics.jsonl"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        lines = [line for line in lines if "probe" not in line]
        learning = [line for line in lines if line["part"] == "task"]
        assert record["steps_learning"] == len(learning)
        assert record["seconds_learning"] > 0
    corrected = {one["checkpoint"]: one["steps_correction"] for one in records}
    n_steps = SMALL.correction_steps * SMALL.tasks
    assert corrected == {"sd-replay": None, "spark": n_steps, "er-full": None}


def test_the_manifest_is_that_of_the_files_in_the_folder(outcome):
    # It tells the seed, as run.json does.
    assert (outcome.folder / demo.STATE).stat().st_mode & 0o077 == 0
    manifest = read_manifest(outcome.folder / "manifest" / "demo.json")
    rows = read_examples(*sorted((outcome.folder / "data").glob("*.jsonl")))
    assert sorted(e.id for e in manifest.examples) == sorted(row.id for row in rows)
    assert {entry["file"] for entry in manifest.data} == {
        f"{t}.jsonl" for t in SMALL.order
    }
    assert manifest.settings.caliper == 0.5
    assert manifest.settings.n_candidates == SMALL.candidates
    assert manifest.pairs
    assert {row.split for row in rows if row.spans} == {"train", "test"}
    planted = {row.canary.id: row.canary.dose for row in rows if row.canary}
    assert sorted(planted.values()) == [0, 0, 1, 2]


def test_progress_is_told_all_the_way(outcome, told):
    phases = list(dict.fromkeys(phase for phase, _, _ in told))
    # The base was there.
    first, jobs, *scoring = phases
    assert (first, jobs) == ("making data", "training runs and matching, jobs")
    assert {name.partition(" ")[0] for name in scoring} >= {"scoring", "statistics,"}
    for phase in (first, jobs):
        done = [(d, n) for what, d, n in told if what == phase]
        assert done == [(d, done[-1][1]) for d in range(done[-1][1] + 1)], phase


def test_a_finished_demo_is_not_made_again_and_gets_its_lost_pages_back(
    outcome, tmp_path, monkeypatch
):
    # Figures as files take longest, and are no pages.
    pages = partial(write_report, formats=("html", "md"))
    monkeypatch.setattr(demo, "write_report", pages)
    folder = tmp_path / "copy"
    shutil.copytree(outcome.folder, folder)
    (folder / "report.md").unlink()
    before = read_report(folder)
    told: Told = []
    again = demo.run_demo(folder, size=SMALL, progress=lambda *done: told.append(done))
    assert not told
    assert again.report == read_report(folder)
    assert (folder / "report.md").exists()
    assert (folder / "report.html").exists()
    # Pages that it had not are made, and named: nothing else has changed.
    assert again.report.model_copy(update={"files": before.files}) == before


def test_another_seed_or_size_does_not_overwrite_a_report(outcome):
    before = (outcome.folder / "report.json").read_bytes()
    for seed, size in ((1, SMALL), (0, demo.FULL_SIZE)):
        with pytest.raises(InputError, match=" -o"):
            demo.run_demo(outcome.folder, seed=seed, size=size)
    assert (outcome.folder / "report.json").read_bytes() == before


@pytest.mark.parametrize("name", ["thesis.txt", "report.json"])
def test_a_folder_of_something_else_is_left_as_it_is(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match=rf"\({name}\).*-o"):
        demo.run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("progress", [None, lambda *_: None], ids=["quiet", "told"])
def test_who_asks_for_no_progress_is_not_told_of_the_time(
    progress, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(demo, "make_data", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(demo, "expected_minutes", lambda processes: (2.0, 4.0))
    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(tmp_path / "out", processes=1, progress=progress)
    assert bool(capfd.readouterr().err) == (progress is not None)


def test_a_folder_that_cannot_be_written_is_found_out_first(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=f"^{tmp_path / 'file'}: "):
        demo.run_demo(tmp_path / "file")


# --- text -----------------------------------------------------------------------------


def test_text_has_variety_labels_and_no_identifiers():
    rows = make_examples(40, split="train", seed=3)
    assert len(rows) == 6 * 40
    assert len({row.text for row in rows}) > 0.98 * len(rows)
    assert list(dict.fromkeys(row.task for row in rows)) == list(TASKS)
    for task, (_, labels) in TASKS.items():
        counts = [
            sum(row.response == f" {label}" for row in rows if row.task == task)
            for label in labels
        ]
        assert max(counts) - min(counts) <= 1
    # Every slot of every sentence was filled, and nothing looks like an identifier.
    assert not any(re.search(r"[{}@]|\d{3}-\d", row.text) for row in rows)
    for row in make_examples(400, split="test", seed=4):
        assert not find_identifiers(row.text), row.task
    assert rows == make_examples(40, split="train", seed=3)
    assert rows != make_examples(40, split="train", seed=4)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_base_never_reads_an_audited_identifier(seed):
    size = demo.Size(base_rows=100, train_rows=80, test_rows=40)
    background, audited = demo.make_data(seed, size)
    text = "\n".join(row.text for row in background)
    values = {
        row.text[span.start : span.end]
        for row in audited
        for span in row.spans
        if span.type != "NAME"  # a full name may be drawn twice
    }
    assert len(values) > 200
    assert not [value for value in values if value in text]
    # Names of canaries are no exception.
    canaries = {
        row.text[span.start : span.end]
        for row in audited
        if row.canary
        for span in row.spans
        if span.part
    }
    assert len(canaries) == 3 * 2 * size.canaries
    assert not [value for value in canaries if value in text]
    labelled = np.mean(["\n" in row.prompt for row in background])
    assert abs(labelled - size.labelled) < 0.1


# --- processes ------------------------------------------------------------------------


JOBS = """
import os
import time
from pathlib import Path

def mark(folder, number, starter, dies):
    if dies and os.getppid() == starter:
        os._exit(9)
    # Time enough for each process to take a job.
    time.sleep(0.2)
    with open(Path(folder) / str(number), "a") as file:
        file.write("done")
    return number, os.getpid()
"""


def marking_jobs(folder: Path, monkeypatch: pytest.MonkeyPatch, *, dies: bool) -> Any:
    """Jobs that write a file each; a process that is not this one may die of them."""
    (folder / "demo_jobs.py").write_text(JOBS)
    monkeypatch.syspath_prepend(folder)
    mark = importlib.import_module("demo_jobs").mark
    return [partial(mark, folder, i, starter=os.getpid(), dies=dies) for i in range(5)]


@pytest.mark.parametrize("dies", [False, True])
def test_jobs_are_shared_and_what_a_process_leaves_is_done_here(
    dies, tmp_path, monkeypatch
):
    results: list[tuple[int, int]] = []
    jobs = marking_jobs(tmp_path, monkeypatch, dies=dies)
    run_jobs(jobs, processes=2, ended=results.append)
    assert not multiprocessing.active_children()

    # Each job is done once, and told of once.
    assert sorted(number for number, _ in results) == [0, 1, 2, 3, 4]
    assert all((tmp_path / str(i)).read_text() == "done" for i in range(5))
    done_here = [process == os.getpid() for _, process in results]
    assert any(done_here)
    assert all(done_here) == dies


def test_a_kept_helper_does_further_work_and_ends_with_the_block(tmp_path, monkeypatch):
    jobs = marking_jobs(tmp_path, monkeypatch, dies=False)
    results: list[tuple[int, int]] = []
    with helpers_kept():
        run_jobs(jobs[:3], processes=2, ended=results.append)
        run_jobs(jobs[3:], processes=2, ended=results.append)
        helpers = {process for _, process in results} - {os.getpid()}
        assert len(helpers) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(*helpers, 0)


# --- in full --------------------------------------------------------------------------


def test_the_python_of_the_readme_runs(outcome):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", readme, flags=re.S)
    for shown, real in {
        "manifests/reviews.json": "manifest/demo.json",
        "runs/mine": "runs/er-full",
        "models/base": "runs/base",
    }.items():
        assert source.count(shown) == 1
        source = source.replace(shown, str(outcome.folder / real))
    names: dict[str, Any] = {}
    exec(source, names)
    (mine,) = (
        row.value
        for row in names["result"].results
        if (row.metric, row.group, row.variant) == ("nll_pii", "pooled", "")
    )
    (full,) = (
        row.value
        for row in outcome.report.results
        if (row.checkpoint, row.metric, row.group, row.variant)
        == ("er-full", "nll_pii", "pooled", "")
        and row.audit == "matched"
    )
    assert mine == pytest.approx(full, abs=1e-6)


@pytest.mark.slow
def test_the_whole_demo_stays_within_its_time(tmp_path):
    """Ten minutes of two cores' time in all: five on the wall."""
    call = [sys.executable, "-m", "spark_audit", "demo", "-o", str(tmp_path / "demo")]
    before = os.times()
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    after = os.times()
    assert done.returncode == 0, done.stderr
    spent = after.children_user - before.children_user
    spent += after.children_system - before.children_system
    assert spent < 600
    report = read_report(tmp_path / "demo")
    assert report.status == "complete"
    assert f"Report: {tmp_path / 'demo'}" in done.stdout
    last = {
        row.checkpoint: row.value
        for row in report.results
        if (row.audit, row.metric, row.group) == ("utility", "last", "pooled")
    }
    # The commonest label of each task would get about a third.
    for name in ("er", "sd-replay", "spark", "spark-no-ul"):
        assert last[name] > 0.45
