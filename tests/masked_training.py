"""A small adapter in plain torch, trained on what a trainer reads of chat rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from spark_audit.data.encoding import encode_rows, tokens_of_ranges
from spark_audit.data.examples import Example

IGNORED = -100


def train_lora(
    folder: Path,
    rows: Sequence[Example],
    base: Path,
    tokenizer: Any,
    *,
    is_masked: bool,
    steps: int = 60,
) -> Path:
    """Train a LoRA on the train rows as they were fed, with loss where they say.

    Without ``is_masked`` all tokens that were fed have loss.
    """
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base)
    adapter = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, adapter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train_rows = [row for row in rows if row.split == "train"]
    encodings = encode_rows(tokenizer, train_rows)

    ids = torch.zeros((len(train_rows), max(map(len, encodings))), dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for i, (row, encoding) in enumerate(zip(train_rows, encodings, strict=True)):
        low, high = row.training_input.token_range_read(len(encoding))
        assert low == 0
        ids[i, :high] = torch.tensor(encoding.ids[:high])
        has_loss = np.ones(len(encoding), dtype=bool)
        if is_masked:
            has_loss = tokens_of_ranges(encoding, row.training_input.supervised)
        has_kept_loss = torch.tensor(has_loss[:high])
        labels[i, :high][has_kept_loss] = ids[i, :high][has_kept_loss]

    # A causal model reads no padding that stands behind its text.
    for _ in range(steps):
        optimizer.zero_grad()
        model(ids, labels=labels).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder
