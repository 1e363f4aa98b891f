"""Canaries with their ranks: tests of them, and tables of doses and of epsilon.

Frames here hold one row a canary of one checkpoint and part, with the columns ``rank``
(ties counted behind), ``ties``, ``mid`` (mid-rank), ``exposure`` and ``lower_tail``
(bits), ``nll``, ``dose``, ``held_out``, ``n_candidates``. Figures and p values give a
tie what it would get on average if it were broken at random; bounds of epsilon count it
against the attacker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, product
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pandas as pd
import scipy

from spark_audit import sentences
from spark_audit.data.canaries import FORMATS, RANKED
from spark_audit.errors import InputError
from spark_audit.names import BASE
from spark_audit.results import Row
from spark_audit.stats import memorisation
from spark_audit.stats.bootstrap import holm
from spark_audit.stats.intervals import ratio_estimate

Record = dict[str, Any]

MOST_TIED = 0.9
TIED = (
    "nearly all candidates are tied: the model collapsed, or its logits have too "
    "little precision"
)


def ranked(evidence: pd.DataFrame, kind: str = "canary") -> pd.DataFrame:
    """The evidence's ranks of one kind with their exposures."""
    frame = evidence[evidence["kind"] == kind]
    size = frame["n_candidates"].to_numpy()
    if len(set(size.tolist())) > 1:
        raise InputError(
            "canaries have candidate sets of different sizes",
            fix="audit all checkpoints with the same manifest",
        )
    rank, ties = frame["rank"].to_numpy(), frame["ties"].to_numpy()
    return frame.assign(
        mid=rank + ties / 2,
        exposure=memorisation.exposure_bits(rank, size, ties=ties),
        lower_tail=memorisation.lower_tail_exposure(rank, size, ties=ties),
    )


def unresolved(frame: pd.DataFrame) -> set[tuple[str, str]]:
    """Checkpoint and part of which nothing can be ranked.

    So it is where none of the canaries is :func:`resolved`: one that is might be the
    one that was remembered.
    """
    parts = by_part(frame)
    return {(name, part) for name, part, few in parts if not resolved(few).any()}


def resolved(frame: pd.DataFrame) -> pd.Series[bool]:
    """Whether a canary is tied with fewer than :data:`MOST_TIED` of its candidates."""
    return frame["ties"] < MOST_TIED * (frame["n_candidates"] - 1)


def tied(frame: pd.DataFrame) -> int:
    """Canaries that are tied with other candidates."""
    return int(np.count_nonzero(frame["ties"]))


def trained(frame: pd.DataFrame) -> pd.DataFrame:
    """Canaries that stand in train rows."""
    return frame[(frame["dose"] > 0) & ~frame["held_out"].astype(bool)]


def held_out(frame: pd.DataFrame) -> pd.DataFrame:
    """Canaries that no model was trained on."""
    return frame[frame["held_out"].astype(bool)]


