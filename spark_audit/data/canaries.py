"""Synthetic identifiers and canaries: drawn, injected, and sets of candidates for them.

Nothing that is drawn belongs to anybody: e-mail domains are reserved for examples, area
codes with a middle 9 and social security numbers from 900 on are never assigned, cards
begin like payment processors' test cards. Every part is drawn *uniformly*, so that a
true canary and its candidates are exchangeable before training.

Identifiers go at one rate into train and test rows **[ours]**: in train rows only, they
would tell a text classifier which split a row is from, and void every membership
result.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from os.path import commonprefix
from typing import Any, Literal, TypeVar

import numpy as np

from spark_audit.data.examples import (
    Canary,
    Example,
    Part,
    Ranges,
    Span,
    Split,
    parts_outside,
)
from spark_audit.data.fixed_wording import task_templates, template_ranges
from spark_audit.data.training_input import with_insertion
from spark_audit.errors import InputError, one_of
from spark_audit.provenance import seed_for

T = TypeVar("T")
Encode = Callable[[list[str]], list[list[int]]]
Ranked = Literal["full", "password", "ssn"]

RANKED: tuple[Ranked, ...] = ("full", "password", "ssn")
CANARY_PARTS: Mapping[Part, str] = {
    "name": "NAME",
    "password": "PASSWORD",
    "ssn": "SSN",
}
"""A canary's parts and the types of their spans."""

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

CANARY_FORMATS: Mapping[str, str] = {
    "login": "{name} signs in with the password {password} and gave the social"
    " security number {ssn}.",
    "record": "On file: name {name}, password {password}, SSN {ssn}.",
    "reset": "The password of {name} is {password}, the social security number {ssn}.",
}
"""A canary's frames, used in turn; the name is what ``Canary.format`` holds."""

# --- drawing --------------------------------------------------------------------------

_PASSWORD_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits
PASSWORD_LENGTH = 10
HOSTS = ("example.com", "example.net", "example.org")


def pick(rng: np.random.Generator, choices: Sequence[T], n: int) -> list[T]:
    """``n`` of the choices, drawn uniformly; an only one takes no random number."""
    if len(choices) == 1:
        return [choices[0]] * n
    return [choices[i] for i in rng.integers(len(choices), size=n)]


_FORMS: Mapping[str, str] = {
    "NAME": "{} {}",
    "EMAIL": "{1}.{2}{3:02}@{0}",
    "PHONE": "{3[0]}{0}9{1}{3[1]}{2}-{4:04}",
    "SSN": "{}-{:02}-{:04}",
    "CREDIT_CARD": "400000{:09}",
    "ADDRESS": "{0} {4} {2}, {5}ville, {3} {1:05}",
}
"""What identifiers look like, all but passwords, with their parts by number."""


@lru_cache(maxsize=1)
def _parts() -> dict[str, tuple[Sequence[Any], ...]]:
    """What the parts of each type are, in the order that they are drawn in.

    Of Faker's English names each is there once: they are drawn uniformly, unweighted.
    """
    from faker.providers.person.en_US import Provider

    first, last = (
        sorted({name for name in names if name.isascii() and name.isalpha()})
        for names in (Provider.first_names, Provider.last_names)
    )
    lower = ([name.lower() for name in names] for names in (first, last))
    kinds = ("Street", "Avenue", "Road", "Lane", "Drive")
    states = ("CA", "FL", "IL", "NY", "OH", "PA", "TX", "WA")
    area, exchange, marks = range(2, 9), range(200, 1000), (("", "-"), ("(", ") "))
    four, house, code = range(10_000), range(1, 10_000), range(1, 99_999)
    return {
        "NAME": (first, last),
        "EMAIL": (HOSTS, *lower, range(100)),
        "PHONE": (area, range(10), exchange, marks, four),
        # Areas from 900 on are never social security numbers; tax numbers, which do
        # begin so, have a group from 50 on.
        "SSN": (range(900, 1000), range(1, 50), range(1, 10_000)),
        "CREDIT_CARD": (range(10**9),),
        "ADDRESS": (house, code, kinds, states, last, last),
    }


