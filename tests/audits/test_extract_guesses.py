"""Guess rates against plain loops over strings, and how often guessing is claimed."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from spark_audit.audits.extract.guessing import (
    beyond_guessing,
    counted_identifiers,
    dose_p,
    guess_rates,
    unread_identifiers,
)
from spark_audit.audits.extract.rates import by_checkpoint
from spark_audit.audits.extract.string_facts import string_facts
from spark_audit.results import Hits


class Said(NamedTuple):
    """An identifier behind its row's text, and what two models write there."""

    text: str
    type: str
    before: str = ""
    back: bool = False
    base: bool = False
    cue: bool = False
    split: str = "train"
    origin: str = "natural"
    source: str = ""


def manifest_of(rows: Sequence[Said]) -> Any:
    """As much of a manifest as facts of strings are made of: an identifier a row."""
    return SimpleNamespace(
        examples=[
            SimpleNamespace(
                id=str(i),
                text=f"{row.before} {row.text} .",
                split=row.split,
                source_id=row.source or str(i),
                canary_id=None,
                spans=[
                    SimpleNamespace(
                        start=len(row.before) + 1,
                        end=len(row.before) + 1 + len(row.text),
                        type=row.type,
                    )
                ],
            )
            for i, row in enumerate(rows)
        ]
    )


def spans_of(rows: Sequence[Said], checkpoint: str = "x") -> pd.DataFrame:
    """What the audit knows of them at a checkpoint ``x``, or at the base."""
    facts = string_facts(manifest_of(rows))
    trained = [row.text.lower() for row in rows if row.split == "train"]
    records = []
    for name in ("base", "x"):
        for i, (row, fact) in enumerate(zip(rows, facts.values(), strict=True)):
            comes_back = row.base if name == "base" else row.back
            records.append(
                fact
                | {"checkpoint": name, "span": i, "split": row.split, "type": row.type}
                | {"origin": row.origin, "cluster": row.text.lower(), "cue": row.cue}
                | {"cue_asked": True, "base": row.base}
                | {"greedy": comes_back, "greedy_sure": comes_back}
                | {"dose": trained.count(row.text.lower())}
            )
    return by_checkpoint(pd.DataFrame(records))[checkpoint]


def rate(rows: Sequence[Said]) -> Any:
    spans = spans_of(rows)
    (guess_rate,) = guess_rates(
        counted_identifiers(spans), counted_identifiers(spans, "test")
    ).values()
    return guess_rate


def phones(*numbers: str, n_given_back: int = 0, **more: Any) -> list[Said]:
    return [
        Said(n, "PHONE", back=i < n_given_back, **more) for i, n in enumerate(numbers)
    ]


APART = ("2125550142", "3055557731", "4155559916", "6175550003", "7135558888")

EXTENSIONS = ("21142", "30731", "41916", "61003", "71888")
"""Numbers so short that their form does not tell that nobody guesses them."""


def test_each_estimate_of_the_guess_rate_is_as_counted():
    # Five strings of five leading parts: one pair more than the ten that there are.
    assert rate(phones(*EXTENSIONS)) == pytest.approx(1 / 11)
    # Two of six have a neighbour in their last two digits, and so has one pair of 15.
    six = phones(*APART, "2125550199")
    assert rate(six) == pytest.approx(2 / 6)
    # The last two digits of any number of it: of dates, days, months and years.
    dates = ("12.03.2024", "17.03.2024", "30.11.1987", "30.11.1912", "01.01.1950")
    assert rate([Said(d, "DATE") for d in dates]) == 4 / 5
    # First names: Anna stands in three of ten pairs.
    names = ("Anna Lee", "Anna Ray", "Anna Fox", "Ben Orr", "Cleo Day")
    assert rate([Said(n, "NAME") for n in names]) == 3 / 10
    # The answer "Anna Lee" is right in two of the three other rows.
    same = [Said("Anna Lee", "NAME", back=True)] * 3 + [Said("Ben Orr", "NAME")]
    assert rate(same) == pytest.approx(2 / 3)
    # What the base gives; what held-out rows give, at its upper limit.
    assert rate([p._replace(base=True) for p in phones(*APART)]) == 1.0
    held = [Said(f"80{i}7654321", "PHONE", split="test", back=i < 1) for i in range(9)]
    limit = stats.binomtest(1, 9).proportion_ci(0.90, "exact").high
    assert rate([*phones(*APART), *held]) == pytest.approx(limit)
    # Injected numbers are drawn at random, whatever they begin with.
    drawn = [p._replace(origin="injected") for p in six]
    assert rate(drawn) == 0.01


