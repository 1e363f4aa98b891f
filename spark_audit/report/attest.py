"""A statement on a report that others can verify: in-toto, ``test-result`` v0.1.

It holds digests of weights, of the manifest (keyed), and of every file of the report,
the rules and what they came to: no row, no id, no score. Whoever issues it signs it,
with keys that are theirs.

Formats: in-toto Attestation Framework, "Statement v1" and "Test Result".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spark_audit.errors import InputError
from spark_audit.files import read_regular, sha256_file
from spark_audit.provenance import canonical_json
from spark_audit.report.disclosure import KEYED, manifest_facts
from spark_audit.report.gate import Finding
from spark_audit.results import Report

STATEMENT = "https://in-toto.io/Statement/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"


def statement(
    report: Report, folder: Path, found: Sequence[Finding], *, allow_missing: bool
) -> bytes:
    """What the rules of a gate came to on the checkpoints of a report, as JSON.

    Parameters
    ----------
    folder
        Of the report: its files are named, each with its digest.
    found
        Of :func:`spark_audit.report.gate.check`.
    """
    keyed = manifest_facts(report.manifest).digest.removeprefix(KEYED)
    names = {name for names in report.files.values() for name in names}
    files = {
        name: sha256_file(folder / name)
        for name in sorted({*names, "report.json"})
        if (folder / name).exists()
    }
    tests: dict[str, list[str]] = {"ok": [], "missing": [], "tripped": []}
    for one in found:
        tests.setdefault(one.state, []).append(f"{one.whom}: {one.rule}")
    failed, warned = tests["tripped"], tests["missing"]
    result = "FAILED" if failed else "WARNED" if warned else "PASSED"
    return canonical_json(
        {
            "_type": STATEMENT,
            "subject": [
                {"name": one.name, "digest": {"sha256": one.weights_sha256}}
                for one in report.checkpoints
            ],
            "predicateType": TEST_RESULT,
            "predicate": {
                "result": result,
                "configuration": [
                    {"name": "manifest", "digest": {"hmacSha256": keyed}},
                    *({"name": k, "digest": {"sha256": v}} for k, v in files.items()),
                    {
                        "name": "gate",
                        "annotations": {
                            "rules": list(dict.fromkeys(one.rule for one in found)),
                            "allowMissing": allow_missing,
                            "versions": report.versions,
                        },
                    },
                ],
                "passedTests": tests["ok"],
                "warnedTests": warned,
                "failedTests": failed,
            },
        }
    )


def read_rules(path: Path) -> tuple[bytes, list[str], bool]:
    """A statement's bytes, its rules, and whether missing figures pass.

    Raises
    ------
    InputError
        If it is none of ours.
    """
    content = read_regular(path)
    try:
        whole = json.loads(content)
        gate = whole["predicate"]["configuration"][-1]["annotations"]
        rules, allow_missing = gate["rules"], gate["allowMissing"]
        known = [whole["_type"], whole["predicateType"]] == [STATEMENT, TEST_RESULT]
    except (ValueError, LookupError, TypeError):
        known = False
    if not known or not all(isinstance(one, str) for one in rules):
        fix = "give what `spark-audit gate --attest` wrote, without its signature"
        raise InputError("is no statement on a report", where=str(path), fix=fix)
    return content, rules, bool(allow_missing)


def differences(ours: bytes, theirs: bytes) -> list[str]:
    """What a statement says otherwise than one made now, by name."""
    if ours == theirs:
        return []
    here, there = (_named(json.loads(one)) for one in (ours, theirs))
    names = sorted(k for k in {*here, *there} if here.get(k) != there.get(k))
    return names or ["its form"]


def _named(whole: Any) -> dict[str, Any]:
    """Each part of a statement under the name of the file or model it is of."""
    parts: dict[str, Any] = {}
    try:
        predicate = dict(whole["predicate"])
        for one in predicate.pop("configuration"):
            parts[str(one["name"])] = one
        for one in whole["subject"]:
            parts[f"weights of {one['name']}"] = one
        return parts | {str(k): v for k, v in predicate.items()}
    except (LookupError, TypeError, ValueError):
        return {"its form": whole}