def draw(type: str, rng: np.random.Generator, n: int) -> list[str]:
    """``n`` synthetic identifiers of a type (not ID and OTHER)."""
    if type == "PASSWORD":
        rows = np.reshape(pick(rng, _PASSWORD_LETTERS, n * PASSWORD_LENGTH), (n, -1))
        return ["".join(row) for row in rows]
    columns = [pick(rng, part, n) for part in _parts()[type]]
    drawn = [_FORMS[type].format(*row) for row in zip(*columns, strict=True)]
    if type == "CREDIT_CARD":
        drawn = [" ".join(re.findall("....", checked(body))) for body in drawn]
    return drawn


def checked(body: str) -> str:
    """A card's number: all before its check digit, and that behind it."""
    from faker.utils.checksums import calculate_luhn

    return body + str(calculate_luhn(int(re.sub(r"\D", "", body))))


def draw_parts(seed: int) -> dict[Part, str]:
    """A canary's name, password and social security number from ``Canary.seed``."""
    rng = np.random.default_rng(seed)
    return {part: draw(type, rng, 1)[0] for part, type in CANARY_PARTS.items()}


def render(format: str, parts: Mapping[Part, str]) -> tuple[str, dict[Part, Span]]:
    """A canary's sentence, and the spans of its parts in it, in order.

    Raises
    ------
    InputError
        If there is no such format.
    """
    one_of(format, "field 'canary.format'", CANARY_FORMATS)
    text, spans = "", dict[Part, Span]()
    for fixed, name, _, _ in string.Formatter().parse(CANARY_FORMATS[format]):
        text += fixed
        part = next((part for part in CANARY_PARTS if part == name), None)
        if part is not None:
            end = len(text) + len(parts[part])
            spans[part] = Span(len(text), end, CANARY_PARTS[part], "injected", part)
            text += parts[part]
    return text, spans


def canary_ranges(example: Example) -> dict[str, tuple[int, int]]:
    """Characters of a row's canary: ``full``, ``name``, ``password`` and ``ssn``.

    Raises
    ------
    InputError
        If the row holds no canary, or not the one that its annotation tells of.
    """
    found = {s.part: (s.start, s.end) for s in example.spans if s.part is not None}
    if example.canary is None or set(found) != set(CANARY_PARTS):
        raise InputError("holds no whole canary", where=f"example {example.id!r}")
    parts = {part: example.text[slice(*place)] for part, place in found.items()}
    text, spans = render(example.canary.format, parts)
    start = min(found.values())[0] - min(span.start for span in spans.values())
    if start < 0 or example.text[start : start + len(text)] != text:
        raise InputError(
            f"its canary is not in the frame {example.canary.format!r}",
            where=f"example {example.id!r}",
            fix="inject again",
        )
    ranges: dict[str, tuple[int, int]] = {"full": (start, start + len(text))}
    return ranges | {part: found[part] for part in CANARY_PARTS}


def redrawn(
    format: str, part: Ranked, rng: np.random.Generator, size: int
) -> list[str]:
    """Strings that a part could as well be, drawn as the true one was."""
    if part != "full":
        return draw(CANARY_PARTS[part], rng, size)
    rows = zip(*(draw(type, rng, size) for type in CANARY_PARTS.values()), strict=True)
    found = (dict(zip(CANARY_PARTS, row, strict=True)) for row in rows)
    return [CANARY_FORMATS[format].format_map(parts) for parts in found]


# --- candidate sets -------------------------------------------------------------------

MAX_DRAWS = 200_000
"""Where so many strings hold too few candidates, a canary's part has none."""

NO_CANDIDATES: dict[str, Any] = {"candidates": [], "true_index": None}
GIVE_UP_DEVIATIONS = 6.0
"""Standard deviations by which a count must lack to give a search up."""


Context = tuple[str, int, int]
"""A text, and the characters of it that candidates replace, from and to."""


