"""Typical calls, as a user's own code has them: a type checker accepts all.

This file is read by mypy, and never run.
"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

import spark_audit as sa
import spark_train

# Rows.
counts = sa.import_rows("reviews.csv", "rows.jsonl", task="reviews", split="train")
rows: list[sa.Example] = sa.read_examples("rows.jsonl", Path("more.jsonl"))
row = sa.Example(
    id="r1",
    task="reviews",
    prompt="Call 555-0142",
    response=" now",
    split="train",
    spans=(sa.Span(5, 13, "PHONE"),),
)
annotated = sa.annotate([*rows, row], patterns={"TICKET": r"T-\d{6}"})
sa.write_examples("annotated.jsonl", annotated)

# Manifest.
base = sa.open_checkpoint("models/base", name="base", device="cpu")
manifest = sa.build_manifest(annotated, base, name="reviews", caliper=0.5)
sa.write_manifest(manifest, Path("m.json"))
same: sa.Manifest = sa.read_manifest("m.json")

# Scores.
scores: sa.Scores = sa.score("runs/mine", manifest, store="scores")
by_name: dict[str, sa.Scores] = sa.score({"base": base, "mine": "runs/mine"}, "m.json")
result: sa.AuditResult = sa.audits.Matched(replicates=2000)({"mine": scores}, manifest)

# Reports.
report = sa.audit("runs/mine", manifest="m.json")
seeds = sa.audit({"mine": ["runs/1", "runs/2"], "plain": "runs/3"}, baseline="plain")
several = sa.audit(
    {"mine": "runs/mine"},
    base="models/base",
    manifest=Path("m.json"),
    audits=["membership", sa.audits.CanaryRank, sa.audits.Matched(rematched=False)],
    scores=by_name,
    output="reports/mine",
    formats=["md", "csv"],
    progress=False,
)
compared: sa.AuditReport = sa.compare("reports/a", Path("reports/b"), baseline="plain")
read = sa.read_report("reports/mine")

# What a report answers.
figures: pd.DataFrame = read.to_frame("contrasts")
reasons: Mapping[str, str] = {state.name: state.reason for state in read.states}
outcomes: list[str] = [rule.state for rule in read.gate("claim >= memory")]
written: list[Path] = read.save("reports/again", ["html", "md"])

# Training.
trained: spark_train.TrainingRun = spark_train.run(
    "data/injected",
    base="models/base",
    output=Path("runs/spark"),
    order=["reviews", "support"],
    settings=spark_train.TrainingSettings(epochs=1, ptpc=spark_train.Ptpc(steps=50)),
    seed=1,
)
for stage in spark_train.stages(
    ["a.jsonl", Path("b.jsonl")],
    base="models/base",
    output="runs/er",
    method="er",
    settings={"lr": 1e-3, "replay.enabled": True},
    dp="fn",
):
    after = sa.audit({stage.task: stage.model}, manifest="m.json", progress=False)
