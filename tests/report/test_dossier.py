"""The dossier: what an officer asks stands there, in order, on four sheets, no text."""

import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from audited import matched
from made_reports import checkpoint, guard, manifest_facts, said
from synthetic import Case, make_case  # noqa: F401

from spark_audit import sentences
from spark_audit.audits import about, all_audits
from spark_audit.cli.main import run as command_line
from spark_audit.files import sha256_file
from spark_audit.manifest.file import write_manifest
from spark_audit.report.assemble import assemble
from spark_audit.report.attacks import attacks
from spark_audit.report.checkpoint_states import SHAPES, checkpoint_states
from spark_audit.report.folder import read_report, write_report
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.tried import OUTCOMES
from spark_audit.report.writers.dossier import (
    MAX_EXPOSED_ROWS,
    dossier_words,
    exposed,
    write_dossier,
)
from spark_audit.report.writers.writer import WriterInput
from spark_audit.results import (
    AuditResult,
    Finding,
    Report,
    Row,
)
from spark_audit.results.findings import DETECTED, SEVERITY

EVIL = "<script>alert(1)</script>"
WORST = ("e007-0", "e003-0", "e031-0")
"""Rows whose identifiers the leaking checkpoint gives away most, in order."""
QUIET = {
    "canary": "memorisation of canaries not detected: mean exposure 1.71 bits "
    "(full) where chance gives 1.40 [0.73, 2.25], 0 of 12 canaries ranked first of "
    "128; up to 26.5% ranked first are not excluded "
    "(exact 95% limit).",
    "twins": "no memory of identifiers shown among twins: they rank ahead by -0.05 "
    "[-0.24, 0.14] bits more than on the base (0 without memory).",
    "mia": "membership was not detected: the AUC of response changed by 0.047 "
    "[-0.008, 0.101] since the untrained model is the clearest of 6 scores, corrected "
    "p 0.56; stronger attacks cannot be excluded.",
    "extract": "against injected identifiers of rows never trained on (beyond the "
    "base's own difference): no difference detected, 0.0 [-4.0, 4.0] points; "
    "differences below 5.7 points go unseen. Up to 1.8% cannot be excluded.",
}
"""What the other audits say where nothing was found."""
CLAIMED: dict[str, dict[str, Any]] = {
    "canary": {"unit": "bits", "mde": 1.091, "value": 1.71, "no_effect": 1.4},
    "twins": {"unit": "bits", "mde": 0.27, "value": -0.05, "low": -0.24, "high": 0.14},
    "mia": {"unit": "", "mde": 0.113, "value": 0.047, "low": -0.008, "high": 0.101},
    "extract": {"unit": "points", "mde": 5.7, "value": 0.0, "low": -4.0, "high": 4.0},
}
"""On what figures."""


def leaking(key: str, nll: np.ndarray) -> np.ndarray:
    """Identifiers of training rows are a nat a token likelier; of three rows more."""
    drop = 1.0 + 0.05 * (int(key[1:4]) % 5)
    if key in WORST:
        drop = 6.0 - WORST.index(key)
    leaking_nll = nll.copy()
    if int(key[1:4]) < 60:
        leaking_nll[10:12] -= drop
    return leaking_nll


def same(key: str, nll: np.ndarray) -> np.ndarray:
    return nll + 0.02 * (int(key[1:4]) % 3)


@pytest.fixture(scope="module")
def case(make_case) -> Case:  # noqa: F811
    return make_case(sources=60, tests=30, gap=7.0, caliper=9.0)


def quiet(audit: str, name: str, **more: Any) -> Finding:
    fields: dict[str, Any] = {
        "value": 0.05,
        "no_effect": 0.0,
        "p": 0.6,
        "metric": "auc",
    }
    fields |= CLAIMED[audit] | {"family": "primary"} | more
    return said(audit, name, "nothing_shown", QUIET[audit], **fields)


MADE: dict[tuple[str, ...], AuditResult] = {}


