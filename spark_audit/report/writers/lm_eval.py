"""tables/lm-eval-NAME.json: figures as results of lm-evaluation-harness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spark_audit.errors import visible
from spark_audit.files import write_text
from spark_audit.manifest.schema import Manifest
from spark_audit.report.writers import WRITERS, only_named
from spark_audit.report.writers.card import figures
from spark_audit.results import Report, Row


@WRITERS.register(unasked=only_named)
def write(
    report: Report,
    folder: Path,
    *,
    manifest: Manifest | None = None,
    show_text: bool = False,
) -> list[Path]:
    """Write a file a checkpoint, in which each audit is a task; no text."""
    by_name: dict[str, list[Row]] = {}
    for _, row in figures(report):
        by_name.setdefault(row.checkpoint, []).append(row)
    for row in report.results:
        # The accuracy of single tasks is what its users compare with theirs.
        if (row.audit, row.metric) == ("utility", "accuracy") and row.value is not None:
            by_name.setdefault(row.checkpoint, []).append(row)
    paths: dict[Path, str] = {}
    for name, rows in by_name.items():
        # What a name may hold that no file's may.
        safe = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
        path = folder / "tables" / f"lm-eval-{safe}.json"
        while path in paths:
            path = path.with_stem(f"{path.stem}_")
        paths[path] = json.dumps(results(report, name, rows), indent=1) + "\n"
    for path, text in paths.items():
        write_text(path, text)
    return [*paths]


def results(report: Report, name: str, rows: list[Row]) -> dict[str, Any]:
    """What ``lm_eval.utils.make_table`` reads (version 0.4).

    Limits stand as metrics of their own: an interval over clusters has no standard
    error that would say the same.
    """
    tasks: dict[str, dict[str, Any]] = {}
    for row in rows:
        kind, task = row.grouping
        key = f"spark_audit.{row.audit}" + (f".{task}" if kind == "task" else "")
        told = tasks.setdefault(visible(key), {"alias": visible(key)})
        metric = f"{row.metric}.{row.of}" if row.of else row.metric
        told[f"{metric},none"] = row.value
        told[f"{metric}_stderr,none"] = "N/A"
        for end in ("low", "high"):
            if (limit := getattr(row, end)) is not None:
                told[f"{metric}_{end},none"] = limit
    return {
        "results": tasks,
        "group_subtasks": {key: [] for key in tasks},
        "configs": {
            key: {"task": key, "metadata": {"manifest": report.manifest.digest}}
            for key in tasks
        },
        "versions": {key: report.versions.get("spark-audit", "") for key in tasks},
        "n-shot": dict.fromkeys(tasks, 0),
        "higher_is_better": {key: {} for key in tasks},
        "n-samples": {},
        "model_name": visible(name),
        "date": report.created,
    }
