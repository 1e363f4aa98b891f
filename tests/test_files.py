"""Hashes and seeds that are the same everywhere, files that are whole or absent."""

import fcntl
import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import pytest

from spark_audit import files, provenance
from spark_audit.errors import InputError, OutputError


def test_canonical_json_is_one_form():
    value = {"b": [1, 2.5, None, True], "a": {"é": "ü\n", "A": ""}}
    text = provenance.canonical_json(value)
    assert text.decode() == '{"a":{"A":"","é":"ü\\n"},"b":[1,2.5,null,true]}'
    assert provenance.canonical_json(json.loads(text)) == text
    assert provenance.canonical_json(dict(reversed(value.items()))) == text
    assert provenance.sha256_json(value) == hashlib.sha256(text).hexdigest()


def test_seeds_do_not_depend_on_machine_or_process():
    # Recorded once; a change here would change every manifest.
    assert provenance.seed_for(0) == VECTOR[0]
    assert provenance.seed_for(0, "canary", 3) == VECTOR[1]
    assert provenance.seed_for(7, "shuffle") == VECTOR[2]
    other = subprocess.run(
        [
            sys.executable,
            "-c",
            "from spark_audit import provenance\n"
            "print(provenance.seed_for(0, 'canary', 3))",
        ],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
    )
    assert int(other.stdout) == VECTOR[1]


VECTOR = (5254295370254170289, 5430179107368069156, 7029035733826284920)


def test_a_file_hash_follows_the_content(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"one")
    assert files.sha256_file(path) == hashlib.sha256(b"one").hexdigest()
    path.write_bytes(b"three")
    assert files.sha256_file(path) == hashlib.sha256(b"three").hexdigest()
    # Same size, another file under the same name.
    other = tmp_path / "g"
    other.write_bytes(b"seven")
    os.replace(other, path)
    assert files.sha256_file(path) == hashlib.sha256(b"seven").hexdigest()


def test_a_file_is_written_with_its_folders_and_mode(tmp_path):
    path = tmp_path / "a" / "b" / "f.txt"
    files.write_text(path, "grün\n", mode=0o600)
    assert path.read_bytes() == "grün\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    files.write_text(path, "two")
    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    before = os.umask(0o077)
    try:
        files.write_text(path, "three")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert os.umask(0o027) == 0o077, "as it was"
        files.write_text(path, "four")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(before)


def test_keys_that_a_file_brings_are_not_told():
    schema = {"properties": {"a": {}}, "$defs": {"B": {"properties": {"b": {}}}}}
    place = ("a", 3, "someone@example.org", "b")
    assert files.field_path(place, schema) == "a.3.*.b"


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt()])
def test_a_write_that_breaks_off_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "f.txt"
    path.write_text("old")

    def write(file: IO[bytes]) -> None:
        file.write(b"half")
        raise error

    with pytest.raises(type(error)):
        files.write_atomically(path, write)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    def write(file: IO[bytes]) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "f.txt"
    with pytest.raises(OutputError, match=r"f\.txt: .*\(No space left on device\)"):
        files.write_atomically(path, write)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="/file: "):
        files.check_writable(tmp_path / "file")
    with pytest.raises(OutputError, match="/file"):
        files.check_writable(tmp_path / "file" / "folder")
    files.check_writable(tmp_path / "new" / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


HALF = """
import os, signal, sys
from pathlib import Path
from spark_audit import files
from spark_audit import provenance
def half(file):
    file.write(b"half")
    file.flush()
    print("ready", flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
files.write_atomically(Path(sys.argv[1]), half, mode=0o600)
"""


def test_what_a_killed_command_was_writing_is_swept_when_it_is_dead(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HALF, str(tmp_path / "f.json")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        (part,) = tmp_path.iterdir()
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
        files.sweep(tmp_path)
        assert part.exists()  # who writes it lives
        process.stdin.write("\n")
    assert part.read_bytes() == b"half"
    files.write_text(tmp_path / "f.json", "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["f.json"]


def test_nothing_else_is_swept(tmp_path, monkeypatch):
    with files.temporary(tmp_path) as (path, _):
        ours = path.name
    for name in (ours, f"{ours}.bak", ours[1:], ours.upper(), ".x.json.ab12_xyz"):
        (tmp_path / name).write_text("")
    (tmp_path / f".spark-{'a' * 16}.part").mkdir()
    (tmp_path / "target").write_text("")
    link = tmp_path / f".spark-{'b' * 16}.part"
    link.symlink_to(tmp_path / "target")
    before = {path.name for path in tmp_path.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)  # another user's
        files.sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before
    files.sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before - {ours}


def test_a_file_that_is_swept_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    swept: list[Path] = []
    lock = fcntl.flock

    def flock(file: IO[bytes], kind: int) -> None:
        if not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].unlink()
        lock(file, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    files.write_text(tmp_path / "f.json", "whole")
    assert len(swept) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["f.json"]


def test_one_holds_a_lock_at_a_time_and_nothing_is_left(tmp_path):
    """The first ends while the second waits on its file; the third comes after."""
    path = tmp_path / "new" / ".lock"
    told = []

    def work(name: str) -> None:
        with files.alone(path):
            told.append(name)
            time.sleep(0.05)
            told.append(name)

    crew = [threading.Thread(target=work, args=(str(i),)) for i in range(6)]
    for worker in crew:
        worker.start()
        time.sleep(0.02)
    for worker in crew:
        worker.join()
    assert told[::2] == told[1::2]
    assert len(told) == 12
    with (
        files.alone(path),
        pytest.raises(InputError, match=str(path.parent)),
        files.alone(path, wait=False),
    ):
        pass
    assert not path.exists()


def test_a_lock_empties_nothing_and_is_no_way_out_of_its_folder(tmp_path):
    theirs = tmp_path / "theirs"
    lock = tmp_path / ".lock"
    theirs.write_text("kept")
    os.link(theirs, lock)
    with files.alone(lock):
        assert theirs.read_text() == "kept"
    os.symlink(theirs, lock)
    with pytest.raises(OutputError, match=f"^{tmp_path}: "), files.alone(lock):
        pass
    assert theirs.read_text() == "kept"
