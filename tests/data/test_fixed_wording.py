"""Fixed wording: what most prompts share, at borders, and never inside identifiers."""

import time
from dataclasses import replace

import pytest

from spark_audit.data import fixed_wording, task_wording
from spark_audit.data.annotation import annotate_and_count
from spark_audit.data.examples import Example, Span
from spark_audit.data.fixed_wording import lack_notes, merged, template_ranges
from spark_audit.data.task_wording import task_wordings


def prompts(*texts, task="t"):
    return [
        Example(
            id=f"{task}{i}",
            task=task,
            prompt=prompt,
            response=" open",
            split="train",
            source_id=f"{task}{i}",
        )
        for i, prompt in enumerate(texts)
    ]


def found(texts, **options):
    """The annotated strings of each row."""
    rows = annotate_and_count(prompts(*texts), **options).examples
    return [[row.text[s.start : s.end] for s in row.spans] for row in rows]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["Text: one\nLabel:"], ("", "")),  # one prompt is all content
        (["Text: one\nLabel:"] * 3, ("", "")),
        (["Text: The cat.\nQ:", "Text: Them.\nQ:"], ("Text: ", "\nQ:")),
        (['Say "yes" now:', 'Say "no" now:'], ("Say ", " now:")),
        (["a b c", "a b"], ("a ", "")),
        (["one", "two"], ("", "")),
        (["[INST] x [/INST]", "[INST] y [/INST]"], ("[INST] ", " [/INST]")),
        (["[INST]x[/INST]", "[INST]y[/INST]"], ("[INST]", "[/INST]")),
        (["<|user|>Hi<|end|>", "<|user|>No<|end|>"], ("<|user|>", "<|end|>")),
        (["Text:one\nA:", "Text:two\nA:"], ("Text:", "\nA:")),
        (["**Text:**one", "**Text:**two"], ("**Text:**", "")),
        (['{"text": "one"}', '{"text": "two"}'], ('{"text": ', "")),
        # what both could have, the prefix has
        (["Q: aa Q:", "Q: aa aa Q:"], ("Q: aa ", "")),
        (["", "a b"], ("", "")),
        (["\u6587\u672c\uff1a\u597d", "\u6587\u672c\uff1a\u5dee"],
         ("\u6587\u672c\uff1a", "")),
        # no border stands inside a word, an address, a code, a link
        (["see https://a.example/1 x", "see https://b.example/2 x"], ("see ", " x")),
        (["Order ORD-1", "Order ORD-2"], ("Order ", "")),
        (["to a@b.test\nQ:", "to c@b.test\nQ:"], ("to ", "\nQ:")),
        (["at 12:30 go", "at 12:45 go"], ("at ", " go")),
    ],
)  # fmt: skip
def test_wording_ends_at_borders(texts, expected):
    assert task_wordings(prompts(*texts)) == {"t": expected}


def test_prefix_and_suffix_do_not_overlap_in_the_shortest_prompt():
    rows = prompts("A: \nB:", "A: \nA: \nB:")
    wording = task_wordings(rows)
    for row in rows:
        ranges = template_ranges(row, wording)
        assert list(ranges) == sorted(ranges)
        assert replace(row, template=ranges).template == ranges


def test_a_rows_own_template_wins():
    (row,) = prompts("Text: Ann\nLabel:")
    row = replace(row, template=((0, 4),))
    wording = {"t": fixed_wording.FixedWording("Text: ", "\nLabel:")}
    assert template_ranges(row, wording) == ((0, 4),)
    assert template_ranges(replace(row, template=()), wording) == ()
    assert template_ranges(replace(row, template=None), wording) == ((0, 6), (9, 16))


def test_a_row_that_lacks_a_part_has_what_it_shares_with_the_wording():
    wording = {"t": fixed_wording.FixedWording("Text: Title: ", " now\nLabel:")}
    for prompt, expected in [
        ("Te", ()),
        ("Text: Body", ((0, 6),)),
        ("Title: Body\nLabel:", ((11, 18),)),
        ("Text: Title: a now\nLabel:", ((0, 13), (14, 25))),
    ]:
        (row,) = prompts(prompt)
        assert template_ranges(row, wording) == expected
    assert template_ranges(row, {}) == ()


# --- most rows, not all ---------------------------------------------------------------

DESK = "Help desk: help@shop.example\nText: "


