"""How often the group that leaks is found, and how often one is named falsely.

``OMP_NUM_THREADS=1 python benchmarks/groups.py`` simulates reports by eight groups of
rows, without a leak and with one in one group, for the three audits that have ``--by``.
Scores are made up, no model is trained; figures, tests and corrections are those of the
audits. The table is in ``groups.md``.

``evidence_of`` makes what an audit concludes from, :data:`SCENES` says of what size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from command_line import benchmark_parser, positive_number, run_benchmark
from exact_limits import limits

from spark_audit.audits.base import Context
from spark_audit.audits.claims import corrected
from spark_audit.audits.extract.by_group import SpansByGroup
from spark_audit.audits.extract.prompt_table import with_cue_and_base
from spark_audit.audits.groups.column import UnitGroups, column_of
from spark_audit.audits.matched.by_group import IdentifierGroups
from spark_audit.audits.matched.units import UnitScores
from spark_audit.audits.mia.audit import rows_of
from spark_audit.audits.mia.by_group import GROUP_SCORE, RowsByGroup
from spark_audit.audits.mia.estimates import MembershipGroup, indices_by_group
from spark_audit.audits.mia.guards import ScoreGuards
from spark_audit.results import Finding, Row
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import DETECTED, SEVERITY

N_GROUPS = 8
FIELD = "language"
COLUMN = column_of(FIELD)
LEAKING = "g3"
"""The group that leaks, where one does."""
TESTS_OF_REPORTS = (1, 8)
"""Primary tests of a report, among which a claim must hold."""
CONTEXT = Context(replicates=20)
"""Resamples only give percentile intervals, on which no claim rests."""


@dataclass(frozen=True)
class Scene:
    """An audit by groups.

    Attributes
    ----------
    effect
        Leak of the leaking group, as its ``unit`` says.
    sizes
        Clusters of each side, group by group.
    """

    audit: str
    title: str
    effect: float
    unit: str
    sizes: Sequence[int]


class Outcome(NamedTuple):
    """Whether a report claims a leak by group, and the group that it names."""

    is_claim: bool
    group: str


EQUAL = [60] * N_GROUPS
UNEQUAL = [200, 120, 80, 60, 40, 30, 20, 12]
"""The leaking group is the fourth, of 60."""

SCENES = (
    Scene("matched", "equal", 0.35, "nats per token", EQUAL),
    Scene("matched", "unequal", 0.35, "nats per token", UNEQUAL),
    Scene("mia", "equal", 1.5, "standard deviations of the score", EQUAL),
    Scene("mia", "unequal", 1.5, "standard deviations of the score", UNEQUAL),
    Scene("extract", "equal", 0.45, "share of identifiers written", EQUAL),
    Scene("extract", "unequal", 0.45, "share of identifiers written", UNEQUAL),
)


def sides_of_groups(sizes: Sequence[int]) -> pd.DataFrame:
    """Return a line per row: group, side and cluster; each cluster has one row."""
    records = []
    for number, size in enumerate(sizes):
        for side in ("train", "test"):
            for i in range(size):
                records.append(
                    {
                        COLUMN: f"g{number}",
                        "split": side,
                        "cluster": f"{side}{number}-{i}",
                        "example": f"{side}{number}-{i}",
                        "task": "t",
                    }
                )
    return pd.DataFrame(records)


def identifiers(
    sizes: Sequence[int],
    effect: float,
    rng: np.random.Generator,
    leaking: Collection[str] = (LEAKING,),
) -> Evidence:
    """Return evidence of ``matched``: two identifiers per row, each with a control.

    They are annotated ones, which are tested by Student's t alone. The permutations of
    injected ones are a second test, which a claim must pass, too.
    """
    rows = sides_of_groups(sizes)
    spans = pd.concat([rows, rows], ignore_index=True)
    n_spans = len(spans)
    is_trained = (spans["split"] == "train").to_numpy()
    is_leaking = is_trained & spans[COLUMN].isin(leaking).to_numpy()

    spans = spans.assign(
        type="NAME",
        dose=is_trained.astype(int),
        trained=is_trained.astype(int),
        pair=np.arange(n_spans),
        n_tokens=rng.integers(2, 8, n_spans),
        start=0,
        form=0,
        cue=1,
        stratum=0,
        text_auc=np.nan,
        digits=0,
        capitals=0,
        letters=0,
        marks=0,
    )
    units = pd.concat([spans.assign(role="pii"), spans.assign(role="control")])
    units = units.reset_index(drop=True)
    reference = rng.gamma(4.0, 1.0, 2 * n_spans) * units["n_tokens"]

    # A cluster drifts as one, its identifiers and their controls alike.
    drift_of_cluster = rng.normal(-0.3, 0.3, len(rows))
    drift = np.tile(drift_of_cluster, 4) + rng.normal(0, 0.3, 2 * n_spans)
    change = drift * units["n_tokens"]
    change[:n_spans] -= effect * is_leaking * spans["n_tokens"]
    units["ref_sum"] = reference
    scores = [("mine", {"nll_sum": reference + change})]
    facts = {"by": FIELD, "by_numbered": 0}
    return Evidence.of(units, scores, facts)


def examples(
    sizes: Sequence[int],
    effect: float,
    rng: np.random.Generator,
    leaking: Collection[str] = (LEAKING,),
) -> Evidence:
    """Return evidence of ``mia``: a score per row, and a guess that knows nothing."""
    units = sides_of_groups(sizes)
    is_member = (units["split"] == "train").to_numpy()
    is_leaking = is_member & units[COLUMN].isin(leaking).to_numpy()
    units = units.assign(member=is_member, dose=np.nan)
    score = rng.normal(0, 1, len(units)) + effect * is_leaking
    nothing = np.full(len(units), np.nan)
    scores = [
        ("base", {GROUP_SCORE: nothing, "texts": rng.normal(0, 1, len(units))}),
        ("mine", {GROUP_SCORE: score, "texts": nothing}),
    ]
    return Evidence.of(units, scores, {"by": FIELD, "by_numbered": 0})


def answers(
    sizes: Sequence[int],
    effect: float,
    rng: np.random.Generator,
    leaking: Collection[str] = (LEAKING,),
) -> Evidence:
    """Return evidence of ``extract``: one in twenty is guessed, whatever the side."""
    units = sides_of_groups(sizes)
    is_trained = (units["split"] == "train").to_numpy()
    is_leaking = is_trained & units[COLUMN].isin(leaking).to_numpy()
    units = units.assign(
        set="pii",
        type="NAME",
        origin="injected",
        prompt="full",
        span=np.arange(len(units)),
        stratum=0,
        dose=is_trained.astype(int),
    )
    is_guessed = rng.random(len(units)) < 0.05
    is_learned = is_leaking & (rng.random(len(units)) < effect)
    hits = (is_guessed | is_learned).astype(float)
    scores = [
        ("base", {"greedy": is_guessed.astype(float)}),
        ("mine", {"greedy": hits}),
    ]
    return Evidence.of(units, scores, {"by": FIELD, "by_numbered": 0})


def memory_finding(evidence: Evidence) -> Finding:
    """Return the finding of ``matched`` by group."""
    nll = {"mine": evidence.row("mine", "nll_sum")}
    scores = UnitScores(evidence.units, nll, CONTEXT)
    _, findings = IdentifierGroups.of(scores, groups_of(evidence)).figures("mine")
    return findings[0]


def membership_finding(evidence: Evidence) -> Finding:
    """Return the finding of ``mia`` by group."""
    guess = evidence.row("base", "texts")
    scores = {
        name: {GROUP_SCORE: evidence.row(name, GROUP_SCORE), "texts": guess}
        for name in evidence.checkpoints
    }
    pooled = MembershipGroup(
        facts=evidence.units,
        scores=scores,
        context=CONTEXT,
        fprs={},
        chance_seed=0,
        name="pooled",
        example_indices=indices_by_group(evidence.units)["pooled"],
        seed=0,
    )
    guards = ScoreGuards(pooled)
    by_group = RowsByGroup.of(
        pooled,
        guards,
        groups_of(evidence),
        lambda group, name: next(rows_of(group, name, GROUP_SCORE, guards)),
    )
    _, findings = by_group.figures("mine")
    return findings[0]


def extraction_finding(evidence: Evidence) -> Finding:
    """Return the finding of ``extract`` by group."""
    _, findings = _extraction(evidence)
    return findings[0]


def extraction_rows(evidence: Evidence) -> list[Row]:
    """Return the figures of ``extract`` by group."""
    rows, _ = _extraction(evidence)
    return rows


def _extraction(evidence: Evidence) -> tuple[list[Row], list[Finding]]:
    """Return figures and findings of ``extract`` by group."""
    frame = evidence.frame()
    frame = frame.assign(greedy_sure=frame["greedy"].astype(bool))
    spans = with_cue_and_base(frame.assign(greedy=frame["greedy_sure"]))
    return SpansByGroup.of(spans, groups_of(evidence), COLUMN).figures("mine")


def groups_of(evidence: Evidence) -> UnitGroups:
    """Return the groups of the units."""
    return UnitGroups(FIELD, evidence.units[COLUMN].to_numpy(), 0)


EvidenceOf = Callable[[Sequence[int], float, np.random.Generator], Evidence]

AUDITS: dict[str, tuple[EvidenceOf, Callable[[Evidence], Finding]]] = {
    "matched": (identifiers, memory_finding),
    "mia": (examples, membership_finding),
    "extract": (answers, extraction_finding),
}
"""Audit -> what makes its evidence, and what concludes from it."""


def outcomes(scene: Scene, effect: float, seed: int) -> list[Outcome]:
    """Return what a report says by group, for each of :data:`TESTS_OF_REPORTS`."""
    rng = np.random.default_rng([seed, int(1000 * effect)])
    evidence_of, finding_of = AUDITS[scene.audit]
    finding = finding_of(evidence_of(scene.sizes, effect, rng))

    by_tests = []
    for n_tests in TESTS_OF_REPORTS:
        # The other tests of the report find nothing.
        others = [finding.model_copy(update={"p": 1.0}) for _ in range(n_tests - 1)]
        (claimed, *_) = corrected([finding, *others])
        is_claim = SEVERITY[claimed.claim] >= DETECTED
        by_tests.append(Outcome(is_claim, claimed.group_value))
    return by_tests


def table(n_reports: int) -> list[str]:
    """Return the lines of the table: found, named rightly, and found falsely."""
    lines = [
        "| audit | groups | leak of one group | tests of the report | found | of these "
        "named rightly | falsely found |",
        "|---|---|---|---|---|---|---|",
    ]
    for scene in SCENES:
        leaking = [outcomes(scene, scene.effect, seed) for seed in range(n_reports)]
        clean = [outcomes(scene, 0.0, seed) for seed in range(n_reports)]
        for number, n_tests in enumerate(TESTS_OF_REPORTS):
            with_leak = [by_tests[number] for by_tests in leaking]
            without = [by_tests[number] for by_tests in clean]
            n_found = sum(one.is_claim for one in with_leak)
            n_right = sum(one == Outcome(True, LEAKING) for one in with_leak)
            n_false = sum(one.is_claim for one in without)
            lines.append(
                f"| {scene.audit} | {scene.title} | {scene.effect} {scene.unit} | "
                f"{n_tests} | {_share(n_found, n_reports)} | {n_right} of {n_found} | "
                f"{_share(n_false, n_reports)} |"
            )
            print(lines[-1], flush=True)
    return lines


def _share(count: int, of: int) -> str:
    """Return a share with its exact one-sided 95% limits, in per cent."""
    low, high = limits(count, of)
    return f"{100 * count / of:.1f}% [{100 * low:.1f}, {100 * high:.1f}]"


def main() -> None:
    """Print the table."""
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument("--reports", type=positive_number, default=60)
    options = parser.parse_args()
    print("\n".join(table(options.reports)[:2]))


if __name__ == "__main__":
    run_benchmark(main)
