"""The matched audit of annotated identifiers: text that tells the sides apart."""

from dataclasses import replace

import numpy as np
import pytest
from audited import (
    claims,
    conclude,
    evidence,
    the_one,
)
from matched_scenes import moved

from spark_audit.audits.base import Context


@pytest.mark.parametrize(
    ("stratum", "auc", "passed"),
    [(1, 0.52, True), (-1, 0.6, False), (-1, np.nan, None)],
)
def test_texts_that_tell_annotated_identifiers_apart_fail_a_guard(
    stratum, auc, passed, make_case
):
    case = make_case(sources=40, tests=30, seed=44)
    change = moved(case, trained=-0.5, never=0, other=0, spread=0.2)
    scene_evidence = evidence("matched", case.tables(mine=change), case.manifest)
    spans = scene_evidence.units["role"].isin(["pii", "unmatched"])
    columns = {
        "form": 0,
        "stratum": stratum * spans,
        "text_auc": spans.map({True: auc}),
    }
    units = scene_evidence.units.assign(**columns)
    result = conclude("matched", replace(scene_evidence, units=units), Context())
    guard = the_one(result.guards, name="text of annotated identifiers")
    assert guard.passed is passed
    assert ("confounded" in claims(result, "mine")) is (stratum < 0)
    if auc > 0:
        says = "guard.by_text_apart" if stratum < 0 else "guard.by_text_alike"
        assert (guard.says, guard.facts["text_auc"].value) == (says, auc)
    else:
        assert guard.says == "guard.by_text_few"


@pytest.mark.parametrize("has_counterparts", [True, False])
def test_balance_is_judged_only_of_annotated_identifiers_that_are_compared(
    has_counterparts, make_case
):
    case = make_case(sources=40, tests=30, seed=44)
    change = moved(case, trained=0, never=0, other=0, spread=0.2)
    scene_evidence = evidence("matched", case.tables(mine=change), case.manifest)
    spans = scene_evidence.units["role"].isin(["pii", "unmatched"])
    one_type = scene_evidence.units["type"][spans].iloc[0]
    is_annotated = spans & (scene_evidence.units["type"] == one_type)
    is_train = scene_evidence.units["split"] == "train"
    # Without counterparts, the annotated ones of either side are of other strata.
    stratum = 1 if has_counterparts else np.where(is_train, 1, 2)
    units = scene_evidence.units.assign(
        form=np.where(is_annotated, 0, 1), stratum=stratum * is_annotated
    )
    result = conclude("matched", replace(scene_evidence, units=units), Context())
    names = {guard.name for guard in result.guards}
    assert "text of annotated identifiers" in names
    assert ("balance of annotated identifiers" in names) is has_counterparts


@pytest.mark.parametrize(
    ("auc", "reason"),
    [(0.7, "text"), (np.nan, "few")],
)
def test_a_type_that_is_not_compared_is_named_with_its_share_and_reason(
    auc, reason, make_case
):
    case = make_case(sources=40, tests=30, seed=44)
    change = moved(case, trained=0, never=0, other=0, spread=0.2)
    scene_evidence = evidence("matched", case.tables(mine=change), case.manifest)
    spans = scene_evidence.units["role"].isin(["pii", "unmatched"])
    one_type = scene_evidence.units["type"][spans].iloc[0]
    is_one = spans & (scene_evidence.units["type"] == one_type)
    units = scene_evidence.units.assign(
        form=0,
        stratum=np.where(is_one, -1, 2) * spans,
        text_auc=np.where(is_one, auc, np.where(spans, 0.5, np.nan)),
    )
    result = conclude("matched", replace(scene_evidence, units=units), Context())
    trained = is_one & (units["split"] == "train")
    (finding,) = (f for f in result.findings if "left_out_types" in f.facts)
    (row,) = finding.facts["left_out_types"]
    assert (row.group_value, row.variant, row.n) == (one_type, reason, trained.sum())
    assert row.value == 1.0
    assert "matched.left_out_types" in finding.further
    assert one_type in finding.lead
    # A type of which all are compared is not named.
    result_of_all = conclude("matched", scene_evidence, Context())
    assert not any("left_out_types" in f.facts for f in result_of_all.findings)