@pytest.mark.parametrize("n_lacking", [0, 1, 5, 20])
def test_rows_without_the_wording_change_nothing_for_the_others(n_lacking):
    texts = [f"{DESK}case {i} of ann{i}@post.test\nQ:" for i in range(49 - n_lacking)]
    texts += [f"note {i} by bob{i}@post.test" for i in range(n_lacking)]
    result = annotate_and_count(prompts(*texts))
    strings = [row.text[s.start : s.end] for row in result.examples for s in row.spans]
    assert len(strings) == 49
    assert "help@shop.example" not in strings
    assert result.n_in_wording == result.n_wording_rows == 49 - n_lacking
    assert len(result.notes) == (n_lacking > 0)
    if n_lacking:
        assert f"{n_lacking} of 49 rows lack" in result.notes[0]


def test_what_fewer_than_half_of_the_rows_share_is_no_wording():
    texts = [f"{DESK}case {i}" for i in range(10)] + [f"other {i}" for i in range(10)]
    assert task_wordings(prompts(*texts))["t"].prefix == ""


@pytest.mark.parametrize("field", ["", "Text: "])
def test_words_that_many_texts_happen_to_begin_with_are_no_wording(field):
    texts = [f"{field}I saw {i} cats" for i in range(30)]
    texts += [f"{field}{word} {i} dogs" for i in range(5) for word in ("You", "We")]
    assert task_wordings(prompts(*texts))["t"].prefix == field
    texts = [text.replace("We", "I saw") for text in texts]
    assert task_wordings(prompts(*texts))["t"].prefix == f"{field}I saw "


def test_a_field_needs_most_rows_and_a_word_more():
    texts = [f"Classify: {i}x now" for i in range(6)] + [f"{i}x" for i in range(4)]
    assert task_wordings(prompts(*texts))["t"] == ("Classify: ", "")


def test_tasks_have_wording_of_their_own():
    rows = prompts("A: 1x", "A: 2x") + prompts("B: 1x", "B: 2x", "C: 3x", task="u")
    wording = task_wordings(rows)
    assert [wording[task].prefix for task in "tu"] == ["A: ", "B: "]
    assert lack_notes(rows, wording) == [
        "task u: 1 of 3 rows lack the fixed wording that most rows of the task begin "
        "or end with"
    ]


def test_wording_does_not_depend_on_the_order_of_many_rows(monkeypatch):
    monkeypatch.setattr(task_wording, "PROMPTS_SEARCHED", 32)
    texts = [f"Text: {'so ' * (i % 3)}row {i}\nLabel:" for i in range(500)]
    rows = prompts(*texts)
    assert task_wordings(rows) == task_wordings(rows[::-1])
    assert task_wordings(rows)["t"] == ("Text: ", "\nLabel:")


def test_very_long_prompts_are_looked_at_at_their_ends(monkeypatch):
    monkeypatch.setattr(task_wording, "EDGE_CHARACTERS", 30)
    texts = [f"Text: ab{i} {'filler ' * 50}Z{i} end\nLabel:" for i in range(9)]
    assert task_wordings(prompts(*texts))["t"] == ("Text: ", " end\nLabel:")


@pytest.mark.parametrize("piece", ["a ", "\n", "x\n ", ": ", "[", "Ann Lee ", "12 34 "])
def test_no_prompts_take_for_ever(piece):
    rows = prompts(*(piece * 10_000 + f"{i}x " + piece * 10_000 for i in range(20)))
    rows += prompts(*(piece * (1000 * i) for i in range(1, 9)), task="u")
    start = time.process_time()
    task_wordings(rows)
    assert time.process_time() - start < 5


# --- identifiers that begin or end alike ----------------------------------------------

ALIKE = {
    "phone": ("Phone: {}, ticket {}: late.\nStatus:", "+1 212 555 {:04d}", {}),
    "phone in brackets": ("Call {} for {}.\nStatus:", "(212) 555-{:04d}", {}),
    "phone at the start": ("{} asks about {}.\nStatus:", "+44 20 7946 {:04d}", {}),
    "card": ("Card {} row {} late.", "4111 1111 1111 {:04d}", {}),
    "email": ("Row {1}: late. Reply to {0}\nStatus:", "p{:04d}@acme.example", {}),
    "email at the end": ("Row {1}: late. Reply to {0}", "p{:04d}@acme.example", {}),
    "email in angles": ("Row {1}: <{0}>\nStatus:", "p{:04d}@acme.example", {}),
    "own code": (
        "Order {}: parcel {} late.\nStatus:", "ORD-{:07d}", {"ORDER": r"ORD-\d{7}"}),
    "own code with blanks": (
        "Case {}: row {} late.", "AB 12 {:04d}", {"CASE": r"AB \d\d \d{4}"}),
    "own code in colons": (
        "MAC {}: row {} late.", "aa:bb:{:04d}", {"MAC": r"aa:bb:\d{4}"}),
    "own code at the end": (
        "Row {1} late: {0}\nQ:", "{:04d} of desk two",
        {"DESK": r"\d{4} of desk two"}),
    "surname": ("Ticket {1} of {0} Gonzalez\nStatus:", "NAME", {}),
    "given name": ("Teresa {0} wrote {1}.\nStatus:", "NAME", {}),
}  # fmt: skip
NAMES = ["Miller", "Garcia", "Murphy", "Wilson", "Taylor", "Morgan", "Carter", "Kelly"]
GIVEN = ["Mary", "Linda", "Susan", "Karen", "Nancy", "Betty", "Sandra", "Donna"]


