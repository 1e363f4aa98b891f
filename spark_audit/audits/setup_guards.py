"""Whether rows, base and checkpoint are what an audit supposes them to be.

A mistaken setup hides memory: held-out rows that were trained on, swapped lists, a base
that is the checkpoint or has read the rows, a checkpoint that is no language model any
more. Each is a test on the scores of the plain pass, whichever audits asked for it;
:data:`REMAINS` says which claims a failure voids. Only guards that fail are given, and
whether the trained rows fit (:mod:`spark_audit.audits.trained_rows`), which voids none.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.base import Tables, guard
from spark_audit.audits.identifiers import REPRODUCED
from spark_audit.audits.supervision import trained_identifiers
from spark_audit.audits.supervision_guards import supervision_guards
from spark_audit.audits.trained_rows import fits_of_parts, trained_rows_guards
from spark_audit.audits.unguessable import guesses
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
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.intervals import clopper_pearson
from spark_audit.stats.memory_contrast import Memory, Sides, memory

HELD_OUT_BACK, BASE_READ, BROKEN = "held_out_back", "base_read_rows", "broken_model"
"""Setup guards: where one fails, the checkpoint's memory was not tested."""
ALARM = 0.005
"""p below which a test of a setup guard fails: it is asked twice at most for each guard
of a report, so that a sound setup fails in one of 100 **[ours]**."""
REMAINS: Mapping[str, Mapping[Claim, Collection[str]]] = {
    # Held-out rows that were trained on hide memory, and swapped lists reverse it:
    # neither makes trained identifiers likelier than held-out ones.
    HELD_OUT_BACK: {"verbatim": ("extract",), "memory": (ANY_NAME,)},
    # Changes since such a base say nothing. Strings that come back beyond those that
    # the base gives, and canaries among strings that nobody inserted, do.
    BASE_READ: {"verbatim": ("extract",), "memory": ("canary",)},
    # Drift by many nats enlarges every difference that there was before. Candidates
    # of a canary, and word for word, have no such difference.
    BROKEN: {"verbatim": ("extract",), "memory": ("canary",)},
}
"""Setup guard -> claims that its fault cannot cause, and of which audits. Where it
fails all other claims of the checkpoint are void, and so is that nothing was shown."""

WORSE = 3.0
"""Nats per token by which plain text of a working model is not worse than the base's.
"""
UNIT_FACTS = ("kind", "key", "split", "cluster", "type", "trained", "guess", "rate")
"""Of a unit: an ``identifier``, the rest of its row (``text``, or ``canary``), or the
row's ``low`` sensitivity tokens. ``key`` names an identifier, ``trained`` is whether it
stands in a trained row, ``guess`` the kind of an identifier that nobody can guess (else
empty), and ``rate`` how often it is guessed nevertheless, at most."""
UNIT_SCORES = ("n_tokens", "nll", "base", "apart", "sure", "won")
"""Of a checkpoint: summed NLL, and the base's, nats; the largest difference of a token
between the two; whether greedy decoding writes it, without ties and if ties are won."""
Units = Mapping[str, Sequence[tuple[tuple[int, int], tuple[object, ...]]]]
"""Tokens and :data:`UNIT_FACTS` of the identifiers of each row without a canary."""


class Fault(NamedTuple):
    """Why a setup guard fails: the keys of its sentences, and their facts."""

    says: str
    facts: Mapping[str, Fact]
    further: Sequence[str] = ()


class Check(NamedTuple):
    """A setup guard, the checkpoint that it was asked of, and its fault if it fails."""

    name: str
    checkpoint: str
    fault: Fault | None


def _base_is_checkpoint(same: str) -> Fault:
    """Return that base and checkpoint have the same weights, or the same scores."""
    return Fault("base_is_checkpoint", {"same": same})


