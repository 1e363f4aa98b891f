"""A report is concluded anew, and what was changed since is named, to the byte."""

import hmac
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from named import examples

from spark_audit.audits import NLL, Extraction, Matched
from spark_audit.checkpoints.open import OpenCheckpoints, open_checkpoint
from spark_audit.checkpoints.specs import Loading, Spec
from spark_audit.cli.main import run as command_line
from spark_audit.errors import SparkError
from spark_audit.files import sha256_file
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.content import seal
from spark_audit.manifest.file import read_manifest, write_manifest
from spark_audit.pipeline.run import Request, run
from spark_audit.pipeline.verification.counts import manifest_checks
from spark_audit.pipeline.verification.verify import verify
from spark_audit.report.folder import read_report
from spark_audit.report.gate.judge import check
from spark_audit.report.gate.rules import parse_rule
from spark_audit.report.gate.statement import (
    differences,
    read_rules,
    statement,
)
from spark_audit.sentences import render

RULE = "nll.nll.pii.low > 99"
MATCHED = Matched(placebo_draws=5, rematched=False)


@pytest.fixture(scope="module")
def work_folder(tmp_path_factory, tiny_base, make_adapter) -> Path:
    """A folder with an adapter, a report on it, and a statement on that."""
    folder = tmp_path_factory.mktemp("place")
    make_adapter(folder / "lora")
    base = open_checkpoint(str(tiny_base), name="base")
    manifest = build_manifest(examples(), base, name="m", caliper=2.0)
    write_manifest(manifest, folder / "m.json")
    request = Request(
        audits=(MATCHED, NLL(), Extraction()),
        checkpoints=(f"ours={folder / 'lora'}",),
        base=str(tiny_base),
        baseline="base",
        manifest=folder / "m.json",
        output=folder / "report",
        loading=Loading(device="cpu"),
        formats=("html", "csv", "md"),
    )
    run(request)
    gate = ["gate", str(folder / "report"), "--fail-if", RULE]
    # A guard fails: random weights know nothing.
    assert command_line([*gate, "--attest", str(folder / "a.json")]) == 1
    return folder


@pytest.fixture(scope="module")
def plain(work_folder, tiny_base, tmp_path_factory) -> Path:
    """A report of two audits without a page and extraction, which take longest."""
    folder = tmp_path_factory.mktemp("plain") / "report"
    run(
        Request(
            audits=(MATCHED, NLL()),
            checkpoints=(f"ours={work_folder / 'lora'}",),
            base=str(tiny_base),
            baseline="base",
            manifest=work_folder / "m.json",
            output=folder,
            loading=Loading(device="cpu"),
            formats=("csv", "md"),
        )
    )
    assert wrong(folder) == {}
    return folder


@pytest.fixture(scope="module")
def bare(plain, tmp_path_factory) -> Path:
    """The same report without any shared file: its evidence alone stands against it."""
    folder = tmp_path_factory.mktemp("bare") / "report"
    shutil.copytree(plain, folder)
    (folder / "report.md").unlink()
    shutil.rmtree(folder / "tables")
    path = folder / "report.json"
    report_json = json.loads(path.read_text())
    for name in ("md", "csv"):
        del report_json["files"][name]
    path.write_text(json.dumps(report_json))
    assert wrong(folder) == {}
    return folder


def wrong(folder: Path, **more: Any) -> dict[str, str]:
    return {
        checked_file: reason
        for checked_file, reason in verify(folder, **more)
        if reason
    }