def audited(case: Case, names: tuple[str, ...]) -> AuditResult:
    """What the audit says of the one case, made once for the same checkpoints."""
    if names not in MADE:
        changes = {name: leaking if "leaky" in name else same for name in names}
        tables = case.tables(**changes)
        MADE[names] = matched(tables, case.manifest, placebo_draws=2, rematched=False)
    return MADE[names]


def a_report(case: Case, names: tuple[str, ...], **more: Any) -> Report:
    """Matched figures as the audit makes them; the sentences of the others."""
    results = {"matched": audited(case, names)}
    for audit in QUIET:
        findings = [quiet(audit, name) for name in names]
        row: dict[str, Any] = {
            "audit": audit,
            "metric": "auc",
            "value": 0.5,
            "n": 40,
            "clusters": 40,
        }
        rows = [Row(checkpoint=name, **row) for name in names]
        results[audit] = AuditResult(results=rows, findings=findings)
    manifest = manifest_facts(digest=case.manifest.digest)
    report_fields: dict[str, Any] = {
        "status": "complete",
        "command": ["spark-audit", "all"],
        "manifest": manifest,
        "checkpoints": [checkpoint(name, base="base") for name in names],
    }
    return assemble(results, **{**report_fields, **more})


def with_evidence(report: Report, case: Case, folder: Path) -> Report:
    """The report in a folder with the evidence that it was made from."""
    evidence = audited(
        case, tuple(checkpoint_facts.name for checkpoint_facts in report.checkpoints)
    ).evidence
    path = folder / "scores" / "spans.parquet"
    evidence.write(path)
    report_with_evidence = report.model_copy(
        update={"evidence": {path.name: sha256_file(path)}}
    )
    write_report(report_with_evidence, folder, formats=["json"])
    return report_with_evidence


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html.partition("<body>")[2]).split())


@pytest.fixture
def folder(case, tmp_path) -> Path:
    with_evidence(a_report(case, ("calm", "leaky")), case, tmp_path)
    return tmp_path


def identifiers(case: Case) -> set[str]:
    return {e.text[s.start : s.end] for e in case.manifest.examples for s in e.spans}


def test_an_attack_is_tested_or_void_or_not_tested_or_not_applicable(case):
    report = a_report(case, ("calm",))
    rows = [r for r in report.results if r.audit in ("matched", "mia")]
    gone: dict[str, Any] = {
        "status": "not_estimable",
        "note": "no canaries",
        "metric": "nll",
    }
    rows.append(Row(audit="canary", checkpoint="calm", **gone))
    findings = [f for f in report.findings if f.audit in ("matched", "mia")]
    findings = [
        f.model_copy(update={"status": "invalid"}) if f.audit == "mia" else f
        for f in findings
    ]
    less = report.model_copy(update={"results": rows, "findings": findings})
    tried = attacks(less, checkpoint_states(less))
    states_by_attack = {
        attack["name"]: (attack["state"], attack["why"]) for attack in tried
    }
    assert states_by_attack == {
        "identifiers": ("tested", ""),
        "canaries": ("not applicable", "no canaries"),
        "twins": ("not tested", "this audit was not run"),
        "membership": ("void", "void"),
        "extraction": ("not tested", "this audit was not run"),
    }
    prepared = PreparedReport(less)
    (dossier_path,) = write_dossier(prepared, Path("nowhere"), WriterInput())
    text = text_of(dossier_path.content)
    assert sentences.render("dossier.not_run") in text
    # The figure of an attack that is void is not shown.
    assert "0.047" not in text


def test_every_detection_outcome_and_attack_has_its_words():
    detections = {claim for claim, severity in SEVERITY.items() if severity >= DETECTED}
    keys = [*(f"risk.{key}" for key in detections)]
    keys += [f"outcome.{key}" for key in OUTCOMES]
    keys += [f"residual.{key}" for key in SHAPES]
    assert all(map(dossier_words, keys))
    for name in all_audits():
        assert sentences.knows(f"audit.{name}.asks") == bool(about(name).covers)


