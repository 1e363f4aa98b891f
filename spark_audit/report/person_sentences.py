"""Sentences on single persons, from the records of :mod:`spark_audit.report.named`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from spark_audit.sentences import render

PersonRecord: TypeAlias = Mapping[str, Any]
"""What a checkpoint shows of a person, or what changed between two checkpoints."""


def rows_of_person(record: PersonRecord) -> str:
    """Return how many rows of a person were given as training data and as held out."""
    n_trained, n_held_out = record["trained"], record["held_out"]
    key = "persons.one_row" if n_trained == 1 else "persons.rows"
    if n_trained + n_held_out == 0:
        key = "persons.no_row"
    return render(key, id=record["id"], trained=n_trained, held_out=n_held_out)


def person_sentences(record: PersonRecord, *, share: float) -> list[str]:
    """Return what a checkpoint shows of a person.

    Parameters
    ----------
    record
        Of :func:`spark_audit.report.named.persons`.
    share
        Expected share of false ones among named rows.
    """
    state = record["state"]
    if state == "not_tested":
        sentences = [render("persons.not_tested", why=record["why"])]
    else:
        sentence = render(
            f"persons.{state}",
            of_test=_test_in_words(record),
            least=record["least"],
            share=share,
        )
        sentences = [sentence, *_in_list(record, share)]

    if record["trained"] or record["asked"]:
        sentences.append(_back(record))
    return sentences


def change_sentence(record: PersonRecord) -> str:
    """Return what changed for a person between two checkpoints.

    Parameters
    ----------
    record
        Of :func:`spark_audit.report.named.changed`.
    """
    between = render("persons.between", before=record["before"], after=record["after"])
    if record["change"] == "untested":
        return render("persons.untested", between=between)
    return render(
        f"persons.{record['change']}",
        between=between,
        of_test=_test_in_words(record),
        least=record["least"],
    )


def _test_in_words(record: PersonRecord) -> str:
    """Return p, and p corrected for the persons asked for, with the limit."""
    p, p_adjusted = record["p"], record["p_adjusted"]
    is_corrected = p != p_adjusted
    key = "persons.of_test_corrected" if is_corrected else "persons.of_test"
    return render(key, p=p, p_adjusted=p_adjusted)


def _in_list(record: PersonRecord, share: float) -> list[str]:
    """Return how many of the rows stand in the list of single rows, if any do."""
    n_named, n_trained = record["named"], record["trained"]
    if not n_named:
        return []

    key = "persons.one_in_list" if n_named == 1 else "persons.in_list"
    if n_trained == 1:
        key = "persons.only_row_in_list"
    return [render(key, named=n_named, trained=n_trained, share=share)]


def _back(record: PersonRecord) -> str:
    """Return how many of the identifiers come back word for word."""
    n_back = record["back"]
    if n_back is None:
        return render("persons.back_not_tested")
    key = "persons.one_back" if n_back == 1 else "persons.back"
    return render(key, back=n_back, asked=record["asked"])
