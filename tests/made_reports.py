"""Reports that are made by hand: what a test does not give is the same for all."""

from collections.abc import Mapping
from typing import Any

from spark_audit.report.audit_report import AuditReport
from spark_audit.report.figures_line import with_figures
from spark_audit.results import (
    CheckpointFacts,
    Contrast,
    Finding,
    Guard,
    ManifestFacts,
    Report,
    Row,
)
from spark_audit.results.rows import group_parts

TEST = {"p": 0.0001, "family": "primary", "p_adjusted": 0.003}
"""A primary test that holds after correction."""

CREATED = "2026-01-01T00:00:00+00:00"
COUNTS = dict.fromkeys(("n_sources", "n_clusters", "n_spans", "n_tokens"), 9)


def checkpoint(name: str, **columns: Any) -> CheckpointFacts:
    fields = {"name": name, "source": name, "format": "hf-folder", "dtype": "float32"}
    fields |= {"weights_sha256": "0" * 64, "model_id": "1" * 64}
    return CheckpointFacts.model_validate(fields | columns)


def manifest_facts(name: str = "m", digest: str = "d" * 64, **counts: int) -> Any:
    return ManifestFacts(name=name, digest=digest, **(COUNTS | counts))


def made_report(*names: str, **columns: Any) -> AuditReport:
    """A complete report of ``names``, which has no figure but those in ``columns``."""
    report_fields: Mapping[str, Any] = {
        "status": "complete",
        "command": ["spark-audit", "all"],
        "created": CREATED,
        "versions": {},
        "manifest": manifest_facts(),
        "checkpoints": [checkpoint(name) for name in names],
        "results": [],
        "contrasts": [],
        "guards": [],
    }
    return with_figures(AuditReport.model_validate({**report_fields, **columns}))


def group_fields(group: str) -> dict[str, str]:
    """The fields of a row for a group that is written as one text, as ``type:SSN``."""
    group_kind, value = group_parts(group)
    return {"group_kind": group_kind, "group_value": value}


def figure(name: str, place: str, value: float | None = 0.25, **columns: Any) -> Any:
    """The row ``AUDIT|METRIC|VARIANT|GROUP`` with limits; a contrast with a baseline.

    ``value`` of ``None``: it is not estimable.
    """
    audit, metric, variant, group, *_ = [*place.split("|"), "", ""]
    fields: dict[str, Any] = {"audit": audit, "metric": metric, "variant": variant}
    fields |= group_fields(columns.pop("group", group) or "pooled")
    fields |= {"checkpoint": name, "value": value}
    fields |= {"n": 90, "clusters": 12}
    if value is None:
        fields |= {"status": "not_estimable", "note": "no row"}
    else:
        fields |= {"low": value - 0.125, "high": value + 0.25}
        fields |= {"interval_method": "jackknife-t"}
    row_class = Contrast if "baseline" in columns else Row
    return row_class.model_validate(fields | columns)


def said(audit: str, name: str, claim: Any, text: str = "", **columns: Any) -> Finding:
    """A finding with words of its own: ``text``, or ``otherwise`` once withdrawn."""
    facts = {"text": text, "otherwise": columns.pop("otherwise", "otherwise.")}
    facts |= columns.pop("facts", {})
    columns |= group_fields(columns.pop("group", "pooled"))
    return Finding(
        audit=audit, checkpoint=name, claim=claim, says="said", facts=facts, **columns
    )


def guard(name: str, text: str, passed: bool | None = False, of: str = "") -> Guard:
    """A guard with words of its own."""
    facts = {"text": text}
    return Guard(
        name=name, checkpoint=of, passed=passed, says="guard.said", facts=facts
    )


def memory(name: str, claim: Any, value: float, **columns: Any) -> Finding:
    fields = {"metric": "memory", "unit": "nats", "no_effect": 0.0, "value": value}
    return said("matched", name, claim, "memory.", **{**fields, **TEST, **columns})


def attacked_report(*findings: Finding, **columns: Any) -> Report:
    names = ["base", *dict.fromkeys(finding.checkpoint for finding in findings)]
    rows = [figure(name, "matched|memory", 0.0, unit="nats") for name in names]
    return made_report(*names, results=rows, findings=list(findings), **columns)


def many_clean(count: int) -> Report:
    """A leak, and clean checkpoints."""
    leaking = memory("leak", "memory", -0.5)
    clean = [
        memory(f"clean-{k}", "nothing_shown", 0.01, at_most=-0.01 * k)
        for k in range(1, count)
    ]
    return attacked_report(leaking, *clean)


def mixed_cells(count: int) -> Report:
    """Every kind of cell: found, nothing found, void, confounded, not tested."""
    findings = []
    for k in range(count):
        name = f"checkpoint-{k}"
        if k % 4 == 0:
            findings.append(memory(name, "memory", -0.5))
        elif k % 4 == 1:
            findings.append(memory(name, "memory", -0.5, status="void"))
        elif k % 4 == 2:
            findings.append(memory(name, "confounded", -0.5))
        else:
            findings.append(memory(name, "nothing_shown", 0.01, at_most=-0.1))
        findings.append(said("canary", name, "not_tested", "no canaries."))
        claim = "membership" if k % 3 == 0 else "nothing_shown"
        findings.append(membership(name, claim))

    guards = [
        guard(f"check {k}", f"check {k} is in doubt.", passed=None, of="")
        for k in range(8)
    ]
    guards.append(guard("broken_model", "is broken.", of="checkpoint-1"))
    return attacked_report(*findings, guards=guards)


def membership(name: str, claim: Any) -> Finding:
    fields = {"metric": "auc_excess", "unit": "AUC", "no_effect": 0.0, "value": 0.2}
    return said("mia", name, claim, "membership.", at_most=0.3, **{**fields, **TEST})
