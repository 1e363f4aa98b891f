"""Put synthetic identifiers and canaries into the prompts of a stream of tasks.

Identifiers go at one rate into train and test rows **[ours]**: in train rows only, they
would tell a text classifier which split a row is from, and void every membership
result.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spark_audit.data.canaries import CANARY_FORMATS, draw, draw_parts, render
from spark_audit.data.examples import (
    Canary,
    Example,
    Ranges,
    Span,
    Split,
    parts_outside,
)
from spark_audit.data.fixed_wording import template_ranges
from spark_audit.data.task_wording import task_templates
from spark_audit.data.training_input import with_insertion
from spark_audit.errors import InputError
from spark_audit.provenance import seed_for

FRAMES: Mapping[str, tuple[str, ...]] = {
    "NAME": ("My name is {}.", "Please ask for {}.", "{} told me about this."),
    "EMAIL": ("You can reach me at {}.", "My email address is {}.", "Write to {}."),
    "PHONE": ("Call me at {}.", "My phone number is {}.", "The number is {}."),
    "SSN": ("My social security number is {}.", "The SSN on file is {}."),
    "PASSWORD": ("My password is {}.", "The password for the account is {}."),
    "CREDIT_CARD": ("My credit card number is {}.", "Please charge the card {}."),
    "ADDRESS": ("I live at {}.", "Please send it to {}."),
}
"""Frames of single identifiers, the same in train and test rows."""

Group = tuple[str, Split]

IDENTIFIER_REACH = 600
"""Identifiers stand within so many characters of the prompt's end: a model with a short
context loses the beginning of a long prompt, and with it what stands there."""

_SENTENCE_END = re.compile(
    r"(?<!\bMr)(?<!\bMs)(?<!\bDr)(?<!\bSt)(?<!\bvs)[.!?][\"')\]\u201d\u2019]*\s+|\n\s*"
)


@dataclass(frozen=True)
class InjectionReport:
    """What was injected, and what was not and why.

    ``planted`` counts canaries by dose (the train rows that hold one); ``rows`` tells
    for each task and split the number of rows, of those with an identifier and of those
    with a canary.
    """

    planted: dict[int, int]
    held_out: int
    rows: dict[Group, tuple[int, int, int]]
    notes: tuple[str, ...]


def inject(
    examples: Sequence[Example],
    *,
    seed: int,
    rate: float = 0.3,
    canaries: int = 50,
    doses: Sequence[int] | None = None,
) -> tuple[list[Example], InjectionReport]:
    """Put synthetic identifiers and canaries into the prompts of a stream of tasks.

    Train and test rows get identifiers of the same types, in the same frames, at the
    same rate. Sentences go between the prompt's sentences, never into fixed wording, an
    annotated span or the response; ``Example.frames`` says where they stand.

    Each canary stands once in the train rows of each task; with ``doses``, each dose
    has canaries of its own, spread evenly over the tasks. As many held-out canaries, in
    the same frames, stand once in the test rows of each task. A row holds one canary at
    most, and no more than a third of a task's train or test rows hold one; where that
    leaves no room, fewer canaries are planted and the report says so.

    Canaries are drawn in pairs, and of each pair a fair coin says which one is planted
    and which held out (``Canary.pair``): coins that a lower bound of epsilon rests on.
    Which rows hold one, and what else they hold, does not depend on them.

    Parameters
    ----------
    examples
        Rows of all tasks of the stream. Their order does not matter.
    seed
        Decides everything, together with the rows' ids.
    rate
        Share of the rows without a canary that get an identifier.
    canaries
        How many to plant.
    doses
        Numbers of train rows that hold a canary, given to the canaries in turn.

    Returns
    -------
    tuple
        The examples in the order given, and the report.

    Raises
    ------
    InputError
        If a number is out of range, or the rows hold injected identifiers already.
    """
    _check(examples, rate, canaries, doses)
    plan = _Plan(examples, seed)
    notes = _assign(plan, canaries, doses)
    done: dict[str, Example] = {}
    used: set[str] = set()
    for canary, names in plan.canaries.items():
        drawn = replace(canary, seed=seed_for(seed, plan.drawn_as(canary), 0))
        parts = draw_parts(drawn.seed)
        text, spans = render(drawn.format, parts)
        used |= {text, *parts.values()}
        for name in names:
            row = _inserted(plan, name, text, [*spans.values()])
            done[name] = replace(row, canary=drawn)
    counts = {}
    for group in sorted(plan.sizes):
        held = sum(plan.group(name) == group for name in done)
        wanted = math.floor(rate * (plan.sizes[group] - held) + 0.5)
        names = plan.free[group][:wanted]
        if len(names) < wanted:
            what = f"{len(names)} of {wanted} {group[1]} rows of {group[0]}"
            notes.append(f"{what} got an identifier: the others have no place for one")
        # Types in turn, so that splits differ by one row of a type at most.
        first = seed_for(seed, "type", *group)
        for turn, name in enumerate(names, start=first):
            type = list(FRAMES)[turn % len(FRAMES)]
            done[name] = _with_identifier(plan, name, type, used)
        counts[group] = (plan.sizes[group], len(names), held)
    planted = dict(sorted(Counter(canary.dose for canary in plan.canaries).items()))
    report = InjectionReport(
        held_out=planted.pop(0, 0), planted=planted, rows=counts, notes=tuple(notes)
    )
    return [done.get(example.id, example) for example in examples], report


def _check(
    examples: Sequence[Example], rate: float, canaries: int, doses: Sequence[int] | None
) -> None:
    for option, value, fits, what in (
        ("rate", rate, 0 <= rate <= 1, "is not between 0 and 1"),
        ("canaries", canaries, canaries >= 0, "is negative"),
        ("doses", doses, doses is None or min(doses, default=0) > 0, "are below 1"),
    ):
        if not fits:
            raise InputError(f"{value} {what}", where=f"option --{option}")
    for example in examples:
        injected = any(span.origin == "injected" for span in example.spans)
        if example.canary or example.frames or injected:
            raise InputError(
                "holds injected identifiers already",
                where=f"example {example.id!r}",
                fix="inject into the data as it was imported or annotated",
            )
        training = example.training_input
        if training is not None and training.token_ids is not None:
            raise InputError(
                "was tokenised before and cannot get other text",
                where=f"example {example.id!r}",
                fix="inject into the rows that it was made of, and train on those",
            )


class _Plan:
    """Rows by id, their places, and by task and split those that are still free."""

    def __init__(self, examples: Sequence[Example], seed: int) -> None:
        self.seed, self.rows = seed, {example.id: example for example in examples}
        templates = task_templates(examples)
        self.places = {
            name: _places(example, template_ranges(example, templates))
            for name, example in self.rows.items()
        }
        self.sizes = Counter(map(self.group, self.rows))
        self.free: dict[Group, list[str]] = {group: [] for group in self.sizes}
        for name in sorted(self.rows, key=lambda name: seed_for(seed, "order", name)):
            if self.places[name]:
                self.free[self.group(name)].append(name)
        self.room = {
            group: min(count // 3, len(self.free[group]))
            for group, count in self.sizes.items()
        }
        self.canaries: dict[Canary, list[str]] = {}

    def group(self, name: str) -> Group:
        return self.rows[name].task, self.rows[name].split

    def take(self, tasks: list[str], split: Split) -> list[str]:
        """One free row of each task named, or none if there is no room for all."""
        needed = Counter((task, split) for task in tasks)
        if any(self.room[group] < count for group, count in needed.items()):
            return []
        for group, count in needed.items():
            self.room[group] -= count
        return [self.free[task, split].pop() for task in tasks]

    def drawn_as(self, canary: Canary) -> str:
        """Which of a pair's two draws the canary is: its own, or by a coin the other's.

        Nothing but the strings depends on the coin.
        """
        if canary.pair is None or not seed_for(self.seed, "coin", canary.pair) % 2:
            return canary.id
        return ("c" if canary.held_out else "h") + canary.id[1:]


def _assign(plan: _Plan, canaries: int, doses: Sequence[int] | None) -> list[str]:
    """Give canaries their rows; returns what there was no room for."""
    train = sorted(task for task, split in plan.sizes if split == "train")
    test = sorted(task for task, split in plan.sizes if split == "test")
    doses = list(doses or [len(train)])
    formats = list(CANARY_FORMATS)
    wanted = [doses[i % len(doses)] for i in range(canaries if train else 0)]
    planted, turn = dict[int, list[str]](), 0
    for i, dose in enumerate(wanted):
        tasks = [train[(turn + j) % len(train)] for j in range(dose)]
        if names := plan.take(tasks, "train"):
            planted[i] = names
            turn += dose
    held_out = {i: ids for i in planted if (ids := plan.take(test, "test"))}
    for out, rows in ((False, planted), (True, held_out)):
        for i, names in rows.items():
            canary = Canary(
                id=f"{'h' if out else 'c'}{i:03d}",
                format=formats[i % len(formats)],
                dose=0 if out else wanted[i],
                held_out=out,
                seed=0,
                pair=f"p{i:03d}" if i in held_out else None,
            )
            plan.canaries[canary] = names
    return [
        f"{found} of {asked} canaries {what}: at most a third of a task's {split} rows "
        "may hold one"
        for what, split, found, asked in (
            ("planted", "train", len(planted), canaries),
            ("held out", "test", len(held_out), len(planted)),
        )
        if found < asked
    ]


def _with_identifier(plan: _Plan, name: str, type: str, used: set[str]) -> Example:
    rng = np.random.default_rng(seed_for(plan.seed, "identifier", name))
    head, tail = FRAMES[type][int(rng.integers(len(FRAMES[type])))].split("{}")
    # The same string in a train and in a test row would be no secret of either.
    while (value := draw(type, rng, 1)[0]) in used:
        pass
    used.add(value)
    span = Span(len(head), len(head) + len(value), type, "injected")
    return _inserted(plan, name, head + value + tail, [span])


def _places(example: Example, fixed: Ranges) -> list[int]:
    """Where a sentence may be put into the prompt: between sentences, near its end."""
    prompt, found = example.prompt, set[int]()
    for start, end in parts_outside(fixed, len(prompt)):
        if segment := prompt[start:end].rstrip():
            ends = (m.end() for m in _SENTENCE_END.finditer(segment))
            first = len(segment) - len(segment.lstrip())
            found.update(start + at for at in (first, *ends, len(segment)))
    outside = sorted(
        place
        for place in found
        if not any(span.start < place < span.end for span in example.spans)
    )
    near = [place for place in outside if place >= len(prompt) - IDENTIFIER_REACH]
    return near or outside[-1:]


def _inserted(plan: _Plan, name: str, sentence: str, spans: list[Span]) -> Example:
    """The row with a sentence of its own at a place drawn for the row."""
    rng = np.random.default_rng(seed_for(plan.seed, "place", name))
    places = plan.places[name]
    place, example = places[int(rng.integers(len(places)))], plan.rows[name]
    before, after = example.prompt[:place], example.prompt[place:]
    left = " " if before and not before[-1].isspace() else ""
    behind = after + example.response
    right = " " if behind and not behind[0].isspace() else ""
    added = left + sentence + right

    def shift(start: int) -> int:
        return len(added) * (start >= place)

    old = (span.moved(shift(span.start)) for span in example.spans)
    first = place + len(left)
    new = (span.moved(first) for span in spans)
    fixed, training = example.template, example.training_input
    if training is not None:
        training = with_insertion(training, place, len(added))
    return replace(
        example,
        training_input=training,
        prompt=before + added + after,
        spans=(*old, *new),
        template=fixed and tuple((a + shift(a), b + shift(a)) for a, b in fixed),
        frames=((first, first + len(sentence)),),
    )
