"""Findings of the extract audit, compared with guessing and the base model.

They rest on how far rates of extraction lie apart: train and test rows, or two
checkpoints. Where no identifiers were held out, nothing but a rate of guessing that is
estimated from the data tells memory from a kind that was learned: dates that their rows
give away, running numbers, codes of one region.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count, product
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.base import guard
from spark_audit.audits.identifiers import ENOUGH, counterparts
from spark_audit.audits.setup_guards import ALARM
from spark_audit.audits.unguessable import guesses
from spark_audit.data.occurrences import finder, folded, string_of
from spark_audit.manifest.schema import Manifest, ManifestExample, ManifestSpan
from spark_audit.manifest.selection import BARE
from spark_audit.manifest.sequences import PROMPTS
from spark_audit.manifest.twins import WORDED
from spark_audit.names import BASE
from spark_audit.results import Claim, Contrast, Finding, Guard, Hits, Row
from spark_audit.results.findings import EXCESS, Fact
from spark_audit.stats.bootstrap import holm_by_key, sign_flip
from spark_audit.stats.estimate import Estimate, Power, side_of
from spark_audit.stats.intervals import clopper_pearson, rate_estimate, ratio_estimate
from spark_audit.stats.memorisation import n_p
from spark_audit.stats.memory_contrast import Sides, permutation_p
from spark_audit.stats.power import mde_normal

row_of = partial(Row.of_estimate, audit="extract")
Facts: TypeAlias = dict[str, Fact]
NOTHING = "no identifier of a trained row was scored"
LEVEL = 0.95
FULL = "full"
"""The true prefix: what the plain pass has read anyway."""
WHOLE, DIGITS, LOCAL = "identifiers", "digits", "local parts"
WITHIN = (1, 10, 100)
"""Numbers of draws that the table of prompts counts."""
NOT_ASKED = "no identifier of a trained row fits this prompt"
NOT_SCORED = "the texts of this prompt were not scored"
NOT_COMPARED = (
    "not estimable: too few comparable identifiers were held out, or there is no base "
    "model on the same rows"
)
TIES_MATTER = 0.005
"""Difference of the greedy rate by tie rule above which readers are told."""
SPLITS = ("train", "test")
ENDS = ("value", "low", "high")


# --- how far rates lie apart ----------------------------------------------------------


def by_checkpoint(pii: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Spans of each checkpoint in the order of the evidence, and the base's on them.

    ``greedy_sure`` and ``greedy`` count what came back, surely and if ties are won, of
    so many ``trials``; ``base_sure`` and ``base_won`` are those of the base on the same
    spans, NaN of the base itself and where it was not scored.
    """
    groups = pii.set_index("span").groupby("checkpoint", sort=False)
    found = {str(name): part for name, part in groups}
    base = found.get(BASE, pii[:0])[["greedy_sure", "greedy"]].astype(np.float64)
    base.columns = pd.Index(["base_sure", "base_won"])
    return {k: part.join(base[:0] if k == BASE else base) for k, part in found.items()}


def comparable(spans: pd.DataFrame) -> tuple[pd.DataFrame, bool]:
    """The spans of both splits that are compared; whether both were drawn alike.

    Those that were not are compared within types and strata (form and place), of which
    held-out spans weigh as much as trained ones (column ``weight``). Spans that text
    alone tells apart have no control.
    """
    chosen = spans.assign(weight=1.0)
    injected = chosen[chosen["origin"] == "injected"]
    if {*injected["split"]} == {*SPLITS}:
        return injected, True
    chosen = chosen[chosen["stratum"] >= 0]
    both = chosen.assign(
        side=(chosen["split"] == "train").astype(int),
        stratum=chosen.groupby(["type", "stratum"], observed=True).ngroup(),
    )
    both = both[counterparts(both)]
    held = both["side"] == 0
    ours, size = (both.groupby("stratum")["side"].transform(k) for k in ("sum", "size"))
    scale = held.sum() / max(int((~held).sum()), 1)
    weight = (ours / (size - ours) * scale).where(held, 1.0)
    return both.assign(weight=weight), False


def splits_apart(chosen: pd.DataFrame, hits: str = "greedy_sure") -> Estimate:
    """Difference of the rates of trained and held-out spans that are compared.

    Its interval combines those of both rates as method 10 of Newcombe (1998) does with
    Wilson's, which keeps it honest where next to nothing comes back.
    """
    counts = chosen[[hits, "trials"]].dropna().mul(chosen["weight"], axis=0)
    sides = (counts[chosen["split"] == split] for split in SPLITS)
    sums = (side.groupby(chosen["cluster"]).sum() for side in sides)
    return minus(*(rate_estimate(*side.to_numpy(np.float64).T) for side in sums))


