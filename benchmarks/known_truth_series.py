"""Series of known truth: what the audit ``series`` claims, and what is so.

``python benchmarks/known_truth_series.py --seeds 0:20`` trains tiny models task after
task by plain PEFT, and once by SPARK itself, audits each series by the real command and
writes a line per seed and case; finished ones are kept. It prints how often membership
was claimed and the series said to add to its last checkpoint, and mean figures.

Cases: all text learned, without and with replay, and by SPARK; answers alone; rows
alike that are not audited ("others"), also where held-out rows are of other topics.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from command_line import benchmark_parser, run_benchmark, seed_list
from finished_lines import append, read
from known_truth_models import Lab, run_command
from known_truth_rows import OTHERS, SIZES, TOPICS, plain_rows, planted
from known_truth_training import encoded, fit
from peft import LoraConfig, get_peft_model

from spark_audit.data.examples import Example, Split
from spark_audit.stats.intervals import clopper_pearson

ROWS = 60
"""Of each task: trained ones, held-out ones, and others that are alike."""
CASES = {
    "all text": ("alike", "text", None),
    "all text, replay": ("alike", "replay", None),
    "all text, SPARK": ("alike", "spark", None),
    "answers alone": ("alike", "answers", None),
    "other rows": ("alike", "others", False),
    "other rows, held-out ones of other topics": ("shifted", "others", False),
}
"""Held-out rows, series, and whether membership is true; ``None``: it may be."""
FIGURES = ("auc", "tpr_at_fpr_10", "tpr_at_fpr_1")


class Series:
    """The rows and series of one seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.lab, self.seed = Lab(folder, seed, SIZES["small"]), seed
        used = {r.text[s.start : s.end] for r in self.lab.background for s in r.spans}
        self.members = self._rows("members", TOPICS, "train", used)
        self.others = self._rows("others", TOPICS, "train", used)
        self.held = {
            "alike": self._rows("held", TOPICS, "test", used),
            "shifted": self._rows("shifted", OTHERS, "test", used),
        }

    def _rows(
        self, name: str, topics: Sequence[str], split: Split, used: set[str]
    ) -> list[Example]:
        made = []
        for task, topic in zip(TOPICS, topics, strict=True):
            number = self.lab.number("series", name, task)
            rows = plain_rows(ROWS, [topic], split, number, f"{name}-{task}")
            rng = np.random.default_rng(number)
            told = planted(
                rows, {1: ROWS}, {}, rng=rng, used=used, natural=self.lab.natural
            )
            made += [replace(row, task=task) for row in told]
        return made

    def path(self, name: str) -> Path:
        """The folder of a series; it is trained where it is not there."""
        out = self.lab.folder / "series" / name
        if not out.exists():
            torch.manual_seed(self.lab.number("series", name))
            part = out.with_name(f".{name}")
            self._spark(part) if name == "spark" else self._plain(part, name)
            part.rename(out)
        return out

    def _plain(self, out: Path, name: str) -> None:
        """One LoRA adapter that goes on from task to task, saved after each."""
        lab, rows = self.lab, self.others if name == "others" else self.members
        config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
        model = get_peft_model(lab.base(), config)
        covers = "labels" if name == "answers" else "all"
        for place, task in enumerate(TOPICS, start=1):
            own = [row for row in rows if row.task == task]
            if name == "replay":
                before = [row for row in rows if row.task in TOPICS[: place - 1]]
                rng = np.random.default_rng(lab.number("replay", task))
                chosen = rng.permutation(len(before))[: len(own) // 2]
                own += [before[i] for i in chosen]
            seed = lab.number("series order", name, task)
            read_rows = encoded(own, lab.tokenizer, covers)
            fit(model, read_rows, epochs=12, lr=5e-3, seed=seed)
            lab.save(model, out / f"{place}-{task}")

    def _spark(self, out: Path) -> None:
        from spark_train.cli import run

        settings = {
            "loss.scope": "full",
            "epochs": 12,
            "lr": 5e-3,
            "batch_size": 16,
            "eval_rows": 4,
            "ptpc.steps": 20,
            "ptpc.lr": 1e-3,
            "ptpc.batch_size": 8,
            "ptpc.old_batch_size": 4,
        }
        data = self.lab.data("series-members", self.members)
        command = ["run", "--method", "spark", "--base", str(self.lab.path("base"))]
        command += ["--data", str(data), "--order", ",".join(TOPICS)]
        command += ["-o", str(out), "--seed", str(self.seed), "--device", "cpu"]
        command += ["--quiet", "--set", *(f"{k}={v}" for k, v in settings.items())]
        run_command(run, command)

    def lines(self, held: str, out: Path) -> list[dict[str, Any]]:
        """What the audit says of each series over one manifest."""
        import spark_audit as sa
        from spark_audit.cli.main import run

        base, manifest = str(self.lab.path("base")), out / f"{held}.json"
        data = self.lab.data(f"series-{held}", self.members + self.held[held])
        device = ["--device", "cpu", "--quiet"]
        command = ["manifest", "build", "--base", base, "--data", str(data)]
        run_command(run, [*command, "-o", str(manifest), *device])
        names = {name: one for name, one in CASES.items() if one[0] == held}
        series = [f"{one[1]}={self.path(one[1])}" for one in names.values()]
        folder = out / f"report-{held}"
        command = ["series", "--ckpt", *series, "--base", base, "--jobs", "1"]
        command += ["--manifest", str(manifest), "--order", ",".join(TOPICS)]
        command += ["-o", str(folder), "--format", "json", "--seed", str(self.seed)]
        run_command(run, [*command, *device])
        report = sa.read_report(folder)
        return [
            {"seed": self.seed, "case": name, **told(report, own)}
            for name, (_, own, _) in names.items()
        ]


def told(report: Any, series: str) -> dict[str, Any]:
    """Claim, whether the series adds to its last stage, and figures of one series."""
    (finding,) = (
        one
        for one in report.findings
        if one.audit == "series" and one.checkpoint.startswith(series)
    )
    rows = {
        (row.metric, row.variant): row.value
        for row in report.results
        if (row.audit, row.group) == ("series", "pooled")
        and row.checkpoint == finding.checkpoint
    }
    figures = {
        f"{metric} {of}": rows.get((metric, of))
        for metric in FIGURES
        for of in ("series", "last", "step")
    }
    adds = bool(finding.facts.get("adds"))
    return {"claim": finding.claim, "adds": adds, **figures}


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Markdown: claims with exact limits, and means over seeds."""
    by_case: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_case[line["case"]].append(line)
    head = "| case | membership | adds | AUC series, last, step | TPR at 10% FPR |"
    made = [head, "|---|---|---|---|---|"]
    for case in CASES:
        if not (own := by_case[case]):
            continue
        counts = []
        for hits in (
            sum(line["claim"] == "membership" for line in own),
            sum(line["adds"] for line in own),
        ):
            _, high = clopper_pearson(hits, len(own), level=0.9)
            counts.append(f"{hits}/{len(own)} (at most {high:.0%})")
        means = [
            ", ".join(
                f"{fmean(line[f'{metric} {of}'] for line in own):.3f}"
                for of in ("series", "last", "step")
            )
            for metric in FIGURES[:2]
        ]
        made.append(f"| {case} | {' | '.join([*counts, *means])} |")
    return "\n".join(made)


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument(
        "--seeds", type=seed_list, default="0:20", help="FIRST:END or N,N"
    )
    parser.add_argument("--out", type=Path, default=Path("known_truth_series.jsonl"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for seed in arguments.seeds:
        lines = read(arguments.out, "seed", "case")
        done = {line["case"] for line in lines if line["seed"] == seed}
        if done == {*CASES}:
            continue
        with tempfile.TemporaryDirectory() as folder:
            series = Series(Path(folder) / "lab", seed)
            for held in ("alike", "shifted"):
                for line in series.lines(held, Path(folder)):
                    if line["case"] not in done:
                        append(arguments.out, line)
    print(table(read(arguments.out, "seed", "case")))


if __name__ == "__main__":
    run_benchmark(main, resumes=True)
