"""What the demo's rows say: six tasks from templates, without any identifier.

The tasks are in the manner of SPARK's six: the stance of a central bank (FOMC), reviews
of restaurants (Yelp), topics of news (AGNews), ratings of products (Amazon), causes of
stress (MentILL) and topics of questions (Yahoo). All sentences are the demo's own.

Names of makers, parcel codes, file names, amounts and numbers are drawn afresh in every
row: text that is as hard to predict as an identifier and that belongs to nobody, so
that identifiers find controls.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np

from spark_audit.data.examples import Example, Split
from spark_audit.provenance import seed_for

_MADE_OF = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
WORDS = {name: words.split() for name, words in _MADE_OF["words"].items()}
CODE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
TASKS: dict[str, tuple[str, dict[str, list[str]]]] = {
    task: (own["prompt"], own["labels"]) for task, own in _MADE_OF["tasks"].items()
}
"""Task -> its prompt, and its labels with their sentences, in training order."""

_SLOT = re.compile(r"(\{\w+\})")


def make_examples(rows: int, *, split: Split, seed: int) -> list[Example]:
    """Labelled rows of the six tasks, ``rows`` each, without any identifier."""
    examples = []
    for task, (prompt, labels) in TASKS.items():
        rng = np.random.default_rng(seed_for(seed, "text", task, split))
        names = sorted(labels)
        for i in range(rows):
            label = names[i % len(names)]
            chosen = rng.permutation(labels[label])[: rng.integers(1, 3)]
            text = "".join(
                _fill(piece[1:-1], rng) if piece.startswith("{") else piece
                for piece in _SLOT.split(" ".join(chosen))
            )
            name = f"{task}-{split}-{i:04d}"
            examples.append(
                Example(
                    id=name,
                    task=task,
                    prompt=prompt.replace("{text}", text),
                    response=f" {label}",
                    split=split,
                    source_id=name,
                )
            )
    return examples


def unlabelled(example: Example) -> Example:
    """The same text without its last line, which asks for the label, and without it."""
    text = example.prompt.rpartition("\n")[0]
    cut = text.index(" ")
    return replace(example, prompt=text[:cut], response=text[cut:])


def _fill(slot: str, rng: np.random.Generator) -> str:
    match slot:
        case "n":
            return str(rng.integers(2, 10 ** rng.integers(1, 4)))
        case "amount":
            return f"${rng.integers(3, 900)}.{rng.integers(0, 100):02d}"
        case "time":
            return f"{rng.integers(0, 24)}:{rng.integers(0, 60):02d}"
        case "date":
            return f"{rng.integers(1, 29)} {rng.choice(WORDS['month'])}"
        case "brand":
            return _made_up(rng).capitalize()
        case "file":
            return f"{_made_up(rng)}-{_made_up(rng)}{rng.integers(10, 100)}.pdf"
        case "code":
            return "".join(rng.choice(list(CODE), rng.integers(6, 13)))
    return str(rng.choice(WORDS[slot]))


def _made_up(rng: np.random.Generator) -> str:
    return "".join(rng.choice(WORDS["syllable"], rng.integers(2, 5)))