def minus(one: Estimate, two: Estimate) -> Estimate:
    """Difference of two independent figures, its interval from both of theirs.

    Within [-1, 1], as differences of rates are. Of a difference and the base's own,
    which are of the same rows and mostly agree, the interval is rather wide.
    """
    if missing := next((each for each in (one, two) if each.value is None), None):
        return missing
    ours, theirs = _ends(one), _ends(two)
    value = ours[0] - theirs[0]
    low, high = np.hypot(ours[1:] - ours[0], theirs[:0:-1] - theirs[0]) * (-1, 1)
    # Half the width of a 95 % interval is 1.96 standard errors.
    se = (high - low) / 2 / float(scipy.special.ndtri(0.975))
    value, low, high = np.clip([value, value + low, value + high], -1, 1).tolist()
    return Estimate(value, low, high, mde=min(1.0, mde_normal(se)))


def _ends(apart: Estimate) -> np.ndarray:
    return np.array([getattr(apart, end) for end in ENDS], np.float64)


def limits_p(apart: Estimate) -> float:
    """Two-sided p of no difference: 0.05 where a limit of the interval is 0.

    By the half of the interval that points to 0, as if it were a normal one.
    """
    value, low, high = _ends(apart).tolist()
    reach = value - (low if value > 0 else high)
    if not reach:
        return 1.0 if value == 0 else 0.0
    quantile = scipy.special.ndtri(0.025) * abs(value / reach)
    return float(2 * scipy.special.ndtr(quantile))


def exact_p(chosen: pd.DataFrame) -> float:
    """Fisher's two-sided p that clusters of train and test rows return as often."""
    return float(scipy.stats.fisher_exact(_returning(chosen)).pvalue)


def _returning(chosen: pd.DataFrame) -> np.ndarray:
    """Clusters of train and of test rows: those that return, and the others."""
    back = chosen.groupby(["split", "cluster"])["greedy_sure"].any()
    counts = back.groupby("split").agg(["sum", "size"]).reindex([*SPLITS], fill_value=0)
    return counts.assign(size=counts["size"] - counts["sum"]).to_numpy(np.int64)


LEAST_P = 1e-7
"""p below which no report asks."""
NO_DIFFERENCE = Estimate(0.0, 0.0, 0.0)
"""Of a base that was not scored."""


def hits_power(chosen: pd.DataFrame, base: Estimate = NO_DIFFERENCE) -> Power:
    """What the smallest difference follows from that both tests of it detect.

    p of 1, 2, ... clusters of trained rows that come back next to the held-out ones
    that do, each cluster one identifier: the interval's (beyond the base's own
    difference, as it is) or Fisher's, whichever is larger.
    """
    counts = _returning(chosen)
    (n, m), held = counts.sum(axis=1).tolist(), int(counts[1, 0])
    ps: list[float] = []
    for k in range(1, n + 1):
        if ps and ps[-1] < LEAST_P:
            break
        rates = (
            rate_estimate(np.arange(size) < won, np.ones(size))
            for size, won in ((n, k), (m, held))
        )
        apart = minus(minus(*rates), base)
        if side_of(apart) != 1:
            ps.append(1.0)
            continue
        counts = np.array([[k, n - k], [held, m - held]])
        ps.append(max(limits_p(apart), float(scipy.stats.fisher_exact(counts).pvalue)))
    null = held / m + (base.value or 0.0)
    return Power(test="hits", n=n, ps=ps, most=100.0, beyond=100 * null)


def against_base(spans: pd.DataFrame, *, seed: int) -> tuple[Estimate, float | None]:
    """Difference from the base on the same train rows, and its p.

    Hits of the checkpoint are those that are sure, of the base those that ties may win:
    neither side's ties make a finding.
    """
    train = spans[spans["split"] == "train"]
    if train["base_won"].isna().any():
        return Estimate.missing(NOT_COMPARED), None
    sums = train[["greedy_sure", "base_won", "trials"]].groupby(train["cluster"]).sum()
    ours, theirs, trials = sums.to_numpy(np.float64).T
    found = ratio_estimate(ours - theirs, trials, bounds=(-1.0, 1.0))
    if found.se is None:
        # Where all clusters agree, the exact limits of both rates stand in for it.
        apart = minus(rate_estimate(ours, trials), rate_estimate(theirs, trials))
    else:
        least = min(1.0, mde_normal(found.se))
        apart = Estimate(found.value, found.low, found.high, mde=least)
    if apart.value is None:
        return apart, None
    # An interval of few events is too narrow by itself: the exact test must agree.
    several = np.count_nonzero(ours - theirs) > 1
    p = sign_flip(ours - theirs, seed=seed) if several else 1.0
    return apart, max(p, limits_p(apart))


