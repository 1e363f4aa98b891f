import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from importing import import_examples

from spark_audit.cli.main import run
from spark_audit.data import pii, presidio
from spark_audit.data.annotation import annotate, annotate_and_count
from spark_audit.data.examples import Example, Span, write_examples
from spark_audit.data.person_names import names
from spark_audit.data.pii import find_identifiers
from spark_audit.errors import InputError

DATA = Path(__file__).parents[2] / "../shared/data"


def marked(text, **options):
    """The spans that are found in a row of this text."""
    (row,) = annotate([example("row", text)], **options)
    return list(row.spans)


def found(text, **options):
    return [(s.type, text[s.start : s.end]) for s in marked(text, **options)]


HITS = [
    (
        "EMAIL",
        "write to ann.lee+news@mail.example.co.uk.",
        "ann.lee+news@mail.example.co.uk",
    ),
    ("EMAIL", "<a_b@example.org>", "a_b@example.org"),
    ("PHONE", "call 212-555-0147 now", "212-555-0147"),
    ("PHONE", "(212) 555-0147", "(212) 555-0147"),
    ("PHONE", "(212)555-0147x12", "(212)555-0147x12"),
    ("PHONE", "tel. 212.555.0147.", "212.555.0147"),
    ("PHONE", "1-800-555-0199", "1-800-555-0199"),
    ("PHONE", "+1 212 555 0147", "+1 212 555 0147"),
    ("PHONE", "+44 20 7946 0958", "+44 20 7946 0958"),
    ("PHONE", "+4930901820", "+4930901820"),
    ("PHONE", "my cell is 2125550147", "2125550147"),
    ("PHONE", "call 555-0147 today", "555-0147"),
    ("SSN", "it is 078-05-1120.", "078-05-1120"),
    ("SSN", "SSN: 078051120", "078051120"),
    ("SSN", "my social security number is 078 05 1120", "078 05 1120"),
    ("SSN", "social security number is 912-34-5678", "912-34-5678"),
    ("CREDIT_CARD", "card 4111 1111 1111 1111,", "4111 1111 1111 1111"),
    ("CREDIT_CARD", "4111-1111-1111-1111", "4111-1111-1111-1111"),
    ("CREDIT_CARD", "5500005555555559", "5500005555555559"),
    ("CREDIT_CARD", "3782 822463 10005", "3782 822463 10005"),
    ("PASSWORD", "My password is hunter2x.", "hunter2x"),
    ("PASSWORD", "password: 'qW-erty!1'", "qW-erty!1"),
    ("PASSWORD", "The password of that account is Xy7rT2.", "Xy7rT2"),
    ("PASSWORD", "pwd=correct#horse", "correct#horse"),
    ("PASSWORD", "my password was changed to aBcDeF", "aBcDeF"),
    ("PASSWORD", "the PIN is 4821", "4821"),
    ("ID", "IBAN GB82 WEST 1234 5698 7654 32.", "GB82 WEST 1234 5698 7654 32"),
    ("ID", "DE89370400440532013000", "DE89370400440532013000"),
    ("ID", "passport number C03005988", "C03005988"),
    ("ID", "driver's license no. D1234567", "D1234567"),
    ("ID", "account # 00123456", "00123456"),
    ("ID", "from 192.168.0.17 again", "192.168.0.17"),
    ("ADDRESS", "at 12 Oak Street,", "12 Oak Street"),
    (
        "ADDRESS",
        "I live at 6546 Dorsey Lane, Dyerville, OH 97847.",
        "6546 Dorsey Lane, Dyerville, OH 97847",
    ),
    ("ADDRESS", "350 W. 42nd St Apt 5B", "350 W. 42nd St Apt 5B"),
    ("ADDRESS", "write to P.O. Box 1234", "P.O. Box 1234"),
    ("NAME", "Thanks to Dr. Jane A. Roe for it", "Jane A. Roe"),
    ("NAME", "Mr. O'Brien-Smith's car", "O'Brien-Smith"),
    ("NAME", "my name is Ann Lee and", "Ann Lee"),
    ("NAME", "Please ask for Ann Lee.", "Ann Lee"),
    ("NAME", "Name: Ann Lee", "Ann Lee"),
    ("NAME", "Sincerely,\nAnn Lee\n", "Ann Lee"),
    # without a cue
    ("NAME", "we met Teresa Gonzalez there", "Teresa Gonzalez"),
    ("NAME", "and then J. R. Whitfield left", "J. R. Whitfield"),
    ("NAME", "signed Gonzalez, Teresa", "Gonzalez, Teresa"),
    ("NAME", "our waiter Okonjo", "Okonjo"),
    ("NAME", "a talk by Ludwig van Beethoven", "Ludwig van Beethoven"),
    ("NAME", "we had Sandra Price over", "Sandra Price"),
    ("NAME", "because Kevin was late", "Kevin"),
    # emphasis, blanks and hyphens that do not break, letters that stand close
    ("NAME", "It was _Mary Jones_ who", "Mary Jones"),
    ("NAME", "(__Mary Jones__).", "Mary Jones"),
    ("NAME", "_It was Mary Jones._", "Mary Jones"),
    ("NAME", "our waiter _Okonjo_", "Okonjo"),
    ("NAME", "**Name:** Ann Lee", "Ann Lee"),
    ("NAME", "my name is *Okonjo*", "Okonjo"),
    ("NAME", "then Mary\u00a0Jones left", "Mary\u00a0Jones"),
    ("NAME", "Mr.\u202fOkonjo", "Okonjo"),
    ("NAME", "\u8bf7\u8054\u7cfbMary Jones\u5148\u751f", "Mary Jones"),
    ("EMAIL", "_ann@example.org_.", "ann@example.org"),
    ("EMAIL", "to a__b_@example.org", "a__b_@example.org"),
    ("EMAIL", "\u8054\u7cfbann@example.org\u8c22\u8c22", "ann@example.org"),
    ("EMAIL", "ann@example.org\uc73c\ub85c", "ann@example.org"),
    ("EMAIL", "ann\uff20example.org", "ann\uff20example.org"),
    ("PHONE", "call 212\u00a0555\u00a00147", "212\u00a0555\u00a00147"),
    ("PHONE", "call 212\u2011555\u20110147", "212\u2011555\u20110147"),
    ("PHONE", "\u7535\u8bdd212-555-0147\u8c22\u8c22", "212-555-0147"),
    ("PHONE", "\uff12\uff11\uff12-555-0147", "\uff12\uff11\uff12-555-0147"),
    ("PASSWORD", "password is _hunter2_", "_hunter2_"),
    # letters of other languages, apostrophes
    (
        "EMAIL",
        "to k\u00e4the.m\u00fcller@stra\u00dfe-b\u00fcro.de, please",
        "k\u00e4the.m\u00fcller@stra\u00dfe-b\u00fcro.de",
    ),
    ("EMAIL", "to o'neil@example.com", "o'neil@example.com"),
    ("EMAIL", "'joe@example.com'", "joe@example.com"),
    (
        "EMAIL",
        "\u0438\u0432\u0430\u043d@\u043f\u043e\u0447\u0442\u0430.\u0440\u0444",
        "\u0438\u0432\u0430\u043d@\u043f\u043e\u0447\u0442\u0430.\u0440\u0444",
    ),
    # Chinese mobile numbers
    ("PHONE", "\u7535\u8bdd13812345678\u8c22\u8c22", "13812345678"),
    ("PHONE", "138 1234 5678", "138 1234 5678"),
    ("PHONE", "to 138-1234-5678.", "138-1234-5678"),
    ("PHONE", "13812345678 is his", "13812345678"),
    ("PHONE", "ask Li (19912345678), now", "19912345678"),
    ("PHONE", "tel. 13812345678", "13812345678"),
    # a name in capitals ends where ordinary words begin
    ("NAME", "MY NAME IS JOHN SMITH AND I", "JOHN SMITH"),
    ("NAME", "contact JOHN SMITH FOR IT", "JOHN SMITH"),
    ("NAME", "Dr. Jane May", "Jane May"),
    # international before American: the whole number
    ("PHONE", "at +39 312 342 7996 now", "+39 312 342 7996"),
    ("PHONE", "at 020 7946 0958 now", "020 7946 0958"),
    ("CREDIT_CARD", "3530111333300000", "3530111333300000"),
    ("ADDRESS", "at 825 Garrett Circles", "825 Garrett Circles"),
]


