"""Faults of a setup: the tests behind the setup guards, on scores of the plain pass.

A test returns the fault that it found, or None:

==========================  ========================================================
:func:`held_out_fault`      held-out rows look trained on, or the lists are swapped
:func:`base_read_fault`     the base writes trained identifiers and no held-out ones
:func:`broken_fault`        the checkpoint is no language model any more
:func:`base_is_checkpoint`  the base is the checkpoint (the caller has found that out)
==========================  ========================================================

The tests read units: parts of rows, with the columns of ``UnitFacts`` and
``UNIT_DTYPES`` in :mod:`~spark_audit.audits.setup_units`. A model "writes" an
identifier if greedy decoding gives all of its tokens. A cluster with such an identifier
is a hit, if nobody can guess the identifier.

A further test is a function here. It returns a :class:`Fault`, whose keys need
sentences ``guard.KEY``. :mod:`~spark_audit.audits.setup_guards` runs it, and names its
guard there with a line of ``REMAINS``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

from spark_audit.names import BASE
from spark_audit.results import Hits, Row
from spark_audit.results.findings import Fact
from spark_audit.stats.intervals import clopper_pearson
from spark_audit.stats.memory_contrast import Memory, Sides, memory

ALARM = 0.005
"""A setup guard fails if p is below this. Each guard has at most two tests, so a sound
setup fails in at most one of 100 cases **[ours]**.
"""

WORSE = 3.0
"""A model is broken if its NLL of plain text exceeds the base's by this, nats per
token.
"""

CHANGE_TESTS = 2
"""Kinds of units whose changes are tested for swapped lists: identifiers, and texts."""

MAX_P_BASE_IS_ONE_SIDED = 0.05
"""p below which the base writes trained identifiers more often than held-out ones."""

MIN_HITS = 2
"""Least number of clusters with a hit, since a single one may be a coincidence."""


class Fault(NamedTuple):
    """The reason of a failed guard.

    Attributes
    ----------
    says, further
        Keys of its first sentence and of those that follow, without ``guard.``.
    facts
        Facts of these sentences, by name.
    """

    says: str
    facts: Mapping[str, Fact]
    further: Sequence[str] = ()


class WrittenClusters(NamedTuple):
    """Clusters of one side (trained or held out) whose identifiers a model writes.

    Attributes
    ----------
    n_clusters
        Clusters with an unguessable identifier.
    n_hits
        Clusters in which greedy decoding writes such an identifier.
    guess_rate
        Mean chance that guessing alone gives a hit in a cluster.
    """

    n_clusters: int
    n_hits: int
    guess_rate: float

    @property
    def hits(self) -> Hits:
        """The hits among all of these clusters, as a fact of a sentence."""
        return Hits(count=self.n_hits, of=self.n_clusters)


class SidesWritten(NamedTuple):
    """Hits among held-out identifiers, and among those of trained rows."""

    held_out: WrittenClusters
    trained: WrittenClusters


def base_is_checkpoint(same: str) -> Fault:
    """Return the fault that base and checkpoint have the same weights or scores.

    Parameters
    ----------
    same
        What is the same: ``weights`` or ``scores``. The sentence matches on it.
    """
    return Fault("base_is_checkpoint", {"same": same})


def held_out_fault(
    units: pd.DataFrame, base_units: pd.DataFrame | None
) -> Fault | None:
    """Return why held-out rows look trained on; the first match wins.

    ============================================  ======================================
    condition                                     fault
    ============================================  ======================================
    held-out identifiers are written that nobody  :func:`_held_out_written_fault`: rows
    can guess, and that the base does not write   were trained on, or lists are swapped
    held-out rows became likelier since the       the lists are swapped, or trained rows
    base, and trained ones did not                were unlearned
    ============================================  ======================================

    Parameters
    ----------
    units, base_units
        Units of the checkpoint, and of the base if it was scored.
    """
    candidates = _not_written_by_base(units, base_units)
    candidates = _with_names_of_base(candidates, base_units)
    fault = _held_out_written_fault(candidates)
    if fault is not None:
        return fault

    # An identifier on both sides says nothing about swapped lists.
    is_train_row = units["split"] == "train"
    on_one_side = units[units["is_trained"] == is_train_row]
    for kind in ("identifier", "text"):
        if _are_sides_swapped(on_one_side[on_one_side["kind"] == kind]):
            return Fault(
                "sides_swapped",
                {"swapped": True},
                further=["sides_likelier", "sides_likelier_asked"],
            )
    return None


def base_read_fault(base_units: pd.DataFrame) -> Fault | None:
    """Return the fault that the base writes trained identifiers and no held-out ones.

    Names do not count, since the base may know persons of either side.

    Parameters
    ----------
    base_units
        Units of the base, scored as a checkpoint.
    """
    without_names = base_units[base_units["unguessable_kind"] != "name"]
    held_out, trained = _sides_written(without_names)

    # Hits on both sides show that the base knows them from elsewhere.
    if held_out.n_clusters == 0 or held_out.n_hits > 0:
        return None

    # The base must write more than guessing gives, and more than of the other side.
    if _guess_p(trained) >= ALARM:
        return None
    if _p_of_larger_share(trained, held_out) >= MAX_P_BASE_IS_ONE_SIDED:
        return None
    return Fault(
        "base_read_rows", {"trained": trained.hits, "held_out": held_out.n_clusters}
    )


def broken_fault(name: str, units: pd.DataFrame, vocabulary: int) -> Fault | None:
    """Return the fault that plain text is no likelier than guessing, or got far worse.

    Plain text means the tokens of low sensitivity.

    Parameters
    ----------
    name
        The checkpoint of the units.
    vocabulary
        Number of tokens that the model chooses from.
    """
    chance = math.log(max(vocabulary, 2))  # nats per token, of a uniform guess
    plain_text_units = units[units["kind"] == "low"]
    n_tokens = plain_text_units["n_tokens"].sum()

    # Without such text both means are NaN, which no comparison below takes as broken.
    sums = plain_text_units[["nll", "base_nll"]].sum()  # nats
    nll, base_nll = sums / n_tokens  # nats per token
    is_broken = nll > chance or nll - base_nll > WORSE
    if not is_broken:
        return None

    # A row without a canary has a unit "text".
    n_clusters = units["cluster"][units["kind"] == "text"].nunique()

    def plain_text(checkpoint: str, value: float) -> Row:
        """Return the NLL of plain text as a figure, nats per token."""
        return Row(
            audit="setup",
            checkpoint=checkpoint,
            metric="low",
            value=value,
            unit="nats",
            clusters=n_clusters,
        )

    return Fault(
        "broken_model",
        {
            "plain_text": plain_text(name, nll),
            "base": plain_text(BASE, base_nll),
            "chance": chance,
        },
        further=["broken_model_compared"],
    )


def _not_written_by_base(
    units: pd.DataFrame, base_units: pd.DataFrame | None
) -> pd.DataFrame:
    """Return the units without identifiers that the base writes.

    A hit of the base needs no training. For the base, ties count as written, so that
    nothing is called learned which the base may have written.
    """
    if base_units is None:
        return units
    keys_of_base = set(base_units["key"][base_units["is_written_with_ties"]])
    return units[~units["key"].isin(keys_of_base)]


def _with_names_of_base(
    units: pd.DataFrame, base_units: pd.DataFrame | None
) -> pd.DataFrame:
    """Return the units with the guess rate of names that the base shows.

    A model may know names from anywhere, so without a base no name counts. If the base
    writes some names, the upper limit of their share is the least guess rate of a name.

    Parameters
    ----------
    units, base_units
        Of the checkpoint, and of the base if it was scored.
    """
    is_name = units["unguessable_kind"] == "name"
    if base_units is None:
        without_names = units["unguessable_kind"].where(~is_name, "")
        return units.assign(unguessable_kind=without_names)

    names_of_base = base_units[base_units["unguessable_kind"] == "name"]
    n_written = int(names_of_base["is_written_with_ties"].sum())
    if n_written == 0:
        return units

    # Upper limit of the base's rate of names (Clopper and Pearson 1934).
    _, limit = clopper_pearson(n_written, len(names_of_base))
    raised = units["guess_rate"].clip(lower=limit)
    return units.assign(guess_rate=units["guess_rate"].where(~is_name, raised))


def _held_out_written_fault(units: pd.DataFrame) -> Fault | None:
    """Return the fault that unguessable held-out identifiers are written.

    Parameters
    ----------
    units
        Units that the base does not write.
    """
    held_out, trained = _sides_written(units)
    if _guess_p(held_out) >= ALARM:
        return None

    # If the share is larger than that of trained rows, the lists may be swapped.
    has_larger_share = (
        trained.n_clusters > 0 and _p_of_larger_share(held_out, trained) < ALARM
    )
    if has_larger_share:
        return Fault(
            "sides_swapped",
            {"held_out": held_out.hits, "trained": trained.hits},
            further=["sides_reproduced", "sides_asked"],
        )
    return Fault(
        "held_out_back", {"held_out": held_out.hits}, further=["held_out_asked"]
    )


def _sides_written(units: pd.DataFrame) -> SidesWritten:
    """Return the hits of each side.

    An identifier of a held-out row that a trained row also contains is on no side.
    """
    is_held_out = ~units["is_trained"]
    is_of_trained_row = units["split"] == "train"
    return SidesWritten(
        held_out=_written_clusters(units[is_held_out]),
        trained=_written_clusters(units[is_of_trained_row]),
    )


def _written_clusters(units: pd.DataFrame) -> WrittenClusters:
    """Return the counts of clusters with an unguessable identifier, and with hits.

    Clusters are counted, since several hits in one source are not independent.

    Parameters
    ----------
    units
        Units of one side.
    """
    unguessable = units[units["unguessable_kind"] != ""]
    clusters = unguessable.groupby("cluster").agg(
        is_hit=("is_written", "any"), guess_rate=("guess_rate", "sum")
    )
    if clusters.empty:
        return WrittenClusters(n_clusters=0, n_hits=0, guess_rate=1.0)

    # The chance of a hit is at most the sum of the chances of its identifiers.
    guess_rates = clusters["guess_rate"].clip(upper=1.0)
    return WrittenClusters(
        n_clusters=len(clusters),
        n_hits=int(clusters["is_hit"].sum()),
        guess_rate=float(guess_rates.mean()),
    )


def _guess_p(side: WrittenClusters) -> float:
    """Return the chance that guessing gives as many hits or more.

    A single hit may be a coincidence: its p is 1.

    The tail is that of a binomial with the mean rate of the clusters. It is no smaller
    than the tail for unequal rates (Hoeffding, 1956).
    """
    if side.n_hits < MIN_HITS:
        return 1.0
    more_than = side.n_hits - 1
    return float(scipy.stats.binom.sf(more_than, side.n_clusters, side.guess_rate))


def _p_of_larger_share(first: WrittenClusters, second: WrittenClusters) -> float:
    """Return Fisher's one-sided p that the first side has no larger share of hits."""
    table = np.array(
        [
            [first.n_hits, first.n_clusters - first.n_hits],
            [second.n_hits, second.n_clusters - second.n_hits],
        ]
    )  # (sides, hits and others)
    return float(scipy.stats.fisher_exact(table, alternative="greater").pvalue)