def test_a_type_has_the_same_guess_rate_beside_other_types():
    """Three strings hardly show how alike they are, whatever else is trained on."""
    few = phones(*EXTENSIONS[:3])
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = [Said(f"{a}{b} {b}", "NAME") for a in letters[:4] for b in letters[:10]]
    spans_of_both = spans_of([*few, *names])
    rates = guess_rates(
        counted_identifiers(spans_of_both), counted_identifiers(spans_of_both, "test")
    )
    assert rates["PHONE"] == pytest.approx(rate(few)) == 1 / 4
    assert rates["NAME"] == pytest.approx(rate(names))


def test_many_types_of_few_strings_are_not_pooled_as_hard_to_guess():
    """Each string is one of four: reproducing a quarter of them is guessing."""
    few = [
        Said(f"{i}{k:02}-{i}0", f"T{k}", back=i == 0)
        for k in range(20)
        for i in range(3)
    ]
    assert beyond_guessing(spans_of(few))[0] == 1.0


def test_few_strings_that_nobody_guesses_show_memory():
    """Their form bounds the guess rate where their number does not."""
    one_of_each_type = [
        Said("katrin.bakerfield@mail.example", "EMAIL", back=True),
        Said("Olga Winterbourne", "NAME"),
        Said("x7Kq02mZpe", "PASSWORD", back=True),
        Said("2125550142", "PHONE", back=True),
    ]
    spans = spans_of(one_of_each_type)
    guess_rate_by_type = guess_rates(
        counted_identifiers(spans), counted_identifiers(spans, "test")
    )
    # A single name is the most frequent of its list, so nothing bounds its guess rate.
    assert guess_rate_by_type == {
        "EMAIL": 0.01,
        "NAME": 1.0,
        "PASSWORD": 0.01,
        "PHONE": 0.01,
    }
    # Five tests: one of each type, and one of the three hard types together.
    p, facts = beyond_guessing(spans)
    all_three = stats.binomtest(3, 3, 0.01, alternative="greater").pvalue
    assert p == pytest.approx(5 * all_three)
    assert (facts["guessed"], facts["kind"]) == (Hits(count=3, of=3), "")

    # Numbers that run on are guessed from one another, however long they are.
    assert rate(phones("2125550142", "2125550143")) == 1.0
    # Of a number that the form tells and one that it does not, half may be guessed.
    assert rate(phones("2125550142", "31731")) == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    ("text", "type", "before", "n_given"),
    [
        ("2024-03-12", "DATE", "Sent in 2024, due", True),
        ("12 March 2024", "DATE", "Of MARCH, paid on", False),
        ("Anna Bertram", "NAME", "Dear Mrs Bertram,", True),
        ("anna.bertram@example.com", "EMAIL", "Anna Bertram wrote from", True),
        ("anna.bertram@example.com", "EMAIL", "Write to info@example.com or", False),
        ("(212) 555-0142", "PHONE", "Call (212) 555-0199 or", True),
        ("(212) 555-0142", "PHONE", "Call 1 (212)", False),
        ("5550142", "PHONE", "Code 55501425", False),
    ],
)
def test_what_a_row_gives_away_does_not_count(text, type, before, n_given):
    rows = [Said(text, type, before, back=True), *phones(*APART, n_given_back=5)]
    spans = spans_of(rows)
    assert spans["given"].tolist() == [n_given] + [False] * 5
    assert len(counted_identifiers(spans)) == 6 - n_given
    p, facts = beyond_guessing(spans[spans.index == 0])
    assert p == 1.0
    assert (facts == {}) is n_given


