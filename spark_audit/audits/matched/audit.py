"""Likelihood of identifiers against controls that were equally hard before training.

SPARK's difficulty-matched selectivity evaluation: every annotated PII span of a train
row stands against a non-PII span of the same example with the same number of tokens
and, on the reference model, the same NLL. ``delta_sel`` is the checkpoint's NLL on
the PII minus that on the controls; ``did`` its difference to a baseline. Both move in
any fine-tuning: neither tells memory, nor that anything was suppressed. ``memory`` is
the change of identifiers in trained rows minus that of identifiers of the same kinds
in rows never trained on, which formats and drift move alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import pandas as pd

from spark_audit.audits import AUDITS
from spark_audit.audits.contract import BASE, About, Plan, Tables
from spark_audit.audits.matched.evidence import evidence as span_evidence
from spark_audit.audits.matched.metrics import COLUMNS, LATER, METRICS, flaw
from spark_audit.audits.matched.rematch import (
    diagnostics,
    placebo_table,
    sensitivity_table,
)
from spark_audit.audits.matched.words import (
    NO_LOW,
    NO_PAIRS,
    contrast_finding,
    memory_finding,
    selectivity_finding,
)
from spark_audit.audits.spans import (
    REPRODUCED,
    Group,
    Sums,
    audited_spans,
    group_of,
    groups,
)
from spark_audit.audits.wording import figure
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import entry_of, original_of
from spark_audit.results import (
    AuditResult,
    Contrast,
    Estimate,
    Family,
    Finding,
    Guard,
    Row,
)
from spark_audit.scoring.table import Pass
from spark_audit.stats.balance import effective_clusters
from spark_audit.stats.bootstrap import cluster_sums, draw_weights, max_t, sign_flip
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.memory import Memory, Sides, memory
from spark_audit.stats.power import with_mde
from spark_audit.stats.selectivity import (
    delta_sel,
    estimands,
    rtm_bias_estimate,
    rtm_slope,
)

NOTHING = "the manifest has no identifier to audit"
REFERENCE = "it is the matching reference: nothing changed, nothing regresses"
OLD = "evidence of an earlier version does not say what stands in rows never trained on"
FEWEST_REPLICATES = 100

SCOPE = (
    "Delta_sel and DiD speak of the matched spans only: with their true prefixes, on "
    "these annotations. They say nothing of other prefixes, of other domains, of "
    "identifiers that nobody annotated, or of sampling.",
    "A small or negative Delta_sel is no proof that nothing leaks: it says that "
    "identifiers are as likely as, or likelier than, other text of equal difficulty.",
    "Delta_sel and DiD alone show neither memory nor suppression: ordinary fine-tuning "
    "moves them too, where formats are learned or kinds of text drift unequally.",
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
    tests: dict[str, np.ndarray] = {}
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
                made, scores = _contrast(
                    name, baseline, group, found, weights, seed=seed, paper=paper
                )
                contrasts += made
                if scores is not None and any(map(_primary, made)):
                    tests[name] = scores
    if not any(row.group == "pooled" for row in rows):
        rows = [*_missing_rows(names, "pooled"), *rows]
    own = {name: spans[spans["checkpoint"] == name] for name in names}
    for name in names:
        rows += _memory_rows(name, own[name], reference=name in references)
    low = {name: _low(part) for name, part in own.items()}
    for name in names:
        rows.append(_low_row(name, low[name], reference=name in references))
    drifts = [_low_contrast(n, other, low) for n, other in baselines.items()]
    contrasts = [*_adjusted(contrasts, tests, seed), *drifts]
    single = [name for name in names if entry_of(name) == name]
    entries = {entry_of(name) for name in names if entry_of(name) != name}
    told = {(r.checkpoint, r.metric, r.of, r.group): r for r in rows}
    for name in single:
        known = {key[1:]: row for key, row in told.items() if key[0] == name}
        entry, reference = name in entries, name in references
        if not reference:
            findings.append(memory_finding(name, known, _kind(own[name]), entry=entry))
        state: dict[str, Any] = {"reference": reference, "entry": entry}
        moved = _moved(own[name])
        findings.append(selectivity_finding(name, known, moved, **state))
    paired = {(r.checkpoint, r.baseline, r.metric, r.group): r for r in contrasts}
    findings += [
        contrast_finding(row, paired, told, entry=row.checkpoint in entries)
        for row in contrasts
        if _told(row)
    ]
    train = spans[(spans["split"] == "train") & (spans["checkpoint"] == names[0])]
    return AuditResult(
        rows=rows,
        contrasts=contrasts,
        guards=[*_guards(train), *_alike(own[names[0]])],
        findings=findings,
        scope=list(SCOPE),
        tables={"matched_diagnostics": diagnostics(spans)},
    )


def further(
    result: AuditResult,
    tables: Tables,
    manifest: Manifest,
    *,
    seed: int = 0,
    replicates: Annotated[int, "bootstrap replicates of the percentile interval"] = 0,
    placebo_draws: Annotated[int, "draws of the placebo distribution; 0: none"] = 200,
    rematched: Annotated[bool, "repeat under other calipers and distances"] = True,
) -> AuditResult:
    """The result with what needs the manifest: whether the reference comes out again.

    And the same spans matched otherwise, and windows of no identifier. ``replicates``
    of 0 are 9,999, under ``paper`` 2,000.
    """
    spans = result.evidence
    if spans is None or spans.empty:
        return result
    sums, more = _sums(tables, manifest), dict(result.tables)
    if rematched:
        more["matched_sensitivity"] = sensitivity_table(manifest, sums)
    if placebo_draws:
        more["matched_placebo"] = placebo_table(
            manifest, sums, spans, draws=placebo_draws, seed=seed
        )
    guards = [*_reproduced(manifest, sums, spans), *result.guards]
    return replace(result, guards=guards, tables=more)


@AUDITS.register(
    order=1,
    about=About(
        METRICS, columns=COLUMNS, later=LATER, flaw=flaw, nothing=NOTHING, wide=True
    ),
    plan=plan,
    check=check,
    conclude=conclude,
    further=further,
)
def evidence(tables: Tables, manifest: Manifest) -> pd.DataFrame:
    """What :func:`conclude` needs, of all checkpoints.

    A checkpoint called ``base`` is checked against the manifest's own reference scores.
    """
    sums = _sums(tables, manifest)
    return span_evidence(manifest, sums) if sums else pd.DataFrame()


def _with_entries(
    spans: pd.DataFrame, baselines: Mapping[str, str]
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Add the mean of each method's replicates under the method's own name.

    Delta_sel and DiD are linear in a checkpoint's sums, so their interval over sources
    for the mean of several seeds is that of the averaged sums.
    """
    members: dict[str, list[str]] = {}
    for name in dict.fromkeys(spans["checkpoint"]) if len(spans) else ():
        if (entry := entry_of(name)) != name:
            members.setdefault(entry, []).append(name)
    parts, pairs = [spans], dict(baselines)
    for entry, names in members.items():
        each = [spans[spans["checkpoint"] == name] for name in names]
        if len({len(part) for part in each}) > 1:  # some are of an earlier version
            each = [part[part["role"] != "low"] for part in each]
        sums = np.mean([part["nll_sum"].to_numpy() for part in each], axis=0)
        parts.append(each[0].assign(checkpoint=entry, nll_sum=sums))
        if (other := baselines.get(names[0])) is not None:
            pairs[entry] = entry_of(other)
    return pd.concat(parts, ignore_index=True) if members else spans, pairs


