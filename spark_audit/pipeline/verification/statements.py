"""Compare a gate's statement, and checkpoints' weights, with a report."""

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


def statement_checks(report: Report, folder: Path, path: Path) -> Iterator[Checked]:
    """Yield how a statement of the gate differs from what the report gives.

    Parameters
    ----------
    path
        The file of the statement.
    """
    content, rules, allow_missing = statement.read_rules(path)

    # Judge the report again by the statement's own rules.
    parsed_rules = [parse_rule(rule) for rule in rules]
    verdict = check(report, parsed_rules, allow_missing=allow_missing)
    expected = statement.statement(report, folder, verdict, allow_missing=allow_missing)

    differences = ", ".join(statement.differences(expected, content))
    yield str(path), f"states otherwise: {differences}" if differences else ""


def weight_checks(
    report: Report, ckpt: Sequence[str], base: str | None
) -> Iterator[Checked]:
    """Yield, for each checkpoint, whether its weights are those of the report.

    Parameters
    ----------
    ckpt
        Checkpoints as the user writes them, named as the report names them.
    base
        Path of the base that adapters are attached to.
    """
    from spark_audit.checkpoints.open import OpenCheckpoints

    hashes = {facts.name: facts.weights_sha256 for facts in report.checkpoints}
    specs = parse_specs(list(ckpt))
    for spec in specs:
        if spec.name not in hashes:
            raise InputError(
                f"{spec.name!r} is none of the report's checkpoints",
                where="--ckpt",
                fix=f"{choose(spec.name, hashes)}; name it as NAME=PATH",
            )

    for checkpoint in OpenCheckpoints(specs, Loading(base=base)).described:
        # An adapter brings its base, which the report need not have.
        if checkpoint.name not in hashes:
            continue
        is_equal = checkpoint.weights_sha256 == hashes[checkpoint.name]
        yield f"weights of {checkpoint.name}", "" if is_equal else "are others"
