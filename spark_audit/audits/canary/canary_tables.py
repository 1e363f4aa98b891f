"""Tables of the canary audit: doses, uniformity, held-out canaries, changes, epsilon.

Lower bounds of epsilon come from two kinds of guesses: which of its candidates a
planted canary is, and which of a pair of canaries was planted. The second is a game of
one run (Steinke, Nasr and Jagielski 2023; Mahloujifar, Melis and Chaudhuri 2025, of two
alternatives), and says something of (epsilon, delta), too. Its guess: of a pair, the
one that ranks further ahead among its candidates. Ranks are compared, not likelihoods:
the rank of a canary that is not in the data is uniform, whichever rows it stands in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
import scipy

from spark_audit import sentences
from spark_audit.audits.base import Context
from spark_audit.audits.canary.rank_tests import (
    LEVEL,
    Judged,
    by_part,
    changes,
    held_out,
    hits_of,
    p_remembered,
    p_suppressed,
    rank_uniformity,
    resolved,
    trained,
    unresolved,
)
from spark_audit.data.canaries import FORMATS
from spark_audit.names import BASE
from spark_audit.stats.bootstrap import sign_flip
from spark_audit.stats.chance_ranks import (
    chance_mde,
    dose_trend,
    null_mean,
    null_moments,
)
from spark_audit.stats.epsilon import (
    GuessBound,
    candidate_guess_bound,
    declared_guesses,
    one_run_bound,
    one_run_mu,
)
from spark_audit.stats.intervals import ratio_estimate

Record = dict[str, Any]

KS = (1, 10)
"""Numbers of guesses that epsilon is bounded from: fixed here, before any result."""


def _told(record: Record, *, resolvable: bool) -> Record:
    """The record with its ``status``; without p values where nothing is ranked."""
    if not resolvable:
        tests = {k: None for k in record if k.startswith("p_") or k.endswith("_p")}
        record = record | tests
    return record | {"status": "ok" if resolvable else "not_resolvable"}


def dose_table(frame: pd.DataFrame) -> list[Record]:
    """Each dose compared with chance; dose 0 are the held-out canaries."""
    found = []
    for name, part, whole in by_part(frame):
        doses = whole["dose"].where(~whole["held_out"].astype(bool), 0)
        for dose in sorted(set(doses)):
            chosen = whole[doses == dose]
            size, n = int(chosen["n_candidates"].iloc[0]), len(chosen)
            mean = ratio_estimate(
                chosen["exposure"], np.ones(n), bounds=(0.0, float(np.log2(size)))
            )
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
                "exposure_low": mean.low,
                "exposure_high": mean.high,
                "exposure_most": float(np.log2(size)),
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
                **rank_uniformity(chosen)._asdict(),
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
            test = scipy.stats.mannwhitneyu(ours["mid"], never["mid"])
            # Ranks that are all alike say nothing apart; SciPy from 1.18 gives NaN.
            alike = pd.concat([ours["mid"], never["mid"]]).nunique() == 1
            # The difference of two means varies as a mean of so many canaries does.
            pairs = len(ours) * len(never) / (len(ours) + len(never))
            reach = chance_mde(1, n_candidates=size).ranks / np.sqrt(pairs)
            record |= {
                "rank_mean_held_out": float(never["mid"].mean()),
                "trained_ahead": float(1 - test.statistic / (len(ours) * len(never))),
                "p": 1.0 if alike else float(test.pvalue),
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
                record["wilcoxon_p"] = _signed_rank_p(change)
                record["sign_flip_p"] = sign_flip(change, seed=seed)
        found.append(_told(record, resolvable=resolvable))
    return found


def _signed_rank_p(change: np.ndarray) -> float:
    """Wilcoxon's two-sided p; SciPy takes seconds for all signs of tied ranks."""
    if len(change) > 13:
        return float(scipy.stats.wilcoxon(change).pvalue)
    moved = change[change != 0]
    ranks = scipy.stats.rankdata(np.abs(moved))
    return sign_flip(ranks * np.sign(moved), seed=0)


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


# --- bounds of epsilon ----------------------------------------------------------------

DELTA = 1e-5
"""Of a record: the other delta that bounds of one run are given for."""
DECLARED = ("full", "all", 1)
"""Part, dose and k of the bound declared before any result: all canaries at once."""


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
        record["significance"] = _significance(record, declared, len(found))
        bound = candidate_guess_bound(
            right,
            record["canaries"],
            n_candidates=size,
            k=record["k"],
            rows=record["rows"],
            significance=record["significance"],
        )
        why = _withheld(record, sensitive, lifted)
        record.update(_figures(bound, why))
        record["says"] = _says(record, bound.record, why, assumed="drawn")
    return found