def setup_guards(
    tables: Tables,
    manifest: Manifest,
    *,
    names: Mapping[str, str],
    weights: Mapping[str, str],
) -> list[Guard]:
    """The setup guards that fail, and whether trained rows fit better than others.

    Parameters
    ----------
    names
        Name in the report -> name among the tables.
    weights
        SHA-256 of weights by name among the tables, the base's too, where known.
    """
    units = _units(manifest)
    checks = list[Check]()
    fits = dict[str, dict[str, Memory]]()
    base, base_units, given = tables.get(BASE, {}).get(Pass()), None, set[str]()
    if base is not None:
        base_units = _scored(base, None, manifest, units)
        given = set(base_units["key"][base_units["won"]])
        checks.append(Check(BASE_READ, BASE, _base_gives(base_units)))

    for name, place in names.items():
        if name == BASE:
            continue
        if place in weights and weights[place] == weights.get(BASE):
            checks.append(Check(BASE_READ, name, _base_is_checkpoint("weights")))
            continue
        if (table := tables[place].get(Pass())) is None:
            continue
        own = _scored(table, base, manifest, units)
        if own["apart"].max() <= REPRODUCED:
            checks.append(Check(BASE_READ, name, _base_is_checkpoint("scores")))
            continue

        unknown = _with_names_of_base(own[~own["key"].isin(given)], base_units)
        back = _held_out_back(unknown)
        same = own[own["trained"] == (own["split"] == "train")]
        parts = (same[same["kind"] == kind] for kind in ("identifier", "text"))
        if back is None and any(map(_learned_the_others, parts)):
            # Held-out rows became likelier since the base, and trained ones did not.
            back = Fault(
                "sides_swapped",
                {"swapped": True},
                further=["sides_likelier", "sides_likelier_asked"],
            )
        broken = _broken(name, own, manifest.reference.usable_vocab)
        checks += [Check(HELD_OUT_BACK, name, back), Check(BROKEN, name, broken)]
        # Further training on other rows hides what was learned before.
        if CheckpointName.parse(name).derived != RELEARN:
            fits[name] = fits_of_parts(table, base, manifest)

    failed = [
        guard(
            check.name,
            check.fault.says,
            check.fault.facts,
            further=check.fault.further,
            passed=False,
            checkpoint=check.checkpoint,
        )
        for check in checks
        if check.fault is not None
    ]
    return [*supervision_guards(manifest), *failed, *trained_rows_guards(fits)]


def consistent(guards: Iterable[Guard]) -> list[Guard]:
    """Return the guards without those that another one refutes.

    Next to a base that has read the rows, a model that has not looks broken: only one
    that is worse than guessing is broken then.
    """
    guards = list(guards)
    failed = {(one.name, one.checkpoint) for one in guards if one.passed is False}
    if (BASE_READ, BASE) not in failed:
        return guards
    return [one for one in guards if one.name != BROKEN or _is_below_chance(one)]


def _is_below_chance(broken: Guard) -> bool:
    plain_text, chance = broken.facts.get("plain_text"), broken.facts.get("chance")
    if not isinstance(plain_text, Row) or not isinstance(chance, float):
        return True
    return plain_text.value is None or plain_text.value > chance


def _units(manifest: Manifest) -> Units:
    rows = [row for row in manifest.examples if row.canary_id is None]
    trained_on = trained_identifiers(manifest, canaries=False)
    guessed = guesses(manifest)
    found = dict[str, Sequence[tuple[tuple[int, int], tuple[object, ...]]]]()
    for row in rows:
        units = list[tuple[tuple[int, int], tuple[object, ...]]]()
        for span, tokens in row.identifiers:
            key = f"{span.start}:{row.id}"
            # What stands in a trained row is not held out, whatever row it is read in.
            trained = row.split == "train" or trained_on.dose_of(row, span) != 0
            guess = guessed[row.id, span.start, span.end]
            facts = (key, row.split, row.cluster, span.type, trained)
            units.append((tokens, ("identifier", *facts, guess.kind, guess.rate)))
        found[row.id] = units
    return found