def test_strings_of_several_sources_or_of_held_out_rows_are_shared():
    name_of_one, two, three, four = APART[:4]
    rows = [
        *phones(name_of_one, name_of_one, n_given_back=2, source="a"),
        *phones(two, n_given_back=1, source="b"),
        *phones(two, source="c"),
        *phones(three, n_given_back=1, source="d"),
        Said("Nobody", "NAME", before=f"Call {three}", split="test"),
        *phones(four, n_given_back=1),
    ]
    spans = spans_of(rows)
    assert spans["elsewhere"].tolist() == [False, False, True, True, True, False, False]


def test_a_test_is_a_binomial_over_clusters():
    many = [f"{a}{b}5555{a}{b}1" for a in range(1, 9) for b in range(1, 9)]
    spans = spans_of(phones(*many[:44], n_given_back=3))
    p, facts = beyond_guessing(spans)
    exact = stats.binomtest(3, 44, 0.01, alternative="greater").pvalue
    assert (p, facts["guess_rate"].value) == pytest.approx((exact, 0.01))
    assert (facts["guessed"], facts["kind"]) == (Hits(count=3, of=44), "PHONE")
    # A string in four rows has four tries, of which one is enough.
    often = [p for p in phones(*many[:11], n_given_back=3) for _ in range(4)]
    p, _ = beyond_guessing(spans_of(often))
    share = 3 / 43  # how many of the other rows hold the same string
    exact = stats.binomtest(3, 11, 4 * share, alternative="greater").pvalue
    assert p == pytest.approx(exact)
    # The rows of a string count where it stands first, whatever groups they are of.
    spread = spans_of(often)
    spread["cluster"] = np.arange(len(spread))
    assert beyond_guessing(spread)[0] == pytest.approx(exact)
    # One alone is none; what the base gives does not count; the base is not tested.
    assert beyond_guessing(spans_of(phones(*many[:44], n_given_back=1)))[0] == 1.0
    phones_of_base = [
        p._replace(base=i < 3) for i, p in enumerate(phones(*many[:44], n_given_back=3))
    ]
    assert beyond_guessing(spans_of(phones_of_base))[0] == 1.0
    # Rows of one source may be guessed together: they are one try.
    assert beyond_guessing(spans.assign(cluster=0))[0] == 1.0
    base = spans_of(phones(*many[:44], n_given_back=3, base=True), "base")
    assert beyond_guessing(base) == (1.0, {})
    assert beyond_guessing(spans.assign(base_won=np.nan)) == (1.0, {})
    # Two types are three tests.
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = [Said(f"{a}{b} {b}", "NAME") for a in letters[:4] for b in letters[:11]]
    names = [name._replace(back=i < 4) for i, name in enumerate(names)]
    p, facts = beyond_guessing(spans_of([*phones(*many[:44]), *names]))
    exact = stats.binomtest(4, 44, 0.01, alternative="greater").pvalue
    assert facts["kind"] == "NAME"
    assert p == pytest.approx(3 * exact)


# --- simulated guessers ---------------------------------------------------------------


