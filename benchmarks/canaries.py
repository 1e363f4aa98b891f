"""Canaries by dose: how many are told from held-out ones after a training.

For each seed, ``data inject`` plants 40 pairs of canaries of doses 1, 4 and 16
in 900 rows of one task, english-5m is fine-tuned on the whole text of the train rows
(AdamW, all weights, one pass), and every canary, planted or held out, is scored by the
base and the fine-tuned model. A canary's
sentence is scored alone, without the row around it: those of planted ones were trained.

Score, fixed beforehand: the base's NLL of the whole sentence less the fine-tuned
model's; beside it that of the password alone. TPR at 1% FPR
is over the canaries of all seeds, with held-out ones as the negatives; intervals are
percentiles over resampled seeds and canaries.

    python benchmarks/canaries.py --base MODEL --rows TASK.jsonl -o FOLDER

A run that is in FOLDER already is not done again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from known_truth_training import encoded, fit, token_nll
from transformers import AutoModelForCausalLM, AutoTokenizer

from spark_audit.data.canaries import canary_ranges
from spark_audit.data.examples import Example, read_examples
from spark_audit.data.injection import inject
from spark_audit.files import write_text

TRAIN, CANARIES, DOSES = 900, 40, (1, 4, 16)
EPOCHS, RATE = 1, 5e-4
PARTS = ("full", "password")


def one_run(base: str, examples: Sequence[Example], seed: int) -> Any:
    """Scores of one fine-tune's canaries: a record each."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    rows, _ = inject(examples, seed=seed, canaries=CANARIES, doses=DOSES)
    model = AutoModelForCausalLM.from_pretrained(base)
    sentences = {row.canary.id: row for row in rows if row.canary}
    before = {name: nll(model, tokenizer, row) for name, row in sentences.items()}
    train = [row for row in rows if row.split == "train"]
    torch.manual_seed(seed)
    fit(model, encoded(train, tokenizer, "all"), epochs=EPOCHS, lr=RATE, seed=seed)
    after = {name: nll(model, tokenizer, row) for name, row in sentences.items()}
    return [
        {
            "seed": seed,
            "dose": row.canary.dose,
            "planted": not row.canary.held_out,
            **{part: before[name][part] - after[name][part] for part in PARTS},
        }
        for name, row in sentences.items()
        if row.canary
    ]


def nll(model: Any, tokenizer: Any, row: Example) -> dict[str, float]:
    """Summed NLL of a canary's sentence, read alone, and of its password."""
    places = canary_ranges(row)
    first, last = places["full"]
    told = tokenizer(row.text[first:last], return_offsets_mapping=True)
    with torch.inference_mode():
        found = token_nll(model, torch.tensor([told["input_ids"]]))[0].numpy()
    start, end = (place - first for place in places["password"])
    inside = [a < end and start < b for a, b in told["offset_mapping"]][1:]
    return {"full": float(found.sum()), "password": float(found[inside].sum())}


# --- figures --------------------------------------------------------------------------


def told_apart(ours: np.ndarray, never: np.ndarray) -> tuple[float, float]:
    """TPR at 1% FPR (at most), and AUC, ties at a half."""
    threshold = np.sort(never)[::-1][int(0.01 * len(never))]
    beats = np.sign(ours[:, None] - never).mean() / 2 + 0.5
    return float((ours > threshold).mean()), float(beats)


def figures(records: Sequence[dict[str, Any]], part: str, dose: int | None) -> Any:
    """TPR and AUC with intervals; ``dose`` of planted canaries only."""
    rng = np.random.default_rng(0)
    seeds = sorted({record["seed"] for record in records})

    def scores(seed: int, planted: bool) -> np.ndarray:
        return np.array(
            [
                r[part]
                for r in records
                if (r["seed"], r["planted"]) == (seed, planted)
                and (not planted or dose in (None, r["dose"]))
            ]
        )

    both = [[scores(seed, side) for seed in seeds] for side in (True, False)]
    found = told_apart(*map(np.concatenate, both))
    drawn = []
    for _ in range(2000):
        chosen = rng.integers(len(seeds), size=len(seeds))
        drawn.append(
            told_apart(
                *(
                    np.concatenate([rng.choice(side[i], len(side[i])) for i in chosen])
                    for side in both
                )
            )
        )
    limits = np.percentile(drawn, [2.5, 97.5], axis=0)
    return [(value, *limits[:, i]) for i, value in enumerate(found)]


def table(records: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row a part and dose."""
    lines = ["| part | dose | planted | TPR at 1% FPR | AUC |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for part in PARTS:
        for dose in (None, *DOSES):
            n = sum(r["planted"] and dose in (None, r["dose"]) for r in records)
            told = [
                f"{value:.3f} [{low:.3f}, {high:.3f}]"
                for value, low, high in figures(records, part, dose)
            ]
            lines.append(f"| {' | '.join(map(str, (part, dose or 'all', n, *told)))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", required=True)
    parser.add_argument("--rows", required=True, nargs="+")
    parser.add_argument("-o", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    given.o.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    examples, records = read_examples(*given.rows), []
    train = [example for example in examples if example.split == "train"]
    examples = train[:TRAIN] + [e for e in examples if e.split == "test"]
    for seed in range(given.seeds):
        path = given.o / f"{seed}.json"
        if not path.exists():
            write_text(path, json.dumps(one_run(given.base, examples, seed)))
            print(path.name, flush=True)
        records += json.loads(path.read_text())
    print(table(records))


if __name__ == "__main__":
    main()