def _scored(
    table: TokenTable, base: TokenTable | None, manifest: Manifest, units: Units
) -> pd.DataFrame:
    """Facts and scores of all units, without a base next to the manifest's scores."""
    found = list[tuple[object, ...]]()
    for row in manifest.examples:
        if row.id not in table:
            continue
        rows = table.rows(row.id)
        where, nll = table.position[rows], table.columns["nll"][rows].astype(np.float64)
        theirs = row.unll[where] / 1e6
        if base is not None and row.id in base:
            theirs = base.columns["nll"][base.rows(row.id)].astype(np.float64)
        first = sure = np.zeros(len(where), dtype=bool)
        if "rank_lo" in table.columns:
            first = table.columns["rank_lo"][rows] == 1
            sure = first & (table.columns["ties"][rows] == 0)
        apart, rest = np.abs(nll - theirs), np.ones(len(where), dtype=bool)
        parts = list[tuple[np.ndarray, tuple[object, ...]]]()
        for (start, end), own in units.get(row.id, ()):
            parts.append(((where >= start) & (where < end), own))
            rest &= ~parts[-1][0]
        facts = ("", row.split, row.cluster, row.task, row.split == "train", "", 1.0)
        parts.append((rest, ("text" if row.canary_id is None else "canary", *facts)))
        parts.append((np.isin(where, row.low), ("low", *facts)))
        for at, own in parts:
            if at.any():
                sums = (at.sum(), nll[at].sum(), theirs[at].sum(), apart[at].max())
                found.append((*own, *sums, sure[at].all(), first[at].all()))
    kinds = dict.fromkeys((*UNIT_SCORES, "rate"), float)
    kinds |= dict.fromkeys(("trained", "sure", "won"), bool)
    return pd.DataFrame(found, columns=[*UNIT_FACTS, *UNIT_SCORES]).astype(kinds)


class Returned(NamedTuple):
    """How many clusters of unguessable identifiers come back on one side.

    ``rate`` is the mean chance that guessing gives back one of a cluster's.
    """

    n_clusters: int
    n_hits: int
    rate: float


def _returned(spans: pd.DataFrame) -> Returned:
    unguessable = spans[spans["guess"] != ""]
    clusters = unguessable.groupby("cluster").agg(
        hit=("sure", "any"), tries=("rate", "sum")
    )
    if clusters.empty:
        return Returned(0, 0, 1.0)
    rate = float(clusters["tries"].clip(upper=1.0).mean())
    return Returned(len(clusters), int(clusters["hit"].sum()), rate)


def _sides(spans: pd.DataFrame) -> tuple[Returned, Returned]:
    """Return what comes back of held-out identifiers, and of trained rows'."""
    held_out = spans[~spans["trained"]]
    trained = spans[spans["split"] == "train"]
    return _returned(held_out), _returned(trained)


def _guess_p(side: Returned) -> float:
    """Return the chance that guessing gives as many back; of one alone it is 1.

    The tail is that of a binomial with the clusters' mean rate, which is no smaller
    than that of unequal rates (Hoeffding, 1956).
    """
    if side.n_hits < 2:
        return 1.0
    return float(scipy.stats.binom.sf(side.n_hits - 1, side.n_clusters, side.rate))


def _more(one: Returned, two: Returned) -> float:
    """Fisher's p that the first side returns no larger share than the second."""
    table = np.array(
        [[side.n_hits, side.n_clusters - side.n_hits] for side in (one, two)]
    )
    return float(scipy.stats.fisher_exact(table, alternative="greater").pvalue)


def _with_names_of_base(spans: pd.DataFrame, base: pd.DataFrame | None) -> pd.DataFrame:
    """Return the units with the rate at which names are guessed by what the base gives.

    Names may be known from anywhere: without a base none of them counts, and where it
    gives some back, as many may be guessed, at the upper limit of their share.
    """
    is_name = spans["guess"] == "name"
    if base is None:
        return spans.assign(guess=spans["guess"].where(~is_name, ""))
    names = base[base["guess"] == "name"]
    n_given = int(names["won"].sum())
    if not n_given:
        return spans
    _, limit = clopper_pearson(n_given, len(names))
    rate = spans["rate"].where(~is_name, spans["rate"].clip(lower=limit))
    return spans.assign(rate=rate)


def _held_out_back(spans: pd.DataFrame) -> Fault | None:
    """That unguessable held-out identifiers come back which the base does not give."""
    held, trained = _sides(spans)
    if _guess_p(held) >= ALARM:
        return None
    held_out_hits = Hits(count=held.n_hits, of=held.n_clusters)
    if trained.n_clusters and _more(held, trained) < ALARM:
        trained_hits = Hits(count=trained.n_hits, of=trained.n_clusters)
        return Fault(
            "sides_swapped",
            {"held_out": held_out_hits, "trained": trained_hits},
            further=["sides_reproduced", "sides_asked"],
        )
    return Fault(
        "held_out_back", {"held_out": held_out_hits}, further=["held_out_asked"]
    )


