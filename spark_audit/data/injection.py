"""Put synthetic identifiers and canaries into the prompts of a stream of tasks.

Identifiers are put into train and test rows at the same rate **[ours]**. If only train
rows had them, a text classifier could tell the split of a row, and every membership
result would be void.

:func:`inject` goes through the steps: an :class:`InjectionPlan` knows the rows and
their free positions, :func:`_assign_rows` gives rows to canaries, then the sentences
are put in. A further type of identifiers needs frames in :data:`FRAMES`, and a
generator in ``canaries.py``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spark_audit.arguments import checked_call
from spark_audit.data.canaries import CANARY_FORMATS, draw, draw_parts, render
from spark_audit.data.examples import (
    Canary,
    Example,
    Ranges,
    Span,
    Split,
    parts_outside,
)
from spark_audit.data.fixed_wording import whole_ranges
from spark_audit.data.task_wording import task_wordings
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
"""Frames of single identifiers by type, the same in train and test rows. ``{}`` stands
for the identifier. The types take turns in this order."""

TaskAndSplit = tuple[str, Split]
"""The rows of a task's split; canaries and identifiers are spread over each alike."""

IDENTIFIER_REACH = 600
"""Characters from the prompt's end within which identifiers are put. A model with a
short context loses the beginning of a long prompt and everything in it."""

_SENTENCE_END = re.compile(
    r"(?<!\bMr)(?<!\bMs)(?<!\bDr)(?<!\bSt)(?<!\bvs)[.!?][\"')\]\u201d\u2019]*\s+|\n\s*"
)


@dataclass(frozen=True)
class InjectionReport:
    """Counts of what was injected, and reasons for what was not.

    ``planted`` counts planted canaries by dose (the number of train rows that hold
    one), and ``held_out`` the held-out canaries. ``rows`` gives for each task and split
    the number of rows, of rows with an identifier and of rows with a canary.
    """

    planted: dict[int, int]
    held_out: int
    rows: dict[TaskAndSplit, tuple[int, int, int]]
    notes: tuple[str, ...]


