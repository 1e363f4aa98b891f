import re
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from spark_audit.data import canaries, canary_candidates, pii
from spark_audit.data.canaries import (
    CANARY_FORMATS,
    CANARY_PARTS,
    RANKED,
    canary_ranges,
    draw,
    draw_parts,
    render,
)
from spark_audit.data.canary_candidates import candidates
from spark_audit.data.examples import Canary, Example, Span
from spark_audit.errors import InputError

PARTS_OF = {"name": "Ann Lee", "password": "aB3dE6gH9k", "ssn": "912-34-5678"}


def encode(texts):
    """A toy tokenizer: pieces of one to four characters that do not cross blanks.

    Blanks belong to the piece behind them, as in byte-level BPE; vowels end a piece, so
    that strings of one length have different numbers of tokens.
    """
    pieces = re.compile(r"\s?[^\saeiouAEIOU0-4]{0,3}[aeiouAEIOU0-4]|\s?[^\s]|\s")
    return [pieces.findall(text) for text in texts]


def sentence(parts=PARTS_OF, format="login"):
    return render(format, parts)[0]


def found(part, *, format="login", parts=PARTS_OF, **options):
    options = {"encode": encode, "contexts": [], "seed": 0} | options
    return candidates(format, parts, part, **options)


def context(part, *, before="It rose. ", after=" Then fell.", format="login"):
    text, spans = render(format, PARTS_OF)
    start, end = (
        (0, len(text)) if part == "full" else (spans[part].start, spans[part].end)
    )
    return (before + text + after, len(before) + start, len(before) + end)


# --- drawing --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type", "form"),
    [
        ("NAME", r"[A-Z][A-Za-z]+ [A-Z][A-Za-z]+"),
        ("EMAIL", r"[a-z]+\.[a-z]+\d\d@example\.(com|net|org)"),
        ("PHONE", r"(\d9\d-\d{3}|\(\d9\d\) \d{3})-\d{4}"),
        ("SSN", r"9\d\d-[0-4]\d-\d{4}"),
        ("PASSWORD", r"[A-Za-z0-9]{10}"),
        ("CREDIT_CARD", r"4000 00\d\d \d{4} \d{4}"),
        ("ADDRESS", r"\d{1,4} \w+ \w+, \w+ville, [A-Z]{2} \d{5}"),
    ],
)
def test_drawn_identifiers_have_the_form_of_their_type(type, form):
    rng = np.random.default_rng(0)
    drawn = [draw(type, rng, 1)[0] for _ in range(300)]
    assert all(re.fullmatch(form, text) for text in drawn)
    assert len(set(drawn)) > 290


def test_nothing_drawn_is_anybodys():
    rng = np.random.default_rng(1)
    for _ in range(500):
        area, group, serial = draw("SSN", rng, 1)[0].split("-")
        assert 900 <= int(area) <= 999  # never a social security number
        assert 1 <= int(group) <= 49  # nor a tax number
        assert serial != "0000"
        card = draw("CREDIT_CARD", rng, 1)[0].replace(" ", "")
        assert pii.luhn(card)
        area = re.sub(r"\D", "", draw("PHONE", rng, 1)[0])[:3]
        assert area[0] not in "019"  # a valid form ...
        assert area[1] == "9"  # ... of a code that is not assigned


@pytest.mark.parametrize(
    ("part", "feature", "values"),
    [
        # Each name is as likely as any other, however frequent it is in life.
        ("name", lambda text: text.split()[0], canaries.choices_by_type()["NAME"][0]),
        ("name", lambda text: text.split()[1][0], None),
        ("password", lambda text: text[7], canaries.PASSWORD_LETTERS),
        ("ssn", lambda text: int(text[:3]), range(900, 1000)),
        ("ssn", lambda text: int(text[4:6]), range(1, 50)),
        ("ssn", lambda text: text[-1], "0123456789"),
    ],
)
def test_every_value_of_a_part_is_drawn_equally_often(part, feature, values):
    counts = Counter(feature(draw_parts(seed)[part]) for seed in range(4000))
    if values is None:  # initials are as frequent as in the list, each name once
        known = Counter(name[0] for name in canaries.choices_by_type()["NAME"][1])
        expected = {v: 4000 * n / known.total() for v, n in known.items()}
    else:
        expected = dict.fromkeys(values, 4000 / len(values))
    assert set(counts) <= set(expected)
    common_values = [value for value in expected if expected[value] >= 5]
    observed = [counts[value] for value in common_values]
    scaled = np.array([expected[value] for value in common_values])
    scaled *= sum(observed) / scaled.sum()
    assert stats.chisquare(observed, scaled).pvalue > 1e-4


# --- frames ---------------------------------------------------------------------------


@pytest.mark.parametrize("format", list(CANARY_FORMATS))
def test_render_tells_where_the_parts_stand(format):
    text, spans = render(format, PARTS_OF)
    assert text == CANARY_FORMATS[format].format(**PARTS_OF)
    assert {p: text[s.start : s.end] for p, s in spans.items()} == PARTS_OF
    assert {p: (s.type, s.origin, s.part) for p, s in spans.items()} == {
        p: (CANARY_PARTS[p], "injected", p) for p in CANARY_PARTS
    }


def test_an_unknown_format_is_refused():
    with pytest.raises(InputError, match="'x'.*login"):
        render("x", PARTS_OF)