def one_run_table(
    frame: pd.DataFrame,
    *,
    sensitive: Collection[str],
    lifted: Collection[str] = (),
) -> list[Record]:
    """Lower bounds of epsilon from the coins that chose between two canaries each.

    Half of the pairs are guessed, those whose ranks lie furthest apart; that number was
    fixed beforehand. Withheld and corrected as in :func:`epsilon_table`, with one bound
    declared. All bounds of a row are thresholds of one count, and hold together.
    ``*_at_delta`` are at :data:`DELTA` a record,
    ``gaussian_mu`` is what a Gaussian mechanism would have.
    """
    found: list[Record] = []
    tossed = frame[frame["format"].isin(list(FORMATS)) & (frame["pair"] != "")]
    for name, part, whole in by_part(tossed[tossed["checkpoint"] != BASE]):
        both = _pairs(whole)
        several = sorted(set(both["dose"].tolist()))
        for label in ["all", *(several if len(several) > 1 else [])]:
            chosen = both if label == "all" else both[both["dose"] == label]
            if not len(chosen):
                continue
            guesses = declared_guesses(len(chosen))
            # A guess at a tie is one that is wrong.
            first = chosen.sort_values("gap", ascending=False, kind="stable")[:guesses]
            found.append(
                {
                    "checkpoint": name,
                    "part": part,
                    "dose": str(label),
                    "declared": (part, label) == DECLARED[:2],
                    "pairs": len(chosen),
                    "guesses": guesses,
                    "right": int((first["planted"] < first["held_out"]).sum()),
                    "rows": int(chosen["dose"].max()),
                }
            )
    declared = sum(record["declared"] for record in found)
    for record in found:
        record["significance"] = _significance(record, declared, len(found))
        count = record["right"], record["guesses"], record["pairs"]
        options = {"rows": record["rows"], "significance": record["significance"]}
        pure = one_run_bound(*count, **options)
        loose = one_run_bound(*count, delta=DELTA, **options)
        mu = one_run_mu(*count, **options)
        why = _withheld(record, sensitive, lifted)
        record.update(_figures(pure, why))
        record["epsilon_per_record_at_delta"] = None if why else loose.record
        record["gaussian_mu_per_record"] = None if why else mu
        record["says"] = _says(record, pure.record, why, assumed="tossed")
    return found


def _pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """Both ranks of each pair, in the order of the pairs: of those that have both.

    Ties are broken at random, so that a rank without memory is exactly uniform.
    """
    order = frame.sort_values("canary_id", kind="stable")
    jitter = np.random.default_rng(0).random(len(order))
    order = order.assign(at=order["rank"] + np.floor(jitter * (order["ties"] + 1)))
    planted, never = (side(order).set_index("pair") for side in (trained, held_out))
    both = planted.index.intersection(never.index).sort_values()
    ranks = {"planted": planted["at"][both], "held_out": never["at"][both]}
    found = pd.DataFrame({**ranks, "dose": planted["dose"][both]})
    return found.assign(gap=np.abs(np.log(found["planted"] / found["held_out"])))


def _significance(record: Record, declared: int, bounds: int) -> float:
    """Each bound's share: the declared ones hold together, and all others do."""
    return (1 - LEVEL) / (declared if record["declared"] else bounds - declared)


def _withheld(
    record: Record, sensitive: Collection[str], lifted: Collection[str]
) -> str:
    """Why a bound is not given, as the key of a sentence; empty where it is."""
    if record["part"] not in sensitive:
        return "uncontrolled"
    return "ungrounded" if record["checkpoint"] in lifted else ""


def _figures(bound: GuessBound, why: str) -> Record:
    return {
        "epsilon_per_canary": None if why else bound.canary,
        "epsilon_per_record": None if why else bound.record,
        "add_remove_per_canary": None if why else bound.canary_add_remove,
        "add_remove_per_record": None if why else bound.record_add_remove,
    }


def _says(record: Record, epsilon: float, why: str, *, assumed: str) -> str:
    facts = {**record, "epsilon": epsilon, "assumed": assumed}
    key = why or ("bounded" if epsilon > 0 else "bound_of_0")
    return sentences.render(f"canary.{key}", **facts)


def tables_of(
    frame: pd.DataFrame, judged: Judged, context: Context
) -> dict[str, list[Record]]:
    """Every table, by its name."""
    ground = {"sensitive": judged.sensitive, "lifted": judged.lifted}
    # Without a uniform draw bounds of epsilon have no ground.
    drawn = frame if judged.uniform else frame[:0]
    return {
        "canary_by_dose": dose_table(frame),
        "canary_uniformity": uniformity_table(frame),
        "canary_streisand": streisand_table(frame),
        "canary_dose_trend": trend_table(frame, seed=context.seed),
        "canary_paired": paired_table(frame, context.baselines, seed=context.seed),
        "canary_epsilon": epsilon_table(drawn, **ground),
        "canary_one_run": one_run_table(drawn, **ground),
        "canary_extrapolated": extrapolated_table(frame),
    }
