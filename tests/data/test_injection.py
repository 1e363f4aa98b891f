"""Identifiers and canaries that are put into rows, and what every row keeps."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_audit.data import injection
from spark_audit.data.canaries import (
    CANARY_PARTS,
    canary_ranges,
    draw_parts,
    render,
)
from spark_audit.data.examples import Canary, Example, Span
from spark_audit.data.injection import FRAMES, inject
from spark_audit.data.task_wording import task_wordings
from spark_audit.errors import InputError

WORDS = "rates rose while growth held firm and prices fell back slowly today".split()


def stream(*, tasks=("t", "u"), train=90, test=60, seed=0):
    """Rows of made-up sentences; train and test are of one distribution."""
    rng = np.random.default_rng(seed)
    rows = []
    for task in tasks:
        for i in range(train + test):
            split = "train" if i < train else "test"
            lengths = rng.integers(3, 9, size=rng.integers(1, 6))
            texts = [" ".join(rng.choice(WORDS, size=n)) for n in lengths]
            text = " ".join(f"{s.capitalize()}." for s in texts)
            name = f"{task}-{i:04d}"
            prompt = f"Text: {text}\nLabel:"
            rows.append(Example(name, task, prompt, " up", split, name))
    return rows


def groups(rows):
    return Counter((row.task, row.split) for row in rows)


def without(row):
    """The row's text without what was injected, by the frames' own words."""
    if row.canary:
        start, end = canary_ranges(row)["full"]
        return row.prompt[:start], row.prompt[end:]
    (span,) = (s for s in row.spans if s.origin == "injected")
    for frame in FRAMES[span.type]:
        head, tail = frame.split("{}")
        start, end = span.start - len(head), span.end + len(tail)
        removed = row.prompt[max(start, 0) : end]
        if start >= 0 and removed == head + row.text[span.start : span.end] + tail:
            return row.prompt[:start], row.prompt[end:]
    raise AssertionError(row.id)


def squeezed(text):
    return "".join(text.split())


# --- what every injection must keep ---------------------------------------------------


@pytest.fixture(scope="module")
def injected():
    rows = stream()
    return rows, *inject(rows, seed=1, canaries=12)


def test_one_sentence_is_added_between_sentences(injected):
    before, after, _ = injected
    for old, new in zip(before, after, strict=True):
        if new.prompt == old.prompt:
            assert new == old
            continue
        head, tail = without(new)
        assert squeezed(head + tail) == squeezed(old.prompt)
        assert head.endswith(("Text: ", ". "))
        assert tail.startswith((" ", "\nLabel:"))
        assert "  " not in new.prompt


def test_spans_hold_what_was_drawn(injected):
    _, after, _ = injected
    for row in after:
        if row.canary:
            parts_drawn = draw_parts(row.canary.seed)
            held = {s.part: row.text[s.start : s.end] for s in row.spans}
            assert held == parts_drawn
            start, end = canary_ranges(row)["full"]
            assert row.text[start:end] == render(row.canary.format, parts_drawn)[0]
            assert {s.type for s in row.spans} == set(CANARY_PARTS.values())
        assert all(s.origin == "injected" for s in row.spans)
        assert len(row.spans) == (3 if row.canary else len(row.spans) and 1)


def test_fixed_wording_stays_what_it_was(injected):
    before, after, _ = injected
    wording = {"t": ("Text: ", "\nLabel:"), "u": ("Text: ", "\nLabel:")}
    assert task_wordings(before) == task_wordings(after) == wording


def test_the_order_of_the_rows_does_not_matter(injected):
    before, after, report = injected
    shuffled = list(before)
    random.Random(0).shuffle(shuffled)
    again, injected_again = inject(shuffled, seed=1, canaries=12)
    assert [row.id for row in again] == [row.id for row in shuffled]
    assert {row.id: row for row in again} == {row.id: row for row in after}
    assert injected_again == report


# --- identifiers ----------------------------------------------------------------------


def test_the_rate_is_of_rows_without_a_canary(injected):
    _, after, report = injected
    for group, (size, identified, held) in report.rows.items():
        rows = [row for row in after if (row.task, row.split) == group]
        assert size == len(rows)
        assert held == sum(row.canary is not None for row in rows) == 12
        assert identified == sum(bool(row.spans) and not row.canary for row in rows)
        assert identified == int(0.3 * (size - held) + 0.5)


def test_types_are_even_in_every_split():
    rows = stream(train=200, test=100)
    after, _ = inject(rows, seed=3, rate=0.7, canaries=0)
    for group in groups(rows):
        counts = Counter(
            s.type for r in after if (r.task, r.split) == group for s in r.spans
        )
        assert set(counts) == set(FRAMES)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_no_identifier_stands_twice(injected):
    _, after, _ = injected
    strings = Counter()
    for row in after:
        if not row.canary:
            strings.update(row.text[s.start : s.end] for s in row.spans)
    canaries = {
        v for r in after if r.canary for v in draw_parts(r.canary.seed).values()
    }
    assert max(strings.values()) == 1
    assert not canaries & set(strings)


# --- canaries -------------------------------------------------------------------------


def test_each_canary_stands_once_in_each_task(injected):
    _, after, report = injected
    assert (report.planted, report.held_out, report.notes) == ({2: 12}, 12, ())
    places = Counter((r.canary.id, r.task, r.split) for r in after if r.canary)
    assert set(places.values()) == {1}
    ids = {i: f"c{i:03d}" for i in range(12)}
    for i, name in ids.items():
        assert {(name, "t", "train"), (name, "u", "train")} <= set(places), i
        held_out = name.replace("c", "h")
        assert {(held_out, "t", "test"), (held_out, "u", "test")} <= set(places)
    for row in after:
        if row.canary:
            assert row.canary.held_out == (row.split == "test")
            assert row.canary.dose == (0 if row.split == "test" else 2)
    # Planted and held-out canaries have the same frames, equally often.
    frames = {(r.canary.id, r.canary.format) for r in after if r.canary}
    assert Counter(f for n, f in frames if n[0] == "c") == Counter(
        f for n, f in frames if n[0] == "h"
    )


def test_each_canary_stands_in_as_many_rows_as_its_dose():
    rows = stream(train=400, test=100)
    after, report = inject(rows, seed=0, canaries=8, doses=[1, 4, 16, 64])
    assert report.planted == {1: 2, 4: 2, 16: 2, 64: 2}
    assert (report.held_out, report.notes) == (8, ())
    counts = Counter(r.canary.id for r in after if r.canary and r.split == "train")
    dose = {r.canary.id: r.canary.dose for r in after if r.canary}
    assert all(counts[name] == dose[name] for name in counts)
    by_task = Counter(r.task for r in after if r.canary and r.split == "train")
    assert abs(by_task["t"] - by_task["u"]) <= 1


def test_no_more_than_a_third_of_the_rows_holds_canaries():
    after, report = inject(stream(train=20, test=10), seed=0, canaries=50, rate=1)
    assert report.planted == {2: 6}
    assert report.held_out == 3
    assert report.notes == (
        "6 of 50 canaries planted: at most a third of a task's train rows may hold one",
        "3 of 6 canaries held out: at most a third of a task's test rows may hold one",
    )
    for group, (size, identified, held) in report.rows.items():
        assert held <= size // 3, group
        assert identified == size - held
    assert all(len(r.spans) == (3 if r.canary else 1) for r in after)


def test_a_dose_that_does_not_fit_leaves_room_for_smaller_ones():
    _, report = inject(stream(train=60, test=30), seed=0, canaries=6, doses=[1, 4, 64])
    assert report.planted == {1: 2, 4: 2}
    assert report.notes[0].startswith("4 of 6 canaries planted")


def test_without_train_rows_nothing_is_planted():
    after, report = inject(stream(train=0), seed=0, canaries=3)
    assert (report.planted, report.held_out) == ({}, 0)
    assert report.notes == (
        "0 of 3 canaries planted: at most a third of a task's train rows may hold one",
    )
    assert any(row.spans for row in after)


# --- coins, and canaries that bite ----------------------------------------------------


def passwords(rows):
    return {
        row.canary.id: row.text[slice(*canary_ranges(row)["password"])]
        for row in rows
        if row.canary
    }


def test_a_coin_says_which_of_a_pair_is_planted(injected):
    rows, after, _ = injected
    pairs = {row.canary.id: row.canary.pair for row in after if row.canary}
    assert pairs == {f"{c}{i:03d}": f"p{i:03d}" for c in "ch" for i in range(12)}
    fell = [
        injection.InjectionPlan(rows, seed).drawn_as(
            Canary(f"c{i}", "x", 1, False, 0, pair=f"p{i}")
        )
        == f"h{i}"
        for seed in range(10)
        for i in range(20)
    ]
    # 200 fair coins: further out in 1 of 1,000.
    assert abs(sum(fell) - 100) < 24


def test_only_strings_depend_on_the_coins(monkeypatch):
    rows = stream()
    rows_by_coin = []
    for turned in (False, True):

        def drawn_as(plan, canary, turned=turned):
            first = "hc"[turned] if canary.held_out else "ch"[turned]
            return first + canary.id[1:]

        monkeypatch.setattr(injection.InjectionPlan, "drawn_as", drawn_as)
        rows_by_coin.append(inject(rows, seed=2, canaries=6)[0])
    passwords_of_one, passwords_of_other = map(passwords, rows_by_coin)
    assert {
        k.translate(str.maketrans("ch", "hc")): v for k, v in passwords_of_one.items()
    } == passwords_of_other
    for row, other_row in zip(*rows_by_coin, strict=True):
        assert (row.canary is None) == (other_row.canary is None)
        assert row.canary is not None or row == other_row


# --- places ---------------------------------------------------------------------------

SENTENCES = [
    "It rose.",
    "Mr. Lee fell!",
    'He said "no."',
    "a\nb",
    "Why? (So.)",
    "x",
    "",
]


@settings(max_examples=200)
@given(
    parts=st.lists(st.sampled_from(SENTENCES), max_size=5),
    cuts=st.lists(st.integers(0, 70), max_size=6),
    fixed=st.lists(st.integers(0, 70), max_size=4),
    response=st.sampled_from(["", " up", "up"]),
    seed=st.integers(0, 5),
)
# Wording that begins or ends inside a span.
@example(parts=["It rose."], cuts=[0, 2], fixed=[0, 1], response="", seed=1)
@example(parts=["It rose."], cuts=[0, 2], fixed=[1, 4], response="", seed=2)
def test_nothing_is_put_into_spans_wording_or_response(
    parts, cuts, fixed, response, seed
):
    prompt = " ".join(parts)
    if not (prompt + response).strip():
        return

    def ranges(numbers):
        edges = sorted({n for n in numbers if n <= len(prompt + response)})
        return tuple(zip(edges[::2], edges[1::2], strict=False))

    spans = tuple(Span(a, b, "OTHER") for a, b in ranges(cuts))
    old = Example("a", "t", prompt, response, "train", "a", spans, None, ranges(fixed))
    (new,), report = inject([old], seed=seed, rate=1, canaries=0)
    assert new.response == old.response
    assert [new.text[a:b] for a, b in new.template] == [
        old.text[a:b] for a, b in old.template
    ]
    kept_spans = [s for s in new.spans if s.origin == "natural"]
    assert [new.text[s.start : s.end] for s in kept_spans] == [
        old.text[s.start : s.end] for s in old.spans
    ]
    if new == old:
        assert report.notes[0].startswith("0 of 1 train rows of t got an identifier")
    else:
        head, tail = without(new)
        assert squeezed(head + tail + response) == squeezed(prompt + response)
        assert not head or head[-1].isspace()
        assert not (tail + response) or (tail + response)[0].isspace()
        # The beginning and the end of the prompt stay where fixed wording is.
        if old.template and old.template[0][0] == 0:
            assert new.template[0] == old.template[0]


# --- refusals -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 1.1}, "option --rate: 1.1 is not between 0 and 1"),
        ({"rate": float("nan")}, "option --rate: nan is not between 0 and 1"),
        ({"canaries": -1}, "option --canaries: -1 is negative"),
        ({"doses": []}, "option --doses: [] are below 1"),
        ({"doses": [0, 1]}, "option --doses: [0, 1] are below 1"),
    ],
)
def test_a_bad_option_is_refused_by_its_name(options, message):
    with pytest.raises(InputError) as caught:
        inject(stream(train=3, test=3), seed=0, **options)
    assert str(caught.value).startswith(message)


def test_rows_that_hold_injected_identifiers_are_refused(injected):
    _, after, _ = injected
    with pytest.raises(InputError, match="^example '"):
        inject(after, seed=0)


# --- train and test stay alike --------------------------------------------------------


def blind_auc(rows):
    """Out-of-fold AUC of a bag-of-words classifier that tells train from test rows."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline

    rows = [row for row in rows if row.canary is None]
    texts = [row.text for row in rows]
    member = np.array([row.split == "train" for row in rows])
    model = make_pipeline(
        CountVectorizer(binary=True), LogisticRegression(C=0.1, max_iter=500)
    )
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    scores = cross_val_predict(model, texts, member, cv=folds, method="predict_proba")
    return roc_auc_score(member, scores[:, 1])


def test_a_text_classifier_learns_nothing_from_injection():
    rows = stream(tasks=("t", "u"), train=400, test=400, seed=5)
    after, _ = inject(rows, seed=0, rate=0.5, canaries=30)
    # 1,480 rows: the null's standard deviation is about 0.02.
    assert 0.44 < blind_auc(after) < 0.56
    # The same test sees identifiers that stand in train rows only.
    train_only = [
        n if n.split == "train" else o for o, n in zip(rows, after, strict=True)
    ]
    assert blind_auc(train_only) > 0.6
