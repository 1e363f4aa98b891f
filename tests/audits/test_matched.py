"""The matched audit against plain loops over tokens, and what it says of nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from audited import (
    check,
    claims,
    conclude,
    evidence,
    figure,
    matched,
    of_frame,
    the_one,
)
from synthetic import Case

from spark_audit.audits.base import Context
from spark_audit.audits.matched.did import did_findings
from spark_audit.audits.matched.sensitivity import VARIANTS, other_pairs
from spark_audit.errors import InputError
from spark_audit.manifest.content import seal
from spark_audit.results import AuditResult, Contrast
from spark_audit.stats.power import mde


def same(key: str, nll: np.ndarray) -> np.ndarray:
    return nll


def shifted(case: Any, shift: float) -> Callable[[str, np.ndarray], np.ndarray]:
    """Every PII token ``shift`` nats harder, nothing else changed."""

    def change(key: str, nll: np.ndarray) -> np.ndarray:
        nll = nll.copy()
        for start, end in case.spans(key):
            nll[start:end] += shift
        return nll

    return change


def moved(
    case: Any,
    *,
    trained: float,
    never: float,
    other: float,
    spread: float = 0.0,
    seed: int = 0,
) -> Callable[[str, np.ndarray], np.ndarray]:
    """Identifiers of either side and other text moved by so much, spans by a draw."""
    rng = np.random.default_rng(seed)
    own = {key: rng.normal(0, spread, 2) for key in case.reference}

    def change(key: str, nll: np.ndarray) -> np.ndarray:
        out = nll + other
        by = trained if case.manifest.by_id[key].split == "train" else never
        for (start, end), draw in zip(case.spans(key), own[key], strict=False):
            out[start:end] = nll[start:end] + by + draw
        return out

    return change


def silent(result: AuditResult) -> None:
    """No sentence says memory or suppression of what shows neither."""
    for line in result.verdict:
        assert "remember" not in line
        assert "uppress" not in line


def audit(case: Any, /, *, baseline: str | None = None, **changes: Any) -> AuditResult:
    result = matched(
        case.tables(**changes),
        case.manifest,
        baseline=baseline,
        placebo_draws=2,
        rematched=False,
    )
    # Every sentence has its facts, also where the correction withdrew the claim.
    for finding in result.findings:
        assert finding.sentence
        if finding.detected and finding.family == "primary":
            withdrawn = finding.model_copy(update={"claim": "nothing_shown"})
            assert withdrawn.sentence
    assert all(guard.detail for guard in result.guards)
    return result


def test_pure_shrinkage_is_what_regression_to_the_mean_would_give(make_case):
    """beta = 0.7 with a gap of 1.5 nats gives Delta_sel 0.45 and selects nothing."""
    case = make_case(sources=150, seed=5, gap=1.5, tokens=90)
    means = {}
    for key, nll in case.reference.items():
        inside = np.zeros(len(nll), bool)
        for start, end in case.spans(key):
            inside[start:end] = True
        means[key] = inside

    rng = np.random.default_rng(1)

    def shrunk(key: str, nll: np.ndarray) -> np.ndarray:
        # Each group goes back towards its own mean: 2.0, and 2.0 + gap for PII.
        centre = np.where(means[key], 3.5, 2.0)
        return centre + 0.7 * (nll - centre) + rng.normal(0, 0.05, len(nll))

    result = audit(case, ours=shrunk)
    delta = figure(result, "ours", "delta_sel")
    bias = figure(result, "ours", "rtm_bias")
    assert bias.value == pytest.approx(0.45, abs=0.1)
    assert delta.value == pytest.approx(bias.value, abs=0.1)
    assert delta.low > 0
    change = figure(result, "ours", "delta_sel", "change")
    own = figure(result, "ours", "rtm_bias", "change")
    assert change.no_effect == 0.0
    assert delta.no_effect == pytest.approx(delta.value - change.value)  # type: ignore[operator]
    assert own.value == pytest.approx(change.value, abs=0.1)
    finding = the_one(result.findings, metric="delta_sel")
    assert finding.says == "matched.delta_sel_up"
    assert "matched.regression" in finding.further
    assert finding.facts["regression"] == own
    assert {*claims(result, "ours")} == {"moved", "not_tested"}


def test_base_that_scores_otherwise_fails_its_guard(make_case):
    case = make_case(sources=12, seed=9)
    good = audit(case, base=same)
    bad = audit(case, base=lambda key, nll: nll + 0.01)
    (passed,) = [g for g in good.guards if g.name == "reference reproduced"]
    (failed,) = [g for g in bad.guards if g.name == "reference reproduced"]
    assert passed.passed is True
    assert failed.passed is False


def test_nothing_to_match_is_not_estimable_and_no_zero(make_case):
    case = make_case(sources=12, seed=11, caliper=0.0)
    assert not case.manifest.pairs
    result = audit(case, baseline="plain", ours=same, plain=same)
    assert result.results
    assert {row.status for row in result.results} == {"not_estimable"}
    guard = next(g for g in result.guards if g.name == "matched share")
    assert guard.passed is None


def test_a_full_text_learner_that_moved_all_alike_shows_no_memory(make_case):
    """Formats learned: -2.41 on trained rows, -2.47 on rows never trained on."""
    case = make_case(sources=60, tests=40, seed=30, gap=3.0)
    change = moved(case, trained=-2.41, never=-2.47, other=-0.2, spread=0.5)
    result = audit(case, ours=change)
    assert {*claims(result, "ours")} == {"formats", "moved"}
    row = figure(result, "ours", "memory")
    assert row.mde is not None
    trained, never = (
        figure(result, "ours", "pii_change", of) for of in ("trained", "never-trained")
    )
    assert row.value == pytest.approx(trained.value - never.value)  # type: ignore[operator]
    kind, specific = (figure(result, "ours", name) for name in ("kind", "specific"))
    assert kind.value == pytest.approx(-2.47 + 0.2, abs=0.2)
    change = figure(result, "ours", "delta_sel", "change")
    assert kind.value + specific.value == pytest.approx(change.value)  # type: ignore[operator]
    silent(result)


@pytest.mark.parametrize("scale", [0.6, 1 / 0.6])
def test_the_base_with_its_logits_scaled_only_moved(make_case, scale):
    """What is no identifier has 5 alternatives a token, an identifier has 1,000."""
    case = make_case(sources=80, tests=60, seed=32, gap=1.0)

    def scaled(key: str, nll: np.ndarray) -> np.ndarray:
        others = np.full(len(nll), 5.0)
        for start, end in case.spans(key):
            others[start:end] = 1000.0
        p = np.exp(-np.maximum(nll, 1e-6))
        odds = others * ((1 - p) / others / p) ** scale
        return np.asarray(np.log1p(odds))

    result = audit(case, ours=scaled)
    # Sharper logits make what has many alternatives likelier, as formats would.
    kind = "formats" if scale > 1 else "nothing_shown"
    assert {*claims(result, "ours")} == {"moved", kind}
    silent(result)


@pytest.mark.parametrize(("trained", "claim"), [(-0.6, "memory"), (0.6, "betrays")])
def test_what_moved_on_trained_rows_alone_is_found(make_case, trained, claim):
    case = make_case(sources=60, tests=40, seed=33)
    change = moved(case, trained=-0.5 + trained, never=-0.5, other=-0.3, spread=0.3)
    result = audit(case, ours=change, base=same)
    assert claim in claims(result, "ours")
    first = result.findings[0]
    assert (first.claim, first.metric, first.checkpoint) == (claim, "memory", "ours")
    row = figure(result, "ours", "memory")
    assert row.value == pytest.approx(trained, abs=0.25)
    assert (first.value, first.low, first.high) == (row.value, row.low, row.high)
    assert first.says == f"matched.{claim}"
    assert first.sentence
    assert (first.family, first.p is not None and first.p < 0.001) == ("primary", True)
    assert figure(result, "base", "memory").status == "not_estimable"
    assert {*claims(result, "base")} == {"nothing_shown"}


def test_unequally_hard_sides_are_no_memory(make_case):
    """Trained rows 1.5 nats harder before, and all that is hard drifts down."""
    case = make_case(sources=60, tests=40, seed=34)
    harder = {e["id"]: e for e in case.manifest.model_dump(mode="json")["examples"]}
    for key, example in harder.items():
        if case.manifest.by_id[key].split == "train":
            unll = example["reference_unll"]
            for start, end in case.spans(key):
                unll[start:end] = [u + 1_500_000 for u in unll[start:end]]
                case.reference[key][start:end] += 1.5
    content = case.manifest.model_dump(mode="json")
    tilted = Case(seal(content | {"examples": list(harder.values())}), case.reference)
    result = audit(tilted, ours=lambda key, nll: 0.6 * nll + 0.8)
    row = figure(result, "ours", "memory")
    assert row.high < 0, "an interval against zero would have claimed memory"
    assert not {*claims(result, "ours")} & {"memory", "betrays"}
    assert any(one.says == "matched.unequal" for one in result.findings)
    (guard,) = [g for g in result.guards if g.name == "never-trained identifiers"]
    assert guard.passed is None


def test_identifiers_that_stand_in_trained_rows_are_never_held_out(make_case):
    case = make_case(sources=30, tests=20, seed=35)
    content = case.manifest.model_dump(mode="json")
    # The test rows' identifiers are those of trained rows, in another case of letters.
    for example in content["examples"]:
        text = example["prompt"]
        for span in example["spans"]:
            size = span["end"] - span["start"]
            string = ("Ada" if example["split"] == "train" else "ADA").ljust(size, "7")
            text = text[: span["start"]] + string[:size] + text[span["end"] :]
        example["prompt"] = text
    known = Case(seal(content), case.reference)
    result = audit(known, ours=moved(case, trained=-1, never=0, other=0, spread=0.2))
    assert figure(result, "ours", "memory").status == "not_estimable"
    assert "memory" not in claims(result, "ours")


def test_a_string_in_the_plain_text_of_a_trained_row_is_known(make_case):
    case = make_case(sources=12, tests=8, seed=39)
    content = case.manifest.model_dump(mode="json")
    rows = {example["id"]: example for example in content["examples"]}
    test = next(e for e in rows.values() if e["split"] == "test")
    span = test["spans"][0]
    string = test["prompt"][span["start"] : span["end"]]
    train = next(e for e in rows.values() if e["split"] == "train")
    train["prompt"] = train["prompt"][:50] + f" {string} " + train["prompt"][52:]
    frame = evidence("matched", case.tables(ours=same), seal(content)).frame()
    spans = frame[frame["role"].isin(["pii", "unmatched"])]
    known = spans[(spans["split"] == "test") & (spans["trained"] == 1)]
    assert list(known["example"]) == [test["id"]]
    assert list(known["start"]) == [span["token_start"]]


def test_contrasts_claim_nothing_where_other_text_drifted_unequally(make_case):
    case = make_case(sources=40, seed=36)
    plain = moved(case, trained=0.2, never=0, other=0.1, spread=0.2)
    # Other text of low sensitivity drifts as well, its controls less than identifiers.
    apart = moved(case, trained=0.6, never=0, other=0.3, spread=0.2, seed=1)
    alike = moved(case, trained=0.6, never=0, other=0.1, spread=0.2, seed=1)
    result = audit(case, baseline="plain", plain=plain, apart=apart, alike=alike)
    found = {f.checkpoint: f for f in result.findings if f.metric == "did"}
    for name in ("apart", "alike"):
        assert found[name].p_adjusted < 0.05
    assert found["apart"].claim == "nothing_shown"
    assert found["apart"].says == "matched.did_drift_unequal"
    assert "matched.drift" in found["apart"].further
    names = ("drift_own", "drift_baseline", "drift")
    drifts = [found["apart"].facts[name].value for name in names]
    assert drifts == pytest.approx([0.3, 0.1, 0.2], abs=1e-6)
    assert found["alike"].claim == "suppressed_kind"
    drifts = {c.checkpoint: c for c in result.contrasts if c.metric == "low_change"}
    assert drifts["apart"].value == pytest.approx(0.2, abs=1e-6)
    assert figure(result, "apart", "low_change").value == pytest.approx(0.3, abs=1e-6)


def test_by_dose_memory_and_kind_are_what_plain_sums_give(make_case):
    """Every other cluster's identifiers stand in five trained rows."""
    case = make_case(sources=48, tests=30, seed=41)
    change = moved(case, trained=-0.9, never=-0.1, other=-0.2, spread=0.3)
    frame = evidence(
        "matched",
        case.tables(ours=change),
        case.manifest,
        placebo_draws=0,
        rematched=False,
    ).frame()
    assert set(frame.loc[frame["split"] == "train", "dose"]) >= {0, 1}
    # The dose is the evidence's own fact: half of the clusters stand in five rows.
    pii = frame["role"].isin(["pii", "unmatched"])
    many = {c for i, c in enumerate(sorted(set(frame["cluster"]))) if i % 2}
    raised = pii & (frame["split"] == "train") & frame["cluster"].isin(many)
    frame.loc[raised, "dose"] = 5

    known = of_frame(frame, "nll_sum", rematched=False, placebo=False)
    result = conclude("matched", known, Context(replicates=100))
    own = frame[frame["checkpoint"] == "ours"]
    own = own.assign(change=own["nll_sum"] - own["ref_sum"])
    control = own[own["role"] == "control"].set_index("pair")["change"]
    spans = own[own["role"].isin(["pii", "unmatched"])]
    pairs = spans[spans["role"] == "pii"]
    apart = pairs["change"] - control[pairs["pair"]].to_numpy()

    def means(part: pd.DataFrame, dose: int | None) -> tuple[float, float]:
        """P, and H with its types as heavy as P has them; over the types H has."""
        test = part["split"] == "test"
        part = part[test | (part["dose"].clip(lower=1) == dose) | (dose is None)]
        counts = part.loc[test, "type"].value_counts()
        sums = part.groupby(["split", "type"])[["change", "n_tokens"]].sum()
        held = counts.index[counts > 1]
        ours, never = (sums.loc[side].loc[held] for side in ("train", "test"))
        share = ours["n_tokens"] / ours["n_tokens"].sum()
        trained = ours["change"].sum() / ours["n_tokens"].sum()
        return trained, (share * never["change"] / never["n_tokens"]).sum()

    rows = {(r.metric, r.group): r for r in result.results if not r.variant}
    for group, dose in (("pooled", None), ("dose:1", 1), ("dose:4-7", 5)):
        trained, never = means(spans, dose)
        memory = rows["memory", group].value
        assert memory == pytest.approx(trained - never, abs=1e-9)
        beyond, kind = means(pairs.assign(change=apart), dose)
        assert rows["kind", group].value == pytest.approx(kind, abs=1e-9)
        specific = rows["specific", group].value
        assert specific == pytest.approx(beyond - kind, abs=1e-9)
    said = [f for f in result.findings if f.group == "dose:4-7"]
    assert [f.claim for f in said] == ["memory"]