def _learned_the_others(part: pd.DataFrame) -> bool:
    """Whether the held-out side was learned, and the trained side was not.

    Where trained strings were suppressed they rise by more than the others fall; text
    that an overfitted model never saw rises by less.
    """
    if part["split"].nunique() < 2:
        return False
    trained, tokens = part["split"] == "train", part["n_tokens"]
    sides = Sides.of(trained, part["cluster"], [pd.factorize(part["type"])[0]], tokens)
    part = part.assign(change=part["nll"] - part["base"])
    own = memory(part["change"].to_numpy(np.float64), sides)
    fell = own.held_out.high is not None and own.held_out.high < 0
    p, total = own.t_p(), (own.trained.value or 0.0) + (own.held_out.value or 0.0)
    if not fell or total > 0 or p is None or (own.difference.value or 0.0) <= 0:
        return False
    clusters = part.groupby(["split", "cluster"])[["change", "n_tokens"]].sum()
    means = clusters["change"] / clusters["n_tokens"]
    both = means["test"], means["train"]
    ranked = scipy.stats.mannwhitneyu(*both, alternative="less").pvalue
    return bool(max(p, ranked) < ALARM / 2)


def _base_gives(spans: pd.DataFrame) -> Fault | None:
    """That the base writes out trained identifiers, and no held-out ones.

    Of names nothing follows: it may know persons of either side.
    """
    held, trained = _sides(spans[spans["guess"] != "name"])
    if not held.n_clusters or held.n_hits or _guess_p(trained) >= ALARM:
        return None
    if _more(trained, held) >= 10 * ALARM:
        return None
    hits = Hits(count=trained.n_hits, of=trained.n_clusters)
    return Fault("base_read_rows", {"trained": hits, "held_out": held.n_clusters})


def _broken(name: str, units: pd.DataFrame, vocabulary: int) -> Fault | None:
    """That plain text is as unlikely as by guessing, or far less likely than before."""
    chance, low = math.log(max(vocabulary, 2)), units[units["kind"] == "low"]
    # Not a number: no such text was scored, and nothing is concluded.
    nll, of_base = low[["nll", "base"]].sum() / low["n_tokens"].sum()
    if not (nll > chance or nll - of_base > WORSE):
        return None
    n_clusters = units["cluster"][units["kind"] == "text"].nunique()

    def row(checkpoint: str, value: float) -> Row:
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
        {"plain_text": row(name, nll), "base": row(BASE, of_base), "chance": chance},
        further=["broken_model_compared"],
    )


def faults(guards: Iterable[Guard], name: str) -> list[Guard]:
    """The setup guards that failed for a checkpoint, the first of each name.

    Those of its seeds, of its stages and of what it was rounded from count as its own,
    and those of the base as everybody's. The base itself has none: it is no suspect.
    """
    if name == BASE:
        return []
    whose = {BASE, _entry(name), _entry(original_of(name))}
    mended = CheckpointName.parse(name).derived == RELEARN
    found: dict[str, Guard] = {}
    # Its own reason first: the base of a checkpoint that is its base has read the rows.
    for one in sorted(guards, key=lambda one: one.checkpoint == BASE):
        # A short training may mend a broken model: it is asked of its own weights.
        own = one.name != BROKEN or not mended or _entry(one.checkpoint) == name
        if one.name in REMAINS and one.passed is False and own:
            if _entry(one.checkpoint) in whose:
                found.setdefault(one.name, one)
    return list(found.values())


def without_void(findings: Iterable[Finding], guards: Iterable[Guard]) -> list[Finding]:
    """The findings; those that a setup guard voids have the status ``void``.

    They keep their figures, and are no detections.
    """
    guards, made = list(guards), []
    for one in findings:
        tested = one.family == "primary" and one.alone == "nothing_shown"
        claims = tested or SEVERITY[one.alone] >= DETECTED
        for fault in faults(guards, one.checkpoint) if claims else ():
            remains = REMAINS[fault.name].get(one.alone, ())
            if not one.voided_by and not {one.audit, ANY_NAME} & {*remains}:
                void: dict[str, Any] = {"status": "void", "at_most": None}
                void["voided_by"] = fault.name
                one = one.model_copy(update=void)
        made.append(one)
    return made


def _entry(name: str) -> str:
    return entry_of(series_of(name))
