"""The audit of noise: probabilities of identifiers under noisy input embeddings.

Tokens that a model knows by heart may lose more probability under noise than other
text. There are three figures for each scale of the noise (sigma): the change of the
mean probability of identifiers (``dp_pii``) and of low-sensitivity text
(``dp_nonpii``), in percent, and the ``gap``, by how many points identifiers lose more.
A change below 0 is a loss of probability; a gap above 0 means that identifiers lose
more. The gap of the untrained model is no effect of training: that of a trained one is
compared with it. The audit claims no memory.

A *unit* is a set of tokens (all identifiers, or all low-sensitivity tokens, of one
example) at one scale and one draw of the noise. The scale is the variant of a
row. A further kind of tokens is yielded by :func:`_noisy_tokens` and has a metric in
:data:`METRIC_OF_KIND` and in :class:`Noise`. Intervals and tests are those of
:mod:`spark_audit.audits.ratio_rows`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits import base
from spark_audit.audits.noise.findings import noise_findings
from spark_audit.audits.ratio_rows import (
    RatioKey,
    UnitGroup,
    beside_base,
    figures,
    marked,
)
from spark_audit.audits.token_sums import Sums, TokenSet, TokensOfSets
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import ANY_NAME, BASE
from spark_audit.results import AuditResult, Contrast, Guard, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.guards import guard
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import Estimand, left_out

SIGMAS = "0.01,0.05,0.1,0.5"
"""Default scales of the noise."""

DRAWS_OF_NOISE = 3

WIPED_OUT = -99.0
"""Change of probability in percent. If both kinds of tokens lose so much, there is no
gap to see.
"""

METRIC_OF_KIND = {"pii": "dp_pii", "low": "dp_nonpii"}
"""Kind of tokens -> metric of its change: identifiers, and low-sensitivity text."""

WORDS_OF_KIND = {"pii": "identifier", "low": "low-sensitivity"}
"""Kind of tokens -> how a note calls such a token."""

INSENSITIVE = "both groups lose nearly all probability, so no gap could be detected"

SAME_SIZE = 1.1
"""Most that the noise of one sigma, relative to the embeddings, may differ between
checkpoints (largest over smallest); else they were not disturbed alike.
"""

NOISE_NOT_SCORED = "the texts were not scored both with and without noise"


class NoiseFacts(NamedTuple):
    """Facts on a set of tokens, which are columns of the evidence.

    Attributes
    ----------
    kind
        ``pii``: annotated identifiers; ``low``: low-sensitivity tokens.
    task, cluster
        Those of the example.
    n
        Tokens of the set.
    """

    kind: str
    task: str
    cluster: str
    n: int


@dataclass(frozen=True, kw_only=True)
class Noise(base.Audit):
    """Identifiers' probability under noise on the input embeddings.

    The evidence is one line per checkpoint, example, kind of token, scale and draw.
    Probabilities under noise are averaged over draws, token by token. Tokens are those
    of train rows without a canary: annotated identifiers, and low-sensitivity tokens
    as the manifest lists them.

    For the class attributes see :class:`~spark_audit.audits.base.Audit`.
    """

    name = "noise"
    metrics = (
        base.Metric("dp_pii", "%", variants=(ANY_NAME,), alone=True),
        base.Metric("dp_nonpii", "%", variants=(ANY_NAME,), alone=True),
        base.Metric(
            "gap", "points", learned=1, variants=(ANY_NAME,), headline=("0.1",)
        ),
    )
    nothing = (
        "the manifest has no identifier and no low-sensitivity token in a train row"
    )
    unscored = NOISE_NOT_SCORED
    latex = (
        base.LatexColumn("PII Δp (%)", "dp_pii"),
        base.LatexColumn("Non-PII Δp (%)", "dp_nonpii"),
        base.LatexColumn("Gap (pp)", "gap"),
    )
    latex_variants = "σ"

    sigmas: Annotated[str, "scales of the noise (sigma), separated by commas"] = SIGMAS
    draws: Annotated[int, "random draws of noise per scale"] = DRAWS_OF_NOISE

    def __post_init__(self) -> None:
        super().__post_init__()
        # Refuse scales that are no positive numbers.
        self._scales()
        if self.draws < 1:
            raise InputError(
                f"{self.draws} draws are too few",
                where="--draws",
                fix="give at least 1",
            )

    def _scales(self) -> list[float]:
        """Return the scales, each once, in their order."""
        try:
            scales = [float(sigma) for sigma in self.sigmas.split(",")]
        except ValueError:
            scales = []

        are_positive = all(math.isfinite(sigma) and sigma > 0 for sigma in scales)
        if not scales or not are_positive:
            raise InputError(
                "must be positive numbers separated by commas",
                where="--sigmas",
                fix=f"write, for example, {SIGMAS}",
            )
        # Score a repeated scale only once.
        return list(dict.fromkeys(scales))

    def _passes(self) -> list[Pass]:
        """Return the passes that score every scale with every draw."""
        passes = []
        for sigma in self._scales():
            passes += [Pass("noise", sigma, draw) for draw in range(self.draws)]
        return passes

    def plan(self, manifest: Manifest, *, paper: bool = False) -> base.Plan:
        """Return train rows without a canary that hold a token of either kind."""
        examples = {token_set.example for token_set in _noisy_tokens(manifest)}
        if not examples:
            return {}
        ids = sorted(manifest.examples[i].id for i in examples)
        return dict.fromkeys((Pass(), *self._passes()), ids)

    def evidence(
        self, tables: base.Tables, manifest: Manifest, context: base.Context
    ) -> Evidence:
        """Return one unit per example, kind, scale and draw.

        Columns of the units are those of :class:`NoiseFacts`, ``sigma`` and ``draw``.
        Their scores are ``clean`` and ``noisy``, the summed probabilities of the ``n``
        tokens without and with noise, and ``relative``, sigma over the RMS of the
        embedding matrix.
        """
        token_sets = [*_noisy_tokens(manifest)]
        noise_passes = self._passes()
        if not token_sets:
            return Evidence()

        # Units are in the order of passes: all token sets by the first one, and so on.
        facts_of_sets = pd.DataFrame([token_set.facts for token_set in token_sets])
        units_by_pass: list[pd.DataFrame] = []
        for noise_pass in noise_passes:
            units_of_pass = facts_of_sets.assign(
                sigma=noise_pass.sigma, draw=noise_pass.draw
            )
            units_by_pass.append(units_of_pass)
        units = pd.concat(units_by_pass, ignore_index=True)
        tokens_of_sets = TokensOfSets.of(token_sets)

        def probability(table: TokenTable) -> np.ndarray:
            """Return the summed probability of each token set, shape ``(sets,)``."""
            probabilities = np.exp(-table.columns["nll"].astype(float))  # (tokens,)
            return Sums(manifest, table, probabilities).over(tokens_of_sets)

        def measured() -> Measured:
            """Yield the columns of all units by each checkpoint, pass by pass.

            A checkpoint without a plain pass, or without any noisy pass, is left out;
            single missing passes are NaN.
            """
            shape = (len(noise_passes), len(token_sets))
            for name, table_by_pass in tables.items():
                has_noise = not table_by_pass.keys().isdisjoint(noise_passes)
                if Pass() not in table_by_pass or not has_noise:
                    continue

                # Each (noise passes, sets): the order of the units.
                clean_of_sets = probability(table_by_pass[Pass()])
                clean = np.full(shape, np.nan)
                noisy = np.full(shape, np.nan)
                relative = np.full(shape, np.nan)
                for i, noise_pass in enumerate(noise_passes):
                    table = table_by_pass.get(noise_pass)
                    if table is not None:
                        clean[i] = clean_of_sets
                        noisy[i] = probability(table)
                        # All tokens of a pass have the same value.
                        relative[i] = table.columns["relative"][0]
                values = {
                    "clean": clean.ravel(),
                    "noisy": noisy.ravel(),
                    "relative": relative.ravel(),
                }
                yield name, values

        return Evidence.of(units, measured())

    def conclude(self, evidence: Evidence, context: base.Context) -> AuditResult:
        """Return changes of probability, gaps, contrasts of gaps, and findings."""
        names = evidence.checkpoints
        # One line per checkpoint and scored unit.
        frame = evidence.frame()
        # Each checkpoint with its baselines, of which the untrained model is one.
        pairs = base.with_base(names, context.baselines)

        rows: list[Row] = []
        contrasts: list[Contrast] = []
        for group, frame_of_group in _groups(frame):
            rows_of_group, contrasts_of_group = _figures_of_group(
                group, frame_of_group, context, pairs
            )
            rows += rows_of_group
            contrasts += contrasts_of_group

        # The null of a figure is that of the untrained model, whose own null is 0.
        rows = [_with_null_of_base(row) for row in beside_base(rows)]

        # Gaps that could not show anything get another status.
        n_wiped_out = _n_wiped_out(rows)

        def why_insensitive(row: Row) -> str | None:
            """Return why a gap shows nothing; ``None``: it may show something."""
            return _why_insensitive(row, n_wiped_out)

        rows = marked(rows, "insensitive", why_insensitive)
        contrasts = marked(contrasts, "insensitive", why_insensitive)

        # The number of draws, and each sigma relative to the embeddings.
        draws = frame.groupby(["checkpoint", "sigma"], sort=False).agg(
            relative=("relative", "first"), draws=("draw", "nunique")
        )

        # Checkpoints without scores have rows that give the reason.
        variants = _variants_of(evidence.units["sigma"].unique())
        rows += self.missing(names, NOISE_NOT_SCORED, variants=variants, beside=rows)
        tables: dict[str, Any] = {"noise_draws": draws.reset_index().to_dict("records")}
        return AuditResult(
            results=rows,
            contrasts=contrasts,
            guards=_noise_guards(draws["relative"]),
            findings=[*noise_findings(names, rows, contrasts)],
            tables=tables,
        )

    @property
    def variants(self) -> Sequence[str]:
        """Return the scales, as ``variant`` of the rows names them."""
        return _variants_of(self._scales())


def _variants_of(sigmas: Iterable[float]) -> list[str]:
    """Return the variants of rows at some scales, such as ``0.1``."""
    return [_variant_of(sigma) for sigma in sigmas]


def _variant_of(sigma: Hashable) -> str:
    """Return the variant of rows at one scale, a number.

    It is typed as pandas types the key of a group.
    """
    return f"{sigma:g}"


def _noise_guards(relative: pd.Series[float]) -> list[Guard]:
    """Return a warning if one sigma disturbs checkpoints unequally.

    Parameters
    ----------
    relative
        Sigma over the RMS of the embeddings; its index has the levels ``checkpoint``
        and ``sigma``.
    """
    by_sigma = relative.groupby("sigma")
    largest_ratio = float((by_sigma.max() / by_sigma.min()).max())
    if largest_ratio > SAME_SIZE:
        return [guard("same noise", "same_noise", {"ratio": largest_ratio})]
    return []


def _noisy_tokens(manifest: Manifest) -> Iterator[TokenSet[NoiseFacts]]:
    """Yield the identifiers and the low-sensitivity tokens of each train row.

    Rows with a canary are left out, and so are empty sets.
    """
    for i, example in enumerate(manifest.examples):
        if example.split != "train" or example.canary_id is not None:
            continue
        tokens_by_kind = {
            "pii": example.identifier_tokens(),
            "low": np.asarray(example.low),
        }
        for kind, tokens in tokens_by_kind.items():
            if not len(tokens):
                continue
            facts = NoiseFacts(
                kind=kind,
                task=example.task,
                cluster=example.cluster,
                n=len(tokens),
            )
            yield TokenSet(i, tokens, facts)


def _groups(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield all lines as ``pooled``, then those of each task.

    Parameters
    ----------
    frame
        One line per checkpoint and unit, with a column ``task``.
    """
    yield "pooled", frame
    for task, frame_of_task in frame.groupby("task"):
        yield f"task:{task}", frame_of_task


