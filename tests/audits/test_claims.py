"""What is claimed once all primary tests of a report count."""

from typing import Any

import numpy as np
import pytest
from made_reports import said
from pydantic import ValidationError
from scipy import stats
from statsmodels.stats.multitest import multipletests

from spark_audit.audits.claims import at_level, corrected
from spark_audit.audits.extract.rates import limits_p
from spark_audit.audits.seeds import with_entries
from spark_audit.audits.strongest_leaks import strongest_leaks, told_figure
from spark_audit.report.assemble import assemble, results_of
from spark_audit.results import AuditResult, CheckpointFacts, Finding, Report, Row
from spark_audit.stats.estimate import Bound, Estimate

REMEMBERED: dict[str, Any] = {
    "audit": "canary",
    "claim": "memory",
    "family": "primary",
    "says": "said",
    "facts": {"text": "remembered.", "otherwise": "nothing shown."},
}
NOTHING: dict[str, Any] = {
    "audit": "canary",
    "claim": "nothing_shown",
    "family": "primary",
    "says": "said",
    "facts": {"text": "nothing shown."},
}


def primary(p: float, name: str = "x", **more: Any) -> Finding:
    claim = REMEMBERED if p < 0.05 else NOTHING
    return Finding(**{**claim, "checkpoint": name, "p": p, **more})


def assembled(findings: list[Finding]) -> Report:
    names = dict.fromkeys(one.checkpoint for one in findings if one.checkpoint)
    facts: dict[str, Any] = dict.fromkeys(
        ("source", "format", "weights_sha256", "dtype"), "x"
    )
    return assemble(
        {"canary": AuditResult(findings=findings)},
        status="complete",
        command=[],
        manifest=dict.fromkeys(("name", "digest"), "m")
        | dict.fromkeys(("n_sources", "n_clusters", "n_spans", "n_tokens"), 1),
        checkpoints=[
            CheckpointFacts(name=name, model_id=name, **facts) for name in names
        ],
    )


def test_p_is_corrected_as_statsmodels_corrects_it():
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 40):
        ps = rng.uniform(size=size) ** 3
        findings = corrected([primary(p, f"m{i}") for i, p in enumerate(ps)])
        _, expected, _, _ = multipletests(ps, method="holm")
        assert [finding.p_adjusted for finding in findings] == pytest.approx(
            expected, abs=1e-15
        )
        for finding, p in zip(findings, expected, strict=True):
            assert finding.detected == (p < 0.05)
            assert finding.claim == ("memory" if p < 0.05 else "nothing_shown")
            assert (finding.alone == "memory") == (finding.p < 0.05)


def test_a_claim_that_is_taken_away_comes_back_where_there_are_fewer_tests():
    alone_finding = corrected([primary(0.02)])
    assert (alone_finding[0].claim, alone_finding[0].p_adjusted) == ("memory", 0.02)
    many = corrected([*alone_finding, *(primary(0.5, f"m{i}") for i in range(3))])
    assert (many[0].claim, many[0].alone) == ("nothing_shown", "memory")
    assert many[0].p_adjusted == pytest.approx(0.08)
    assert corrected(many) == many
    # What the audit's own correction left above the level was not there to take.
    above = {**REMEMBERED, "checkpoint": "x", "p": 0.09}
    assert corrected([Finding(**above)])[0].claim == "nothing_shown"
    assert corrected(many[:1]) == alone_finding
    assert Finding.model_validate_json(many[0].model_dump_json()) == many[0]


def test_the_base_and_what_is_no_primary_test_are_left_out():
    others = [
        primary(0.9, "base"),
        said("rank", "y", "moved", "m.", p=0.9),
        Finding(**NOTHING, checkpoint="z"),
    ]
    findings = corrected([primary(0.04), *others])
    assert findings[0].p_adjusted == 0.04
    assert findings[1:] == others


@pytest.mark.parametrize("name", ["base", "base+relearn", "base+int8"])
@pytest.mark.parametrize("claim", ["verbatim", "memory", "membership", "betrays"])
@pytest.mark.parametrize("test", [{"family": "primary", "p": 1e-6}, {}])
def test_no_leak_is_claimed_of_what_was_trained_on_no_row(name, claim, test):
    of_base = said("rank", name, claim, "it knows them.", **test)
    tested = primary(0.04)
    changed_base, changed = corrected([of_base, tested])
    assert changed_base.claim == "nothing_shown"
    assert not changed_base.detected
    assert changed_base.withdrawn
    assert "otherwise." in changed_base.sentence
    assert "knows them" not in changed_base.sentence
    # A base may have read the rows: a setup guard says so beside it.
    assert "trained on none" not in changed_base.sentence
    # It is no test of the report, and is not called one.
    assert (changed_base.tests, changed_base.p_adjusted) == (0, None)
    assert changed.p_adjusted == 0.04
    assert not changed_base.is_lost_to_correction
    assert corrected([changed_base, changed]) == [changed_base, changed]


