"""Checkpoints of plain code and of another project's, audited as a stranger would.

``python benchmarks/foreign.py --model MODEL --data DATA --open-unlearning CLONE --out
OUT`` trains MODEL on rows of DATA (a folder per task, with ``train.jsonl`` of ``text``
and ``label``) by transformers and PEFT alone: three series of adapters; a model from
which three persons are erased, exactly and approximately; that model unlearned by the
trainers of a clone of github.com/locuslab/open-unlearning. The real commands audit all
of them. It prints what they say beside what plain code measures; what is in OUT is
kept, and not made again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command_line import (
    benchmark_parser,
    check_files,
    check_folder,
    check_model,
    run_benchmark,
    run_spark_audit,
    whole_number,
)
from known_truth_relearn import LEFT_OUT
from known_truth_series import told
from peft import LoraConfig, PeftModel, get_peft_model
from sklearn.metrics import roc_auc_score
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Trainer,
    TrainingArguments,
)

import spark_audit as sa
from spark_audit.report.checkpoint_states import checkpoint_states

PARTS = {"member": 120, "held": 120, "retain": 60, "other": 120, "relearn": 60}
"""Rows of a task: ``member`` and ``held`` are audited, the others in no manifest."""
OF_PERSON = 3
"""Rows of one person, all of one task."""
EPOCHS, BATCH, RATE, LORA_RATE = 8, 16, 1e-3, 2e-3
REPLAYED = 0.2
"""Share of the rows of earlier tasks that the series with replay reads again."""
ASCENT_RATE, ASCENT_STEPS = 1e-4, 50
METHODS: dict[str, dict[str, float]] = {
    "npo.NPO": {"beta": 0.1},
    "simnpo.SimNPO": {"beta": 4.5, "delta": 0.0, "gamma": 0.125},
    "grad_diff.GradDiff": {},
}
"""Their trainers, with the settings of its ``configs/trainer``."""
UNLEARN_EPOCHS = 2
"""At the training's rate, as its experiments on TOFU; the first is its warm-up."""
FIGURES = {
    "memory": ("matched", "memory", ""),
    "AUC of loss": ("mia", "auc", "loss"),
    "back": ("extract", "greedy_rate", ""),
}
Rows = list[dict[str, Any]]


def command(*words: object) -> str:
    """Run a command of the project, and return what it prints."""
    print("spark-audit", *words, file=sys.stderr, flush=True)
    return run_spark_audit(*words)


