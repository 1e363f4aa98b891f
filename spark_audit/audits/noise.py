"""How noise on the embeddings changes what identifiers cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd

from spark_audit.audits import base
from spark_audit.audits.identifiers import Sums
from spark_audit.audits.ratio_rows import UnitGroup, beside_base, figures, marked
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import ANY_NAME, BASE
from spark_audit.results import AuditResult, Contrast, Finding, Row, grouped
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.findings import Fact
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import Estimand, left_out

SIGMAS, DRAWS = "0.01,0.05,0.1,0.5", 3

WIPED_OUT = -99.0
"""Below this change of both groups, in percent, no gap can show."""

INSENSITIVE = "both groups lose nearly all probability, so no gap could be detected"

SAME_SIZE = 1.1
"""Ratio of relative noise above which checkpoints were not disturbed alike."""

NOISE_NOT_SCORED = "the texts were not scored both with and without noise"


@dataclass(frozen=True, kw_only=True)
class Noise(base.Audit):
    """Identifiers' probability under noise on the input embeddings.

    The evidence is one row per checkpoint, example, kind of token, scale and draw.
    Probabilities under noise are averaged over draws, token by token. Tokens are those
    of train rows without a canary: annotated identifiers, and low-sensitivity tokens
    as the manifest lists them.
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

    sigmas: Annotated[str, "scales of the noise (sigma), separated by commas"] = SIGMAS
    draws: Annotated[int, "random draws of noise per scale"] = DRAWS

    def __post_init__(self) -> None:
        self._scales()
        if self.draws < 1:
            few = f"{self.draws} draws are too few"
            raise InputError(few, where="--draws", fix="give at least 1")

    def _scales(self) -> list[float]:
        """The scales, each once, in their order."""
        try:
            found = [float(part) for part in self.sigmas.split(",")]
        except ValueError:
            found = []
        if not found or not all(math.isfinite(s) and s > 0 for s in found):
            raise InputError(
                "must be positive numbers separated by commas",
                where="--sigmas",
                fix=f"write, for example, {SIGMAS}",
            )
        return list(dict.fromkeys(found))

    def _passes(self) -> list[Pass]:
        """The passes that score every scale with every draw."""
        draws = range(self.draws)
        return [Pass("noise", s, d) for s in self._scales() for d in draws]

    def plan(self, manifest: Manifest, *, paper: bool = False) -> base.Plan:
        """Train rows without a canary that hold a token of either kind."""
        ids = sorted({manifest.examples[i].id for i, *_ in _token_sets(manifest)})
        return dict.fromkeys((Pass(), *self._passes()), ids) if ids else {}

    def evidence(
        self, tables: base.Tables, manifest: Manifest, context: base.Context
    ) -> Evidence:
        """One unit per example, kind, scale and draw.

        ``clean`` and ``noisy`` are the summed probabilities of the ``n`` tokens without
        and with noise, ``relative`` is sigma over the RMS of the embedding matrix.
        """
        sets, passes = [*_token_sets(manifest)], self._passes()
        if not sets:
            return Evidence()
        columns = ["kind", "task", "cluster", "n"]
        facts = pd.DataFrame([unit for *_, unit in sets], columns=columns)
        units = pd.concat(
            [facts.assign(sigma=one.sigma, draw=one.draw) for one in passes],
            ignore_index=True,
        )

        def probability(table: TokenTable) -> np.ndarray:
            """Summed probability of each set."""
            p = np.exp(-table.columns["nll"].astype(float))
            return Sums(manifest, table, p).over(each[:2] for each in sets)

        def measured() -> Measured:
            for name, scored in tables.items():
                if Pass() not in scored or not any(one in scored for one in passes):
                    continue
                clean = probability(scored[Pass()])
                values = np.full((3, len(passes), len(sets)), np.nan)
                for i, wanted in enumerate(passes):
                    if (table := scored.get(wanted)) is not None:
                        values[:2, i] = clean, probability(table)
                        values[2, i] = table.columns["relative"][0]
                names = ("clean", "noisy", "relative")
                yield name, dict(zip(names, values.reshape(3, -1), strict=True))

        return Evidence.of(units, measured())

    def conclude(self, evidence: Evidence, context: base.Context) -> AuditResult:
        rows, contrasts = list[Row](), list[Contrast]()
        frame, names = evidence.frame(), evidence.checkpoints
        pairs, tasks = base.with_base(names, context.baselines), frame.groupby("task")
        for group, part in [("pooled", frame), *((f"task:{k}", p) for k, p in tasks)]:
            codes, labels = pd.factorize(part["cluster"], sort=True)
            coded = part.assign(code=codes)
            scales = coded.groupby(["checkpoint", "sigma"], sort=False)
            sums = {
                (str(name), metric, f"{sigma:g}"): one
                for (name, sigma), own in scales
                for metric, one in _estimands(own, len(labels)).items()
            }
            where = UnitGroup(group, np.arange(len(part)), codes, len(labels))
            more = figures(
                where, sums, context, Noise, pairs=pairs, flipped=_pseudo_values
            )
            rows += more[0]
            contrasts += more[1]
        # The untrained model's own gap is no effect of training.
        rows = [
            row.model_copy(update={"null": 0.0})
            if row.checkpoint == BASE and row.value is not None
            else row
            for row in beside_base(rows)
        ]
        # Kinds of tokens that lose nearly all probability at a scale.
        wiped = Counter(
            (row.checkpoint, row.group, row.of)
            for row in rows
            if row.metric != "gap" and row.value is not None and row.value <= WIPED_OUT
        )

        def blind(row: Row) -> str | None:
            """Why a gap shows nothing: on some side both groups lose nearly all."""
            sides = (row.checkpoint, getattr(row, "baseline", row.checkpoint))
            lost = any(wiped[side, row.group, row.of] > 1 for side in sides)
            if row.metric != "gap" or not lost:
                return None
            return "; ".join(filter(None, (INSENSITIVE, row.note)))

        rows = marked(rows, "insensitive", blind)
        contrasts = marked(contrasts, "insensitive", blind)
        draws = frame.groupby(["checkpoint", "sigma"], sort=False).agg(
            relative=("relative", "first"), draws=("draw", "nunique")
        )
        relative = draws["relative"].groupby("sigma")
        worst = float((relative.max() / relative.min()).max())
        tables: dict[str, Any] = {"noise_draws": draws.reset_index().to_dict("records")}
        unlike = [base.guard("same noise", "same_noise", {"ratio": worst})]
        known = [f"{sigma:g}" for sigma in evidence.units["sigma"].unique()]
        rows += self.missing(names, NOISE_NOT_SCORED, variants=known, beside=rows)
        return AuditResult(
            rows=rows,
            contrasts=contrasts,
            guards=unlike if worst > SAME_SIZE else [],
            findings=[*_findings(names, rows, contrasts)],
            tables=tables,
        )

    @property
    def variants(self) -> Sequence[str]:
        """The scales."""
        return [f"{sigma:g}" for sigma in self._scales()]