def test_exposed_rows_are_numbers_in_order_and_ids_only_if_asked(case, folder):
    report = read_report(folder)
    (leaky,) = (state for state in checkpoint_states(report) if state.state == "LEAKS")
    rows: Any = exposed(report, folder, leaky)
    ids = pd.read_parquet(folder / "scores" / "spans.parquet")["example"].unique()
    numbers = [f"row {1 + list(ids).index(worst)}" for worst in WORST]
    assert [row["id"] for row in rows[:3]] == numbers
    assert len(rows) == MAX_EXPOSED_ROWS
    assert not any(row["texts"] for row in rows)
    named: Any = exposed(report, folder, leaky, manifest=case.manifest)
    assert [row["id"] for row in named[:3]] == list(WORST)
    own_strings = {s for row in named for s in row["texts"]}
    assert own_strings
    assert own_strings <= identifiers(case)
    for row in named:
        text = case.manifest.by_id[row["id"]].text
        assert all(string in text for string in row["texts"])
    # No figure of a row stands anywhere: its digits are those of its id.
    ((_, html, _),) = write_dossier(PreparedReport(report), folder, WriterInput())
    exposed_part = text_of(html[html.index('id="exposed"') : html.index('id="next"')])
    assert not re.search(r"\d\.\d", exposed_part)


@pytest.mark.parametrize("kind", ["missing", "other", "damaged"])
def test_evidence_that_is_not_the_reports_names_no_row(kind, case, folder):
    report = read_report(folder)
    path = folder / "scores" / "spans.parquet"
    (leaky,) = (state for state in checkpoint_states(report) if state.state == "LEAKS")
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(b"PAR1 nothing")
    if kind == "damaged":
        report = report.model_copy(update={"evidence": {path.name: sha256_file(path)}})
    why = exposed(report, folder, leaky)
    assert isinstance(why, str)
    assert why.startswith("Not available: ")


def test_names_are_text_and_the_page_loads_and_runs_nothing(
    case, tmp_path, monkeypatch
):
    report = a_report(case, ("calm",))
    evil = report.model_copy(
        update={
            "manifest": report.manifest.model_copy(update={"name": EVIL}),
            "checkpoints": [checkpoint("calm", format=EVIL)],
            "guards": [guard(EVIL, EVIL, None)],
            "command": ["spark-audit", EVIL],
            "caveats": [EVIL],
        }
    )
    (path,) = write_report(evil, tmp_path, formats=["dossier"])
    html = path.read_text("utf-8")
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 5
    assert "\x1b" not in html
    assert not re.search(r"(?:src|href)=\"(?!data:)|url\(|@import", html)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy[1].startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert "script-src" not in policy[1]


def test_it_is_written_only_where_it_is_named_and_goes_with_its_report(folder):
    assert command_line(["report", str(folder), "--format", "md"]) == 0
    assert not (folder / "dossier.html").exists()
    call = ["report", str(folder), "--format", "dossier"]
    assert command_line(call) == 0
    path = folder / "dossier.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    report = read_report(folder)
    assert report.files["dossier"] == ["dossier.html"]
    write_report(report, folder)
    assert path.exists(), "the same report, rendered again in the usual formats"
    write_report(
        report.model_copy(update={"created": "later"}), folder, formats=["json"]
    )
    assert path.exists(), "another report on the same subject writes it anew"
    assert read_report(folder).created == "later"
    assert read_report(folder).files["dossier"] == ["dossier.html"]


def test_with_identifiers_it_is_for_its_owner_only_and_says_so(case, folder):
    manifest_path = folder / "m.json"
    write_manifest(case.manifest, manifest_path)
    call = [
        "report",
        str(folder),
        "--format",
        "dossier",
        "--manifest",
        str(manifest_path),
    ]
    assert command_line(call) == 0
    path = folder / "dossier.html"
    rows_split = sentences.render("dossier.rows_split", trained=60, held_out=30)
    assert rows_split in path.read_text("utf-8")
    assert not any(text in path.read_text("utf-8") for text in identifiers(case))
    assert command_line([*call, "--show-text"]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    html = path.read_text("utf-8")
    assert "SHOWS IDENTIFIERS" in html
    assert any(text in html for text in identifiers(case))
