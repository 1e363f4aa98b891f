"""Rows as the harness' tasks: its accuracies are ours, and no identifier is in them."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark_audit.audits.utility.audit import evidence, plan
from spark_audit.audits.utility.harness import write_tasks
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.data.examples import Example, Span
from spark_audit.errors import InputError, OutputError
from spark_audit.manifest.file import redact
from spark_audit.manifest.items import items_for
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.tasks import task_manifest
from spark_audit.scoring.score import score

NAME, PHONE = "Ottoline Quibbleworth", "390-555-0142"
SECRETS = ("Ottoline", "Quibbleworth", "quibbleworth", "555-0142", "390")


def example(key: str, prompt: str, response: str, **given: Any) -> Example:
    text = prompt + response
    spans = [
        Span(text.index(string), text.index(string) + len(string), kind)
        for string, kind in ((NAME, "NAME"), (PHONE, "PHONE"))
        if string in text
    ]
    fields = {"task": "mood", "split": "test", "source_id": key} | given
    return Example(
        id=key, prompt=prompt, response=response, spans=tuple(spans), **fields
    )


@pytest.fixture(scope="module")
def opened(tiny_base: Path) -> Any:
    return open_checkpoint(str(tiny_base))


@pytest.fixture
def made(opened: Any) -> Callable[..., Manifest]:
    """``made(*examples)``: a manifest of data alone."""
    return lambda *rows: task_manifest(rows, opened, name="m")


def read(folder: Path, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    path = folder / f"spark_audit.{name}.yaml"
    task = json.loads(path.read_text(encoding="utf-8"))
    return task, pq.read_table(task["dataset_kwargs"]["data_files"]["test"]).to_pylist()


ROWS = (
    example("a", f"{NAME} was cold. Call {PHONE}. Mood: ", "good"),
    # Neither here nor there is it annotated.
    example("b", "Said quibbleworth of (390) 555-0142: fine. Mood: ", "bad"),
    example("c", "The food was cold. Mood:", " bad"),
    example("d", "The food was fine. Mood:", " good", split="train"),
)


def test_identifiers_are_hidden_unless_asked_for(
    made: Callable[..., Manifest], tmp_path: Path
) -> None:
    secret = example(f"e {NAME}", "Who was it?", f" {NAME}", task="who")
    told = write_tasks(made(*ROWS, secret), tmp_path)
    # Labels that differ in a blank alone are no set of labels.
    names = ("utility.mood", "utility.who")
    assert told.tasks == tuple(f"spark_audit.{name}" for name in names)
    assert told.rows == 4
    assert "3 of 4 rows have identifiers hidden" in told.notes[-1]
    assert "task mood: labels differ in blanks alone: no task" in told.notes[0]
    assert "task who: identifiers stand in its responses" in told.notes[1]
    for name in names:
        task, rows = read(tmp_path, name)
        for one in SECRETS:
            assert one not in repr(rows) + repr(task)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not any(one.encode() in path.read_bytes() for one in SECRETS)
    first = read(tmp_path, "utility.mood")[1][0]
    assert (first["prompt"], first["answer"]) == (
        "[NAME] was cold. Call [PHONE]. Mood:",
        "good",
    )
    assert first["hidden"]
    shown = write_tasks(made(*ROWS, secret), tmp_path, show_text=True)
    assert shown.notes == told.notes[:1]
    assert f"{NAME} was cold. Call {PHONE}. Mood:" in repr(
        read(tmp_path, "utility.mood")
    )
    assert read(tmp_path, "likelihood.who")[1][0]["choices"] == [f" {NAME}"]


def test_what_cannot_be_asked_is_said(
    made: Callable[..., Manifest], tmp_path: Path
) -> None:
    lines = example("f", "Two lines:", " one\ntwo", task="lines")
    train = example("g", "None:", " one", split="train", task="none")
    told = write_tasks(made(lines, train), tmp_path / "new")
    assert told.tasks == ("spark_audit.likelihood.lines",)
    said = ["lines: a response has several lines", "none has no test row"]
    assert [part in note for part, note in zip(said, told.notes, strict=True)] == [
        True,
        True,
    ]
    before = sorted((tmp_path / "new").iterdir())
    with pytest.raises(InputError, match="none has no test row without a canary"):
        write_tasks(made(train), tmp_path / "new")
    assert sorted((tmp_path / "new").iterdir()) == before
    (tmp_path / "new" / "spark_audit.utility.notes.txt").write_text("mine")
    with pytest.raises(InputError, match="something else than tasks"):
        write_tasks(made(*ROWS), tmp_path / "new")
    with pytest.raises(InputError, match="redacted"):
        write_tasks(redact(made(*ROWS)), tmp_path / "new")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"something else than tasks \(new\)"):
        write_tasks(made(*ROWS), tmp_path)
    with pytest.raises(OutputError, match="notes.txt"):
        write_tasks(made(*ROWS), tmp_path / "notes.txt")


def test_names_of_files_are_safe_and_earlier_tasks_go(
    made: Callable[..., Manifest], tmp_path: Path
) -> None:
    manifest = made(*ROWS[2:], example("e", "Who?", " me", task="who"))
    write_tasks(manifest, tmp_path)
    assert list(tmp_path.glob("*who*"))
    write_tasks(made(*ROWS[2:]), tmp_path)
    assert not list(tmp_path.glob("*who*"))
    task = manifest.examples[0].model_copy(update={"task": "../up"})
    foreign = manifest.model_copy(update={"examples": [task]})
    with pytest.raises(InputError, match="manifest 'm': task: is no plain name"):
        write_tasks(foreign, tmp_path / "new")


@pytest.mark.filterwarnings("ignore")
def test_the_harness_finds_our_accuracies(
    made: Callable[..., Manifest],
    ending: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lm_eval = pytest.importorskip("lm_eval", reason="needs spark-audit[bench]")
    import datasets
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    opened = open_checkpoint(str(ending))
    manifest = made(*answered(opened))
    told = write_tasks(manifest, tmp_path / "tasks", show_text=True)
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={ending},dtype=float32",
        tasks=list(told.tasks),
        task_manager=TaskManager(
            include_path=str(tmp_path / "tasks"), include_defaults=False
        ),
        device="cpu",
        batch_size=4,
        bootstrap_iters=0,
    )["results"]
    for scorer, kind, metric in (
        ("normalised", "utility", "exact_match,none"),
        ("likelihood", "likelihood", "acc,none"),
    ):
        wanted = plan(manifest, scorer=scorer)
        items = items_for(manifest, opened, wanted)
        tables = {"m": {p: score(opened, v, passes=[p])[p] for p, v in items.items()}}
        frame = evidence(tables, manifest, scorer=scorer)
        ours = frame.groupby("task")["correct"].mean()
        assert 0 < min(ours) < 1
        theirs = {
            task: found[f"spark_audit.{kind}.{task}"][metric] for task in ours.index
        }
        assert theirs == pytest.approx(dict(ours))


PROMPTS = [f"The {w} was {i}. Mood:" for i in range(6) for w in ("food", "news", "1")]


@pytest.fixture
def ending(tiny_base: Path, tmp_path: Path) -> Path:
    """A tiny model that ends its answers: in the place of its commonest token."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    tokenizer = AutoTokenizer.from_pretrained(tiny_base)
    new = [
        model.generate(
            torch.tensor([tokenizer(prompt)["input_ids"]]),
            **{"max_new_tokens": 6, "do_sample": False},
        )[0, -4:]
        for prompt in PROMPTS
    ]
    with torch.no_grad():
        head = model.lm_head.weight
        head[tokenizer.eos_token_id] = head[torch.cat(new).mode().values] * 1.01
    model.save_pretrained(tmp_path / "ending")
    tokenizer.save_pretrained(tmp_path / "ending")
    return tmp_path / "ending"


def answered(opened: Any) -> list[Example]:
    """Rows of which the model answers some as they say, with its own words."""
    import torch

    rows = []
    for i, prompt in enumerate(PROMPTS):
        ids = torch.tensor([opened.tokenizer(prompt)["input_ids"]])
        with opened.active() as model, torch.inference_mode():
            new = model.generate(ids, max_new_tokens=9, do_sample=False)[0]
        text = opened.tokenizer.decode(new[ids.shape[1] :], skip_special_tokens=True)
        if not text.strip() or "\n" in text or i % 4 == 0:
            text = " food"
        blank = " " * (text[0] == " " and i % 2)
        row = (prompt + blank, text.removeprefix(blank))
        rows.append(example(f"r{i}", *row, task=("free", "spaced")[i % 2]))
    return rows