@pytest.mark.parametrize(("groups", "tests"), [(2, 1), (4, 1), (5, 2)])
def test_a_highest_dose_of_few_groups_is_no_test(make_case, groups, tests):
    """Its figures stand; it is not counted among the tests that p is corrected over."""
    case = make_case(sources=24, tests=30, seed=41)
    change = moved(case, trained=-0.9, never=-0.1, other=-0.2, spread=0.3)
    options = {"placebo_draws": 0, "rematched": False}
    made = evidence("matched", case.tables(ours=change), case.manifest, **options)
    frame = made.frame()
    trained = frame["role"].isin(["pii", "unmatched"]) & (frame["split"] == "train")
    most = sorted(set(frame.loc[trained, "cluster"]))[:groups]
    frame.loc[trained & frame["cluster"].isin(most), "dose"] = 20

    known = of_frame(frame, "nll_sum", rematched=False, placebo=False)
    result = conclude("matched", known, Context(replicates=100))
    primary = [f for f in result.findings if f.family == "primary"]
    assert [f.group for f in primary] == ["pooled", "dose:16+"][:tests]
    row = figure(result, "ours", "memory", group="dose:16+")
    assert row.value is not None


@pytest.mark.parametrize(
    ("stratum", "auc", "passed"),
    [(1, 0.52, True), (-1, 0.6, False), (-1, np.nan, None)],
)
def test_texts_that_tell_annotated_identifiers_apart_fail_a_guard(
    stratum, auc, passed, make_case
):
    case = make_case(sources=40, tests=30, seed=44)
    change = moved(case, trained=-0.5, never=0, other=0, spread=0.2)
    known = evidence("matched", case.tables(mine=change), case.manifest)
    spans = known.units["role"].isin(["pii", "unmatched"])
    columns = {
        "form": 0,
        "stratum": stratum * spans,
        "text_auc": spans.map({True: auc}),
    }
    units = known.units.assign(**columns)
    result = conclude("matched", replace(known, units=units), Context())
    found = the_one(result.guards, name="text of annotated identifiers")
    assert found.passed is passed
    assert ("confounded" in claims(result, "mine")) is (stratum < 0)
    if auc > 0:
        says = "guard.by_text_apart" if stratum < 0 else "guard.by_text_alike"
        assert (found.says, found.facts["text_auc"].value) == (says, auc)
    else:
        assert found.says == "guard.by_text_few"