def _token_sets(
    manifest: Manifest,
) -> Iterator[tuple[int, np.ndarray, tuple[str, str, str, int]]]:
    """Place of an example, tokens, and facts of the unit, of all that is averaged."""
    for i, row in enumerate(manifest.examples):
        if row.split == "train" and row.canary_id is None:
            for kind, held in (("pii", row.identifier_tokens()), ("low", row.low)):
                if len(held):
                    own = (kind, row.task, row.cluster, len(held))
                    yield i, np.asarray(held), own


def _estimands(part: pd.DataFrame, size: int) -> dict[str, Estimand | Estimate]:
    """What each metric of a checkpoint and scale rests on, or why it has no value.

    Sums are over ``size`` clusters of noisy and clean probabilities, of identifiers and
    of low-sensitivity tokens; under noise they are means over draws.
    """

    def change(sums: np.ndarray) -> np.ndarray:
        """Relative change of the mean probability in percent."""
        return np.asarray(100 * (sums[..., 0] / sums[..., 1] - 1))

    draws = part["draw"].nunique()
    found, missing = dict[str, Estimand](), dict[str, Estimate]()
    for kind, metric, name in (
        ("pii", "dp_pii", "identifier"),
        ("low", "dp_nonpii", "low-sensitivity"),
    ):
        kept = part[part["kind"] == kind]
        sums = cluster_sums(kept[["noisy", "clean"]] / draws, kept["code"], size)
        count = round(kept["n"].sum() / draws)
        found[metric] = Estimand(sums, change, count, (-100.0, np.inf))
        if not count:
            lost = Estimate.missing(f"there is no {name} token in this group")
            missing = {"gap": lost, **missing, metric: lost}
    gap = found["dp_nonpii"].minus(found["dp_pii"])
    both = sum(one.n for one in found.values())
    return {**found, "gap": gap._replace(n=both), **missing}