def beyond(
    spans: pd.DataFrame, *, seed: int, whole: bool
) -> tuple[Estimate, float | None]:
    """Difference from held-out rows, beyond the base's own, and its p.

    Without held-out rows from the base, without either none.
    """
    if "test" not in {*spans["split"]}:
        return against_base(spans, seed=seed)
    chosen, _ = comparable(spans)
    apart = minus(splits_apart(chosen), base_apart(chosen))
    if apart.value is None:
        return apart, None
    return apart, max(limits_p(apart), exact_p(chosen) if whole else 0.0)


def has_base(spans: pd.DataFrame) -> bool:
    """Whether the base was scored on some of a checkpoint's spans, not its own."""
    return bool(spans["base_won"].notna().any())


def base_apart(chosen: pd.DataFrame) -> Estimate:
    """How far both splits lie apart at the base: without training, by themselves."""
    return splits_apart(chosen, "base_sure") if has_base(chosen) else NO_DIFFERENCE


# --- what is said of every checkpoint -------------------------------------------------


def findings(pii: pd.DataFrame, rows: Sequence[Row], *, seed: int) -> Iterator[Finding]:
    """What is said of every checkpoint."""
    pooled = {(r.checkpoint, r.metric, r.of): r for r in rows if r.group == "pooled"}
    for name, spans in by_checkpoint(pii).items():
        row, back = pooled.get((name, "greedy_rate", "")), returned(spans)
        if row is None or (row.value is None and not back.count + back.tied):
            reason = NOTHING if row is None else row.note
            lost: Any = {"checkpoint": name, "reason": reason}
            yield Finding.not_tested("extract", "extract.missing", **lost)
            continue
        facts: Facts = {"rate": row, "back": back}
        facts |= {of: pooled[name, "n50_median", of] for of in ("t1", "top40")}
        if back.tied and not back.count:
            tied: Any = {"status": "not_resolvable", "facts": facts}
            yield Finding.on(row, "not_tested", "extract.counts_tied", **tied)
        else:
            compared = _compared(spans, row, seed=seed)
            # What the comparison detects is claimed once, by its own sentence.
            lost_alone = compared.claim == "not_tested" and not back.count
            nothing = compared.claim == "nothing_shown" or lost_alone
            claim: Claim = "nothing_shown" if nothing else "moved"
            yield Finding.on(row, claim, "extract.counts", status="ok", facts=facts)
            yield compared
        if (apart := back.tied / back.of) > TIES_MATTER:
            share = Estimate(apart, clusters=row.clusters)
            ties: Any = {"ties": row_of(share, checkpoint=name, metric="ties")}
            yield Finding.not_tested("extract", "extract.ties", checkpoint=name, **ties)


def returned(spans: pd.DataFrame) -> Hits:
    """How many identifiers of train rows come back, of how many."""
    train = spans[spans["split"] == "train"]
    won, sure = int(train["greedy"].sum()), int(train["greedy_sure"].sum())
    return Hits(count=sure, of=len(train), tied=won - sure)


def _share(
    of: str, metric: str, spans: pd.DataFrame, hits: str = "greedy_sure"
) -> Facts:
    """The share of some spans that come back at a checkpoint, by its name."""
    known = spans.dropna(subset=hits)
    if known.empty:
        return {}
    value = np.average(known[hits].astype(float), weights=known.get("weight"))
    share = Estimate(float(value), n=len(known), clusters=known["cluster"].nunique())
    return {metric: row_of(share, checkpoint=of, metric=metric)}


def _finding(
    row: Row, claim: Claim, says: str, facts: Facts, apart: Estimate, **test: Any
) -> Finding:
    """What a comparison claims: with a p, it is one of the primary ones."""
    if apart.value is not None:
        # What is claimed is the difference, not the rate that it is one of.
        place: Any = {"checkpoint": row.checkpoint, "clusters": row.clusters}
        shown = row_of(apart, metric="apart", **place)
        facts = {**facts, "apart": shown}
        test |= {k: 100 * getattr(shown, k) for k in (*ENDS, "mde")}
        test |= {"metric": f"{row.metric}{EXCESS}", "null": 0.0, "unit": "points"}
    return Finding.on(row, claim, f"extract.{says}", facts=facts, **test)


