"""Workers of one command: same flags or none, and who has ended it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from spark_audit.errors import InputError, OutputError
from spark_audit.pipeline.workers import Worker

FLAGS = {"--seed": "0", "--sigmas": "0.1"}
OTHER = {"--seed": "0", "--sigmas": "0.2"}


def worker(folder: Path, part: str | None, flags: dict[str, str] = FLAGS) -> Worker:
    return Worker(folder / "scores" / "workers", "noise", part, flags)


def left(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def work(folder: Path, part: str, flags: dict[str, str] = FLAGS) -> None:
    """Do a part, while others do theirs."""
    with worker(folder, part, flags).at_work():
        pass


def test_other_flags_are_refused_beside_one_that_works(tmp_path: Path) -> None:
    said = r"worker 0/2 .* other flags: --sigmas 0.1 \(here 0.2\); give all the same"
    with worker(tmp_path, "0/2").at_work():
        with pytest.raises(InputError, match=said):
            work(tmp_path, "1/2", OTHER)
        with pytest.raises(InputError, match="--shard 0/2"):
            work(tmp_path, "1/3")
        work(tmp_path, "1/2")
        # Another audit in the same folder is another command.
        folder = tmp_path / "scores" / "workers"
        with Worker(folder, "noise+rank", "0/2", OTHER).at_work():
            pass
    assert list(tmp_path.iterdir()) == []


def test_after_the_report_other_flags_begin_anew(tmp_path: Path) -> None:
    with worker(tmp_path, "2/3").at_work() as late:
        with worker(tmp_path, "1/3").at_work() as last:
            last.finish()
            assert late.ended
        work(tmp_path, "1/2", OTHER)
    assert left(tmp_path) == []
    # One command that did it all ends it, too, if it is the same.
    for flags, ended in ((FLAGS, False), (OTHER, True)):
        with worker(tmp_path, "0/2", OTHER).at_work() as other:
            alone = worker(tmp_path, None, flags)
            with alone.at_work():
                assert not alone.ended
                alone.finish()
            assert other.ended is ended


def test_what_came_to_nothing_counts_for_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "scores" / "workers"
    with suppress(KeyboardInterrupt), worker(tmp_path, "0/2").at_work():
        assert len(left(folder)) == 1
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from spark_audit.pipeline.workers import Worker\n"
        f"one = Worker(Path(sys.argv[1]), 'noise', '1/2', {OTHER!r})\n"
        "with one.at_work():\n"
        "    os._exit(9)\n"
    )
    call = [sys.executable, "-c", code, str(folder)]
    assert subprocess.run(call, env=os.environ, check=False).returncode == 9
    (folder / "noise.0.json").write_text("")  # killed before it had told anything
    assert len(left(tmp_path)) == 2
    with worker(tmp_path, "0/2", FLAGS).at_work():
        assert len(left(tmp_path)) == 1


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"part": "1/2"},
        {"flags": {}},
        {"part": 1, "flags": {}},
        {"part": "1/2", "flags": {"--seed": 0}},
        [],
    ],
    ids=str,
)
def test_what_no_worker_has_told_is_refused(told: object, tmp_path: Path) -> None:
    folder = tmp_path / "scores" / "workers"
    folder.mkdir(parents=True)
    planted = folder / "noise.0.json"
    planted.write_text(f"another machine\n{json.dumps(told)}")
    message = "noise.0.json: is not what a worker of this version writes; remove it"
    with pytest.raises(OutputError, match=message):
        work(tmp_path, "0/2")
    with pytest.raises(OutputError, match=message):
        worker(tmp_path, "0/2").finish()
    assert left(tmp_path) == [planted]


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_what_another_worker_left_is_a_file_of_this_folder(
    kind: str, tmp_path: Path
) -> None:
    folder = tmp_path / "report" / "scores" / "workers"
    folder.mkdir(parents=True)
    planted = folder / "noise.0.json"
    (tmp_path / "theirs").write_text('{"flags": {"--seed": "secret"}}')
    if kind == "link":
        planted.symlink_to(tmp_path / "theirs")
    else:
        os.mkfifo(planted)
    with pytest.raises(OutputError, match=r"noise.0.json: cannot be read \(is "):
        work(tmp_path / "report", "0/2")
    assert (tmp_path / "theirs").exists()
