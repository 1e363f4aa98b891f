"""A manifest's tables, and the Arrow file that holds them."""

import json
import pickle
import stat
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_audit.errors import InputError, SparkError
from spark_audit.manifest import packed_lists as tables
from spark_audit.manifest.arrow_file import MANIFEST_BATCH
from spark_audit.manifest.content import digest, seal
from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.manifest.file import check_output, read_manifest, write_manifest
from spark_audit.manifest.packed_lists import Records
from spark_audit.manifest.schema import Manifest


@pytest.fixture(scope="module")
def manifest(make_case) -> Manifest:
    found: Manifest = make_case(sources=30, tests=9).manifest
    return found


@pytest.fixture
def small(monkeypatch) -> None:
    """Few rows make several chunks, and not all objects are kept."""
    monkeypatch.setattr(tables, "RECORDS_PER_CHUNK", 7)
    monkeypatch.setattr(tables, "KEEP_ALL_UP_TO", 14)
    monkeypatch.setattr(tables, "KEPT_OF_LONGER", 5)


@pytest.fixture
def path(manifest, tmp_path, small) -> Path:
    path = tmp_path / "many.arrow"
    write_manifest(seal(manifest.model_dump(mode="json")), path)
    return path


def test_both_forms_hold_the_same_and_have_one_digest(manifest, path, tmp_path):
    found = read_manifest(path)
    assert found == manifest
    assert found.digest == manifest.digest == digest(manifest.model_dump(mode="json"))
    for one in (manifest, found):
        write_manifest(one, tmp_path / f"{id(one)}.json")
    first, second = (path.read_bytes() for path in tmp_path.glob("*.json"))
    assert first == second
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # Its records can be read without us.
    rows = pa.ipc.open_file(path).read_all().to_pylist()
    ids = [json.loads(row["json"])["id"] for row in rows if row["part"] == "examples"]
    assert ids == [example.id for example in manifest.examples]


def test_fields_of_later_versions_are_kept(manifest, tmp_path, small):
    """Wherever they stand, and a number that is written otherwise."""
    content = manifest.model_dump(mode="json")
    content["later"] = {"a": 1}
    content["examples"][3]["later"] = [1.5]
    content["pairs"][2]["pii"]["later"] = "x"
    content["pairs"][0]["weight"] = 1
    content["digest"] = digest(content)
    file = tmp_path / "m.json"
    file.write_text(json.dumps(content))
    write_manifest(read_manifest(file), tmp_path / "m.arrow")
    write_manifest(read_manifest(tmp_path / "m.arrow"), tmp_path / "back.json")
    assert json.loads((tmp_path / "back.json").read_bytes()) == content


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    table = change(pa.ipc.open_file(path).read_all())
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def other_head(path: Path, **fields: Any) -> None:
    def change(table: pa.Table) -> pa.Table:
        head = json.loads(table.schema.metadata[b"manifest"]) | fields
        return table.replace_schema_metadata({"manifest": json.dumps(head)})

    rewritten(path, change)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-9]), "was changed, is not whole"),
        (lambda p: p.write_bytes(p.read_bytes()[:8]), "was changed, is not whole"),
        (lambda p: p.write_bytes(b""), "is not JSON"),
        (lambda p: other_head(p, notes=["x"]), "digest does not fit"),
        (lambda p: rewritten(p, lambda t: t.slice(0, 9)), "digest does not fit"),
        (lambda p: rewritten(p, lambda t: t.select([0])), "or is no manifest"),
        (lambda p: rewritten(p, lambda t: t.remove_column(0)), "or is no manifest"),
        (
            lambda p: rewritten(p, lambda t: t.replace_schema_metadata(None)),
            "or is no manifest",
        ),
        (
            lambda p: other_head(p, schema_version=2),
            "schema_version: input should be 1",
        ),
        (lambda p: other_head(p, kind="other"), "is no SPARK Audit manifest"),
    ],
)
def test_what_was_damaged_is_refused_in_one_line(damage, said, path):
    damage(path)
    with pytest.raises(InputError, match=said) as caught:
        read_manifest(path)
    assert "\n" not in str(caught.value)


def test_a_name_must_say_its_format(tmp_path):
    for name in ("m.json", "m.arrow"):
        check_output(tmp_path / name)
    with pytest.raises(InputError, match="NAME.json.*NAME.arrow"):
        check_output(tmp_path / "many")
    with pytest.raises(SparkError, match=f"^{tmp_path}: "):
        read_manifest(tmp_path)


def test_tables_behave_as_sequences_of_rows(manifest, small):
    rows = list(manifest.examples)
    found = Records.pack(ManifestExample, iter(rows), name="examples")
    assert len(found) == len(rows)
    assert found == rows
    assert rows == found
    assert found != rows[:-1]
    assert found != "examples"
    assert [found[k] for k in (0, -1, 8)] == [rows[k] for k in (0, -1, 8)]
    assert found[3:20:4] == rows[3:20:4]
    assert found[::-1] == rows[::-1]
    assert rows[10] in found
    assert found[0] is found[0]
    for outside in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            found[outside]
    assert json.loads(b"".join(found.json_pieces())) == [
        row.model_dump(mode="json") for row in rows
    ]
    assert b"".join(Records.pack(ManifestExample, (), name="").json_pieces()) == b"[]"
    assert pickle.loads(pickle.dumps(found)) == rows


def test_a_list_is_shown_without_its_records(manifest):
    packed = Records.pack(ManifestExample, manifest.examples, name="examples")
    n_records = len(manifest.examples)
    shown = repr(packed)
    assert shown == f"Records[ManifestExample](name='examples', length={n_records})"


def test_the_record_that_does_not_fit_is_named(manifest, small):
    content = deepcopy(manifest.model_dump(mode="json"))
    content["examples"][17]["split"] = "no such split"
    with pytest.raises(InputError, match=r"field examples.17.split: ") as caught:
        seal(content)
    assert "no such split" not in str(caught.value)
    content["examples"][17] = 3
    with pytest.raises(InputError, match=r"field examples.17: "):
        seal(content)


def test_a_compressed_file_is_measured_before_it_is_decoded(tmp_path):
    record = pa.array([b"0" * 20_000_000] * 30, pa.binary())
    batch = pa.record_batch([pa.repeat("examples", 30), record], schema=MANIFEST_BATCH)
    schema = MANIFEST_BATCH.with_metadata({"manifest": b"{}"})
    path = tmp_path / "m.arrow"
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(str(path), schema, options=options) as writer:
        writer.write_batch(batch)
    assert path.stat().st_size < 200_000
    del batch, record
    before = pa.total_allocated_bytes()
    with pytest.raises(InputError, match=f"^{path}: "):
        read_manifest(path)
    assert pa.total_allocated_bytes() - before < 1_000_000