@pytest.mark.parametrize("has_counterparts", [True, False])
def test_balance_is_judged_only_of_annotated_identifiers_that_are_compared(
    has_counterparts, make_case
):
    case = make_case(sources=40, tests=30, seed=44)
    change = moved(case, trained=0, never=0, other=0, spread=0.2)
    known = evidence("matched", case.tables(mine=change), case.manifest)
    spans = known.units["role"].isin(["pii", "unmatched"])
    one_type = known.units["type"][spans].iloc[0]
    is_annotated = spans & (known.units["type"] == one_type)
    is_train = known.units["split"] == "train"
    # Without counterparts, the annotated ones of either side are of other strata.
    stratum = 1 if has_counterparts else np.where(is_train, 1, 2)
    units = known.units.assign(
        form=np.where(is_annotated, 0, 1), stratum=stratum * is_annotated
    )
    result = conclude("matched", replace(known, units=units), Context())
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
    known = evidence("matched", case.tables(mine=change), case.manifest)
    spans = known.units["role"].isin(["pii", "unmatched"])
    one_type = known.units["type"][spans].iloc[0]
    is_one = spans & (known.units["type"] == one_type)
    units = known.units.assign(
        form=0,
        stratum=np.where(is_one, -1, 2) * spans,
        text_auc=np.where(is_one, auc, np.where(spans, 0.5, np.nan)),
    )
    result = conclude("matched", replace(known, units=units), Context())
    trained = is_one & (units["split"] == "train")
    (finding,) = (f for f in result.findings if "left_out_types" in f.facts)
    (row,) = finding.facts["left_out_types"]
    assert (row.group_value, row.variant, row.n) == (one_type, reason, trained.sum())
    assert row.value == 1.0
    assert "matched.left_out_types" in finding.further
    assert one_type in finding.lead
    # A type of which all are compared is not named.
    whole = conclude("matched", known, Context())
    assert not any("left_out_types" in f.facts for f in whole.findings)


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
    found = {f.checkpoint: f for f in result.findings if f.metric == "did"}
    # Of five tests the first step of their correction has to be passed.
    alone = matched(
        case.tables(plain=plain, far=runs["far"]),
        case.manifest,
        baseline="plain",
        placebo_draws=0,
        rematched=False,
    )
    (one,) = [f.mde for f in alone.findings if f.metric == "did"]
    sizes = (mde(1.0, clusters=40, level=level) for level in (0.95, 0.99))
    assert found["far"].mde / one == pytest.approx(1 / next(sizes) * next(sizes))
    assert found["far"].claim == "suppressed_kind"
    assert found["near"].claim == "nothing_shown"
    with pytest.raises(InputError, match="--null: 'four' is none of the checkpoints"):
        matched(tables, case.manifest, baseline="plain", null="four")


