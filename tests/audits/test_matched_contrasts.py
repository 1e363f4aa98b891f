"""The matched audit against a baseline: unequal drift, ordinary runs, signs."""

import pytest
from audited import (
    check,
    figure,
    matched,
)
from matched_scenes import audit, moved

from spark_audit.audits.matched.did import did_findings
from spark_audit.errors import InputError
from spark_audit.results import Contrast
from spark_audit.stats.power import mde


def test_contrasts_claim_nothing_where_other_text_drifted_unequally(make_case):
    case = make_case(sources=40, seed=36)
    plain = moved(case, trained=0.2, never=0, other=0.1, spread=0.2)
    # Other text of low sensitivity drifts as well, its controls less than identifiers.
    apart = moved(case, trained=0.6, never=0, other=0.3, spread=0.2, seed=1)
    alike = moved(case, trained=0.6, never=0, other=0.1, spread=0.2, seed=1)
    result = audit(case, baseline="plain", plain=plain, apart=apart, alike=alike)
    did_findings_by_name = {
        f.checkpoint: f for f in result.findings if f.metric == "did"
    }
    for name in ("apart", "alike"):
        assert did_findings_by_name[name].p_adjusted < 0.05
    assert did_findings_by_name["apart"].claim == "nothing_shown"
    assert did_findings_by_name["apart"].says == "matched.did_drift_unequal"
    assert "matched.drift" in did_findings_by_name["apart"].further
    names = ("drift_own", "drift_baseline", "drift")
    drifts = [did_findings_by_name["apart"].facts[name].value for name in names]
    assert drifts == pytest.approx([0.3, 0.1, 0.2], abs=1e-6)
    assert did_findings_by_name["alike"].claim == "suppressed_kind"
    drifts = {c.checkpoint: c for c in result.contrasts if c.metric == "low_change"}
    assert drifts["apart"].value == pytest.approx(0.2, abs=1e-6)
    assert figure(result, "apart", "low_change").value == pytest.approx(0.3, abs=1e-6)


def test_ordinary_runs_take_the_place_of_the_tolerance(make_case):
    case = make_case(sources=40, seed=42)
    plain = moved(case, trained=0.2, never=0, other=0.1, spread=0.2)
    runs = {
        name: moved(case, trained=0.2 + by, never=0, other=0.1, spread=0.2, seed=seed)
        for seed, (name, by) in enumerate(
            [("one", 0.1), ("two", -0.1), ("three", 0.05), ("far", 2.0), ("near", 0.2)]
        )
    }
    tables = case.tables(plain=plain, **runs)
    result = matched(
        tables,
        case.manifest,
        baseline="plain",
        null="one,two,three",
        placebo_draws=0,
        rematched=False,
    )
    did_findings_by_name = {
        f.checkpoint: f for f in result.findings if f.metric == "did"
    }
    # Of five tests the first step of their correction has to be passed.
    without_ordinary = matched(
        case.tables(plain=plain, far=runs["far"]),
        case.manifest,
        baseline="plain",
        placebo_draws=0,
        rematched=False,
    )
    (mde_alone,) = [f.mde for f in without_ordinary.findings if f.metric == "did"]
    sizes = (mde(1.0, clusters=40, level=level) for level in (0.95, 0.99))
    assert did_findings_by_name["far"].mde / mde_alone == pytest.approx(
        1 / next(sizes) * next(sizes)
    )
    assert did_findings_by_name["far"].claim == "suppressed_kind"
    assert did_findings_by_name["near"].claim == "nothing_shown"
    with pytest.raises(InputError, match="^--null: 'four'"):
        matched(tables, case.manifest, baseline="plain", null="four")


def test_an_ordinary_run_that_there_is_not_is_refused_before_scoring():

    check("matched", null="a,b", names=("a", "b"))
    check("matched", null="four")  # names are not known yet
    with pytest.raises(InputError, match="^--null: 'four'"):
        check("matched", null="a, four", names=("a", "b"))


@pytest.mark.parametrize(
    ("value", "says"),
    [(-0.4, "did_likelier"), (0.4, "did_less_likely_not_alike")],
)
def test_a_did_whose_interval_holds_0_has_the_sign_of_its_value(value, says):
    """Its corrected p is clear, as a test of signs may be where an interval is not."""

    def contrast(metric: str, value: float, low: float, high: float) -> Contrast:
        return Contrast(
            audit="matched",
            checkpoint="ours",
            baseline="plain",
            metric=metric,
            family="primary",
            value=value,
            low=low,
            high=high,
            p=0.03,
            clusters=40,
        )

    contrasts = [
        contrast("did", value, value - 0.5, value + 0.5),
        contrast("low_change", 0.0, -0.01, 0.01),
        contrast("nll_pii", 0.3, 0.1, 0.5),
        contrast("did_alike", 0.3, 0.1, 0.5),
    ]
    (finding,) = did_findings([], contrasts, replicated=[], ordinary=[])
    assert (finding.says, finding.claim) == (f"matched.{says}", "moved")
    assert finding.sentence