def _compared(spans: pd.DataFrame, row: Row, *, seed: int) -> Finding:
    """Train rows against rows never trained on: whether it is more than guessing.

    Where the base was scored, beyond what it gives on the same rows: it shows how far
    the two splits differ by themselves. Without test rows, against the base alone.
    """
    name, (chosen, alike) = row.checkpoint, comparable(spans)
    train, past_base = spans[spans["split"] == "train"], has_base(spans)
    base = base_apart(chosen)
    apart = minus(splits_apart(chosen), base)
    # Of what came back, more than a bound can be said.
    facts: Facts = {"rate": row, "none_back": not train["greedy"].any()}
    facts |= {**_whose(train), "past_base": past_base, "back": returned(train)}
    held_out = len(train) < len(spans)
    if apart.value is None and past_base:
        before = _share(BASE, "before", train, "base_sure")
        facts |= {**before, "few_held_out": held_out}
        if held_out:
            facts["lacking"] = _not_compared_because(spans)
        return _against_base(spans, row, facts, seed=seed)
    if not held_out:
        return _finding(row, "not_tested", "no_control", facts, apart)
    facts["against"] = "injected" if alike else "natural"
    if apart.value is None:
        return _finding(row, "not_tested", "no_comparison", facts, apart)
    ours, theirs = (chosen[chosen["split"] == split] for split in SPLITS)
    # Whose they are is counted among those that are compared, as what came back is.
    for key in ("sure", "shared", "cued"):
        facts.pop(key, None)
    facts |= {**_whose(ours), "back": returned(ours)}
    facts |= _share(name, "unseen", theirs)
    facts |= _share(BASE, "before", ours, "base_sure")
    side, p, power = side_of(apart), None, list[Power]()
    if name != BASE:
        p, power = max(limits_p(apart), exact_p(chosen)), [hits_power(chosen, base)]
        guess_p, guess = beyond_guessing(spans) if side == 1 else (1.0, {})
        if 2 * guess_p < p:
            p = 2 * guess_p
            facts |= guess
    claim: Claim = "verbatim" if side == 1 else "betrays"
    says: str = claim
    if side == 0 or (p is not None and p > 1 - LEVEL):
        claim, says = "nothing_shown", "not_apart"
    elif name == BASE or not (alike or past_base):
        claim, says = "confounded", "splits_differ" if name == BASE else "kinds_differ"
        power = []
    return _finding(row, claim, says, facts, apart, p=p, power=power)


def _not_compared_because(spans: pd.DataFrame) -> str:
    """Return why held-out identifiers are no control of trained ones.

    ``form``: none has the form and the place of trained ones; ``few``: too few have,
    to test whether their texts differ; ``text``: their texts differ.
    """
    alike = spans[spans["stratum"] < 0]
    if alike.empty:
        return "form"
    n_clusters = alike.groupby("split")["cluster"].nunique().reindex(SPLITS)
    return "text" if n_clusters.min() >= ENOUGH else "few"


def _against_base(spans: pd.DataFrame, row: Row, facts: Facts, *, seed: int) -> Finding:
    """Train rows against the base on the same rows, and against guessing.

    Where no held-out identifiers tell memory, what comes back beyond the base is memory
    if it is more than guessing gives, or if it grows with dose.
    """
    facts |= {"against": "base", "past_base": False}
    apart, p = against_base(spans, seed=seed)
    side = side_of(apart)
    claim: Claim
    if side == 1 or (side is None and counted(spans)["hit"].any()):
        guess_p, guess = beyond_guessing(spans)
        grows = dose_p(spans, seed=seed)
        p = min(1.0, 2 * min(guess_p, grows))
        facts |= {"grows": grows if grows < guess_p else None, **guess}
        claim, says = "verbatim", "beyond_guessing"
        if p > 1 - LEVEL:
            claim, says = "confounded", "maybe_guessed"
    elif side is None:
        claim, says = "not_tested", "no_comparison"
    elif side == 0 or (p or 0.0) > 1 - LEVEL:
        claim, says = "nothing_shown", "not_apart"
    else:
        claim, says = "moved", "fewer_than_base"
    return _finding(row, claim, says, facts, apart, p=p)


def _whose(train: pd.DataFrame) -> Facts:
    """Whether other rows hold what comes back, and whether the cue brings it back."""
    sure = train[train["greedy_sure"].astype(bool)]
    shared, n = int(sure["elsewhere"].sum()), len(sure)
    cued = int((sure["cue"] & ~sure["base"]).sum())
    hits = {"sure": n, "shared": shared, "cued": cued}
    known = {k: Hits(count=count, of=len(train)) for k, count in hits.items() if count}
    return {"all_shared": shared == n, **known}


def guards(pii: pd.DataFrame) -> list[Guard]:
    """Whether the base, which saw none of the rows, tells train from test rows."""
    chosen, alike = comparable(pii[pii["checkpoint"] == BASE])
    apart = splits_apart(chosen)
    # That no difference is seen does not show that there is none.
    if not side_of(apart):
        return []
    place: Any = {"metric": "apart", "clusters": chosen["cluster"].nunique()}
    shown = row_of(apart, checkpoint=BASE, **place)
    told: dict[str, Any] = {"passed": False if alike else None, "checkpoint": BASE}
    name, facts = "base reproduces both sides equally", {"apart": shown}
    return [guard(name, "extract.splits", {**facts, "injected": alike}, **told)]