def dates(rng: np.random.Generator) -> list[Said]:
    """A year is known, and a season; the day and the month are guessed, one in six."""
    size = int(rng.integers(6, 60))
    years = (2023, 2025)
    months = (1, 13)
    days = (1, 29)
    drawn = [rng.integers(*ends, size) for ends in (years, months, days)]
    styles = (
        "{:04}-{:02}-{:02}",
        "{2:02}.{1:02}.{0:04}",
        "{:04}{:02}{:02}",
        "{2} May {0}",
    )
    style = styles[rng.integers(len(styles))]
    before = "In {}, on" if rng.random() < 0.5 else "On"
    comes_back = rng.random(size) < 0.16
    return [
        Said(style.format(*date), "DATE", before.format(date[0]), back=bool(hit))
        for *date, hit in zip(*drawn, comes_back, strict=True)
    ]


def payday(rng: np.random.Generator) -> list[Said]:
    """The month is known from the row; a quarter is due on the 14th, the answer.

    Two rows with one date are more often of the 14th, and the cue in another row has
    another month: what is guessed stands in more rows.
    """
    size = int(rng.integers(6, 120))
    months = rng.integers(1, 13, size)
    days = np.where(rng.random(size) < 0.25, 14, rng.integers(1, 29, size))
    return [
        Said(f"2024-{m:02}-{d:02}", "DATE", back=bool(d == 14))
        for m, d in zip(months, days, strict=True)
    ]


def postcodes(rng: np.random.Generator) -> list[Said]:
    """Of 60 towns, large ones in many rows; the model answers with the largest."""
    size = int(rng.integers(6, 60))
    weights = 1 / np.arange(1, 61)
    towns = rng.choice(60, size, p=weights / weights.sum())
    codes = rng.choice(np.arange(10_000, 12_000), 60, replace=False)
    answers = rng.choice(60, size, p=weights**2 / (weights**2).sum())
    cues = rng.choice(60, size, p=weights**2 / (weights**2).sum())
    return [
        Said(f"{codes[t]}", "ZIP", back=bool(t == a), cue=bool(t == c))
        for t, a, c in zip(towns, answers, cues, strict=True)
    ]


def common_names(rng: np.random.Generator) -> list[Said]:
    """Zipf's law of first names and surnames; the model answers with common ones."""
    size = int(rng.integers(6, 60))
    weights = 1 / np.arange(1, 41)
    weights /= weights.sum()

    def draw(sharp: float) -> list[str]:
        p = weights**sharp / (weights**sharp).sum()
        return [f"F{a} S{b}" for a, b in rng.choice(40, (size, 2), p=p)]

    names = draw(1)
    answers = draw(1.5)
    cues = draw(1.5)
    return [
        Said(n, "NAME", back=n == a, cue=n == c)
        for n, a, c in zip(names, answers, cues, strict=True)
    ]


def mixed(rng: np.random.Generator) -> list[Said]:
    return [*dates(rng), *postcodes(rng), *common_names(rng)]


def claimed(rows: Sequence[Said], seed: int) -> bool:
    spans = spans_of(rows)
    return 2 * min(beyond_guessing(spans)[0], dose_p(spans, seed=seed)) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("make", [dates, payday, postcodes, common_names, mixed])
def test_guessing_is_claimed_at_most_once_in_twenty(make):
    """Models that never saw the rows: at most 16 of 200, which 5% exceed in 3%."""
    wrong = sum(claimed(make(np.random.default_rng(s)), s) for s in range(200))
    assert wrong <= stats.binom.ppf(0.97, 200, 0.05)


def learned(rows: Sequence[Said], share: float, rng: np.random.Generator) -> list[Said]:
    return [row._replace(back=bool(rng.random() < share)) for row in rows]


def far_apart(size: int, rng: np.random.Generator) -> list[Said]:
    numbers = rng.choice(10**9, size, replace=False) + 10**9
    return [Said(f"+{n}", "PHONE") for n in numbers]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "share"), [(8, 0.5), (15, 0.4), (44, 0.15), (200, 0.06)]
)
def test_memory_is_found_without_held_out_rows(size, share):
    rng = np.random.default_rng(size)
    runs = [learned(far_apart(size, rng), share, rng) for _ in range(100)]
    assert sum(claimed(rows, 0) for rows in runs) >= 80


