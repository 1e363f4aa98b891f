"""An in-toto statement on a report: what its rules came to, to be signed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from spark_audit.errors import InputError
from spark_audit.files import parse_json, read_regular, sha256_file
from spark_audit.provenance import canonical_json
from spark_audit.report.disclosure.digests import KEYED, keyed_digest, manifest_facts
from spark_audit.report.gate.judge import RuleOutcome
from spark_audit.results import Report, grouped

STATEMENT = "https://in-toto.io/Statement/v1"

TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"

SHARED = ("html", "md", "csv", "latex", "figures", "card")
"""Formats whose files never hold anything private, by their writers."""


def statement(
    report: Report, folder: Path, found: Sequence[RuleOutcome], *, allow_missing: bool
) -> bytes:
    """Return the outcome of a gate's rules on a report, as JSON.

    Parameters
    ----------
    folder
        Of the report: its files are named, each with its digest. Of private files it
        is keyed by the report, and left out where a report has no key.
    found
        Of :func:`spark_audit.report.gate.judge.check`.
    """
    keyed = manifest_facts(report.manifest).digest.removeprefix(KEYED)
    parts = [{"name": "manifest", "digest": {"hmacSha256": keyed}}]
    shared_files = {n for kind in SHARED for n in report.files.get(kind, ())}
    for name in sorted({"report.json", *chain(*report.files.values())}):
        path = folder / name
        if not path.exists():
            continue
        digest = sha256_file(path)
        # Whatever is unknown of a private file could be tried out against its digest.
        # The key is in report.json itself: nobody can try that out.
        if name in shared_files or (name == "report.json" and report.manifest.key):
            parts.append({"name": name, "digest": {"sha256": digest}})
        elif report.manifest.key:
            keyed = keyed_digest(report.manifest, digest)
            parts.append({"name": name, "digest": {"hmacSha256": keyed}})
    gate = {
        "rules": list(dict.fromkeys(one.rule for one in found)),
        "allowMissing": allow_missing,
        "versions": report.versions,
    }
    passed, warned, failed = (
        [f"{one.whom}: {one.rule}" for one in found if one.state == state]
        for state in ("ok", "missing", "tripped")
    )
    return canonical_json(
        {
            "_type": STATEMENT,
            "subject": [
                {"name": one.name, "digest": {"sha256": one.weights_sha256}}
                for one in report.checkpoints
            ],
            "predicateType": TEST_RESULT,
            "predicate": {
                "result": "FAILED" if failed else "WARNED" if warned else "PASSED",
                "configuration": [*parts, {"name": "gate", "annotations": gate}],
                "passedTests": passed,
                "warnedTests": warned,
                "failedTests": failed,
            },
        }
    )


def read_rules(path: Path) -> tuple[bytes, list[str], bool]:
    """Return a statement's bytes, its rules, and whether missing figures pass.

    Raises
    ------
    InputError
        If it is none of ours.
    """
    content = read_regular(path)
    whole = parse_json(content, place=str(path))
    try:
        gate = whole["predicate"]["configuration"][-1]["annotations"]
        known = [whole["_type"], whole["predicateType"]] == [STATEMENT, TEST_RESULT]
        known = known and all(isinstance(one, str) for one in gate["rules"])
        rules, allow_missing = [*gate["rules"]], bool(gate["allowMissing"])
    except (LookupError, TypeError):
        known = False
    if not known:
        fix = "give what `spark-audit gate --attest` wrote, without its signature"
        raise InputError("is no statement on a report", where=str(path), fix=fix)
    return content, rules, allow_missing


def differences(ours: bytes, theirs: bytes) -> list[str]:
    """Return the parts in which a statement differs from one made now, by name."""
    here, there = (
        grouped(_parts(json.loads(one)), itemgetter(0)) for one in (ours, theirs)
    )
    names = sorted(k for k in {*here, *there} if here.get(k) != there.get(k))
    return names or ["its form"] * (ours != theirs)


def _parts(whole: Any, name: str = "its form") -> Iterator[tuple[str, Any]]:
    """Yield the parts of a statement, each with the name of its file, model or list."""
    if isinstance(whole, dict) and "name" in whole:
        place = "weights of " * (name == "subject")
        yield f"{place}{whole['name']}", whole
    elif isinstance(whole, dict):
        for key, part in whole.items():
            yield from _parts(part, key)
    elif isinstance(whole, list):
        yield name, len(whole)
        for part in whole:
            yield from _parts(part, name)
    else:
        yield name, whole