def test_formats_are_not_learned_where_other_text_alone_drifted(make_case):
    """Identifiers up by 0.8 on both sides, other text by 1.2: labels-only training."""
    case = make_case(sources=60, tests=40, seed=43)
    change = moved(case, trained=0.8, never=0.8, other=1.2, spread=0.3)
    result = audit(case, ours=change)
    assert (figure(result, "ours", "kind").high or 0) < 0
    assert "formats" not in claims(result, "ours")


def test_an_ordinary_run_that_there_is_not_is_refused_before_scoring():

    check("matched", null="a,b", names=("a", "b"))
    check("matched", null="four")  # names are not known yet
    with pytest.raises(InputError, match="--null: 'four' is none of the checkpoints"):
        check("matched", null="a, four", names=("a", "b"))


def relearned(case: Any, before: float, after: float, *, base: float = 0.0) -> Any:
    """Identifiers moved by ``before``, and after relearning by ``after``, if trained.

    ``base``: by how much relearning moves trained ones on the base.
    """

    def by(trained: float, seed: int) -> Any:
        return moved(case, trained=trained, never=0.0, other=0.0, spread=0.3, seed=seed)

    changes = {"base": same, "base+relearn": by(base, 1)}
    changes |= {"ours": by(before, 2), "ours+relearn": by(after, 3)}
    context = Context(baselines={"ours+relearn": "ours"})
    known = evidence("matched", case.tables(**changes), case.manifest, placebo_draws=0)
    return conclude("matched", known, context, rematched=False, placebo_draws=0)