OF_PAIRS = ("nll_pii", "nll_control", "delta_sel", "rtm_bias")
"""Metrics that a group without a matched span lacks."""


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
        for metric in OF_PAIRS
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
    residual = float(found.residual.sum() / found.tokens.sum())
    bias = Estimate.missing(REFERENCE)
    if not found.is_reference:
        bias = rtm_bias_estimate(
            found.windows, found.checkpoint_windows, weights=weights
        )
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
            ("delta_sel", with_mde(pooled), {"null": residual}),
            ("delta_sel", with_mde(change), {"of": "change", "null": 0.0}),
            ("rtm_bias", bias, {}),
            ("rtm_bias", _shifted(bias, found, residual), {"of": "change"}),
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
        )
        for of, estimate in (("span-weighted", by_span), ("source-weighted", by_source))
    ]


def _shifted(bias: Estimate, found: Group, residual: float) -> Estimate:
    """R1 for the change since the reference.

    A pair that matching left ``d`` nats apart is expected at ``(1 - beta) gap +
    beta d`` without an effect, so its change at ``(1 - beta) (gap - d)``.
    """
    if bias.value is None:
        return bias
    windows = found.windows
    beta = rtm_slope(
        windows.pool,
        found.checkpoint_windows,
        windows.pool_clusters,
        cells=windows.pool_cells,
    ).beta
    shift = (1 - beta) * residual
    limits = ("value", "low", "high", "parity_low", "parity_high")
    known = {k: bound for k in limits if (bound := getattr(bias, k)) is not None}
    return replace(bias, **{k: bound - shift for k, bound in known.items()})


