"""The demo's base model: a tokenizer and a small Llama, trained on the spot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from spark_audit.checkpoints.offline import quiet
from spark_audit.data.examples import Example
from spark_audit.provenance import seed_for, sha256_json, versions

Progress: TypeAlias = Callable[[str, int, int], None]

VOCABULARY = 1024
CONTEXT = 256
SHAPE = {"hidden_size": 96, "intermediate_size": 288, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 4}
"""A third of a million weights: what reads a few thousand rows in half a minute."""
BASE_LR, BASE_BATCH = 3e-3, 8
MADE = "made-from.json"
"""What a finished base was made from: one of the same is not made again."""


def make_tokenizer(texts: Sequence[str]) -> Any:
    """A byte-level BPE of 1,024 tokens; every digit is a token, as in Llama's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

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
    inner.post_processor = Sequence(
        [
            ByteLevel(trim_offsets=False),
            TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)]),
        ]
    )
    fast: Any = PreTrainedTokenizerFast  # untyped in the library
    return fast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=CONTEXT,
    )


def train_base(
    folder: Path,
    examples: Sequence[Example],
    tokenizer: Any,
    *,
    seed: int,
    progress: Progress,
    family: str = "llama",
    shape: Mapping[str, int] = SHAPE,
) -> None:
    """Train a small model on whole texts, once through, and save it with its tokenizer.

    A folder that holds the base of the same texts, seed and versions is left as it is;
    anything else there is the rest of an interrupted call, and is replaced. ``family``
    is a model type of transformers that is configured as Llama is.
    """
    import torch

    with quiet():
        from transformers import AutoConfig, AutoModelForCausalLM

        from spark_train.model import Student
        from spark_train.phases import fit
        from spark_train.training_rows import encode_rows

    made = {
        "texts": sha256_json([example.text for example in examples]),
        "seed": seed,
        "training": {**shape, "family": family, "lr": BASE_LR, "batch": BASE_BATCH},
        "versions": versions(),
    }
    record = json.dumps(made, indent=1, sort_keys=True) + "\n"
    if (folder / MADE).exists() and (folder / MADE).read_text("utf-8") == record:
        return
    config = AutoConfig.for_model(
        family,
        vocab_size=len(tokenizer),
        **shape,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "base"))
        untyped: Any = AutoModelForCausalLM
        model = untyped.from_config(config)
    seed = seed_for(seed, "base")
    rng = np.random.default_rng(seed_for(seed, "order", 0))
    fit(
        Student(model),
        encode_rows(examples, tokenizer, max_length=CONTEXT),
        rng.permutation(len(examples)),
        name="fit",
        lr=BASE_LR,
        batch_size=BASE_BATCH,
        seed=seed,
        progress=lambda *done: progress("training the base, steps", *done),
    )
    shutil.rmtree(folder, ignore_errors=True)
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    (folder / MADE).write_text(record, encoding="utf-8")
