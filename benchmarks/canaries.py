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

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command_line import (
    benchmark_parser,
    check_files,
    check_model,
    positive_number,
    run_benchmark,
)
from known_truth_training import encoded, fit, token_nll
from transformers import AutoModelForCausalLM, AutoTokenizer

from spark_audit.data.canaries import canary_ranges
from spark_audit.data.examples import Example, read_examples
from spark_audit.data.injection import inject
from spark_audit.files import write_text

TRAIN = 900
"""Rows that a base is fine-tuned on."""

CANARIES = 40
DOSES = (1, 4, 16)
EPOCHS = 1
RATE = 5e-4
"""Peak of the learning rate."""

PARTS = ("full", "password")
"""The whole sentence, and its password alone."""

RESAMPLES = 2000
"""Resamples of seeds and canaries that the intervals are percentiles of."""


def one_run(base: str, examples: Sequence[Example], seed: int) -> Any:
    """Return the scores of one fine-tune's canaries: a record each."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    rows, _ = inject(examples, seed=seed, canaries=CANARIES, doses=DOSES)
    model = AutoModelForCausalLM.from_pretrained(base)

    # A row for each canary: the sentence is the same in all of its rows.
    rows_by_canary = {row.canary.id: row for row in rows if row.canary}
    before = {key: nll(model, tokenizer, row) for key, row in rows_by_canary.items()}

    train = [row for row in rows if row.split == "train"]
    torch.manual_seed(seed)
    fit(model, encoded(train, tokenizer, "all"), epochs=EPOCHS, lr=RATE, seed=seed)
    after = {key: nll(model, tokenizer, row) for key, row in rows_by_canary.items()}

    records = []
    for key, row in rows_by_canary.items():
        assert row.canary is not None
        record: dict[str, Any] = {
            "seed": seed,
            "dose": row.canary.dose,
            "planted": not row.canary.held_out,
        }
        for part in PARTS:
            record[part] = before[key][part] - after[key][part]
        records.append(record)
    return records


def nll(model: Any, tokenizer: Any, row: Example) -> dict[str, float]:
    """Return the summed NLL of a canary's sentence, read alone, and of its password."""
    ranges = canary_ranges(row)
    sentence_start, sentence_end = ranges["full"]
    sentence = row.text[sentence_start:sentence_end]
    tokens = tokenizer(sentence, return_offsets_mapping=True)
    with torch.inference_mode():
        values = token_nll(model, torch.tensor([tokens["input_ids"]]))[0].numpy()

    # Tokens that share a character with the password; the first has no prediction.
    password_start, password_end = ranges["password"]
    start = password_start - sentence_start
    end = password_end - sentence_start
    is_password = [low < end and start < high for low, high in tokens["offset_mapping"]]
    return {
        "full": float(values.sum()),
        "password": float(values[is_password[1:]].sum()),
    }


def attack(planted: np.ndarray, held_out: np.ndarray) -> tuple[float, float]:
    """Return TPR at 1% FPR (at most), and AUC with ties at a half, of scores."""
    threshold = np.sort(held_out)[::-1][int(0.01 * len(held_out))]
    auc = np.sign(planted[:, None] - held_out).mean() / 2 + 0.5
    return float((planted > threshold).mean()), float(auc)


def figures(records: Sequence[dict[str, Any]], part: str, dose: int | None) -> Any:
    """Return (value, low, high) of TPR and of AUC; ``dose`` is of planted canaries."""
    rng = np.random.default_rng(0)
    seeds = sorted({record["seed"] for record in records})

    def scores(seed: int, is_planted: bool) -> np.ndarray:
        """Return the scores of a seed's canaries, planted or held out."""
        values = []
        for record in records:
            if (record["seed"], record["planted"]) != (seed, is_planted):
                continue
            if not is_planted or dose in (None, record["dose"]):
                values.append(record[part])
        return np.array(values)

    planted = [scores(seed, True) for seed in seeds]
    held_out = [scores(seed, False) for seed in seeds]
    values = attack(np.concatenate(planted), np.concatenate(held_out))

    def resampled(by_seed: list[np.ndarray], chosen: np.ndarray) -> np.ndarray:
        return np.concatenate([rng.choice(by_seed[i], len(by_seed[i])) for i in chosen])

    resamples = []
    for _ in range(RESAMPLES):
        chosen = rng.integers(len(seeds), size=len(seeds))
        resamples.append(
            attack(resampled(planted, chosen), resampled(held_out, chosen))
        )
    limits = np.percentile(resamples, [2.5, 97.5], axis=0)  # (2, figures)
    return [(value, *limits[:, i]) for i, value in enumerate(values)]


def table(records: Sequence[dict[str, Any]]) -> str:
    """Return a table in Markdown: a row a part and dose."""
    lines = [
        "| part | dose | planted | TPR at 1% FPR | AUC |",
        "| --- | --- | --- | --- | --- |",
    ]
    for part in PARTS:
        for dose in (None, *DOSES):
            n_planted = sum(
                record["planted"] and dose in (None, record["dose"])
                for record in records
            )
            cells = [part, str(dose or "all"), str(n_planted)]
            for value, low, high in figures(records, part, dose):
                cells.append(f"{value:.3f} [{low:.3f}, {high:.3f}]")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seeds", type=positive_number, default=3)
    options = parser.parse_args()
    check_model("--base", options.base)
    check_files("--rows", *options.rows)
    torch.set_num_threads(1)

    rows = read_examples(*options.rows)
    train = [row for row in rows if row.split == "train"]
    test = [row for row in rows if row.split == "test"]
    examples = train[:TRAIN] + test

    options.output.mkdir(parents=True, exist_ok=True)
    records = []
    for seed in range(options.seeds):
        path = options.output / f"{seed}.json"
        if not path.exists():
            write_text(path, json.dumps(one_run(str(options.base), examples, seed)))
            print(path.name, flush=True)
        records += json.loads(path.read_text())
    print(table(records))


if __name__ == "__main__":
    run_benchmark(main, resumes=True)