@pytest.mark.parametrize(
    ("before", "after", "base", "says", "claim"),
    [
        (0.0, -1.5, 0.0, "returned", "memory"),
        # Suppression that is taken back is no memory.
        (1.5, 0.0, 0.0, "not_returned", "nothing_shown"),
        (0.0, 0.0, 0.0, "not_returned", "nothing_shown"),
        # What the rows do to the base as well came from the rows.
        (0.0, -1.5, -1.5, "not_returned", "nothing_shown"),
        (-1.5, -1.5, 0.0, "return_known", "nothing_shown"),
    ],
)
def test_what_comes_back_is_memory_beyond_before_and_the_base(
    make_case, before, after, base, says, claim
):
    case = make_case(sources=60, tests=40, seed=33)
    result = relearned(case, before, after, base=base)
    own = [f for f in result.findings if f.metric == "returned"]
    assert [(f.says, f.claim) for f in own] == [(f"matched.{says}", claim)]
    assert not [f for f in result.findings if f.checkpoint == "base+relearn"]
    row = next(r for r in result.contrasts if r.metric == "returned")
    assert row.value == pytest.approx(after - before - base, abs=0.25)
    assert (row.checkpoint, row.baseline) == ("ours+relearn", "ours")
    rested = figure(result, "ours+relearn", "returned", "after")
    assert rested.value == pytest.approx(after - base, abs=0.25)


