"""An in-toto statement on a report, to be signed: the outcome of its rules.

``gate --attest`` writes one (:func:`statement`). ``verify`` reads the rules of a given
one (:func:`read_rules`), makes the statement again, and names what differs
(:func:`differences`). A format whose files are never private is added to
:data:`SHARED_FORMATS`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from spark_audit.errors import InputError
from spark_audit.files import parse_json, read_regular, sha256_file
from spark_audit.provenance import canonical_json
from spark_audit.report.disclosure.digests import KEYED, keyed_digest, manifest_facts
from spark_audit.report.gate.judge import RuleOutcome
from spark_audit.results import Report

StatementPart: TypeAlias = dict[str, Any]
"""A JSON object inside a statement."""

STATEMENT = "https://in-toto.io/Statement/v1"

TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"

SHARED_FORMATS = ("html", "md", "csv", "latex", "figures", "card", "eee")
"""Formats whose files never contain private data."""

FORM = "its form"
"""Name of values that stand under no key, and of blanks and the order of keys."""

GATE = "gate"
"""Name of the last item of a statement's configuration, which holds the rules."""


def statement(
    report: Report,
    folder: Path,
    outcomes: Sequence[RuleOutcome],
    *,
    allow_missing: bool,
) -> bytes:
    """Return the outcome of a gate's rules on a report, as JSON.

    Parameters
    ----------
    folder
        The report's folder. The statement names each of its files with a digest; that
        of a private file is keyed by the report, and left out if the report has no key.
    outcomes
        What :func:`spark_audit.report.gate.judge.check` returned.
    """
    manifest_digest = manifest_facts(report.manifest).digest.removeprefix(KEYED)
    configuration = [
        {"name": "manifest", "digest": {"hmacSha256": manifest_digest}},
        *_digests_of_files(report, folder),
    ]

    # List each rule once, in the typed order. The gate comes last: read_rules looks for
    # it there.
    rules = list(dict.fromkeys(outcome.rule for outcome in outcomes))
    configuration.append(
        {
            "name": GATE,
            "annotations": {
                "rules": rules,
                "allowMissing": allow_missing,
                "versions": report.versions,
            },
        }
    )

    # Checkpoints that a rule leaves out are in none of the lists.
    tests_by_state: dict[str, list[str]] = {"ok": [], "missing": [], "tripped": []}
    for outcome in outcomes:
        if outcome.state in tests_by_state:
            test = f"{outcome.whom}: {outcome.rule}"
            tests_by_state[outcome.state].append(test)

    result = "PASSED"
    if tests_by_state["tripped"]:
        result = "FAILED"
    elif tests_by_state["missing"]:
        result = "WARNED"

    return canonical_json(
        {
            "_type": STATEMENT,
            "subject": [
                {
                    "name": checkpoint.name,
                    "digest": {"sha256": checkpoint.weights_sha256},
                }
                for checkpoint in report.checkpoints
            ],
            "predicateType": TEST_RESULT,
            "predicate": {
                "result": result,
                "configuration": configuration,
                "passedTests": tests_by_state["ok"],
                "warnedTests": tests_by_state["missing"],
                "failedTests": tests_by_state["tripped"],
            },
        }
    )


def _digests_of_files(report: Report, folder: Path) -> Iterator[StatementPart]:
    """Yield a digest of each file of a report: keyed, unless anybody may see the file.

    With a bare digest, anybody could try out guesses of a private file. report.json
    contains the key itself, so its bare digest allows no guesses unless it has no key.
    """
    has_key = bool(report.manifest.key)
    public_names: set[str] = set()
    for format_name in SHARED_FORMATS:
        public_names.update(report.files.get(format_name, ()))
    if has_key:
        public_names.add("report.json")

    # A file that is named and missing is left out below.
    names = {"report.json"}
    for names_of_format in report.files.values():
        names.update(names_of_format)

    for name in sorted(names):
        path = folder / name
        if not path.exists():
            continue

        digest = sha256_file(path)
        if name in public_names:
            yield {"name": name, "digest": {"sha256": digest}}
        elif has_key:
            keyed = keyed_digest(report.manifest, digest)
            yield {"name": name, "digest": {"hmacSha256": keyed}}


def read_rules(path: Path) -> tuple[bytes, list[str], bool]:
    """Return a statement's bytes, its rules, and whether missing figures pass.

    Raises
    ------
    InputError
        If the file is no such statement.
    """
    content = read_regular(path)
    document = parse_json(content, place=str(path))
    try:
        is_ours = document["_type"] == STATEMENT
        is_ours = is_ours and document["predicateType"] == TEST_RESULT
        gate = document["predicate"]["configuration"][-1]["annotations"]
        rules = [*gate["rules"]]
        allow_missing = bool(gate["allowMissing"])
        is_ours = is_ours and all(isinstance(rule, str) for rule in rules)
    except (LookupError, TypeError):
        is_ours = False

    if not is_ours:
        raise InputError(
            "is no statement on a report",
            where=str(path),
            fix="give what `spark-audit gate --attest` wrote, without its signature",
        )
    return content, rules, allow_missing


def differences(made_now: bytes, read: bytes) -> list[str]:
    """Return the names of files, models and lists in which two statements differ.

    Parameters
    ----------
    made_now
        The statement on the report as it is.
    read
        The statement that somebody gave.
    """
    values_made_now = _values_by_name(json.loads(made_now))
    values_read = _values_by_name(json.loads(read))
    names = []
    for name in sorted({*values_made_now, *values_read}):
        if values_made_now.get(name) != values_read.get(name):
            names.append(name)

    # All values are equal: blanks differ, or the order of keys.
    if not names and made_now != read:
        return [FORM]
    return names


def _values_by_name(document: object) -> dict[str, list[object]]:
    """Return the values of a statement by the names of its files, models and lists."""
    values: dict[str, list[object]] = {}
    for name, value in _named_values(document):
        values.setdefault(name, []).append(value)
    return values


def _named_values(content: object, name: str = FORM) -> Iterator[tuple[str, object]]:
    """Yield the values of a statement, each with the name of its file, model or list.

    Parameters
    ----------
    name
        Key that the content stands under.
    """
    if isinstance(content, dict) and "name" in content:
        prefix = "weights of " if name == "subject" else ""
        yield f"{prefix}{content['name']}", content
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from _named_values(value, key)
    elif isinstance(content, list):
        yield name, len(content)
        for value in content:
            yield from _named_values(value, name)
    else:
        yield name, content
