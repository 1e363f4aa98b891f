"""Evidence that is written as it comes, and what is told in turns from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from spark_audit.audits import stored_evidence
from spark_audit.audits.stored_evidence import (
    StoredEvidence,
    framed,
    joined,
    names_in,
    part_of,
    stored,
)
from spark_audit.errors import OutputError


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
