"""Likelihood of identifiers against equally difficult controls.

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
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np

from spark_audit.audits.base import Audit, Context, Plan, Tables
from spark_audit.audits.identifier_facts import Moved
from spark_audit.audits.matched.changes import (
    all_occurrences,
    low_drift,
    memory_contrasts,
    memory_rows,
)
from spark_audit.audits.matched.contrasts import (
    REFERENCE,
    adjusted,
    by_group,
    contrast_of,
    missing_rows,
    own_contrasts,
    row_of,
)
from spark_audit.audits.matched.matched_claims import contrast_findings, findings
from spark_audit.audits.matched.matched_guards import (
    alike_guard,
    pair_guards,
    reproduced_guard,
)
from spark_audit.audits.matched.matched_spans import span_evidence
from spark_audit.audits.matched.rematch import (
    diagnostics,
    placebo_table,
    sensitivity_table,
)
from spark_audit.audits.metric import Metric
from spark_audit.audits.spans import groups, plan_of_identifiers
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE, entry_of, listed
from spark_audit.results import AuditResult, Estimate
from spark_audit.results.evidence import Evidence

_change = partial(Metric, unit="nats", panel="changes")
_level = partial(Metric, unit="nats", bounds=(0.0, np.inf), learned=-1)
_delta = partial(Metric, unit="nats", learned=-1, glance=("",), headline=("",))
METRICS = (
    _delta("memory", panel="changes", variants=("", "trend"), counted=("",)),
    _change(
        "pii_change",
        partner="memory",
        learned=-1,
        variants=("trained", "never-trained"),
    ),
    _change("kind"),
    _change("specific", partner="kind"),
    _change("low_change"),
    _level("nll_pii"),
    _level("nll_control"),
    _delta(
        "delta_sel",
        variants=("", "change", "span-weighted", "source-weighted"),
        hidden=("span-weighted", "source-weighted"),
        counted=("change",),
        glance=("change",),
        headline=("change",),
    ),
    Metric("rtm_bias", "nats", variants=("", "change")),
    _delta("did"),
    Metric("did_alike", "nats"),
)


NOTHING = "the manifest has no identifier to audit"
FEWEST_REPLICATES = 100


@dataclass(frozen=True, kw_only=True)
class Matched(Audit):
    """Likelihood of identifiers compared with equally difficult controls.

    The scores of a checkpoint named ``base`` are compared with the reference scores of
    the manifest. ``null`` names ordinary training runs: their spread around the
    baseline replaces the tolerance for unequal drift. ``replicates`` of 0 means 9,999,
    or 2,000 in the preset ``paper``.
    """

    name = "matched"
    metrics = METRICS
    nothing = NOTHING
    wide = True
    file = "spans.parquet"
    covers = ("memory", "clusters")
    memory = True
    unit = "nats per token"
    frameworks = "AITG-DAT-01"

    replicates: Annotated[
        int, "bootstrap replicates of the percentile interval; 0: as in the preset"
    ] = 0
    placebo_draws: Annotated[int, "draws of the placebo distribution; 0: none"] = 200
    rematched: Annotated[
        bool, "repeat the matching with other calipers and distances"
    ] = True
    null: Annotated[
        str | None,
        "NAME,NAME,...: ordinary training runs; only a DiD larger than theirs counts",
    ] = None

    def __post_init__(self) -> None:
        if self.replicates and self.replicates < FEWEST_REPLICATES:
            raise InputError(
                f"{self.replicates} replicates give no interval",
                where="--replicates",
                fix=f"give at least {FEWEST_REPLICATES}, or 0 for the preset's number",
            )
        if self.placebo_draws < 0:
            raise InputError(
                "must not be negative", where="--placebo-draws", fix="give 0 for none"
            )

    def check_names(self, names: Sequence[str]) -> None:
        if names:
            listed(self.null, names, where="--null")

    def replicates_of(self, preset: str) -> int:
        return self.replicates or super().replicates_of(preset)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        # Unmatched spans bear on ``rtm_bias`` too.
        return plan_of_identifiers(manifest)

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        return span_evidence(
            manifest,
            tables,
            rematched=self.rematched,
            draws=self.placebo_draws,
            seed=context.seed,
        )

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        every = evidence.units
        units, reference = every[every["split"] != ""], every["ref_sum"].to_numpy()
        nll, baselines = _with_entries(evidence, context.baselines)
        names, whole = list(nll), [*groups(every)]
        pairs = by_group(whole, nll, replace(context, baselines=baselines))
        rows, references = pairs.rows, pairs.references
        if not any(row.group == "pooled" for row in rows):
            rows = [*missing_rows(names, "pooled"), *rows]
        changes = {name: sums - reference for name, sums in nll.items()}
        sides = all_occurrences(units)
        tested: dict[str, dict[str, Moved]] = {}
        for name, change in changes.items():
            made, tested[name] = memory_rows(
                name, change, sides, reference=name in references, seed=context.seed
            )
            rows += made
        train = units[units["split"] == "train"]
        low = train[train["role"] == "low"]
        for name, change in changes.items():
            drift = Estimate.missing(REFERENCE)
            if name not in references:
                drift = low_drift(low, change)
            rows.append(row_of(drift, checkpoint=name, metric="low_change"))
        contrasts, apart = pairs.contrasts, dict[str, np.ndarray]()
        for name, other in baselines.items():
            apart[name] = nll[name] - nll[other]
            drift = low_drift(low, apart[name])
            pair = {"checkpoint": name, "baseline": other}
            contrasts.append(contrast_of(drift, metric="low_change", **pair))
            contrasts += memory_contrasts(name, other, apart[name], sides)
        for name, other in baselines.items():
            moved = train.assign(apart=apart[name][train.index])
            contrasts += own_contrasts(name, other, moved)
        contrasts = adjusted(contrasts, pairs.tests, context.seed)
        pooled = whole[0] if whole and whole[0].name == "pooled" else None
        tables = {"matched_diagnostics": diagnostics(every, pooled, nll)}
        if evidence.facts["rematched"]:
            tables["matched_sensitivity"] = sensitivity_table(evidence)
        if evidence.facts["placebo"]:
            tables["matched_placebo"] = placebo_table(evidence, pooled)
        entries = {entry_of(name) for name in names if entry_of(name) != name}
        null = listed(self.null, names, where="--null")
        return AuditResult(
            rows=rows,
            contrasts=contrasts,
            guards=[
                *([reproduced_guard(units, changes[BASE])] if BASE in changes else []),
                *pair_guards(train),
                *alike_guard(sides[0]),
            ],
            findings=[
                *findings(rows, units, sides[0], changes, references, tested),
                *contrast_findings(rows, contrasts, entries, null),
            ],
            tables=tables,
        )


def _with_entries(
    evidence: Evidence, baselines: Mapping[str, str]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """NLL by checkpoint, and the mean of each method's replicates under its own name.

    Delta_sel and DiD are linear in a checkpoint's sums, so their interval over sources
    for the mean of several seeds is that of the averaged sums.
    """
    nll = dict(zip(evidence.checkpoints, evidence.values["nll_sum"], strict=True))
    members: dict[str, list[str]] = {}
    for name in nll:
        if (entry := entry_of(name)) != name:
            members.setdefault(entry, []).append(name)
    pairs = dict(baselines)
    for entry, names in members.items():
        nll[entry] = np.mean([nll[name] for name in names], axis=0)
        if (other := baselines.get(names[0])) is not None:
            pairs[entry] = entry_of(other)
    return nll, pairs
