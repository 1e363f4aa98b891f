"""What is claimed once all primary tests of a report count."""

from typing import Any

import numpy as np
import pytest
from made_reports import said
from pydantic import ValidationError
from scipy import stats
from statsmodels.stats.multitest import multipletests

from spark_audit.audits.claims import corrected
from spark_audit.audits.extract.rates import limits_p
from spark_audit.audits.seeds import with_entries
from spark_audit.report.assemble import assemble, results_of
from spark_audit.results import AuditResult, CheckpointFacts, Finding, Report, Row
from spark_audit.stats.estimate import Estimate

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
    kind = REMEMBERED if p < 0.05 else NOTHING
    return Finding(**{**kind, "checkpoint": name, "p": p, **more})


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
        found = corrected([primary(p, f"m{i}") for i, p in enumerate(ps)])
        _, expected, _, _ = multipletests(ps, method="holm")
        assert [one.p_adjusted for one in found] == pytest.approx(expected, abs=1e-15)
        for one, p in zip(found, expected, strict=True):
            assert one.detected == (p < 0.05)
            assert one.claim == ("memory" if p < 0.05 else "nothing_shown")
            assert (one.alone == "memory") == (one.p < 0.05)


def test_a_claim_that_is_taken_away_comes_back_where_there_are_fewer_tests():
    alone = corrected([primary(0.02)])
    assert (alone[0].claim, alone[0].p_adjusted) == ("memory", 0.02)
    many = corrected([*alone, *(primary(0.5, f"m{i}") for i in range(3))])
    assert (many[0].claim, many[0].alone) == ("nothing_shown", "memory")
    assert many[0].p_adjusted == pytest.approx(0.08)
    assert corrected(many) == many
    # What the audit's own correction left above the level was not there to take.
    above = {**REMEMBERED, "checkpoint": "x", "p": 0.09}
    assert corrected([Finding(**above)])[0].claim == "nothing_shown"
    assert corrected(many[:1]) == alone
    assert Finding.model_validate_json(many[0].model_dump_json()) == many[0]


def test_the_base_and_what_is_no_primary_test_are_left_out():
    others = [
        primary(0.9, "base"),
        said("rank", "y", "moved", "m.", p=0.9),
        Finding(**NOTHING, checkpoint="z"),
    ]
    found = corrected([primary(0.04), *others])
    assert found[0].p_adjusted == 0.04
    assert found[1:] == others


def test_a_primary_detection_can_be_taken_away():
    with pytest.raises(ValidationError, match="has its p"):
        Finding(**REMEMBERED)
    with pytest.raises(ValidationError, match="can be taken away"):
        said("nll", "x", "moved", "m.", alone="formats")


def test_two_reports_that_are_merged_are_corrected_again():
    one = assembled([primary(0.03, "a")])
    two = assembled([primary(0.04, "b"), primary(0.01, "c")])
    assert [f.detected for f in one.findings] == [True]
    assert [f.claim for f in two.findings] == ["memory", "memory"]
    assert (one.settings["primary_tests"], two.settings["primary_tests"]) == (1, 2)
    both = [
        f
        for each in (one, two)
        for f in results_of(each, ["canary"])["canary"].findings
    ]
    merged = assembled(both)
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
            value=value, low=value - 0.1, high=value + 0.1, interval="jackknife-t",
        )  # fmt: skip

    values = [-1.0, -1.1, -0.9, -1.05]
    rows = [seed(k, value) for k, value in enumerate(values, start=1)]
    (found,) = with_entries(AuditResult(rows=rows)).findings
    assert (found.alone, found.family, found.checkpoint) == ("memory", "primary", "x")
    assert stats.ttest_1samp(values, 0).pvalue < found.p < 0.001
    at_null = [seed(k, value) for k, value in enumerate([-1.0, 1.0, 0.5, -0.6], 1)]
    (none,) = with_entries(AuditResult(rows=at_null)).findings
    assert none.claim == "nothing_shown"
    assert none.p > 0.05