def _occurrences(part: pd.DataFrame) -> pd.DataFrame | None:
    """Identifiers of trained rows, and those that stand in no trained row.

    ``None`` where the evidence does not tell them apart.
    """
    spans = part[part["role"].isin(["pii", "unmatched"])]
    if "trained" not in spans or spans["trained"].isna().any():
        return None
    return spans[(spans["split"] == "train") | (spans["trained"] == 0)]


def _memory(part: pd.DataFrame) -> tuple[Memory, Estimate]:
    """Trained against never trained: changes, and NLLs on the reference."""
    spans = _occurrences(part)
    if spans is None:
        return Memory.missing(OLD), Estimate.missing(OLD)
    kinds = [pd.factorize(spans[name])[0] for name in ("type", "form", "cue")]
    sides = Sides(
        trained=(spans["split"] == "train").to_numpy(),
        tokens=spans["n_tokens"].to_numpy(),
        clusters=pd.factorize(spans["cluster"])[0],
        strata=np.stack(kinds, axis=1),
    )
    before = spans["ref_sum"].to_numpy()
    change = spans["nll_sum"].to_numpy() - before
    return memory(change, sides), memory(before, sides).difference


def _unequal(before: Estimate) -> float:
    """Nats by which one side was clearly harder on the reference already; else 0."""
    if before.value is None:
        return 0.0
    if before.low is not None and before.high is not None:
        return 0.0 if before.low <= 0 <= before.high else abs(before.value)
    return abs(before.value)


def _memory_rows(name: str, part: pd.DataFrame, *, reference: bool) -> list[Row]:
    """The change of identifiers on either side, and their difference.

    Sides that were unequally hard on the reference drift unequally where drift depends
    on difficulty; at most, what they differed by is lost. That is the difference's
    ``null_low`` and ``null_high``.
    """
    found, before = _memory(part)
    if reference:
        found = Memory.missing(REFERENCE)
    reach = _unequal(before)
    null = {"null": 0.0, "null_low": -reach, "null_high": reach}
    return [
        Row.of_estimate(
            estimate,
            audit="matched",
            checkpoint=name,
            metric=metric,
            of=of,
            unit="nats",
            **more,
        )
        for metric, of, estimate, more in (
            ("pii_change", "trained", found.trained, {}),
            ("pii_change", "never-trained", found.held_out, {}),
            ("memory", "", found.difference, null),
        )
    ]


def _kind(part: pd.DataFrame) -> Estimate:
    """How identifiers never trained on moved against equally hard text, nats."""
    spans = _occurrences(part)
    if spans is None:
        return Estimate.missing(OLD)
    pii = spans[(spans["split"] == "test") & (spans["role"] == "pii")]
    control = part[(part["role"] == "control") & part["pair"].isin(pii["pair"])]
    moved = [
        pd.Series((side["nll_sum"] - side["ref_sum"]).to_numpy(), index=side["pair"])
        for side in (pii, control)
    ]
    apart = pii.assign(apart=(moved[0] - moved[1]).loc[pii["pair"]].to_numpy())
    sums = apart.groupby("cluster")
    return ratio_estimate(sums["apart"].sum(), sums["n_tokens"].sum())


