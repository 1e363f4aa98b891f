"""Make the demo's base: its tokenizer, and a small model that reads whole texts.

``demo.py`` calls :func:`make_tokenizer` and :func:`train_base`; so do benchmarks and
tests that need a model which has read something.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from spark_audit.checkpoints.untrusted import quiet
from spark_audit.data.examples import Example
from spark_audit.provenance import seed_for, sha256_json, versions

Progress: TypeAlias = Callable[[str, int, int], None]
"""A callback with the phase, the amount done and the total."""

Untyped: TypeAlias = Any
"""An object of transformers, whose classes have no types."""

MADE = "made-from.json"
"""The record of what a finished base was made from; an equal base is reused."""

VOCABULARY = 1024
"""Number of tokens of the tokenizer."""

DEMO_CONTEXT_TOKENS = 256
"""Most tokens of a text that the models read."""

MODEL_SHAPE = {
    "hidden_size": 96,
    "intermediate_size": 288,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
"""Sizes of a third of a million weights: it reads some thousand rows in half a minute.
"""

BASE_LR = 3e-3
BASE_BATCH = 8
"""Learning rate, and rows per step, of the base's own training."""


def make_tokenizer(texts: Sequence[str]) -> Untyped:
    """Return a byte-level BPE of 1,024 tokens, with one token per digit as in Llama."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    # ``tokenizers`` does the work, and transformers' class wraps it.
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()

    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)

    # A BOS token begins every text; no EOS token ends it.
    inner.post_processor = Sequence(
        [
            ByteLevel(trim_offsets=False),
            TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)]),
        ]
    )

    untyped_class: Untyped = PreTrainedTokenizerFast
    return untyped_class(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=DEMO_CONTEXT_TOKENS,
    )


def train_base(
    folder: Path,
    examples: Sequence[Example],
    tokenizer: Untyped,
    *,
    seed: int,
    progress: Progress,
    family: str = "llama",
    shape: Mapping[str, int] = MODEL_SHAPE,
) -> None:
    """Train a small model on whole texts for one epoch, and save it with its tokenizer.

    A folder with a base of the same texts, seed and versions stays unchanged. Anything
    else in it is the remainder of an interrupted call and is replaced.

    Parameters
    ----------
    folder
        Folder of the base.
    examples
        Rows to read, each once, with identifiers as they are.
    family
        Model type of transformers whose configuration has Llama's fields.
    shape
        Sizes of the model, by the names of that configuration.
    """
    import torch

    with quiet():
        from transformers import AutoConfig, AutoModelForCausalLM

        from spark_train.fine_tuning import fit
        from spark_train.student import Student
        from spark_train.training_rows import encode_rows

    made_from = {
        "texts": sha256_json([example.text for example in examples]),
        "seed": seed,
        "training": {**shape, "family": family, "lr": BASE_LR, "batch": BASE_BATCH},
        "versions": versions(),
    }
    record = json.dumps(made_from, indent=1, sort_keys=True) + "\n"
    record_path = folder / MADE
    if record_path.exists() and record_path.read_text("utf-8") == record:
        return

    # Embeddings are tied: otherwise they would be half of the weights.
    config = AutoConfig.for_model(
        family,
        vocab_size=len(tokenizer),
        **shape,
        max_position_embeddings=DEMO_CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    base_seed = seed_for(seed, "base")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(base_seed)
        untyped_class: Untyped = AutoModelForCausalLM
        model = untyped_class.from_config(config)

    rng = np.random.default_rng(seed_for(base_seed, "order", 0))
    fit(
        Student(model),
        encode_rows(examples, tokenizer, max_length=DEMO_CONTEXT_TOKENS),
        rng.permutation(len(examples)),
        name="fit",
        lr=BASE_LR,
        batch_size=BASE_BATCH,
        seed=base_seed,
        progress=lambda done, total: progress("training the base, steps", done, total),
    )

    shutil.rmtree(folder, ignore_errors=True)
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    # The record comes last: without it the base counts as unfinished.
    record_path.write_text(record, encoding="utf-8")