@pytest.mark.parametrize(
    ("before", "says"),
    [
        ((0.0, 0.0), "returned"),
        # The replicate itself remembers.
        ((-1.5, 1.5), "return_known"),
        # It does not, but the mean of all replicates does.
        ((0.0, -3.0), "return_known_of_method"),
    ],
)
def test_nothing_came_back_to_a_replicate_that_remembers_or_whose_method_does(
    make_case, before, says
):
    case = make_case(sources=60, tests=40, seed=33)
    changes = {"base": same, "base+relearn": same}
    levels = {"ours[1]": before[0], "ours[2]": before[1], "ours[1]+relearn": -3.0}
    for seed, (name, trained) in enumerate(levels.items()):
        changes[name] = moved(
            case, trained=trained, never=0.0, other=0.0, spread=0.3, seed=seed
        )
    context = Context(baselines={"ours[1]+relearn": "ours[1]"})
    known = evidence("matched", case.tables(**changes), case.manifest, placebo_draws=0)
    result = conclude("matched", known, context, rematched=False, placebo_draws=0)

    (finding,) = [f for f in result.findings if f.metric == "returned"]
    assert finding.says == f"matched.{says}"
    assert finding.detected == (says == "returned")
    assert finding.sentence


@pytest.mark.parametrize(("stratum", "says"), [(1, ["matched.returned"]), (-1, [])])
def test_a_replicate_gets_no_return_where_text_tells_the_sides_apart(
    make_case, stratum, says
):
    case = make_case(sources=60, tests=40, seed=33)
    changes = {"base": same, "base+relearn": same, "ours[1]": same}
    changes["ours[1]+relearn"] = moved(case, trained=-3.0, never=0.0, other=0.0)
    known = evidence("matched", case.tables(**changes), case.manifest, placebo_draws=0)
    is_identifier = known.units["role"].isin(["pii", "unmatched"])
    units = known.units.assign(
        form=0,
        stratum=stratum * is_identifier,
        text_auc=is_identifier.map({True: 0.7}),
    )

    context = Context(baselines={"ours[1]+relearn": "ours[1]"})
    result = conclude(
        "matched",
        replace(known, units=units),
        context,
        rematched=False,
        placebo_draws=0,
    )
    assert [f.says for f in result.findings if f.metric == "returned"] == says


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


