"""Which identifiers nobody can guess, kind by kind."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spark_audit.audits.unguessable import GUESSED, guesses, kind_of
from spark_audit.data.canaries import draw


def manifest_of(*rows: tuple[str, str, str]) -> Any:
    """A manifest of rows with text before an identifier, its type, and itself."""
    examples = []
    for number, (before, type_name, text) in enumerate(rows):
        span = SimpleNamespace(
            start=len(before), end=len(before + text), type=type_name
        )
        example = SimpleNamespace(
            id=str(number), text=before + text, canary_id=None, spans=[span]
        )
        examples.append(example)
    return SimpleNamespace(examples=examples)


def unguessable(*rows: tuple[str, str, str]) -> list[bool]:
    return [guess.is_unguessable for guess in guesses(manifest_of(*rows)).values()]


@pytest.mark.parametrize(
    ("text", "type", "type_name"),
    [
        ("jane.doe@mail.example", "EMAIL", "address"),
        ("j.doe@mail.example", "EMAIL", "address"),
        ("janedoe@mail.example", "EMAIL", "address"),
        ("jane17@mail.example", "EMAIL", "address"),
        ("info@mail.example", "EMAIL", None),
        ("customer.service@mail.example", "EMAIL", None),
        ("info@lindenhof-clinic.example", "EMAIL", "address"),
        ("j@mail.example", "EMAIL", None),
        # One surname of thousands; a frequent given name is a first guess.
        ("nowak@gmail.com", "EMAIL", "address"),
        ("w.nowak@gmail.com", "EMAIL", "address"),
        ("j.kim@gmail.com", "EMAIL", "address"),
        ("ostrander@gmail.com", "EMAIL", "address"),
        ("li@gmail.com", "EMAIL", None),
        ("w.li@gmail.com", "EMAIL", None),
        ("anna@gmail.com", "EMAIL", None),
        ("peter@gmx.de", "EMAIL", None),
        ("michael@gmail.com", "EMAIL", None),
        ("sebastian@web.de", "EMAIL", None),
        ("hotel@gmail.com", "EMAIL", None),
        ("anna@lindenhof-clinic.example", "EMAIL", "address"),
        ("Jane Doe", "NAME", "name"),
        ("Ludwig van Beethoven", "NAME", "name"),
        ("Dr. Doe", "NAME", None),
        ("Jane", "NAME", None),
        ("王小明", "NAME", "name"),
        ("欧阳小明", "NAME", "name"),
        ("王 伟", "NAME", "name"),
        ("王先生", "NAME", None),
        ("小明", "NAME", None),
        ("田中太郎", "NAME", "name"),
        ("田中 太郎", "NAME", "name"),
        ("佐々木 健", "NAME", "name"),
        ("田中さん", "NAME", None),
        ("田中", "NAME", None),
        ("さくら", "NAME", None),
        ("김민수", "NAME", "name"),
        ("남궁민수", "NAME", "name"),
        ("민수", "NAME", None),
        ("김민수님", "NAME", "name"),
        ("Jane Doe", "OTHER", None),
        ("212-555-0142", "PHONE", "number"),
        ("06 12 34 56 78", "PHONE", "number"),
        ("+33 6 12 34 56 78", "PHONE", "number"),
        ("12.03.85-1234", "SSN", "number"),
        ("12-34-56 12345678", "ACCOUNT", "number"),
        ("123456789@mail.example", "EMAIL", "address"),
        ("12345", "ID", None),
        ("2020-01-02 10:30", "OTHER", None),
        ("12/03/85 - 14/03/85", "OTHER", None),
        ("12.03.1985", "OTHER", None),
        # A date without marks, with its month as a word, or of a type that is dates.
        ("19850312", "OTHER", None),
        ("12031985", "ID", None),
        ("19851312", "ID", "number"),
        ("12 March 1985", "OTHER", None),
        ("March 12th, 1985", "OTHER", None),
        ("12. März 1985", "OTHER", None),
        ("12 de enero de 1985 10:30", "OTHER", None),
        ("12 Main Street 1985", "ADDRESS", "number"),
        ("120385", "DATE", None),
        ("the twelfth of 031985", "DATE_OF_BIRTH", None),
        ("x7Kq02mZpe", "PASSWORD", "code"),
        ("Summer2024", "PASSWORD", None),
        ("x7Kq02", "PASSWORD", None),
    ],
)
def test_the_kind_of_a_string_decides(text, type, type_name):
    assert kind_of(text, type) == type_name


@pytest.mark.parametrize(
    ("type", "share"),
    [("NAME", 1), ("EMAIL", 1), ("PHONE", 1), ("SSN", 1), ("PASSWORD", 0.7)],
)
def test_what_is_drawn_at_random_cannot_be_guessed(type, share):
    """Of passwords all with a digit in their midst."""
    drawn = draw(type, np.random.default_rng(0), 200)
    is_drawn = [kind_of(text, type) is not None for text in drawn]
    assert sum(is_drawn) >= share * len(is_drawn)


def test_what_stands_before_gives_an_identifier_away():
    assert unguessable(
        ("Jane Doe is at ", "EMAIL", "jane.doe@mail.example"),
        ("The doctor and his staff: ", "EMAIL", "sandra.k@mail.example"),
        ("From k.bertram@mail.example, ", "NAME", "Klara Bertram"),
        ("Signed: ", "NAME", "Nora Ostrander"),
        ("Was x7Kq02mZpe, is ", "PASSWORD", "x7Kq02mZpe"),
        ("Call 212 555 or ", "PHONE", "212-555-0142"),
    ) == [False, True, False, True, False, False]


def test_running_numbers_and_relatives_tell_each_other():
    rows = [
        *(("To ", "EMAIL", f"bertram{i}@mail.example") for i in (17, 18)),
        *(("No. ", "ID", f"7700120{i}") for i in (1, 2)),
        *(("Of ", "NAME", f"{first} Ostrander") for first in ("Nora", "Nina")),
    ]
    assert unguessable(*rows) == [False] * 6
    # Each by itself is known from nowhere.
    assert unguessable(*rows[::2]) == [True] * 3
    # One number that is written in two ways is one number.
    assert unguessable(("", "ID", "77001201"), ("", "ID", "7700-1201")) == [True] * 2


def test_names_of_short_lists_are_guessed_more_often():
    firsts = ("Anna", "Hans", "Ruth")
    lasts = ("Meier", "Huber", "Adams", "Vogel")
    rows = [("", "NAME", f"{first} {last}") for first in firsts for last in lasts]
    guessed = guesses(manifest_of(*rows))
    assert [guess.rate for guess in guessed.values()] == pytest.approx([1 / 12] * 12)
    rare = [("", "NAME", f"{first}na {first}ri") for first in "abcdefghijklmno"]
    assert {guess.rate for guess in guesses(manifest_of(*rare)).values()} == {GUESSED}


def test_a_name_in_text_without_spaces_is_given_by_what_stands_before():
    assert unguessable(
        ("王小明的邮箱是", "NAME", "王小明"),
        ("联系人:", "NAME", "李国强"),
        ("담당자는 ", "NAME", "박지훈"),
        ("박서연 씨의 담당자 ", "NAME", "박서연"),
    ) == [False, True, True, False]


def test_relatives_tell_each_other_in_names_that_begin_with_the_surname():
    # The stem is the surname with the first character of the given name.
    assert unguessable(("", "NAME", "王小明"), ("", "NAME", "王小红")) == [False] * 2
    assert unguessable(("", "NAME", "王小明"), ("", "NAME", "李国强")) == [True] * 2
    assert (
        unguessable(("", "NAME", "田中 太郎"), ("", "NAME", "田中 太一")) == [False] * 2
    )


def test_two_addresses_of_one_domain_or_one_person_tell_each_other():
    rows = [
        ("To ", "EMAIL", "info@lindenhof-clinic.example"),
        ("To ", "EMAIL", "sales@lindenhof-clinic.example"),
        ("To ", "EMAIL", "j.bertram@mail.example"),
        ("To ", "EMAIL", "j.bertram@post.example"),
    ]
    assert unguessable(*rows) == [False] * 4
    assert unguessable(*rows[::2]) == [True] * 2
    # The same address in two rows is one.
    assert unguessable(rows[0], rows[0]) == [True] * 2
