"""The recipes of docs/recipes.md, on small files in the formats that they are for."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from spark_audit.cli.main import run
from spark_audit.data.examples import read_examples

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()


def follow(title, folder):
    """What the section says, done in a folder: its script, then its commands."""
    (section,) = re.findall(rf"(?ms)^## {title}.*?(?=^## |\Z)", PAGE)
    (script,) = re.findall(r"(?s)```python\n(.*?)```", section)
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True, timeout=300)
    (commands,) = re.findall(r"(?s)```\n(spark-audit.*?)```", section)
    for line in commands.splitlines():
        assert run(shlex.split(line)[1:]) == 0
    return read_examples(Path(shlex.split(line)[-1]))


def marked(row):
    return [(row.text[s.start : s.end], s.type) for s in row.spans]


@pytest.fixture(autouse=True)
def _there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_recipe_of_tab_gives_its_rows_and_spans(tmp_path):
    text = "PROCEDURE\n\nMr Ed Roe (no. 36244/06) wrote.\nHe won on 4 May 2006."

    def mention(of, type, mask):
        start = text.index(of)
        return {
            "entity_type": type,
            "start_offset": start,
            "end_offset": start + len(of),
            "span_text": of,
            "identifier_type": mask,
        }

    mentions = [
        mention("Mr Ed Roe", "PERSON", "DIRECT"),
        mention("He", "PERSON", "NO_MASK"),
    ]
    two = [mention("Ed Roe", "PERSON", "QUASI"), mention("36244/06", "CODE", "DIRECT")]
    two += [mention("4 May 2006", "DATETIME", "QUASI")]
    for split in ("train", "dev"):
        case = {"doc_id": f"001-{split}", "text": text, "dataset_type": split}
        case["annotations"] = {
            "annotator1": {"entity_mentions": mentions},
            "annotator2": {"entity_mentions": two},
        }
        (tmp_path / f"echr_{split}.json").write_text(json.dumps([case]))
    rows = follow("TAB", tmp_path)
    assert [row.split for row in rows] == ["test"] * 3 + ["train"] * 3
    assert [marked(row) for row in rows[:3]] == [
        [],
        [("Mr Ed Roe", "NAME"), ("36244/06", "ID")],
        [("4 May 2006", "OTHER")],
    ]
    assert {row.source_id for row in rows} == {"001-train", "001-dev"}
    assert {row.response for row in rows} == {""}


@pytest.mark.parametrize("as_text", [False, True])
def test_the_recipe_of_ai4privacy_gives_its_rows_and_spans(tmp_path, as_text):
    text = "Ann, passport 912345678, call 0123 456"
    marks = [
        {"value": v, "start": text.index(v), "end": text.index(v) + len(v), "label": n}
        for v, n in [
            ("0123 456", "TELEPHONENUM"),
            ("Ann", "GIVENNAME1"),
            ("912345678", "PASSPORT"),
        ]
    ]
    row = {"source_text": text, "target_text": "[X]", "language": "English"}
    row["privacy_mask"] = json.dumps(marks) if as_text else marks
    for split in ("train", "validation"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "1english.jsonl").write_text(json.dumps(row) + "\n")
    rows = follow("AI4Privacy", tmp_path)
    assert [row.split for row in rows] == ["train", "test"]
    assert marked(rows[0]) == [
        ("Ann", "NAME"),
        ("912345678", "ID"),
        ("0123 456", "PHONE"),
    ]


def test_the_recipe_of_panorama_splits_by_person(tmp_path):
    rows = pd.DataFrame(
        {
            "id": [f"p{i % 20}" for i in range(60)],
            "content-type": ["Social Media", "Forum Post", "Online Review"] * 20,
            "text": [
                f"{i} posts? Write to ann{i}@example.org{'.!'[i % 2]}"
                for i in range(60)
            ],
        }
    )
    rows[:30].to_parquet(tmp_path / "train-00000-of-00002.parquet")
    rows[30:].to_parquet(tmp_path / "train-00001-of-00002.parquet")
    got = follow("PANORAMA", tmp_path)
    assert len({row.id for row in got}) == len(got) == 60
    split = {row.source_id: row.split for row in got}
    assert all(split[row.source_id] == row.split for row in got)
    assert set(split.values()) == {"train", "test"}
    assert marked(got[7]) == [("ann7@example.org", "EMAIL")]


def test_the_recipe_of_mail_folders_gives_each_mail_with_text(tmp_path):
    head = "From: ann.lee@example.com\nSubject: Lunch\nContent-Type: text/plain; "
    for name, mail in (
        ("lee-a/sent/1.", head + "charset=us-ascii\n\nCall me at 212-555-0142.\n"),
        ("lee-a/sent/2.", head + "charset=ANSI_X3.4-1968\n\nYes\r\nNo \xe9\n"),
        ("roe-e/inbox/1.", head + "charset=us-ascii\n\n\n"),
    ):
        (tmp_path / "maildir" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "maildir" / name).write_bytes(mail.encode("latin-1"))
    rows = follow("Mail folders", tmp_path)
    assert [row.id for row in rows] == ["lee-a/sent/1.", "lee-a/sent/2."]
    assert {row.source_id for row in rows} == {"lee-a"}
    assert [marked(row) for row in rows] == [[("212-555-0142", "PHONE")], []]
    assert rows[1].text == "Yes\nNo \ufffd\n"
