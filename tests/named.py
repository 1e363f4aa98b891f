"""Made-up rows with a name each."""

import numpy as np

from spark_audit.data.examples import Example, Span

NAMES = [
    f"{first} {last}"
    for last in ("Jones", "Smith", "Brown", "Green", "White")
    for first in ("Maria", "John", "Peter", "Alice", "Robert")
]


def examples(count: int = 24, *, words: int = 9) -> list[Example]:
    """Rows with a name each between so many words; every fourth is a test row."""
    rng = np.random.default_rng(0)
    words_known = (
        "the service food good cold said customer paid dollars rate label news".split()
    )
    rows = []
    for i in range(count):
        before, after = (" ".join(rng.choice(words_known, words)) for _ in range(2))
        # One name a source: rows that share one would be one cluster.
        name = NAMES[i // 2 % len(NAMES)]
        prompt = f"Text: {before}. Contact {name} today. {after}.\nLabel:"
        start = prompt.index(name)
        rows.append(
            Example(
                id=f"row-{i:02d}",
                task="task",
                prompt=prompt,
                response=" good" if i % 2 else " cold",
                split="test" if i % 4 == 3 else "train",
                source_id=f"source-{i // 2:02d}",
                spans=(Span(start, start + len(name), "NAME"),),
            )
        )
    return rows
