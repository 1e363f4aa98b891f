"""Verdict, table and remarks on persons, and on what changed for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from spark_audit.report.person_changes import PersonChange
from spark_audit.report.persons import PersonRecord
from spark_audit.sentences import render

PERSON_COLUMNS = ("checkpoint", "result", "p", "least", "rows", "back", "share")
"""Keys of the columns of :func:`person_line`."""

CHANGE_COLUMNS = ("before", "after", "change", "p", "least")
"""Keys of the columns of :func:`change_line`."""


def rows_of_person(record: PersonRecord) -> str:
    """Return the numbers of a person's rows in training data and held out, in words."""
    n_trained = record["trained"]
    n_held_out = record["held_out"]
    key = "persons.one_row" if n_trained == 1 else "persons.rows"
    if n_trained + n_held_out == 0:
        key = "persons.no_row"
    return render(key, trained=n_trained, held_out=n_held_out)


def person_verdict(records: Sequence[PersonRecord]) -> str:
    """Return the sentence on checkpoints that show the use of a person's rows.

    Parameters
    ----------
    records
        One per checkpoint, all of one person; ``checkpoint`` is what to call it.
    """
    person = records[0]["id"]
    names_by_state: dict[str, list[str]] = {}
    for record in records:
        names = names_by_state.setdefault(record["state"], [])
        names.append(record["checkpoint"])

    # The strongest result of any checkpoint is the verdict.
    for state in ("shown", "listed"):
        names = names_by_state.get(state, [])
        if names:
            return render(f"persons.verdict_{state}", id=person, names=", ".join(names))

    if "not_shown" in names_by_state:
        return render("persons.verdict_not_shown", id=person)
    return render("persons.verdict_not_tested", id=person)


def erasure_of_person(records: Sequence[PersonRecord]) -> str:
    """Return the verdicts on the person's rows that should be forgotten.

    Empty: none of them is among the rows of the report that should be.

    Parameters
    ----------
    records
        One per checkpoint, all of one person.
    """
    if not any(record["forget"] for record in records):
        return ""

    verdicts = []
    for record in records:
        if record["verdict"]:
            verdicts.append(f"{record['checkpoint']} {record['verdict']}")
    if not verdicts:
        return render("persons.to_forget_without_verdict")
    return render("persons.to_forget", verdicts=", ".join(verdicts))


def person_line(record: PersonRecord) -> tuple[str, ...]:
    """Return the line of a checkpoint on a person, by :data:`PERSON_COLUMNS`."""
    back = render("persons.back_not_tested")
    if record["back"] is not None:
        back = render("named.of", count=record["back"], of=record["asked"])
    if record["state"] == "not_tested":
        test = record["why"].rstrip(".")
        least = ""
        listed = ""
    else:
        test = _test_in_words(record)
        least = render("persons.least", least=record["least"])
        listed = render("named.of", count=record["named"], of=record["trained"])

    return (
        record["checkpoint"],
        render(f"persons.state.{record['state']}"),
        test,
        least,
        listed,
        back,
        trained_share_in_words(
            record["trained_share"],
            record["trained_share_low"],
            record["trained_share_high"],
        ),
    )


def change_line(change: PersonChange) -> tuple[str, ...]:
    """Return the line of a change between checkpoints, by :data:`CHANGE_COLUMNS`."""
    test = ""
    least = ""
    if change["change"] != "untested":
        test = _test_in_words(change)
        least = render("persons.least", least=change["least"])

    return (
        change["before"],
        change["after"],
        render(f"persons.change.{change['change']}"),
        test,
        least,
    )


def remarks_on_persons(
    records: Sequence[PersonRecord], changes: Sequence[PersonChange], *, share: float
) -> Iterator[str]:
    """Yield the meaning of each result that occurs, and what no result proves.

    Parameters
    ----------
    records
        Of :func:`spark_audit.report.persons.persons`.
    changes
        Of :func:`spark_audit.report.person_changes.changed`.
    share
        Expected share of false ones among named rows.
    """
    # Each state is explained once, however many persons have it.
    states = {record["state"] for record in records}
    for state in ("shown", "listed", "not_shown"):
        if state in states:
            yield render(f"persons.means.{state}", share=share)
    if any(record["named"] for record in records):
        yield render("persons.means.rows", share=share)
    if any(record["back"] is not None for record in records):
        yield render("persons.means.back")

    if any(record["trained_share"] is not None for record in records):
        yield render("named.trained_shares")

    directions = {change["change"] for change in changes}
    for direction in ("fell", "untested"):
        if direction in directions:
            yield render(f"persons.means.{direction}")

    # It holds of every result.
    yield render("persons.limits")


def trained_share_in_words(
    value: float | None, low: float | None, high: float | None
) -> str:
    """Return the share of trained rows with its interval; empty if there is none.

    Limits are rounded outwards, to whole numbers of per cent.
    """
    if value is None or low is None or high is None:
        return ""
    return render(
        "named.trained_share",
        value=round(100 * value),
        low=math.floor(100 * low),
        high=math.ceil(100 * high),
    )


def _test_in_words(record: PersonRecord | PersonChange) -> str:
    """Return p, and p corrected for the persons asked for where that is another."""
    p = record["p"]
    p_adjusted = record["p_adjusted"]
    if p == p_adjusted:
        return render("persons.of_test", p=p)
    return render("persons.of_test_corrected", p=p, p_adjusted=p_adjusted)