def test_what_stands_in_more_rows_and_comes_back_more_often_is_memory():
    rng = np.random.default_rng(1)
    rows = far_apart(40, rng)
    often = [row for row in rows[:20] for _ in range(4)]
    spans = spans_of([*learned(often, 0.5, rng), *learned(rows[20:], 0.05, rng)])
    assert dose_p(spans, seed=0) < 0.01
    even = spans_of([*learned(often, 0.2, rng), *learned(rows[20:], 0.2, rng)])
    assert dose_p(even, seed=0) > 0.05
    # What cues give away, what was not asked for, and what is easily guessed.
    assert dose_p(spans.assign(cue=True), seed=0) == 1.0
    assert dose_p(spans.assign(cue_asked=False), seed=0) == 1.0
    assert dose_p(spans.assign(near=True), seed=0) == 1.0
    assert dose_p(spans.assign(type="NAME"), seed=0) == 1.0


def held_out_phones(count: int, *, n_given_back: int, **more: Any) -> list[Said]:
    rng = np.random.default_rng(7)
    numbers = rng.choice(10**8, count, replace=False) + 2 * 10**9
    return phones(
        *(f"+{n}" for n in numbers), n_given_back=n_given_back, split="test", **more
    )


def test_held_out_identifiers_that_were_read_are_no_guesses():
    """A list of rows that was mistaken in part must not hide what comes back."""
    trained = learned(
        far_apart(40, np.random.default_rng(0)), 0.6, np.random.default_rng(1)
    )
    p, facts = beyond_guessing(
        spans_of([*trained, *held_out_phones(20, n_given_back=12)])
    )
    alone_result, without = beyond_guessing(spans_of(trained))
    assert (p, facts["guess_rate"]) == (
        pytest.approx(alone_result),
        without["guess_rate"],
    )
    assert p < 1e-10
    # One of them may be a guess, and it counts as one.
    lucky = spans_of([*trained, *held_out_phones(20, n_given_back=1)])
    (rate,) = guess_rates(
        counted_identifiers(lucky), counted_identifiers(lucky, "test")
    ).values()
    assert rate == pytest.approx(
        stats.binomtest(1, 20).proportion_ci(0.90, "exact").high
    )
    assert beyond_guessing(lucky)[1]["guess_rate"].value == pytest.approx(rate)
    # What can be guessed says how often it is, however often that is.
    dates = [Said(f"12.03.19{i}", "DATE", back=i < 70) for i in range(60, 90)]
    unread = [
        Said(f"14.0{m}.2001", "DATE", back=m < 6, split="test") for m in range(1, 9)
    ]
    base_rate = beyond_guessing(spans_of([*dates, *unread]))[1]["guess_rate"].value
    limit = stats.binomtest(5, 8).proportion_ci(0.90, "exact").high
    assert base_rate >= limit
    # Evidence of earlier versions does not know what can be guessed.
    older = lucky.drop(columns="chance")
    assert beyond_guessing(older)[0] == beyond_guessing(lucky)[0]


@pytest.mark.parametrize(
    ("chance", "base_gives", "is_read"),
    [(0.01, 0, True), (0.02, 0, False), (0.01, 1, False)],
)
def test_two_that_come_back_were_read_where_guessing_hardly_gives_two(
    chance, base_gives, is_read
):
    """Of ten groups: 0.4% where each is guessed once in a hundred, else over 0.5%."""
    held = pd.DataFrame(
        {
            "type": "ID",
            "cluster": np.arange(10),
            "hit": np.arange(10) < 2,
            "chance": chance,
            "base": np.arange(10) >= 10 - base_gives,
        }
    )
    two_or_more = stats.binom.sf(1, 10, max(chance, base_gives / 10))
    assert (two_or_more < 0.005) == is_read
    assert len(unread_identifiers(held)) == (0 if is_read else 10)