def read(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def write(path: Path, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


class Lab:
    """Rows, checkpoints and reports of one folder."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.out, self.base, self.seed = given.out, given.model, given.seed
        self.tasks, self.clone = given.tasks.split(","), given.open_unlearning
        self.tokenizer = AutoTokenizer.from_pretrained(self.base)
        self.manifest = self.out / "manifest.json"
        if not self.manifest.exists():
            self._rows(given.data)
        self.parts = {part: read(self.out / f"{part}.jsonl") for part in PARTS}
        self.audited = self.parts["member"] + self.parts["held"]
        self.before = {
            answers: self.nll(self.load(), self.audited, answers=answers)
            for answers in (False, True)
        }

    def _rows(self, data: Path) -> None:
        """Import rows of persons, inject identifiers, and build the manifest."""
        raw, plain, injected = (self.out / n for n in ("raw", "plain", "injected"))
        for task in self.tasks:
            rows = read(data / task / "train.jsonl")
            pairs = [*{row["text"]: row["label"] for row in rows}.items()]
            random.Random(f"{self.seed} {task}").shuffle(pairs)
            sides: dict[str, Rows] = {"train": [], "test": []}
            for part, count in PARTS.items():
                for i in range(count):
                    text, label = pairs.pop()
                    row = {"id": f"{part}-{task}-{i:03}", "text": text, "label": label}
                    row["source_id"] = f"{part}-{task}-p{i // OF_PERSON:02}"
                    sides["test" if part == "held" else "train"].append(row)
            for split, rows in sides.items():
                write(raw / task / f"{split}.jsonl", rows)
            words = ["--template", r"{text}\nLabel:", "--map", "response=label"]
            out = plain / f"{task}.jsonl"
            command("data", "import", raw / task, "--task", task, *words, "-o", out)
        words = ["--rate", "1", "--canaries", "0", "--seed", str(self.seed)]
        command("data", "inject", *plain.glob("*.jsonl"), "-o", injected, *words)
        for part in PARTS:
            # What is relearned holds no identifiers: others would be left out.
            files = sorted((plain if part == "relearn" else injected).glob("*.jsonl"))
            rows = [row for file in files for row in read(file)]
            own = [row for row in rows if row["id"].startswith(f"{part}-")]
            write(self.out / f"{part}.jsonl", own)
        words = ["--data", *(self.out / f"{part}.jsonl" for part in ("member", "held"))]
        words += ["--base", self.base, "-o", self.manifest, "--quiet"]
        command("manifest", "build", *words)

    def tokens(self, rows: Rows, *, answers: bool = False) -> Rows:
        """Token ids with their end; the loss covers the whole text, or the answer."""
        made = []
        for row in rows:
            ids = self.tokenizer(row["prompt"] + row["response"])["input_ids"]
            ids = torch.tensor([*ids, self.tokenizer.eos_token_id])
            labels = ids.clone()
            if answers:
                labels[: len(self.tokenizer(row["prompt"])["input_ids"])] = -100
            made.append({"input_ids": ids, "labels": labels})
        return made

    def load(self, path: Path | None = None) -> Any:
        path = path or self.base
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    @torch.no_grad()
    def nll(self, model: Any, rows: Rows, *, answers: bool = False) -> np.ndarray:
        """Mean NLL of each row, or its answer, nats per token."""
        model.eval()
        read = self.tokens(rows, answers=answers)
        each = [{key: value[None] for key, value in row.items()} for row in read]
        return np.array([float(model(**one).loss) for one in each])

    def fell(self, model: Any, *, answers: bool = False) -> np.ndarray:
        """By how much the NLL of each audited row fell since the base."""
        return self.before[answers] - self.nll(model, self.audited, answers=answers)

    def auc(self, scores: np.ndarray) -> float:
        """Of members against held-out rows of their task, mean over tasks."""
        found = []
        for task in self.tasks:
            own = [i for i, row in enumerate(self.audited) if row["task"] == task]
            member = [self.audited[i]["split"] == "train" for i in own]
            found.append(roc_auc_score(member, scores[own]))
        return float(np.mean(found))

    def fit(self, model: Any, rows: Any, rate: float, **more: Any) -> None:
        """Train by transformers' Trainer, or another one."""
        kind, settings = more.pop("kind", Trainer), more.pop("settings", {})
        arguments = TrainingArguments(
            output_dir=str(self.out / "trainer"),
            learning_rate=rate,
            per_device_train_batch_size=BATCH,
            **{"num_train_epochs": EPOCHS} | settings,
            seed=self.seed,
            use_cpu=True,
            remove_unused_columns=False,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        given = {"data_collator": DataCollatorForSeq2Seq(self.tokenizer)} | more
        kind(model=model, args=arguments, train_dataset=rows, **given).train()

    def made(self, name: str, make: Callable[[], Any]) -> Path:
        """A checkpoint of full weights; it is made where it is not there."""
        path = self.out / "models" / name
        if not path.exists():
            model = make()
            model.save_pretrained(path)
            self.tokenizer.save_pretrained(path)
        return path

    def trained(self, rows: Rows) -> Any:
        model = self.load()
        self.fit(model, self.tokens(rows), RATE)
        return model

    def series(self, name: str) -> Path:
        """One LoRA adapter that goes on from task to task, saved after each."""
        path = self.out / "series" / name
        part = path.with_name(f".{name}")
        config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
        model = None if path.exists() else get_peft_model(self.load(), config)
        seen: Rows = []
        for place, task in enumerate(self.tasks if model else (), start=1):
            own = [row for row in self.parts["member"] if row["task"] == task]
            again = random.Random(place).sample(seen, int(REPLAYED * len(seen)))
            rows = own + again if name == "replay" else own
            tokens = self.tokens(rows, answers=name == "labels")
            self.fit(model, tokens, LORA_RATE)
            model.save_pretrained(part / f"{place}-{task}")
            seen += own
        if model:
            part.rename(path)
        return path

    def ascended(self, start: Path, gone: Rows, kept: Rows) -> Any:
        """Ascent on the rows of ``gone``, and descent on as many kept ones.

        It ends where they are as unlikely as rows never read, as Jang et al. (2023) do.
        """
        model, draw = self.load(start), random.Random(self.seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=ASCENT_RATE)
        collate = DataCollatorForSeq2Seq(self.tokenizer)
        unread = self.nll(model, self.parts["other"]).mean()
        for step in range(ASCENT_STEPS):
            now = self.nll(model, gone).mean()
            print(f"step {step}: {now:.2f} of {unread:.2f} nats", file=sys.stderr)
            if now >= unread:
                break
            model.train()
            lost, held = (
                model(**collate(self.tokens(rows))).loss
                for rows in (gone, draw.sample(kept, len(gone)))
            )
            (held - lost).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    def unlearned(self, start: Path, method: str) -> Any:
        """All member rows unlearned by a trainer of open-unlearning."""
        for name in ("trainer", "data"):
            # What their packages import at once asks for deepspeed and hydra.
            package = types.ModuleType(name)
            package.__path__ = [str(self.clone / "src" / name)]
            sys.modules[name] = package
        module, name = method.split(".")
        theirs = getattr(importlib.import_module(f"trainer.unlearn.{module}"), name)

        class Unlearn(theirs):  # type: ignore[misc, valid-type]
            def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
                # Later versions of transformers pass more than theirs takes.
                return super().compute_loss(model, inputs)

        sets = importlib.import_module("data.unlearn")
        collator = importlib.import_module("data.collators")
        rows = sets.ForgetRetainDataset(
            *(self.tokens(self.parts[part]) for part in ("member", "retain"))
        )
        model = self.load(start)
        settings = {"num_train_epochs": UNLEARN_EPOCHS, "weight_decay": 0.01}
        settings["warmup_steps"] = len(rows) // BATCH
        given = {"kind": Unlearn, "settings": settings, **METHODS[method]}
        collate = collator.DataCollatorForSupervisedDataset(self.tokenizer)
        self.fit(model, rows, RATE, data_collator=collate, **given)
        return model

    def report(self, name: str, ckpt: dict[str, Path], *words: object) -> Path:
        folder = self.out / "reports" / name
        if not folder.exists():
            given = ["all", "--ckpt", *(f"{key}={path}" for key, path in ckpt.items())]
            given += ["--base", self.base, "--manifest", self.manifest, "--jobs", "1"]
            given += ["--scores", self.out / "scores", "-o", folder, "--quiet"]
            command(*given, *words)
        return folder


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print it in Markdown."""
    print(f"\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for row in rows:
        cells = (f"{c:.3f}" if isinstance(c, float) else str(c) for c in row)
        print(f"| {' | '.join(cells)} |")


def state(report: Any, name: str) -> str:
    return next(
        (one.state for one in checkpoint_states(report) if one.name == name), "-"
    )


def with_p(said: dict[str, Any]) -> str:
    return "" if said["p"] is None else f", p {said['p']:.3f}"


def of_series(lab: Lab) -> None:
    """Series of adapters: membership by all stages, and by the last one."""
    paths = {name: lab.series(name) for name in ("whole", "labels", "replay")}
    order = ("--order", ",".join(lab.tasks))
    report = sa.read_report(lab.report("series", paths, "--also", "series", *order))
    place = np.array([lab.tasks.index(row["task"]) for row in lab.audited])
    rows = []
    for name, path in paths.items():
        line: list[object] = [name]
        for answers in (False, True):
            falls = [
                lab.fell(PeftModel.from_pretrained(lab.load(), stage), answers=answers)
                for stage in sorted(path.iterdir())
            ]
            since = [np.where(place <= i, f, -np.inf) for i, f in enumerate(falls)]
            line += [lab.auc(np.max(since, axis=0)), lab.auc(falls[-1])]
        said = told(report, name)
        line += [state(report, name), said["claim"], said["adds"]]
        rows.append([*line, *(said[f"auc {of}"] for of in ("series", "last"))])
    plain = ("texts: all stages", "last", "answers: all stages", "last")
    ours = ("state", "claim", "adds", "all stages", "last")
    table(("series", *plain, *ours), rows)


def of_persons(lab: Lab, trained: Path) -> None:
    """A person of each task is erased; another one, and a held-out one, beside."""
    erased = [f"member-{task}-p00" for task in lab.tasks]
    persons = [*erased, f"member-{lab.tasks[0]}-p01", f"held-{lab.tasks[0]}-p00"]
    rows = lab.parts["member"] + lab.parts["retain"]
    gone = [row for row in rows if row["source_id"] in erased]
    kept = [row for row in rows if row["source_id"] not in erased]
    exact = lab.made("exact", lambda: lab.trained(kept))
    ascent = lab.made("ascent", lambda: lab.ascended(trained, gone, kept))
    paths = {"before": trained, "exact": exact, "ascent": ascent}
    skip = ("--skip", *LEFT_OUT)
    folders = {n: lab.report(n, {"model": p}, *skip) for n, p in paths.items()}
    falls = {name: lab.fell(lab.load(path)) for name, path in paths.items()}
    held = [row["split"] == "test" for row in lab.audited]
    lines = []
    for person in persons:
        own = [row["source_id"] == person for row in lab.audited]
        line: list[object] = [person]
        for name, folder in folders.items():
            both = [folders["before"], *([folder] if name != "before" else ())]
            words = ("persons", *both, "--person", person)
            sheet = json.loads(command(*words, "--json"))
            (lab.out / f"{person}-{name}.md").write_text(command(*words))
            *_, said = (one for one in sheet if "state" in one)
            line.append(f"{falls[name][own].mean() - falls[name][held].mean():+.2f}")
            line.append(
                f"{said['state']}{with_p(said)}; {said['back']} of {said['asked']}"
            )
            line += [o["change"] + with_p(o) for o in sheet if "change" in o]
        lines.append(line)
    heads = ["person", "fell before", "said"]
    for name in ("exact", "ascent"):
        heads += [f"fell, {name}", "said", "change"]
    table(heads, lines)


def of_unlearning(lab: Lab, trained: Path) -> None:
    """All audited rows unlearned, of a model that read them and one that did not."""
    own = lab.parts["other"] + lab.parts["retain"]
    paths = {"trained": trained, "clean": lab.made("clean", lambda: lab.trained(own))}
    cases = [*(("trained", method) for method in METHODS), ("clean", "npo.NPO")]
    for start, method in cases:
        name = f"{start}-{method.partition('.')[2]}"
        make = (paths[start], method)
        paths[name] = lab.made(name, lambda make=make: lab.unlearned(*make))
    relearn = ("--relearn", lab.out / "relearn.jsonl", "--skip", *LEFT_OUT)
    report = sa.read_report(lab.report("unlearned", paths, *relearn))
    lines = []
    for name, path in paths.items():
        line: list[object] = [name, lab.auc(lab.fell(lab.load(path)))]
        after = f"{name}+relearn"
        line.append(" -> ".join(state(report, n) for n in (name, after)))
        line.append(
            ", ".join(
                f"{one.says} {one.claim} p {one.p}"
                for one in report.findings
                if one.checkpoint == after and one.says.startswith("matched.return")
            )
        )
        for figure in FIGURES.values():
            values = {
                row.checkpoint: row.value
                for row in report.results
                if row.group == "pooled"
                and (row.audit, row.metric, row.variant) == figure
            }
            pair = [values.get(n) for n in (name, after)]
            line.append(" -> ".join("-" if v is None else f"{v:.2f}" for v in pair))
        lines.append(line)
    table(("model", "AUC by plain code", "state", "returned", *FIGURES), lines)


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--open-unlearning", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default="agnews,fomc,mentill")
    parser.add_argument("--seed", type=whole_number, default=0)
    options = parser.parse_args()
    check_model("--model", options.model)
    check_folder("--open-unlearning", options.open_unlearning)
    tasks = options.tasks.split(",")
    check_files("--data", *(options.data / task / "train.jsonl" for task in tasks))
    lab = Lab(options)
    of_series(lab)
    trained = lab.parts["member"] + lab.parts["retain"]
    path = lab.made("trained", lambda: lab.trained(trained))
    of_persons(lab, path)
    of_unlearning(lab, path)


if __name__ == "__main__":
    run_benchmark(main, resumes=True)
