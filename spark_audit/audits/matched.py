"""Likelihood of identifiers against controls that were equally hard before training.

SPARK's difficulty-matched selectivity evaluation: every annotated PII span of a train
row stands against a non-PII span of the same example with the same number of tokens
and, on the reference model, the same NLL. ``delta_sel`` is the checkpoint's NLL on
the PII minus that on the controls; ``did`` its difference to a baseline. Neither is 0
without an effect: ``rtm_bias`` says what regression to the mean alone would give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import pandas as pd

from spark_audit.audits import (
    AUDITS,
    BASE,
    Baseline,
    Plan,
    Tables,
    baselines_of,
    entry_of,
    is_rounded,
    replicate_of,
)
from spark_audit.audits import replicates as preset_replicates
from spark_audit.errors import InputError, NotEstimableError
from spark_audit.manifest import Manifest
from spark_audit.results import (
    AuditResult,
    Claim,
    Contrast,
    Estimate,
    Family,
    Finding,
    Guard,
    Row,
    number,
)
from spark_audit.spans import (
    REPRODUCED,
    Group,
    Sums,
    audited_spans,
    group_of,
    groups,
)
from spark_audit.spans.evidence import evidence as span_evidence
from spark_audit.spans.rematch import diagnostics, placebo_table, sensitivity_table
from spark_audit.stats.balance import effective_clusters
from spark_audit.stats.bootstrap import cluster_sums, draw_weights, max_t
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.power import mde, with_mde
from spark_audit.stats.selectivity import (
    NOT_SEPARABLE,
    DidTest,
    RtmBias,
    delta_sel,
    did_test,
    estimands,
    rtm_bias_estimate,
    rtm_slope,
)
from spark_audit.table import Pass

NOTHING = "Not estimable: the manifest has no identifier to audit."
NO_PAIRS = "there is no matched span in this group"
REFERENCE = "it is the matching reference: nothing changed, nothing regresses"
FEWEST_REPLICATES = 100

SCOPE = (
    "Delta_sel and DiD speak of the matched spans only: with their true prefixes, on "
    "these annotations. They say nothing of other prefixes, of other domains, of "
    "identifiers that nobody annotated, or of sampling.",
    "A small or negative Delta_sel is no proof that nothing leaks: it says that "
    "identifiers are as likely as, or likelier than, other text of equal difficulty.",
)


def plan(manifest: Manifest, *, preset: str | None = None) -> Plan:
    """All examples with an audited span: unmatched ones bear on ``rtm_bias`` too."""
    ids = [
        example.id
        for split in ("train", "test")
        for _, example, _ in audited_spans(manifest, split=split)
    ]
    return {Pass(): sorted(ids)} if ids else {}


def check(
    *, replicates: int = 0, placebo_draws: int = 0, rematched: bool = True
) -> None:
    """Refuse options that cannot be used, before anything is scored."""
    if replicates and replicates < FEWEST_REPLICATES:
        raise InputError(
            f"{replicates} replicates give no interval",
            where="--replicates",
            fix=f"give at least {FEWEST_REPLICATES}, or 0 for the preset's number",
        )
    if placebo_draws < 0:
        raise InputError(
            "must not be negative", where="--placebo-draws", fix="give 0 for none"
        )


def evidence(tables: Tables, manifest: Manifest) -> pd.DataFrame:
    """What :func:`conclude` needs, of all checkpoints."""
    return span_evidence(manifest, _sums(tables, manifest))


def _sums(tables: Tables, manifest: Manifest) -> dict[str, Sums]:
    return {
        name: Sums.of_table(manifest, passes[Pass()])
        for name, passes in tables.items()
        if Pass() in passes
    }


def conclude(
    spans: pd.DataFrame,
    *,
    baselines: Mapping[str, str],
    paper: bool,
    seed: int,
    replicates: int,
) -> AuditResult:
    """Rows, contrasts, guards and verdict from :func:`evidence`.

    Needs no model, no manifest: evidence of several reports over one manifest can be
    concatenated.
    """
    spans, baselines = _with_entries(spans, baselines)
    names = list(dict.fromkeys(spans["checkpoint"])) if len(spans) else []
    rows: list[Row] = []
    contrasts: list[Contrast] = []
    findings: list[Finding] = []
    if not names:
        return AuditResult(
            findings=[Finding(audit="matched", claim="not_tested", sentence=NOTHING)]
        )
    tests: dict[str, DidTest] = {}
    references: set[str] = set()
    for split in ("train", "test"):
        part = spans[spans["split"] == split]
        if not len(part):
            continue
        clusters = sorted(set(part["cluster"]))
        weights = draw_weights(len(clusters), replicates=replicates, seed=seed)
        for group, chosen in groups(part, split):
            found = {
                name: group_of(chosen[chosen["checkpoint"] == name], clusters)
                for name in names
            }
            if group == "pooled":
                references |= {name for name in names if found[name].is_reference}
            for name in names:
                rows += _rows(name, group, found[name], weights, paper=paper)
            for name, baseline in baselines.items():
                made, test = _contrast(
                    name, baseline, group, found, weights, seed=seed, paper=paper
                )
                contrasts += made
                if test is not None and any(map(_primary, made)):
                    tests[name] = test
    if not any(row.group == "pooled" for row in rows):
        rows = [*_missing_rows(names, "pooled"), *rows]
    contrasts = _adjusted(contrasts, tests, seed)
    single = [name for name in names if replicate_of(name) is None]
    entries = {one[0] for name in names if (one := replicate_of(name))}
    pooled = {
        (row.checkpoint, row.of): row
        for row in rows
        if row.group == "pooled" and row.metric == "delta_sel"
    }
    for name in single:
        moved = _moved(spans[spans["checkpoint"] == name])
        sentence = _sentence(
            name,
            pooled,
            reference=name in references,
            moved=moved,
            entry=name in entries,
        )
        row = pooled.get((name, "change")) or pooled.get((name, ""))
        findings.append(_finding(row, sentence, checkpoint=name))
    own = {r.checkpoint: r.value for r in rows if _is_own_nll(r)}
    findings += [
        _finding(row, _contrast_sentence(row, own, entry=row.checkpoint in entries))
        for row in contrasts
        if _told(row)
    ]
    train = spans[(spans["split"] == "train") & (spans["checkpoint"] == names[0])]
    return AuditResult(
        rows=rows,
        contrasts=contrasts,
        guards=_guards(train),
        findings=findings,
        scope=list(SCOPE),
        tables={"matched_diagnostics": diagnostics(spans)},
    )


@AUDITS.register(plan=plan, check=check, conclude=conclude)
def matched(
    tables: Tables,
    manifest: Manifest,
    *,
    baseline: Baseline = None,
    preset: str | None = None,
    seed: int = 0,
    replicates: Annotated[int, "bootstrap replicates of the percentile interval"] = 0,
    placebo_draws: Annotated[int, "draws of the placebo distribution; 0: none"] = 200,
    rematched: Annotated[bool, "repeat under other calipers and distances"] = True,
) -> AuditResult:
    """Conclude from the plain tables of the checkpoints.

    Parameters
    ----------
    tables
        Checkpoint name -> pass -> table. A checkpoint called ``base`` is checked
        against the manifest's own reference scores.
    baseline
        Checkpoint that contrasts are taken with: the same run without the correction;
        or checkpoint -> its own.
    preset
        ``robust`` (jackknife-t) or ``paper`` (percentile, 2,000 replicates); default:
        the manifest's.
    replicates
        0: 9,999, under ``paper`` 2,000.
    """
    check(replicates=replicates, placebo_draws=placebo_draws)
    chosen = preset or manifest.settings.preset
    count = replicates or preset_replicates(chosen)
    sums = _sums(tables, manifest)
    spans = span_evidence(manifest, sums)
    result = conclude(
        spans,
        baselines=baselines_of(baseline, sums),
        paper=chosen == "paper",
        seed=seed,
        replicates=count,
    )
    if spans.empty:
        return result
    further = dict(result.tables)
    if rematched:
        further["matched_sensitivity"] = sensitivity_table(manifest, sums)
    if placebo_draws:
        further["matched_placebo"] = placebo_table(
            manifest, sums, spans, draws=placebo_draws, seed=seed
        )
    return replace(
        result,
        settings={"replicates": count},
        evidence=spans,
        guards=[*_reproduced(manifest, sums, spans), *result.guards],
        tables=further,
    )


def _with_entries(
    spans: pd.DataFrame, baselines: Mapping[str, str]
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Add the mean of each method's replicates under the method's own name.

    Delta_sel and DiD are linear in a checkpoint's sums, so their interval over sources
    for the mean of several seeds is that of the averaged sums.
    """
    members: dict[str, list[str]] = {}
    for name in dict.fromkeys(spans["checkpoint"]) if len(spans) else ():
        if (found := replicate_of(name)) is not None:
            members.setdefault(found[0], []).append(name)
    parts, pairs = [spans], dict(baselines)
    for entry, names in members.items():
        each = [spans[spans["checkpoint"] == name] for name in names]
        sums = np.mean([part["nll_sum"].to_numpy() for part in each], axis=0)
        parts.append(each[0].assign(checkpoint=entry, nll_sum=sums))
        if (other := baselines.get(names[0])) is not None:
            pairs[entry] = entry_of(other)
    return pd.concat(parts, ignore_index=True) if members else spans, pairs


