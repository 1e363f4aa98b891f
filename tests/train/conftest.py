"""A small stream of tasks that tests of whole runs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spark_audit.data.examples import Example, Span, write_examples

WORDS = "service food cold good fine rate raised basis points news read again".split()
NAMES = ("Maria Jones", "John Smith", "Maria Smith")


@pytest.fixture(scope="session")
def make_stream() -> Callable[..., Path]:
    """``make_stream(path, tasks=("yelp", "fomc"), train=7, test=4, pii=True, seed=0)``.

    Writes JSON lines: rows of a few words, in most of them a name and a phone number
    that are annotated, with one of two labels; returns the file.
    """

    def make(
        path: Path,
        *,
        tasks: tuple[str, ...] = ("yelp", "fomc"),
        train: int = 7,
        test: int = 4,
        pii: bool = True,
        seed: int = 0,
    ) -> Path:
        rng = np.random.default_rng(seed)
        rows = []
        for task in tasks:
            for i in range(train + test):
                words = " ".join(rng.choice(WORDS, int(rng.integers(2, 8))))
                prompt, spans = f"Text: {words}", []
                if pii and i % 3 < 2:
                    name = NAMES[int(rng.integers(len(NAMES)))]
                    phone = f"555-{int(rng.integers(10**4)):04d}"
                    prompt += " said "
                    for kind, value in (("NAME", name), ("PHONE", phone)):
                        spans.append(Span(len(prompt), len(prompt) + len(value), kind))
                        prompt += f"{value} "
                rows.append(
                    Example(
                        id=f"{task}-{i:02d}",
                        task=task,
                        prompt=f"{prompt.strip()}.\nLabel:",
                        response=(" positive", " negative")[int(rng.integers(2))],
                        split="train" if i < train else "test",
                        source_id=f"{task}-{i}",
                        spans=tuple(spans),
                    )
                )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_examples(path, rows)
        return path

    return make