@pytest.mark.parametrize(("type", "text", "value"), HITS)
def test_each_identifier_is_found_with_its_type(type, text, value):
    assert found(text) == [(type, value)]


MISSES = [
    # years, dates, ranges, scores
    "in 1998 and 2004-2005",
    "2004-10-12",
    "10/12/2004",
    "12.10.2004",
    "1914-1918, 1939-45",
    "won 101-99 and 21-14",
    "6-4 7-6 6-2",
    "score 212-555",
    # prices, counts, percentages
    "$212.555.0147",
    "$1,234,567.89 or 2,125,550,147",
    "up 212.555%",
    "212-555-0147%",
    "EUR 4.500.000",
    "2125550147",  # ten digits without a cue
    "order 13812345678",
    "12812345678 and #13812345678",  # 12 begins no mobile number
    "138123456789 or 1381234567",
    "at 13812345678.50 or 1,3812345678",
    "138 1234-5678",
    "850/900/1800/1900 MHz",
    "about 555 1234 of them",
    # no North American number
    "112-555-0147",
    "212-155-0147",
    "212-555-01478",
    "212-555-0147-9",
    # social security numbers that were never issued, without a cue
    "000-12-3456",
    "666-12-3456",
    "912-34-5678",
    "123-00-4567",
    "123-45-0000",
    "SSN 000-12-3456",
    "SSN 666-12-3456",
    "123-45-67890",
    "part 123456789",
    # cards: Luhn, issuer, length
    "4111 1111 1111 1112",
    "1111 1111 1111 1117",
    "0000 0000 0000 0000",
    "4111 1111 1111 111",
    "ISBN 978-3-16-148410-0",
    "ISBN 9783161484100",
    "ISBN 0-306-40615-2",
    # passwords that are none
    "the password is required",
    "Password protected, of course",
    "a password manager",
    "forgot my password. Again",
    "the pin 2000 times",
    "PIN 12",
    # IDs that are none
    "GB82 WEST 1234 5698 7654 33",
    "version 10.2.3.44",
    "v1.2.3.4",
    "1.2.3.4",
    "300.1.2.3",
    "10.2.3.256",
    "account number is missing",
    "member number one",
    # streets that are none
    "9 Supreme Court justices",
    "10 Wall Street analysts",
    "in 2004 Main",
    "$5 Oak Street",
    # names that are none
    "Mary_Jones and x_Mary Jones_y",
    "212-555-0147_x",
    "Dr Pepper is sweet",
    "a Doctor called",
    "ask for a refund",
    "contact Customer Service",
    "Contact Energy Ltd rose",
    "my name is irrelevant",
    "the Houston Astros beat Oakland",
    "in San Francisco, St. Louis and Los Angeles",
    "Warren Holdings and Gerald Corp of Virginia",
    "they can't. Don't go. He'll see",
    "In May, Will and Hope may rise",
    # addresses that are none
    "me@home",
    "a @ b.com",
    "@user on example.com",
    "",
    " \n",
]


