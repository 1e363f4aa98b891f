"""Rows with identifiers of three kinds that are often guessed, and answers to them."""

from typing import Any

import numpy as np

from spark_audit.audits.extract.text_units import AskedUnit, evidence_of_answers
from spark_audit.checkpoints.text_answers import TextAnswer
from spark_audit.data.examples import Example, Span

FIRST_NAMES = "Maria John Peter Alice Robert Anna Paul Laura Simon Clara".split()
SURNAMES = "Jones Smith Brown Green White Keller Novak Rossi Moreau Lind".split()
WORDS = "the service food good cold said customer paid dollars rate label news".split()
KINDS = ("DATE", "PHONE", "NAME")


def drawn(rng: np.random.Generator, kind: str) -> str:
    """A string of a kind, one of few: it is often guessed."""
    if kind == "DATE":
        return f"{rng.integers(1, 29):02d}/{rng.integers(1, 4):02d}/1993"
    if kind == "PHONE":
        return f"555-01{rng.integers(20, 60)}"
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(SURNAMES)}"


def guessable_rows(n: int, *, seed: int = 0) -> list[Example]:
    """Rows of a source each, two fifths of them held out."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        kind = KINDS[i % 3]
        string = drawn(rng, kind)
        before = " ".join(rng.choice(WORDS, 8))
        after = " ".join(rng.choice(WORDS, 5))
        prompt = f"Note: {before}. My {kind.lower()} is {string}. {after}.\nLabel:"
        start = prompt.index(string)
        rows.append(
            Example(
                id=f"row-{i:03d}",
                task="task",
                prompt=prompt,
                response=" good",
                split="test" if rng.random() < 0.4 else "train",
                source_id=f"source-{i:03d}",
                spans=(Span(start, start + len(string), kind),),
            )
        )
    return rows


def answers_to(
    units: list[AskedUnit], texts: list[list[str]], finish: str = "", **options: Any
) -> Any:
    """The evidence of some answers, without a server."""
    answers = [[TextAnswer(text, finish) for text in of_unit] for of_unit in texts]
    return evidence_of_answers(
        units, answers, checkpoint="tuned", prompts=["cue"], **options
    )
