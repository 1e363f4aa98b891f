"""Guards of membership inference: whether its examples allow conclusions, by score.

Members and non-members must differ in nothing but training. Each function
``_guard_...`` checks one possible difference, or whether there are enough examples. It
adds a guard for readers. If the check fails it also records the consequences: the
status of figures, notes on them, and whether a change can be called membership.
:mod:`~spark_audit.audits.mia.audit` applies these to rows and contrasts,
:mod:`~spark_audit.audits.mia.verdicts` to findings.

A further guard is a function ``_guard_...`` that calls :meth:`ScoreGuards.add`, and a
line in :func:`score_guards`. Its sentences are ``guard.mia.KEY`` in
``spark_audit/sentences/en/``. An *attack* is the name of a score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.mia import estimates, score_tables
from spark_audit.audits.mia.above_texts import CHANCE_AUC
from spark_audit.audits.mia.covariates import covariate_table, differs_by_covariate
from spark_audit.audits.mia.texts import label_test, labels_and_sides
from spark_audit.audits.setup_guards import ALARM, BASE_READ
from spark_audit.names import BASE
from spark_audit.provenance import seed_for
from spark_audit.results import Guard, Hits, Row, number
from spark_audit.results.findings import Fact
from spark_audit.results.guards import guard
from spark_audit.stats.estimate import Estimate, Status, side_of
from spark_audit.stats.multiple_tests import correlated

EVERY_SCORE = ""
"""Key of a status or note that holds for all scores."""

# Notes of figures.

TEXTS_DIFFER = (
    "texts of members and non-members differ, so the AUC must exceed that of the texts "
    "alone"
)

LABELS = "INVALID: labels of members and non-members differ"

DUPLICATES = "both sides contain near-duplicates, which pull the AUC towards 0.5"

SIDES_DIFFER = (
    "the two sides differ before training, so a change can be generalisation instead "
    "of membership"
)

# A note on one score of a checkpoint, whose AUC on the untrained model is not 0.5.
UNTRAINED = "the AUC of the untrained model is not 0.5 either: only the change counts"

# A note on the scores that the untrained model lacks, where its loss is unclean.
UNGUARDED = (
    "the AUC of loss is not 0.5 for the untrained model, and it has no AUC of this "
    "score: the two sides differ before training"
)

# Limits of the checks.

MIN_CLUSTERS_WITHOUT_WARNING = 100
"""Fewer clusters on the side that has fewer draw a warning."""

POWER_FACTOR = 2.8
"""Effect in standard errors that is detected with 80% power at 5%."""

BLIND_P = 0.05
"""The texts of the two sides differ if p is below this."""

BLIND_AUC_UNSURE = 0.55
"""Above this AUC of the texts, a p without a difference is not trusted."""

BLURRED_SHARE = 0.01
"""With a larger share of examples that have a near-duplicate on the other side, figures
are pulled towards chance.
"""

UNUSABLE_SHARE = 0.2
"""With a larger share of such examples, figures are useless."""

LABELS_VOID_P = 0.01
"""Scores of responses are void if the p of the labels is below this."""

LABELS_WARN_P = 0.05
"""Readers are warned if the p of the labels is below this."""


class StatusAndNote(NamedTuple):
    """Status and note that the guards give to the figures of a score.

    ``note`` has the reason of a status that is not ``ok``, and remarks; it may be
    empty.
    """

    status: Status
    note: str


@dataclass
class ScoreGuards:
    """Guards of the judged examples, and their consequences for each score.

    :func:`score_guards` makes one, and each check adds to it. After that it is only
    read.

    Attributes
    ----------
    pooled
        The scores of all examples that are judged.
    text_figures
        Figures of the texts alone: ``duplicates_left``, ``duplicates_removed`` and
        those of :func:`~spark_audit.audits.mia.texts.blind_classifier`; empty without
        examples.
    guards
        The guards themselves, which the report shows.
    void
        Score (or :data:`EVERY_SCORE`) -> status and reason of its figures, where the
        status is not ``ok``: ``invalid``, or ``insensitive``, which is still tested.
    notes
        Score (or :data:`EVERY_SCORE`) -> note on its figures.
    texts_differ
        Whether the texts alone distinguish the sides.
    differs_before
        Whether the untrained model's scores, as one family, distinguish the sides.
    unclean_scores
        Scores whose change is no clean evidence of membership (:data:`SIDES_DIFFER`).
        These are scores whose AUC on the untrained model is not 0.5. If ``loss`` is one
        of them all scores are unclean, since a score of few tokens can miss a
        difference.
    """

    pooled: estimates.MembershipGroup
    text_figures: Mapping[str, float] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    void: dict[str, StatusAndNote] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    texts_differ: bool = False
    differs_before: bool = False
    unclean_scores: set[str] = field(default_factory=set)

    @cached_property
    def judged_examples(self) -> pd.DataFrame:
        """Return the examples that are judged, one line each.

        For the columns see ``units`` of
        :class:`~spark_audit.audits.mia.texts.WithoutModel`: ``task``, ``cluster``,
        ``member`` (bool) and others.
        """
        return self.pooled.facts.iloc[self.pooled.example_indices]

    def add(
        self,
        name: str,
        says: str,
        facts: Mapping[str, Fact],
        *,
        further: Sequence[str] = (),
        passed: bool | None = None,
        checkpoint: str = "",
    ) -> None:
        """Add a guard, by default a warning.

        Parameters
        ----------
        name
            Name of the check in the report.
        says, further
            Keys of its sentence and of the following ones, without ``guard.mia.``.
        facts
            Facts of the sentences.
        passed
            Whether the check holds; ``None``: a warning.
        checkpoint
            The checkpoint that it is about; empty: the examples.
        """
        added = guard(
            name,
            f"mia.{says}",
            facts,
            further=[f"mia.{key}" for key in further],
            passed=passed,
            checkpoint=checkpoint,
        )
        self.guards.append(added)

    def status_of(self, attack: str, *, is_change: bool = False) -> StatusAndNote:
        """Return the status and the note of the figures of a score.

        Parameters
        ----------
        attack
            The score.
        is_change
            Whether the figures are changes since another checkpoint.
        """
        # A reason of this score alone goes before one of all scores.
        status: Status = "ok"
        reason = ""
        for name in (attack, EVERY_SCORE):
            if name in self.void:
                status, reason = self.void[name]
                break

        note_of_score = self.notes.get(attack, "")
        if is_change and attack in self.unclean_scores:
            note_of_score = SIDES_DIFFER
        note_of_all = self.notes.get(EVERY_SCORE, "")

        # Notes without repeats: why it is void, then on this score, then on all.
        notes = dict.fromkeys((reason, note_of_score, note_of_all))
        return StatusAndNote(status, "; ".join(note for note in notes if note))


def score_guards(
    pooled: estimates.MembershipGroup, facts: Mapping[str, Any], *, seed: int
) -> ScoreGuards:
    """Return the guards of the examples and of the untrained model.

    Parameters
    ----------
    pooled
        The scores of all examples that are judged.
    facts
        Facts of the evidence: ``borrowed``, whether the untrained model's figures are
        those of the manifest, and ``alone``, the figures of the texts.
    seed
        Seed of the report, for the permutations of labels.
    """
    text_figures = facts["alone"] if len(pooled.example_indices) else {}
    guards = ScoreGuards(pooled, text_figures)

    if facts["borrowed"]:
        guards.add("untrained model", "untrained_borrowed", {}, checkpoint=BASE)

    # The report shows guards in this order.
    _guard_base_read(guards)
    _guard_rows(guards)
    _guard_texts(guards)
    _guard_duplicates(guards)
    _guard_labels(guards, seed)
    _guard_covariates(guards)
    _guard_untrained(guards)
    return guards


def _guard_base_read(guards: ScoreGuards) -> None:
    """Add a failure if the base separates the sides better than their texts do.

    Such a base has read the members, so a change since it says nothing.
    """
    # The best guess uses the base's scores, so compare with the blind classifier. Other
    # audits alarm at the same level (see audits/setup_guards.py).
    above_texts = guards.pooled.above_texts(BASE, "loss", texts="blind")
    if above_texts is None or above_texts.p >= ALARM:
        return

    guards.add(
        BASE_READ,
        "base_read",
        above_texts.facts(BASE, "loss"),
        passed=False,
        checkpoint=BASE,
    )


def _guard_rows(guards: ScoreGuards) -> None:
    """Add the guard on the number of examples, and the AUC that they can detect.

    ======  =======================================================
    passes  clusters of the side that has fewer
    ======  =======================================================
    no      fewer than 2: no AUC has an interval
    else    fewer than :data:`MIN_CLUSTERS_WITHOUT_WARNING`: a warning
    yes     more
    ======  =======================================================
    """
    examples = guards.judged_examples
    n_members = int(examples["member"].sum())
    n_others = len(examples) - n_members
    n_tasks = examples["task"].nunique()
    n_clusters_by_side = examples.groupby("member")["cluster"].nunique()
    n_clusters = int(
        min(n_clusters_by_side.get(True, 0), n_clusters_by_side.get(False, 0))
    )

    smallest_effect: float | None = None  # distance of the AUC from 0.5
    further = "rows_too_few"
    if n_clusters > 1:
        # Variance of the AUC without a difference (Mann and Whitney), as if examples
        # were independent and of one task.
        variance = (n_members + n_others + 1) / (12 * n_members * n_others)
        smallest_effect = POWER_FACTOR * float(np.sqrt(variance))
        further = "rows_detect"

    passed: bool | None = None
    if n_clusters < 2:
        passed = False
    elif n_clusters >= MIN_CLUSTERS_WITHOUT_WARNING:
        passed = True

    guards.add(
        "rows",
        "rows_of_one_task" if n_tasks == 1 else "rows",
        {
            "members": n_members,
            "others": n_others,
            "fewest": score_tables.MIN_MEMBERS_FOR_AUC,
            "tasks": n_tasks,
            "seen": smallest_effect,
        },
        further=[further],
        passed=passed,
    )


def _guard_texts(guards: ScoreGuards) -> None:
    """Add the guard that the texts do not distinguish the sides; first match wins.

    ========  =========================================  =======
    sentence  condition                                  passes
    ========  =========================================  =======
    missing   the classifier was not run                 warning
    unlike    its p is below :data:`BLIND_P`             no
    unsure    its AUC is above :data:`BLIND_AUC_UNSURE`  warning
    alike     else                                       yes
    ========  =========================================  =======

    If they do, all figures get a note.
    """
    name = "blind text classifier"
    figures = guards.text_figures
    if "blind_p" not in figures:
        guards.add(name, "blind_missing", {})
        return

    passed: bool | None
    if figures["blind_p"] < BLIND_P:
        says = "blind_unlike"
        passed = False
        guards.texts_differ = True
        guards.notes[EVERY_SCORE] = TEXTS_DIFFER
    elif figures["blind_value"] > BLIND_AUC_UNSURE:
        says = "blind_unsure"
        passed = None
    else:
        says = "blind_alike"
        passed = True

    auc = Row(
        audit="mia",
        checkpoint="",
        metric="auc",
        variant="blind",
        value=figures["blind_value"],
        no_effect_low=figures["blind_null_low"],
        no_effect_high=figures["blind_null_high"],
        clusters=guards.judged_examples["cluster"].nunique(),
    )
    guards.add(
        name,
        says,
        {
            "auc": auc,
            "p": figures["blind_p"],
            "permutations": figures["blind_permutations"],
            "rows": figures["blind_rows"],
        },
        passed=passed,
    )


def _guard_duplicates(guards: ScoreGuards) -> None:
    """Add the guard on examples with a near-duplicate on the other side.

    Shares are of the judged examples.

    ===========================  =======  ======================
    share of such examples       passes   status of all figures
    ===========================  =======  ======================
    none                         yes      stays
    up to BLURRED_SHARE          warning  stays
    up to UNUSABLE_SHARE         no       insensitive
    more                         no       invalid
    ===========================  =======  ======================
    """
    name = "near-duplicates"
    n_left = _n_crossing(guards)
    if n_left is None:
        guards.add(name, "duplicates_missing", {})
        return

    # Near-duplicates make the sides alike, which pulls the AUC to 0.5.
    n_examples = len(guards.judged_examples)
    is_blurred = n_left > BLURRED_SHARE * n_examples
    is_unusable = n_left > UNUSABLE_SHARE * n_examples
    if is_unusable:
        guards.void[EVERY_SCORE] = StatusAndNote("invalid", DUPLICATES)
    elif is_blurred:
        guards.void[EVERY_SCORE] = StatusAndNote("insensitive", DUPLICATES)

    passed: bool | None = None
    if is_blurred:
        passed = False
    elif not n_left:
        passed = True
    guards.add(
        name,
        "duplicates" if n_left else "duplicates_none",
        {
            "left": Hits(count=n_left, of=n_examples),
            "blurred": is_blurred,
            "removed": guards.text_figures["duplicates_removed"],
        },
        further=["duplicates_pull"] if is_blurred else [],
        passed=passed,
    )


def _n_crossing(guards: ScoreGuards) -> int | None:
    """Return the number of judged examples with a near-duplicate on the other side.

    ``None``: it is not known.
    """
    n_left = guards.text_figures.get("duplicates_left")
    if n_left is None:
        return None

    # That figure is of all examples, also those of tasks that are too small to judge.
    examples = guards.judged_examples
    if "is_crossing" in examples and examples["is_crossing"].notna().all():
        return int(examples["is_crossing"].astype(bool).sum())

    # Evidence of earlier versions does not say which examples they are, nor do its
    # lines in that of several reports: at most all.
    return min(int(n_left), len(examples))


def _guard_labels(guards: ScoreGuards, seed: int) -> None:
    """Add the guard that labels are distributed alike on both sides.

    If they clearly are not, the score ``response`` is void: it depends on the label,
    which then reveals the side without any memory.

    =========================  =======
    p                          passes
    =========================  =======
    below LABELS_VOID_P        no
    below LABELS_WARN_P        warning
    else                       yes
    =========================  =======
    """
    name = "label balance"
    labels, sides = labels_and_sides(guards.judged_examples)
    p = label_test(labels, sides, seed=seed_for(seed, "mia", "labels"))
    if p is None:
        guards.add(name, "labels_missing", {})
        return

    is_void = p < LABELS_VOID_P
    passed: bool | None = True
    further: list[str] = []
    if is_void:
        passed = False
        further.append("labels_void")
        guards.void["response"] = StatusAndNote("invalid", LABELS)
    elif p < LABELS_WARN_P:
        passed = None

    guards.add(
        name, "labels", {"p": p, "void": is_void}, further=further, passed=passed
    )


def _guard_covariates(guards: ScoreGuards) -> None:
    """Add the guard on tasks whose sides differ in length or compressed size."""
    records = list(covariate_table(guards.judged_examples))
    differing = [record for record in records if differs_by_covariate(record)]

    passed: bool | None = None
    if differing:
        says = "covariates_apart"
    elif records:
        says = "covariates_alike"
        passed = True
    else:
        says = "covariates_missing"

    guards.add(
        "text covariates",
        says,
        {
            "covariates": [record["covariate"] for record in differing],
            "tasks": [record["task"] for record in differing],
            "smds": [number(record["smd"], 2) for record in differing],
        },
        passed=passed,
    )


def _guard_untrained(guards: ScoreGuards) -> None:
    """Add the guards that each declared score of the untrained model has an AUC of 0.5.

    That model read neither side. A score with another AUC is unclean; if it is
    ``loss``, all scores are.
    """
    guards.differs_before = _base_distinguishes_sides(guards.pooled)

    scores_without_auc: list[str] = []
    for attack in score_tables.DECLARED_SCORES:
        auc = guards.pooled.estimate(BASE, attack)
        # -1, 0, 1: the interval lies below 0.5, contains it, lies above it.
        side = side_of(auc, CHANCE_AUC)
        if side is None:
            scores_without_auc.append(attack)
            continue

        holds = side == 0
        if not holds:
            guards.unclean_scores.add(attack)
            guards.notes[attack] = UNTRAINED
        _add_untrained(guards, attack, auc, holds=holds)

    if "loss" in guards.unclean_scores:
        # If loss differs before training, no change is clean evidence.
        guards.unclean_scores |= set(score_tables.DECLARED_SCORES)
        guards.notes |= dict.fromkeys(scores_without_auc, UNGUARDED)


def _base_distinguishes_sides(pooled: estimates.MembershipGroup) -> bool:
    """Return whether any score of the untrained model distinguishes the sides.

    All scores form one family of correlated tests.
    """
    ps: dict[str, float] = {}
    for attack in score_tables.ALL_SCORES:
        if pooled.reason_missing(BASE, attack):
            continue
        p = pooled.p(BASE, attack)
        if p is not None:
            ps[attack] = p
    if not ps:
        return False

    # Each AUC is compared with 0.5, and not with another score.
    tests = dict.fromkeys(ps)
    correlation = pooled.correlation(BASE, tests)  # (scores, scores)
    corrected_ps, _ = correlated([*ps.values()], correlation)  # (scores,)

    # The family distinguishes the sides if its smallest p is significant.
    return bool(corrected_ps.min() < estimates.TEXTS_ALPHA)


def _add_untrained(
    guards: ScoreGuards, attack: str, auc: Estimate, *, holds: bool
) -> None:
    """Add the guard on one score of the untrained model.

    Parameters
    ----------
    holds
        Whether the interval of its AUC contains 0.5.
    """
    further: list[str] = []
    if not holds:
        further.append("untrained_apart")
        if attack == "loss":
            further.append("untrained_every")
        further.append("untrained_claims")

    row = Row.of_estimate(
        auc, audit="mia", checkpoint=BASE, metric="auc", variant=attack
    )
    guards.add(
        "untrained model",
        "untrained",
        {"auc": row, "holds": holds},
        further=further,
        passed=holds,
        checkpoint=BASE,
    )