@pytest.mark.parametrize("text", MISSES)
def test_what_is_no_identifier_is_not_found(text):
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The address is not also the secret that its cue makes it.
        ("password: ann1@example.com", [("EMAIL", "ann1@example.com")]),
        ("my password is 212-555-0147", [("PASSWORD", "212-555-0147")]),
        ("call 4111 1111 1111 1111", [("CREDIT_CARD", "4111 1111 1111 1111")]),
        (
            "Mr. Lee, 12 Oak Street, 212-555-0147",
            [("NAME", "Lee"), ("ADDRESS", "12 Oak Street"), ("PHONE", "212-555-0147")],
        ),
    ],
)
def test_overlaps_have_one_winner(text, expected):
    assert found(text) == expected
    assert find_identifiers(text) == find_identifiers(text)


def test_identifiers_stand_in_the_order_of_the_text():
    """Whatever order the rules have: names come last there, and addresses first."""
    spans = find_identifiers("Mr Jonas Weber, +1 212 555 0147, jonas@mill.example")
    assert [span.type for span in spans] == ["NAME", "PHONE", "EMAIL"]
    assert [span.start for span in spans] == [3, 16, 33]


def test_own_patterns_win_over_the_built_in_ones():
    text = "order ORD-1234567 of Mr. Lee, SSN 078-05-1120"
    patterns = {"ORDER": r"ORD-\d{7}", "CASE": r"\d{3}-05-\d{4}|x*"}
    assert found(text, patterns=patterns) == [
        ("ORDER", "ORD-1234567"),
        ("NAME", "Lee"),
        ("CASE", "078-05-1120"),
    ]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ({"ORDER": "(a+)+$"}, "--pattern ORDER: takes more than 0.1 s on one text"),
        ({"ORDER": "("}, "--pattern ORDER: is not a regular expression"),
        ({"order": "a"}, "--pattern order: is not the name of a type"),
    ],
)
def test_own_patterns_that_cannot_be_used(patterns, message, monkeypatch):
    monkeypatch.setattr(pii, "_PATTERN_SECONDS", 0.1)
    with pytest.raises(InputError) as error:
        marked("a" * 5000 + "!", patterns=patterns)
    assert message in str(error.value)