def contrast_findings(contrasts: Sequence[Contrast]) -> Iterator[Finding]:
    """How the greedy rate changed against each baseline."""
    for row in contrasts:
        if (row.group, row.metric) != ("pooled", "greedy_rate"):
            continue
        # Where all clusters agree there is no interval, and the test decides.
        tested = row.ends is None and row.p is not None and row.p <= 1 - row.level
        claim: Claim = "nothing_shown"
        says = "none"
        if row.value is None:
            claim, says = "not_tested", "missing"
        elif row.moved or tested:
            claim, says = "moved", "up" if row.value > 0 else "down"
        yield Finding.on(row, claim, f"extract.change_{says}", facts={"change": row})


# --- canaries that come back word for word --------------------------------------------


def canary_findings(canaries: pd.DataFrame) -> Iterator[Finding]:
    """What is said of canaries of each checkpoint.

    Each part counts in the first row of its canary: held-out canaries have one row, and
    more rows are more tries.
    """
    first = canaries[canaries["first"].astype(bool)]
    first = first.assign(n=1, trained=first["dose"] > 0)
    # Parts that come back if ties are won, and surely, of how many.
    by_part = first.groupby(["checkpoint", "trained", "part"], sort=False)
    counts = by_part[["greedy", "greedy_sure", "n"]].sum()
    for name, spans in first[first["trained"]].groupby("checkpoint", sort=False):
        parts = spans["part"].unique()
        ours, never, base = (
            counts.reindex([(*side, part) for part in parts], fill_value=0).to_numpy()
            for side in ((name, True), (name, False), (BASE, True))
        )
        won, sure, n = ours.sum(axis=0).tolist()
        guessed, certain, m = never.sum(axis=0).tolist()
        facts: Facts = {"back": sure, "tied": won - sure, "parts": n}
        facts |= {"held_back": certain, "held_tied": guessed - certain, "held_parts": m}
        fewest = int(spans.groupby(["part", "dose"]).size().min())
        facts["highest"] = None if won else clopper_pearson(0, fewest)[1]
        p = None if name == BASE else _canary_p(ours, never, base)
        claim: Claim = "moved"
        says, tied = "canaries", won > 0 and not sure
        if tied:
            claim, says = "not_tested", "canaries_tied"
        elif not won:
            claim = "nothing_shown"
        elif p is not None and p < 1 - LEVEL:
            claim, says = "verbatim", "canaries_back"
        elif p is not None:
            says = "canaries_chance"
        options: dict[str, Any] = {"status": "not_resolvable" if tied else "ok", "p": p}
        options |= {"audit": "extract", "checkpoint": str(name), "facts": facts}
        yield Finding.on(None, claim, f"extract.{says}", **options)


def _canary_p(*sides: np.ndarray) -> float | None:
    """The p that trained canaries come back beyond held-out ones and beyond the base's.

    By Bonferroni over parts: those of one canary are no independent trials. None where
    there is nothing to compare with.

    Parameters
    ----------
    sides
        Trained canaries, held-out ones, and trained ones at the base, shape
        ``(parts, 3)`` each: what comes back if ties are won, and surely, of how many.
    """
    found = []
    for (_, sure, n), held, first in zip(*sides, strict=True):
        # Next to a base that returns none, only held-out ones tell what is guessed.
        nulls = [held] if held[2] else []
        nulls += [first] if first[2] and (first[0] or not held[2]) else []
        tables = ([[sure, n - sure], [hits, m - hits]] for hits, _, m in nulls)
        more = partial(scipy.stats.fisher_exact, alternative="greater")
        found += (
            [max(more(np.array(table)).pvalue for table in tables)] if nulls else []
        )
    return min(1.0, len(sides[0]) * float(min(found))) if found else None


# --- the table of prompts -------------------------------------------------------------
#
# Each prompt is compared with the same prompt for identifiers never trained on, and
# against the base. Only the true prefix is a primary test; the others are one
# exploratory family, corrected by Holm in their own table.


def cue_alone(every: pd.DataFrame) -> pd.DataFrame:
    """Spans behind their true prefix, with what the cue and the base give, ties won.

    ``cue``: this checkpoint's cue or the base's; ``cue_asked``: whether one was asked
    for; ``base``: the base, behind the true prefix or the cue.
    """
    place = ["checkpoint", "prompt", "span"]
    won = pd.MultiIndex.from_frame(every.loc[every["greedy"].astype(bool), place])
    full = every[every["prompt"] == FULL]

    def back(**behind: str) -> np.ndarray:
        return pd.MultiIndex.from_frame(full[place].assign(**behind)).isin(won)

    by_base, asked = back(checkpoint=BASE, prompt="cue"), every["prompt"] == "cue"
    return full.assign(
        trials=1,
        cue=back(prompt="cue") | by_base,
        cue_asked=full["span"].isin(every.loc[asked, "span"]),
        base=back(checkpoint=BASE) | by_base,
    )