def _are_sides_swapped(units: pd.DataFrame) -> bool:
    """Return whether the held-out side was learned and the trained side was not.

    Changes are of NLL since the base: below 0, a side became likelier. The estimates
    must look so (:func:`_looks_swapped`), and two tests must agree: Student's t of the
    memory contrast, and a test of ranks, so that a few long rows raise no alarm.

    Parameters
    ----------
    units
        Units of one kind, each on one side: columns ``split``, ``cluster``, ``type``,
        ``n_tokens``, ``nll`` and ``base_nll``.
    """
    if units["split"].nunique() < 2:
        return False

    units = units.assign(change=units["nll"] - units["base_nll"])  # nats
    sides = Sides.of(
        trained=units["split"] == "train",
        clusters=units["cluster"],
        strata=[pd.factorize(units["type"])[0]],
        tokens=units["n_tokens"],
    )
    contrast = memory(units["change"].to_numpy(np.float64), sides)
    if not _looks_swapped(contrast):
        return False
    t_p = contrast.t_p()
    if t_p is None:
        return False

    # Compare the clusters' changes per token; those of held-out rows are lower.
    clusters = units.groupby(["split", "cluster"])[["change", "n_tokens"]].sum()
    means = clusters["change"] / clusters["n_tokens"]  # nats per token
    rank_p = scipy.stats.mannwhitneyu(
        means["test"], means["train"], alternative="less"
    ).pvalue

    # Identifiers and texts are both tested, each at half of the level.
    return bool(max(t_p, rank_p) < ALARM / CHANGE_TESTS)


def _looks_swapped(contrast: Memory) -> bool:
    """Return whether the estimates are those of swapped lists.

    Then the held-out side became likelier for certain, and the trained side lies above
    it. Two causes raise the trained side: a method that suppresses its strings raises
    them by more than the other side falls, and then nothing is swapped. Unseen text of
    an overfitted model rises by less than the learned side falls.

    Parameters
    ----------
    contrast
        Changes of both sides, and trained minus held-out, nats per token.
    """
    held_out_high = contrast.held_out.high
    has_held_out_fallen = held_out_high is not None and held_out_high < 0

    trained_change = contrast.trained.value or 0.0
    held_out_change = contrast.held_out.value or 0.0
    is_suppressed = trained_change + held_out_change > 0
    is_trained_higher = (contrast.difference.value or 0.0) > 0
    return has_held_out_fallen and is_trained_higher and not is_suppressed
