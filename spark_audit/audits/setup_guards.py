"""Setup guards: whether rows, base and checkpoint are what the audits assume.

A mistaken setup hides memory: held-out rows that were trained on, swapped lists, a base
that is the checkpoint or has read the rows, a checkpoint that is no language model any
more. Each guard is a test on the scores of the plain pass, for all audits.
:data:`REMAINS` lists the claims that survive a failure. Only failed guards are
returned, and the question whether the trained rows fit
(:mod:`spark_audit.audits.trained_rows`), which voids nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.base import Tables, guard
from spark_audit.audits.identifiers import REPRODUCED
from spark_audit.audits.setup_units import identifiers_of_rows, scored_units
from spark_audit.audits.supervision_guards import supervision_guards
from spark_audit.audits.trained_rows import fits_of_parts, trained_rows_guards
from spark_audit.manifest.schema import Manifest
from spark_audit.names import (
    ANY_NAME,
    BASE,
    RELEARN,
    CheckpointName,
    entry_of,
    original_of,
    series_of,
)
from spark_audit.results import Claim, Finding, Guard, Hits, Row
from spark_audit.results.findings import DETECTED, SEVERITY, Fact
from spark_audit.scoring.table import Pass
from spark_audit.stats.intervals import clopper_pearson
from spark_audit.stats.memory_contrast import Memory, Sides, memory

HELD_OUT_BACK = "held_out_back"
BASE_READ = "base_read_rows"
BROKEN = "broken_model"
"""Names of the setup guards; if one fails, the checkpoint's memory was not tested."""

ALARM = 0.005
"""A setup guard fails if p is below this. Each guard has at most two tests, so a sound
setup fails in at most one of 100 cases **[ours]**.
"""

