"""What report and gate ask of an audit by its class is there, and is consistent."""

import pytest

from spark_audit.audits import about, all_audits
from spark_audit.results import Row
from spark_audit.results.rows import group_parts
from spark_audit.sentences import knows

AUDITS = list(all_audits().values())


def metric_names(audit):
    return [metric.name for metric in audit.metrics]


@pytest.mark.parametrize("audit", AUDITS, ids=lambda audit: audit.name)
def test_an_attack_is_an_audit_that_covers_something_and_may_claim_it(audit):
    is_attack = audit.covers is not None
    assert (audit.strongest_claim is not None) == is_attack
    assert knows(f"audit.{audit.name}.attack") == is_attack
    assert is_attack or not (audit.attacks_identifiers or audit.needs_canaries)
    if is_attack:
        metric, size = audit.covers
        assert metric in metric_names(audit)
        assert size in Row.model_fields


def test_the_claims_and_roles_of_our_audits():
    claims = {audit.name: audit.strongest_claim for audit in AUDITS if audit.covers}
    assert claims == {
        "matched": "memory",
        "canary": "memory",
        "twins": "memory",
        "mia": "membership",
        "extract": "verbatim",
        "passages": "verbatim",
        "series": "membership",
        "erasure": "memory",
        "generated": "verbatim",
    }
    of_people = {audit.name for audit in AUDITS if audit.attacks_identifiers}
    assert of_people == {"matched", "twins", "extract", "generated"}
    assert [audit.name for audit in AUDITS if audit.memory_metric] == ["matched"]
    assert [audit.name for audit in AUDITS if audit.needs_canaries] == ["canary"]
    relearned = [audit.name for audit in AUDITS if audit.sees_relearned_base]
    assert relearned == ["matched", "erasure"]
    assert [audit.name for audit in AUDITS if not audit.sees_base] == ["stages"]
    assert [audit.name for audit in AUDITS if audit.naming_score] == ["mia"]
    not_voided = [audit.name for audit in AUDITS if not audit.voided_by_setup]
    assert not_voided == ["utility", "generated"]


@pytest.mark.parametrize("audit", AUDITS, ids=lambda audit: audit.name)
def test_a_column_of_latex_and_a_whole_are_of_metrics_that_there_are(audit):
    for column in audit.latex_columns([], [], paper=True):
        owner = about(column.audit or audit.name)
        assert column.metric in metric_names(owner)

    for metric in audit.metrics:
        for variant in metric.variants:
            whole_variant = audit.whole_of(metric.name, variant)
            if whole_variant is not None:
                of_audit, of_metric, of_variant = whole_variant
                variants = about(of_audit).metric(of_metric).variants
                assert of_metric in metric_names(about(of_audit))
                assert of_variant in variants
                assert whole_variant != (audit.name, metric.name, variant)


def test_the_figures_of_a_part_have_a_whole():
    assert about("rank").whole_of("mrr", "pii") == ("rank", "mrr", "pii_all")
    assert about("rank").whole_of("mrr", "control") is None
    assert about("matched").whole_of("nll_pii", "") == ("nll", "nll", "pii")
    assert about("matched").whole_of("nll_control", "") is None


def test_only_figures_of_planted_strings_and_answers_are_of_nobody():
    of_nobody = {
        (audit.name, unit)
        for audit in AUDITS
        for unit in ("nats", "bits", "ranks", "")
        if audit.is_of_nobody(unit)
    }
    assert {name for name, _ in of_nobody} == {"utility", "canary"}
    assert ("utility", "nats") in of_nobody
    assert ("canary", "nats") not in of_nobody
    assert ("canary", "bits") in of_nobody
    assert [audit.name for audit in AUDITS if audit.disclosure_step == 1] == ["rank"]


def figure(audit, metric, variant="", group="pooled"):
    return Row(
        audit=audit,
        checkpoint="a",
        metric=metric,
        variant=variant,
        group_kind=group_parts(group)[0],
        group_value=group_parts(group)[1],
        value=0.5,
        n=9,
        clusters=9,
    )


def test_tables_of_latex_follow_the_report():
    rows = [
        figure("utility", "accuracy", "1", group="task:mail"),
        figure("mia", "auc", "loss"),
        figure("mia", "auc", "own"),
    ]
    utility = about("utility").latex_columns(rows, [], paper=False)
    assert [column.header for column in utility][0] == "mail"
    assert utility[0].group == "task:mail"

    membership = about("mia").latex_columns(rows, [], paper=False)
    of_auc = [column.variant for column in membership if column.metric == "auc"]
    of_tpr = [column.variant for column in membership if column.metric != "auc"]
    assert of_auc == ["loss"]
    assert of_tpr == ["response", "reference"]

    variants = {
        column.variant for column in about("canary").latex_columns([], [], paper=True)
    }
    assert variants == {"full/annotation"}