def test_codes_of_no_type_are_counted():
    rows = [
        example("a", "order ORD-1234567, and 2004-10-12, 1914-1918, SSN 078-05-1120"),
        example("b", "codes AB123456 and 7788990 for $1234567"),
        example("c", "nothing, or &#128512;"),
        example("d", "Order #4711234"),
    ]
    result = annotate_and_count(rows)
    assert (result.n_unknown_codes, result.n_code_rows) == (4, 3)
    result = annotate_and_count(rows, patterns={"ORDER": "ORD-[0-9]{7}"})
    assert (result.n_unknown_codes, result.n_code_rows) == (3, 2)


def test_existing_spans_win_over_found_ones():
    text = "Dr. Ann Lee, 212-555-0147"
    known_spans = [Span(4, 7, "OTHER", "injected")]
    (row,) = annotate([example("row", text, spans=tuple(known_spans))])
    assert row.spans == (known_spans[0], Span(13, 25, "PHONE"))


@pytest.mark.parametrize(
    "text",
    ["a" * 50_000, "1" * 50_000, "1 " * 25_000, "A. " * 20_000, "1-" * 25_000,
     "a@" * 25_000, "password " * 6_000, "12 Oak " * 8_000, "+1 " * 20_000,
     "AB12 " * 10_000, "phone " * 9_000, "name: " * 9_000, "password of x" * 4_000,
     "_" * 50_000, " _a" * 15_000, "_._" * 15_000, "A_" * 25_000, "\u8bf7" * 50_000],
    ids=lambda text: text[:8],
)  # fmt: skip
def test_no_text_takes_for_ever(text):
    start = time.process_time()
    find_identifiers(text)
    assert time.process_time() - start < 5


# --- examples -------------------------------------------------------------------------


def example(id, prompt, **changes):
    return Example(
        **{
            "id": id,
            "task": "t",
            "prompt": prompt,
            "response": " ok",
            "split": "train",
            "source_id": id,
            **changes,
        }
    )


def test_annotate_examples_merges_and_spares_the_template():
    rows = [
        example(
            "a", "Help: 212-555-0147\nName: Ann Lee\nCall:", spans=(Span(26, 29, "ID"),)
        ),
        example("b", "Help: 212-555-0147\nMy SSN is 078-05-1120.\nCall:"),
        example("c", "Help: 212-555-0147\nNothing\nCall:"),
    ]
    got = annotate(rows)
    assert [row.id for row in got] == ["a", "b", "c"]
    assert got[0].spans == (Span(26, 29, "ID"),)  # the name overlaps what was known
    assert [row.text[s.start : s.end] for row in got for s in row.spans[:1]] == [
        rows[0].text[26:29],
        "078-05-1120",
    ]
    assert got[2] == rows[2]


@pytest.mark.skipif(not DATA.is_dir(), reason="the real task data is not here")
@pytest.mark.parametrize("task", ["fomc", "agnews", "mentill"])
def test_no_number_of_real_text_is_an_identifier(task):
    # The rows were filtered of e-mail addresses, phone numbers and long digit strings;
    # one free-phone number, in a headline of agnews, was left.
    rows = import_examples(DATA / task, task=task, template=r"Text: {text}\nLabel:")
    got = annotate(rows)
    counts = Counter(s.type for row in got for s in row.spans)
    counts.pop("NAME", None)
    assert counts == ({"PHONE": 1} if task == "agnews" else {})


# --- detectors ------------------------------------------------------------------------