@pytest.mark.parametrize("missing", ["base", "base+relearn", "ours"])
def test_nothing_comes_back_without_what_it_is_held_against(make_case, missing):
    case = make_case(sources=30, tests=20, seed=33)
    changes = dict.fromkeys(("base", "base+relearn", "ours", "ours+relearn"), same)
    del changes[missing]
    known = evidence("matched", case.tables(**changes), case.manifest, placebo_draws=0)
    result = conclude("matched", known, Context(), rematched=False, placebo_draws=0)
    assert {row.checkpoint for row in result.results} > {"ours+relearn"}
    figures = [*result.results, *result.contrasts, *result.findings]
    assert not [figure for figure in figures if figure.metric == "returned"]


def rematched(case: Any, variant: dict[str, Any]) -> pd.DataFrame:
    return other_pairs(case.manifest, {"own": variant}, draws=0, seed=0).pairs


def test_the_manifest_s_own_settings_give_its_own_pairs(make_case):
    case = make_case(sources=30, seed=1, caliper=0.2)
    pairs = rematched(case, {})
    found = {
        (case.manifest.examples[e].id, int(p), int(c), int(n))
        for e, p, c, n in zip(
            pairs.example, pairs.pii, pairs.control, pairs.length, strict=True
        )
    }
    assert found == {
        (
            p.example,
            p.pii.token_start,
            p.control.token_start,
            p.pii.token_end - p.pii.token_start,
        )
        for p in case.manifest.pairs
    }


def test_variants_change_what_they_say(make_case):
    case = make_case(sources=40, seed=2)
    tight = rematched(case, VARIANTS["caliper 0.1"])
    wide = rematched(case, VARIANTS["caliper 1.0"])
    assert len(tight) < len(case.manifest.pairs) <= len(wide)
    before = rematched(case, VARIANTS["controls before"])
    assert len(before)
    assert (before.control + before.length <= before.pii).all()
    tables = case.tables(a=lambda key, nll: nll)
    result = matched(tables, case.manifest, placebo_draws=0)
    records = result.tables["matched_sensitivity"]
    assert [record["setting"] for record in records] == list(VARIANTS)
    row = next(r for r in records if r["setting"] == "caliper 0.1")
    assert row["pairs"] == len(tight)
    assert abs(row["delta_sel"]) < 0.1


def test_placebo_table_centres_on_zero(make_case):
    case = make_case(sources=60, seed=6, gap=1.0)
    rng = np.random.default_rng(0)

    def shrunk(key: str, nll: np.ndarray) -> np.ndarray:
        return 2.0 + 0.7 * (nll - 2.0) + rng.normal(0, 0.02, len(nll))

    result = matched(case.tables(a=shrunk), case.manifest, placebo_draws=40, seed=1)
    (drawn,) = result.tables["matched_placebo"]
    assert drawn["draws"] == 40
    assert drawn["mean"] == pytest.approx(0.0, abs=0.03)
    assert 0 < drawn["sd"] < 0.2
