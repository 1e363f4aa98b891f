"""Evidence that is written as it comes, and what is told in turns from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from spark_audit.audits import stored_evidence
from spark_audit.audits.contract import About, Context
from spark_audit.audits.stored_evidence import (
    StoredEvidence,
    concluded,
    framed,
    joined,
    names_in,
    part_of,
    stored,
)
from spark_audit.errors import OutputError
from spark_audit.results import AuditResult, Finding, Guard, Row


def frames(names: str, rows: int = 5) -> Iterator[pd.DataFrame]:
    for i, name in enumerate(names.split()):
        values = np.arange(rows) + 10.0 * i
        label = [f"x{k}" for k in range(rows)]
        yield pd.DataFrame({"checkpoint": name, "label": label, "value": values})


def never() -> Path:
    raise AssertionError("no file was to be made")


def test_small_evidence_stays_a_frame_and_makes_no_file() -> None:
    found = stored(frames("a b"), never)
    assert isinstance(found, pd.DataFrame)
    pd.testing.assert_frame_equal(found, joined(frames("a b")))
    assert names_in(found) == ["a", "b"]
    assert part_of(found, "b")["value"].tolist() == [10, 11, 12, 13, 14]
    assert stored(iter(()), never).empty
    assert names_in(None) == names_in(pd.DataFrame()) == []


@pytest.mark.parametrize("most", [0, 4, 5, 9])
def test_large_evidence_is_read_by_checkpoint(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_evidence, "TOGETHER", most)
    empty = next(frames("a", rows=0))
    given = [empty, *frames("b a"), empty, next(frames("c", rows=1)), *frames("b")]
    found = stored(iter(given), lambda: tmp_path / "evidence.parquet")
    assert isinstance(found, StoredEvidence)
    assert (len(found), found.empty) == (16, False)
    assert names_in(found) == ["b", "a", "c"]
    # In their own order, whatever the order they are asked for in.
    whole = pd.concat([given[1], given[5], given[2], given[4]], ignore_index=True)
    pd.testing.assert_frame_equal(found.of(["c", "a", "b"]), whole)
    pd.testing.assert_frame_equal(part_of(found, "c"), given[4])
    coded = found.of("bca", coded=True)
    assert coded["label"].cat.categories.tolist() == [f"x{k}" for k in range(5)]
    back = coded.astype({"checkpoint": "str", "label": "str"})
    pd.testing.assert_frame_equal(back, whole)


def test_one_frame_is_in_memory_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is written before the next is made."""
    monkeypatch.setattr(stored_evidence, "TOGETHER", 100)
    path, sizes = tmp_path / "evidence.parquet", []

    def made() -> Iterator[pd.DataFrame]:
        for frame in frames("a b c d", rows=2000):
            sizes.append(path.stat().st_size if path.exists() else 0)
            yield frame

    stored(made(), lambda: path)
    assert sizes[:2] == [0, sizes[1]]
    assert sizes[1] < sizes[2] < sizes[3]


def test_a_full_disk_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_evidence, "TOGETHER", 0)
    with pytest.raises(OutputError, match="^/dev: cannot be written .*No space left"):
        stored(frames("a b", rows=5000), lambda: Path("/dev/full"))


def test_records_become_the_frame_that_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = [{"a": i, "c": f"{i}"} for i in range(7)]
    monkeypatch.setattr(stored_evidence, "RECORDS", 3)
    found = framed(iter(records), ["c", "b", "a"])
    assert found.columns.tolist() == ["c", "b", "a"]
    assert found["a"].tolist() == [*range(7)]
    assert found["b"].isna().all()
    assert framed((), ["a"]).columns.tolist() == ["a"]


Say = Callable[..., AuditResult]


@pytest.fixture
def said() -> tuple[list[set[str]], Say]:
    seen: list[set[str]] = []

    def conclude(evidence: pd.DataFrame, context: Context) -> AuditResult:
        names = list(dict.fromkeys(evidence["checkpoint"]))
        seen.append(set(names))
        where: Any = {"audit": "x", "status": "not_estimable", "note": "none"}
        general = Finding(audit="x", claim="not_tested", sentence="Of all.")
        own = [
            Finding(audit="x", checkpoint=n, claim="moved", sentence=f"{n}.")
            for n in names
        ]
        return AuditResult(
            rows=[Row(checkpoint=n, metric="m", **where) for n in names],
            guards=[Guard(name="general", passed=True, detail="alike")],
            findings=[general, *own],
            tables={
                "own": [{"checkpoint": n, "k": k} for n in names for k in (1, 2)],
                "general": [{"of": "all"}],
                "none": [],
            },
            scope=["one", "two"],
        )

    return seen, conclude


def test_a_turn_sees_its_own_its_baseline_and_the_base(
    said: tuple[list[set[str]], Say], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, conclude = said
    monkeypatch.setattr(stored_evidence, "TOGETHER", 0)
    names = "base plain m[1] m[2] o[1] o[2] alone"
    found = stored(frames(names), lambda: tmp_path / "evidence.parquet")
    baselines = {"plain": "alone", "m[1]": "o[1]", "m[2]": "o[2]"}
    result = concluded(found, {"conclude": conclude}, About(), Context(baselines))
    assert seen == [
        {"base"},
        {"base", "plain", "alone"},
        {"base", "m[1]", "m[2]", "o[1]", "o[2]"},
        {"base", "o[1]", "o[2]"},
        {"base", "alone"},
    ]
    # Each is told of once, and what is of no checkpoint too.
    assert [row.checkpoint for row in result.rows] == names.split()
    assert [f.sentence for f in result.findings] == [
        "Of all.",
        *(f"{name}." for name in names.split()),
    ]
    assert len(result.guards) == 1
    assert result.scope == ["one", "two"]
    assert [r["checkpoint"] for r in result.tables["own"]] == [
        name for name in names.split() for _ in range(2)
    ]
    assert result.tables["general"] == [{"of": "all"}]
    assert result.tables["none"] == []
