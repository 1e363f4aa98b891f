"""Reports compared from stored evidence alone: as if they had been one call."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from audited import matched, nll
from made_reports import checkpoint, guard, made_report, manifest_facts

from spark_audit.audits import NLL, about, known
from spark_audit.audits.base import Context, baselines_of
from spark_audit.cli.main import run as command_line
from spark_audit.errors import InputError, OutputError
from spark_audit.files import sha256_file
from spark_audit.pipeline.compare import changed_since, compare
from spark_audit.pipeline.verification.verify import verify
from spark_audit.provenance import now, versions
from spark_audit.report.folder import read_report, write_report
from spark_audit.results import AuditResult, Row
from spark_audit.results.evidence import Evidence


def shifted(case: Any, shift: float) -> Callable[[str, np.ndarray], np.ndarray]:
    def change(key: str, nll: np.ndarray) -> np.ndarray:
        out = nll * 0.9
        for start, end in case.spans(key):
            out[start:end] += shift
        return out

    return change


@pytest.fixture(scope="module")
def audited():
    """``audited(case, **shifts)``: what both audits say, once for the same question."""
    results_by_shifts: dict[Any, dict[str, AuditResult]] = {}

    def make(case: Any, **shifts: float) -> dict[str, AuditResult]:
        key = (case.manifest.digest, *shifts.items())
        if key not in results_by_shifts:
            changes = {name: shifted(case, shift) for name, shift in shifts.items()}
            tables = case.tables(**changes)
            results_by_shifts[key] = {
                "matched": matched(
                    tables, case.manifest, placebo_draws=0, rematched=False
                ),
                "nll": nll(tables, case.manifest),
            }
        return results_by_shifts[key]

    return make


@pytest.fixture
def write(tmp_path, audited):
    """``write(folder, case, names, **shifts)``: a report folder with its evidence."""

    def make(
        name: str,
        case: Any,
        *,
        digest: str = "d",
        dtype: str = "float32",
        **shifts: float,
    ) -> Path:
        folder = tmp_path / name
        results = audited(case, **shifts)
        sums = {}
        for audit, result in results.items():
            path = folder / "scores" / about(audit).evidence_file()
            path.parent.mkdir(parents=True, exist_ok=True)
            result.evidence.write(path)
            sums[path.name] = sha256_file(path)
        report = made_report(
            created=now(),
            versions=versions(),
            settings={"preset": "robust", "seed": 0, "baseline": None, "limit": None},
            manifest=manifest_facts(digest=digest),
            checkpoints=[
                checkpoint(
                    name,
                    model_id=f"{name} {shift}" if name != "base" else "base",
                    dtype=dtype,
                )
                for name, shift in shifts.items()
            ],
            results=[row for result in results.values() for row in result.results],
            evidence=sums,
        )
        write_report(report, folder, formats=("json",))
        return folder

    return make


def without_state(rows):
    """Rows as one audit gives them: a report adds the state of their checkpoint."""
    return [row.model_copy(update={"state": ""}) for row in rows]


def test_contrasts_are_those_of_one_call(make_case, write):
    case = make_case()
    first = shifted(case, 0.0)
    second = shifted(case, 0.6)
    base = shifted(case, 0.1)
    folders = [
        write("one", case, base=0.1, er=0.0),
        write("two", case, base=0.1, spark=0.6),
    ]
    report = compare(*folders)
    assert report.settings["baseline"] == "er"
    assert [checkpoint.name for checkpoint in report.checkpoints] == [
        "base",
        "er",
        "spark",
    ]
    tables = case.tables(base=base, er=first, spark=second)
    together = matched(
        tables, case.manifest, baseline="er", placebo_draws=0, rematched=False
    )
    contrasts = [row for row in report.contrasts if row.audit == "matched"]
    assert without_state(contrasts) == without_state(together.contrasts)
    compared_alone = nll(tables, case.manifest, baseline="er")
    contrasts = [row for row in report.contrasts if row.audit == "nll"]
    assert without_state(contrasts) == without_state(compared_alone.contrasts)
    rows = [row for row in report.results if row.audit == "nll"]
    assert without_state(rows) == without_state(compared_alone.results)
    assert baselines_of("er", tables) == {"spark": "er"}


def test_ordinary_runs_of_another_report_are_a_null(make_case, write):
    case = make_case()
    folders = [
        write("one", case, base=0.1, er=0.0, again=0.9, third=1.4),
        write("two", case, base=0.1, spark=0.6),
    ]
    report = compare(*folders, baseline="er", null="again,third")
    assert report.settings["matched.null"] == "again,third"
    (finding,) = (
        f for f in report.findings if (f.checkpoint, f.metric) == ("spark", "did")
    )
    (without,) = (
        f
        for f in compare(*folders, baseline="er").findings
        if (f.checkpoint, f.metric) == ("spark", "did")
    )
    assert (without.claim, finding.claim) == ("suppressed_kind", "nothing_shown")
    with pytest.raises(InputError, match="^--null: 'nobody'"):
        compare(*folders, baseline="er", null="nobody")


def test_different_checkpoints_of_one_name_are_told_apart(make_case, write):
    case = make_case(sources=12)
    folders = [
        write("one", case, ours=0.0),
        write("two", case, ours=0.5),
    ]
    report = compare(*folders)
    assert [checkpoint.name for checkpoint in report.checkpoints] == [
        "one/ours",
        "two/ours",
    ]
    assert {row.baseline for row in report.contrasts} == {"one/ours"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"digest": "other"}, "its manifest is other"),
        (
            {"dtype": "bfloat16"},
            "its number format is bfloat16, and that of .* is float32",
        ),
    ],
)
def test_what_cannot_be_paired_is_refused(change, message, make_case, write):
    case = make_case(sources=12)
    first_folder = write("one", case, a=0.0)
    second_folder = write("two", case, b=0.5, **change)
    with pytest.raises(InputError, match=message):
        compare(first_folder, second_folder)


def test_baseline_must_be_known_and_chosen(make_case, write):
    case = make_case(sources=12)
    first_folder = write("one", case, a=0.0, b=0.1)
    second_folder = write("two", case, c=0.5)
    with pytest.raises(InputError, match="^--baseline: .*a, b$"):
        compare(first_folder, second_folder)
    with pytest.raises(InputError, match="'x'"):
        compare(first_folder, second_folder, baseline="x")
    with pytest.raises(InputError, match="DIR DIR"):
        compare(first_folder)
    contrasts = compare(first_folder, second_folder, baseline="c").contrasts
    assert {row.checkpoint for row in contrasts} == {"a", "b"}


def rewritten(folder: Path, **changes: Any) -> None:
    """Write a report again with other fields."""
    report = read_report(folder).model_copy(update=changes)
    write_report(report, folder, formats=("json",))


def test_what_the_setup_came_to_is_carried_over_by_its_new_name(make_case, write):
    """Failed checks of the setup, and whether trained rows fit; others stay behind."""
    case = make_case(sources=12)
    first_folder = write("one", case, ours=0.0)
    second_folder = write("two", case, ours=0.5)
    rewritten(
        first_folder, guards=[guard("held_out_back", "They come back.", of="ours")]
    )
    of_both = [
        guard("trained_rows_fit", "They fit.", passed=True, of="ours"),
        guard("held_out_back", "None.", passed=True, of="ours"),
        guard("clusters", "Enough.", passed=True, of="ours"),
    ]
    rewritten(second_folder, guards=of_both)
    outcomes = {
        (guard.name, guard.checkpoint, guard.passed)
        for guard in compare(first_folder, second_folder).guards
        if guard.name in ("held_out_back", "trained_rows_fit")
        or "/" in guard.checkpoint
    }
    assert outcomes == {
        ("held_out_back", "one/ours", False),
        ("trained_rows_fit", "two/ours", True),
    }


def test_the_preset_is_that_of_the_first_report_unless_one_is_given(make_case, write):
    case = make_case(sources=12)
    first_folder = write("one", case, a=0.0)
    second_folder = write("two", case, b=0.5)
    rewritten(
        first_folder, settings=read_report(first_folder).settings | {"preset": "paper"}
    )
    assert compare(first_folder, second_folder).settings["preset"] == "paper"
    assert compare(second_folder, first_folder).settings["preset"] == "robust"
    assert (
        compare(first_folder, second_folder, preset="robust").settings["preset"]
        == "robust"
    )


def test_a_checkpoint_is_held_against_the_earlier_one_of_its_name(make_case, write):
    case = make_case(sources=12)
    old = write("old", case, a=0.0, b=0.5)
    new = write("new", case, a=0.1, b=0.6)
    report, same = changed_since(new, old, only=("matched",))
    change_of = {
        row.checkpoint: row.value for row in report.contrasts if row.metric == "did"
    }
    assert same == []
    assert change_of["a"] == pytest.approx(0.1, abs=0.02)
    assert change_of["b"] == pytest.approx(0.1, abs=0.02)


def test_an_audit_that_one_report_lacks_is_left_out_aloud(make_case, write):
    case = make_case(sources=12)
    first_folder = write("one", case, a=0.0)
    second_folder = write("two", case, b=0.5)
    (second_folder / "scores" / "nll.parquet").unlink()
    report = compare(first_folder, second_folder)
    assert {row.audit for row in report.results} == {"matched"}
    assert "nll (two)" in report.guards[0].detail
    shutil.rmtree(second_folder / "scores")
    with pytest.raises(InputError, match="matched .two.; nll .two."):
        compare(first_folder, second_folder)


@dataclass(frozen=True, kw_only=True)
class Scaled(NLL):
    """An audit of another package."""

    name = "scaled"
    times: float = 1.0

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        options: dict[str, Any] = {"audit": "scaled", "metric": "m", "n": 1}
        names = evidence.checkpoints
        rows = [Row(checkpoint=name, value=self.times, **options) for name in names]
        return AuditResult(results=rows)


def test_an_audit_of_others_concludes_as_its_reports_did(make_case, write, monkeypatch):
    case = make_case()
    folders = []
    for name, shifts in (("one", {"base": 0.1, "er": 0.0}), ("two", {"spark": 0.6})):
        folder = write(name, case, **shifts)
        path = shutil.copy(
            folder / "scores/nll.parquet", folder / "scores/scaled.parquet"
        )
        report_json = json.loads((folder / "report.json").read_text())
        report_json["settings"]["scaled.times"] = 3.0
        report_json["evidence"]["scaled.parquet"] = sha256_file(Path(path))
        report_json["results"] += [{**report_json["results"][0], "audit": "scaled"}]
        (folder / "report.json").write_text(json.dumps(report_json))
        folders.append(folder)
    (left_out,) = (
        guard for guard in compare(*folders).guards if "compared" in guard.name
    )
    assert "scaled (the package that it is of is not installed)" in left_out.detail
    outcomes = dict(verify(folders[0]))
    assert outcomes["scaled"] == "the package that it is of is not installed"

    monkeypatch.setattr(known, "_audits_of_packages", lambda: {"scaled": Scaled})
    rows = [row for row in compare(*folders).results if row.audit == "scaled"]
    assert [row.value for row in rows] == [3.0] * 3


def test_audits_with_other_options_are_never_compared(make_case, write, monkeypatch):
    """What two of them measured is not the same, whatever it is called."""
    monkeypatch.setattr(known, "_audits_of_packages", lambda: {"scaled": Scaled})
    case = make_case()
    folders = []
    for name, times in (("one", 3.0), ("two", 2.0)):
        folder = write(name, case, **{name: 0.5})
        path = shutil.copy(
            folder / "scores/nll.parquet", folder / "scores/scaled.parquet"
        )
        report_json = json.loads((folder / "report.json").read_text())
        report_json["settings"]["scaled.times"] = times
        report_json["evidence"]["scaled.parquet"] = sha256_file(Path(path))
        (folder / "report.json").write_text(json.dumps(report_json))
        folders.append(folder)
    report = compare(*folders)
    assert {row.audit for row in report.results} == {"matched", "nll"}
    (left_out,) = (guard for guard in report.guards if "compared" in guard.name)
    assert "scaled (made with another times)" in left_out.detail
    # What only changes how precisely a figure is known is no other option.
    for folder, count in zip(folders, (100, 200), strict=True):
        report_json = json.loads((folder / "report.json").read_text())
        report_json["settings"] |= {"scaled.times": 3.0, "nll.replicates": count}
        (folder / "report.json").write_text(json.dumps(report_json))
    assert {row.audit for row in compare(*folders).results} == {
        *("matched", "nll", "scaled")
    }


def test_parts_of_a_manifest_are_compared_with_the_same_part_only(make_case, write):
    case = make_case(sources=12)
    first_folder = write("one", case, a=0.0)
    second_folder = write("two", case, b=0.5)
    path = second_folder / "report.json"
    report_json = json.loads(path.read_text())
    report_json["settings"]["limit"] = 10
    path.write_text(json.dumps(report_json))
    with pytest.raises(InputError, match="--limit .*10.*None"):
        compare(first_folder, second_folder)


def test_evidence_is_that_of_its_report(make_case, write, tmp_path):
    case = make_case()
    folders = [
        write("one", case, er=0.0),
        write("two", case, spark=0.8),
    ]
    report = compare(*folders, output=tmp_path / "both")
    evidence_files = (tmp_path / "both" / "scores").glob("*.parquet")
    assert report.evidence == {path.name: sha256_file(path) for path in evidence_files}
    for path in (folders[1] / "scores").glob("*.parquet"):
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 8
        for damaged in (bytes(flipped), content[:-1], b""):
            path.write_bytes(damaged)
            with pytest.raises(OutputError) as caught:
                compare(*folders)
            assert caught.value.where == str(path)
        path.write_bytes(content)


def test_evidence_of_another_version_or_without_a_checksum_is_refused(make_case, write):
    case = make_case()
    first_folder = write("one", case, er=0.0)
    second_folder = write("two", case, spark=0.8)
    path = second_folder / "scores" / "spans.parquet"
    pd.read_parquet(path).to_parquet(path)
    for sums, message in (
        ({path.name: sha256_file(path)}, "is not readable evidence"),
        ({}, "is not the file that the report was made from"),
    ):
        other_report = read_report(second_folder).model_copy(update={"evidence": sums})
        write_report(other_report, second_folder, formats=("json",))
        (second_folder / "scores" / "nll.parquet").unlink(missing_ok=True)
        with pytest.raises(OutputError, match=message):
            compare(first_folder, second_folder, baseline="er")


def test_the_command_writes_a_report_that_can_be_gated(
    make_case, write, tmp_path, capsys
):
    case = make_case()
    first_folder = write("one", case, er=0.0)
    second_folder = write("two", case, spark=0.8)
    out = tmp_path / "both"
    code = command_line(
        ["compare", str(first_folder), str(second_folder), "-o", str(out)]
    )
    assert code == 0, capsys.readouterr().err
    report = read_report(out)
    assert report.command[:2] == ["spark-audit", "compare"]
    evidence = Evidence.read(out / "scores" / "spans.parquet")
    assert set(evidence.checkpoints) == {"er", "spark"}
    rule = "matched.did.low > 0.5"
    assert command_line(["gate", str(out), "--fail-if", rule]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("FAIL: ")
    passing = ["matched.did.low < 0.1", "nll.nll.pii.value > 99"]
    assert command_line(["gate", str(out), "--fail-if", *passing]) == 0
    unknown = ["gate", str(out), "--fail-if", "nll.nil.pii.value > 1"]
    assert command_line(unknown) == 2
    assert ": nll" in capsys.readouterr().err
    # A comparison can be compared again, with itself or with others.
    assert (
        command_line(["compare", str(out), str(first_folder), "--baseline", "er"]) == 0
    )


def test_a_gate_trips_where_memory_rose_since_an_earlier_report(
    make_case, write, capsys
):
    case = make_case()
    old = write("old", case, er=0.0)
    new = write("new", case, er=0.8)
    rule = "matched.did fell by 0.1"
    gate = ["gate", str(new), "--fail-if", rule]
    assert command_line([*gate, "--against", str(old)]) == 1
    assert " 0.8" in capsys.readouterr().out
    command_back = ["gate", str(old), "--fail-if", rule, "--against", str(new)]
    assert command_line(command_back) == 0
    assert command_line([*gate, "--against", str(new)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("PASS: ")
    assert command_line(gate) == 2
    assert "--against REPORT" in capsys.readouterr().err
    second_folder = write("two", case, a=0.1, b=0.2)
    assert command_line([*gate, "--against", str(second_folder)]) == 2
    error_output = capsys.readouterr().err
    assert f"--against {second_folder}: " in error_output
    assert " er;" in error_output


def test_a_rounded_checkpoint_keeps_its_original(make_case, write):
    case = make_case()
    first_folder = write("one", case, er=0.0)
    second_folder = write("two", case, ours=0.5, **{"ours+int4": 0.2})
    report = read_report(second_folder)
    facts = [
        c.model_copy(update={"quantised_from": "ours" if "+" in c.name else None})
        for c in report.checkpoints
    ]
    report = report.model_copy(update={"checkpoints": facts})
    write_report(report, second_folder, formats=("json",))
    compared = compare(first_folder, second_folder)
    pairs = {(c.checkpoint, c.baseline, c.family) for c in compared.contrasts}
    assert ("ours+int4", "ours", "exploratory") in pairs
    assert ("ours", "er", "primary") in pairs
    assert not any(c == "ours+int4" and b == "er" for c, b, _ in pairs)
    # A name with a plus is no rounded checkpoint by itself.
    three = write("three", case, **{"er+ptpc": 0.4})
    compared = compare(first_folder, three)
    pairs = {(c.checkpoint, c.baseline, c.family) for c in compared.contrasts}
    assert ("er+ptpc", "er", "primary") in pairs