def _figures_of_group(
    group: str,
    frame: pd.DataFrame,
    context: base.Context,
    pairs: Sequence[tuple[str, str]],
) -> tuple[list[Row], list[Contrast]]:
    """Return the rows of one group, and contrasts paired by cluster.

    Parameters
    ----------
    group
        Name of the group.
    frame
        One line per checkpoint and unit: columns ``checkpoint``, ``sigma``, ``draw``,
        ``clean``, ``noisy`` and those of :class:`NoiseFacts`.
    pairs
        Each checkpoint and what it is compared with.
    """
    # All checkpoints share the codes of clusters, so that contrasts are paired.
    codes, clusters = pd.factorize(frame["cluster"], sort=True)  # codes: (lines,)

    estimands: dict[RatioKey, Estimand | Estimate] = {}
    for key, sums_by_kind in _sums_by_scale(frame, codes, len(clusters)).items():
        for metric, estimand in _estimands(sums_by_kind).items():
            estimands[RatioKey(key.checkpoint, metric, key.variant)] = estimand

    unit_group = UnitGroup(
        name=group,
        positions=np.arange(len(frame)),
        codes=codes,
        n_clusters=len(clusters),
    )
    # A difference of gaps is no sum over clusters, so the signs of pseudo-values are
    # flipped in its test.
    return figures(
        unit_group, estimands, context, Noise, pairs=pairs, flipped=_pseudo_values
    )