def _low(part: pd.DataFrame) -> pd.DataFrame:
    """Per cluster: change of low-sensitivity text of audited rows, and its tokens."""
    low = part[(part["role"] == "low") & (part["split"] == "train")]
    low = low.assign(change=low["nll_sum"] - low["ref_sum"])
    return low.groupby("cluster")[["change", "n_tokens"]].sum()


def _low_estimate(change: pd.Series, tokens: pd.Series) -> Estimate:
    if not len(tokens):
        return Estimate.missing(NO_LOW)
    return ratio_estimate(change.to_numpy(), tokens.to_numpy())


def _low_row(name: str, low: pd.DataFrame, *, reference: bool) -> Row:
    found = _low_estimate(low["change"], low["n_tokens"])
    if reference:
        found = Estimate.missing(REFERENCE)
    row: Row = Row.of_estimate(
        found, audit="matched", checkpoint=name, metric="low_change", unit="nats"
    )
    return row


def _low_contrast(name: str, baseline: str, low: dict[str, pd.DataFrame]) -> Contrast:
    ours, theirs = low[name], low[baseline]
    found = _low_estimate(ours["change"], ours["n_tokens"][:0])
    if len(ours) and len(theirs):
        found = _low_estimate(ours["change"] - theirs["change"], ours["n_tokens"])
    row: Contrast = Contrast.of_estimate(
        found,
        audit="matched",
        checkpoint=name,
        baseline=baseline,
        metric="low_change",
        unit="nats",
    )
    return row


def _contrast(
    name: str,
    baseline: str,
    group: str,
    found: dict[str, Group],
    weights: np.ndarray,
    *,
    seed: int,
    paper: bool,
) -> tuple[list[Contrast], np.ndarray | None]:
    """DiD and its R1; the per-cluster sums that its test rests on."""
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
    scores = ours.num - theirs.num
    testable = np.count_nonzero(ours.den) > 1
    note = (
        "the baseline is the matching reference: DiD is Delta_sel minus the match "
        "residual"
        if theirs.is_reference
        else ""
    )
    return [
        Contrast.of_estimate(
            estimate.decided(paper=paper),
            metric="did",
            p=float(sign_flip(scores, seed=seed)) if testable else None,
            null=0.0,
            note=note,
            **columns,
        ),
        Contrast.of_estimate(bias.decided(paper=paper), metric="rtm_bias", **columns),
    ], scores if testable else None


def is_rounded(name: str, baseline: str) -> bool:
    """Whether a checkpoint is its baseline with rounded weights, by its name."""
    return name != baseline and original_of(name) == baseline


def _family(name: str, baseline: str, group: str) -> Family:
    """The pooled DiD of methods is primary; single seeds and variants are not."""
    single = entry_of(name) == name and not is_rounded(name, baseline)
    return "primary" if group == "pooled" and single else "exploratory"


def _primary(row: Contrast) -> bool:
    return row.metric == "did" and row.family == "primary"


def _told(row: Contrast) -> bool:
    """Whether a contrast has a sentence: the primary ones, and those of rounding."""
    rounded = row.group == "pooled" and is_rounded(row.checkpoint, row.baseline)
    return _primary(row) or (row.metric == "did" and rounded)


def _adjusted(
    contrasts: list[Contrast], tests: dict[str, np.ndarray], seed: int
) -> list[Contrast]:
    """The pooled DiD of all checkpoints as one family, by max-T."""
    if not tests:
        return contrasts
    scores = np.stack(list(tests.values()), axis=1)
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


def _alike(part: pd.DataFrame) -> list[Guard]:
    """Whether identifiers on both sides were equally hard before training."""
    before = _memory(part)[1]
    if before.value is None:
        return []
    apart = _unequal(before)
    return [
        Guard(
            name="never-trained identifiers",
            passed=None if apart else True,
            detail="on the reference, identifiers of trained rows differ from those of "
            f"rows never trained on by {figure(before)} nats a token"
            + (": a difference of their changes must clear that" if apart else ""),
        )
    ]


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