REMAINS: Mapping[str, Mapping[Claim, Collection[str]]] = {
    # Held-out rows that were trained on hide memory, and swapped lists reverse it:
    # neither makes trained identifiers likelier than held-out ones.
    HELD_OUT_BACK: {"verbatim": ("extract",), "memory": (ANY_NAME,)},
    # Changes since such a base say nothing. Reproduced strings that the base does not
    # give, and ranks of canaries among never-inserted strings, remain evidence.
    BASE_READ: {"verbatim": ("extract",), "memory": ("canary",)},
    # A drift by many nats enlarges every earlier difference of the sides. Ranks of
    # canaries and verbatim extraction involve no such difference.
    BROKEN: {"verbatim": ("extract",), "memory": ("canary",)},
}
"""Setup guard -> claims that its fault cannot cause -> their audits. If the guard
fails, all other claims on the checkpoint are void, and so is "nothing shown".
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


class WrittenClusters(NamedTuple):
    """Clusters of one side (trained or held out) whose identifiers a model writes.

    Attributes
    ----------
    n_clusters
        Clusters with an unguessable identifier.
    n_hits
        Clusters in which greedy decoding writes such an identifier.
    rate
        Mean chance that guessing alone gives a hit in a cluster.
    """

    n_clusters: int
    n_hits: int
    rate: float

    @property
    def hits(self) -> Hits:
        """The hits among all of these clusters."""
        return Hits(count=self.n_hits, of=self.n_clusters)


class Fault(NamedTuple):
    """The reason of a failed guard: the keys of its sentences, and their facts."""

    says: str
    facts: Mapping[str, Fact]
    further: Sequence[str] = ()


class SidesWritten(NamedTuple):
    """Hits among held-out identifiers, and among those of trained rows."""

    held_out: WrittenClusters
    trained: WrittenClusters


class Check(NamedTuple):
    """A setup guard, the checkpoint that it checks, and its fault if it fails."""

    name: str
    checkpoint: str
    fault: Fault | None


def setup_guards(
    tables: Tables,
    manifest: Manifest,
    *,
    names: Mapping[str, str],
    weights: Mapping[str, str],
) -> list[Guard]:
    """Return the failed setup guards, and the guards on the fit of trained rows.

    Parameters
    ----------
    names
        Name in the report -> name among the tables.
    weights
        SHA-256 of weights by name among the tables, the base's too, where known.
    """
    identifiers = identifiers_of_rows(manifest)
    vocabulary = manifest.reference.usable_vocab
    checks: list[Check] = []
    fits: dict[str, dict[str, Memory]] = {}

    base = tables.get(BASE, {}).get(Pass())
    base_units: pd.DataFrame | None = None
    if base is not None:
        base_units = scored_units(base, None, manifest, identifiers)
        checks.append(Check(BASE_READ, BASE, _base_read_fault(base_units)))

    for name, table_name in names.items():
        if name == BASE:
            continue

        # The other checks need a model from before the training.
        if table_name in weights and weights[table_name] == weights.get(BASE):
            checks.append(Check(BASE_READ, name, _base_is_checkpoint("weights")))
            continue
        table = tables[table_name].get(Pass())
        if table is None:
            continue
        units = scored_units(table, base, manifest, identifiers)
        if units["max_difference"].max() <= REPRODUCED:
            checks.append(Check(BASE_READ, name, _base_is_checkpoint("scores")))
            continue

        checks.append(Check(HELD_OUT_BACK, name, _held_out_fault(units, base_units)))
        checks.append(Check(BROKEN, name, _broken_fault(name, units, vocabulary)))
        # Further training on other rows hides what the model learned before.
        if CheckpointName.parse(name).derived != RELEARN:
            fits[name] = fits_of_parts(table, base, manifest)

    # Report only failures of these checks, but always the fit of trained rows.
    failed = [_guard_of(check, check.fault) for check in checks if check.fault]
    return [*supervision_guards(manifest), *failed, *trained_rows_guards(fits)]


def _guard_of(check: Check, fault: Fault) -> Guard:
    """Return the guard of a failed check."""
    return guard(
        check.name,
        fault.says,
        fault.facts,
        further=fault.further,
        passed=False,
        checkpoint=check.checkpoint,
    )


def consistent(guards: Iterable[Guard]) -> list[Guard]:
    """Return the guards without those that another guard refutes.

    A model that has not read the rows looks broken next to a base that has. Then only a
    model that is worse than guessing counts as broken.
    """
    guards = list(guards)
    failed = {
        (setup_guard.name, setup_guard.checkpoint)
        for setup_guard in guards
        if setup_guard.passed is False
    }
    if (BASE_READ, BASE) not in failed:
        return guards

    # A base that read the rows finds their text likely, so any other model looks worse.
    return [
        setup_guard
        for setup_guard in guards
        if setup_guard.name != BROKEN or _is_below_chance(setup_guard)
    ]


def _is_below_chance(broken: Guard) -> bool:
    """Return whether a broken model is, or may be, worse than guessing.

    Parameters
    ----------
    broken
        The guard :data:`BROKEN`, whose figures may be withheld in shared files.
    """
    plain_text = broken.facts.get("plain_text")
    chance = broken.facts.get("chance")
    if not isinstance(plain_text, Row) or not isinstance(chance, float):
        return True
    return plain_text.value is None or plain_text.value > chance


def _base_is_checkpoint(same: str) -> Fault:
    """Return the fault that base and checkpoint have the same weights or scores.

    Parameters
    ----------
    same
        What is the same: ``weights`` or ``scores``. The sentence matches on it.
    """
    return Fault("base_is_checkpoint", {"same": same})


def _held_out_fault(
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
    # A hit of the base needs no training.
    unknown_to_base = units
    if base_units is not None:
        keys_of_base = set(base_units["key"][base_units["is_written_with_ties"]])
        unknown_to_base = units[~units["key"].isin(keys_of_base)]
    fault = _held_out_written_fault(_with_names_of_base(unknown_to_base, base_units))
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


def _written_clusters(units: pd.DataFrame) -> WrittenClusters:
    """Return the counts of clusters with an unguessable identifier, and with hits.

    Parameters
    ----------
    units
        Units of one side, from :func:`~spark_audit.audits.setup_units.scored_units`.
    """
    # Several hits in one source are not independent.
    unguessable = units[units["unguessable_kind"] != ""]
    clusters = unguessable.groupby("cluster").agg(
        is_hit=("is_written", "any"), rate=("guess_rate", "sum")
    )
    if clusters.empty:
        return WrittenClusters(n_clusters=0, n_hits=0, rate=1.0)

    return WrittenClusters(
        n_clusters=len(clusters),
        n_hits=int(clusters["is_hit"].sum()),
        rate=float(clusters["rate"].clip(upper=1.0).mean()),
    )


def _sides_written(units: pd.DataFrame) -> SidesWritten:
    """Return the hits of each side.

    Parameters
    ----------
    units
        From :func:`~spark_audit.audits.setup_units.scored_units`.
    """
    # An identifier of a held-out row that a trained row also contains is on no side.
    is_held_out = ~units["is_trained"]
    is_of_trained_row = units["split"] == "train"
    return SidesWritten(
        held_out=_written_clusters(units[is_held_out]),
        trained=_written_clusters(units[is_of_trained_row]),
    )


def _guess_p(side: WrittenClusters) -> float:
    """Return the chance that guessing gives as many hits or more.

    A single hit may be a coincidence: its p is 1.

    The tail is that of a binomial with the mean rate of the clusters. It is no smaller
    than the tail for unequal rates (Hoeffding, 1956).
    """
    if side.n_hits < MIN_HITS:
        return 1.0
    return float(scipy.stats.binom.sf(side.n_hits - 1, side.n_clusters, side.rate))


def _p_of_larger_share(first: WrittenClusters, second: WrittenClusters) -> float:
    """Return Fisher's one-sided p that the first side has no larger share of hits."""
    table = np.array(
        [
            [first.n_hits, first.n_clusters - first.n_hits],
            [second.n_hits, second.n_clusters - second.n_hits],
        ]
    )  # (sides, hits and others)
    return float(scipy.stats.fisher_exact(table, alternative="greater").pvalue)


