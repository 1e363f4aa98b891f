"""The audit of difficulty-matched pairs.

``evidence`` sums the NLL of all units (identifiers, their controls and other text) by
each checkpoint, and ``conclude`` makes figures, findings, guards and tables of these
sums alone. Each of the four is made in another file of this folder.

A new metric goes into ``Matched.metrics``; its figure into ``pairs.py`` (from pairs) or
``memory.py`` (from trained and held-out identifiers); its words into
``sentences/en/metrics.toml`` and ``definitions.toml``. A new option is an annotated
field of :class:`Matched`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

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
from spark_audit.audits.groups.column import (
    check_groups,
    files_of_groups,
    group_column,
    groups_of_units,
    with_column,
)
from spark_audit.audits.groups.field import ByOption
from spark_audit.audits.identifiers import plan_of_identifiers
from spark_audit.audits.matched import pairs
from spark_audit.audits.matched.by_group import IdentifierGroups
from spark_audit.audits.matched.did import did_findings
from spark_audit.audits.matched.findings import findings_by_checkpoint
from spark_audit.audits.matched.guards import FEWEST_REPLICATES, matching_guards
from spark_audit.audits.matched.memory import memory_figures
from spark_audit.audits.matched.planned import planned_effects
from spark_audit.audits.matched.returns import returns
from spark_audit.audits.matched.sensitivity import (
    VARIANTS,
    OtherPairs,
    other_pairs,
    placebo_table,
    sensitivity_table,
)
from spark_audit.audits.matched.unit_records import (
    ROW_COLUMNS,
    complete,
    range_units,
    token_set_units,
)
from spark_audit.audits.matched.units import MemoryTest, UnitScores
from spark_audit.audits.nll import NLL
from spark_audit.audits.planned_effects import AuditSizes, PlannedEffect
from spark_audit.audits.token_sums import Sums, TokensOfSets
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import entry_of, listed
from spark_audit.results import AuditResult, grouped
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass

# Three kinds of metrics: changes of the NLL, mean NLL, and the differences that
# conclusions rest on. ``learned=-1``: a model that learned identifiers has lower
# values. For the other arguments see `spark_audit/audits/metrics.py`.
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
    group_rule = ("memory", "memory", "")
    # Memory comes first, since any fine-tuning moves the others. Delta_sel has no
    # better side: a leaking model or a broken one may have the largest value.
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
    by: ByOption = None

    def __post_init__(self) -> None:
        """Refuse options without a meaning, when the command line is read."""
        super().__post_init__()
        files_of_groups(self.by)
        if self.replicates and self.replicates < FEWEST_REPLICATES:
            # Fewer replicates have no 2.5% quantile.
            raise InputError(
                f"{self.replicates} replicates give no interval",
                where="--replicates",
                fix=f"give at least {FEWEST_REPLICATES}, or 0 for the preset's number",
            )
        if self.placebo_draws < 0:
            raise InputError(
                "must not be negative",
                where="--placebo-draws",
                fix="give 0 for none",
            )

    @classmethod
    def whole_of(cls, metric: str, of: str) -> tuple[str, str, str] | None:
        """Return ``nll`` of all identifiers for ``nll_pii``, which needs a control.

        See :meth:`spark_audit.audits.base.Audit.whole_of`.
        """
        return (NLL.name, "nll", "pii") if metric == "nll_pii" else None

    @classmethod
    def planned_effects(
        cls, sizes: AuditSizes, *, significance: float
    ) -> Sequence[PlannedEffect]:
        """Return what its tests would detect, from ``planned.py``."""
        return planned_effects(sizes, significance=significance)

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse ``null`` if it names none of the checkpoints, before any scoring."""
        if names:
            listed(self.null, names, where="--null")

    @property
    def inputs(self) -> list[Path]:
        """Return the file of groups, if there is one."""
        return files_of_groups(self.by)

    def check_manifest(self, manifest: Manifest) -> None:
        """Refuse a field that cannot group the rows, before any scoring."""
        check_groups(self.by, manifest)

    def replicates_of(self, preset: str) -> int:
        """Return the bootstrap replicates: those given, or the preset's."""
        return self.replicates or super().replicates_of(preset)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Return all rows with an identifier, matched or not."""
        # Unmatched spans change ``rtm_bias``, too.
        return plan_of_identifiers(manifest)

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return the units of the matched audit, and their summed NLL by checkpoint.

        Roles of units:

        =============  ===============================================================
        ``pii``        identifier with a control, of the same ``pair``
        ``control``    its control, with the identifier's facts
        ``unmatched``  identifier without a control
        ``window``     eligible non-PII text of an identifier's length: the pool that
                       regression to the mean is estimated on
        ``low``        tokens of low sensitivity of a row
        ``alike``      eligible tokens of one class (``type``) of a row: see
                       :class:`~spark_audit.manifest.example_schema.ManifestExample`
        ``rematched``  pair under another matching (``type``)
        ``placebo``    all pairs of one draw (``start``)
        =============  ===============================================================

        The last two lack a ``split``. Their sums are sums of identifiers minus sums of
        controls: see :func:`~spark_audit.audits.matched.sensitivity.other_pairs`.

        Columns beside the role:

        ``nll_sum``, ``ref_sum``
            Summed NLL of the checkpoint and of the reference, nats.
        ``dose``
            Number of trained rows that contain the identifier's string, whatever row
            the unit is in; ``trained`` is 1 if there are any.
        ``supervision``
            What training did with it, where that is known.
        ``form``, ``cue``, ``stratum``, ``text_auc``
            Those of :class:`~spark_audit.audits.identifiers.Facts`, 0 for other text.
        ``digits``, ``capitals``, ``letters``, ``marks``
            Number of the identifier's tokens of each class.
        ``by FIELD``
            Group of the row, where the option ``by`` names a field.
        """
        # Only checkpoints with a scored plain pass.
        score_tables = {
            name: passes[Pass()] for name, passes in tables.items() if Pass() in passes
        }
        if not score_tables:
            return Evidence()

        ranges = pd.DataFrame(range_units(manifest))
        if ranges.empty:
            return Evidence()

        # Units without a pair come after all pairs (NaN sorts last).
        ranges = ranges.sort_values("pair", kind="stable")
        token_sets = [*token_set_units(manifest)]
        extra_pairs = other_pairs(
            manifest,
            VARIANTS if self.rematched else {},
            draws=self.placebo_draws,
            seed=context.seed,
        )

        # The tokens of all units, in the order of the evidence.
        tokens = _UnitTokens(
            examples=ranges["index"].to_numpy(),
            starts=ranges["start"].to_numpy(),
            lengths=ranges["n_tokens"].to_numpy(),
            token_sets=TokensOfSets.of(token_sets),
            extra_pairs=extra_pairs,
        )

        # Their facts, in the same order.
        facts_of_sets = pd.DataFrame([token_set.facts for token_set in token_sets])
        units_of_rows = _with_facts_of_rows(
            pd.concat([ranges, facts_of_sets]), manifest
        )
        units = pd.concat([units_of_rows, extra_pairs.units], ignore_index=True)
        units = complete(units)
        units["ref_sum"] = tokens.sums(Sums(manifest))
        groups = group_column(self.by, manifest, units["example"])
        units = with_column(units, groups)

        def measured() -> Measured:
            """Yield the summed NLL of all units by each checkpoint, nats."""
            for name, table in score_tables.items():
                yield name, {"nll_sum": tokens.sums(Sums(manifest, table))}

        return Evidence.of(units, measured(), groups.facts if groups else None)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return figures, guards, findings and tables from the evidence alone."""
        nll, baselines = _with_means_of_seeds(evidence, context.baselines)
        scores = UnitScores(evidence.units, nll, replace(context, baselines=baselines))

        # Figures of pairs, of memory, and against the baseline.
        rows, contrasts = pairs.pair_figures(scores)
        tests: dict[str, dict[str, MemoryTest]] = {}
        for name in nll:
            memory = memory_figures(scores, name)
            rows += memory.rows
            tests[name] = memory.tests  # by group of identifiers
        for name, baseline in baselines.items():
            contrasts += pairs.contrasts_with_baseline(scores, name, baseline)

        # Tables that show how much depends on the matching.
        tables: dict[str, list[dict[str, Any]]] = {}
        roles = {*evidence.units["role"]}
        if "rematched" in roles:
            tables["matched_sensitivity"] = [*sensitivity_table(evidence)]
        if "placebo" in roles:
            tables["matched_placebo"] = [*placebo_table(evidence)]

        # Findings on single checkpoints come first, since findings on returns use them.
        concluded = [*findings_by_checkpoint(scores, rows, tests)]
        for returned in [*returns(scores, rows, concluded)]:
            contrasts.append(returned.change)
            rows.append(returned.after)
            if returned.finding is not None:
                concluded.append(returned.finding)

        # The DiD of all methods are compared with those of ordinary runs. Methods with
        # seeds are the names that the evidence lacks.
        if contrasts:
            replicated = {*nll}.difference(evidence.checkpoints)
            ordinary = listed(self.null, [*nll], where="--null")
            concluded += did_findings(rows, contrasts, replicated, ordinary)

        unit_groups = groups_of_units(evidence)
        if unit_groups is not None:
            identifier_groups = IdentifierGroups.of(scores, unit_groups)
            for name in nll:
                group_rows, group_findings = identifier_groups.figures(name)
                rows += group_rows
                concluded += group_findings

        return AuditResult(
            results=rows,
            contrasts=contrasts,
            guards=[*matching_guards(scores)],
            findings=concluded,
            tables=tables,
        )


class _UnitTokens(NamedTuple):
    """The tokens of all units, in the order of the evidence.

    Attributes
    ----------
    examples, starts, lengths
        Shape ``(ranges,)`` each: index of the example, of the first token in it, and
        number of tokens of units that are ranges.
    token_sets
        The tokens of units that are sets of tokens, which come next.
    extra_pairs
        Pairs of other matchings, whose units come last.
    """

    examples: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    token_sets: TokensOfSets
    extra_pairs: OtherPairs

    def sums(self, nll: Sums) -> np.ndarray:
        """Return the summed NLL of all units, shape ``(units,)``, nats.

        Parameters
        ----------
        nll
            Returns the summed NLL of tokens by one checkpoint, or by the reference.
        """
        of_ranges = nll(self.examples, self.starts, self.lengths)
        of_token_sets = nll.over(self.token_sets)
        of_extra_pairs = self.extra_pairs.sums(nll)
        return np.concatenate([of_ranges, of_token_sets, of_extra_pairs])


def _with_facts_of_rows(units: pd.DataFrame, manifest: Manifest) -> pd.DataFrame:
    """Return units with the columns of their row, :data:`ROW_COLUMNS`.

    Parameters
    ----------
    units
        Column ``index``: the index of the example in ``manifest.examples``.
    """
    facts_of_rows = pd.DataFrame(
        [
            (example.id, example.cluster, example.task, example.split)
            for example in manifest.examples
        ],
        columns=ROW_COLUMNS,
        dtype=object,
    )
    return units.join(facts_of_rows, on="index")


class _ScoresByMethod(NamedTuple):
    """Scores of checkpoints (single seeds are some) and of methods with seeds.

    ``nll`` maps a name to the summed NLL of all units, shape ``(units,)``, nats;
    ``baselines`` maps a name to the one that it is compared with.
    """

    nll: dict[str, np.ndarray]
    baselines: dict[str, str]


def _with_means_of_seeds(
    evidence: Evidence, baselines: Mapping[str, str]
) -> _ScoresByMethod:
    """Return NLL by checkpoint, and for each method with seeds the mean over these.

    A method has the name of its seeds without their numbers and is audited like a
    further checkpoint. Delta_sel and DiD are linear in a checkpoint's sums. Averaged
    sums therefore give the interval over sources of the mean over seeds.
    """
    nll = dict(zip(evidence.checkpoints, evidence.values["nll_sum"], strict=True))
    baseline_by_name = dict(baselines)

    # The entry of a seed is its method; other checkpoints are their own.
    names_of_seeds = [name for name in nll if entry_of(name) != name]
    for method, seeds in grouped(names_of_seeds, entry_of).items():
        nll[method] = np.mean([nll[seed] for seed in seeds], axis=0)  # (units,)

        # All seeds of a method are compared with seeds of one baseline.
        baseline = baselines.get(seeds[0])
        if baseline is not None:
            baseline_by_name[method] = entry_of(baseline)
    return _ScoresByMethod(nll, baseline_by_name)
