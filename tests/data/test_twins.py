"""Fresh strings of an identifier's kind: their format, and what does not tell them."""

import re

import numpy as np
import pytest

from spark_audit.data.canaries import draw
from spark_audit.data.pii import luhn
from spark_audit.manifest.twins import Forms

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
    card = draw("CREDIT_CARD", np.random.default_rng(1))
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
    true = [draw(type, rng) for _ in range(300)]
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
