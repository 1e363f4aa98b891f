"""The demo in a smaller size still: every step is real."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_audit import demo
from spark_audit.errors import InputError, OutputError
from spark_audit.examples import read_examples
from spark_audit.facts import seed_for
from spark_audit.manifest import read_manifest
from spark_audit.pipeline import Outcome
from spark_audit.reports import read_report


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "BASE_ROWS", 60)
        patch.setattr(demo, "TRAIN_ROWS", 18)
        patch.setattr(demo, "TEST_ROWS", 6)
        patch.setattr(demo, "CANARIES", 1)
        patch.setattr(demo, "EPOCHS", 2)
        yield


@pytest.fixture(scope="module")
def told() -> list[tuple[str, int, int]]:
    return []


@pytest.fixture(scope="module")
def outcome(
    small: None,
    told: list[tuple[str, int, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Outcome:
    out = tmp_path_factory.mktemp("demo")
    return demo.run_demo(out, progress=lambda *done: told.append(done))


def test_the_folder_is_a_whole_report(outcome: Outcome) -> None:
    report = read_report(outcome.folder)
    assert report.status == "complete"
    assert [c.name for c in report.checkpoints] == ["base", "response", "full"]
    assert {c.format for c in report.checkpoints} == {"hf-folder", "peft-adapter"}
    assert {row.metric for row in report.results} >= {"nll_pii", "delta_sel"}
    assert {c.baseline for c in report.contrasts} == {"response"}
    assert {path.name for path in outcome.folder.iterdir()} >= {
        "data",
        "manifest",
        "report.json",
        "report.md",
        "runs",
        "scores",
        "tables",
    }


def test_the_manifest_is_that_of_the_files_in_the_folder(outcome: Outcome) -> None:
    manifest = read_manifest(outcome.folder / "manifest" / "demo.json")
    rows = read_examples(*sorted((outcome.folder / "data").glob("*.jsonl")))
    assert sorted(e.id for e in manifest.examples) == sorted(row.id for row in rows)
    assert {entry["file"] for entry in manifest.data} == {
        "support.jsonl",
        "reviews.jsonl",
        "reports.jsonl",
    }
    assert manifest.settings.caliper == 0.5
    assert manifest.pairs
    assert {row.split for row in rows if row.spans} == {"train", "test"}


def test_progress_is_told_all_the_way(
    outcome: Outcome, told: list[tuple[str, int, int]]
) -> None:
    phases = list(dict.fromkeys(phase for phase, _, _ in told))
    assert phases[:4] == [
        "making data",
        "training the base, steps",
        "fine-tuning 'response', steps",
        "fine-tuning 'full', steps",
    ]
    assert any(phase.startswith("scoring full") for phase in phases)
    for phase in phases:
        done = [(d, n) for what, d, n in told if what == phase]
        assert done[-1][0] == done[-1][1], phase


def test_another_seed_does_not_overwrite_a_report(outcome: Outcome) -> None:
    before = (outcome.folder / "report.json").read_bytes()
    with pytest.raises(InputError, match="holds another report; give another -o"):
        demo.run_demo(outcome.folder, seed=1)
    assert (outcome.folder / "report.json").read_bytes() == before


def test_a_folder_that_cannot_be_written_is_found_out_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        demo.run_demo(tmp_path / "file")


def test_text_has_variety_labels_and_no_identifiers() -> None:
    rows = demo.make_examples(40, split="train", seed=3)
    assert len({row.text for row in rows}) == len(rows) == 120
    assert {row.task for row in rows} == set(demo.TASKS)
    for task, (_, labels) in demo.TASKS.items():
        counts = [
            sum(row.response == f" {label}" for row in rows if row.task == task)
            for label in labels
        ]
        assert max(counts) - min(counts) <= 1
    # Every slot of every sentence was filled, and nothing looks like an address.
    assert not any(re.search(r"[{}@]|\d{3}-\d", row.text) for row in rows)
    assert rows == demo.make_examples(40, split="train", seed=3)
    assert rows != demo.make_examples(40, split="train", seed=4)


@pytest.mark.usefixtures("small")
def test_the_base_never_reads_an_audited_identifier() -> None:
    background, audited = demo._data(0)
    text = "\n".join(row.text for row in background)
    unique = {
        row.text[span.start : span.end]
        for row in audited
        for span in row.spans
        if span.type != "NAME"  # a full name may be drawn twice
    }
    assert len(unique) > 20
    assert not [value for value in unique if value in text]
    assert seed_for(0, "background") != seed_for(0, "audited")


def test_the_python_of_the_readme_runs(outcome: Outcome) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", readme, flags=re.S)
    for shown, real in {
        "manifests/reviews.json": "manifest/demo.json",
        "runs/mine": "runs/full",
        "models/base": "runs/base",
    }.items():
        assert source.count(shown) == 1
        source = source.replace(shown, str(outcome.folder / real))
    names: dict[str, Any] = {}
    exec(source, names)
    assert outcome.report is not None
    (mine,) = (
        row.value
        for row in names["result"].rows
        if (row.metric, row.group, row.of) == ("nll_pii", "pooled", "")
    )
    (full,) = (
        row.value
        for row in outcome.report.results
        if (row.checkpoint, row.metric, row.group, row.of)
        == ("full", "nll_pii", "pooled", "")
    )
    assert mine == pytest.approx(full, abs=1e-6)