METRICS = ("nll_pii", "nll_control", "delta_sel", "rtm_bias")
CATALOGUE = {
    **{metric: ("",) for metric in METRICS},
    "delta_sel": ("", "change", "span-weighted", "source-weighted"),
    "did": ("",),
}


def _missing_rows(names: Sequence[str], group: str) -> list[Row]:
    missing = Estimate.missing(NO_PAIRS)
    return [
        Row.of_estimate(
            missing,
            audit="matched",
            checkpoint=name,
            group=group,
            metric=metric,
            unit="nats",
        )
        for name in names
        for metric in METRICS
    ]


def _rows(
    name: str, group: str, found: Group, weights: np.ndarray, *, paper: bool
) -> list[Row]:
    columns: dict[str, Any] = {
        "audit": "matched",
        "checkpoint": name,
        "group": group,
        "unit": "nats",
    }
    if not len(found.pii):
        return _missing_rows([name], group)
    size = found.windows.n_clusters
    sides = [
        ratio_estimate(
            cluster_sums(values, found.codes, size), found.den, weights=weights
        )
        for values in (found.pii, found.control)
    ]
    bias = Estimate.missing(REFERENCE)
    if not found.is_reference:
        bias = rtm_bias_estimate(
            found.windows, found.checkpoint_windows, weights=weights
        ).estimate
    bias = bias.decided(paper=paper)
    null = {"null": bias.value, "null_low": bias.low, "null_high": bias.high}
    spans = (found.pii, found.control, found.tokens, found.codes)
    pooled, by_span, by_source = estimands(*spans, weights=weights)
    change = delta_sel(
        found.pii - found.residual, found.control, *spans[2:], weights=weights
    )
    if found.is_reference:
        change = Estimate.missing(REFERENCE)
    rows = [
        Row.of_estimate(estimate.decided(paper=paper), metric=metric, **columns, **more)
        for metric, estimate, more in (
            ("nll_pii", sides[0], {}),
            ("nll_control", sides[1], {}),
            ("delta_sel", with_mde(pooled), null),
            ("delta_sel", with_mde(change), {"of": "change", **_shifted(null, found)}),
            ("rtm_bias", bias, {}),
        )
    ]
    if group != "pooled":
        return rows
    return rows + [
        Row.of_estimate(
            with_mde(estimate).decided(paper=paper),
            metric="delta_sel",
            of=of,
            **columns,
            **null,
        )
        for of, estimate in (("span-weighted", by_span), ("source-weighted", by_source))
    ]


