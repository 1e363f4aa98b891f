"""Make rows of the demo's six tasks from the sentences and words of ``demo.toml``.

Names of makers, parcel codes, file names, amounts and numbers are drawn anew for every
row. Such text is as hard to predict as an identifier, but belongs to nobody.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from spark_audit.data.examples import Example, Split
from spark_audit.provenance import seed_for

_CONTENT = tomllib.loads(Path(__file__).with_name("demo.toml").read_text("utf-8"))
"""The file's tables: ``words`` by slot, and ``tasks`` with prompts and sentences."""

DEMO_WORDS = {name: words.split() for name, words in _CONTENT["words"].items()}
"""Slot of a sentence -> words that may fill it."""

CODE_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
"""Characters of parcel codes."""

TASKS: dict[str, tuple[str, dict[str, list[str]]]] = {
    task: (content["prompt"], content["labels"])
    for task, content in _CONTENT["tasks"].items()
}
"""Task -> its prompt, and its labels with their sentences, in training order."""

_SLOT = re.compile(r"\{(\w+)\}")
"""A slot of a sentence, such as ``{brand}``; its group is the slot's name."""


def make_examples(rows: int, *, split: Split, seed: int) -> list[Example]:
    """Return labelled rows of the six tasks without any identifier.

    A row has one or two sentences of its label, in a prompt of its task.

    Parameters
    ----------
    rows
        Number of rows per task.
    """
    examples = []
    for task, (prompt, sentences_by_label) in TASKS.items():
        rng = np.random.default_rng(seed_for(seed, "text", task, split))
        labels = sorted(sentences_by_label)
        for i in range(rows):
            # Labels take turns, so that all are equally frequent.
            label = labels[i % len(labels)]
            shuffled = rng.permutation(sentences_by_label[label])
            n_sentences = rng.integers(1, 3)  # 1 or 2
            sentences = " ".join(shuffled[:n_sentences])
            text = _SLOT.sub(partial(_fill, rng), sentences)

            example_id = f"{task}-{split}-{i:04d}"
            examples.append(
                Example(
                    id=example_id,
                    task=task,
                    prompt=prompt.replace("{text}", text),
                    response=f" {label}",
                    split=split,
                    source_id=example_id,
                )
            )
    return examples


def unlabelled(example: Example) -> Example:
    """Return the example without its label and without the line that asks for it.

    The prompt is the first word, and the response is the rest of the text.
    """
    text = example.prompt.rpartition("\n")[0]
    end_of_first_word = text.index(" ")
    return replace(
        example,
        prompt=text[:end_of_first_word],
        response=text[end_of_first_word:],
    )


def _fill(rng: np.random.Generator, slot: re.Match[str]) -> str:
    """Return the text for a slot of a sentence: drawn anew, or one of its words."""

    def made_up_word() -> str:
        return "".join(rng.choice(DEMO_WORDS["syllable"], rng.integers(2, 5)))

    # The values are functions, so that unused slots draw no random numbers.
    draw_by_slot: dict[str, Callable[[], str]] = {
        "n": lambda: str(rng.integers(2, 10 ** rng.integers(1, 4))),
        "amount": lambda: f"${rng.integers(3, 900)}.{rng.integers(0, 100):02d}",
        "time": lambda: f"{rng.integers(0, 24)}:{rng.integers(0, 60):02d}",
        "date": lambda: f"{rng.integers(1, 29)} {rng.choice(DEMO_WORDS['month'])}",
        "brand": lambda: made_up_word().capitalize(),
        "file": lambda: f"{made_up_word()}-{made_up_word()}{rng.integers(10, 100)}.pdf",
        "code": lambda: "".join(rng.choice(list(CODE_CHARACTERS), rng.integers(6, 13))),
    }
    slot_name = slot[1]
    if slot_name in draw_by_slot:
        return draw_by_slot[slot_name]()
    return str(rng.choice(DEMO_WORDS[slot_name]))
