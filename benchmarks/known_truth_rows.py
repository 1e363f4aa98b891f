"""Rows of text with identifiers, for ``known_truth.py``: the demo's templates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spark_audit.data.canaries import FORMATS, draw, draw_parts, render
from spark_audit.data.examples import Canary, Example, Span, Split
from spark_audit.data.injection import FRAMES
from spark_audit.demo.text import TASKS, make_examples

UNKNOWN = ("Reference: {}.", "It said {} there.")
"""Frames of what the base reads: it knows the kinds a little, and not their cues."""
SENTENCE = re.compile(r".+?[.?](?= [A-Z]|$)")
HEAD, TAIL = "Text: ", "\nAnswer:"
TASK = "answers"
TOPICS = ("dining", "support", "questions")
OTHERS = ("policy", "news", "ratings")
"""Subjects of the audited rows, and of text that has nothing to do with them."""
TYPES = ("NAME", "EMAIL", "PHONE", "SSN", "PASSWORD")


@dataclass(frozen=True)
class Size:
    """How much there is of everything.

    ``doses`` and ``canaries`` say how many identifiers or canaries stand in how many
    trained rows. Of all rows the same share holds an identifier, a canary or neither,
    whether they are trained on or not.
    """

    base_rows: int = 300
    base_epochs: int = 2
    doses: tuple[tuple[int, int], ...] = ((1, 48), (4, 24), (16, 12))
    canaries: tuple[tuple[int, int], ...] = ((4, 3), (16, 3))
    plain: int = 36
    held: int = 84
    held_plain: int = 9
    epochs: int = 12
    lr: float = 1e-2


SIZES = {
    "full": Size(),
    "small": Size(
        base_rows=120,
        doses=((1, 20), (4, 10), (16, 10)),
        canaries=((16, 2),),
        plain=16,
        held=50,
        held_plain=4,
    ),
}


def plain_rows(
    count: int, topics: Sequence[str], split: Split, seed: int, name: str
) -> list[Example]:
    """Rows of the templates in one frame, without identifiers, in mixed order."""
    made = make_examples(-(-count // len(topics)), split=split, seed=seed)
    rows = []
    for row in made:
        head, _, tail = TASKS[row.task][0].partition("{text}")
        text = row.prompt[len(head) : len(row.prompt) - len(tail)]
        text = SENTENCE.match(text)[0]  # type: ignore[index]
        if row.task in topics:
            rows.append((text, row.response))
    order = np.random.default_rng(seed).permutation(len(rows))[:count]
    return [
        Example(
            id=f"{name}-{i:04d}",
            task=TASK,
            prompt=HEAD + rows[at][0] + TAIL,
            response=rows[at][1],
            split=split,
            source_id=f"{name}-{i:04d}",
        )
        for i, at in enumerate(order)
    ]


def holding(
    row: Example, sentence: str, spans: Sequence[Span], rng: np.random.Generator
) -> Example:
    """The row with a sentence before or behind its text, and the sentence's spans."""
    if rng.random() < 0.5:
        at, added = len(HEAD), sentence + " "
    else:
        at, added = len(row.prompt) - len(TAIL), " " + sentence
    start = at + added.index(sentence)
    prompt = row.prompt[:at] + added + row.prompt[at:]
    moved = [replace(s, start=s.start + start, end=s.end + start) for s in spans]
    injected = any(span.origin == "injected" for span in spans)
    frames = ((start, start + len(sentence)),) if injected else ()
    return replace(row, prompt=prompt, spans=tuple(moved), frames=frames)


def planted(
    rows: Sequence[Example],
    doses: Mapping[int, int],
    canaries: Mapping[int, int],
    *,
    rng: np.random.Generator,
    used: set[str],
    natural: bool,
    frames: Mapping[str, Sequence[str]] = FRAMES,
) -> list[Example]:
    """Rows with identifiers that stand in so many of them; the last stay plain.

    Identifiers are drawn uniformly whatever the split, so that which of them is trained
    is chance. ``natural`` ones are only annotated, and there are no canaries.
    """
    waiting, done = iter(rows), []
    split = rows[0].split
    for dose, count in doses.items():
        for i in range(count):
            kind = TYPES[i % len(TYPES)]
            value = next(v for v in _draws(kind, rng) if v not in used)
            used.add(value)
            for _ in range(dose):
                cues = frames[kind]
                head, tail = cues[int(rng.integers(len(cues)))].split("{}")
                origin = "natural" if natural else "injected"
                span = Span(len(head), len(head) + len(value), kind, origin)
                text = head + value + tail
                done.append(holding(next(waiting), text, [span], rng))
    formats = list(FORMATS)
    for dose, count in canaries.items():
        for i in range(0 if natural else count):
            number = int(rng.integers(2**31))
            held_out = split == "test"
            canary = Canary(
                f"{'h' if held_out else 'c'}{dose:02d}{i:02d}",
                formats[i % len(formats)],
                0 if held_out else dose,
                held_out,
                number,
            )
            text, spans = render(canary.format, draw_parts(number))
            for _ in range(dose):
                row = holding(next(waiting), text, list(spans.values()), rng)
                done.append(replace(row, canary=canary))
    return [*done, *waiting]


def _draws(kind: str, rng: np.random.Generator) -> Iterator[str]:
    while True:
        yield draw(kind, rng)
