"""What a shared file holds of rows, findings, digests, commands and settings."""

import hmac
from pathlib import Path
from typing import Any

import pytest
from made_reports import figure, made_report, manifest_facts

from spark_audit.audits.strongest_leaks import leak_of
from spark_audit.report.audit_report import read_report
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.results import Finding, Hits, Report, Row
from spark_audit.results.rows import WITHHELD
from spark_audit.stats.estimate import Power

ROOT = Path(__file__).parents[2]

SECRET = "0.123456789"


def shown_row(place: str, value: float, **columns: Any) -> Row:
    """The only row of a report, as it is shared."""
    row_columns = {"low": value, "high": value, "clusters": 40, "n": 400} | columns
    one_row_report = made_report(
        "a", results=[figure("a", place, value, **row_columns)]
    )
    (row,) = disclosed(one_row_report).results
    return row


def shown_finding(clusters: int, **columns: Any) -> Finding:
    """The only finding of a report on a rate of so many clusters, as it is shared."""
    row = figure("a", "extract|greedy_rate", 0.5, clusters=clusters, n=100)
    claimed = Finding(
        audit="extract",
        checkpoint="a",
        claim="nothing_shown",
        says="said",
        metric="greedy_rate",
        value=row.value,
        low=row.low,
        high=row.high,
        **{"facts": {"text": "t", "otherwise": "o"}, **columns},
    )
    (shared_finding,) = disclosed(
        made_report("a", results=[row], findings=[claimed])
    ).findings
    return shared_finding


@pytest.mark.parametrize("value", [0.499, 0.501])
def test_an_auc_stays_on_its_side_of_one_half(value):
    shared_value = shown_row("mia|auc|loss", value, no_effect=0.5).value
    assert shared_value is not None
    assert shared_value != 0.5
    assert (shared_value > 0.5) is (value > 0.5)


@pytest.mark.parametrize("clusters", range(5, 40))
def test_no_rounded_rate_is_beyond_one(clusters):
    for value in (0.95, 0.98, 1.0):
        shared_value = shown_row("extract|greedy_rate", value, clusters=clusters).value
        assert shared_value is not None
        assert shared_value <= 1


def test_what_is_not_zero_is_not_shown_as_zero():
    """Of 40 clusters figures are rounded to 0.03, and half of that stands for less."""
    assert shown_row("matched|memory", 0.001, unit="nats").value == 0.015
    assert shown_row("matched|memory", -0.001, unit="nats").value == -0.015
    assert shown_row("matched|memory", 0.0, unit="nats").value == 0.0


@pytest.mark.parametrize(("matched_tokens", "is_shown"), [(98, False), (80, True)])
def test_few_tokens_without_a_control_are_not_told_apart(matched_tokens, is_shown):
    """A hundred tokens of 40 clusters, and those of them that have a control."""
    like = {"unit": "nats", "clusters": 40}
    rows = [
        figure("a", "nll|nll|pii", 3.0, n=100, **like),
        figure("a", "matched|nll_pii", 3.0, n=matched_tokens, **like),
    ]
    all_identifiers, with_control = disclosed(made_report("a", results=rows)).results
    assert (all_identifiers.value is not None) is is_shown
    assert with_control.value is not None


def with_key(key: str, digest: str = "d" * 64) -> Report:
    facts = manifest_facts(digest=digest, n_tokens=1234, n_clusters=40)
    facts = facts.model_copy(update={"key": key})
    return made_report("a", manifest=facts)


def test_a_manifest_is_shared_without_its_key_its_digest_and_its_tokens():
    shared_manifest = disclosed(with_key("k" * 32)).manifest
    keyed = hmac.new(b"k" * 32, b"d" * 64, "sha256").hexdigest()
    assert shared_manifest.key == ""
    assert shared_manifest.digest == f"hmac-sha256:{keyed}"
    # A cluster has 31 tokens: the step above is 50.
    assert shared_manifest.n_tokens == 1250
    assert disclosed(with_key("")).manifest.digest == "not shown"
    # What is shared already is not keyed again.
    again = disclosed(with_key("", digest="hmac-sha256:5")).manifest
    assert again.digest == "hmac-sha256:5"


def test_a_finding_on_a_withheld_figure_has_no_figure_and_no_power():
    other_row = figure("a", "extract|greedy_rate|t1", 0.25, clusters=40, n=400)
    facts = {"text": "t", "otherwise": "o", "rate": other_row}
    power = [Power(test="t", se=0.123, df=7.0, mde=0.5)]
    few = shown_finding(3, facts=facts, power=power)
    assert (few.value, few.low, few.high, few.power) == (None, None, None, [])
    assert isinstance(few.facts["rate"], Row)
    assert few.facts["rate"].value is None
    many = shown_finding(40, facts=facts, power=power)
    assert many.value is not None
    assert isinstance(many.facts["rate"], Row)
    assert many.facts["rate"].value is not None


def test_power_is_shared_without_standard_errors():
    power = [Power(test="t", se=0.123456789, df=7.0, n=40, mde=0.5, why="w", group="x")]
    (shared_power,) = shown_finding(40, power=power).power
    assert (shared_power.test, shared_power.why, shared_power.group) == ("t", "w", "x")
    assert (shared_power.se, shared_power.df, shared_power.n) == (None, None, 0)
    assert shared_power.mde is not None


def test_facts_in_a_list_and_p_among_facts_are_rounded_too():
    row = figure("a", "extract|greedy_rate|t1", float(SECRET), clusters=40, n=400)
    facts = {
        "text": "t",
        "otherwise": "o",
        "rows": [row],
        "p": 0.012345,
        "p_adjusted": 0.0504,
    }
    shared_facts = shown_finding(40, facts=facts).facts
    assert SECRET not in repr(shared_facts["rows"])
    assert (shared_facts["p"], shared_facts["p_adjusted"]) == (0.01, 0.06)


