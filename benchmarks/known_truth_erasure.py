"""Erasure audited: verdicts on tiny models of which it is known what they forgot.

``python benchmarks/known_truth_erasure.py --seeds 0:20`` makes for each seed its own
rows, base, model before erasure, retrained reference and eight models after erasure
(``known_truth_erasure_models.py``), measures by plain torch what each remembers, and
audits all by the real command. A finished seed is a line of ``--out``; the same command
resumes. ``--table`` only prints the table of what there is, in Markdown.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from command_line import (
    benchmark_parser,
    check_finished_lines,
    run_benchmark,
    seed_list,
)
from finished_lines import Line, append, read
from known_truth_erasure_models import MODELS, SHAPES, erasure_rows
from known_truth_erasure_table import WAYS, markdown
from known_truth_erasure_truth import measured
from known_truth_models import BUILD, Lab, run_command
from known_truth_rows import SIZES
from transformers.utils import logging

HERE = Path(__file__).parent

COPIES = ("--quantize", "int8", "int4", "--relearn")


def audited(lab: Lab, out: Path) -> dict[str, Any]:
    """Return what the report of each way says of each model after erasure."""
    import spark_audit as sa
    from spark_audit.cli.main import run

    base = str(lab.path("base"))
    manifest = str(out / "manifest.json")
    forget_ids = out / "forget.txt"
    ids = [row.id for row in lab.rows(["forget"])]
    forget_ids.write_text("\n".join(ids) + "\n", encoding="utf-8")
    audited_rows = lab.data("audited", lab.rows(["forget", "retained", "held_out"]))
    other_rows = lab.data("relearn", lab.rows(["relearn"]))

    common = ["--device", "cpu", "--quiet", "--scores", str(out / "scores")]
    build = ["manifest", "build", "--base", base, "--data", str(audited_rows)]
    run_command(run, [*build, "-o", manifest, *common])

    reports = {}
    for number, way in enumerate(WAYS):
        has_reference = way.endswith("reference")
        names = ["before", *SHAPES]
        if has_reference:
            names.append("reference")
        folder = out / f"report-{number}"
        command = ["erasure", "--ckpt", *(f"{name}={lab.path(name)}" for name in names)]
        command += ["--base", base, "--manifest", manifest, "--before", "before"]
        command += ["--forget", str(forget_ids), "-o", str(folder), "--format", "json"]
        command += ["--seed", str(lab.seed), "--jobs", "1"]
        if has_reference:
            command += ["--retrained", "reference"]
        if way.startswith("copies"):
            command += [*COPIES, str(other_rows)]
        run_command(run, [*command, *common])
        reports[way] = concluded(sa.read_report(folder))
    return reports


def concluded(report: Any) -> dict[str, Any]:
    """Return verdicts, p, margins and failed guards of a report."""
    verdicts = {}
    for finding in report.findings:
        if finding.audit == "erasure" and finding.checkpoint in SHAPES:
            verdicts[finding.checkpoint] = {
                "verdict": finding.verdict,
                "says": finding.says,
                "p": _short(finding.p),
                "p_adjusted": _short(finding.p_adjusted),
            }
    margins = [
        {
            "checkpoint": record["checkpoint"],
            "part": record["part"],
            "remaining": _short(record["remaining"]),
            "margin": _short(record["margin"]),
            "margin_to_expect": _short(record["margin_to_expect"]),
        }
        for record in report.tables.get("erasure_margins", [])
    ]
    failed = [guard.name for guard in report.guards if guard.passed is False]
    return {"verdicts": verdicts, "margins": margins, "failed guards": failed}


def _short(value: float | None) -> float | None:
    """Return a figure with four digits, as a line holds it."""
    return None if value is None else float(f"{value:.4g}")


def line_of(seed: int, folder: Path) -> Line:
    """Make and audit the models of a seed; return its line."""
    lab = Lab(folder / "lab", seed, SIZES["small"])
    lab.sets = erasure_rows(lab)

    start = time.process_time()
    for name in ("base", *MODELS):
        lab.path(name)
    made = time.process_time()
    figures = measured(lab)
    measured_at = time.process_time()
    reports = audited(lab, folder)
    end = time.process_time()
    return {
        "seed": seed,
        "tree": tree_of_audits(),
        "figures": figures,
        "reports": reports,
        "seconds": {
            "models": round(made - start, 1),
            "truth": round(measured_at - made, 1),
            "audits": round(end - measured_at, 1),
        },
    }


def tree_of_audits() -> str:
    """Return git's name of the tree of the package, as it was committed."""
    command = ["git", "-C", str(HERE.parent), "rev-parse", "--short=12"]
    done = subprocess.run(
        [*command, "HEAD:spark_audit"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def main() -> None:
    """Run what is missing, and write the table."""
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument(
        "--seeds", type=seed_list, default="0:20", help="FIRST:END or N,N"
    )
    out = HERE / "known_truth_erasure.jsonl"
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--keep", type=Path, help="folder that keeps models")
    parser.add_argument("--table", action="store_true", help="only print the table")
    options = parser.parse_args()
    if options.table:
        check_finished_lines(options.out)
        print(markdown(read(options.out, "seed", "figures", "reports")), end="")
        return

    warnings.simplefilter("ignore")
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    BUILD.update(MODELS)
    done = {line["seed"] for line in read(options.out, "seed", "figures", "reports")}
    for seed in options.seeds:
        if seed in done:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.keep or Path(temporary)) / f"seed-{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            line = line_of(seed, folder)
        append(options.out, line)
        print(seed, line["seconds"], flush=True)
    print(markdown(read(options.out, "seed", "figures", "reports")), end="")


if __name__ == "__main__":
    run_benchmark(main, resumes=True)
