"""Which identifiers get twins, in which rows, and that they fit there."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from marked import made_corpus, made_table, make_example

from spark_audit.data.canaries import draw
from spark_audit.data.encoding import token_ids
from spark_audit.data.examples import Example
from spark_audit.data.pii import luhn
from spark_audit.manifest.identifier_forms import Forms
from spark_audit.manifest.layout import ManifestLayout, Rows
from spark_audit.manifest.twins import (
    HELD_OUT_TWIN_SETS,
    MIN_TWINS,
    MOST_TWIN_SETS,
    TWINS_PER_IDENTIFIER,
    Identifiers,
    twin_sets,
)
from spark_audit.scoring.score import item

Make = Callable[..., Any]


def row(key: str, string: str, *, split: Any = "train", kind: str = "PHONE") -> Example:
    prompt = f"Row {key}: please call {string} now."
    return make_example(key, prompt, " yes", pii={string: kind}, task="t", split=split)


@pytest.fixture
def twins(tiny_tokenizer) -> Make:
    """``twins(examples, seed=0, max_length=None)``: the sets, the layouts, the rest."""

    def make(
        examples: Sequence[Example],
        *,
        seed: int = 0,
        max_length: int | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> tuple[list[dict[str, Any]], list[ManifestLayout], int]:
        laid = Rows(examples, tiny_tokenizer, max_length=max_length)
        rows = [*laid]
        table = made_table([item(r.example.id, r.encoding, r.kept) for r in rows])
        found = Identifiers()
        found.add(made_corpus(rows, table), first_row=0)
        sets, lost = twin_sets(
            laid,
            found,
            encode=lambda strings: token_ids(tiny_tokenizer, strings),
            seed=seed,
            progress=progress,
        )
        return sets, rows, lost

    return make


def numbers(n: int) -> list[str]:
    rng = np.random.default_rng(3)
    return list(dict.fromkeys(draw("PHONE", rng, 1)[0] for _ in range(2 * n)))[:n]


def test_twins_change_no_token_but_the_identifiers_own(twins, tiny_tokenizer):
    strings = numbers(12)
    examples = [row(f"{i}{j}", x) for i, x in enumerate(strings) for j in "abc"]
    sets, rows, lost = twins(examples)
    assert (len(sets), lost) == (12, 0)
    by_id = {each.example.id: each for each in rows}
    for one in sets:
        true = one["candidates"][one["true_index"]]
        assert true in strings
        assert not set(strings) & (set(one["candidates"]) - {true})
        assert MIN_TWINS < len(set(one["candidates"])) <= TWINS_PER_IDENTIFIER + 1
        assert (one["dose"], len(one["contexts"])) == (3, 2)
        for place in one["contexts"]:
            held = by_id[place["example"]]
            text, ids = held.example.text, held.encoding.ids.tolist()
            start = place["char_start"]
            end = place["char_end"]
            assert text[start:end] == true
            tokens = held.encoding.span(start, end)
            for twin in one["candidates"]:
                (own,) = token_ids(tiny_tokenizer, [text[:start] + twin + text[end:]])
                assert len(own) == len(ids)
                assert own[: tokens.start] == ids[: tokens.start]
                assert own[tokens.end :] == ids[tokens.end :]
    places = [one["true_index"] for one in sets]
    assert len(set(places)) > 4


def test_what_stands_in_a_train_row_is_not_held_out(twins):
    known, never, unmarked = numbers(3)
    bare = row("c", "x", kind="OTHER")
    text = f"Somebody wrote {unmarked} here."
    examples = [
        row("a", known),
        row("b", known, split="test"),
        row("d", never, split="test"),
        Example("e", "t", text, " yes", "train", "e"),
        row("f", unmarked, split="test"),
        bare,
    ]
    sets, _, _ = twins(examples)
    found = {x["candidates"][x["true_index"]]: x for x in sets}
    assert found[known]["dose"] == 1
    assert [c["example"] for c in found[known]["contexts"]] == ["a"]
    assert found[never]["dose"] == 0
    # It was trained on where nobody annotated it: it can be read on neither side.
    assert unmarked not in found


def test_no_dose_is_lost_and_both_sides_have_room(twins):
    strings = numbers(330)
    examples = [row(f"t{i}", x) for i, x in enumerate(strings[:260])]
    for i, dose in ((0, 16), (1, 5), (2, 2), (3, 2)):
        examples += [row(f"t{i}-{j}", strings[i]) for j in range(1, dose)]
    examples += [row(f"h{i}", x, split="test") for i, x in enumerate(strings[260:])]
    sets, _, lost = twins(examples)
    doses = Counter(one["dose"] for one in sets)
    assert len(sets) == MOST_TWIN_SETS
    assert doses[0] == HELD_OUT_TWIN_SETS
    assert {16: 1, 5: 1, 2: 2}.items() <= doses.items()
    assert lost == 0
    few = [e for e in examples if e.split == "train"][:40]
    sets, _, _ = twins([*few, *(e for e in examples if e.split == "test")])
    # What one side does not fill is the other's.
    assert sum(one["dose"] == 0 for one in sets) == 70


def test_what_was_cut_off_or_finds_no_twins_is_left_out(twins):
    strange = "Zzyzx-Qwrtpsdf-Ghjklmnb"
    sets, _, lost = twins([row("a", strange, kind="NAME"), row("b", "x", kind="OTHER")])
    assert not any(strange in one["candidates"] for one in sets)
    assert lost >= 1
    (number,) = numbers(1)
    example = row("c", number)
    long = Example("c", "t", example.prompt, " yes" * 40, "train", "c", example.spans)
    assert twins([long], max_length=30)[0] == []


def test_the_end_is_told_once_however_many_are_lost(twins, monkeypatch):
    monkeypatch.setattr("spark_audit.manifest.twins.MOST_TWIN_SETS", 2)
    monkeypatch.setattr("spark_audit.manifest.twins.MIN_TWINS", 32)
    told: list[tuple[int, int]] = []
    examples = [row(str(i), x) for i, x in enumerate(numbers(5))]
    _, _, lost = twins(examples, progress=lambda *at: told.append(at))
    assert lost == 5
    assert told.count((2, 2)) == 1
    assert told[-1] == (2, 2)


# --- strings --------------------------------------------------------------------------


N = 200


def drawn(type: str, text: str, *others: tuple[str, str], n: int = N) -> list[str]:
    forms = Forms([(type, text), *others])
    return forms.draw(type, text, np.random.default_rng(0), n)


@pytest.mark.parametrize(
    ("type", "text", "pattern"),
    [
        ("NAME", "Maria Jones", r"[A-Z][a-z]+ [A-Z][A-Za-z]+"),
        ("NAME", "MARIA JONES", r"[A-Z]+ [A-Z]+"),
        ("NAME", "Dr. Maria de la Cruz", r"Dr\. [A-Z][a-z]+ de la [A-Z][A-Za-z]+"),
        ("NAME", "J. Smith", r"[A-Z]\. [A-Z][A-Za-z]+"),
        ("NAME", "\u0418\u0432\u0430\u043d", r"[\u0400-\u04ff]+"),
        ("EMAIL", "maria.jones42@x.org", r"[a-z]+\.[a-z]+\d\d@example\.(com|net|org)"),
        ("EMAIL", "jsmith@x.org", r"[a-z]{3,}@example\.(com|net|org)"),
        ("PHONE", "(390) 555-0142", r"\([1-9]\d\d\) [1-9]\d\d-\d{4}"),
        ("SSN", "078-05-1120", r"\d{3}-\d\d-[1-9]\d{3}"),
        ("PASSWORD", "xK9#qT2!", r"[a-z][A-Z]\d#[a-z][A-Z]\d!"),
        ("ID", "DE89 3704", r"[A-Z]{2}[1-9]\d [1-9]\d{3}"),
        ("ADDRESS", "12 Baker Street, Jonesville, IL 62704",
         r"[1-9]\d [A-Z]\w+ Street, [A-Z]\w+ville, IL [1-9]\d{4}"),
        ("ADDRESS", "P.O. Box 123", r"P\.O\. Box [1-9]\d\d"),
    ],
)  # fmt: skip
def test_a_twin_has_the_format_and_is_another(type, text, pattern):
    found = drawn(type, text)
    assert len(found) == N
    assert len(set(found)) > N // 4
    for one in found:
        assert re.fullmatch(pattern, one), one


def test_card_numbers_have_their_check_digit():
    (card,) = draw("CREDIT_CARD", np.random.default_rng(1), 1)
    assert all(luhn(one.replace(" ", "")) for one in drawn("CREDIT_CARD", card))


def test_what_all_identifiers_of_a_format_share_is_kept():
    others = [("PHONE", f"555-{i:04d}") for i in range(1000, 9000, 97)]
    assert all(one.startswith("555-") for one in drawn("PHONE", "555-0142", *others))
    # Numbers in a row leave too few others: the places that vary are free.
    row = [("PHONE", f"555-01{i:02d}") for i in range(24)]
    found = drawn("PHONE", "555-0107", *row)
    assert all(one.startswith("555-01") for one in found)
    assert len(set(found)) > 60


def test_a_mail_domain_tells_nobody_apart():
    mails = [("EMAIL", f"a.b{i}@shared.org") for i in range(3)]
    assert {x.partition("@")[2] for x in drawn("EMAIL", "c.d@shared.org", *mails)} == {
        "shared.org"
    }
    hosts = {x.partition("@")[2] for x in drawn("EMAIL", "c.d@own.org", *mails)}
    assert "own.org" not in hosts
    assert "shared.org" in hosts


def test_names_are_of_the_locale_that_most_names_are_of():
    german = [("NAME", name) for name in ("J\u00fcrgen M\u00fcller", "Heike Schmitz")]
    forms = Forms([*german, ("NAME", "Uwe Krause")])
    found = forms.draw("NAME", "Uwe Krause", np.random.default_rng(0), N)
    from faker.providers.person.de_DE import Provider

    known = {*Provider.first_names, *Provider.last_names}
    share = np.mean([word in known for one in found for word in one.split()])
    assert share > 0.6


def test_no_list_is_of_an_unknown_script():
    assert drawn("NAME", "\u16a0\u16a2 \u16a6\u16a8") == []
    assert drawn("OTHER", "\u16a0 7", n=3)[0].startswith("\u16a0 ")


@pytest.mark.parametrize("type", ["NAME", "EMAIL", "PHONE", "SSN", "PASSWORD"])
def test_a_planted_identifier_and_its_twins_are_drawn_alike(type):
    """Of our own generator no summary of a string tells it from its twins."""
    rng = np.random.default_rng(0)
    true = [draw(type, rng, 1)[0] for _ in range(300)]
    forms = Forms((type, one) for one in true)

    def features(text: str) -> list[float]:
        digits = [int(c) for c in text if c in "0123456789"]
        return [len(text), sum(digits), digits[0] if digits else 0, ord(text[0])]

    ranks = []
    for one in true:
        values = np.array([features(x) for x in (one, *forms.draw(type, one, rng, 9))])
        values = values + rng.random(values.shape) / 100
        ranks.append((values < values[0]).sum(axis=0))
    mean = np.array(ranks).mean(axis=0)
    # Nine twins: 4.5 by chance, with an error of 2.87 / sqrt(300).
    assert np.abs(mean - 4.5).max() < 4 * 2.87 / np.sqrt(300)