@pytest.mark.parametrize("case", ALIKE)
def test_identifiers_that_begin_or_end_alike_are_annotated_whole(case):
    frame, form, patterns = ALIKE[case]
    values = [form.format(1000 + 37 * i) for i in range(8)]
    if case == "card":
        cards = ["1111", "1129", "1137", "1145", "1152", "1160", "1178", "1186"]
        values = [f"4111 1111 1111 {tail}" for tail in cards]
    if form == "NAME":
        values = NAMES if case == "given name" else GIVEN
    texts = [frame.format(value, i) for i, value in enumerate(values)]
    wanted = values
    if case == "surname":
        wanted = [f"{value} Gonzalez" for value in values]
    if case == "given name":
        wanted = [f"Teresa {value}" for value in values]
    got = found(texts, patterns=patterns)
    assert [value in own for value, own in zip(wanted, got, strict=True)] == [True] * 8


def test_an_identifier_that_begins_in_given_fixed_wording_is_annotated():
    (row,) = prompts("Text: +1 212 555 1926 is late.")
    row = replace(row, template=((0, 17),))
    (row,) = annotate_and_count([row]).examples
    assert [row.text[s.start : s.end] for s in row.spans] == ["+1 212 555 1926"]
    assert template_ranges(row, {}) == ((0, 6),)


def test_no_wording_ends_in_a_span_that_was_given():
    rows = prompts("Zed ab 1x end", "Zed ab 2x end")
    rows = [replace(row, spans=(Span(4, 9, "OTHER"),)) for row in rows]
    assert task_wordings(rows)["t"] == ("Zed ", " end")


def test_what_all_rows_hold_whole_is_nobodys_even_where_a_name_follows():
    texts = [f"Help: 212-555-0147\nName: {name} Lee\nCall:" for name in GIVEN]
    result = annotate_and_count(prompts(*texts))
    strings = [row.text[s.start : s.end] for row in result.examples for s in row.spans]
    assert strings == [f"{name} Lee" for name in GIVEN]
    assert result.n_in_wording == 8


@pytest.mark.parametrize("string", ["212-555-0147", "help@firm.example.org"])
def test_what_most_rows_share_is_counted_by_task_and_type_and_can_be_kept(string):
    """Nobody can tell a help desk's number from one customer's in most rows."""
    texts = [f"Contact: {string}\nTicket: {i}x late\nCall:" for i in range(8)]
    rows = prompts(*texts, "Ticket: none\nCall:")
    type_name = "EMAIL" if "@" in string else "PHONE"
    result = annotate_and_count(rows)
    assert result.wording_types == {"t": {type_name: 8}}
    assert result.task_rows == {"t": 9}
    assert not any(row.spans for row in result.examples)

    kept_rows = annotate_and_count(rows, in_wording=True)
    assert (kept_rows.n_in_wording, kept_rows.wording_types) == (
        8,
        result.wording_types,
    )
    strings = [
        row.text[s.start : s.end] for row in kept_rows.examples for s in row.spans
    ]
    assert strings == [string] * 8


def test_spans_that_were_given_stay_in_fixed_wording():
    rows = prompts(*(f"Desk: 212-555-0147 row {i}x" for i in range(4)))
    rows = [replace(row, spans=(Span(6, 18, "ID"),)) for row in rows]
    assert [row.spans for row in annotate_and_count(rows).examples] == [
        r.spans for r in rows
    ]


def test_codes_in_fixed_wording_are_not_asked_about():
    rows = prompts(*(f"Form AB123456: row {i}x" for i in range(4)))
    assert annotate_and_count(rows).n_unknown_codes == 0
    rows = prompts(*(f"Form AB12345{i}: row {i}x" for i in range(4)))
    result = annotate_and_count(rows)
    assert (result.n_unknown_codes, result.n_code_rows) == (4, 4)


def test_ranges_that_touch_are_joined():
    assert merged(((4, 6), (0, 2), (2, 3), (5, 9))) == [(0, 3), (4, 9)]