def _shifted(null: dict[str, float | None], found: Group) -> dict[str, float | None]:
    """R1 for the change since the reference.

    A pair that matching left ``d`` nats apart is expected at ``(1 - beta) gap +
    beta d`` without an effect, so its change at ``(1 - beta) (gap - d)``.
    """
    try:
        windows = found.windows
        beta = rtm_slope(
            windows.pool,
            found.checkpoint_windows,
            windows.pool_clusters,
            cells=windows.pool_cells,
        ).beta
    except NotEstimableError:
        return dict.fromkeys(null)
    shift = (1 - beta) * float(found.residual.sum() / found.tokens.sum())
    return {k: None if bound is None else bound - shift for k, bound in null.items()}


def _contrast(
    name: str,
    baseline: str,
    group: str,
    found: dict[str, Group],
    weights: np.ndarray,
    *,
    seed: int,
    paper: bool,
) -> tuple[list[Contrast], DidTest | None]:
    ours, theirs = found[name], found[baseline]
    columns: dict[str, Any] = {
        "audit": "matched",
        "checkpoint": name,
        "baseline": baseline,
        "group": group,
        "unit": "nats",
        "family": _family(name, baseline, group),
    }
    if not len(ours.pii):
        missing = Estimate.missing(NO_PAIRS)
        return [
            Contrast.of_estimate(missing, metric=metric, **columns)
            for metric in ("did", "rtm_bias")
        ], None
    estimate = with_mde(
        delta_sel(
            ours.pii - theirs.pii,
            ours.control - theirs.control,
            ours.tokens,
            ours.codes,
            weights=weights,
        )
    )
    bias = rtm_bias_estimate(
        ours.windows,
        ours.checkpoint_windows,
        theirs.checkpoint_windows,
        weights=weights,
    )
    test = _test(ours.num - theirs.num, ours.den, bias, seed)
    if test is not None and estimate.mde is not None and estimate.se is not None:
        # What is tested is the contrast minus its bias, which is estimated as well.
        se = max(test.se, estimate.se)
        estimate = replace(estimate, mde=mde(se, clusters=estimate.clusters))
    decided = bias.estimate.decided(paper=paper)
    notes = []
    if theirs.is_reference:
        notes.append(
            "the baseline is the matching reference: DiD is Delta_sel minus the match "
            "residual, regression to the mean is not removed"
        )
    if test is not None and not test.separable:
        notes.append(test.verdict)
    return [
        Contrast.of_estimate(
            estimate.decided(paper=paper),
            metric="did",
            p=None if test is None else test.p,
            null=decided.value,
            null_low=decided.low,
            null_high=decided.high,
            note="; ".join(notes),
            **columns,
        ),
        Contrast.of_estimate(decided, metric="rtm_bias", **columns),
    ], test