def row(text, spans, canary=None):
    return Example("a", "t", text, " ok", "train", "a", tuple(spans), canary)


def test_ranges_of_a_canary_hold_its_parts():
    text, spans = render("reset", PARTS_OF)
    moved = [
        Span(s.start + 3, s.end + 3, s.type, s.origin, s.part) for s in spans.values()
    ]
    example = row(f"Hi {text} Bye", moved, Canary("c", "reset", 1, False, 0))
    ranges = canary_ranges(example)
    assert example.text[slice(*ranges["full"])] == text
    assert {p: example.text[slice(*ranges[p])] for p in CANARY_PARTS} == PARTS_OF


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"canary": None}, "example 'a': holds no whole canary"),
        ({"spans": ()}, "example 'a': holds no whole canary"),
        ({"format": "record"}, "is not in the frame 'record'; inject again"),
    ],
)
def test_a_row_that_holds_no_whole_canary(change, message):
    text, spans = render("login", PARTS_OF)
    canary = Canary("c", change.get("format", "login"), 1, False, 0)
    with pytest.raises(InputError, match=message):
        canary_ranges(
            row(text, change.get("spans", spans.values()), change.get("canary", canary))
        )


# --- candidates -----------------------------------------------------------------------


@pytest.mark.parametrize("part", RANKED)
def test_candidates_are_what_they_must_be(part):
    places = [context(part), context(part, before="(", after=")")]
    got = found(part, contexts=places, seed=3)
    true = sentence() if part == "full" else PARTS_OF[part]
    assert got["reason"] is None
    assert len(set(got["candidates"])) == len(got["candidates"]) == 512
    assert got["candidates"][got["true_index"]] == true
    assert {len(ids) for ids in encode(got["candidates"])} == {len(encode([true])[0])}
    for written, start, end in places:
        before = written[:start]
        after = written[end:]
        full_ids, head, tail = encode([written, before, after])
        first = 0
        while first < len(head) and head[first] == full_ids[first]:
            first += 1
        for ids in encode([before + text + after for text in got["candidates"]]):
            assert len(ids) == len(full_ids)
            assert ids[:first] == full_ids[:first]
            assert ids[-len(tail) :] == full_ids[-len(tail) :]


def test_full_candidates_are_the_frame_with_new_parts():
    got = found("full", format="record", n=64)
    frame = re.escape(CANARY_FORMATS["record"])
    for part_name, form in (
        ("name", r"[\w ]+"),
        ("password", r"\w{10}"),
        ("ssn", r"[\d-]{11}"),
    ):
        frame = frame.replace(re.escape(f"{{{part_name}}}"), form)
    assert all(re.fullmatch(frame, text) for text in got["candidates"])


def test_a_blank_that_changes_hands_is_a_change():
    """Same number of tokens, but the blank before the string is now one of them."""

    def by_letter(texts):
        # A leading letter a to m takes the blank before it into its token, and pays for
        # it with one more token behind; a letter n to z leaves it alone.
        out = []
        for text in texts:
            text = re.sub(r" ([a-mA-M])", "_\\1!", text)
            out.append(re.findall(r"_.|.", text))
        return out

    parts_drawn = {**PARTS_OF, "password": "abcdefghij"}
    text = "is abcdefghij."
    contexts = [(text, 3, 13)]
    got = found("password", parts=parts_drawn, encode=by_letter, contexts=contexts)
    assert {s[0].isalpha() and s[0].lower() <= "m" for s in got["candidates"]} == {True}


def test_where_draws_run_out_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(canary_candidates, "MAX_DRAWS", 300)
    got = found("full")
    assert (got["candidates"], got["true_index"]) == ([], None)
    assert re.fullmatch(
        r"300 draws gave \d+ of 512 candidates of \d+ tokens", got["reason"]
    )


def test_a_class_of_one_ends(monkeypatch):
    monkeypatch.setattr(canary_candidates, "MAX_DRAWS", 5000)

    def lonely(texts):
        return [[0] if text == PARTS_OF["password"] else [0, 0] for text in texts]

    got = found("password", encode=lonely)
    # Far fewer than a set needs by then: the rest of the draws is not made.
    assert got["reason"] == "2048 draws gave 1 of 512 candidates of 1 tokens"


@pytest.mark.parametrize("part", RANKED)
def test_true_and_candidates_are_exchangeable(part):
    """Before training no score tells the true one: its rank is uniform.

    Scores that a language model could resemble: the alphabet, the share of digits. A
    pool filtered otherwise than the true one was drawn would show here.
    """
    scores = (str, lambda s: (sum(c.isdigit() for c in s), s), lambda s: s[::-1])
    ranks = {score: [] for score in scores}
    for seed in range(200):
        parts_drawn = draw_parts(seed)
        format = list(CANARY_FORMATS)[seed % 3]
        text, spans = render(format, parts_drawn)
        span = Span(0, len(text), "OTHER") if part == "full" else spans[part]
        places = [(f"So: {text} Bye", 4 + span.start, 4 + span.end)]
        draw_fields = {"format": format, "parts": parts_drawn, "contexts": places}
        got = found(part, **draw_fields, seed=seed, n=16)
        true = got["candidates"][got["true_index"]]
        for score in scores:
            ranks[score].append(sorted(got["candidates"], key=score).index(true))
    for values in ranks.values():
        counts = np.bincount(values, minlength=16)
        assert stats.chisquare(counts).pvalue > 1e-3