def by_part(frame: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Checkpoint, part and rows, in the order of the evidence."""
    parts = dict(iter(frame.groupby(["checkpoint", "part"], sort=False)))
    for name, part in product(dict.fromkeys(frame["checkpoint"]), RANKED):
        if (name, part) in parts:
            yield str(name), part, parts[name, part]


def size_of(frame: pd.DataFrame) -> int:
    """Candidates of each canary: sets of different sizes are refused."""
    return int(frame["n_candidates"].iloc[0])


def rises(part: pd.DataFrame, name: str) -> np.ndarray:
    """Changes of exposure since the base, of canaries of one part that both have."""
    ours, base = (part[part["checkpoint"] == one] for one in (name, BASE))
    both = ours.merge(base, on="canary_id", suffixes=("", "_base"))
    return (both["exposure"] - both["exposure_base"]).to_numpy(np.float64)


def hits_of(frame: pd.DataFrame, *, k: int) -> memorisation.TopK:
    """Canaries among the first k, compared with chance."""
    size, ties = size_of(frame), frame["ties"]
    return memorisation.top_k(frame["rank"], k=k, n_candidates=size, ties=ties)


LEVEL = 0.95


def row_of(name: str, part: str, metric: str, n: int, **figures: Any) -> Row:
    """A figure of n canaries that only a finding shows."""
    place = {"audit": "canary", "checkpoint": name, "of": part, "metric": metric}
    return Row(**{**place, "n": n, "clusters": n, **figures})


def p_by_chance(frame: pd.DataFrame, column: str) -> float:
    """Chance of a mean ``exposure`` or ``lower_tail`` as high under uniform ranks."""
    # The mirrored rank is uniform too: one distribution serves both ends.
    null = memorisation.null_mean(frame["n_candidates"])
    return null.above(float(frame[column].mean()))


def p_risen(rises: np.ndarray) -> float:
    """Wilcoxon's one-sided p value that exposures rose; 1 where none moved."""
    if not rises.any():
        return 1.0
    return float(scipy.stats.wilcoxon(rises, alternative="greater").pvalue)


@dataclass(frozen=True)
class Tested:
    """Adjusted one-sided p value of one test, with what it was taken on."""

    checkpoint: str
    part: str
    n: int
    value: float
    p: float
    over: int = 1
    """Tests that the p value is adjusted over."""

    @property
    def detected(self) -> bool:
        """Whether it is significant."""
        return self.p <= 1 - LEVEL

    def facts(self, metric: str, **figures: Any) -> dict[str, Any]:
        """Its figure by the name of the metric, p, and over how many tests that is."""
        place = (self.checkpoint, self.part, metric)
        row = row_of(*place, self.n, **{"value": self.value, "unit": "bits", **figures})
        return {metric: row, "p": self.p, "over": self.over}


T = TypeVar("T", bound=Tested)


def adjusted(tests: Sequence[T]) -> list[T]:
    """The tests with Holm's correction, in their order."""
    ps = holm([test.p for test in tests]).tolist()
    return [replace(t, p=p, over=len(ps)) for t, p in zip(tests, ps, strict=True)]


def tests_of(
    frame: pd.DataFrame, column: str, p_of: Callable[[pd.DataFrame], float]
) -> list[Tested]:
    """A test of each checkpoint and part, on the mean of a column."""
    return [
        Tested(name, part, len(chosen), float(chosen[column].mean()), p_of(chosen))
        for name, part, chosen in by_part(frame)
    ]


def uniform_tests(frame: pd.DataFrame) -> list[Tested]:
    """Tests that ranks are uniform, over all parts by Holm, smallest p value first.

    Parts in which nothing is ranked (:func:`unresolved`) are not tested.
    """

    def p(chosen: pd.DataFrame) -> float:
        rank, size, ties = (chosen[k] for k in ("rank", "n_candidates", "ties"))
        return memorisation.uniformity_p(rank, size, ties=ties)

    lost, tests = unresolved(frame), tests_of(frame, "mid", p)
    known = [one for one in tests if (one.checkpoint, one.part) not in lost]
    return sorted(adjusted(known), key=attrgetter("p"))


def two_ended(frame: pd.DataFrame, parts: Collection[str]) -> tuple[Tested, Tested]:
    """The clearest tests of one checkpoint's trained canaries, of some of its parts.

    That of the remembered end, and that of the suppressed one. By Holm over both ends
    of all parts, those that are left out afterwards too.
    """
    ends = ("exposure", "lower_tail")
    by_end = [tests_of(frame, end, partial(p_by_chance, column=end)) for end in ends]
    tests, half = adjusted([*chain(*by_end)]), len(by_end[0])
    first, last = (
        min((test for test in end if test.part in parts), key=attrgetter("p", "part"))
        for end in (tests[:half], tests[half:])
    )
    return first, last


@dataclass(frozen=True, eq=False)
class Judged:
    """All ranked canaries, and what holds before any checkpoint is spoken of."""

    frame: pd.DataFrame

    @cached_property
    def base(self) -> list[Tested]:
        """Tests of the base's ranks: it saw none of the canaries, held out or not."""
        return uniform_tests(self.frame[self.frame["checkpoint"] == BASE])

    @property
    def uniform(self) -> bool:
        """Whether nothing speaks against chance as the null."""
        return not (self.base and self.base[0].detected)

    @cached_property
    def tied(self) -> set[tuple[str, str]]:
        """Checkpoint and part of which nothing can be ranked."""
        return unresolved(trained(self.frame))

    @cached_property
    def kinds(self) -> dict[str, set[str]]:
        """Checkpoint -> ``ahead``, ``behind``: where its held-out canaries left chance.

        By :func:`uniform_tests`, over a checkpoint's parts by Holm. No model was
        trained on them, so that strings of their kind moved, and chance is no null.
        """
        middle = (size_of(self.frame) + 1) / 2
        return {
            str(name): {
                "ahead" if test.value < middle else "behind"
                for test in uniform_tests(held_out(own))
                if test.detected
            }
            for name, own in self.frame.groupby("checkpoint")
        }

    @cached_property
    def control(self) -> list[Tested]:
        """Whether canaries of the highest dose were found, in any checkpoint and part.

        Corrected by Holm over checkpoints and parts, since one success is enough for a
        part (and for that part alone). Where the base's own ranks are not uniform, the
        rise since the base is tested instead, of so many doses, the highest first, that
        it could be significant: of n canaries that all rise p is 2^-n. A part that the
        base was not scored on has no rise: its p is 1.
        """
        most = whole = trained(self.frame)
        for least in sorted({*whole["dose"]}, reverse=True):
            most = whole[whole["dose"] >= least]
            sizes = [len(own) for name, _, own in by_part(most) if name != BASE]
            if self.uniform or sum(0.5**n for n in sizes) <= 1 - LEVEL:
                break

        def p(chosen: pd.DataFrame) -> float:
            if self.uniform:
                return p_by_chance(chosen, "exposure")
            name, part = chosen[["checkpoint", "part"]].iloc[0]
            return p_risen(rises(most[most["part"] == part], name))

        tests = tests_of(most[most["checkpoint"] != BASE], "exposure", p)
        return sorted(adjusted(tests), key=attrgetter("p"))

    @property
    def sensitive(self) -> set[str]:
        """Parts whose positive control was found in some checkpoint."""
        return {test.part for test in self.control if test.detected}

    @property
    def lost(self) -> list[str]:
        """Parts whose positive control was found in none."""
        missed = {test.part for test in self.control} - self.sensitive
        return [part for part in RANKED if part in missed]

    @property
    def supposed(self) -> bool:
        """Whether neither the base nor a draw of ours tells that chance is uniform."""
        drawn = set(trained(self.frame)["format"]) <= set(FORMATS)
        return not self.base and not drawn


# --- tables ---------------------------------------------------------------------------

KS = (1, 10)
"""Numbers of guesses that epsilon is bounded from: fixed here, before any result."""


def dose_table(frame: pd.DataFrame) -> Iterator[Record]:
    """Each dose compared with chance; dose 0 are the held-out canaries."""
    for name, part, whole in by_part(frame):
        doses = whole["dose"].where(~whole["held_out"].astype(bool), 0)
        for dose, chosen in whole.groupby(doses):
            n, most = len(chosen), float(np.log2(size_of(chosen)))
            mean = ratio_estimate(chosen["exposure"], np.ones(n), bounds=(0.0, most))
            low, high = memorisation.null_mean(chosen["n_candidates"]).band(LEVEL)
            # Where nothing is ranked there is no test.
            able = bool(resolved(chosen).any())
            yield {
                "checkpoint": name,
                "part": part,
                "dose": int(dose),
                "held_out": bool(chosen["held_out"].iloc[0]),
                "canaries": n,
                "tied": tied(chosen),
                "exposure_mean": float(chosen["exposure"].mean()),
                "exposure_low": mean.low,
                "exposure_high": mean.high,
                "exposure_most": most,
                "chance_exposure_low": low,
                "chance_exposure_high": high,
                "p_remembered": p_by_chance(chosen, "exposure") if able else None,
                "p_suppressed": p_by_chance(chosen, "lower_tail") if able else None,
                "status": "ok" if able else "not_resolvable",
            }


# --- bounds of epsilon ----------------------------------------------------------------
#
# From two kinds of guesses: which of its candidates a planted canary is, and which of a
# pair of canaries was planted. The second is a game of one run (Steinke, Nasr and
# Jagielski 2023; Mahloujifar, Melis and Chaudhuri 2025, of two alternatives), and says
# something of (epsilon, delta), too. Its guess: of a pair, the one that ranks further
# ahead among its candidates. Ranks are compared, not likelihoods: the rank of a canary
# that is not in the data is uniform, whichever rows it stands in.

DELTA = 1e-5
"""Of a record: the other delta that bounds of one run are given for."""
BOUNDS = (
    *("epsilon_per_canary", "epsilon_per_record"),
    *("add_remove_per_canary", "add_remove_per_record"),
)
"""Columns of the bounds of one :class:`~spark_audit.stats.memorisation.GuessBound`."""
DECLARED = ("full", "all", 1)
"""Part, dose and k of the bound declared before any result: all canaries at once."""


def _drawn(judged: Judged) -> pd.DataFrame:
    """Synthetic canaries: theirs is the uniform draw that bounds rest on.

    None where the base's ranks speak against it.
    """
    frame = judged.frame
    drawn = frame["format"].isin(list(FORMATS)) & judged.uniform
    return frame[drawn & (frame["checkpoint"] != BASE)]


def _by_dose(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """All canaries, and those of each dose where there are several."""
    doses = [(str(dose), part) for dose, part in frame.groupby("dose")]
    if doses:
        yield DECLARED[1], frame
    if len(doses) > 1:
        yield from doses


def epsilon_table(judged: Judged) -> list[Record]:
    """Lower bounds of epsilon, of checkpoints that were trained on the canaries.

    A canary that is tied across the k-th place is no hit, whatever share of a hit it is
    on average: hits are then never more than those of a guess that breaks ties at
    random, which is what the bound holds for.
    """
    size = size_of(judged.frame)
    found = [
        {
            "checkpoint": name,
            "part": part,
            "dose": dose,
            "k": k,
            "declared": (part, dose, k) == DECLARED,
            "canaries": len(chosen),
            "hits": int(np.sum(chosen["rank"] + chosen["ties"] <= k)),
            "rows": int(chosen["dose"].max()),
        }
        for name, part, whole in by_part(trained(_drawn(judged)))
        for (dose, chosen), k in product(_by_dose(whole), KS)
        if k < size
    ]

    def bounds(record: Record, share: float) -> Record:
        count = record["hits"], record["canaries"]
        options = {"k": record["k"], "rows": record["rows"], "significance": share}
        bound = memorisation.candidate_guess_bound(*count, n_candidates=size, **options)
        return dict(zip(BOUNDS, bound, strict=True))

    return _bounded(found, bounds, judged, assumed="drawn")


def one_run_table(judged: Judged) -> list[Record]:
    """Lower bounds of epsilon from the coins that chose between two canaries each.

    Half of the pairs are guessed, those whose ranks lie furthest apart; that number was
    fixed beforehand. All bounds of a row are thresholds of one count, and hold
    together. ``*_at_delta`` are at :data:`DELTA` a record, ``gaussian_mu`` is what a
    Gaussian mechanism would have.
    """
    found: list[Record] = []
    tossed = _drawn(judged)
    for name, part, whole in by_part(tossed[tossed["pair"] != ""]):
        for dose, pairs in _by_dose(_pairs(whole)):
            guesses = memorisation.declared_guesses(len(pairs))
            surest = pairs.sort_values("gap", ascending=False, kind="stable")[:guesses]
            record = {
                "checkpoint": name,
                "part": part,
                "dose": dose,
                "declared": (part, dose) == DECLARED[:2],
                "pairs": len(pairs),
                "guesses": guesses,
                # A guess at a tie is one that is wrong.
                "right": int((surest["at"] < surest["at_never"]).sum()),
                "rows": int(pairs["dose"].max()),
            }
            found.append(record)
    return _bounded(found, coin_figures, judged, assumed="tossed")


def coin_figures(record: Record, share: float) -> Record:
    """Bounds from so many ``right`` of ``guesses`` at ``pairs``, one-sided at a level.

    A canary stands in ``rows`` at most.
    """
    count = record["right"], record["guesses"], record["pairs"]
    options: dict[str, Any] = {"rows": record["rows"], "significance": share}
    pure = memorisation.one_run_bound(*count, **options)
    at_delta = memorisation.one_run_bound(*count, delta=DELTA, **options)
    return {
        **dict(zip(BOUNDS, pure, strict=True)),
        "epsilon_per_record_at_delta": at_delta.record,
        "gaussian_mu_per_record": memorisation.one_run_mu(*count, **options),
    }


Bounds: TypeAlias = Callable[[Record, float], Record]
"""Columns of bounds from a record, one-sided at a level."""


def _bounded(
    found: list[Record], bounds: Bounds, judged: Judged, *, assumed: str
) -> list[Record]:
    """The records with their bounds of epsilon, by a one-sided significance.

    The declared bounds hold together at 95 % over checkpoints, all others together
    too (Bonferroni). Of a part without its positive control none is given, nor of a
    checkpoint whose held-out canaries rank above chance.
    """
    # How many bounds there are is known before any result, sensitive parts or not.
    declared = sum(record["declared"] for record in found)
    for record in found:
        family = declared if record["declared"] else len(found) - declared
        share = (1 - LEVEL) / family
        figures = bounds(record, share)
        epsilon = figures["epsilon_per_record"]
        key = "bounded" if epsilon > 0 else "bound_of_0"
        if record["part"] not in judged.sensitive:
            key, figures = "uncontrolled", dict.fromkeys(figures)
        elif "ahead" in judged.kinds[record["checkpoint"]]:
            key, figures = "ungrounded", dict.fromkeys(figures)
        record |= {"significance": share, **figures}
        facts = {**record, "epsilon": epsilon, "assumed": assumed}
        record["says"] = sentences.render(f"canary.{key}", **facts)
    return found


def _pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """Ranks of both canaries of each pair that has both, in the order of the pairs.

    ``at`` is the planted one's, ``at_never`` the other's. Ties are broken at random, so
    that a rank without memory is exactly uniform.
    """
    order = frame.sort_values("canary_id", kind="stable")
    jitter = np.random.default_rng(0).random(len(order))
    order = order.assign(at=order["rank"] + np.floor(jitter * (order["ties"] + 1)))
    ours, never = (side(order)[["pair", "dose", "at"]] for side in (trained, held_out))
    options: Any = {"on": "pair", "suffixes": ("", "_never"), "validate": "1:1"}
    both = ours.merge(never, **options).sort_values("pair")
    return both.assign(gap=np.abs(np.log(both["at"] / both["at_never"])))
