"""Signals at any time, full disks, damage, company, and inputs that change meanwhile.

Whatever happens, a command ends with one line and a code of its own, and the figures
that it leaves in the end are those of an undisturbed one.
"""

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from disturbed import KILLS, LINES, SEED, Commands, kill, left, rows

from spark_audit.data.examples import write_examples

RESUMED = ("build", "audit", "all", "render", "train", "relearn")


def undisturbed(commands: Commands, fresh: Callable[[str], Path], name: str) -> Path:
    folder = fresh(name)
    ended = commands.run(folder, LINES[name])
    assert ended.code == 0, ended.err
    return folder


# --- signals --------------------------------------------------------------------------


def at_random_times(
    commands: Commands, fresh: Callable[[str], Path], name: str, count: int
) -> None:
    began = time.monotonic()
    expected = left(undisturbed(commands, fresh, name))
    length = time.monotonic() - began
    rng = random.Random(f"{SEED} {name}")
    folder = fresh(name)
    finished = False
    for sent in rng.choices(
        (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL), k=count
    ):
        if finished:
            folder = fresh(name)
            finished = False
        wait = commands.begin(folder, LINES[name])
        time.sleep(rng.uniform(0, length))
        kill(wait, sent)
        ended = wait()
        assert "Traceback" not in ended.err, ended.err
        finished = ended.code == 0
        if sent == signal.SIGKILL:
            assert ended.code in (0, -signal.SIGKILL)
        elif not finished:
            assert ended.code == 130, ended.err
            verb = "start again" if name == "relearn" else "resume"
            assert f"interrupted; {verb} with: {LINES[name][:11]}" in ended.err
    if not finished:
        assert commands.run(folder, LINES[name]).code == 0
    assert left(folder) == expected


def test_an_audit_interrupted_at_random_times(commands, fresh):
    at_random_times(commands, fresh, "audit", 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_commands_interrupted_at_random_times(name, commands, fresh):
    at_random_times(commands, fresh, name, KILLS)


# --- a disk that is full --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("audit", [5_000]),
        pytest.param("import", [1_000], marks=pytest.mark.slow),
        pytest.param("train", [1_000, 5_000, 20_000], marks=pytest.mark.slow),
        pytest.param("relearn", [1_000], marks=pytest.mark.slow),
    ],
)
def test_files_that_cannot_grow_are_told_and_nothing_is_left_half(
    name, sizes, commands, fresh
):
    expected = left(undisturbed(commands, fresh, name))
    for largest in sizes:
        folder = fresh(name)
        ended = commands.run(folder, LINES[name], largest=largest)
        assert ended.code == 4, (name, largest, ended)
        assert "cannot be written (" in ended.err
        assert not list(folder.rglob(".spark-*"))
        assert commands.run(folder, LINES[name]).code == 0
        assert left(folder) == expected


@pytest.fixture
def small(tmp_path) -> Iterator[Callable[[int], Path]]:
    """``small(kilobytes)``: a file system of that size."""
    places: list[Path] = []

    def mount(size: int) -> Path:
        place = tmp_path / f"disk-{len(places)}"
        place.mkdir()
        line = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(place)]
        try:
            subprocess.run(line, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no file system can be mounted here")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_a_full_file_system_is_told_and_is_gone_on_with(
    commands, fresh, workshop, small
):
    expected = left(undisturbed(commands, fresh, "train"))
    used = sum(path.stat().st_size for path in workshop.rglob("*")) // 1024
    for room in (100, 200, 300):
        folder = small(used + 1000) / "work"
        shutil.copytree(workshop, folder)
        space = shutil.disk_usage(folder).free - room * 1024
        (folder.parent / "filled").write_bytes(bytes(max(space, 0)))
        ended = commands.run(folder, LINES["train"])
        assert ended.code in (0, 4), ended
        (folder.parent / "filled").unlink()
        assert commands.run(folder, LINES["train"]).code == 0
        assert left(folder) == expected


# --- damage ---------------------------------------------------------------------------


def test_a_damaged_score_is_computed_again(commands, fresh):
    folder = undisturbed(commands, fresh, "audit")
    (folder / "report" / "scores" / "inputs.json").unlink()
    before = json.loads((folder / "report" / "report.json").read_text())
    rng = random.Random(0)
    for shard in (folder / "report" / "scores" / "store").glob("*.parquet"):
        data = bytearray(shard.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        shard.write_bytes(data)
    ended = commands.run(folder, LINES["audit"])
    assert ended.code == 0, ended.err
    report = json.loads((folder / "report" / "report.json").read_text())
    assert report["results"] == before["results"]
    assert report["evidence"] == before["evidence"]
    notes = [note for one in report["checkpoints"] for note in one["notes"]]
    assert any("is damaged or of another version" in note for note in notes)


@pytest.mark.slow
def test_damaged_files_are_told_or_make_no_difference(commands, fresh):
    """A file that is cut, or in which a bit is another, never is a defect of ours."""
    rng = random.Random(0)
    for name, files in {
        "audit": ("m.json", "lora/adapter_model.safetensors", "base/config.json"),
        "render": ("report/report.json",),
        "build": ("data/yelp.jsonl", "base/model.safetensors", "base/tokenizer.json"),
    }.items():
        for file in files:
            for cut in (True, False):
                folder = fresh(name)
                data = bytearray((folder / file).read_bytes())
                if cut:
                    del data[rng.randrange(len(data)) :]
                else:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(7)
                (folder / file).write_bytes(data)
                ended = commands.run(folder, LINES[name])
                assert ended.code in ((2, 3, 4) if cut else (0, 2, 3, 4)), (file, ended)
                assert ended.err.count("\n") <= 2 or ended.code == 0, (file, ended.err)


# --- company --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inject", "build", "audit", "train", "relearn"])
def test_the_same_command_several_times_at_once_does_its_work_once(
    name, commands, fresh
):
    """One of them at least does its work; another one does it, too, or is refused."""
    expected = left(undisturbed(commands, fresh, name))
    folder = fresh(name)
    both = [commands.begin(folder, LINES[name]) for _ in range(3)]
    ended = [wait() for wait in both]
    assert 0 in [one.code for one in ended], ended
    for one in ended:
        assert "Traceback" not in one.err
        assert one.code in ((0, 2) if name in ("train", "relearn") else (0,)), one
    assert left(folder) == expected


# --- inputs that change ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["build", "audit", "train"])
def test_inputs_that_changed_before_the_second_start(name, commands, fresh):
    """They are refused, or what is left is what they lead to by themselves."""

    def change(folder: Path) -> None:
        write_examples(folder / "data" / "yelp.jsonl", rows("yelp", seed=1))
        if name == "audit":
            line = LINES["build"].replace("built/", "")
            assert commands.run(folder, line).code == 0

    other = fresh(name)
    change(other)
    assert commands.run(other, LINES[name]).code == 0
    expected = left(other)
    whole = commands.run(fresh(name), LINES[name])
    for share in (0.3, 0.6, 0.9):
        folder = fresh(name)
        commands.run(folder, LINES[name], at=round(whole.operations * share))
        change(folder)
        ended = commands.run(folder, LINES[name])
        if ended.code == 2:
            assert "other files or contents" in ended.err or "another" in ended.err
            continue
        assert ended.code == 0, ended.err
        found = left(folder)
        # Scores of rows that are gone stay in a store that is kept.
        for place, shelf in expected.items():
            if place.endswith("store/*"):
                assert found[place].items() >= shelf.items()
                found[place] = shelf
        assert found == expected