def test_an_unknown_detector_is_refused():
    with pytest.raises(InputError, match="'nlp'.*rules"):
        marked("x", detector="nlp")


@pytest.fixture
def with_presidio():
    pytest.importorskip("presidio_analyzer", reason="the extra `presidio`")


@pytest.mark.usefixtures("with_presidio")
def test_presidio_says_how_to_get_a_model(monkeypatch):
    import spacy

    presidio.by_presidio.cache_clear()
    monkeypatch.setattr(spacy.util, "is_package", lambda name: False)
    with pytest.raises(InputError) as caught:
        marked("x", detector="presidio")
    assert "spacy download en_core_web_lg" in str(caught.value)


@pytest.mark.usefixtures("with_presidio")
def test_presidio_names_come_from_the_model(monkeypatch):
    import spacy

    def people(text):
        start = text.index("Ann")
        person = SimpleNamespace(start_char=start, end_char=start + 7, label_="PERSON")
        entity = SimpleNamespace(start_char=0, end_char=2, label_="GPE")
        return SimpleNamespace(ents=[entity, person])

    presidio.by_presidio.cache_clear()
    monkeypatch.setattr(spacy.util, "is_package", lambda name: name == "en_core_web_sm")
    monkeypatch.setattr(spacy, "load", lambda name: people)
    got = found("LA: Ann Lee, ann@example.org", detector="presidio")
    presidio.by_presidio.cache_clear()
    assert got == [("NAME", "Ann Lee"), ("EMAIL", "ann@example.org")]


# --- time -----------------------------------------------------------------------------

SIZE = 20_000
PIECES = (
    "Regards",
    "Regards\n",
    "\n",
    " ",
    "a",
    "A",
    "1",
    "Aa ",
    "A-a",
    "a@b.",
    "me@example.org ",
    "4111 ",
    "+12345678901234a ",
    "+1 (",
    "(212) 555-",
    "ssn ",
    "password is ",
    "password for a ",
    "PIN\t",
    "passport number ",
    "GB82 WEST ",
    "1.2.3.",
    "12 Aa ",
    "P.O. Box ",
    "Mr. A",
    "my name is ",
    "Contact A. ",
)
"""What rules begin with, and what they repeat."""


@pytest.mark.parametrize(("type", "pattern"), pii.RULES)
def test_every_rule_is_fast_on_any_text(type, pattern):
    for piece in PIECES:
        for text in (piece * SIZE, piece + "\n" * SIZE, piece + " " * SIZE):
            start = time.process_time()
            list(pii.matches(text[:SIZE], pattern))
            assert time.process_time() - start < 0.5, piece


@pytest.mark.parametrize("piece", [*PIECES, "Ann Lee ", "Lee, Ann ", "A. Lee "])
def test_names_are_fast_on_any_text(piece):
    names("warm")
    start = time.process_time()
    names((piece * SIZE)[:SIZE])
    assert time.process_time() - start < 1


def test_many_identifiers_in_one_row_take_no_longer_than_they_are():
    text = "me@example.org " * 20_000
    start = time.process_time()
    spans = find_identifiers(text)
    assert len(spans) == 20_000
    assert pii.resolved([*spans, *spans]) == spans
    assert time.process_time() - start < 20


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ANN LEE OR BOB HILL CALLED", ["ANN LEE", "BOB HILL"]),
        ("Text: ANN LEE CALLED", ["ANN LEE"]),
        ("THE NBA AND MVP ARE GOOD", []),
        ("USA VS IRAN", []),
        ("The BOB LEE is a ship", []),  # short capitals in a usual sentence
    ],
)
def test_short_names_in_a_line_of_capitals(text, wanted):
    assert [text[start:end] for start, end in names(text)] == wanted


def test_a_lone_name_behind_a_role_is_whole_whatever_word_is_next():
    """Only a full name may go on: "Ab" is no part of the manager's."""
    text = "Manager Walker Ab sofort"
    assert [text[start:end] for start, end in names(text)] == ["Walker"]


def test_no_hit_is_said_in_one_line(tmp_path, capsys):
    write_examples(tmp_path / "t.jsonl", [example("row", "nothing here")])
    arguments = ["data", "annotate", str(tmp_path / "t.jsonl")]
    assert run([*arguments, "-o", str(tmp_path / "a.jsonl")]) == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("no identifier") == 1