def prompt_table(every: pd.DataFrame, *, seed: int) -> list[dict[str, Any]]:
    """Records by checkpoint and prompt, the true prefix first; hits that are sure.

    One is of whole identifiers, the others of their parts (:func:`graded`).
    ``true_prefix`` counts those of the same spans that come back behind it, ``cue_too``
    those of the prompt's hits that the cue gives in another row's context too; ``note``
    has the reason where no difference is estimable, ``shown`` is whether one was found,
    None where it is not tested here. Empty where nothing but the true prefix was asked.
    """
    if {*every["prompt"]} <= {FULL}:
        return []
    full, mail = by_checkpoint(cue_alone(every)), every["type"] == "EMAIL"
    right, parts = every["parts_right"], every["parts"]
    graded = every.assign(greedy_sure=right, greedy=right, trials=parts)
    cases = {WHOLE: every.assign(trials=1), DIGITS: graded[~mail], LOCAL: graded[mail]}
    cue = bool((every["prompt"] == "cue").any())
    records: list[dict[str, Any]] = []
    for prompt, (of, case) in product((FULL, *PROMPTS), cases.items()):
        asked = case[(case["prompt"] == prompt) & (case["trials"] > 0)]
        for name, spans in by_checkpoint(asked).items():
            train, test = (spans[spans["split"] == split] for split in SPLITS)
            if train.empty:
                continue
            base = train["greedy" if name == BASE else "base_won"].dropna()
            record: dict[str, Any] = {
                "checkpoint": name,
                "prompt": prompt,
                "of": of,
                "spans": len(train),
                "clusters": int(train["cluster"].nunique()),
                "tried": int(train["trials"].sum()),
                "found": int(train["greedy_sure"].sum()),
                "base_found": None if base.empty else int(base.sum()),
                "held_out": int(test["trials"].sum()),
                "held_out_found": int(test["greedy_sure"].sum()),
            }
            apart, p = beyond(spans, seed=seed, whole=of == WHOLE)
            ends = zip(
                ("beyond_points", "low", "high"), _ends(apart).tolist(), strict=True
            )
            record |= {k: None if p is None else round(100 * end, 2) for k, end in ends}
            if of == WHOLE:
                hits = train.index[train["greedy_sure"].astype(bool)]
                tries = n_p(train["logp_top40"].to_numpy(np.float64))
                same = full[name][full[name].index.isin(train.index)]
                too = int(same["cue"][same.index.isin(hits)].sum()) if cue else None
                record |= {
                    "true_prefix": int(same["greedy_sure"].sum()),
                    "cue_too": too,
                }
                record |= {f"top40_within_{n}": int((tries <= n).sum()) for n in WITHIN}
            tested = (prompt, of) != (FULL, WHOLE) and name != BASE
            record["note"] = NOT_COMPARED if p is None else ""
            records.append({**record, "p": p if tested else None})
    order = [*full]
    records.sort(key=lambda record: order.index(record["checkpoint"]))
    adjusted = holm_by_key({i: record.pop("p") for i, record in enumerate(records)})
    for i, record in enumerate(records):
        clear = (record["low"] or 0.0) > 0 and adjusted.get(i, 1.0) < 1 - LEVEL
        record["shown"] = clear if i in adjusted else None
    return records


