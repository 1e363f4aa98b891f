"""A manifest as a folder, and its parts as they are packed."""

from __future__ import annotations

import json
import pickle
import stat
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark_audit.errors import InputError, SparkError
from spark_audit.manifest import folder as folders
from spark_audit.manifest import packed_lists
from spark_audit.manifest.file import (
    check_output,
    digest,
    load_manifest,
    redact,
    seal,
    write_manifest,
)
from spark_audit.manifest.folder import HEAD
from spark_audit.manifest.packed_lists import Packed
from spark_audit.manifest.schema import Manifest, ManifestExample


@pytest.fixture(scope="module")
def manifest(make_case: Callable[..., Any]) -> Manifest:
    found: Manifest = make_case(sources=30, tests=9).manifest
    return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows make several slices, files and groups."""
    monkeypatch.setattr(packed_lists, "SLICE", 7)
    monkeypatch.setattr(packed_lists, "HELD", 2)
    monkeypatch.setattr(packed_lists, "FEW", 1)
    monkeypatch.setattr(folders, "FILE_ROWS", 20)
    monkeypatch.setattr(folders, "GROUP_ROWS", 9)


@pytest.fixture
def path(manifest: Manifest, tmp_path: Path, small: None) -> Path:
    path = tmp_path / "many"
    write_manifest(seal(manifest.model_dump(mode="json")), path)
    return path


def part(path: Path, name: str = "examples") -> Path:
    return sorted(path.glob(f"{name}-*.parquet"))[0]


# --- both forms -----------------------------------------------------------------------


def test_both_forms_hold_the_same_and_have_one_digest(
    manifest: Manifest, path: Path, tmp_path: Path
) -> None:
    found = load_manifest(path)
    assert found == manifest
    assert found.digest == manifest.digest == digest(manifest.model_dump(mode="json"))
    for one in (manifest, found):
        write_manifest(one, tmp_path / f"{id(one)}.json")
    first, second = (path.read_bytes() for path in tmp_path.glob("*.json"))
    assert first == second
    assert len(list(path.glob("examples-*"))) > 1
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in path.iterdir())
    # Its head stands for it, and columns can be read without us.
    assert load_manifest(path / HEAD) == manifest
    ids = pq.read_table(part(path), columns=["id"])["id"].to_pylist()
    assert ids == [example.id for example in manifest.examples][: len(ids)]


def test_a_redacted_one_is_written_and_read(path: Path, tmp_path: Path) -> None:
    red = redact(load_manifest(path))
    write_manifest(red, tmp_path / "red")
    assert load_manifest(tmp_path / "red") == red


def test_what_columns_do_not_hold_is_kept(
    manifest: Manifest, tmp_path: Path, small: None
) -> None:
    """Fields of later versions anywhere, and a number that is written otherwise."""
    content = manifest.model_dump(mode="json")
    content["later"] = {"a": 1}
    content["examples"][3]["later"] = [1.5]
    content["examples"][9]["spans"] += []
    content["pairs"][2]["pii"]["later"] = "x"
    content["pairs"][0]["weight"] = 1
    content["digest"] = digest(content)
    file = tmp_path / "m.json"
    file.write_text(json.dumps(content))
    write_manifest(load_manifest(file), tmp_path / "m")
    write_manifest(load_manifest(tmp_path / "m"), tmp_path / "back.json")
    assert json.loads((tmp_path / "back.json").read_bytes()) == content


def test_an_empty_manifest_is_one(manifest: Manifest, tmp_path: Path) -> None:
    lists: dict[str, list[Any]] = dict.fromkeys(
        "examples pairs unmatched canaries twins".split(), []
    )
    membership: dict[str, Any] = {"members": [], "non_members": []}
    content = manifest.model_dump(mode="json") | lists | {"membership": membership}
    write_manifest(seal(content), tmp_path / "none")
    assert [p.name for p in (tmp_path / "none").iterdir()] == [HEAD]
    assert load_manifest(tmp_path / "none") == seal(content)


# --- what was interrupted or damaged --------------------------------------------------


def test_an_interrupted_one_says_so_and_is_finished(
    manifest: Manifest, tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, whole, calls = tmp_path / "cut", folders._write_part, list[int]()

    def cut(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*given)

    monkeypatch.setattr(folders, "_write_part", cut)
    with pytest.raises(KeyboardInterrupt):
        write_manifest(manifest, path)
    with pytest.raises(InputError, match=r"no whole manifest: .* again: it resumes"):
        load_manifest(path)
    write_manifest(manifest, path)
    assert load_manifest(path) == manifest
    # Another one in its place: until its head is written the earlier one stands.
    other = seal({**manifest.model_dump(mode="json"), "notes": ["another"]})
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        write_manifest(other, path)
    assert load_manifest(path) == manifest
    write_manifest(other, path)
    assert load_manifest(path) == other
    assert all(other.digest[:12] in p.name for p in path.glob("*.parquet"))


def head(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads((path / HEAD).read_bytes())
    change(content)
    (path / HEAD).write_text(json.dumps(content))


def listed(**fields: Any) -> Callable[[Path], Any]:
    return lambda p: head(p, lambda m: m["parts"]["examples"][0].update(fields))


@pytest.mark.parametrize(
    ("damage", "code", "said"),
    [
        (lambda p: part(p).unlink(), 2, r"examples-.*00000.parquet: is missing"),
        (
            lambda p: part(p).write_bytes(part(p).read_bytes()[:-9]),
            2,
            r"examples-.*00000.parquet: was changed, or is not whole",
        ),
        (lambda p: part(p).write_bytes(b""), 2, "was changed, or is not whole"),
        (lambda p: head(p, lambda m: m.update(notes=["x"])), 2, "digest does not fit"),
        (
            lambda p: head(p, lambda m: m["parts"]["examples"].pop()),
            2,
            "digest does not fit",
        ),
        (lambda p: head(p, lambda m: m["parts"].update(x=[])), 2, "does not name the"),
        (lambda p: head(p, lambda m: m.update(parts=3)), 2, "does not name the parts"),
        (
            lambda p: head(p, lambda m: m["parts"].update(examples=[3])),
            2,
            "does not name the files of a part",
        ),
        (listed(rows=3), 2, "is no part of a manifest"),
        (listed(file="../../passwd"), 2, "names a file that is none of a manifest"),
        (lambda p: (p / HEAD).write_text("[]"), 2, "is no SPARK Audit manifest"),
        (lambda p: (p / HEAD).write_text("{"), 2, "is not JSON"),
        (
            lambda p: head(p, lambda m: m.update(schema_version=2)),
            2,
            "has schema version 2",
        ),
        (
            lambda p: [one.unlink() for one in p.iterdir()],
            4,
            "is a folder without a manifest.json",
        ),
    ],
)
def test_what_was_damaged_is_refused_in_one_line(
    damage: Callable[[Path], Any], code: int, said: str, path: Path
) -> None:
    damage(path)
    with pytest.raises(SparkError, match=said) as caught:
        load_manifest(path)
    assert caught.value.exit_code == code
    assert "\n" not in str(caught.value)


def test_a_link_out_of_the_folder_is_not_followed(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    part(path).rename(elsewhere)
    (path / elsewhere.name).symlink_to(elsewhere)
    (path / elsewhere.name).rename(
        path / json.loads((path / HEAD).read_bytes())["parts"]["examples"][0]["file"]
    )
    with pytest.raises(SparkError, match="link out of its folder"):
        load_manifest(path)
    with pytest.raises(InputError, match="link out of the folder"):
        check_output(path)


def test_a_folder_of_other_things_is_left_alone(
    manifest: Manifest, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").touch()
    for call in (check_output, lambda path: write_manifest(manifest, path)):
        with pytest.raises(InputError, match=r"else than a manifest \(mine.txt\)"):
            call(tmp_path)
    with pytest.raises(SparkError, match="cannot be written"):
        check_output(tmp_path / "mine.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.txt", "d.csv"])
def test_data_in_place_of_a_manifest_is_called_data(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text('{"prompt": "a", "response": "b"}\r\n{"prompt": "c"}\n')
    said = "data import" if name.endswith("csv") else "it is data"
    with pytest.raises(InputError, match=f"no SPARK Audit manifest; .*{said}"):
        load_manifest(file)


# --- packed parts ---------------------------------------------------------------------


def test_packed_parts_are_a_sequence(manifest: Manifest, small: None) -> None:
    rows = list(manifest.examples)
    found = Packed.of(ManifestExample, iter(rows), name="examples")
    assert len(found) == len(rows)
    assert found == rows
    assert rows == found
    assert found != rows[:-1]
    assert found != "examples"
    assert [found[k] for k in (0, -1, 8)] == [rows[k] for k in (0, -1, 8)]
    assert found[3:20:4] == rows[3:20:4]
    assert found[::-1] == rows[::-1]
    assert rows[10] in found
    for outside in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            found[outside]
    # Only what was asked for last is held.
    assert len(found._held) == packed_lists.FEW
    few = Packed.of(str, [f"{k}" for k in range(14)], name="ids")
    assert len(list(few)) == 14
    assert len(few._held) == packed_lists.HELD
    again = Packed.of(str, (f"é{k}" for k in range(20)), name="ids")
    assert json.loads(b"".join(again.json())) == list(again)
    assert b"".join(Packed.of(str, (), name="ids").json()) == b"[]"


@pytest.mark.parametrize("room", [0, 300, 10**6])
def test_many_parts_lie_in_a_file_while_there_is_room(
    room: int, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = packed_lists._put, 0

    def put(file: Any, at: int, data: bytes) -> None:
        nonlocal written
        written += len(data)
        if written > room:
            raise OSError(28, "No space left on device")
        real(file, at, data)

    monkeypatch.setattr(packed_lists, "IN_MEMORY", 100)
    monkeypatch.setattr(packed_lists, "_put", put)
    names = [f"row {k}" for k in range(500)]
    found = Packed.of(str, iter(names), name="ids")
    assert list(found) == names
    assert found[499] == names[499]
    assert json.loads(b"".join(found.json())) == names
    slices: Any = found._slices
    in_memory = len(slices._bytes._held)
    assert (in_memory == 0) == (room == 10**6)
    # Elsewhere the file is not there.
    assert pickle.loads(pickle.dumps(found)) == names


def test_the_part_that_does_not_fit_is_named(manifest: Manifest, small: None) -> None:
    content = deepcopy(manifest.model_dump(mode="json"))
    content["examples"][17]["split"] = "no such split"
    with pytest.raises(InputError, match=r"field examples.17.split: ") as caught:
        seal(content)
    assert "no such split" not in str(caught.value)
    content["examples"][17] = 3
    with pytest.raises(InputError, match=r"field examples.17: "):
        seal(content)