def _pseudo_values(gaps: Estimand) -> np.ndarray:
    """The jackknife's pseudo-values of a difference: a gap is no sum over clusters."""
    found, held = np.zeros(len(gaps.sums)), gaps.sums.any(axis=1)
    if gaps.estimate().low is not None:
        value, values = left_out(gaps.sums[held], gaps.statistic)
        found[held] = held.sum() * value - (held.sum() - 1) * values
    return found


def _findings(
    names: Sequence[str], rows: Sequence[Row], contrasts: Sequence[Contrast]
) -> Iterator[Finding]:
    """Findings on probabilities under noise, their gaps, and changes of both."""
    for name in names:
        pooled = [r for r in rows if r.checkpoint == name and r.group == "pooled"]
        pii, other, gaps = (
            [row for row in pooled if row.metric == metric and row.value is not None]
            for metric in ("dp_pii", "dp_nonpii", "gap")
        )
        if not (pii or other):
            yield Finding.not_tested(
                "noise", "noise.missing", checkpoint=name, reason=pooled[0].note
            )
            continue

        sigmas = list(dict.fromkeys(row.of for row in pooled))
        says = "noise.probabilities" if pii else "noise.probabilities_of_other"
        further = []
        if len(pii) > 1:
            further.append("noise.identifiers_further")
        if pii and other:
            further.append("noise.other")
        elif len(other) > 1:
            further.append("noise.other_further")
        yield Finding.on(
            pooled[0],
            "moved",
            says,
            facts={"pii": pii, "other": other, "sigmas": sigmas},
            further=further,
        )
        if gaps:
            yield _gap_finding(gaps, is_trained=name != BASE)

    of_whole = (row for row in contrasts if row.group == "pooled")
    changes = grouped(of_whole, lambda row: (row.checkpoint, row.baseline))
    for (name, baseline), rows_of_pair in changes.items():
        yield _change_finding(name, baseline, rows_of_pair)

    if BASE not in names:
        yield Finding.not_tested("noise", "noise.no_null")


def _gap_finding(gaps: Sequence[Row], *, is_trained: bool) -> Finding:
    """Return the finding on the gaps of one checkpoint, one gap for each scale.

    Where the untrained model has a gap, too, that of a trained one is compared with it,
    and not with 0.
    """
    sigmas = _sigmas_by_outcome(gaps)
    facts: dict[str, Fact] = {"gaps": gaps, "trained": is_trained}
    facts |= {f"{outcome}_at": at for outcome, at in sigmas.items()}

    further = []
    if len(gaps) > 1:
        further.append("noise.gaps_further")
    if is_trained and any(gap.null is not None for gap in gaps):
        further.append("noise.untrained")
    else:
        for outcome in ("more", "less", "alike"):
            if sigmas[outcome]:
                further.append(f"noise.lose_{outcome}")
    if sigmas["unknown"]:
        further.append("noise.not_estimable")
    if sigmas["insensitive"]:
        further.append("noise.insensitive")
    return Finding.on(gaps[0], "moved", "noise.gaps", facts=facts, further=further)


def _change_finding(name: str, baseline: str, changes: Sequence[Contrast]) -> Finding:
    """Return the finding on the changes of the gap, one change for each scale."""
    sigmas = _sigmas_by_outcome(changes)
    facts: dict[str, Fact] = {"baseline": baseline, "changes": changes}
    facts |= {f"{outcome}_at": at for outcome, at in sigmas.items()}

    says = "noise.changes"
    if changes[0].value is None:
        says = "noise.changes_missing"
    further = []
    if len(changes) > 1:
        further.append("noise.changes_further")
    if sigmas["alike"]:
        further.append("noise.not_detected")
    if sigmas["unknown"]:
        further.append("noise.not_estimable")
    if sigmas["insensitive"]:
        further.append("noise.insensitive")
    return Finding(
        audit="noise",
        checkpoint=name,
        claim="moved",
        says=says,
        further=further,
        facts=facts,
    )


def _sigmas_by_outcome(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the scales of rows by where their intervals lie.

    ``insensitive``: both kinds of tokens lose nearly all probability. ``unknown``:
    there is no interval. ``alike``: it contains 0. ``more`` and ``less``: it lies above
    0, and below.
    """
    sigmas: dict[str, list[str]] = {
        "insensitive": [],
        "unknown": [],
        "alike": [],
        "more": [],
        "less": [],
    }
    for row in rows:
        if row.status == "insensitive":
            outcome = "insensitive"
        elif row.value is None or row.low is None or row.high is None:
            outcome = "unknown"
        elif row.low <= 0 <= row.high:
            outcome = "alike"
        else:
            outcome = "more" if row.value > 0 else "less"
        sigmas[outcome].append(row.of)
    return sigmas