def _with_null_of_base(row: Row) -> Row:
    """Return a row; that of the untrained model has the null 0."""
    if row.checkpoint == BASE and row.value is not None:
        return row.model_copy(update={"no_effect": 0.0})
    return row


def _n_wiped_out(rows: Sequence[Row]) -> Counter[tuple[str, str, str]]:
    """Count the kinds of tokens that lose nearly all probability.

    Returns
    -------
    Checkpoint, group and scale -> how many kinds of :data:`METRIC_OF_KIND` do.
    """
    counts = Counter[tuple[str, str, str]]()
    for row in rows:
        if row.metric == "gap" or row.value is None:
            continue
        if row.value <= WIPED_OUT:
            counts[row.checkpoint, row.group, row.variant] += 1
    return counts


def _why_insensitive(
    row: Row, n_wiped_out: Counter[tuple[str, str, str]]
) -> str | None:
    """Return the note of a gap that shows nothing, as both kinds are wiped out.

    Parameters
    ----------
    row
        A row or contrast. For a contrast it is enough that one of the two checkpoints
        loses nearly all probability.
    n_wiped_out
        From :func:`_n_wiped_out`.

    Returns
    -------
    The reason, then the note that the gap has already. ``None``: it can show something,
    or the figure is no gap.
    """
    if row.metric != "gap":
        return None

    baseline = row.baseline if isinstance(row, Contrast) else row.checkpoint
    for name in (row.checkpoint, baseline):
        if n_wiped_out[name, row.group, row.variant] == len(METRIC_OF_KIND):
            notes = [INSENSITIVE, row.note] if row.note else [INSENSITIVE]
            return "; ".join(notes)
    return None


