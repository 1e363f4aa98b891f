"""Audits as tests call them: an audit's options and those of a run side by side."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits import find
from spark_audit.audits.base import Audit, Context
from spark_audit.manifest.content import seal
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult, Contrast, Row
from spark_audit.results.evidence import Evidence


def made(name: str, options: dict[str, Any]) -> Audit:
    """An audit with its own options, which are taken out of these."""
    audit_class = find(name)
    own_options = [field.name for field in fields(audit_class) if field.name in options]
    return audit_class(**{option: options.pop(option) for option in own_options})


def chosen(*names: str, **options: Any) -> tuple[Audit, ...]:
    """Audits, each with those of the options that are its own."""
    return tuple(made(name, {**options}) for name in names)


def audited(
    name: str, tables: Mapping[str, Any], manifest: Any, **options: Any
) -> AuditResult:
    return made(name, options)(tables, manifest, **options)


def evidence(name: str, tables: Any, manifest: Any, **options: Any) -> Evidence:
    """All that it concludes from; ``preset`` and ``seed`` may be among the options."""
    audit = made(name, options)
    preset = options.get("preset") or manifest.settings.preset
    seed = options.get("seed", 0)
    context = Context({}, preset == "paper", seed, audit.replicates_of(preset))
    return audit.evidence(tables, manifest, context)


def of_frame(frame: pd.DataFrame, values: str, **facts: Any) -> Evidence:
    """Evidence from rows of checkpoints, which share all columns but those named."""
    scores = values.split()
    evidence_parts = []
    for name, units_of_checkpoint in frame.groupby("checkpoint", sort=False):
        units_of_checkpoint = units_of_checkpoint.reset_index(drop=True)
        columns = {
            score: units_of_checkpoint[score].to_numpy(np.float64) for score in scores
        }
        units = units_of_checkpoint.drop(columns=["checkpoint", *scores])
        evidence_parts.append(Evidence.of(units, [(str(name), columns)], facts))
    return Evidence.united(evidence_parts)


def conclude(name: str, known: Evidence, context: Context, **options: Any) -> Any:
    return made(name, options).conclude(known, context)


def plan(name: str, manifest: Any, *, preset: str = "", **options: Any) -> Any:
    chosen = preset or manifest.settings.preset
    return made(name, options).plan(manifest, paper=chosen == "paper")


def check(name: str, *, names: tuple[str, ...] = (), **options: Any) -> None:
    made(name, options).check_names(names)


canary = partial(audited, "canary")
extract = partial(audited, "extract")
matched = partial(audited, "matched")
mia = partial(audited, "mia")
nll = partial(audited, "nll")
noise = partial(audited, "noise")
rank = partial(audited, "rank")
stages = partial(audited, "stages")
twins = partial(audited, "twins")
utility = partial(audited, "utility")


def natural(manifest: Manifest, *, tests: bool = True) -> Manifest:
    """The same with annotated identifiers; without ``tests`` no held-out rows."""
    content = manifest.model_dump(mode="json")
    for example in content["examples"]:
        for span in example["spans"]:
            span["origin"] = "natural"
    if not tests:
        trained_examples = [e for e in content["examples"] if e["split"] == "train"]
        ids = {e["id"] for e in trained_examples}
        content["examples"] = trained_examples
        for section in ("pairs", "unmatched"):
            content[section] = [p for p in content[section] if p["example"] in ids]
        content["membership"]["non_members"] = []
    return seal(content)


def the_one(found: Iterable[Any], **wanted: Any) -> Any:
    """The one row, finding or guard that has these fields."""
    (match,) = (x for x in found if all(getattr(x, k) == v for k, v in wanted.items()))
    return match


def figure(
    result: AuditResult,
    checkpoint: str,
    metric: str,
    variant: str = "",
    group: str = "pooled",
) -> Row:
    where = {"checkpoint": checkpoint, "metric": metric, "variant": variant}
    where["group"] = group
    row: Row = the_one(result.results, **where)
    return row


def change(
    result: AuditResult, checkpoint: str, metric: str, variant: str = "", **more: str
) -> Contrast:
    where = {"checkpoint": checkpoint, "metric": metric, "variant": variant}
    where["group"] = "pooled"
    row: Contrast = the_one(result.contrasts, **where, **more)
    return row


def said(result: AuditResult, checkpoint: str) -> str:
    return " ".join(v for v in result.verdict if v.startswith(f"{checkpoint}:"))


def claims(result: AuditResult, checkpoint: str) -> list[str]:
    return [
        finding.claim for finding in result.findings if finding.checkpoint == checkpoint
    ]
