"""The matched audit against plain loops over tokens, and what it says of nothing."""

import numpy as np
import pandas as pd
import pytest
from audited import (
    claims,
    conclude,
    evidence,
    figure,
    of_frame,
    the_one,
)
from matched_scenes import audit, moved, same, silent
from synthetic import Case

from spark_audit.audits.base import Context
from spark_audit.manifest.content import seal


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
    bias_of_change = figure(result, "ours", "rtm_bias", "change")
    assert change.no_effect == 0.0
    assert delta.no_effect == pytest.approx(delta.value - change.value)  # type: ignore[operator]
    assert bias_of_change.value == pytest.approx(change.value, abs=0.1)
    finding = the_one(result.findings, metric="delta_sel")
    assert finding.says == "matched.delta_sel_up"
    assert "matched.regression" in finding.further
    assert finding.facts["regression"] == bias_of_change
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
    kind_row, specific = (figure(result, "ours", name) for name in ("kind", "specific"))
    assert kind_row.value == pytest.approx(-2.47 + 0.2, abs=0.2)
    change = figure(result, "ours", "delta_sel", "change")
    assert kind_row.value + specific.value == pytest.approx(change.value)  # type: ignore[operator]
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
    expected_claim = "formats" if scale > 1 else "nothing_shown"
    assert {*claims(result, "ours")} == {"moved", expected_claim}
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
    assert any(finding.says == "matched.unequal" for finding in result.findings)
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
    case_with_known_strings = Case(seal(content), case.reference)
    result = audit(
        case_with_known_strings,
        ours=moved(case, trained=-1, never=0, other=0, spread=0.2),
    )
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
    known_spans = spans[(spans["split"] == "test") & (spans["trained"] == 1)]
    assert list(known_spans["example"]) == [test["id"]]
    assert list(known_spans["start"]) == [span["token_start"]]


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

    dosed_evidence = of_frame(frame, "nll_sum", rematched=False, placebo=False)
    result = conclude("matched", dosed_evidence, Context(replicates=100))
    own_spans = frame[frame["checkpoint"] == "ours"]
    own_spans = own_spans.assign(change=own_spans["nll_sum"] - own_spans["ref_sum"])
    control = own_spans[own_spans["role"] == "control"].set_index("pair")["change"]
    spans = own_spans[own_spans["role"].isin(["pii", "unmatched"])]
    pairs = spans[spans["role"] == "pii"]
    change_beyond_control = pairs["change"] - control[pairs["pair"]].to_numpy()

    def means(frame: pd.DataFrame, dose: int | None) -> tuple[float, float]:
        """P, and H with its types as heavy as P has them; over the types H has."""
        test = frame["split"] == "test"
        frame = frame[test | (frame["dose"].clip(lower=1) == dose) | (dose is None)]
        counts = frame.loc[test, "type"].value_counts()
        sums = frame.groupby(["split", "type"])[["change", "n_tokens"]].sum()
        held = counts.index[counts > 1]
        trained_sums, never = (sums.loc[side].loc[held] for side in ("train", "test"))
        share = trained_sums["n_tokens"] / trained_sums["n_tokens"].sum()
        trained = trained_sums["change"].sum() / trained_sums["n_tokens"].sum()
        return trained, (share * never["change"] / never["n_tokens"]).sum()

    rows = {(r.metric, r.group): r for r in result.results if not r.variant}
    for group, dose in (("pooled", None), ("dose:1", 1), ("dose:4-7", 5)):
        trained, never = means(spans, dose)
        memory = rows["memory", group].value
        assert memory == pytest.approx(trained - never, abs=1e-9)
        trained_mean, never_mean = means(
            pairs.assign(change=change_beyond_control), dose
        )
        assert rows["kind", group].value == pytest.approx(never_mean, abs=1e-9)
        specific = rows["specific", group].value
        assert specific == pytest.approx(trained_mean - never_mean, abs=1e-9)
    dose_findings = [f for f in result.findings if f.group == "dose:4-7"]
    assert [f.claim for f in dose_findings] == ["memory"]


@pytest.mark.parametrize(("groups", "tests"), [(2, 1), (4, 1), (5, 2)])
def test_a_highest_dose_of_few_groups_is_no_test(make_case, groups, tests):
    """Its figures stand; it is not counted among the tests that p is corrected over."""
    case = make_case(sources=24, tests=30, seed=41)
    change = moved(case, trained=-0.9, never=-0.1, other=-0.2, spread=0.3)
    options = {"placebo_draws": 0, "rematched": False}
    evidence_as_built = evidence(
        "matched", case.tables(ours=change), case.manifest, **options
    )
    frame = evidence_as_built.frame()
    trained = frame["role"].isin(["pii", "unmatched"]) & (frame["split"] == "train")
    most = sorted(set(frame.loc[trained, "cluster"]))[:groups]
    frame.loc[trained & frame["cluster"].isin(most), "dose"] = 20

    dosed_evidence = of_frame(frame, "nll_sum", rematched=False, placebo=False)
    result = conclude("matched", dosed_evidence, Context(replicates=100))
    primary = [f for f in result.findings if f.family == "primary"]
    assert [f.group for f in primary] == ["pooled", "dose:16+"][:tests]
    row = figure(result, "ours", "memory", group="dose:16+")
    assert row.value is not None


def test_formats_are_not_learned_where_other_text_alone_drifted(make_case):
    """Identifiers up by 0.8 on both sides, other text by 1.2: labels-only training."""
    case = make_case(sources=60, tests=40, seed=43)
    change = moved(case, trained=0.8, never=0.8, other=1.2, spread=0.3)
    result = audit(case, ours=change)
    assert (figure(result, "ours", "kind").high or 0) < 0
    assert "formats" not in claims(result, "ours")