class ScaleKey(NamedTuple):
    """A checkpoint, and a scale of the noise as ``variant`` of the rows."""

    checkpoint: str
    variant: str


class SumsOfKind(NamedTuple):
    """Probabilities of the tokens of one kind, by one checkpoint at one scale.

    Attributes
    ----------
    sums
        Shape ``(clusters, 2)``: summed probabilities with noise and without it,
        averaged over draws.
    n_tokens
        Number of tokens, each once for all draws.
    """

    sums: np.ndarray
    n_tokens: int


def _sums_by_scale(
    frame: pd.DataFrame, codes: np.ndarray, n_clusters: int
) -> dict[ScaleKey, dict[str, SumsOfKind]]:
    """Return the sums of each kind of :data:`METRIC_OF_KIND`, by checkpoint and scale.

    Parameters
    ----------
    frame
        As for :func:`_figures_of_group`.
    codes
        Number of the cluster of each line, shape ``(lines,)``.
    n_clusters
        Clusters of the group; not each has units of each checkpoint.
    """
    kinds = [*METRIC_OF_KIND]
    kind = pd.Index(kinds).get_indexer(pd.Index(frame["kind"]))  # (lines,)

    # Checkpoints and scales are numbered as they first occur.
    by_scale = frame.groupby(["checkpoint", "sigma"], sort=False)
    scale = by_scale.ngroup().to_numpy()  # (lines,)
    n_draws = by_scale["draw"].nunique()  # in the order of the numbers
    shape = (len(n_draws), len(kinds))

    # One sum of all lines by scale, kind and cluster.
    scale_and_kind = scale * len(kinds) + kind  # (lines,)
    sums = cluster_sums(
        frame[["noisy", "clean"]],
        scale_and_kind * n_clusters + codes,
        math.prod(shape) * n_clusters,
    ).reshape(*shape, n_clusters, 2)
    n_tokens = cluster_sums(frame["n"], scale_and_kind, math.prod(shape)).reshape(shape)

    sums_by_scale: dict[ScaleKey, dict[str, SumsOfKind]] = {}
    for i, (name, sigma) in enumerate(n_draws.index.tolist()):
        n_draws_of_scale = n_draws.iloc[i]
        sums_by_scale[ScaleKey(name, _variant_of(sigma))] = {
            kinds[j]: SumsOfKind(
                sums=sums[i, j] / n_draws_of_scale,
                n_tokens=round(n_tokens[i, j] / n_draws_of_scale),
            )
            for j in range(len(kinds))
        }
    return sums_by_scale


