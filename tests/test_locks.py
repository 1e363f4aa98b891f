"""Locks: one owner at a time, also where each removes the file as it ends."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from spark_audit.errors import OutputError
from spark_audit.locks import alone, locked


def test_who_waits_takes_the_file_that_is_there_then(tmp_path: Path) -> None:
    """The first ends while the second waits on its file; the third comes after."""
    path, told = tmp_path / "new" / ".lock", []

    def work(name: str) -> None:
        with alone(path):
            told.append(f"{name} begins")
            time.sleep(0.05)
            told.append(f"{name} ends")

    crew = [threading.Thread(target=work, args=(str(i),)) for i in range(6)]
    for worker in crew:
        worker.start()
        time.sleep(0.02)
    for worker in crew:
        worker.join()
    assert len(told) == 12
    for begins, ends in zip(told[::2], told[1::2], strict=True):
        assert begins.split()[0] == ends.split()[0]
    assert not path.exists()


def test_without_waiting_nothing_is_held(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with alone(path):
        assert locked(path, wait=False) is None
    file = locked(path, wait=False)
    assert file is not None
    file.close()


def test_a_lock_is_no_way_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("kept")
    os.symlink(tmp_path / "theirs", tmp_path / ".lock")
    with pytest.raises(OutputError, match="cannot be written"):
        locked(tmp_path / ".lock", wait=False)
    assert (tmp_path / "theirs").read_text() == "kept"


@pytest.mark.parametrize("wait", [True, False])
def test_a_lock_empties_nothing(wait: bool, tmp_path: Path) -> None:
    """Another name of somebody's file, or a file that stood there before."""
    (tmp_path / "theirs").write_text("kept")
    os.link(tmp_path / "theirs", tmp_path / ".lock")
    with alone(tmp_path / ".lock") if wait else locked(tmp_path / ".lock", wait=False):  # type: ignore[union-attr]
        assert (tmp_path / "theirs").read_text() == "kept"
    assert (tmp_path / "theirs").read_text() == "kept"


@pytest.mark.parametrize("wait", [True, False])
def test_a_lock_that_is_a_fifo_blocks_nothing(wait: bool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(OutputError, match="cannot be written"):
        locked(tmp_path / ".lock", wait=wait)


def test_a_folder_that_another_takes_along_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``mkdir`` finds the folder there, and looks again when it is gone."""
    folder, make = tmp_path / "leases", Path.mkdir
    raised: list[Path] = []

    def racing(self: Path, *args: object, **kwargs: object) -> None:
        if self == folder and not raised:
            raised.append(self)
            raise FileExistsError(17, "File exists", str(self))
        make(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", racing)
    file = locked(folder / "unit", wait=False)
    assert raised
    assert file is not None
    file.close()