def _family(name: str, baseline: str, group: str) -> Family:
    """The pooled DiD of methods is primary; single seeds and variants are not."""
    single = replicate_of(name) is None and not is_rounded(name, baseline)
    return "primary" if group == "pooled" and single else "exploratory"


def _test(num: np.ndarray, den: np.ndarray, bias: RtmBias, seed: int) -> DidTest | None:
    if bias.estimate.value is None or np.count_nonzero(den) < 2:
        return None
    return did_test(num, den, bias, seed=seed)


def _primary(row: Contrast) -> bool:
    return row.metric == "did" and row.family == "primary"


def _told(row: Contrast) -> bool:
    """Whether a contrast has a sentence: the primary ones, and those of rounding."""
    rounded = row.group == "pooled" and is_rounded(row.checkpoint, row.baseline)
    return _primary(row) or (row.metric == "did" and rounded)


def _adjusted(
    contrasts: list[Contrast], tests: dict[str, DidTest], seed: int
) -> list[Contrast]:
    """The pooled DiD of all checkpoints as one family, by max-T."""
    if not tests:
        return contrasts
    scores = np.stack([test.scores for test in tests.values()], axis=1)
    adjusted = dict(zip(tests, max_t(scores, seed=seed), strict=True))
    return [
        row.model_copy(update={"p_adjusted": float(adjusted[row.checkpoint])})
        if _primary(row) and row.checkpoint in adjusted
        else row
        for row in contrasts
    ]


def _moved(spans: pd.DataFrame) -> Estimate:
    """Change of the matched identifiers' own NLL since the reference, nats a token."""
    pii = spans[(spans["split"] == "train") & (spans["role"] == "pii")]
    sums = pii.assign(change=pii["nll_sum"] - pii["ref_sum"]).groupby("cluster")
    return ratio_estimate(sums["change"].sum(), sums["n_tokens"].sum())


def _finding(row: Row | None, sentence: str, **columns: Any) -> Finding:
    claim: Claim = "not_tested" if row is None or row.value is None else "moved"
    return Finding.on(row, claim, sentence, **{"audit": "matched", **columns})