@checked_call
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
    same rate. Sentences are put between the prompt's sentences, never into fixed
    wording, an annotated span or the response; ``Example.frames`` gives their
    positions.

    Each canary stands once in the train rows of each task. With ``doses``, each dose
    has its own canaries, spread evenly over the tasks. As many held-out canaries, in
    the same frames, stand once in the test rows of each task. A row holds at most one
    canary, and at most a third of a task's train or test rows hold one. If there is no
    room, fewer canaries are planted, and the report says so.

    Canaries are drawn in pairs. A fair coin decides which one of a pair is planted and
    which is held out (``Canary.pair``); a lower bound of epsilon rests on these coins.
    The choice of rows, and everything else in them, does not depend on the coins.

    Parameters
    ----------
    examples
        Rows of all tasks of the stream, in any order.
    seed
        Determines everything, together with the rows' ids.
    rate
        Share of the rows without a canary that get an identifier.
    canaries
        Number of canaries to plant.
    doses
        Numbers of train rows that hold a canary, assigned to the canaries in turn.

    Returns
    -------
    tuple
        The examples in the order given, and the report.

    Raises
    ------
    InputError
        If a number is out of range, or the rows hold injected identifiers already.

    Examples
    --------
    >>> with_canaries, counts = sa.inject(rows, seed=0, rate=0.0, canaries=2)
    >>> counts.planted  # train rows that hold one: number of canaries
    {1: 2}
    """
    _check_options(rate, canaries, doses)
    _check_rows(examples)

    plan = InjectionPlan(examples, seed)
    notes = _assign_rows(plan, canaries, doses)
    used: set[str] = set()  # strings of a row that no other row may get
    injected = _with_canaries(plan, used)  # row id -> row, of changed rows

    rows_by_group: dict[TaskAndSplit, tuple[int, int, int]] = {}
    for group in sorted(plan.n_rows):
        # Counts are rounded half up, in train and in test rows alike.
        task, split = group
        n_canary_rows = sum(plan.task_and_split(row_id) == group for row_id in injected)
        n_wanted = math.floor(rate * (plan.n_rows[group] - n_canary_rows) + 0.5)
        row_ids = plan.free[group][:n_wanted]
        if len(row_ids) < n_wanted:
            notes.append(
                f"{len(row_ids)} of {n_wanted} {split} rows of {task} got an "
                "identifier: the others have no place for one"
            )

        # The types take turns, so that splits differ by at most one row of a type.
        types = list(FRAMES)
        first_turn = seed_for(seed, "type", *group)
        for turn, row_id in enumerate(row_ids, start=first_turn):
            type = types[turn % len(types)]
            injected[row_id] = _with_identifier(plan, row_id, type, used)
        rows_by_group[group] = (plan.n_rows[group], len(row_ids), n_canary_rows)

    canaries_by_dose = Counter(canary.dose for canary in plan.canaries)
    n_held_out = canaries_by_dose.pop(0, 0)
    report = InjectionReport(
        planted=dict(sorted(canaries_by_dose.items())),
        held_out=n_held_out,
        rows=rows_by_group,
        notes=tuple(notes),
    )
    return [injected.get(example.id, example) for example in examples], report


def _with_canaries(plan: InjectionPlan, used: set[str]) -> dict[str, Example]:
    """Return the rows that hold a canary, by id; add their strings to ``used``."""
    rows: dict[str, Example] = {}
    for canary, row_ids in plan.canaries.items():
        # The pair's coin decides which of two strings this canary gets.
        canary_seed = seed_for(plan.seed, plan.drawn_as(canary), 0)
        drawn = replace(canary, seed=canary_seed)
        parts = draw_parts(drawn.seed)
        text, spans = render(drawn.format, parts)
        used |= {text, *parts.values()}
        for row_id in row_ids:
            row = _inserted(plan, row_id, text, [*spans.values()])
            rows[row_id] = replace(row, canary=drawn)
    return rows


def _check_options(rate: float, canaries: int, doses: Sequence[int] | None) -> None:
    """Refuse a number that is out of range."""
    if not 0 <= rate <= 1:
        raise InputError(
            f"{rate} is not between 0 and 1",
            where="option --rate",
            fix="give the share of rows that get an identifier, such as 0.3",
        )
    if canaries < 0:
        raise InputError(
            f"{canaries} is negative",
            where="option --canaries",
            fix="give the number of canaries, 0 for none",
        )
    if doses is not None and min(doses, default=0) <= 0:
        raise InputError(
            f"{doses} are below 1",
            where="option --doses",
            fix="give numbers of train rows, such as 1,4,16",
        )


def _check_rows(examples: Sequence[Example]) -> None:
    """Refuse rows that already hold injected text, or have no place for any."""
    for example in examples:
        has_injected_span = any(span.origin == "injected" for span in example.spans)
        if example.canary or example.frames or has_injected_span:
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


class InjectionPlan:
    """The rows, the positions for sentences in them, and the canaries' rows.

    Attributes
    ----------
    seed
        The seed of the injection.
    rows
        All rows, by id.
    positions
        Row id -> the positions of its prompt at which a sentence may be put.
    n_rows
        Number of rows of each task and split.
    free
        Ids of the rows that have a position and no canary yet, in random order. Rows
        for canaries are taken from the end, those for identifiers from the beginning.
    room
        Number of rows of each task and split that may still get a canary.
    canaries
        Canary -> ids of the rows that get it, as :func:`_assign_rows` chose them.
    """

    def __init__(self, examples: Sequence[Example], seed: int) -> None:
        self.seed = seed
        self.rows = {example.id: example for example in examples}
        self.canaries: dict[Canary, list[str]] = {}

        templates = task_wordings(examples)
        self.positions = {
            row_id: _positions(example, whole_ranges(example, templates))
            for row_id, example in self.rows.items()
        }

        # Sorted by a hash of their ids: a further row does not change the others'
        # order.
        self.n_rows = Counter(self.task_and_split(row_id) for row_id in self.rows)
        self.free: dict[TaskAndSplit, list[str]] = {group: [] for group in self.n_rows}
        for row_id in sorted(
            self.rows, key=lambda row_id: seed_for(seed, "order", row_id)
        ):
            if self.positions[row_id]:
                self.free[self.task_and_split(row_id)].append(row_id)

        # At most a third of a group's rows hold a canary.
        self.room: dict[TaskAndSplit, int] = {}
        for group, n_rows in self.n_rows.items():
            self.room[group] = min(n_rows // 3, len(self.free[group]))

    def task_and_split(self, row_id: str) -> TaskAndSplit:
        """Return the task and the split of a row."""
        return self.rows[row_id].task, self.rows[row_id].split

    def take(self, tasks: list[str], split: Split) -> list[str]:
        """Take a free row of each task for a canary, and return their ids.

        If one of them has no room, take no row and return an empty list.

        Parameters
        ----------
        tasks
            A task may occur several times: then it gives several rows.
        """
        # A canary in only some of its tasks would have another dose.
        needed = Counter((task, split) for task in tasks)
        if any(self.room[group] < count for group, count in needed.items()):
            return []
        for group, count in needed.items():
            self.room[group] -= count
        return [self.free[task, split].pop() for task in tasks]

    def drawn_as(self, canary: Canary) -> str:
        """Return the id of the canary in whose name this canary's parts are drawn.

        The pair's coin decides: either both canaries draw in their own name, or each
        in that of the other. Only the strings depend on the coin.
        """
        if canary.pair is None or not seed_for(self.seed, "coin", canary.pair) % 2:
            return canary.id

        # Ids begin with c for planted canaries and with h for held-out ones.
        other_letter = "c" if canary.held_out else "h"
        return other_letter + canary.id[1:]


def _assign_rows(
    plan: InjectionPlan, canaries: int, doses: Sequence[int] | None
) -> list[str]:
    """Assign rows to canaries in the plan; return notes on canaries without room."""
    train_tasks = sorted(task for task, split in plan.n_rows if split == "train")
    test_tasks = sorted(task for task, split in plan.n_rows if split == "test")

    # The doses take turns, and each canary continues with the next tasks.
    dose_turns = list(doses or [len(train_tasks)])
    n_canaries = canaries if train_tasks else 0
    dose_of = [dose_turns[i % len(dose_turns)] for i in range(n_canaries)]
    planted = dict[int, list[str]]()  # number of a canary -> ids of its rows
    next_task = 0
    for i, dose in enumerate(dose_of):
        tasks = [train_tasks[(next_task + j) % len(train_tasks)] for j in range(dose)]
        row_ids = plan.take(tasks, "train")
        if row_ids:
            planted[i] = row_ids
            next_task += dose

    # Each planted canary has a held-out partner, as far as there is room.
    held_out = dict[int, list[str]]()  # number of the planted partner -> ids of rows
    for i in planted:
        row_ids = plan.take(test_tasks, "test")
        if row_ids:
            held_out[i] = row_ids

    for i, row_ids in planted.items():
        pair = _pair_name(i) if i in held_out else None
        canary = _canary(i, dose=dose_of[i], is_held_out=False, pair=pair)
        plan.canaries[canary] = row_ids
    for i, row_ids in held_out.items():
        canary = _canary(i, dose=0, is_held_out=True, pair=_pair_name(i))
        plan.canaries[canary] = row_ids

    notes = []
    if len(planted) < canaries:
        notes.append(
            f"{len(planted)} of {canaries} canaries planted: at most a third of a "
            "task's train rows may hold one"
        )
    if len(held_out) < len(planted):
        notes.append(
            f"{len(held_out)} of {len(planted)} canaries held out: at most a third of "
            "a task's test rows may hold one"
        )
    return notes


def _pair_name(number: int) -> str:
    """Return the name of a pair: ``p000``, ``p001``, ..."""
    return f"p{number:03d}"


def _canary(number: int, *, dose: int, is_held_out: bool, pair: str | None) -> Canary:
    """Return a canary with undrawn parts; its number determines its frame."""
    formats = list(CANARY_FORMATS)
    prefix = "h" if is_held_out else "c"
    return Canary(
        id=f"{prefix}{number:03d}",
        format=formats[number % len(formats)],
        dose=dose,
        held_out=is_held_out,
        seed=0,  # :func:`_with_canaries` replaces it
        pair=pair,
    )


def _with_identifier(
    plan: InjectionPlan, row_id: str, type: str, used: set[str]
) -> Example:
    """Return the row with an identifier of a type; no other row has its string."""
    # The row's id seeds the draw, so the order of the rows does not matter.
    rng = np.random.default_rng(seed_for(plan.seed, "identifier", row_id))
    head, tail = FRAMES[type][int(rng.integers(len(FRAMES[type])))].split("{}")
    # A string in both a train row and a test row would be a secret of neither.
    value = draw(type, rng, 1)[0]
    while value in used:
        value = draw(type, rng, 1)[0]
    used.add(value)
    span = Span(len(head), len(head) + len(value), type, "injected")
    return _inserted(plan, row_id, head + value + tail, [span])


def _positions(example: Example, fixed: Ranges) -> list[int]:
    """Return the positions for a sentence: between sentences, near the prompt's end.

    Parameters
    ----------
    fixed
        Character ranges of the row's fixed wording, where no sentence is put.
    """
    prompt = example.prompt
    borders = set[int]()
    for start, end in parts_outside(fixed, len(prompt)):
        segment = prompt[start:end].rstrip()
        if not segment:
            continue

        first_word = len(segment) - len(segment.lstrip())
        borders.add(start + first_word)
        borders.add(start + len(segment))
        for sentence_end in _SENTENCE_END.finditer(segment):
            borders.add(start + sentence_end.end())

    positions = []
    for border in sorted(borders):
        is_in_span = any(span.start < border < span.end for span in example.spans)
        if not is_in_span:
            positions.append(border)

    # If the last sentence alone is too long, the last position is the nearest one.
    earliest = len(prompt) - IDENTIFIER_REACH
    near_end = [position for position in positions if position >= earliest]
    return near_end or positions[-1:]


def _inserted(
    plan: InjectionPlan, row_id: str, sentence: str, spans: list[Span]
) -> Example:
    """Return the row with a sentence inserted at one of its positions, by chance.

    Parameters
    ----------
    spans
        Spans in characters of the sentence.
    """
    rng = np.random.default_rng(seed_for(plan.seed, "place", row_id))
    positions = plan.positions[row_id]
    position = positions[int(rng.integers(len(positions)))]

    # The sentence gets a blank on each side that has no white space.
    example = plan.rows[row_id]
    before = example.prompt[:position]
    after = example.prompt[position:]
    text_behind = after + example.response
    left = " " if before and not before[-1].isspace() else ""
    right = " " if text_behind and not text_behind[0].isspace() else ""
    added = left + sentence + right

    def shift(start: int) -> int:
        """Return the characters by which a range that starts here moves."""
        return len(added) if start >= position else 0

    old_spans = [span.moved(shift(span.start)) for span in example.spans]
    sentence_start = position + len(left)
    new_spans = [span.moved(sentence_start) for span in spans]

    template = example.template
    if template:
        template = tuple(
            (start + shift(start), end + shift(start)) for start, end in template
        )
    training = example.training_input
    if training is not None:
        training = with_insertion(training, position, len(added))

    return replace(
        example,
        prompt=before + added + after,
        training_input=training,
        spans=(*old_spans, *new_spans),
        template=template,
        frames=((sentence_start, sentence_start + len(sentence)),),
    )
