"""card.md: a section for the model's card, and its figures as the hub reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spark_audit.errors import visible
from spark_audit.names import BASE
from spark_audit.report.summary_tables import main_rows
from spark_audit.report.table_cells import File, Rendering
from spark_audit.report.writers.markdown import summary
from spark_audit.results import Report

LIMITS = ("low", "high", "null", "null_low", "null_high", "level")
"""What stands beside a figure as the arguments of its metric."""


def write(report: Report, folder: Path, how: Rendering) -> Iterator[File]:
    """``card.md``: metadata with the main figures, then a section; no text."""
    import huggingface_hub.utils
    from huggingface_hub.repocard_data import eval_results_to_model_index

    hub: Any = huggingface_hub.utils  # which does not export it for type checkers
    index = [
        model
        for name, own in evaluations(report).items()
        for model in eval_results_to_model_index(visible(name), own)
    ]
    head = ""
    if index:
        head = f"---\n{hub.yaml_dump({'model-index': index}, sort_keys=False)}---\n\n"
    yield File("card.md", head + summary(report))


def evaluations(report: Report) -> dict[str, list[Any]]:
    """Each checkpoint's main figures as ``EvalResult`` of huggingface_hub.

    What is not estimable, void or withheld is none; the base has none of its own.
    """
    from huggingface_hub import EvalResult

    found: dict[str, list[Any]] = {}
    every = ((title, row) for title, _, rows in main_rows(report) for row in rows)
    for title, row in every:
        if row.checkpoint == BASE or row.status != "ok" or row.value is None:
            continue
        told = {name: getattr(row, name, None) for name in LIMITS}
        told |= {"baseline": getattr(row, "baseline", None), "unit": row.unit or None}
        of = f".{row.of}" if row.of else ""
        result = EvalResult(
            task_type="text-generation",
            task_name="Privacy audit",
            dataset_type=visible(report.manifest.name),
            dataset_name=visible(report.manifest.name),
            dataset_revision=report.manifest.digest,
            metric_type=f"{row.audit}.{row.metric}{of}",
            metric_name=title,
            metric_value=row.value,
            metric_args={k: v for k, v in told.items() if v is not None},
        )
        found.setdefault(row.checkpoint, []).append(result)
    return found