def _sentence(
    name: str,
    pooled: dict[tuple[str, str], Row],
    *,
    reference: bool,
    moved: Estimate,
    entry: bool = False,
) -> str:
    """What was found for one checkpoint, in plain words.

    What is read is the change since the reference: what matching left over there is
    no finding about a checkpoint.
    """
    row, change = pooled.get((name, "")), pooled.get((name, "change"))
    if row is None or row.value is None:
        reason = NO_PAIRS if row is None else row.note
        return f"{name}: Delta_sel is not estimable ({reason})."
    over = f"over {row.n} tokens of matched identifiers in {row.clusters} clusters"
    if entry:
        over = f"for the mean of its seeds, {over}"
    if reference:
        return (
            f"{name} scores as the matching reference does: its Delta_sel of "
            f"{number(row.value)} nats {over} is what matching leaves over, and no "
            "finding."
        )
    if change is None or change.value is None:
        reason = NO_PAIRS if change is None else change.note
        return f"{name}: Delta_sel {_interval(row)}; its change: {reason}."
    reading = _reading(change, moved)
    if entry:
        reading = "This is over sources alone; over seeds too, see below."
    return (
        f"{name}: Delta_sel {_interval(row)} nats {over}, a change of "
        f"{_interval(change)} since the reference, where regression to the mean alone "
        f"would give {number(change.null)}. {reading}"
    )


def _interval(row: Row | Estimate) -> str:
    if row.low is None or row.high is None:
        return number(row.value)
    return f"{number(row.value)} [{number(row.low)}, {number(row.high)}]"


def _reading(row: Row, moved: Estimate) -> str:
    """What an interval says against everything from 0 to regression to the mean.

    ``moved`` is the change of the identifiers' own NLL: Delta_sel grows as well when
    other text is learned faster, which suppresses nothing.
    """
    if row.low is None or row.high is None or row.null is None:
        return "Without an interval or that reference, nothing can be concluded."
    lowest, highest = _reach(row)
    if lowest <= row.high and row.low <= highest:
        return _inseparable(row)
    rose, fell = _clear(moved)
    by = f"(their own NLL changed by {_interval(moved)})"
    beyond = "by more than regression to the mean explains"
    if row.low > highest:
        if rose:
            return (
                f"Identifiers became less likely {by}, and more so than text of equal "
                f"difficulty, {beyond}: selective suppression at these spans."
            )
        if fell:
            return (
                "Equally hard other text became likelier faster than identifiers did, "
                f"{beyond}; identifiers {by} were not suppressed, only learned less."
            )
        return (
            f"Identifiers became less likely relative to equally hard text, {beyond}; "
            f"that they became less likely themselves is not shown {by}."
        )
    if fell:
        return (
            f"Identifiers became MORE likely {by}, and more so than text of equal "
            "difficulty: the checkpoint remembers identifiers at these spans."
        )
    if rose:
        return (
            "Equally hard other text lost more than identifiers did; identifiers "
            f"{by} did not become likelier themselves."
        )
    return (
        f"Identifiers became MORE likely relative to equally hard text, {beyond}; that "
        f"they became likelier themselves is not shown {by}."
    )


def _clear(moved: Estimate) -> tuple[bool, bool]:
    """Whether a change is clearly above, and clearly below 0."""
    if moved.value is None:
        return False, False
    if moved.low is None or moved.high is None:  # all clusters agree
        return moved.value > 0, moved.value < 0
    return moved.low > 0, moved.high < 0


def _reach(row: Row) -> tuple[float, float]:
    """What regression to the mean can give, uncertainty included: 0 to its far end."""
    ends = [0.0, *(b for b in (row.null, row.null_low, row.null_high) if b is not None)]
    return min(ends), max(ends)


def _inseparable(row: Row) -> str:
    lowest, highest = _reach(row)
    text = (
        "Not separable from regression to the mean, which can give anything from "
        f"{number(lowest)} to {number(highest)}: neither suppression nor memorisation "
        "was shown, and neither is excluded."
    )
    if row.mde is None:
        return text
    return f"{text} Beyond that range, effects below {number(row.mde)} nats go unseen."