def _with_names_of_base(
    units: pd.DataFrame, base_units: pd.DataFrame | None
) -> pd.DataFrame:
    """Return the units with the guess rate of names that the base shows.

    A model may know names from anywhere, so without a base no name counts. If the base
    writes some names, the upper limit of their share is the guess rate.

    Parameters
    ----------
    units, base_units
        Of the checkpoint, and of the base if it was scored.
    """
    is_name = units["unguessable_kind"] == "name"
    if base_units is None:
        return units.assign(
            unguessable_kind=units["unguessable_kind"].where(~is_name, "")
        )

    # Upper limit of the base's rate of names (Clopper and Pearson 1934).
    names = base_units[base_units["unguessable_kind"] == "name"]
    n_written = int(names["is_written_with_ties"].sum())
    if not n_written:
        return units

    _, limit = clopper_pearson(n_written, len(names))
    rate = units["guess_rate"].where(~is_name, units["guess_rate"].clip(lower=limit))
    return units.assign(guess_rate=rate)


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


def _are_sides_swapped(units: pd.DataFrame) -> bool:
    """Return whether the held-out side was learned and the trained side was not.

    Suppressed trained strings rise by more than the other side falls. Unseen text of an
    overfitted model rises by less than the learned side falls.

    Parameters
    ----------
    units
        Units of one kind, each on one side: columns ``split``, ``cluster``, ``type``,
        ``n_tokens``, ``nll`` and ``base_nll``.
    """
    if units["split"].nunique() < 2:
        return False

    # Below 0, text became likelier since the base.
    units = units.assign(change=units["nll"] - units["base_nll"])
    sides = Sides.of(
        units["split"] == "train",
        units["cluster"],
        [pd.factorize(units["type"])[0]],
        units["n_tokens"],
    )
    # Changes of both sides, and trained minus held-out, nats per token.
    contrast = memory(units["change"].to_numpy(np.float64), sides)
    trained_change = contrast.trained.value or 0.0
    held_out_change = contrast.held_out.value or 0.0
    held_out_high = contrast.held_out.high

    has_held_out_fallen = held_out_high is not None and held_out_high < 0
    is_suppressed = trained_change + held_out_change > 0
    is_trained_higher = (contrast.difference.value or 0.0) > 0
    if not has_held_out_fallen or is_suppressed or not is_trained_higher:
        return False
    p = contrast.t_p()
    if p is None:
        return False

    # A test of ranks must agree, so that a few long rows raise no alarm.
    clusters = units.groupby(["split", "cluster"])[["change", "n_tokens"]].sum()
    means = clusters["change"] / clusters["n_tokens"]
    rank_p = scipy.stats.mannwhitneyu(
        means["test"], means["train"], alternative="less"
    ).pvalue
    # Both tests must hold. Identifiers and texts are both tested, each at half of the
    # level.
    return bool(max(p, rank_p) < ALARM / CHANGE_TESTS)


