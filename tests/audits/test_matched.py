"""The matched audit against plain loops over tokens, and what it says of nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from spark_audit.audits import baselines_of
from spark_audit.audits.matched import evidence, matched, plan
from spark_audit.results import AuditResult, Row
from spark_audit.table import Pass

Make = Callable[..., Any]


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


def pooled(result: AuditResult, checkpoint: str, metric: str, of: str = "") -> Row:
    rows = [
        row
        for row in result.rows
        if (row.checkpoint, row.metric, row.of, row.group)
        == (checkpoint, metric, of, "pooled")
    ]
    assert len(rows) == 1
    return rows[0]


def audit(case: Any, /, *, baseline: str | None = None, **changes: Any) -> AuditResult:
    return matched(
        case.tables(**changes), case.manifest, baseline=baseline, placebo_draws=20
    )


def test_pooled_figures_equal_a_loop_over_tokens(make_case: Make) -> None:
    case = make_case(sources=15, rows=2, seed=3)
    change = shifted(case, 0.7)
    result = audit(case, ours=change)
    pii, control = [], []
    for pair in case.manifest.pairs:
        nll = change(pair.example, case.reference[pair.example])
        for t in range(pair.pii.token_start, pair.pii.token_end):
            pii.append(nll[t])
        for t in range(pair.control.token_start, pair.control.token_end):
            control.append(nll[t])
    assert pooled(result, "ours", "nll_pii").value == pytest.approx(np.mean(pii), 1e-6)
    assert pooled(result, "ours", "nll_control").value == pytest.approx(
        np.mean(control), 1e-6
    )
    delta = pooled(result, "ours", "delta_sel")
    assert delta.value == pytest.approx(np.mean(pii) - np.mean(control), 1e-5)
    assert delta.n == len(pii)
    assert delta.clusters == 15


def test_interval_is_the_jackknife_over_sources(make_case: Make) -> None:
    case = make_case(sources=12, rows=2, seed=4)
    rng = np.random.default_rng(0)
    noise = {key: rng.normal(0, 0.3, 60) for key in case.reference}
    change = shifted(case, 0.5)
    result = audit(case, ours=lambda key, nll: change(key, nll) + noise[key])
    sums: dict[str, list[float]] = {}
    for pair in case.manifest.pairs:
        nll = change(pair.example, case.reference[pair.example]) + noise[pair.example]
        a, b = pair.pii.token_start, pair.pii.token_end
        c, d = pair.control.token_start, pair.control.token_end
        cell = sums.setdefault(case.manifest.by_id[pair.example].cluster, [0.0, 0.0])
        cell[0] += nll[a:b].sum() - nll[c:d].sum()
        cell[1] += b - a
    num, den = np.array(list(sums.values())).T
    theta = num.sum() / den.sum()
    without = (num.sum() - num) / (den.sum() - den)
    se = np.sqrt((len(num) - 1) / len(num) * ((without - theta) ** 2).sum())
    from scipy import stats

    t = stats.t.ppf(0.975, len(num) - 1)
    row = pooled(result, "ours", "delta_sel")
    assert row.interval == "jackknife-t"
    assert (row.value, row.low, row.high) == pytest.approx(
        (theta, theta - t * se, theta + t * se), rel=1e-5
    )
    assert row.parity_low is not None
    assert row.mde is not None
    assert row.mde > 2.8 * se


def test_pure_shrinkage_is_recognised_as_regression_to_the_mean(
    make_case: Make,
) -> None:
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
    delta = pooled(result, "ours", "delta_sel")
    bias = pooled(result, "ours", "rtm_bias")
    assert delta.value is not None
    assert bias.value == pytest.approx(0.45, abs=0.1)
    assert delta.value == pytest.approx(bias.value, abs=0.1)
    assert delta.null == bias.value
    assert delta.low is not None
    assert delta.low > 0, "an interval against zero would have claimed an effect"
    assert "Not separable from regression to the mean" in result.verdict[0]


def test_selective_suppression_and_memorisation_are_told_apart(make_case: Make) -> None:
    case = make_case(sources=40, seed=6)
    rng = np.random.default_rng(2)
    noise = {key: rng.normal(0, 0.2, 60) for key in case.reference}

    def noisy(shift: float) -> Callable[[str, np.ndarray], np.ndarray]:
        inner = shifted(case, shift)
        return lambda key, nll: inner(key, nll) + noise[key]

    result = audit(case, hidden=noisy(1.0), leaked=noisy(-1.0), none=noisy(0.0))
    assert "selective suppression" in result.verdict[0]
    assert "MORE likely" in result.verdict[1]
    assert "neither is excluded" in result.verdict[2]


def test_contrast_is_paired_and_adjusted_over_the_family(make_case: Make) -> None:
    case = make_case(sources=30, seed=7)
    rng = np.random.default_rng(3)
    noise = {key: rng.normal(0, 0.5, 60) for key in case.reference}

    def plus(shift: float) -> Callable[[str, np.ndarray], np.ndarray]:
        inner = shifted(case, shift)
        return lambda key, nll: inner(key, nll) + noise[key]

    result = audit(
        case, baseline="plain", plain=plus(0.0), a=plus(0.6), b=plus(0.3), base=same
    )
    did = {
        row.checkpoint: row
        for row in result.contrasts
        if row.metric == "did" and row.group == "pooled"
    }
    assert set(did) == {"a", "b"}
    for name, shift in (("a", 0.6), ("b", 0.3)):
        row = did[name]
        assert row.baseline == "plain"
        assert row.family == "primary"
        difference = (
            pooled(result, name, "delta_sel").value
            - pooled(result, "plain", "delta_sel").value  # type: ignore[operator]
        )
        assert row.value == pytest.approx(difference, abs=1e-6)
        # The noise cancels: what is left is the shift.
        assert row.value == pytest.approx(shift, abs=1e-5)
        assert row.p is not None
        assert row.p_adjusted is not None
        assert row.p <= row.p_adjusted < 0.05
    exploratory = [row for row in result.contrasts if row.group != "pooled"]
    assert {row.family for row in exploratory} == {"exploratory"}
    assert all(row.p_adjusted is None for row in exploratory)


def test_reference_as_baseline_is_said(make_case: Make) -> None:
    case = make_case(sources=12, seed=8)
    result = audit(case, baseline="base", base=same, ours=shifted(case, 0.4))
    row = next(r for r in result.contrasts if r.metric == "did")
    assert "regression to the mean is not removed" in row.note


def test_base_that_scores_otherwise_fails_its_guard(make_case: Make) -> None:
    case = make_case(sources=12, seed=9)
    good = audit(case, base=same)
    bad = audit(case, base=lambda key, nll: nll + 0.01)
    (passed,) = [g for g in good.guards if g.name == "reference reproduced"]
    (failed,) = [g for g in bad.guards if g.name == "reference reproduced"]
    assert passed.passed is True
    assert failed.passed is False
    assert "other weights, dtype or libraries" in failed.detail


def test_groups_partition_the_pairs(make_case: Make) -> None:
    case = make_case(sources=30, tests=10, seed=10)
    result = audit(case, ours=shifted(case, 0.2))
    counts: dict[str, int] = {}
    for row in result.rows:
        if row.metric == "delta_sel" and not row.of:
            prefix = row.group.partition(":")[0]
            counts[prefix] = counts.get(prefix, 0) + row.n
    assert counts["task"] == counts["type"] == counts["pooled"]
    train = sum(
        pair.pii.token_end - pair.pii.token_start
        for pair in case.manifest.pairs
        if case.manifest.by_id[pair.example].split == "train"
    )
    assert counts["pooled"] == train
    total = sum(p.pii.token_end - p.pii.token_start for p in case.manifest.pairs)
    assert counts["split"] == total - train > 0


def test_nothing_to_match_is_not_estimable_and_no_zero(make_case: Make) -> None:
    case = make_case(sources=12, seed=11, caliper=0.0)
    assert not case.manifest.pairs
    result = audit(case, baseline="plain", ours=same, plain=same)
    assert result.rows
    assert {row.status for row in result.rows} == {"not_estimable"}
    assert all(row.value is None and row.note for row in result.rows)
    assert all("not estimable" in line for line in result.verdict)
    guard = next(g for g in result.guards if g.name == "matched share")
    assert guard.passed is None


def test_one_source_has_no_interval(make_case: Make) -> None:
    case = make_case(sources=1, rows=3, seed=12)
    result = audit(case, ours=shifted(case, 0.3))
    row = pooled(result, "ours", "delta_sel")
    assert row.status == "not_estimable"
    assert "cluster" in row.note


def test_manifest_without_identifiers_gives_no_plan_and_a_sentence(
    make_case: Make,
) -> None:
    case = make_case(sources=2, seed=13)
    content = case.manifest.model_dump(mode="json") | {"pairs": [], "unmatched": []}
    from spark_audit.manifest import seal

    empty = seal(content)
    assert plan(empty) == {}
    result = matched({"ours": {}}, empty)
    assert result.rows == []
    assert "Not estimable" in result.verdict[0]


def test_plan_holds_unmatched_examples_too(make_case: Make) -> None:
    case = make_case(sources=20, seed=14, caliper=0.02)
    wanted = plan(case.manifest)[Pass()]
    assert set(wanted) == {
        *(p.example for p in case.manifest.pairs),
        *(u.example for u in case.manifest.unmatched),
    }
    assert case.manifest.unmatched


def test_paper_preset_decides_by_percentiles(make_case: Make) -> None:
    case = make_case(sources=20, seed=15, preset="paper")
    rng = np.random.default_rng(4)
    noise = {key: rng.normal(0, 0.5, 60) for key in case.reference}
    result = audit(case, ours=lambda key, nll: nll + noise[key])
    row = pooled(result, "ours", "delta_sel")
    assert row.interval == "percentile"
    assert (row.low, row.high) == (row.parity_low, row.parity_high)


def test_weightings_follow_their_definitions(make_case: Make) -> None:
    case = make_case(sources=10, rows=2, seed=16)
    change = shifted(case, 0.4)
    result = audit(case, ours=change)
    by_span: dict[str, list[float]] = {}
    for pair in case.manifest.pairs:
        nll = change(pair.example, case.reference[pair.example])
        a, b = pair.pii.token_start, pair.pii.token_end
        c, d = pair.control.token_start, pair.control.token_end
        cluster = case.manifest.by_id[pair.example].cluster
        by_span.setdefault(cluster, []).append(nll[a:b].mean() - nll[c:d].mean())
    spans = [value for values in by_span.values() for value in values]
    sources = [np.mean(values) for values in by_span.values()]
    assert pooled(result, "ours", "delta_sel", "span-weighted").value == pytest.approx(
        np.mean(spans), abs=1e-5
    )
    assert pooled(
        result, "ours", "delta_sel", "source-weighted"
    ).value == pytest.approx(np.mean(sources), abs=1e-5)


def test_conclusions_from_stored_evidence_are_the_same(make_case: Make) -> None:
    """`compare` reads the evidence back and needs neither model nor manifest."""
    from spark_audit.audits.matched import conclude

    case = make_case(sources=20, seed=17)
    tables = case.tables(plain=same, ours=shifted(case, 0.3))
    direct = matched(tables, case.manifest, baseline="plain", placebo_draws=0)
    again = conclude(
        evidence(tables, case.manifest),
        baselines=baselines_of("plain", tables),
        paper=False,
        seed=0,
        replicates=9999,
    )
    assert again.rows == direct.rows
    assert again.contrasts == direct.contrasts


def test_side_tables_are_complete(make_case: Make) -> None:
    case = make_case(sources=25, seed=18)
    rng = np.random.default_rng(0)
    noise = {key: rng.normal(0, 0.3, 60) for key in case.reference}
    change = shifted(case, 0.8)
    result = audit(case, ours=lambda key, nll: change(key, nll) + noise[key])
    variants = {r["variant"] for r in result.tables["matched_sensitivity"]}
    assert variants >= {"caliper 0.1", "distance profile", "controls before"}
    wide = next(
        r for r in result.tables["matched_sensitivity"] if r["variant"] == "caliper 1.0"
    )
    assert wide["pairs"] >= len(case.manifest.pairs)
    placebos = {r["placebo"]: r for r in result.tables["matched_placebo"]}
    anyone = placebos["any window"]
    assert anyone["draws"] == 20
    assert abs(anyone["mean"]) < 0.1
    assert anyone["p_model_based"] == pytest.approx(1 / 21, abs=0.02)
    (record,) = result.tables["matched_diagnostics"]
    assert record["leave_one_cluster_out_low"] <= record["leave_one_cluster_out_high"]
    assert 0 < record["controls_after_share"] < 1


def test_what_matching_left_over_is_no_finding(make_case: Make) -> None:
    """A match residual of the reference must not read as memorisation."""
    case = make_case(sources=150, seed=20, gap=-0.7)
    rng = np.random.default_rng(0)
    noise = {key: rng.normal(0, 0.02, 60) for key in case.reference}
    result = audit(case, base=same, ours=lambda key, nll: nll + noise[key])
    residual = pooled(result, "base", "delta_sel")
    assert residual.high is not None
    assert residual.high < 0, "this case is about a residual that differs from 0"
    raw = pooled(result, "ours", "delta_sel")
    assert raw.high is not None
    assert raw.high < 0
    change = pooled(result, "ours", "delta_sel", "change")
    assert change.value == pytest.approx(0.0, abs=0.01)
    assert change.low is not None
    assert change.low < 0 < change.high  # type: ignore[operator]
    assert any("no finding" in line for line in result.verdict)
    assert any("neither is excluded" in line for line in result.verdict)
    assert "MORE" not in result.verdict[1]


def test_direction_of_a_contrast_is_said(make_case: Make) -> None:
    case = make_case(sources=30, seed=21)
    rng = np.random.default_rng(3)
    noise = {key: rng.normal(0, 0.3, 60) for key in case.reference}

    def plus(shift: float) -> Callable[[str, np.ndarray], np.ndarray]:
        inner = shifted(case, shift)
        own = {key: rng.normal(0, 0.05, 60) for key in noise}
        return lambda key, nll: inner(key, nll) + noise[key] + own[key]

    result = audit(case, baseline="p", p=plus(0), up=plus(0.6), down=plus(-0.6))
    said = {line.split()[0]: line for line in result.verdict if "against p" in line}
    assert "LESS likely" in said["up"]
    assert "(taken by themselves they are less likely, by 0." in said["up"]
    assert "(taken by themselves they are more likely, by 0." in said["down"]
    assert "MORE likely" in said["down"]


def test_options_are_refused_before_anything_is_scored() -> None:
    from spark_audit.audits.matched import check
    from spark_audit.errors import InputError

    with pytest.raises(InputError, match="--replicates: 1 replicates give no interval"):
        check(replicates=1)
    with pytest.raises(InputError, match="--placebo-draws: must not be negative"):
        check(placebo_draws=-1)


def test_same_seed_same_result(make_case: Make) -> None:
    case = make_case(sources=25, seed=19)
    first = audit(case, ours=shifted(case, 0.1))
    second = audit(case, ours=shifted(case, 0.1))
    assert first.rows == second.rows
    assert first.tables == second.tables


@pytest.mark.parametrize(
    ("other", "own", "words"),
    [
        (-0.9, -0.3, "were not suppressed, only learned less"),
        (-0.1, 0.5, "selective suppression"),
        (0.9, 0.3, "did not become likelier themselves"),
        (0.1, -0.5, "remembers identifiers"),
    ],
)
def test_the_verdict_tells_suppression_from_slower_learning(
    make_case: Make, other: float, own: float, words: str
) -> None:
    case = make_case(sources=60)

    def moved(key: str, nll: np.ndarray) -> np.ndarray:
        out = nll + other
        for start, end in case.spans(key):
            out[start:end] = nll[start:end] + own
        return out

    result = audit(case, ours=moved)
    assert words in result.verdict[0]


@pytest.mark.slow
def test_did_rejects_at_its_level_and_finds_twice_its_mde(make_case: Make) -> None:
    """Null: two checkpoints that differ by noise, of tokens and of whole examples."""
    case = make_case(sources=51)
    runs = 200

    def noisy(seed: int, effect: float) -> Callable[[str, np.ndarray], np.ndarray]:
        rng = np.random.default_rng(seed)

        def change(key: str, nll: np.ndarray) -> np.ndarray:
            out = 0.9 * nll + rng.gamma(2.0, 0.35, len(nll)) + rng.normal(0, 0.2)
            for start, end in case.spans(key):
                out[start:end] += effect + rng.normal(0, 0.3)
            return out

        return change

    def did(seed: int, effect: float) -> Any:
        result = matched(
            case.tables(a=noisy(2 * seed, effect), b=noisy(2 * seed + 1, 0.0)),
            case.manifest,
            baseline="b",
            placebo_draws=0,
            rematched=False,
            replicates=100,
        )
        return next(c for c in result.contrasts if c.metric == "did")

    null = [did(seed, 0.0) for seed in range(runs)]
    rejected = sum(c.p_adjusted < 0.05 for c in null)
    # At most its level: part of the range of regression to the mean is given away.
    assert stats.binomtest(rejected, runs, 0.05, "greater").pvalue > 0.001
    covered = sum(c.low <= 0 <= c.high for c in null)
    assert stats.binomtest(covered, runs, 0.95, "less").pvalue > 0.001
    effect = 2 * float(np.median([c.mde for c in null]))
    found = sum(did(1000 + seed, effect).p_adjusted < 0.05 for seed in range(60))
    assert found >= 57, (rejected, covered, effect, found)
