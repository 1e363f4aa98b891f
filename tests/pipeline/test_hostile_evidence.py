"""Evidence from somebody else: each file is read, or refused in one line.

Its checksum stands in a report of the same hand: only what is read can be checked.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from audited import matched, nll
from made_reports import checkpoint, made_report

from spark_audit.audits import about
from spark_audit.cli.main import run as command_line
from spark_audit.errors import OutputError
from spark_audit.files import sha256_file
from spark_audit.report.folder import write_report
from spark_audit.results.evidence import Evidence

NAMES = ("base", "ours")


@pytest.fixture(scope="module")
def work_folder(tmp_path_factory, make_case) -> Path:
    """Two report folders over one manifest, ``one`` and ``two``."""
    folder = tmp_path_factory.mktemp("hostile")
    case = make_case(sources=12, tests=6)
    for name, scale in (("one", 0.8), ("two", 0.7)):
        tables = case.tables(
            base=lambda key, nll: nll, ours=lambda key, nll, by=scale: nll * by
        )
        results = {
            "matched": matched(
                tables, case.manifest, replicates=100, placebo_draws=0, rematched=False
            ),
            "nll": nll(tables, case.manifest),
        }
        sums = {}
        for audit, result in results.items():
            path = folder / name / "scores" / about(audit).evidence_file()
            path.parent.mkdir(parents=True, exist_ok=True)
            result.evidence.write(path)
            sums[path.name] = sha256_file(path)
        report = made_report(
            checkpoints=[
                checkpoint(name, model_id=f"{name} {scale}") for name in NAMES
            ],
            settings={"preset": "robust", "seed": 0, "matched.replicates": 100},
            results=[row for result in results.values() for row in result.results],
            evidence=sums,
        )
        write_report(report, folder / name, formats=("json",))
    return folder


Change = Callable[[pa.Table, dict[str, Any]], pa.Table]


def column(name: str, value: Any) -> Change:
    """Another column of a name: values, an array, or what makes one of the old."""

    def change(table: pa.Table, about: dict[str, Any]) -> pa.Table:
        index = table.schema.get_field_index(name)
        changed_column = value(table.column(name)) if callable(value) else value
        if not isinstance(changed_column, pa.Array | pa.ChunkedArray):
            changed_column = pa.array([changed_column] * len(table))
        return table.set_column(index, name, changed_column)

    return change


def without(name: str) -> Change:
    return lambda table, about: table.drop_columns([name])


def says(**facts: Any) -> Change:
    """Other words of the file on itself."""

    def change(table: pa.Table, about: dict[str, Any]) -> pa.Table:
        about.update(facts)
        return table

    return change


def renamed(old: str, new: str) -> Change:
    def change(table: pa.Table, about: dict[str, Any]) -> pa.Table:
        return table.rename_columns(
            [new if n == old else n for n in table.column_names]
        )

    return change


def first(value: Any) -> Callable[[pa.ChunkedArray], pa.Array]:
    """The old values, the first of which is another."""

    def make(old: pa.ChunkedArray) -> pa.Array:
        return pa.array([value, *old.to_pylist()[1:]])

    return make


def deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


SCORE = "nll_sum/ours"
HOSTILE: dict[str, Change | bytes] = {
    # What the file says of itself
    "metadata is no JSON": b"{",
    "metadata is a list": b"[]",
    "metadata is a number": b"3",
    "metadata is null": b"null",
    "metadata is empty": b"",
    "metadata is not UTF-8": b"\xff\xfe{}",
    "metadata is deep": b"[" * 100_000 + b"]" * 100_000,
    "metadata has NaN": b'{"units": [], "checkpoints": [], "values": [], "facts": NaN}',
    "metadata has a key twice": b'{"units": [], "units": [], "facts": {}}',
    "metadata is an empty object": b"{}",
    "no list of units": says(units="example"),
    "units are numbers": says(units=[1, 2]),
    "units are lists": says(units=[["example"]]),
    "units are null": says(units=None),
    "units are none": says(units=[]),
    "a unit twice": lambda table, about: says(units=[*about["units"], "example"])(
        table, about
    ),
    "a unit that is not there": lambda table, about: says(
        units=[*about["units"], "more"]
    )(table, about),
    "a unit that is a score": lambda table, about: says(
        units=[*about["units"], "nll_sum"]
    )(table.append_column("nll_sum", table.column(SCORE)), about),
    "a unit that is a checkpoint": lambda table, about: says(
        units=[*about["units"], "checkpoint"]
    )(table.append_column("checkpoint", table.column("example")), about),
    "checkpoints are a text": says(checkpoints="ours"),
    "checkpoints are none": says(checkpoints=[]),
    "checkpoints are numbers": says(checkpoints=[1]),
    "a checkpoint twice": says(checkpoints=["base", "ours", "ours"]),
    "a checkpoint that is not there": says(checkpoints=["base", "ours", "theirs"]),
    "a checkpoint without a name": lambda table, about: says(checkpoints=["", "base"])(
        table.append_column("nll_sum/", table.column(SCORE)), about
    ),
    "a checkpoint that steers a terminal": lambda table, about: says(
        checkpoints=["base", "\x1b[2J"]
    )(table.append_column("nll_sum/\x1b[2J", table.column(SCORE)), about),
    "a long name of a checkpoint": lambda table, about: says(
        checkpoints=["base", "a" * 5000]
    )(table.append_column("nll_sum/" + "a" * 5000, table.column(SCORE)), about),
    "a million checkpoints": says(checkpoints=[str(k) for k in range(200_000)]),
    "scores are none": says(values=[]),
    "scores of another name": says(values=["rank"]),
    "a score twice": says(values=["nll_sum", "nll_sum"]),
    "facts are a list": says(facts=[]),
    "facts are null": says(facts=None),
    "facts are deep": says(facts=deep(900)),
    # Columns
    **{
        f"no column {name}": without(name)
        for name in ("example", "cluster", "role", "n_tokens", "stratum", "ref_sum")
    },
    "no scores of a checkpoint": without(SCORE),
    "units without the cluster": lambda table, about: says(
        units=[unit for unit in about["units"] if unit != "cluster"]
    )(table, about),
    "a column of another name": renamed("type", "kind"),
    "two columns of one name": renamed("marks", "digits"),
    # Types
    "examples are numbers": column("example", 7),
    "clusters are null": column("cluster", lambda old: pa.nulls(len(old))),
    "a cluster that is null": column("cluster", first(None)),
    "clusters are lists": column(
        "cluster", lambda old: pa.array([[record] for record in old.to_pylist()])
    ),
    "roles are bytes": column(
        "role", lambda old: pa.array([record.encode() for record in old.to_pylist()])
    ),
    "roles are records": column(
        "role", lambda old: pa.array([{"a": record} for record in old.to_pylist()])
    ),
    "strata are texts": column("stratum", "none"),
    "strata are fractions": column("stratum", 0.5),
    "tokens are dates": column(
        "n_tokens", lambda old: pa.array([0] * len(old), pa.timestamp("s"))
    ),
    "tokens are flags": column("n_tokens", True),
    "a count that is null": column("n_tokens", first(None)),
    "scores are texts": column(SCORE, "1.0"),
    "scores are lists": column(SCORE, lambda old: pa.array([[1.0]] * len(old))),
    "scores are whole numbers": column(SCORE, 1),
    "a text of a megabyte": column("cluster", "c" * 1_000_000),
    # Ranges
    "no tokens": column("n_tokens", 0),
    "fewer tokens than none": column("n_tokens", -5),
    "more tokens than there are": column("n_tokens", 2**62),
    "a pair of its own": column("pair", -9),
    "a dose below none": column("dose", -2),
    "an infinite score": column(SCORE, first(np.inf)),
    "infinite scores": column(SCORE, -np.inf),
    "scores beyond all numbers": column(SCORE, 1e300),
    "an infinite reference": column("ref_sum", first(np.inf)),
    "a reference that is missing": column("ref_sum", first(np.nan)),
}
"""Changes of the evidence of ``matched``, or what it says of itself, in bytes."""

STRANGE: dict[str, Change] = {
    "no unit has a score": column(SCORE, np.nan),
    "all scores are alike": column(SCORE, 1.0),
    "all roles are unknown": column("role", "nobody"),
    "all rows are of one cluster": column("cluster", "c"),
    "all rows are held out": column("split", "test"),
    "no row has a split": column("split", ""),
    "all pairs are one": column("pair", 0),
    "nothing has a control": column("pair", -1),
    "all identifiers are one": column("start", 0),
    "a type that opens a tag": column("type", "<script>"),
    "a type with a colon": column("type", "a:b"),
    "a task without a name": column("task", ""),
    "many strata": column("stratum", lambda old: pa.array(range(len(old)))),
    "all strata are refused": column("stratum", -7),
    "high doses": column("dose", 10**9),
    "facts that nobody asks for": says(facts={"a": {"b": [1]}}),
    "one unit": lambda table, about: table.slice(0, 1),
    "every unit twice": lambda table, about: pa.concat_tables([table, table]),
    "a checkpoint of the name of a stage": lambda table, about: says(
        checkpoints=["base", "ours@x@y"]
    )(table.append_column("nll_sum/ours@x@y", table.column(SCORE)), about),
}
"""What can be read, and of which an audit concludes what it can, or nothing."""


def rewritten(folder: Path, change: Change | bytes) -> Path:
    """The evidence of ``matched``, changed, with its new checksum in the report."""
    path = folder / "scores" / "spans.parquet"
    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[b"evidence"])
    if isinstance(change, bytes):
        raw = change
    else:
        table = change(table, about)
        raw = json.dumps(about).encode()
    pq.write_table(table.replace_schema_metadata({b"evidence": raw}), path)
    reported(folder, path)
    return path


def reported(folder: Path, path: Path) -> None:
    report_json = json.loads((folder / "report.json").read_text())
    report_json["evidence"][path.name] = sha256_file(path)
    (folder / "report.json").write_text(json.dumps(report_json))


def copied(work_folder: Path, folder: Path) -> Path:
    shutil.copytree(work_folder / "two", folder)
    return folder


def test_there_are_sixty_of_them():
    assert len(HOSTILE) >= 60


@pytest.mark.parametrize("column_name", HOSTILE)
def test_hostile_evidence_is_refused_in_one_line(
    column_name, work_folder, tmp_path, capsys
):
    folder = copied(work_folder, tmp_path / "r")
    path = rewritten(folder, HOSTILE[column_name])
    with pytest.raises(OutputError, match=r"spans\.parquet: "):
        Evidence.read(path)
    assert command_line(["verify", str(folder), "--json"]) == 1
    checked = json.loads(capsys.readouterr().out)["checked"]
    (reason,) = (check for check in checked if check["what"] == "scores/spans.parquet")
    assert not reason["verified"]
    assert reason["detail"]
    arguments = [str(work_folder / "one"), str(folder), "--baseline", "base"]
    assert command_line(["compare", *arguments]) == 4
    error_output = capsys.readouterr().err.strip()
    assert f"error: {path}: " in error_output
    assert len(error_output.splitlines()) == 1
    assert len(error_output) < 600


@pytest.mark.parametrize("column_name", STRANGE)
def test_strange_evidence_never_ends_the_program(
    column_name, work_folder, tmp_path, capsys
):
    folder = copied(work_folder, tmp_path / "r")
    rewritten(folder, STRANGE[column_name])
    assert command_line(["verify", str(folder)]) == 1
    arguments = [str(work_folder / "one"), str(folder), "--baseline", "base"]
    assert command_line(["compare", *arguments]) in (0, 2, 4)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "raw", [b"", b"PAR1", b"PAR1" * 9, b"\0" * 4096, b"not a table"]
)
def test_a_file_that_is_no_parquet_is_refused(raw, work_folder, tmp_path, capsys):
    folder = copied(work_folder, tmp_path / "r")
    path = folder / "scores" / "spans.parquet"
    path.write_bytes(raw)
    reported(folder, path)
    arguments = [str(work_folder / "one"), str(folder), "--baseline", "base"]
    assert command_line(["compare", *arguments]) == 4
    assert f"error: {path}: " in capsys.readouterr().err


def test_millions_of_equal_rows_are_refused_before_they_are_decoded(
    work_folder, tmp_path
):
    """A file of a megabyte that would take gigabytes."""
    folder = copied(work_folder, tmp_path / "r")
    path = folder / "scores" / "spans.parquet"
    table = pq.read_table(path)
    first_row = table.slice(0, 1)
    equal = {
        name: pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(1_000_000, np.int32)),
            first_row.column(name).combine_chunks(),
        )
        if pa.types.is_string(table.schema.field(name).type)
        or pa.types.is_large_string(table.schema.field(name).type)
        else pa.repeat(first_row.column(name)[0], 1_000_000)
        for name in table.column_names
    }
    block = pa.table(equal).replace_schema_metadata(table.schema.metadata)
    with pq.ParquetWriter(path, block.schema, compression="zstd") as file:
        for _ in range(10):
            file.write_table(block)
    assert path.stat().st_size < 1 << 20
    before = pa.total_allocated_bytes()
    with pytest.raises(OutputError, match=r"spans\.parquet: .* GB "):
        Evidence.read(path)
    assert pa.total_allocated_bytes() - before < 1 << 26


def test_settings_of_a_report_cannot_end_the_program(work_folder, tmp_path, capsys):
    folder = copied(work_folder, tmp_path / "r")
    path = folder / "report.json"
    report_json = json.loads(path.read_text())
    for name, value in (
        ("matched.replicates", "many"),
        ("matched.replicates", -1),
        ("seed", "x"),
        ("baseline", ["a"]),
        ("matched.null", 7),
    ):
        settings = report_json["settings"] | {name: value}
        path.write_text(json.dumps(report_json | {"settings": settings}))
        assert command_line(["verify", str(folder)]) == 1, name
        assert "Traceback" not in capsys.readouterr().err
