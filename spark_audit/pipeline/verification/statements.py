"""Whether a statement and weights are those of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from spark_audit.checkpoints.specs import Loading, parse_specs
from spark_audit.errors import InputError, choose
from spark_audit.pipeline.verification.checked import Checked
from spark_audit.report.gate import statement
from spark_audit.report.gate.judge import check
from spark_audit.report.gate.rules import parse_rule
from spark_audit.results import Report


def attested(report: Report, folder: Path, path: Path) -> Iterator[Checked]:
    """Yield whether a statement is the one that the report gives."""
    content, rules, allow_missing = statement.read_rules(path)
    asked = [parse_rule(one) for one in rules]
    found = check(report, asked, allow_missing=allow_missing)
    now = statement.statement(report, folder, found, allow_missing=allow_missing)
    told = ", ".join(statement.differences(now, content))
    yield str(path), f"states otherwise: {told}" if told else ""


def weights(report: Report, ckpt: Sequence[str], base: str | None) -> Iterator[Checked]:
    """Yield whether checkpoints are those that the report is of."""
    from spark_audit.checkpoints.open import OpenCheckpoints

    known = {one.name: one.weights_sha256 for one in report.checkpoints}
    specs = parse_specs(list(ckpt))
    for spec in specs:
        if spec.name not in known:
            what = f"{spec.name!r} is none of the report's checkpoints"
            fix = f"{choose(spec.name, known)}; name it as NAME=PATH"
            raise InputError(what, where="--ckpt", fix=fix)
    for one in OpenCheckpoints(specs, Loading(base=base)).described:
        if one.name in known:
            same = one.weights_sha256 == known[one.name]
            yield f"weights of {one.name}", "" if same else "are others"
