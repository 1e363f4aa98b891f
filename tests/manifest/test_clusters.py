"""Rows that tell about the same thing are one cluster, and it is said why."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from marked import make_canary_row, make_example

from spark_audit.data.examples import Example
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.layout import Rows
from spark_audit.manifest.overview import describe
from spark_audit.manifest.selection import (
    WIDESPREAD_ROWS,
    Clusters,
    clusters,
    duplicates,
)

Find = Callable[[Sequence[Example]], Clusters]

TOPICS = "food service rate news week business sports label world technology".split()


@pytest.fixture
def find(tiny_tokenizer) -> Find:
    def of(examples: Sequence[Example]) -> Clusters:
        rows = Rows(examples, tiny_tokenizer, max_length=None)
        return clusters(examples, duplicates(rows))

    return of


@pytest.fixture
def said() -> Callable[..., Example]:
    """``said(i, "Ann Lee", "NAME")``: a row with a text of its own that holds it."""

    def make(i: int, string: str, kind: str = "NAME", **options: Any) -> Example:
        words = " ".join(f"{topic}{i}" for topic in TOPICS)
        pii = {string: kind} if kind else {}
        return make_example(f"r{i:03d}", f"{words} by {string} now", pii=pii, **options)

    return make


def joined(found: Clusters) -> dict[str, int]:
    counts = found.counts
    return {k.removeprefix("joined_by_"): n for k, n in counts.items() if "_by_" in k}


def test_source_canary_and_duplicates_join(find):
    found = find(
        [
            make_example("a", "the food was cold and the service was good", source="s"),
            make_example("b", "business news of the week were read again", source="s"),
            make_example("c", "The food was cold, and the service was good!"),
            make_example("d", "the rate was raised by 25 basis points again"),
            make_canary_row("x", before="World news of the week. "),
            make_canary_row("y", before="It paid forty two dollars. "),
        ]
    )
    assert found.labels == ["c", "c", "c", "d", "x", "x"]
    assert (found.counts["clusters"], found.counts["rows_joined"]) == (3, 5)
    assert found.counts["largest_cluster"] == 3
    # The canary's parts are identifiers of its rows, too.
    assert joined(found) == {"source": 2, "canary": 2, "string": 2, "near_duplicate": 2}


def test_the_same_string_has_any_case_place_and_split(find, said):
    rows = [
        said(0, "Ann.Lee@example.com", "EMAIL"),
        said(1, "ann.lee@EXAMPLE.com", "EMAIL", split="test"),
        said(2, "<ann.lee@example.com>", ""),  # nobody annotated it here
        said(3, "joann.lee@example.com", ""),
        said(4, "ann.lee@example.community", ""),
    ]
    assert find(rows).labels == ["r000", "r000", "r000", "r003", "r004"]


@pytest.mark.parametrize(
    ("string", "kind"), [("Anna", "NAME"), ("Berlin", "ADDRESS"), ("x7", "ID")]
)
def test_what_is_too_little_to_be_one_persons_joins_nothing(find, said, string, kind):
    found = find([said(i, string, kind) for i in range(6)])
    assert found.counts["clusters"] == 6
    assert joined(found)["string"] == 0
    (note,) = found.notes
    assert note.startswith("1 annotated strings occur in several rows and are too")
    assert string not in note


def test_a_password_that_is_a_word_joins_where_it_is_annotated(find, said):
    rows = [said(0, "dragon", "PASSWORD"), said(1, "dragon", "PASSWORD")]
    assert find([*rows, said(2, "dragon", "")]).labels == ["r000", "r000", "r002"]


def test_a_string_in_very_many_rows_is_nobodys(find, said):
    """A shop's own number in every row would leave a single cluster."""
    number = "555-010-7788"
    rows = [said(i, number, "PHONE") for i in range(WIDESPREAD_ROWS + 1)]
    found = find(rows)
    assert found.counts["clusters"] == len(rows)
    assert found.notes == [
        "1 annotated strings stand in more than 100 of 101 rows, up to 101: they are "
        "not counted as personal and join no rows into a cluster"
    ]
    # In fewer it may be somebody's: one cluster, and the reader is told what to do.
    found = find(rows[:WIDESPREAD_ROWS])
    assert found.counts["clusters"] == 1
    (note,) = found.notes
    assert note.startswith("one cluster holds 100 of 100 rows (1 if shared identifiers")
    assert "remove its annotations" in note
    assert number not in note


def test_a_manifest_holds_the_clusters_and_says_what_joined_them(
    rows, reference, made_scores
):
    manifest = build_manifest(rows, reference, name="m", n_candidates=4)
    people: dict[str, set[str]] = {}
    for row in rows:
        for span in row.spans:
            string = row.text[span.start : span.end]
            people.setdefault(string, set()).add(manifest.by_id[row.id].cluster)
    assert max(map(len, people.values())) == 1
    facts = describe(manifest).facts
    assert facts["clusters"] == len({e.cluster for e in manifest.examples}) < len(rows)
    assert facts["joined by string"] == 24 + 2
    assert (facts["joined by source"], facts["joined by canary"]) == (0, 2)