@pytest.mark.parametrize(
    ("test", "claim"),
    [
        ({"p": 0.084}, "nothing_shown"),
        ({"p": 0.01, "p_adjusted": 0.06}, "nothing_shown"),
        ({"p_adjusted": 0.05}, "nothing_shown"),
        ({"p": 0.049}, "memory"),
        ({}, "memory"),
    ],
)
def test_a_detection_that_is_no_primary_test_needs_a_p_below_the_level(test, claim):
    finding = said("rank", "x", "memory", "it knows them.", **test)
    (changed,) = corrected([finding])
    assert finding.family == "exploratory"
    assert (changed.claim, changed.alone) == (claim, "memory")
    assert changed.detected == (claim == "memory")


def test_a_primary_detection_can_be_taken_away():
    with pytest.raises(ValidationError, match=r"\bp\b"):
        Finding(**REMEMBERED)
    with pytest.raises(ValidationError, match="can be taken away"):
        said("nll", "x", "moved", "m.", alone="formats")


def test_two_reports_that_are_merged_are_corrected_again():
    first_report = assembled([primary(0.03, "a")])
    two = assembled([primary(0.04, "b"), primary(0.01, "c")])
    assert [f.detected for f in first_report.findings] == [True]
    assert [f.claim for f in two.findings] == ["memory", "memory"]
    assert (first_report.settings["primary_tests"], two.settings["primary_tests"]) == (
        1,
        2,
    )
    findings_of_both = [
        f
        for report in (first_report, two)
        for f in results_of(report, ["canary"])["canary"].findings
    ]
    merged = assembled(findings_of_both)
    claims = {f.checkpoint: f.claim for f in merged.findings}
    assert claims == {"a": "nothing_shown", "b": "nothing_shown", "c": "memory"}
    assert merged.settings["primary_tests"] == 3
    # What is told first is the detection that is left.
    assert merged.findings[0].checkpoint == "c"
    again = assembled([f for f in merged.findings if f.checkpoint == "a"])
    assert again.findings[0].detected


def test_a_report_without_a_primary_memory_says_so_first():
    lost = said("mia", "x", "membership", "found.", family="primary", p=1e-9)
    report = assembled([lost])
    assert report.findings[1].detected
    # Once made again of what it holds, it is said once.
    again = assembled(results_of(report, ["mia"])["mia"].findings)
    assert len(again.findings) == 2


def test_a_claim_of_few_tests_holds_exactly_where_its_interval_does():
    assert limits_p(Estimate(0.2, 0.0, 0.4)) == pytest.approx(0.05)
    assert limits_p(Estimate(-0.2, -0.5, 0.0)) == pytest.approx(0.05)
    assert limits_p(Estimate(0.2, 0.1, 0.3)) < 0.001
    assert limits_p(Estimate(0.0, 0.0, 0.0)) == 1


def test_memory_of_several_seeds_is_a_primary_test():
    def seed(k: int, value: float) -> Row:
        return Row(
            audit="matched", checkpoint=f"x[{k}]", metric="memory", unit="nats",
            value=value, low=value - 0.1, high=value + 0.1,
            interval_method="jackknife-t",
        )  # fmt: skip

    values = [-1.0, -1.1, -0.9, -1.05]
    rows = [seed(k, value) for k, value in enumerate(values, start=1)]
    (finding,) = with_entries(AuditResult(results=rows)).findings
    assert (finding.alone, finding.family, finding.checkpoint) == (
        "memory",
        "primary",
        "x",
    )
    assert stats.ttest_1samp(values, 0).pvalue < finding.p < 0.001
    at_null = [seed(k, value) for k, value in enumerate([-1.0, 1.0, 0.5, -0.6], 1)]
    (none,) = with_entries(AuditResult(results=at_null)).findings
    assert none.claim == "nothing_shown"
    assert none.p > 0.05


def bounded(p: float, name: str = "x", **more: Any) -> Finding:
    """A finding of memory: -0.1 nats per token with a standard error of 0.03."""
    fields = {"audit": "matched", "metric": "memory", "unit": "nats", "no_effect": 0.0}
    bound = Bound(test="t", value=-0.1, se=0.03, df=30.0, direction=-1)
    figure = {"value": -0.1, "low": -0.16, "high": -0.04, "bounds": [bound]}
    return primary(p, name, **{**fields, **figure, **more})