def test_a_report_follows_from_its_evidence(work_folder, tiny_base, capsys):
    options = ["--attestation", str(work_folder / "a.json"), "--base", str(tiny_base)]
    options += ["--ckpt", f"ours={work_folder / 'lora'}", "--json"]
    assert command_line(["verify", str(work_folder / "report"), *options]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert all(check["verified"] for check in verdict["checked"])
    named = {check["what"] for check in verdict["checked"]}
    assert {"scores/spans.parquet", "conclusions of matched"} <= named
    assert {"weights of ours", str(work_folder / "a.json")} <= named
    assert {"report.html", "tables/results.csv", "counts", "checks"} <= named
    trusted = " ".join(verdict["taken_on_trust"])
    assert "held_out_back" in trusted
    assert "number format" in trusted
    assert "--ckpt" not in trusted
    assert command_line(["verify", str(work_folder / "report")]) == 0
    assert "base, ours (give --ckpt" in capsys.readouterr().out


def test_a_figure_or_claim_that_does_not_follow_is_found(plain, tmp_path):
    shutil.copytree(plain, tmp_path / "r")
    path = tmp_path / "r" / "report.json"
    report_json = json.loads(path.read_text())
    for section, change in (
        ("results", lambda one: one | {"value": (one["value"] or 0) + 1e-6}),
        ("findings", lambda one: one | {"claim": "nothing_shown", "family": "primary"}),
    ):
        index = next(
            i
            for i, record in enumerate(report_json[section])
            if record["audit"] == "matched" and record.get("value") is not None
        )
        changed = [*report_json[section]]
        changed[index] = change(changed[index])
        path.write_text(json.dumps(report_json | {section: changed}))
        reasons = wrong(tmp_path / "r")
        assert section in reasons["conclusions of matched"]


def without(report_json: dict[str, Any], audit: str) -> dict[str, Any]:
    """The report as if an audit had never run; its evidence stays."""
    sections = {
        section: [record for record in report_json[section] if record["audit"] != audit]
        for section in ("results", "contrasts", "findings")
    }
    gone = {name for name, origin in report_json["origins"].items() if origin == audit}
    for section in ("tables", "origins"):
        sections[section] = {
            k: v for k, v in report_json[section].items() if k not in gone
        }
    return report_json | sections


def with_values_gone(report_json: dict[str, Any]) -> dict[str, Any]:
    empty = {"value": None, "low": None, "high": None, "status": "not_estimable"}
    empty |= {"note": "not scored", "interval_method": "none"}
    rows = [
        row | empty if row["audit"] == "matched" else row
        for row in report_json["results"]
    ]
    return report_json | {"results": rows}


def with_row(report_json: dict[str, Any], **columns: Any) -> dict[str, Any]:
    return report_json | {
        "results": [*report_json["results"], report_json["results"][0] | columns]
    }


def with_facts(report_json: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """Another fact of the checkpoint that was audited."""
    *others, last_checkpoint = report_json["checkpoints"]
    return report_json | {"checkpoints": [*others, last_checkpoint | facts]}


def with_manifest(report_json: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return report_json | {"manifest": report_json["manifest"] | facts}


def with_guard(report_json: dict[str, Any], change: Any) -> dict[str, Any]:
    """Another state of the first check that an audit made."""
    index = next(
        k
        for k, guard in enumerate(report_json["guards"])
        if guard["name"] != "broken_model"
    )
    guards = [*report_json["guards"]]
    guards[index : index + 1] = change(guards[index])
    return report_json | {"guards": guards}


def with_table(report_json: dict[str, Any], name: str, origin: str) -> dict[str, Any]:
    record = {"checkpoint": "ours", "value": 0.5}
    tables = report_json["tables"] | {name: [record]}
    return report_json | {
        "tables": tables,
        "origins": report_json["origins"] | {name: origin},
    }


FORGED = {
    "an audit that left no trace": lambda one: without(one, "nll"),
    "figures that are gone": with_values_gone,
    "contrasts that are gone": lambda one: one | {"contrasts": []},
    "a finding that is gone": lambda one: one | {"findings": one["findings"][1:]},
    "an audit that never ran": lambda one: with_row(
        one, audit="mia", metric="auc", variant="loss"
    ),
    "an audit that nobody has": lambda one: with_row(one, audit="theirs"),
    "a checkpoint that nobody has": lambda one: with_row(one, checkpoint="other"),
    "a note": lambda one: with_row(
        one | {"results": one["results"][1:]}, note="all is well"
    ),
    "a table of an audit that never ran": lambda one: with_table(
        one, "mia_texts", "mia"
    ),
    "a table of nobody": lambda one: with_table(one, "texts", "manifest"),
    "a table of an audit that ran": lambda one: with_table(one, "more", "matched"),
    "weights": lambda one: with_facts(one, weights_sha256="5" * 64),
    "a source": lambda one: with_facts(one, source="somewhere/else"),
    "the manifest's name": lambda one: with_manifest(one, name="other"),
    "the manifest's digest": lambda one: with_manifest(one, digest="5" * 64),
    "tokens": lambda one: with_manifest(one, n_tokens=99999),
    "clusters": lambda one: with_manifest(one, n_clusters=9999),
    "the status": lambda one: one | {"status": "partial"},
    "the number of tests": lambda one: (
        one | {"settings": one["settings"] | {"primary_tests": 77}}
    ),
    "a baseline": lambda one: one | {"settings": one["settings"] | {"baseline": None}},
    "a check that passed": lambda one: with_guard(
        one, lambda guard: [guard | {"passed": None if guard["passed"] else True}]
    ),
    "a check that is gone": lambda one: with_guard(one, lambda guard: []),
    "a caveat": lambda one: one | {"caveats": ["all is well"]},
    "a date": lambda one: one | {"created": "2026-01-01T00:00:00+00:00"},
    "files that are not named": lambda one: one | {"files": {}},
    "evidence that is not named": lambda one: (
        one
        | {"evidence": {k: v for k, v in one["evidence"].items() if "span" not in k}}
    ),
    "no evidence": lambda one: one | {"evidence": {}},
    "nothing": lambda one: (
        one
        | {k: [] for k in ("results", "contrasts", "findings", "guards")}
        | {k: {} for k in ("evidence", "tables", "origins", "files")}
    ),
}


ONLY_ON_PAGES = (
    "weights",
    "a source",
    "the manifest's name",
    "the manifest's digest",
    "the status",
    "a caveat",
    "a date",
    "files that are not named",
)
"""What no evidence speaks of: the files that were rendered from the report do."""


@pytest.mark.parametrize("edit", FORGED)
def test_a_report_that_is_edited_by_itself_is_found(edit, plain, bare, tmp_path):
    shutil.copytree(plain if edit in ONLY_ON_PAGES else bare, tmp_path / "r")
    path = tmp_path / "r" / "report.json"
    path.write_text(json.dumps(FORGED[edit](json.loads(path.read_text()))))
    assert wrong(tmp_path / "r"), edit


def with_evidence(folder: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change each file of evidence, and its checksum in the report with it."""
    path = folder / "report.json"
    report_json = json.loads(path.read_text())
    for name in report_json["evidence"]:
        file = folder / "scores" / name
        table = pq.read_table(file)
        changed = change(table).replace_schema_metadata(table.schema.metadata)
        pq.write_table(changed, file)
        report_json["evidence"][name] = sha256_file(file)
    path.write_text(json.dumps(report_json))


def with_checkpoints_swapped(table: pa.Table) -> pa.Table:
    """The scores of each checkpoint under the name of the other."""
    swapped_names = {"base": "ours", "ours": "base"}
    names = []
    for name in table.schema.names:
        score, slash, checkpoint = name.rpartition("/")
        names.append(f"{score}{slash}{swapped_names.get(checkpoint, checkpoint)}")
    return table.rename_columns(names).select(table.schema.names)


EVIDENCE = {
    "swapped between checkpoints": with_checkpoints_swapped,
    "without its last rows": lambda table: table.slice(0, table.num_rows - 3),
    "with each row twice": lambda table: pa.concat_tables([table, table]),
}


@pytest.mark.parametrize("edit", EVIDENCE)
def test_evidence_that_is_changed_with_its_checksum_is_found(edit, plain, tmp_path):
    shutil.copytree(plain, tmp_path / "r")
    with_evidence(tmp_path / "r", EVIDENCE[edit])
    reasons = wrong(tmp_path / "r")
    assert not any(name.startswith("scores/") for name in reasons)
    assert "conclusions of matched" in reasons


def test_figures_under_the_name_of_another_checkpoint_are_found(plain, tmp_path):
    shutil.copytree(plain, tmp_path / "r")
    path = tmp_path / "r" / "report.json"
    report_json = json.loads(path.read_text())
    swapped_names = {"base": "ours", "ours": "base"}
    for row in report_json["results"]:
        row["checkpoint"] = swapped_names[row["checkpoint"]]
    path.write_text(json.dumps(report_json))
    reasons = wrong(tmp_path / "r")
    assert "results" in reasons["conclusions of matched"]
    assert "results" in reasons["conclusions of nll"]


@pytest.mark.parametrize("change", [{"caliper": 9.0}, {"reference": "other"}])
def test_settings_of_the_manifest_are_held_against_it(
    change, work_folder, plain, tmp_path
):
    shutil.copytree(plain, tmp_path / "r")
    path = tmp_path / "r" / "report.json"
    report_json = json.loads(path.read_text())
    path.write_text(
        json.dumps(report_json | {"settings": report_json["settings"] | change})
    )
    report = read_report(tmp_path / "r")
    reasons = dict(manifest_checks(report, read_manifest(work_folder / "m.json")))
    assert reasons["manifest"].endswith(next(iter(change)))
    sound = manifest_checks(read_report(plain), read_manifest(work_folder / "m.json"))
    assert dict(sound) == {"manifest": ""}


def test_a_report_without_evidence_is_not_verified(work_folder, tmp_path, capsys):
    folder = tmp_path / "r"
    shutil.copytree(work_folder / "report", folder)
    report_json = json.loads((folder / "report.json").read_text())
    (folder / "report.json").write_text(json.dumps(FORGED["nothing"](report_json)))
    shutil.rmtree(folder / "scores")
    shutil.rmtree(folder / "tables")
    for page in folder.glob("report.[hm]*"):
        page.unlink()
    assert "report.json" in wrong(folder)
    assert command_line(["verify", str(folder)]) == 1
    capsys.readouterr()
    call = ["gate", str(folder), "--attest", str(tmp_path / "a.json")]
    assert command_line(call) == 2
    assert "error: --attest: " in capsys.readouterr().err
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize(
    "edit", ["an audit that left no trace", "figures that are gone"]
)
def test_no_statement_is_made_on_a_report_that_was_emptied(
    edit, work_folder, tmp_path, capsys
):
    folder = tmp_path / "r"
    shutil.copytree(work_folder / "report", folder)
    path = folder / "report.json"
    path.write_text(json.dumps(FORGED[edit](json.loads(path.read_text()))))
    call = ["gate", str(folder), "--attest", str(tmp_path / "a.json")]
    assert command_line(call) == 2
    assert "error: --attest: " in capsys.readouterr().err
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize(
    "n_digits", [1, pytest.param(6, marks=pytest.mark.slow)], ids=["one", "many"]
)
@pytest.mark.parametrize("name", ["tables/results.csv", "report.md", "report.html"])
def test_every_figure_of_a_shared_file_is_held_against_the_report(
    name, n_digits, work_folder, plain, tmp_path
):
    folder = tmp_path / "r"
    shutil.copytree(work_folder / "report" if name == "report.html" else plain, folder)
    path = folder / name
    text = path.read_text()
    places = [i for i, char in enumerate(text) if char.isdigit()]
    for position in random.Random(7).sample(places, n_digits):
        digit = str((int(text[position]) + 1) % 10)
        path.write_text(text[:position] + digit + text[position + 1 :])
        assert [*wrong(folder)] == [name]


def test_a_shared_file_too_many_or_too_few_is_found(plain, tmp_path):
    folder = tmp_path / "r"
    shutil.copytree(plain, folder)
    (folder / "tables" / "more.csv").write_text("a\n")
    assert [*wrong(folder)] == ["tables/more.csv"]
    (folder / "tables" / "more.csv").unlink()
    (folder / "report.md").unlink()
    assert [*wrong(folder)] == ["report.md"]


def test_pages_that_do_not_follow_are_mended_by_the_step_that_is_named(
    plain, tmp_path, capsys
):
    folder = tmp_path / "r"
    shutil.copytree(plain, folder)
    page = folder / "report.md"
    page.write_text(page.read_text() + "\nAn edited line.\n")
    assert command_line(["verify", str(folder)]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert render("verify.next_of_rendering") in printed
    assert command_line(["report", str(folder)]) == 0
    capsys.readouterr()
    assert command_line(["verify", str(folder)]) == 0
    capsys.readouterr()

    # Evidence that was changed is mended by no rendering.
    page.write_text(page.read_text() + "\nAn edited line.\n")
    evidence = folder / "scores" / "spans.parquet"
    evidence.write_bytes(evidence.read_bytes() + b"\0")
    assert command_line(["verify", str(folder)]) == 1
    out = capsys.readouterr().out
    assert render("verify.next") in out
    assert render("verify.next_of_rendering") not in out


def test_files_that_the_report_does_not_name_are_counted_and_not_called_verified(
    plain, tmp_path, capsys
):
    folder = tmp_path / "r"
    shutil.copytree(plain, folder)
    figures = folder / "figures"
    (figures / "previous").mkdir(parents=True)
    (figures / "previous" / "old.png").touch()
    assert wrong(folder) == {}

    for name in ("a.png", "b.png", "c.png"):
        (figures / name).touch()
    assert command_line(["verify", str(folder)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("NOT WHOLLY VERIFIED")
    (line,) = [line for line in out.splitlines() if "figures/" in line]
    assert "3 files" in line

    # Evidence that is not named is no stray: it may have concluded something else.
    (figures / "a.png").rename(folder / "scores" / "mia.parquet")
    assert command_line(["verify", str(folder)]) == 1
    assert capsys.readouterr().out.startswith("NOT VERIFIED")


def test_the_manifest_and_the_dossier_are_held_against_the_report(
    work_folder, tmp_path
):
    folder = tmp_path / "r"
    other_manifest = tmp_path / "other.json"
    shutil.copytree(work_folder / "report", folder)
    options = ["--format", "dossier", "--manifest", str(work_folder / "m.json")]
    assert command_line(["report", str(folder), *options]) == 0
    call = ["verify", str(folder), "--manifest", str(work_folder / "m.json")]
    assert command_line(call) == 0
    page = folder / "dossier.html"
    written = page.read_text()
    page.write_text(written.replace("12", "13"))
    assert command_line(call) == 1

    # It was written of a manifest, which rendering without one does not have.
    assert command_line(["report", str(folder)]) == 0
    assert page.read_text() != written
    assert command_line(["report", str(folder), *options]) == 0
    assert page.read_text() == written
    content = read_manifest(work_folder / "m.json").model_dump(mode="json")
    content["balance"] = []
    write_manifest(seal(content), other_manifest)
    assert command_line(["verify", str(folder), "--manifest", str(other_manifest)]) == 2


def test_a_statement_has_no_digest_of_private_content(work_folder, tmp_path):
    """Ranks are whole numbers: whoever knows all but one could try that one."""
    report = read_report(work_folder / "report")
    attestation = json.loads((work_folder / "a.json").read_text())
    digests = {
        record["name"]: record["digest"]
        for record in attestation["predicate"]["configuration"][:-1]
    }
    private = {name for name in digests if name.startswith("scores/")}
    assert len(private) >= 3
    text = (work_folder / "a.json").read_text()
    for name in private:
        plain = sha256_file(work_folder / "report" / name)
        assert plain not in text
        keyed = hmac.new(report.manifest.key.encode(), plain.encode(), "sha256")
        assert digests[name] == {"hmacSha256": keyed.hexdigest()}
    # What anybody may have is bound by a digest that anybody can work out.
    shared = sha256_file(work_folder / "report" / "report.md")
    assert digests["report.md"] == {"sha256": shared}
    assert not any(digest in text for digest in report.evidence.values())


def test_a_report_without_a_key_states_no_digest_of_what_is_private(
    work_folder, tmp_path
):
    folder = work_folder / "report"
    report = read_report(folder)
    facts = report.manifest.model_copy(update={"key": ""})
    bare = report.model_copy(update={"manifest": facts})
    statement_of_bare = check(bare, [parse_rule(RULE)])
    text = statement(bare, folder, statement_of_bare, allow_missing=False).decode()
    for name in ("report.json", *(n for n in report.files["scores"])):
        assert sha256_file(folder / name) not in text


@pytest.mark.parametrize(
    "n_bytes", [20, pytest.param(60, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_one_byte_is_found_wherever_it_is(n_bytes, work_folder, tmp_path):
    folder = tmp_path / "r"
    shutil.copytree(work_folder / "report", folder)
    report = read_report(folder)
    names = sorted({n for names in report.files.values() for n in names})
    names = [name for name in (*names, "report.json") if (folder / name).exists()]
    content, rules, allow = read_rules(work_folder / "a.json")
    rng = random.Random(5)
    n_found = 0

    def stated() -> bytes:
        report = read_report(folder)
        judged = check(
            report, [parse_rule(rule) for rule in rules], allow_missing=allow
        )
        return statement(report, folder, judged, allow_missing=allow)

    assert stated() == content
    # Of each file one at least.
    assert len(names) <= n_bytes
    for trial in range(n_bytes):
        name = names[trial % len(names)]
        content_before = (folder / name).read_bytes()
        changed = bytearray(content_before)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(bytes(changed))
        try:
            n_found += name in differences(stated(), content)
        except SparkError:
            n_found += 1  # it is no report any more
        (folder / name).write_bytes(content_before)
    assert n_found == n_bytes
    for _ in range(n_bytes):
        changed = bytearray(content)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        (tmp_path / "b.json").write_bytes(bytes(changed))
        try:
            n_found += bool(wrong_statement(folder, tmp_path / "b.json", content))
        except SparkError:
            n_found += 1
    assert n_found == 2 * n_bytes


def wrong_statement(folder: Path, path: Path, content: bytes) -> list[str]:
    """What a statement says otherwise, without concluding anew."""
    allow_theirs, rules, allow = read_rules(path)
    report = read_report(folder)
    judged = check(report, [parse_rule(rule) for rule in rules], allow_missing=allow)
    statement_now = statement(report, folder, judged, allow_missing=allow)
    assert statement_now == content or statement_now != allow_theirs
    return differences(statement_now, allow_theirs)


def test_other_weights_are_found(work_folder, tmp_path, tiny_base):
    shutil.copytree(work_folder / "lora", tmp_path / "lora")
    path = tmp_path / "lora" / "adapter_model.safetensors"
    weights_before = path.read_bytes()
    rng = random.Random(6)
    start = 8 + int.from_bytes(weights_before[:8], "little")
    known_digest = read_report(work_folder / "report").checkpoints[-1].weights_sha256
    for _ in range(5):
        changed = bytearray(weights_before)
        changed[rng.randrange(start, len(changed))] ^= 1
        path.write_bytes(bytes(changed))
        spec = Spec("ours", (str(tmp_path / "lora"),))
        *_, described = OpenCheckpoints([spec], Loading(base=str(tiny_base))).described
        assert described.weights_sha256 != known_digest
    source = f"ours={tmp_path / 'lora'}"
    reasons = wrong(work_folder / "report", ckpt=[source], base=str(tiny_base))
    assert reasons == {"weights of ours": "are others"}


def test_a_statement_is_an_in_toto_test_result_and_holds_no_row(work_folder):
    attestation = json.loads((work_folder / "a.json").read_text())
    assert attestation["_type"] == "https://in-toto.io/Statement/v1"
    assert attestation["predicateType"].endswith("/test-result/v0.1")
    for subject in attestation["subject"]:
        assert len(subject["digest"]["sha256"]) == 64
    predicate = attestation["predicate"]
    assert predicate["result"] == "FAILED"
    tests = [*predicate["passedTests"], *predicate["failedTests"]]
    assert sorted(tests) == [f"base: {RULE}", f"ours: {RULE}"]
    text = (work_folder / "a.json").read_text()
    report = read_report(work_folder / "report")
    assert report.manifest.digest not in text
    assert report.manifest.key not in text
    assert not any(example.id in text for example in examples())
    texts = [e.text[s.start : s.end] for e in examples() for s in e.spans]
    assert texts
    assert not any(public_text in text for public_text in texts)


def test_what_is_no_statement_and_unknown_names_are_refused(
    work_folder, tmp_path, capsys
):
    (tmp_path / "x.json").write_text("{}")
    call = ["verify", str(work_folder / "report")]
    assert command_line([*call, "--attestation", str(tmp_path / "x.json")]) == 2
    assert f"error: {tmp_path / 'x.json'}: " in capsys.readouterr().err
    assert command_line([*call, "--ckpt", f"our={work_folder / 'lora'}"]) == 2
    error_output = capsys.readouterr().err
    assert "error: --ckpt: 'our' " in error_output
    assert "'ours'?" in error_output


def test_exact_tables_are_those_of_the_evidence_and_checked_to_the_byte(
    plain, tmp_path
):
    """The mean of each set of tokens from its file, against the table of results."""
    folder = tmp_path / "r"
    shutil.copytree(plain, folder)
    exact = ["report", str(folder), "--exact", "--format", "latex,csv"]
    assert command_line(exact) == 0
    sums = pq.read_table(folder / "scores" / "nll.parquet").to_pandas()
    table = pd.read_csv(folder / "exact" / "results.csv")
    nll = table[(table["metric"] == "nll") & (table["group_kind"] == "pooled")]
    nll = nll.set_index(["checkpoint", "variant"])["value"]
    n_compared = 0
    for name in ("base", "ours"):
        for kind in ("pii", "low"):
            of_kind = sums[(sums["variant"] == kind) & (sums["split"] == "train")]
            mean = of_kind[f"num/{name}"].sum() / of_kind["den"].sum()
            assert nll[name, kind] == pytest.approx(mean, rel=1e-12, abs=1e-12)
            n_compared += 1
    assert n_compared == 4

    assert wrong(folder) == {}
    path = folder / "exact" / "results.csv"
    path.write_text(path.read_text() + "\n")
    (folder / "exact" / "mine.csv").write_text("")
    assert set(wrong(folder)) == {"exact/results.csv", "exact/mine.csv"}