def test_a_count_is_rounded_to_what_clusters_have():
    facts = {"text": "t", "otherwise": "o", "back": Hits(count=37, of=100)}
    # Twice what one of 40 clusters has of 100 is 5.
    shared_count = shown_finding(40, facts=facts).facts["back"]
    assert isinstance(shared_count, Hits)
    assert (shared_count.count, shared_count.rounded) == (35, True)


def test_no_seed_is_shared():
    """The noise of DP-SGD follows from it."""
    seeded_report = made_report(
        "a",
        command=["spark-audit", "all", "--seed", "7341", "--seed=7341", "--limit", "9"],
        settings={"seed": 7341, "limit": 9},
    )
    shared_report = disclosed(seeded_report)
    assert "7341" not in repr((shared_report.command, shared_report.settings))
    assert shared_report.command[-2:] == ["--limit", "9"]
    assert shared_report.settings == {"limit": 9}


def shown_records(name: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    audit = name.partition("_")[0]
    table_report = made_report("a", tables={name: records}, origins={name: audit})
    return disclosed(table_report).tables[name]


def test_a_curve_of_few_is_left_out_and_other_records_say_that_figures_are_withheld():
    few = {"checkpoint": "a", "variant": "loss", "fpr": 0.1, "tpr": 0.37, "clusters": 3}
    limits = {"chance_low": 0.1, "chance_high": 0.5}
    assert shown_records("mia_roc", [few | limits]) == []
    (shared_record,) = shown_records("mia_texts", [few | {"score": 0.37}])
    assert (shared_record["score"], shared_record["tpr"]) == (None, None)
    assert shared_record["note"] == WITHHELD


def test_points_are_rounded_as_the_shares_that_they_are_of():
    """Of 40 clusters a share is rounded to 0.03: in points 3."""
    record = {"checkpoint": "a", "clusters": 40, "spans": 40, "beyond_points": 17.3}
    (shared_record,) = shown_records("extract_prompts", [record])
    assert shared_record["beyond_points"] == 18.0
    (other_record,) = shown_records("noise_draws", [record])
    assert other_record["beyond_points"] == pytest.approx(17.3, abs=0.02)


def test_a_bound_from_above_stays_one_in_all_columns():
    """The null is the base's own bound, which another row shows."""
    at_base = 0.0132
    columns = {"n": 207, "clusters": 207, "low": 0.001, "high": 0.0121}
    columns |= {"parity_low": 0.002, "parity_high": 0.0119}
    base, ours = (
        figure(name, "extract|drawn_at_most|1000000", value, **columns, **null)
        for name, value, null in (
            ("base", at_base, {}),
            ("ours", 0.0112, {"no_effect": at_base}),
        )
    )
    shown_base, shown = disclosed(
        made_report("base", "ours", results=[base, ours])
    ).results
    assert shown.value > 0.0112  # else nothing was rounded up
    assert shown.parity_high >= shown.value
    assert shown.no_effect == shown_base.value


@pytest.mark.parametrize("side_clusters", [20, 22, 35, 43])
def test_no_rounded_auc_is_more_above_chance_than_it_can_be(side_clusters):
    """Whatever its step is: no attacker is right in 51 more of 100 pairs."""
    columns = {"clusters": 103, "side_clusters": side_clusters, "n": 103}
    auc = figure("a", "mia|auc|loss", 1.0, low=0.9, high=1.0, no_effect=0.5, **columns)
    finding = Finding.on(
        auc,
        "membership",
        "mia.nothing_shown",
        facts={"attack": "loss"},
        metric="auc_excess",
        value=0.5,
        low=0.4,
        high=0.5,
        unit="AUC",
        no_effect=0.0,
    )
    report = made_report("a", results=[auc]).model_copy(update={"findings": [finding]})
    shared = disclosed(report)
    assert shared.findings[0].value <= 0.5
    assert shared.findings[0].high <= 0.5
    assert shared.results[0].high <= 1.0


@pytest.mark.parametrize("clusters", [5, 9, 23, 60, 400])
@pytest.mark.parametrize("limit", [0.004, 0.31, 0.41, 0.97, 1.0])
def test_what_could_still_be_there_is_never_shown_smaller(clusters, limit):
    rate = shown_row(
        "extract|greedy_rate", 0.0, clusters=clusters, no_effect=0.0, at_most=limit
    )
    assert rate.at_most is not None
    assert limit <= rate.at_most <= 1

    # Memory lowers NLL: what could still be there lies below 0.
    memory = shown_row(
        "matched|memory", 0.0, clusters=clusters, no_effect=0.0, at_most=-limit
    )
    assert memory.at_most is not None
    assert memory.at_most <= -limit

    finding = shown_finding(clusters, unit="points", no_effect=0.0, at_most=100 * limit)
    assert finding.at_most is not None
    assert 100 * limit <= finding.at_most <= 100


def test_a_kept_report_shows_no_limit_nearer_to_no_effect_than_it_is():
    exact = read_report(ROOT / "reports" / "demo")
    n_limits = 0
    for finding, shared in zip(exact.findings, disclosed(exact).findings, strict=True):
        if finding.at_most is None or shared.at_most is None:
            continue
        n_limits += 1
        # Figures of canaries and counts have six digits, and no step.
        rounding = 1e-5 * abs(finding.at_most)
        least_leak = leak_of(finding, finding.at_most) - rounding
        assert leak_of(shared, shared.at_most) >= least_leak
    assert n_limits > 20
