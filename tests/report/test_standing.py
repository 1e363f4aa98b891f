"""Where checkpoints stand: states from typed findings, the worst first."""

from __future__ import annotations

from typing import Any

import pytest

from spark_audit.report.standing import (
    NEXT,
    SHAPES,
    STATES,
    answer,
    covered,
    standings,
)
from spark_audit.results import (
    CheckpointFacts,
    Claim,
    Finding,
    ManifestFacts,
    Report,
    Row,
)

FAMILY = {"p": 0.01, "family": "primary"}


def finding(audit: str, name: str, claim: Claim, **more: Any) -> Finding:
    family = {} if claim in ("not_tested", "moved", "confounded") else FAMILY
    loud = claim in ("memory", "membership", "betrays", "verbatim")
    other = {"otherwise": "x"} if loud else {}
    said = f"{name}: {audit} {claim}."
    return Finding(
        audit=audit,
        checkpoint=name,
        claim=claim,
        sentence=said,
        **{**family, **other, **more},
    )


def a_report(**columns: Any) -> Report:
    facts = {"n_sources": 3, "n_clusters": 3, "n_spans": 4, "n_tokens": 9}
    given: dict[str, Any] = {
        "status": "complete",
        "command": ["spark-audit"],
        "created": "2026-01-01T00:00:00+00:00",
        "versions": {},
        "settings": {},
        "manifest": ManifestFacts(name="m", digest="d" * 64, **facts),
        "guards": [],
        "scope": [],
        "tables": {},
        "contrasts": [],
    }
    return Report(**{**given, **columns})


def checkpoint(name: str) -> CheckpointFacts:
    return CheckpointFacts(
        name=name,
        source=name,
        format="hf-folder",
        weights_sha256="1" * 64,
        model_id="1" * 64,
        dtype="float32",
    )


def report(*findings: Finding, names: tuple[str, ...] = ("base", "a", "b")) -> Report:
    rows = [
        Row(
            audit="matched",
            checkpoint=name,
            metric="memory",
            value=0.0,
            n=9,
            clusters=7,
        )
        for name in names
    ]
    rows += [
        Row(
            audit="extract",
            checkpoint="a",
            metric="greedy_rate",
            group=group,
            value=0.0,
            n=5,
        )
        for group in ("pooled", "type:NAME", "type:SSN")
    ]
    return a_report(
        results=rows, findings=list(findings), checkpoints=list(map(checkpoint, names))
    )


@pytest.mark.parametrize(
    ("claims", "state"),
    [
        ([("extract", "verbatim")], "LEAKS"),
        ([("mia", "membership"), ("canary", "memory")], "LEAKS"),
        ([("mia", "membership")], "DETECTABLE"),
        ([("matched", "betrays")], "DETECTABLE"),
        ([("matched", "nothing_shown"), ("mia", "confounded")], "NOT SHOWN"),
        ([("twins", "nothing_shown")], "NOT SHOWN"),
        ([("mia", "nothing_shown")], "NOT TESTED"),
        ([("matched", "moved"), ("rank", "moved")], "NOT TESTED"),
        ([], "NOT TESTED"),
    ],
)
def test_states(claims: list[tuple[str, Claim]], state: str) -> None:
    told = [finding(audit, "a", claim) for audit, claim in claims]
    found = {one.name: one for one in standings(report(*told))}
    assert found["a"].state == state
    assert found["b"].state == "NOT TESTED"
    assert "base" not in found
    assert set(SHAPES) == set(STATES) == set(NEXT)


def test_the_worst_stands_first_and_every_detection_in_it() -> None:
    loud = [finding(k, "b", "memory") for k in ("matched", "twins", "canary")]
    one, two = standings(
        report(
            finding("matched", "a", "nothing_shown"),
            *loud,
            finding("mia", "b", "membership"),
        )
    )
    assert (one.name, one.state, len(one.detections)) == ("b", "LEAKS", 4)
    assert one.lead == "Matched memory."
    assert [tried.audit for tried in one.tally["FOUND"]] == [
        "matched",
        "canary",
        "twins",
        "mia",
    ]
    assert (two.name, two.audit, two.lead) == ("a", "matched", "Matched nothing_shown.")
    assert answer([one, two]) == "Of 2 checkpoints: 1 LEAKS (b), 1 NOT SHOWN (a)"
    assert answer([two]) == "a: NOT SHOWN"


def test_what_says_nothing_is_void_and_what_was_left_out_not_tested() -> None:
    told = [
        finding("matched", "a", "nothing_shown"),
        finding("canary", "a", "nothing_shown", status="insensitive"),
        finding("mia", "a", "confounded"),
        finding("extract", "a", "not_tested"),
    ]
    (one, _) = standings(report(*told))
    assert {k: [t.audit for t in v] for k, v in one.tally.items()} == {
        "confounded": ["mia"],
        "void": ["canary"],
        "not tested": ["twins", "extract"],
        "not shown": ["matched"],
    }


def test_a_base_that_gives_something_away_is_told_of_too() -> None:
    found = standings(report(finding("extract", "base", "verbatim")))
    assert [one.name for one in found] == ["base", "a", "b"]


def test_covered_counts_and_names_what_was_not_tried() -> None:
    told = covered(report())
    assert "identifiers: 7 independent groups" in told[0]
    assert told[1].startswith("extraction: 5 identifiers")
    assert told[1].endswith("(2 types)")
    assert told[2] == "not tried: canaries, twins, membership"


def test_a_report_without_attacks_has_no_standings() -> None:
    bare = a_report(results=[], findings=[], checkpoints=[])
    assert standings(bare) == []