def not_asked(
    records: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """A record, with the reason, for each prompt that asked for nothing."""
    done = {(record["checkpoint"], record["prompt"]) for record in records}
    empty = dict.fromkeys(records[0] if records else ())
    why = {
        p: NOT_SCORED if p in facts["trained"] else NOT_ASKED for p in facts["asked"]
    }
    return [
        {**empty, "checkpoint": name, "prompt": prompt, "of": WHOLE}
        | {"spans": 0, "clusters": 0, "note": f"not estimable: {reason}"}
        for name, (prompt, reason) in product(facts["checkpoints"], why.items())
        if (name, prompt) not in done
    ]


# --- what guessing gives back ---------------------------------------------------------


LEAST = 0.01
"""Lowest rate at which any kind of identifier is taken to be guessed **[ours]**."""
GUESSABLE = 0.2
"""A type that is guessed more often is not pooled with others, nor tested by dose
**[ours]**."""
GIVEN = 0.5
"""Share of an identifier's characters that stand before it in its row, as whole words,
from which on the row gives it away **[ours]**."""

_LAST_TWO = re.compile(r"\d{1,2}(?!\d)")
_TWO_DIGITS = re.compile(r"\d\D*\d\D*$")
_WORD = re.compile(r"[^\W_]+")


def string_facts(manifest: Manifest) -> dict[tuple[str, int, int], dict[str, Any]]:
    """What is known of every identifier's string, without the string.

    By example and first and last character: ``string`` and ``lead``, numbers of the
    string and of its leading part (all before its last two digits, of one without them
    its first word); ``home``, the number of the first trained row that it is annotated
    in, -1 for none; ``near``, whether another string of its type in trained rows is the
    same but for the last two digits of one of its numbers; ``given``, whether its row
    gives it away (:data:`GIVEN`); ``elsewhere``, whether rows of several sources, or a
    row never trained on, hold it; ``chance``, how often it is guessed at most, 1 if it
    can be guessed (:mod:`~spark_audit.audits.unguessable`).
    """
    spans = [
        (number, row, span, string_of(row, span))
        for number, row in enumerate(manifest.examples)
        for span in row.spans
    ]
    find = finder({text for *_, text in spans} - {""})
    holders: dict[str, set[str | None]] = defaultdict(set)
    for row in manifest.examples:
        for text in find(folded(row.text)):
            # Rows never trained on are one source more.
            holders[text].add(row.source_id if row.split == "train" else None)
    homes: dict[str, int] = {}
    alike: dict[tuple[str, str], set[str]] = defaultdict(set)
    for number, row, span, text in spans:
        if row.split == "train" and row.canary_id is None:
            homes.setdefault(text, number)
            for stem in _stems(text):
                alike[span.type, stem].add(text)
    numbers: dict[tuple[str, str], int] = defaultdict(count().__next__)
    guessed = guesses(manifest)
    found = {}
    for _, row, span, text in spans:
        guess = guessed.get((row.id, span.start, span.end))
        end, word = _TWO_DIGITS.search(text), _WORD.search(text)
        lead = text[: end.start()] if end else word[0] if word else text
        same = (alike[span.type, stem] for stem in _stems(text))
        found[row.id, span.start, span.end] = dict(
            string=numbers[span.type, text],
            lead=numbers[span.type, f"\0{lead}"],
            home=homes.get(text, -1),
            near=len({*chain.from_iterable(same)}) > 1,
            given=_given(row, span),
            elsewhere=len(holders[text]) > 1,
            chance=1.0 if guess is None else guess.rate,
        )
    return found


def _stems(text: str) -> Iterator[str]:
    """A string without the last two digits of one of its numbers, for each of them."""
    for last in _LAST_TWO.finditer(text):
        yield f"{text[: last.start()]}#{text[last.end() :]}"


def _given(row: ManifestExample, span: ManifestSpan) -> bool:
    own = folded(row.text[span.start : span.end])
    if span.type == "EMAIL":
        own = own.partition("@")[0]
    words = _WORD.findall(own)
    before = {*_WORD.findall(folded(row.text[: span.start]))}
    known = sum(len(word) for word in words if word in before)
    return known >= GIVEN * sum(map(len, words)) > 0


def counted(spans: pd.DataFrame, split: str = "train") -> pd.DataFrame:
    """Identifiers that their rows do not give away; ``hit``: beyond the base's."""
    own = spans[(spans["split"] == split) & ~spans["given"].astype(bool)]
    return own.assign(hit=own["greedy_sure"].astype(bool) & ~own["base"])


def without_read(held: pd.DataFrame) -> pd.DataFrame:
    """Return held-out identifiers that may tell how often is guessed.

    Where unguessable ones come back, the checkpoint has read rows that were to be held
    out, and these say nothing of guessing: counted as guesses, a list of rows that was
    mistaken in part would hide all memory.

    Parameters
    ----------
    held
        From :func:`counted`; of evidence without ``chance`` all are returned.
    """
    if "chance" not in held:
        return held
    # What the base gives of a type may be guessed of others of it.
    by_base = held.groupby("type", observed=True)["base"].transform("mean")
    unguessable = held.assign(chance=np.maximum(held["chance"], by_base))
    unguessable = unguessable[unguessable["chance"] < 1]
    clusters = unguessable.groupby("cluster").agg(
        hit=("hit", "any"), tries=("chance", "sum")
    )
    n_hits = int(clusters["hit"].sum())
    if n_hits < 2:
        return held
    rate = clusters["tries"].clip(upper=1.0).mean()
    p = scipy.stats.binom.sf(n_hits - 1, len(clusters), rate)
    return held.drop(index=unguessable.index) if p < ALARM else held


def guess_rates(
    train: pd.DataFrame, held: pd.DataFrame, *, other_rows: bool = True
) -> dict[str, float]:
    """Guess rates of trained identifiers by type, from :func:`counted` spans.

    The largest of these: the share of other rows that hold a string that came back;
    the share of strings with a neighbour (``near``); the share of pairs of strings
    with one leading part (one over their effective number; where no pair has, one over
    the pairs); what the base gives back; the upper limit of what came back of
    identifiers never trained on; and :data:`LEAST`. Numbers that were injected were
    drawn at random: neighbours and leading parts say nothing of these.

    Parameters
    ----------
    other_rows
        Whether the first of these counts.
    """
    kinds, hit = train.groupby("type", observed=True), train[train["hit"]]
    rates = pd.DataFrame({"least": LEAST, "base": kinds["base"].mean()})
    if other_rows:
        others = hit["string"].map(train["string"].value_counts()) - 1
        rates["others"] = others.groupby(hit["type"]).mean() / (kinds.size() - 1)
    theirs = held.groupby("type", observed=True)["hit"].agg(["sum", "size"])
    limits = {
        kind: clopper_pearson(*count, level=0.9)[1]
        for kind, *count in theirs[theirs["sum"] > 0].itertuples()
    }
    rates["held"] = pd.Series(limits, dtype=np.float64)
    told = {*train.loc[train["origin"] != "injected", "type"], *WORDED}
    strings = train[train["type"].isin(told)].drop_duplicates("string")
    rates["near"] = strings.groupby("type", observed=True)["near"].mean()
    # Pairs of strings, and those of one leading part: each with the ones before it.
    pairs, alike = (
        strings.groupby(by, observed=True).cumcount().groupby(strings["type"]).sum()
        for by in ("type", "lead")
    )
    # Few strings share none by chance: one pair more, which does.
    least = 1 / (pairs.sum() + 1)
    rates["lead"] = (alike / pairs.clip(lower=1)).clip(lower=least)
    return {str(kind): float(rate) for kind, rate in rates.max(axis=1).items()}


def _tested(train: pd.DataFrame, held: pd.DataFrame) -> tuple[float, Facts]:
    """One test. Its units are clusters, each with the strings whose first row it holds.

    What is guessed in one row of a source may be guessed in all. Tries of a cluster's
    strings are summed, and the tail is that of a binomial with the clusters' mean rate,
    which is no smaller than that of unequal rates (Hoeffding, 1956).
    """
    rates = train["type"].map(guess_rates(train, held)).astype(np.float64)
    units = train.groupby("home")["cluster"].transform("first")
    tries = rates.groupby(units).sum().clip(upper=1.0)
    found = int(train["hit"].groupby(units).any().sum())
    tail = float(scipy.stats.binom.sf(found - 1, len(tries), tries.mean()))
    kinds, names = train["type"].unique(), train["checkpoint"].unique()
    rate = Estimate(float(rates.mean()), clusters=train["cluster"].nunique())
    return tail if found > 1 else 1.0, {
        "guess_rate": row_of(rate, checkpoint=names[0], metric="guess_rate"),
        "guessed": Hits(count=int(train["hit"].sum()), of=len(train)),
        "kind": str(kinds[0]) if len(kinds) == 1 else "",
    }


def beyond_guessing(spans: pd.DataFrame) -> tuple[float, Facts]:
    """The least p of several tests that guessing gives back as much, and its facts.

    Each type is tested, and all that are not easily guessed; p is corrected for their
    number (Bonferroni). It needs no held-out identifiers, and few of trained ones;
    nothing is concluded of a single cluster, nor without the base.

    Returns
    -------
    The facts are the rate of guessing (``guess_rate``), what came back nevertheless of
    how many (``guessed``), and their type (``kind``), empty if there are several.
    """
    train, held = counted(spans), without_read(counted(spans, "test"))
    if not has_base(spans) or train.empty:
        return 1.0, {}
    parts = [part for _, part in train.groupby("type", observed=True)]
    rates = guess_rates(train, held)
    hard = [kind for kind, rate in rates.items() if rate <= GUESSABLE]
    if len(parts) > 1 and hard:
        parts.append(train[train["type"].isin(hard)])
    tests = [_tested(part, held) for part in parts]
    p, facts = min(tests, key=lambda test: test[0])
    return min(1.0, len(tests) * p), facts


def dose_p(spans: pd.DataFrame, *, seed: int) -> float:
    """P that identifiers in several trained rows come back no more than those in one.

    Clusters are dealt anew to both within types. Frequent strings are guessed more
    often, too: easily guessed types (:data:`GUESSABLE`) are left out, names and
    addresses, and what the cue gives in another row.
    """
    train, held = counted(spans), without_read(counted(spans, "test"))
    rates = guess_rates(train, held, other_rows=False)
    hard = [k for k, rate in rates.items() if rate <= GUESSABLE and k not in BARE]
    train = train[train["cue_asked"] & train["type"].isin(hard)]
    several = (train["dose"] > 1).to_numpy()
    hit = (train["hit"] & ~train["cue"]).to_numpy(np.float64)
    if several.all() or not several.any() or not hit.any():
        return 1.0
    sides = Sides.of(several, train["cluster"], [pd.factorize(train["type"])[0]])
    p = permutation_p(hit, sides, seed=seed)
    return 1.0 if p is None or hit[several].mean() <= hit[~several].mean() else p
