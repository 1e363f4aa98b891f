"""The audit of difficulty-matched pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
import pandas as pd

from spark_audit.audits.base import (
    Audit,
    Context,
    LatexColumn,
    Metric,
    Plan,
    Tables,
)
from spark_audit.audits.identifiers import (
    Sums,
    plan_of_identifiers,
)
from spark_audit.audits.matched import findings, memory, pairs
from spark_audit.audits.matched.guards import FEWEST_REPLICATES, _guards
from spark_audit.audits.matched.sensitivity import (
    PAIRS,
    VARIANTS,
    other_pairs,
    placebo_table,
    sensitivity_table,
)
from spark_audit.audits.matched.units import (
    ROW,
    Moved,
    UnitScores,
    _filled,
    _spans,
    _texts,
)
from spark_audit.audits.nll import NLL
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import entry_of, listed
from spark_audit.results import AuditResult, grouped
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.table import Pass

_change = partial(Metric, unit="nats", panel="changes")

_level = partial(Metric, unit="nats", bounds=(0.0, np.inf), learned=-1)

_delta = partial(Metric, unit="nats", learned=-1, glance=("",), headline=("",))


@dataclass(frozen=True, kw_only=True)
class Matched(Audit):
    """Likelihood of identifiers compared with equally difficult controls.

    The scores of a checkpoint named ``base`` are compared with the reference scores of
    the manifest. ``null`` names ordinary training runs: their spread around the
    baseline replaces the tolerance for unequal drift. ``replicates`` of 0 means 9,999,
    or 2,000 in the preset ``paper``.
    """

    name = "matched"
    metrics = (
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
        _change("returned", learned=-1, variants=("", "after")),
    )
    nothing = "the manifest has no identifier to audit"
    wide = True
    file = "spans.parquet"
    sees_relearned_base = True
    covers = ("memory", "clusters")
    attacks_identifiers = True
    strongest_claim = "memory"
    memory = True
    memory_metric = "memory"
    # Memory first: the others move in any fine-tuning. Delta_sel has no better side, as
    # a model that leaks, or one that is broken, may have the largest.
    latex = (
        LatexColumn("Memory ≈0", "memory"),
        LatexColumn("PII NLL", "nll_pii"),
        LatexColumn("Matched NLL", "nll_control"),
        LatexColumn("Δsel", "delta_sel"),
        LatexColumn("Δsel change", "delta_sel", "change"),
    )
    unit = "nats per token"

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
            few = f"{self.replicates} replicates give no interval"
            fix = f"give at least {FEWEST_REPLICATES}, or 0 for the preset's number"
            raise InputError(few, where="--replicates", fix=fix)
        if self.placebo_draws < 0:
            wrong = "must not be negative"
            raise InputError(wrong, where="--placebo-draws", fix="give 0 for none")

    @classmethod
    def whole_of(cls, metric: str, of: str) -> tuple[str, str, str] | None:
        """``nll_pii`` is of identifiers with a control, ``nll`` of all."""
        return (NLL.name, "nll", "pii") if metric == "nll_pii" else None

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
        """What the matched audit concludes from.

        Roles: ``pii`` and ``control`` (the two sides of ``pair``), ``unmatched`` (PII
        without a control), ``window`` (eligible non-PII text of a span's length, the
        pool that regression to the mean is estimated on) and ``low`` (the tokens of low
        sensitivity of an example, one row an example). ``nll_sum`` is the checkpoint's,
        ``ref_sum`` the reference's, both in nats. ``dose`` is the number of trained
        rows that the identifier's string stands in, whichever row it is read in, and
        ``trained`` 1 where that is any; ``supervision`` is what training did with it,
        where that is known; ``form``, ``cue``, ``stratum`` and ``text_auc`` are those
        of :class:`~spark_audit.audits.identifiers.Facts`, 0 for any other text.
        ``alike`` rows hold the eligible tokens of one class (``type``: see
        :class:`~spark_audit.manifest.schema.ManifestExample`) of an example, and the
        columns of :data:`~spark_audit.audits.matched.units.CLASS_NAMES` how many tokens
        of each an identifier has. Without a ``split`` are ``rematched`` and
        ``placebo``, whose sums are those of identifiers minus those of controls: see
        :func:`~spark_audit.audits.matched.sensitivity.other_pairs`.
        """
        scores = {n: passes[Pass()] for n, passes in tables.items() if Pass() in passes}
        spans = pd.DataFrame(_spans(manifest) if scores else ())
        if spans.empty:
            return Evidence()
        spans = spans.sort_values("pair", kind="stable")  # the others behind all pairs
        at = spans[["index", "start", "n_tokens"]].to_numpy().T
        texts = [*_texts(manifest)]
        sets = [(text["index"], text.pop("tokens")) for text in texts]
        variants = VARIANTS if self.rematched else {}
        others, further_pairs = other_pairs(
            manifest, variants, draws=self.placebo_draws, seed=context.seed
        )
        rows = [(e.id, e.cluster, e.task, e.split) for e in manifest.examples]
        known = pd.DataFrame(rows, columns=ROW, dtype=object)
        own = pd.concat([spans, pd.DataFrame(texts)]).join(known, on="index")
        units = _filled(pd.concat([own, others], ignore_index=True))

        def summed(nll: Sums) -> np.ndarray:
            row, ours, theirs, size = further_pairs[PAIRS[:4]].to_numpy().T
            apart = nll(row, ours, size) - nll(row, theirs, size)
            apart = np.bincount(further_pairs["unit"], apart, len(others))
            return np.concatenate([nll(*at), nll.over(sets), apart])

        units["ref_sum"] = summed(Sums(manifest))
        sums = ((n, {"nll_sum": summed(Sums(manifest, x))}) for n, x in scores.items())
        return Evidence.of(units, sums)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        nll, baselines = _with_entries(evidence, context.baselines)
        known = UnitScores(evidence.units, nll, replace(context, baselines=baselines))
        rows, contrasts = pairs.pair_figures(known)
        tested: dict[str, dict[str, Moved]] = {}
        for name in nll:
            made, tested[name] = memory.memory_rows(known, name)
            rows += made
        for pair in baselines.items():
            contrasts += pairs.contrasts_of(known, *pair)
        roles, tables = {*evidence.units["role"]}, {}
        if "rematched" in roles:
            tables["matched_sensitivity"] = [*sensitivity_table(evidence)]
        if "placebo" in roles:
            tables["matched_placebo"] = [*placebo_table(evidence)]
        told = [*findings.findings(known, rows, tested)]
        for back, after, finding in findings.returned(known, [*told]):
            contrasts.append(back)
            rows.append(after)
            if finding is not None:
                told.append(finding)
        if contrasts:
            entries = {*nll}.difference(evidence.checkpoints)
            null = listed(self.null, [*nll], where="--null")
            told += findings.contrast_findings(rows, contrasts, entries, null)
        return AuditResult(rows, contrasts, [*_guards(known)], told, tables)


def _with_entries(
    evidence: Evidence, baselines: Mapping[str, str]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """NLL by checkpoint, and the mean of each method's replicates under its own name.

    Delta_sel and DiD are linear in a checkpoint's sums, so their interval over sources
    for the mean of several seeds is that of the averaged sums.
    """
    nll = dict(zip(evidence.checkpoints, evidence.values["nll_sum"], strict=True))
    baseline_of = dict(baselines)
    replicates = (name for name in nll if entry_of(name) != name)
    for entry, names in grouped(replicates, entry_of).items():
        nll[entry] = np.mean([nll[name] for name in names], axis=0)
        if (other := baselines.get(names[0])) is not None:
            baseline_of[entry] = entry_of(other)
    return nll, baseline_of
