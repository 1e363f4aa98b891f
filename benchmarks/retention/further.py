"""A base that has read the tasks' train texts, without their labels."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spark_audit.checkpoints.untrusted import quiet
from spark_audit.data.examples import Example
from spark_audit.provenance import seed_for, sha256_json

FURTHER_LR = 5e-4
FURTHER_BATCH = 8
FURTHER_SEED = 0

MADE_FROM = "made-from.json"
"""The record of a finished base: another call leaves it as it is."""


def read_further(
    base: str,
    folder: Path,
    examples: Sequence[Example],
    *,
    epochs: int,
    progress: Callable[[str, int, int], None],
) -> str:
    """Train all weights of a base on the prompts of train rows; return its folder.

    Parameters
    ----------
    examples
        Rows of all tasks; of train rows the prompt is read, of others nothing.
    epochs
        How often each prompt is read.
    """
    with quiet():
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from spark_train.fine_tuning import fit
        from spark_train.student import Student
        from spark_train.training_rows import TrainRow

    prompts = [row.prompt for row in examples if row.split == "train"]
    made_from = {
        "base": base,
        "prompts": sha256_json(prompts),
        "epochs": epochs,
        "lr": FURTHER_LR,
        "batch": FURTHER_BATCH,
    }
    record = json.dumps(made_from, indent=1) + "\n"
    record_path = folder / MADE_FROM
    if record_path.exists() and record_path.read_text("utf-8") == record:
        return str(folder)

    untyped_model_class: Any = AutoModelForCausalLM
    untyped_tokenizer_class: Any = AutoTokenizer
    with quiet():
        tokenizer = untyped_tokenizer_class.from_pretrained(base)
        model = untyped_model_class.from_pretrained(base)

    rows = []
    for number, prompt in enumerate(prompts):
        ids = np.asarray(tokenizer(prompt)["input_ids"], dtype=np.int32)
        nothing = np.zeros(len(ids), dtype=np.bool_)
        rows.append(
            TrainRow(
                id=str(number),
                task="texts",
                ids=ids,
                response=nothing,
                pii=nothing,
                fixed=nothing,
            )
        )
    rng = np.random.default_rng(seed_for(FURTHER_SEED, "order"))
    order = np.concatenate([rng.permutation(len(rows)) for _ in range(epochs)])
    fit(
        Student(model),
        rows,
        order,
        name="further",
        lr=FURTHER_LR,
        batch_size=FURTHER_BATCH,
        seed=FURTHER_SEED,
        progress=lambda done, total: progress("reading texts, steps", done, total),
    )

    shutil.rmtree(folder, ignore_errors=True)
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    # The record comes last: without it the base counts as unfinished.
    record_path.write_text(record, encoding="utf-8")
    return str(folder)
