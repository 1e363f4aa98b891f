"""Typical slips: a type checker refuses each, in the line marked `slip`.

This file is read by mypy, and never run.
"""

import spark_audit as sa
import spark_train

base = sa.open_checkpoint("models/base")
manifest = sa.read_manifest("m.json")
report = sa.read_report("reports/mine")

sa.audit("runs/mine", bas="models/base")  # slip
sa.audit("runs/mine", manifest=3)  # slip
sa.audit("runs/mine", "m.json", "models/base")  # slip
sa.audit("runs/mine", audits=[3])  # slip
sa.audit("runs/mine", scores={"mine": "scores"})  # slip
sa.score("runs/mine", manifest, stor="scores")  # slip
_ = sa.score("runs/mine", manifest).manifest  # slip
sa.open_checkpoint("runs/mine", devise="cpu")  # slip
sa.build_manifest([], base, name="m", calliper=0.5)  # slip
sa.compare("reports/a", "reports/b", base_line="plain")  # slip
_ = report.state  # slip
spark_train.run("data", base="models/base", output="runs/a", sed=1)  # slip
spark_train.TrainingSettings(epoch=1)  # slip
