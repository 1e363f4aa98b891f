"""What reports take from the folder of a training run, and what they pass over."""

import json
from pathlib import Path
from typing import Any

import pytest

from spark_audit.checkpoints.specs import read_run, trained_order


def make_run(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    record = {
        "kind": "spark-train-run",
        "method": "spark",
        "tasks": ["fomc", "yelp"],
        "settings": {"lr": 0.1, "ptpc.ul": False, "loss.scope": "response", "x": None},
        "seconds": {"1-fomc/task": {"task": 2.5, "end": 1e-9}, "1-fomc/priv": {"c": 1}},
        **changes,
    }
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_a_run_is_known_by_its_stages_folder_too(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "stages").mkdir()
    assert read_run(run / "stages") == read_run(run) != {}


@pytest.mark.parametrize(
    "content",
    [b"", b"[1]", b"{", b'{"kind": "other"}', b"\xff\xfe", b"[" * 100_000],
)
def test_what_is_no_run_is_passed_over(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    assert read_run(tmp_path) == read_run(tmp_path / "run.json") == {}


def test_the_order_is_what_the_run_says(tmp_path):
    assert trained_order(make_run(tmp_path / "run")) == ("fomc", "yelp")
    (tmp_path / "run" / "stages").mkdir()
    assert trained_order(tmp_path / "run" / "stages") == ("fomc", "yelp")
    assert trained_order(tmp_path / "none") == ()
    for broken in (None, "fomc", ["fomc", 2]):
        run = make_run(tmp_path / str(broken), tasks=broken)
        assert trained_order(run) == ()
