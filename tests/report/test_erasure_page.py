"""Erasure in reports: the part that decides, a line for each model, copies, scale."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from audited import audited
from made_reports import checkpoint, figure, made_report

from spark_audit.audits.claims import corrected
from spark_audit.audits.erasure.forget_set import ForgetRequest
from spark_audit.audits.erasure.named_persons import n_named_persons
from spark_audit.provenance import seed_for
from spark_audit.report.at_a_glance import MAX_ANSWERS
from spark_audit.report.checkpoint_states import checkpoint_states
from spark_audit.report.copies import GivenAndCopies
from spark_audit.report.matrix import MAX_ROWS
from spark_audit.results import Finding, Report

N_FORGET = 20

Moved = tuple[float, float]
"""Mean and spread of how far a part of rows moved since the base, nats per token."""


def remaining(name: str, value: float, **columns: Any) -> Any:
    place = "erasure|remaining|identifiers"
    return figure(name, place, value, unit="nats", no_effect=0.0, **columns)


def finding(name: str, claim: Any, says: str, value: float = -0.5) -> Finding:
    row = remaining(name, value)
    facts = {
        "remaining": row,
        "before": remaining("before", -2.0),
        "margin": figure("before", "erasure|margin", 0.5, unit="nats"),
        "persons": 7,
    }
    return Finding.on(row, claim, f"erasure.{says}", facts=facts, p=0.0001)


def kept(name: str) -> Finding:
    return finding(name, "memory", "remembered_identifiers", -1.5)


def gone(name: str) -> Finding:
    return finding(name, "erased", "erased", -0.01)


def broken(name: str) -> Finding:
    return Finding.not_tested("erasure", "erasure.broken", checkpoint=name)


def copy_of(name: str, claim: Any = "nothing_shown") -> Finding:
    says = "copy_remembers" if claim == "memory" else "copy_nothing"
    return finding(f"{name}+relearn", claim, says)


def report(*findings: Finding, order: tuple[str, ...] = (), **columns: Any) -> Report:
    before = finding("before", "memory", "before_remembers", -2.0)
    names = order or tuple(dict.fromkeys(f.checkpoint for f in findings))
    rows = [
        figure("before", "erasure|margin", 0.5, unit="nats", low=None, high=None),
        *(remaining(name, -0.5) for name in names),
    ]
    tables = {
        "erasure_rows": [
            {"side": "forget", "request": "1", "rows": 60, "clusters": 40},
        ]
    }
    return made_report(
        "base",
        results=rows,
        findings=corrected([before, *findings]),
        tables=tables,
        origins={"erasure_rows": "erasure"},
        checkpoints=[checkpoint(name) for name in ("base", "before", *names)],
        **columns,
    )


# the part that decides


@pytest.fixture(scope="module")
def of_parts(make_case, tmp_path_factory) -> Callable[..., dict[str, Finding]]:
    """Findings on ``after``, whose forget rows and identifiers moved as they say."""
    case = make_case(sources=50, tests=40, seed=3, tokens=60)
    trained = [e.id for e in case.manifest.examples if e.split == "train"]
    forget = set(trained[:N_FORGET])
    file = tmp_path_factory.mktemp("forget") / "forget.txt"
    file.write_text("\n".join(sorted(forget)) + "\n")

    def moved(
        name: str, of_text: Moved = (0.0, 0.02), of_identifiers: Moved = (0.0, 0.02)
    ) -> Any:
        """Each part of forget rows moves by its mean, and of all rows by chance."""

        def change(key: str, reference: np.ndarray) -> np.ndarray:
            rng = np.random.default_rng(seed_for(7, name, key))
            is_forget = key in forget
            shift = np.full(
                len(reference), is_forget * of_text[0] + rng.normal(0, of_text[1])
            )
            for start, end in case.spans(key):
                by_chance = rng.normal(0, of_identifiers[1])
                shift[start:end] = is_forget * of_identifiers[0] + by_chance
            return (reference + shift).clip(0.001)

        return change

    def findings(of_text: Moved, of_identifiers: Moved, margin: float) -> Any:
        tables = case.tables(
            base=lambda key, reference: reference,
            before=moved("before", (-0.9, 0.02), (-1.2, 0.02)),
            after=moved("after", of_text, of_identifiers),
        )
        options = {"forget": (str(file),), "before": "before", "margin": margin}
        result = audited("erasure", tables, case.manifest, **options)
        return next(f for f in result.findings if f.checkpoint == "after")

    return findings


@pytest.mark.parametrize(
    ("of_text", "of_identifiers", "margin", "claim", "part"),
    [
        # The part that varies most is the least sure to lie within the margin.
        ((0.0, 0.02), (0.0, 0.4), 0.6, "erased", "identifiers"),
        ((0.0, 0.4), (0.0, 0.02), 0.6, "erased", "row"),
        ((0.0, 0.02), (0.0, 0.4), 0.05, "nothing_shown", "identifiers"),
        ((0.0, 0.4), (0.0, 0.02), 0.05, "nothing_shown", "row"),
        # The test of memory decides, whatever the other part is like.
        ((0.0, 0.4), (-0.9, 0.02), 0.6, "memory", "identifiers"),
    ],
)
def test_a_finding_shows_the_part_that_its_verdict_rests_on(
    of_parts, of_text, of_identifiers, margin, claim, part
):
    shown = of_parts(of_text, of_identifiers, margin)
    row = shown.facts["remaining"]
    assert (shown.claim, row.variant) == (claim, part)
    assert (shown.value, shown.low, shown.high) == (row.value, row.low, row.high)
    before = shown.facts["before"]
    assert (before.checkpoint, before.variant) == ("before", part)


def test_what_is_shown_absent_names_no_smallest_effect():
    """The margin says how much may remain: a second figure would compete with it."""
    assert not gone("after").shows_effect


# the first screen


def test_each_model_after_erasure_has_a_line_in_the_order_given():
    names = ("first", "second", "third", "fourth")
    of_models = report(
        gone("fourth"), kept("first"), broken("second"), kept("third"), order=names
    )
    labels = [a.label for a in of_models.glance.answers if a.verdict]
    assert labels == [*names]
    assert [a.verdict for a in of_models.glance.answers if a.verdict] == [
        "REMEMBERED",
        "BROKEN",
        "REMEMBERED",
        "ERASED",
    ]


def test_of_many_models_the_last_line_names_each_verdict_that_it_leaves_out():
    names = tuple(f"m{k}" for k in range(MAX_ANSWERS + 2))
    findings = [kept(name) for name in names[:-2]]
    findings += [gone(names[-2]), broken(names[-1])]
    answers = report(*findings, order=names).glance.answers
    with_line = {a.label for a in answers if a.verdict}
    last = answers[-1].text
    assert len(with_line) < len(names)
    for each in findings:
        is_named = each.checkpoint in last
        assert is_named != (each.checkpoint in with_line)
    assert {"REMEMBERED", "ERASED", "BROKEN"} <= set(last.replace(";", " ").split())


def test_a_model_that_is_answered_in_words_has_no_second_sentence():
    glance = report(kept("a"), gone("b"), copy_of("b")).glance
    assert glance.consequences == ()
    # The figures of the worst one stay, behind a label.
    assert any("a" in label.split() for label, _ in glance.more)


def test_the_scale_has_room_for_each_interval_and_the_margin():
    glance = report(kept("a"), gone("b")).glance
    drawn = [answer for answer in glance.answers if answer.is_drawn]
    assert len(drawn) == 2
    for answer in drawn:
        assert max(abs(answer.low), abs(answer.high), answer.band) <= glance.scale_end
    assert report(broken("a")).glance.scale_factor == 0


def test_persons_are_said_where_the_forget_set_names_them(make_case):
    assert "7" in report(kept("a")).glance.answers[0].text.split()

    manifest = make_case(sources=12, tests=10, seed=1, tokens=60).manifest
    row = manifest.examples[0]
    persons = ForgetRequest(1, line_by_id={"s001": 1, "s002": 2})
    rows = ForgetRequest(2, line_by_id={row.id: 1})
    assert n_named_persons([persons], manifest) == 2
    assert n_named_persons([persons, rows], manifest) == 0
    assert n_named_persons([ForgetRequest(1, task="yelp")], manifest) == 0


# copies and columns


def test_copies_push_no_model_out_of_the_matrix_and_are_counted_apart():
    names = [f"m{k}" for k in range(MAX_ROWS)]
    findings = [gone(name) for name in names]
    findings += [copy_of(name) for name in names]
    of_models = report(*findings)
    matrix = of_models.glance.matrix
    assert {row.name for row in matrix.first_rows} == {*names}
    assert {row.name for row in matrix.further_rows} == {
        f"{name}+relearn" for name in names
    }
    split = GivenAndCopies.of(checkpoint_states(of_models))
    assert (len(split.given), len(split.copies)) == (MAX_ROWS, MAX_ROWS)
    assert str(2 * MAX_ROWS) not in of_models.glance.headline


def test_a_copy_that_is_worse_than_its_original_stays_in_front():
    names = [f"m{k}" for k in range(MAX_ROWS)]
    findings = [gone(name) for name in names] + [copy_of("m3", "memory")]
    matrix = report(*findings).glance.matrix
    assert "m3+relearn" in {row.name for row in matrix.first_rows}


def test_columns_with_a_result_come_first():
    matrix = report(kept("a"), gone("b")).glance.matrix
    assert matrix.columns[0].audit == "erasure"
    for row in matrix.rows:
        assert [cell.audit for cell in row.cells] == [c.audit for c in matrix.columns]
