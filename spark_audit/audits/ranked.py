"""Ranked canaries: what chance gives for them, and the tests of the canary audit.

Frames here hold one row a canary of one checkpoint and part, with the columns ``rank``
(ties counted behind), ``ties``, ``mid`` (mid-rank), ``exposure`` and ``lower_tail``
(bits), ``nll``, ``dose``, ``held_out``, ``n_candidates``. Figures and p values give a
tie what it would get on average if it were broken at random; bounds of epsilon count it
against the attacker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from spark_audit.audits.contract import BASE
from spark_audit.audits.wording import adjusted_p, confidence
from spark_audit.data.canaries import FORMATS, RANKED
from spark_audit.errors import InputError
from spark_audit.results import Contrast
from spark_audit.stats.bootstrap import holm, sign_flip
from spark_audit.stats.chance_ranks import (
    TopK,
    Uniformity,
    chance_mde,
    dose_trend,
    null_mean,
    null_moments,
    top_k,
    uniformity,
)
from spark_audit.stats.epsilon import candidate_guess_bound
from spark_audit.stats.exposure import exposure_bits, lower_tail_exposure

Record = dict[str, Any]

LEVEL = 0.95
KS = (1, 10)
"""Numbers of guesses that epsilon is bounded from: fixed here, before any result."""

STATED = "each canary was drawn at random from its candidates"
MOST_TIED = 0.9
COLLAPSED = "a collapsed model or logits of too little precision"
IN_EXPECTATION = "they count as on average over random orders"
UNCONTROLLED = "nothing: the positive control was not detected"
UNGROUNDED = "nothing: held-out canaries rank above chance too"
DECLARED = ("full", "all", 1)
"""Part, dose and k of the bound declared before any result: all canaries at once."""


def ranked(evidence: pd.DataFrame, kind: str = "canary") -> pd.DataFrame:
    """The evidence's ranks of one kind with their exposures."""
    frame = evidence[evidence["kind"] == kind]
    size = frame["n_candidates"].to_numpy()
    if len(set(size.tolist())) > 1:
        raise InputError(
            "canaries have candidate sets of different sizes",
            fix="audit them against one manifest",
        )
    rank, ties = frame["rank"].to_numpy(), frame["ties"].to_numpy()
    if not len(frame):
        return frame.assign(mid=0.0, exposure=0.0, lower_tail=0.0)
    return frame.assign(
        mid=rank + ties / 2,
        exposure=exposure_bits(rank, size, ties=ties),
        lower_tail=lower_tail_exposure(rank, size, ties=ties),
    )