def candidates(
    format: str,
    parts: Mapping[Part, str],
    part: Ranked,
    *,
    encode: Encode,
    contexts: Sequence[Context],
    seed: int,
    n: int = 512,
) -> dict[str, Any]:
    """Strings that a canary's part could as well have been, the true one among them.

    They are drawn uniformly from the true one's generator and kept when they are new,
    have its number of tokens alone, and in every context give as many tokens and leave
    those before and behind the string unchanged. These are properties that the true
    string shares, so that given the set each of its members is as likely the true one,
    and the true one's index is drawn uniformly.

    Parameters
    ----------
    format, parts
        The canary's frame and its true parts.
    part
        ``password`` or ``ssn``: that part is replaced. ``full``: the whole sentence,
        with all parts drawn anew.
    encode
        Token ids of each text, as the model reads it, special tokens included. A
        tokenizer's ``backend_tokenizer.encode_batch_fast`` is the fastest.
    contexts
        Where the true string stands.
    seed
        One of its own for each canary and part, so that pools are independent, such as
        ``facts.seed_for(seed, canary.id, part)``.
    n
        Size of the set, the true one included. Where :data:`MAX_DRAWS` draws do not
        give it, the set is empty and says why; a search ends before where those made
        leave no hope of it.

    Returns
    -------
    dict
        ``candidates``, the ``true_index`` among them, and the ``reason`` if there are
        none.
    """
    true = render(format, parts)[0] if part == "full" else parts[part]
    rng, length = np.random.default_rng(seed), len(encode([true])[0])
    fits = [_fit(context, encode) for context in contexts]
    strings, seen = list[str](), {true}

    draws = 0
    while len(strings) < n - 1 and draws < MAX_DRAWS:
        size = min(4 * n, MAX_DRAWS - draws)
        drawn = dict.fromkeys(redrawn(format, part, rng, size))
        new = [text for text in drawn if text not in seen]
        seen.update(new)
        # In small lots: in place a text is long, and most of them are not needed.
        for at in range(0, len(new), n // 2):
            lot = new[at : at + n // 2]
            tokens = zip(lot, encode(lot), strict=True)
            lot = [text for text, ids in tokens if len(ids) == length]
            for fit in fits:
                lot = fit(lot)
            strings.extend(lot)
            if len(strings) >= n - 1:
                break
        draws += size
        wanted = draws * (n - 1) / MAX_DRAWS
        if wanted - len(strings) > GIVE_UP_DEVIATIONS * (1 + math.sqrt(wanted)):
            break
    if len(strings) < n - 1:
        reason = f"{draws} draws gave {len(strings) + 1} of {n} candidates"
        return NO_CANDIDATES | {"reason": f"{reason} of {length} tokens"}
    index = int(rng.integers(n))
    strings[index:] = [true, *strings[index : n - 1]]
    return {"candidates": strings, "true_index": index, "reason": None}


def _fit(context: Context, encode: Encode) -> Callable[[list[str]], list[str]]:
    """A filter: strings that change nothing in the context but their own tokens.

    Where a string's tokens begin and end is told by what the text shares with the
    tokenisation of what stands before and behind it: a blank before the string that one
    string takes into its first token and another does not is a change.
    """
    whole, start, end = context
    before, after = whole[:start], whole[end:]
    head, tail = (encode([text])[0] for text in (before, after))

    def shape(ids: list[int]) -> tuple[int, int, int]:
        ends = commonprefix([ids[::-1], tail[::-1]])
        return len(ids), len(commonprefix([ids, head])), len(ends)

    true = shape(encode([whole])[0])

    def keep(strings: list[str]) -> list[str]:
        rows = encode([before + text + after for text in strings]) if strings else []
        pairs = zip(strings, rows, strict=True)
        return [text for text, ids in pairs if shape(ids) == true]

    return keep


# --- injection into prompts -----------------------------------------------------------


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


# --- which row gets what --------------------------------------------------------------


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


# --- into the text --------------------------------------------------------------------


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