def _base_read_fault(base_units: pd.DataFrame) -> Fault | None:
    """Return the fault that the base writes trained identifiers and no held-out ones.

    Names do not count, since the base may know persons of either side.
    """
    held_out, trained = _sides_written(
        base_units[base_units["unguessable_kind"] != "name"]
    )
    # Hits on both sides show that the base knows them from elsewhere.
    if not held_out.n_clusters or held_out.n_hits or _guess_p(trained) >= ALARM:
        return None
    if _p_of_larger_share(trained, held_out) >= MAX_P_BASE_IS_ONE_SIDED:
        return None
    return Fault(
        "base_read_rows", {"trained": trained.hits, "held_out": held_out.n_clusters}
    )


def _broken_fault(name: str, units: pd.DataFrame, vocabulary: int) -> Fault | None:
    """Return the fault that plain text is no likelier than guessing, or got far worse.

    Plain text means the tokens of low sensitivity.

    Parameters
    ----------
    vocabulary
        Number of tokens that the model chooses from.
    """
    chance = math.log(max(vocabulary, 2))  # nats per token, of a uniform guess
    plain_text_units = units[units["kind"] == "low"]
    n_tokens = plain_text_units["n_tokens"].sum()

    # Without such text both means are NaN, which no comparison below takes as broken.
    sums = plain_text_units[["nll", "base_nll"]].sum()
    nll, base_nll = sums / n_tokens  # nats per token
    is_broken = nll > chance or nll - base_nll > WORSE
    if not is_broken:
        return None

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


def faults(guards: Iterable[Guard], name: str) -> list[Guard]:
    """Return the setup guards that failed for a checkpoint, the first of each name.

    Failures of its seeds, its stages and the checkpoint that it was rounded from count
    for it, too. Failures of the base count for all. The base itself has none, since it
    is not under test.
    """
    if name == BASE:
        return []

    # Faults of the base, of its method and of its unrounded original count.
    methods_that_count = {BASE, _method_of(name), _method_of(original_of(name))}
    is_relearned = CheckpointName.parse(name).derived == RELEARN

    # Guards of the checkpoint come before those of the base: one on the checkpoint says
    # more precisely what is wrong.
    own_first = sorted(guards, key=lambda setup_guard: setup_guard.checkpoint == BASE)
    first_by_name: dict[str, Guard] = {}
    for setup_guard in own_first:
        if setup_guard.name not in REMAINS or setup_guard.passed is not False:
            continue

        method = _method_of(setup_guard.checkpoint)
        # A short training may mend a broken model: only the guard on the relearned
        # checkpoint itself counts.
        is_mended = setup_guard.name == BROKEN and is_relearned and method != name
        if method in methods_that_count and not is_mended:
            first_by_name.setdefault(setup_guard.name, setup_guard)
    return list(first_by_name.values())


def without_void(findings: Iterable[Finding], guards: Iterable[Guard]) -> list[Finding]:
    """Return the findings; those that a setup guard voids have the status ``void``.

    Void findings keep their figures but are no detections.
    """
    guards = list(guards)
    changed = []
    for finding in findings:
        # A detection can be void, and so can a test that detected nothing. Other
        # findings claim nothing.
        is_detection = SEVERITY[finding.alone] >= DETECTED
        is_test_without_detection = (
            finding.family == "primary" and finding.alone == "nothing_shown"
        )
        if is_detection or is_test_without_detection:
            finding = _voided(finding, faults(guards, finding.checkpoint))
        changed.append(finding)
    return changed


def _voided(finding: Finding, failed: Iterable[Guard]) -> Finding:
    """Return a finding, void by the first failed guard that can cause its claim."""
    if finding.voided_by:
        return finding

    for setup_guard in failed:
        audits = REMAINS[setup_guard.name].get(finding.alone, ())
        if finding.audit not in audits and ANY_NAME not in audits:
            return finding.model_copy(
                update={
                    "status": "void",
                    "at_most": None,
                    "voided_by": setup_guard.name,
                }
            )
    return finding


def _method_of(name: str) -> str:
    """Return the method that a seed or a stage belongs to."""
    return entry_of(series_of(name))