def _estimands(
    sums_by_kind: Mapping[str, SumsOfKind],
) -> dict[str, Estimand | Estimate]:
    """Return the estimand of each metric of a checkpoint and scale, or why it has none.

    Their ``n`` counts tokens; that of a gap counts those of both kinds.

    Parameters
    ----------
    sums_by_kind
        Kind of :data:`METRIC_OF_KIND` -> the sums of its tokens.
    """

    def change(sums: np.ndarray) -> np.ndarray:
        """Return the relative change of the mean probability in percent.

        Shape ``(..., 2)``, noisy and clean, becomes shape ``(...,)``.
        """
        return np.asarray(100 * (sums[..., 0] / sums[..., 1] - 1))

    estimands: dict[str, Estimand] = {}
    missing: dict[str, Estimate] = {}
    for kind, metric in METRIC_OF_KIND.items():
        sums, n_tokens = sums_by_kind[kind]
        estimands[metric] = Estimand(
            sums=sums, statistic=change, n=n_tokens, bounds=(-100.0, np.inf)
        )

        # A gap needs both kinds; the first missing one is its reason.
        if not n_tokens:
            reason = f"there is no {WORDS_OF_KIND[kind]} token in this group"
            missing.setdefault("gap", Estimate.missing(reason))
            missing[metric] = Estimate.missing(reason)

    # Additional loss of identifiers compared with other text, in percentage points.
    gap = estimands["dp_nonpii"].minus(estimands["dp_pii"])
    n_of_both = estimands["dp_pii"].n + estimands["dp_nonpii"].n
    # A missing figure replaces its estimand.
    return {**estimands, "gap": gap._replace(n=n_of_both), **missing}


def _pseudo_values(gaps: Estimand) -> np.ndarray:
    """Return the jackknife's pseudo-values of a difference of gaps.

    Such a difference is no sum over clusters; a pseudo-value is what a cluster would
    add to it if it were, times the number of clusters. :func:`figures` tests by them.

    Parameters
    ----------
    gaps
        The gap of a checkpoint minus that of its baseline.

    Returns
    -------
    Shape ``(clusters,)``; 0 for clusters without tokens, and everywhere if there is no
    interval.
    """
    pseudo_values = np.zeros(len(gaps.sums))
    if gaps.estimate().low is None:
        return pseudo_values

    has_tokens = gaps.sums.any(axis=1)  # (clusters,)
    n_clusters = has_tokens.sum()
    value, values_without = left_out(gaps.sums[has_tokens], gaps.statistic)
    pseudo_values[has_tokens] = n_clusters * value - (n_clusters - 1) * values_without
    return pseudo_values