def unresolved(frame: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Checkpoint and part of which nothing can be ranked -> why.

    So it is where none of the canaries is :func:`resolved`: one that is might be the
    one that was remembered.
    """
    found = {}
    for name, part, chosen in by_part(frame):
        if not resolved(chosen).any():
            whole = (chosen["ties"] == chosen["n_candidates"] - 1).all()
            which = "all" if whole else "nearly all"
            found[name, part] = f"{which} candidates are tied: {COLLAPSED}"
    return found


def resolved(frame: pd.DataFrame) -> pd.Series[bool]:
    """Whether a canary is tied with fewer than :data:`MOST_TIED` of its candidates."""
    return frame["ties"] < MOST_TIED * (frame["n_candidates"] - 1)


def tied_note(frame: pd.DataFrame) -> str:
    """What is said where ties are broken; empty where there is none."""
    tied = int(np.count_nonzero(frame["ties"]))
    if not tied:
        return ""
    return f"{tied} of {len(frame)} are tied with other candidates: {IN_EXPECTATION}"


def trained(frame: pd.DataFrame) -> pd.DataFrame:
    """Canaries that stand in train rows."""
    return frame[(frame["dose"] > 0) & ~frame["held_out"].astype(bool)]


def held_out(frame: pd.DataFrame) -> pd.DataFrame:
    """Canaries that no model was trained on."""
    return frame[frame["held_out"].astype(bool)]


def by_part(frame: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Checkpoint, part and rows, in the order of the evidence."""
    for name in dict.fromkeys(frame["checkpoint"]):
        of_name = frame[frame["checkpoint"] == name]
        for part in RANKED:
            chosen = of_name[of_name["part"] == part]
            if len(chosen):
                yield str(name), part, chosen


# --- one-sided tests ------------------------------------------------------------------


def p_remembered(frame: pd.DataFrame) -> float:
    """Chance of a mean exposure as high under uniform ranks."""
    null = null_mean(frame["n_candidates"].to_numpy())
    return null.above(float(frame["exposure"].mean()))


def p_suppressed(frame: pd.DataFrame) -> float:
    """Chance of a mean lower-tail exposure as high under uniform ranks."""
    # The mirrored rank is uniform too: one distribution serves both ends.
    null = null_mean(frame["n_candidates"].to_numpy())
    return null.above(float(frame["lower_tail"].mean()))


def p_risen(frame: pd.DataFrame, base: pd.DataFrame) -> float:
    """Wilcoxon's one-sided p value that exposure rose since the base model."""
    change, _ = changes(frame, base, "exposure")
    if not change.any():
        return 1.0
    return float(stats.wilcoxon(change, alternative="greater").pvalue)


def changes(
    frame: pd.DataFrame, base: pd.DataFrame, column: str
) -> tuple[np.ndarray, list[str]]:
    """Per-canary difference of a column, of canaries that both have."""
    ours, theirs = (f.set_index("canary_id")[column] for f in (frame, base))
    both = [name for name in ours.index if name in theirs.index]
    return (ours[both] - theirs[both]).to_numpy(np.float64), both


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

    @property
    def said(self) -> str:
        """The p value in words."""
        return adjusted_p(self.p, self.over)


def adjusted(tests: list[Tested]) -> list[Tested]:
    """The tests with Holm's correction, smallest p value first."""
    if not tests:
        return []
    ps = holm([test.p for test in tests])
    made = [
        replace(t, p=float(p), over=len(ps)) for t, p in zip(tests, ps, strict=True)
    ]
    return sorted(made, key=lambda test: test.p)


def base_tests(frame: pd.DataFrame) -> list[Tested]:
    """Tests that the base model's ranks are uniform, over parts by Holm.

    The base saw none of the canaries, held out or not. Parts in which it ranks nothing
    (:func:`unresolved`) are not tested.
    """
    return _uniform_tests(frame[frame["checkpoint"] == BASE])


def kinds_moved(frame: pd.DataFrame) -> dict[str, set[str]]:
    """Checkpoint -> ``ahead``, ``behind``: where its held-out canaries left chance.

    By the test of :func:`base_tests`, over a checkpoint's parts by Holm. No model was
    trained on them, so that strings of their kind moved, and chance is no null there.
    """
    found: dict[str, set[str]] = {}
    never = held_out(frame)
    for name in dict.fromkeys(frame["checkpoint"]):
        chosen = never[never["checkpoint"] == name]
        found[str(name)] = {
            "ahead" if t.value < (chosen["n_candidates"].iloc[0] + 1) / 2 else "behind"
            for t in _uniform_tests(chosen)
            if t.detected
        }
    return found


def _uniform_tests(frame: pd.DataFrame) -> list[Tested]:
    found = []
    lost = unresolved(frame)
    for name, part, chosen in by_part(frame):
        if (name, part) in lost:
            continue
        test = _uniformity(chosen)
        # Two looks at the same ranks: Bonferroni.
        p = min(1.0, 2 * min(test.z_p, test.ks_p))
        found.append(Tested(name, part, len(chosen), float(chosen["mid"].mean()), p))
    return adjusted(found)


def _uniformity(frame: pd.DataFrame) -> Uniformity:
    columns = (frame[name].to_numpy() for name in ("rank", "n_candidates"))
    return uniformity(*columns, ties=frame["ties"].to_numpy())


def control_tests(frame: pd.DataFrame, *, uniform_base: bool) -> list[Tested]:
    """Whether the canaries of the highest dose were found, in any checkpoint and part.

    Corrected by Holm over checkpoints and parts, since one success is enough for a
    part (and for that part alone). Where the base's own ranks are not uniform, the
    rise since the base is tested instead.
    """
    found = []
    whole = trained(frame)
    if not len(whole):
        return []
    most = whole[whole["dose"] == whole["dose"].max()]
    base = {part: chosen for name, part, chosen in by_part(most) if name == BASE}
    for name, part, chosen in by_part(most):
        if name == BASE:
            continue
        value = float(chosen["exposure"].mean())
        if uniform_base or part not in base:
            p = p_remembered(chosen)
        else:
            p = p_risen(chosen, base[part])
        found.append(Tested(name, part, len(chosen), value, p))
    return adjusted(found)


def two_ended(frame: pd.DataFrame) -> dict[str, list[Tested]]:
    """Tests of one checkpoint's trained canaries at both ends, by Holm over all six."""
    tests = [
        (end, Tested(name, part, len(chosen), float(chosen[column].mean()), p(chosen)))
        for name, part, chosen in by_part(trained(frame))
        for end, column, p in (
            ("remembered", "exposure", p_remembered),
            ("suppressed", "lower_tail", p_suppressed),
        )
    ]
    found: dict[str, list[Tested]] = {"remembered": [], "suppressed": []}
    if tests:
        ps = holm([test.p for _, test in tests])
        for (end, t), p in zip(tests, ps, strict=True):
            found[end].append(replace(t, p=float(p), over=len(ps)))
    return {end: sorted(some, key=lambda t: t.p) for end, some in found.items()}


# --- tables ---------------------------------------------------------------------------


def _told(record: Record, *, resolvable: bool) -> Record:
    """The record with its ``status``; without p values where nothing is ranked."""
    if not resolvable:
        tests = {k: None for k in record if k.startswith("p_") or k.endswith("_p")}
        record = record | tests
    return record | {"status": "ok" if resolvable else "not_resolvable"}


def dose_table(frame: pd.DataFrame) -> list[Record]:
    """Each dose beside chance; dose 0 are the held-out canaries."""
    found = []
    for name, part, whole in by_part(frame):
        doses = whole["dose"].where(~whole["held_out"].astype(bool), 0)
        for dose in sorted(set(doses)):
            chosen = whole[doses == dose]
            size, n = int(chosen["n_candidates"].iloc[0]), len(chosen)
            low, high = null_mean(chosen["n_candidates"].to_numpy()).band(LEVEL)
            record: Record = {
                "checkpoint": name,
                "part": part,
                "dose": int(dose),
                "held_out": bool(chosen["held_out"].iloc[0]),
                "canaries": n,
                "tied": int(np.count_nonzero(chosen["ties"])),
                "nll_mean": _mean_of_several(chosen["nll_mean"]),
                "rank_mean": float(chosen["mid"].mean()),
                "exposure_mean": float(chosen["exposure"].mean()),
                "chance_exposure": null_moments(size).exposure_mean,
                "chance_exposure_low": low,
                "chance_exposure_high": high,
                "p_remembered": p_remembered(chosen),
                "p_suppressed": p_suppressed(chosen),
                "posterior_bits_mean": _mean_of_several(chosen["posterior_bits"]),
            }
            for k in KS:
                if k < size:
                    hits = hits_of(chosen, k=k)
                    record[f"top{k}_hits"] = hits.hits
                    record[f"top{k}_low"], record[f"top{k}_high"] = hits.low, hits.high
                    record[f"top{k}_p"] = hits.p
            found.append(_told(record, resolvable=bool(resolved(chosen).any())))
    return found


def hits_of(frame: pd.DataFrame, *, k: int) -> TopK:
    """Canaries among the first k, held against chance."""
    return top_k(
        frame["rank"].to_numpy(),
        k=k,
        n_candidates=int(frame["n_candidates"].iloc[0]),
        ties=frame["ties"].to_numpy(),
    )


def _mean_of_several(values: pd.Series) -> float | None:
    # Of one canary it would be the score of a string, and tell it.
    return float(values.mean()) if len(values) > 1 else None


def trend_table(frame: pd.DataFrame, *, seed: int) -> list[Record]:
    """Exposure over dose, canaries of dose 0 held out of it: another split."""
    found = []
    for name, part, chosen in by_part(trained(frame)):
        trend = dose_trend(
            chosen["dose"].to_numpy(), chosen["exposure"].to_numpy(), seed=seed
        )
        if trend is not None:
            found.append(
                {
                    "checkpoint": name,
                    "part": part,
                    "canaries": len(chosen),
                    "doses": ", ".join(map(str, sorted(set(chosen["dose"].tolist())))),
                    "spearman": trend.rho,
                    "p": trend.p,
                }
            )
    return found


def uniformity_table(frame: pd.DataFrame) -> list[Record]:
    """Two-sided tests of uniform ranks, of trained and of held-out canaries."""
    found = []
    for name, part, whole in by_part(frame):
        for which, chosen in (
            ("trained", trained(whole)),
            ("held out", held_out(whole)),
        ):
            if not len(chosen):
                continue
            size, mean = chosen["n_candidates"].to_numpy(), float(chosen["mid"].mean())
            exact = null_mean(size, of="rank").two_sided(mean)
            record = {
                "checkpoint": name,
                "part": part,
                "canaries": which,
                "n": len(chosen),
                "tied": int((chosen["ties"] > 0).sum()),
                "rank_mean": mean,
                "rank_mean_p": exact,
                **_uniformity(chosen)._asdict(),
            }
            found.append(_told(record, resolvable=bool(resolved(chosen).any())))
    return found


def streisand_table(frame: pd.DataFrame) -> list[Record]:
    """True canaries against strings of the same formats that were never trained on.

    Two-sided: standing far behind is a signal too. ``p`` compares trained with
    held-out canaries (Mann-Whitney), ``p_suppressed`` trained ones with chance;
    ``trained_ahead`` is the share of such pairs whose trained canary ranks ahead.
    """
    found = []
    for name, part, whole in by_part(frame):
        ours, never = trained(whole), held_out(whole)
        if not len(ours):
            continue
        size = int(ours["n_candidates"].iloc[0])
        record: Record = {
            "checkpoint": name,
            "part": part,
            "trained": len(ours),
            "held_out": len(never),
            "rank_mean_trained": float(ours["mid"].mean()),
            "rank_mean_held_out": None,
            "chance_rank": (size + 1) / 2,
            "lower_tail_exposure": float(ours["lower_tail"].mean()),
            "p_suppressed": p_suppressed(ours),
            "trained_ahead": None,
            "p": None,
            "mde_ranks": None,
        }
        if len(never):
            test = stats.mannwhitneyu(ours["mid"], never["mid"])
            # The difference of two means varies as a mean of so many canaries does.
            pairs = len(ours) * len(never) / (len(ours) + len(never))
            reach = chance_mde(1, n_candidates=size).ranks / np.sqrt(pairs)
            record |= {
                "rank_mean_held_out": float(never["mid"].mean()),
                "trained_ahead": float(1 - test.statistic / (len(ours) * len(never))),
                "p": float(test.pvalue),
                "mde_ranks": float(reach),
            }
        found.append(record)
    return found


def paired_table(
    frame: pd.DataFrame, baselines: Mapping[str, str], *, seed: int
) -> list[Record]:
    """Change of each canary's exposure against the baseline, on the same candidates.

    None is given where one of the two ranks nothing (:func:`unresolved`).
    """
    whole = trained(frame)
    lost = unresolved(whole)
    parts = {(name, part): chosen for name, part, chosen in by_part(whole)}
    found = []
    for (name, part), chosen in parts.items():
        other = parts.get((str(baselines.get(name)), part))
        if other is None:
            continue
        change, both = changes(chosen, other, "exposure")
        if not both:
            continue
        record: Record = {
            "checkpoint": name,
            "baseline": baselines[name],
            "part": part,
            "canaries": len(both),
            "changed": None,
            "exposure_change_mean": None,
            "exposure_change_median": None,
            "wilcoxon_p": None,
            "sign_flip_p": None,
        }
        resolvable = not lost.keys() & {(name, part), (str(baselines[name]), part)}
        if resolvable:
            moved = int(np.count_nonzero(change))
            record |= {
                "changed": moved,
                "exposure_change_mean": float(change.mean()),
                "exposure_change_median": float(np.median(change)),
            }
            if moved:
                record["wilcoxon_p"] = float(stats.wilcoxon(change).pvalue)
                record["sign_flip_p"] = sign_flip(change, seed=seed)
        found.append(_told(record, resolvable=resolvable))
    return found


def epsilon_table(
    frame: pd.DataFrame,
    *,
    sensitive: Collection[str],
    lifted: Collection[str] = (),
) -> list[Record]:
    """Lower bounds of epsilon, of checkpoints that were trained on the canaries.

    Only synthetic canaries are taken: theirs is the uniform draw that bounds rest on.
    The declared bounds hold together at 95 % over checkpoints, all others together
    too (Bonferroni). Of a part without its positive control none is given, nor of a
    checkpoint in ``lifted``, whose held-out canaries rank above chance. A canary
    that is tied across the k-th place is no hit, whatever share of a hit it is on
    average: hits are then never more than those of a guess that breaks ties at random,
    which is what the bound holds for.
    """
    found: list[Record] = []
    hits: list[tuple[int, int]] = []
    drawn = frame[frame["format"].isin(list(FORMATS)) & (frame["checkpoint"] != BASE)]
    for name, part, whole in by_part(trained(drawn)):
        doses: list[tuple[str, pd.DataFrame]] = [("all", whole)]
        several = sorted(set(whole["dose"].tolist()))
        if len(several) > 1:
            doses += [(str(dose), whole[whole["dose"] == dose]) for dose in several]
        for label, chosen in doses:
            size = int(chosen["n_candidates"].iloc[0])
            for k in KS:
                if k >= size:
                    continue
                hits.append((int(np.sum(chosen["rank"] + chosen["ties"] <= k)), size))
                found.append(
                    {
                        "checkpoint": name,
                        "part": part,
                        "dose": label,
                        "k": k,
                        "declared": (part, label, k) == DECLARED,
                        "canaries": len(chosen),
                        "hits": hits[-1][0],
                        "rows": int(chosen["dose"].max()),
                    }
                )
    # How many bounds there are is known before any result, sensitive parts or not.
    declared = sum(record["declared"] for record in found)
    for record, (right, size) in zip(found, hits, strict=True):
        several_of = declared if record["declared"] else len(found) - declared
        record["significance"] = (1 - LEVEL) / several_of
        bound = candidate_guess_bound(
            right,
            record["canaries"],
            n_candidates=size,
            k=record["k"],
            rows=record["rows"],
            significance=record["significance"],
        )
        why = UNCONTROLLED if record["part"] not in sensitive else ""
        why = why or (UNGROUNDED if record["checkpoint"] in lifted else "")
        claimed = not why
        record.update(
            {
                "epsilon_per_canary": bound.canary if claimed else None,
                "epsilon_per_record": bound.record if claimed else None,
                "add_remove_per_canary": bound.canary_add_remove if claimed else None,
                "add_remove_per_record": bound.record_add_remove if claimed else None,
                "says": why or _says(record, bound.record),
            }
        )
    return found


def _says(record: Record, epsilon: float) -> str:
    if epsilon <= 0:
        return "a bound of 0 proves nothing"
    which = "declared" if record["declared"] else "other"
    return (
        f"the training run is not eps-DP for eps < {epsilon:.3f} a record at "
        f"{confidence(record['significance'])} confidence (so that all {which} bounds "
        f"hold together at 95%; pure DP (delta 0), if {STATED})"
    )


def extrapolated_table(frame: pd.DataFrame) -> list[Record]:
    """Canaries at rank 1, whose exposure is capped: what a fitted tail would say."""
    found = []
    for name, part, whole in by_part(trained(frame)):
        first = whole[whole["extrapolated"].notna()]
        if len(first):
            found.append(
                {
                    "checkpoint": name,
                    "part": part,
                    "canaries_at_rank_1": len(first),
                    "extrapolated_exposure_mean": float(first["extrapolated"].mean()),
                    "capped_exposure": float(np.log2(first["n_candidates"].iloc[0])),
                    "clipped": int(first["extrapolated_clipped"].sum()),
                    "largest_ks_of_the_fit": float(first["extrapolated_ks"].max()),
                    "note": "an estimate from a skew-normal fit, not a count",
                }
            )
    return found


# --- contrasts of rates ---------------------------------------------------------------


def moved(row: Contrast) -> bool:
    """Whether a change may be claimed: its interval and its test agree on one."""
    if row.low is None or row.high is None or row.p is None:
        return False
    return not row.low <= 0 <= row.high and row.p <= 1 - row.level


def bounded(contrasts: Sequence[Contrast], rates: Collection[str]) -> list[Contrast]:
    """The contrasts; those of rates within [-1, 1], which a difference cannot leave.

    A note tells where the interval excludes 0 and the sign-flip test does not agree.
    """
    limits = ("low", "high", "parity_low", "parity_high")
    found = []
    for row in contrasts:
        if row.metric in rates and row.low is not None and row.high is not None:
            ends = {name: getattr(row, name) for name in limits}
            change: Record = {
                name: None if end is None else min(1.0, max(-1.0, end))
                for name, end in ends.items()
            }
            if not row.low <= 0 <= row.high and not moved(row):
                told = "the interval and the sign-flip test disagree: no change claimed"
                change["note"] = "; ".join(filter(None, (row.note, told)))
            row = row.model_copy(update=change)
        found.append(row)
    return found
