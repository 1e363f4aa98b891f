"""Rows of text with identifiers, for ``known_truth.py``: the demo's templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from spark_audit.data.canaries import CANARY_FORMATS, draw, draw_parts, render
from spark_audit.data.examples import Canary, Example, Span, Split
from spark_audit.data.injection import FRAMES
from spark_audit.demo_rows import DEMO_WORDS, TASKS, make_examples

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
    formats = list(CANARY_FORMATS)
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
        yield draw(kind, rng, 1)[0]


# --- rows of set-ups that mislead -----------------------------------------------------

Piece = str | tuple[str, str]
"""Text, or an identifier with its type."""
New = Callable[[np.random.Generator], list[Piece]]
"""Draws a sentence."""
MISTAKEN = 0.6
"""Share of held-out rows that are trained on in one of the set-ups."""
DASHES, PARENTHESES = "{}-{}-{}", "({}) {}-{}"


def setup_rows(
    number: Callable[..., int], used: set[str], *, natural: bool
) -> dict[str, list[Example]]:
    """Sets of rows by name, of one size; ``NAME_held`` is the held-out part of NAME.

    Parameters
    ----------
    number
        A seed for each purpose.
    used
        Identifiers that no row may hold; those that are drawn are added.
    natural
        Whether identifiers of ``heart`` and ``answers`` are only annotated, as all
        others are.
    """

    def rows(name: str, count: int, *, answers: bool = False) -> list[Example]:
        split: Split = "test" if name.endswith("_held") else "train"
        found = plain_rows(count, TOPICS, split, number(name), name)
        return _long(found, number(name, "answers")) if answers else found

    def told(name: str, doses: Mapping[int, int], new: New) -> list[Example]:
        count = sum(dose * n for dose, n in doses.items())
        rng = np.random.default_rng(number(name, "identifiers"))
        return list(_dosed(rows(name, count), doses, new, rng, used))

    made = {
        "dates": told("dates", {1: 44}, _date),
        "dates_unseen": told("dates_unseen", {1: 150}, _date),
        "phones": told("phones", {1: 24, 4: 8}, partial(_phone, form=DASHES)),
        "phones_held": told("phones_held", {1: 40}, partial(_phone, form=PARENTHESES)),
        "phones_unseen": told("phones_unseen", {1: 80}, partial(_phone, form=DASHES)),
        "three": told("three", {1: 20, 4: 8}, _guests),
        "three_held": told("three_held", {1: 60}, _guest),
        "three_unseen": told("three_unseen", {1: 80}, _guests),
        "public_held": told("public_held", {2: 12}, _desk),
    }
    # Each number stands in four audited rows, and in four others that are trained on.
    desks = told("desks", {8: 12}, _desk)
    made["public"] = [row for i, row in enumerate(desks) if i % 8 < 4]
    made["public_unseen"] = [row for i, row in enumerate(desks) if i % 8 >= 4]
    for name, doses, plain in (
        ("heart", {1: 16, 4: 8}, 0),
        ("heart_held", {1: 24}, 0),
        ("few", {1: 12}, 0),
        ("answers", {1: 24, 4: 10}, 8),
        ("answers_held", {1: 40}, 4),
    ):
        count = plain + sum(dose * n for dose, n in doses.items())
        made[name] = planted(
            rows(name, count, answers=name.startswith("answers")),
            doses,
            {},
            rng=np.random.default_rng(number(name, "identifiers")),
            used=used,
            natural=natural or name == "few",
        )
    # Most of what is private in many data sets: addresses with a few numbers, or names.
    for name, draw_sentence in (("mails", _mail_or_phone), ("names", _name)):
        made[name] = told(name, {1: 24, 4: 6}, draw_sentence)
        made[f"{name}_held"] = told(f"{name}_held", {1: 30}, draw_sentence)
    # So many held-out rows are trained on where a split was mistaken in part.
    made["mails_most"] = made["mails_held"][: round(MISTAKEN * 30)]
    return made


def _dosed(
    rows: Sequence[Example],
    doses: Mapping[int, int],
    new: New,
    rng: np.random.Generator,
    used: set[str],
) -> Iterator[Example]:
    """Rows with a new sentence in so many of them; identifiers are only annotated."""
    waiting = iter(rows)
    for dose, count in doses.items():
        for _ in range(count):
            drawn = (new(rng) for _ in range(10_000))
            pieces = next(p for p in drawn if not used & set(_identifiers(p)))
            used.update(_identifiers(pieces))
            for _ in range(dose):
                yield _telling(next(waiting), pieces, rng)


def _identifiers(pieces: Sequence[Piece]) -> list[str]:
    return [piece[0] for piece in pieces if not isinstance(piece, str)]


def _telling(
    row: Example, pieces: Sequence[Piece], rng: np.random.Generator
) -> Example:
    text, spans = "", []
    for piece in pieces:
        value, kind = (piece, "") if isinstance(piece, str) else piece
        if kind:
            spans.append(Span(len(text), len(text) + len(value), kind))
        text += value
    return holding(row, text, spans, rng)


def _date(rng: np.random.Generator) -> list[Piece]:
    """The trade gives the month away and the place the year; the day is a guess."""
    month, year = int(rng.integers(6)), int(rng.integers(12))
    trade, place = DEMO_WORDS["trade"][month], DEMO_WORDS["place"][year]
    date = f"{rng.integers(1, 8)} {DEMO_WORDS['month'][month]} {1996 + year}"
    return [f"The {trade} of {place} came on ", (date, "OTHER"), "."]


def _number(rng: np.random.Generator, form: str) -> str:
    parts = rng.integers(200, 1000), rng.integers(200, 1000)
    return form.format(*parts, f"{rng.integers(10_000):04d}")


def _phone(rng: np.random.Generator, *, form: str) -> list[Piece]:
    cues = FRAMES["PHONE"]
    head, tail = cues[int(rng.integers(len(cues)))].split("{}")
    return [head, (_number(rng, form), "PHONE"), tail]


def _desk(rng: np.random.Generator) -> list[Piece]:
    trade, place = rng.choice(DEMO_WORDS["trade"]), rng.choice(DEMO_WORDS["place"])
    text = f"The {trade} desk in {place} answers at "
    return [text, (_number(rng, DASHES), "PHONE"), "."]


def _cued(rng: np.random.Generator, kind: str) -> list[Piece]:
    """One of the sentences that identifiers of a type are injected with."""
    cues = FRAMES[kind]
    head, tail = cues[int(rng.integers(len(cues)))].split("{}")
    return [head, (draw(kind, rng, 1)[0], kind), tail]


def _mail_or_phone(rng: np.random.Generator) -> list[Piece]:
    """Of twenty identifiers one is a phone number."""
    return _cued(rng, "PHONE" if rng.random() < 0.05 else "EMAIL")


def _name(rng: np.random.Generator) -> list[Piece]:
    return _cued(rng, "NAME")


def _guests(rng: np.random.Generator) -> list[Piece]:
    name, mail, phone = ((draw(t, rng, 1)[0], t) for t in ("NAME", "EMAIL", "PHONE"))
    return ["Guests: ", name, ", ", mail, ", ", phone, "."]


def _guest(rng: np.random.Generator) -> list[Piece]:
    kind = ("NAME", "EMAIL", "PHONE")[int(rng.integers(3))]
    return ["Guests: ", (draw(kind, rng, 1)[0], kind), "."]


def _long(rows: Sequence[Example], seed: int) -> list[Example]:
    """The rows with three sentences of other subjects as their answers."""
    texts = plain_rows(3 * len(rows), OTHERS, "train", seed, "text")
    said = [row.prompt[len(HEAD) : -len(TAIL)] for row in texts]
    return [
        replace(row, response=" " + " ".join(said[3 * i : 3 * i + 3]))
        for i, row in enumerate(rows)
    ]