def test_what_could_still_be_there_is_at_the_level_of_the_whole_report():
    for tests in (1, 4, 38):
        others = [primary(0.6, f"m{i}") for i in range(tests - 1)]
        finding = corrected([bounded(0.3), *others])[0]
        low, _ = stats.t.interval(1 - 0.05 / tests, 30, loc=-0.1, scale=0.03)
        assert finding.at_most == pytest.approx(low, rel=1e-9)
        assert corrected([finding, *others])[0] == finding
        # Among fewer tests it comes closer again.
        assert (corrected([finding])[0].at_most or 0.0) >= finding.at_most
    # An exploratory finding would be one test more.
    single = bounded(0.3).model_copy(update={"p": None, "family": "exploratory"})
    withdrawn = corrected([single, primary(0.5)])[0]
    low, _ = stats.t.interval(1 - 0.05 / 2, 30, loc=-0.1, scale=0.03)
    assert withdrawn.at_most == pytest.approx(low, rel=1e-9)


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "void"},
        {"status": "invalid"},
        {"claim": "confounded"},
        {"claim": "not_tested"},
        {"bounds": []},
    ],
)
def test_what_is_void_confounded_or_not_tested_bounds_nothing(fields):
    finding = corrected([bounded(0.3, **fields), primary(0.5)])[0]
    assert finding.at_most is None
    assert all(bound.at_most is None for bound in finding.bounds)


def test_rows_of_claims_and_of_their_doses_have_it():
    pooled = Bound(test="t", value=-0.1, se=0.03, df=30.0, direction=-1)
    dose = Bound(test="t", value=-0.2, se=0.05, df=9.0, direction=-1, group="dose:4")
    finding = corrected([bounded(0.3, bounds=[pooled, dose])])
    where = {"audit": "matched", "checkpoint": "x", "metric": "memory", "unit": "nats"}
    rows = [
        Row(**where, value=-0.1, low=-0.16, high=-0.04),
        Row(
            **where, value=-0.2, low=-0.3, high=-0.1, group_kind="dose", group_value="4"
        ),
        Row(
            **where,
            value=-0.2,
            low=-0.3,
            high=-0.1,
            group_kind="dose",
            group_value="16",
        ),
        Row(
            **where,
            value=-0.2,
            low=-0.3,
            high=-0.1,
            group_kind="dose",
            group_value="4",
            interval_over="both",
        ),
    ]
    ends = [row.at_most for row in at_level(rows, finding)]
    assert ends[0] == finding[0].at_most
    low, _ = stats.t.interval(0.95, 9, loc=-0.2, scale=0.05)
    assert ends[1] == pytest.approx(low, rel=1e-9)
    assert ends[2:] == [None, None]
    # A claim that bounds nothing any more takes it from its row.
    void = corrected([finding[0].model_copy(update={"status": "void"})])
    assert [row.at_most for row in at_level(rows[:1], void)] == [None]


def test_the_strongest_leak_and_who_could_hide_as_much():
    weak = bounded(1e-6, "weak", claim="memory")
    strong = bounded(1e-9, "strong", claim="memory", value=-0.3, low=-0.4, high=-0.2)
    clean = {"value": 0.02, "low": -0.1, "high": 0.14}
    wide = Bound(test="t", value=0.02, se=0.2, df=30.0, direction=-1)
    narrow = Bound(test="t", value=0.02, se=0.05, df=30.0, direction=-1)
    findings = corrected(
        [
            weak,
            strong,
            bounded(0.7, "wide", claim="nothing_shown", bounds=[wide], **clean),
            bounded(0.7, "narrow", claim="nothing_shown", bounds=[narrow], **clean),
            bounded(0.7, "none", claim="nothing_shown", bounds=[], **clean),
        ]
    )
    leaks = strongest_leaks(findings)
    assert list(leaks) == ["matched"]
    leak = leaks["matched"]
    assert (leak.finding.checkpoint, leak.effect) == ("strong", pytest.approx(0.3))
    by_name = {finding.checkpoint: finding for finding in findings}
    assert leak.could_hide(by_name["wide"]) is True
    assert leak.could_hide(by_name["narrow"]) is False
    assert leak.could_hide(by_name["none"]) is None
    # What moved away from a leak is none, however far.
    away = bounded(1e-9, "away", claim="memory", value=0.5, low=0.4, high=0.6)
    assert strongest_leaks(corrected([away])) == {}
    assert strongest_leaks(corrected([bounded(0.5)])) == {}


def test_what_a_score_has_beyond_the_texts_alone_is_told_as_its_auc():
    score = Row(
        audit="mia", checkpoint="x", metric="auc", variant="combined", value=0.62
    )
    excess = Bound(test="t", value=0.09, se=0.03, df=200.0, worst_value=0.47)
    where = {"audit": "mia", "metric": "auc_excess", "unit": "AUC", "no_effect": 0.0}
    facts = {"text": "nothing.", "score": score}
    finding = corrected(
        [bounded(0.3, value=0.09, bounds=[excess], facts=facts, **where)]
    )[0]
    assert finding.at_most is not None
    # The texts alone have 0.53.
    assert told_figure(finding, finding.at_most) == pytest.approx(
        0.53 + finding.at_most
    )
    assert told_figure(finding, finding.value) == pytest.approx(0.62)
    memory = corrected([bounded(0.3)])[0]
    assert told_figure(memory, -0.2) == -0.2