def _is_own_nll(row: Row) -> bool:
    return (row.metric, row.of, row.group) == ("nll_pii", "", "pooled")


def _contrast_sentence(
    row: Contrast, own: Mapping[str, float | None], *, entry: bool = False
) -> str:
    """What a correction did; ``own`` is the identifiers' own NLL by checkpoint."""
    if row.value is None:
        return f"{row.checkpoint} against {row.baseline}: not estimable ({row.note})."
    value = row.p if row.p_adjusted is None else row.p_adjusted
    kind = "p" if row.p_adjusted is None else "adjusted p"
    p = "no p value" if value is None else f"{kind} {value:.4f}"
    bias = "unknown" if row.null is None else number(row.null)
    found = value is not None and value < 1 - row.level
    if found and NOT_SEPARABLE not in row.note:
        direction = "LESS" if row.value > 0 else "MORE"
        reading = (
            f"Against the baseline, identifiers are {direction} likely relative to "
            f"equally hard text{_themselves(row, own)}, beyond regression to the mean."
        )
    else:
        reading = _inseparable(row)
    if entry:
        reading = "This is over sources alone; over seeds too, see below."
    return (
        f"{row.checkpoint} against {row.baseline}: DiD {_interval(row)} nats, "
        f"{bias} of it expected by regression to the mean, {p}. {reading}"
    )


def _themselves(row: Contrast, own: Mapping[str, float | None]) -> str:
    """How the identifiers' own NLL differs: a relative change alone can mislead."""
    mine, other = own.get(row.checkpoint), own.get(row.baseline)
    if mine is None or other is None:
        return ""
    change = mine - other
    way = "more" if change < 0 else "less"
    return (
        f" (taken by themselves they are {way} likely, by {number(abs(change))} nats)"
    )


def _guards(train: pd.DataFrame) -> list[Guard]:
    """What can void the matched figures, from the reference alone."""
    pii, control = (train[train["role"] == r] for r in ("pii", "control"))
    unmatched = int((train["role"] == "unmatched").sum())
    total = len(pii) + unmatched
    if not total:
        return []
    share = len(pii) / total
    missing = train[train["role"] == "unmatched"]["type"].value_counts()
    worst = ", ".join(f"{count} {kind}" for kind, count in missing.head(4).items())
    found = [
        Guard(
            name="matched share",
            passed=True if share >= 0.5 else None,
            detail=f"{len(pii)} of {total} spans of train rows have a control"
            + (f"; without: {worst}" if unmatched else "")
            + ". Figures are over matched spans only.",
        )
    ]
    if not len(pii):
        return found
    tokens = pii["n_tokens"].to_numpy(float)
    gaps = pii["ref_sum"].to_numpy() - control["ref_sum"].to_numpy()
    residual = gaps.sum() / tokens.sum()
    distance = np.quantile(np.abs(gaps) / tokens, 0.95)
    found.append(
        Guard(
            name="match quality",
            passed=True if abs(residual) <= 0.05 else None,
            detail=f"Delta_sel on the reference is {residual:.4f} nats; 95% of pairs "
            f"differ by at most {distance:.3f}",
        )
    )
    effective = effective_clusters(pii.groupby("cluster")["n_tokens"].sum().to_numpy())
    found.append(
        Guard(
            name="clusters",
            passed=True if effective >= 10 else None,
            detail=f"{pii['cluster'].nunique()} clusters, worth {effective:.1f} of "
            "equal size by tokens",
        )
    )
    return found


def _reproduced(
    manifest: Manifest, sums: dict[str, Sums], spans: pd.DataFrame
) -> list[Guard]:
    """Whether the base still scores as the manifest says it did."""
    base = spans[spans["checkpoint"] == BASE]
    if not len(base):
        return []
    change = (base["nll_sum"] - base["ref_sum"]).abs() / base["n_tokens"]
    worst = float(change.max())
    return [
        Guard(
            name="reference reproduced",
            checkpoint=BASE,
            passed=worst <= REPRODUCED,
            detail=f"scored again, span means differ from the manifest's by at most "
            f"{worst:.2g} nats"
            + ("" if worst <= REPRODUCED else ": other weights, dtype or libraries"),
        )
    ]
