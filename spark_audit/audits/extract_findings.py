"""Findings of the extract audit, compared with guessing and the base model.

They rest on how far rates of extraction lie apart: train and test rows, or two
checkpoints. Where no identifiers were held out, nothing but a rate of guessing that is
estimated from the data tells memory from a kind that was learned: dates that their rows
give away, running numbers, codes of one region.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.base import guard
from spark_audit.audits.identifiers import counterparts
from spark_audit.data.occurrences import finder, folded, string_of
from spark_audit.manifest.schema import Manifest, ManifestExample, ManifestSpan
from spark_audit.manifest.selection import BARE
from spark_audit.manifest.sequences import PROMPTS
from spark_audit.manifest.twins import WORDED
from spark_audit.names import BASE
from spark_audit.results import Claim, Contrast, Finding, Guard, Hits, Row
from spark_audit.results.findings import Fact, Power
from spark_audit.stats.bootstrap import holm_by_key, sign_flip
from spark_audit.stats.intervals import clopper_pearson, rate_estimate, ratio_estimate
from spark_audit.stats.memorisation import n_p
from spark_audit.stats.memory_contrast import Sides, permutation_p
from spark_audit.stats.power import mde_normal

NOTHING = "no identifier of a trained row was scored"
LEVEL = 0.95
FULL = "full"
"""The true prefix: what the plain pass has read anyway."""
WHOLE, GRADED = "identifiers", ("digits", "local parts")
ENDS = ("beyond_points", "low", "high")
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


class Apart(NamedTuple):
    """A rate, or a difference of two: interval and smallest detectable effect."""

    value: float
    low: float
    high: float
    mde: float

    @property
    def p(self) -> float:
        """Two-sided p of no difference: 0.05 where a limit of the interval is 0.

        By the half of the interval that points to 0, as if it were a normal one.
        """
        reach = self.value - (self.low if self.value > 0 else self.high)
        if not reach:
            return 1.0 if self.value == 0 else 0.0
        return float(
            2 * scipy.special.ndtr(scipy.special.ndtri(0.025) * abs(self.value / reach))
        )


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans of one checkpoint, and those of the base on the same rows.

    ``base`` is None for the base itself, and where it was not scored. The columns
    ``greedy_sure`` and ``greedy`` count what came back, surely and if ties are won, of
    so many ``trials``, by default one each.
    """

    frame: pd.DataFrame
    base: Spans | None = None

    @classmethod
    def by_checkpoint(cls, pii: pd.DataFrame) -> dict[str, Spans]:
        """Those of each checkpoint, in the order of the evidence."""
        every = pii if "trials" in pii else pii.assign(trials=1)
        groups = every.groupby("checkpoint", sort=False)
        found = {str(name): cls(part) for name, part in groups}
        base = found.get(BASE)
        return {
            name: one if one is base else cls(one.frame, base)
            for name, one in found.items()
        }

    @cached_property
    def train(self) -> pd.DataFrame:
        """Those of trained rows, in the same order in all checkpoints."""
        return self.frame[self.frame["split"] == "train"]

    @cached_property
    def test(self) -> pd.DataFrame:
        """Those of rows never trained on."""
        return self.frame[self.frame["split"] == "test"]

    @cached_property
    def comparable(self) -> tuple[pd.DataFrame, bool]:
        """The spans of both splits that are compared; whether both were drawn alike.

        Those that were not are compared within types and strata (form and place), of
        which held-out spans weigh as much as trained ones (column ``weight``). Spans
        that text alone tells apart have no control.
        """
        chosen = self.frame.assign(weight=1.0)
        injected = chosen[chosen["origin"] == "injected"]
        if set(injected["split"]) == {"train", "test"}:
            return injected, True
        chosen = chosen[chosen["stratum"] >= 0]
        both = chosen.assign(
            side=(chosen["split"] == "train").astype(int),
            stratum=chosen.groupby(["type", "stratum"], observed=True).ngroup(),
        )
        both = both[counterparts(both)]
        ours = both.groupby("stratum")["side"].agg(["sum", "size"])
        weight = both["stratum"].map(ours["sum"] / (ours["size"] - ours["sum"]))
        held = both["side"] == 0
        scale = held.sum() / max(int((~held).sum()), 1)
        return both.assign(weight=np.where(held, weight * scale, 1.0)), False

    @cached_property
    def apart(self) -> Apart | None:
        """Difference of the greedy rates of train and test rows.

        Its interval combines those of both rates as method 10 of Newcombe (1998) does
        with Wilson's, which keeps it honest where next to nothing comes back.
        """
        if self.test.empty:
            return None
        chosen = self.comparable[0]
        counts = chosen[["greedy_sure", "trials"]]
        weighed = counts.mul(chosen["weight"], axis=0)
        sums = weighed.groupby([chosen["split"], chosen["cluster"]]).sum()
        held = sums.index.get_level_values("split")
        train, test = (rate(*sums[held == split].to_numpy(float).T) for split in SPLITS)
        return minus(train, test)

    @property
    def beyond(self) -> Apart | None:
        """That difference, beyond the base's own where it was scored."""
        return minus(self.apart, self.base.apart) if self.base else self.apart


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


def hits_power(chosen: pd.DataFrame, base: Apart | None) -> Power:
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
        sides = (np.arange(size) < won for size, won in ((n, k), (m, held)))
        apart = minus(*(rate(side * 1.0, np.ones(len(side))) for side in sides))
        if base is not None:
            apart = minus(apart, base)
        if apart is None or apart.low <= 0:
            ps.append(1.0)
            continue
        counts = np.array([[k, n - k], [held, m - held]])
        ps.append(max(apart.p, float(scipy.stats.fisher_exact(counts).pvalue)))
    null = held / m + (base.value if base else 0.0)
    return Power(test="hits", n=n, ps=ps, most=100.0, beyond=100 * null)


def rate(events: np.ndarray, trials: np.ndarray) -> Apart | None:
    """A rate with its interval; none where there is no interval."""
    side = rate_estimate(events, trials)
    if side.value is None or side.low is None or side.high is None:
        return None
    return Apart(side.value, side.low, side.high, 0.0)


def minus(one: Apart | None, two: Apart | None) -> Apart | None:
    """Difference of two independent figures, its interval from both of theirs.

    Within [-1, 1], as differences of rates are; none where one of both is missing. Of
    a difference and the base's own, which are of the same rows and mostly agree, the
    interval is rather wide.
    """
    if one is None or two is None:
        return None
    value = one.value - two.value
    low = value - float(np.hypot(one.value - one.low, two.high - two.value))
    high = value + float(np.hypot(one.high - one.value, two.value - two.low))
    # Half the width of a 95 % interval is 1.96 standard errors.
    se = (high - low) / 2 / float(scipy.special.ndtri(0.975))
    value, low, high = (min(1.0, max(-1.0, end)) for end in (value, low, high))
    return Apart(value, low, high, min(1.0, mde_normal(se)))


def paired(ours: pd.Series, base: pd.Series, spans: pd.Series) -> Apart | None:
    """Difference of two rates of the same rows, from hits and spans by cluster."""
    change = (ours - base).to_numpy(np.float64)
    estimate = ratio_estimate(change, spans.to_numpy(), bounds=(-1.0, 1.0))
    apart = minus(*(rate(each.to_numpy(), spans.to_numpy()) for each in (ours, base)))
    if estimate.value is None or apart is None:
        return None
    if estimate.low is None or estimate.high is None:
        # Where all clusters agree, the exact limits of both rates stand in for it.
        return apart
    mde = apart.mde if estimate.se is None else min(1.0, mde_normal(estimate.se))
    return Apart(estimate.value, estimate.low, estimate.high, mde)


def against_base(spans: Spans, *, seed: int) -> tuple[Apart | None, float | None]:
    """Difference from the base on the same train rows, and its p.

    Hits of the checkpoint are those that are sure, of the base those that ties may win:
    neither side's ties make a finding.
    """
    if spans.base is None:
        return None, None
    own, others = (one.train.groupby("cluster") for one in (spans, spans.base))
    ours, theirs = own["greedy_sure"].sum(), others["greedy"].sum()
    if not ours.index.equals(theirs.index):
        return None, None
    if (apart := paired(ours, theirs, own["trials"].sum())) is None:
        return None, None
    # An interval of few events is too narrow by itself: the exact test must agree.
    change = (ours - theirs).to_numpy(np.float64)
    p = sign_flip(change, seed=seed) if np.count_nonzero(change) > 1 else 1.0
    return apart, max(p, apart.p)


def beyond(
    spans: Spans, *, seed: int, whole: bool
) -> tuple[Apart | None, float | None]:
    """Difference from held-out rows, beyond the base's own, and its p.

    Without held-out rows from the base, without either none.
    """
    if spans.test.empty:
        return against_base(spans, seed=seed)
    if (apart := spans.beyond) is None:
        return None, None
    return apart, max(apart.p, exact_p(spans.comparable[0]) if whole else 0.0)


def findings(pii: pd.DataFrame, rows: Sequence[Row], *, seed: int) -> Iterator[Finding]:
    """What is said of every checkpoint."""
    pooled = {(r.checkpoint, r.metric, r.of): r for r in rows if r.group == "pooled"}
    for name, spans in Spans.by_checkpoint(pii).items():
        row = pooled.get((name, "greedy_rate", ""))
        if row is None or (row.value is None and not spans.train["greedy"].any()):
            reason = NOTHING if row is None else row.note
            lost: Any = {"checkpoint": name, "reason": reason}
            yield Finding.not_tested("extract", "extract.missing", **lost)
            continue
        back = returned(spans.train)
        facts: dict[str, Fact] = {"rate": row, "back": back}
        facts |= {of: pooled[name, "n50_median", of] for of in ("t1", "top40")}
        if back.tied and not back.count:
            tied: Any = {"status": "not_resolvable", "facts": facts}
            yield Finding.on(row, "not_tested", "extract.counts_tied", **tied)
        else:
            compared = _compared(pii, spans, row, seed=seed)
            # What the comparison detects is claimed once, by its own sentence.
            lost_alone = compared.claim == "not_tested" and not back.count
            nothing = compared.claim == "nothing_shown" or lost_alone
            claim: Claim = "nothing_shown" if nothing else "moved"
            yield Finding.on(row, claim, "extract.counts", status="ok", facts=facts)
            yield compared
        if (apart := back.tied / back.of) > TIES_MATTER:
            ties: Any = {"ties": _figure(name, "ties", row.clusters, value=apart)}
            yield Finding.not_tested("extract", "extract.ties", checkpoint=name, **ties)


def returned(spans: pd.DataFrame) -> Hits:
    """How many identifiers of train rows come back, of how many."""
    train = spans[spans["split"] == "train"]
    won, sure = int(train["greedy"].sum()), int(train["greedy_sure"].sum())
    return Hits(count=sure, of=len(train), tied=won - sure)


def _figure(name: str, metric: str, clusters: int, **figures: Any) -> Row:
    """A share, or a difference of two, that no row holds."""
    columns: Any = {"checkpoint": name, "metric": metric, "clusters": clusters}
    return Row(audit="extract", **columns, **figures)


def _rate(name: str, spans: pd.DataFrame) -> dict[str, Fact]:
    """The share of some spans that come back, as it is compared with; by its name."""
    if spans.empty:
        return {}
    weight = spans["weight"] if "weight" in spans else None
    share = float(np.average(spans["greedy_sure"].astype(float), weights=weight))
    place = str(spans["checkpoint"].iloc[0]), name, spans["cluster"].nunique()
    return {name: _figure(*place, value=share, n=len(spans))}


def _finding(
    row: Row,
    claim: Claim,
    says: str,
    facts: Mapping[str, Fact],
    apart: Apart | None = None,
    p: float | None = None,
    power: Sequence[Power] = (),
) -> Finding:
    """What a comparison claims: with a p, it is one of the primary ones."""
    options: dict[str, Any] = {"p": p, "power": list(power), "facts": facts}
    if apart is not None:
        # What is claimed is the difference, not the rate that it is one of.
        shown = _figure(row.checkpoint, "apart", row.clusters, **apart._asdict())
        options["facts"] = {**facts, "apart": shown}
        options |= {name: 100 * value for name, value in apart._asdict().items()}
        options |= {"null": 0.0, "unit": "points"}
    return Finding.on(row, claim, f"extract.{says}", **options)


def _compared(pii: pd.DataFrame, spans: Spans, row: Row, *, seed: int) -> Finding:
    """Train rows against rows never trained on: whether it is more than guessing.

    Where the base was scored, beyond what it gives on the same rows: it shows how far
    the two splits differ by themselves. Without test rows, against the base alone.
    """
    name, base, held_out = row.checkpoint, spans.base, not spans.test.empty
    past_base, apart = base is not None, spans.beyond
    # Of what came back, more than a bound can be said.
    none_back = not spans.train["greedy"].any()
    facts: dict[str, Fact] = {"rate": row, "none_back": none_back}
    facts |= {**_whose(spans.train), "past_base": past_base}
    facts["back"] = returned(spans.train)
    if base is not None:
        facts |= _rate("before", base.train)
        if apart is None:
            facts["few_held_out"] = held_out
            return _against_base(pii, spans, row, facts, seed=seed)
    elif not held_out:
        return _finding(row, "not_tested", "no_control", facts)
    chosen, alike = spans.comparable
    facts["against"] = "injected" if alike else "natural"
    if apart is None:
        return _finding(row, "not_tested", "no_comparison", facts)
    facts["back"] = returned(chosen)
    facts |= _rate("unseen", chosen[chosen["split"] == "test"])
    if base is not None:
        compared = base.comparable[0]
        facts |= _rate("before", compared[compared["split"] == "train"])
    p, power = None, list[Power]()
    if name != BASE:
        p = max(apart.p, exact_p(chosen))
        power = [hits_power(chosen, base.apart if base else None)]
        if apart.low > 0 and 2 * (guess := beyond_guessing(pii, name)).p < p:
            p = 2 * guess.p
            facts |= _guessed(name, guess)
    claim: Claim = "verbatim" if apart.low > 0 else "betrays"
    says: str = claim
    if apart.low <= 0 <= apart.high or (p is not None and p > 1 - LEVEL):
        claim, says = "nothing_shown", "not_apart"
    elif name == BASE or not (alike or past_base):
        claim, says = "confounded", "splits_differ" if name == BASE else "kinds_differ"
        power = []
    return _finding(row, claim, says, facts, apart, p, power)


def _against_base(
    pii: pd.DataFrame, spans: Spans, row: Row, facts: dict[str, Fact], *, seed: int
) -> Finding:
    """Train rows against the base on the same rows, and against guessing.

    Where no held-out identifiers tell memory, what comes back beyond the base is memory
    if it is more than guessing gives, or if it grows with dose.
    """
    name = row.checkpoint
    facts |= {"against": "base", "past_base": False}
    apart, p = against_base(spans, seed=seed)
    if counted(pii, name)["hit"].any() if apart is None else apart.low > 0:
        guess, grows = beyond_guessing(pii, name), dose_p(pii, name, seed=seed)
        p = min(1.0, 2 * min(guess.p, grows))
        facts["grows"] = grows if grows < guess.p else None
        if guess.of:
            facts |= _guessed(name, guess)
        if p > 1 - LEVEL:
            return _finding(row, "confounded", "maybe_guessed", facts, apart, p)
        return _finding(row, "verbatim", "beyond_guessing", facts, apart, p)
    if apart is None:
        return _finding(row, "not_tested", "no_comparison", facts)
    if apart.low <= 0 <= apart.high or (p or 0.0) > 1 - LEVEL:
        return _finding(row, "nothing_shown", "not_apart", facts, apart, p)
    return _finding(row, "moved", "fewer_than_base", facts, apart, p)


def _guessed(name: str, guess: Guess) -> dict[str, Fact]:
    """How often guessing is right, and how many came back nevertheless."""
    rate = _figure(name, "guess_rate", guess.clusters, value=guess.rate)
    hits = Hits(count=guess.found, of=guess.of)
    return {"guess_rate": rate, "guessed": hits, "kind": guess.kind}


def _whose(train: pd.DataFrame) -> dict[str, Fact]:
    """Whether other rows hold what comes back, and whether the cue brings it back."""
    sure = train[train["greedy_sure"].astype(bool)]
    shared, n = int(sure["elsewhere"].sum()), len(sure)
    cued = int((sure["cue"] & ~sure["base"]).sum())
    facts: dict[str, Fact] = {"all_shared": shared == n}
    for name, count in (("sure", n), ("shared", shared), ("cued", cued)):
        if count:
            facts[name] = Hits(count=count, of=len(train))
    return facts


def guards(pii: pd.DataFrame) -> list[Guard]:
    """Whether the base, which saw none of the rows, tells train from test rows."""
    base = Spans.by_checkpoint(pii).get(BASE)
    # That no difference is seen does not show that there is none.
    if base is None or not (apart := base.apart) or apart.low <= 0 <= apart.high:
        return []
    chosen, alike = base.comparable
    shown = _figure(BASE, "apart", chosen["cluster"].nunique(), **apart._asdict())
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


COUNTS = ["greedy", "greedy_sure", "n"]
"""Parts of canaries that come back if ties are won, and surely, of how many."""


def canary_findings(canaries: pd.DataFrame) -> Iterator[Finding]:
    """What is said of canaries of each checkpoint.

    Each part counts in the first row of its canary: held-out canaries have one row, and
    more rows are more tries.
    """
    first = canaries[canaries["first"].astype(bool)].assign(n=1)
    known = [first["checkpoint"], first["dose"] > 0]
    parts = {
        side: spans.groupby("part", sort=False)[COUNTS].sum()
        for side, spans in first.groupby(known, sort=False)
    }
    for (name, trained), ours in parts.items():
        if not trained:
            continue
        never, base = (
            parts.get(side, ours[:0]).reindex(ours.index, fill_value=0)
            for side in ((name, False), (BASE, True))
        )
        won, sure, n = ours.sum().tolist()
        guessed, certain, m = never.sum().tolist()
        facts: dict[str, Fact] = {"back": sure, "tied": won - sure, "parts": n}
        facts |= {"held_back": certain, "held_tied": guessed - certain, "held_parts": m}
        spans = first[(first["checkpoint"] == name) & (first["dose"] > 0)]
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


def _canary_p(
    ours: pd.DataFrame, never: pd.DataFrame, base: pd.DataFrame
) -> float | None:
    """The p that trained canaries come back beyond held-out ones and beyond the base's.

    By Bonferroni over parts: those of one canary are no independent trials. None where
    there is nothing to compare with.
    """
    found = []
    for part in ours.index:
        (_, sure, n), held, first = (
            side.loc[part].tolist() for side in (ours, never, base)
        )
        # Next to a base that returns none, only held-out ones tell what is guessed.
        nulls = [held] if held[2] else []
        nulls += [first] if first[2] and (first[0] or not held[2]) else []
        tables = ([[sure, n - sure], [hits, m - hits]] for hits, _, m in nulls)
        more = partial(scipy.stats.fisher_exact, alternative="greater")
        ps = [float(more(np.array(table)).pvalue) for table in tables]
        found += [min(1.0, len(ours) * max(ps))] if ps else []
    return min(found, default=None)


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
    asked = every["prompt"] == "cue"
    won, full = every[every["greedy"].astype(bool)], every[every["prompt"] == FULL]
    cued, base = won[won["prompt"] == "cue"], won[won["checkpoint"] == BASE]
    own = (pd.MultiIndex.from_frame(x[["checkpoint", "span"]]) for x in (full, cued))
    given = base.loc[base["prompt"].isin([FULL, "cue"]), "span"]
    by_base = cued.loc[cued["checkpoint"] == BASE, "span"]
    return full.assign(
        cue=next(own).isin(next(own)) | full["span"].isin(by_base),
        cue_asked=full["span"].isin(every.loc[asked, "span"]),
        base=full["span"].isin(given),
    )


def prompt_table(every: pd.DataFrame, *, seed: int) -> list[dict[str, Any]]:
    """Records by checkpoint and prompt, the true prefix first; hits that are sure.

    One is of whole identifiers, the others of their parts (:func:`graded`).
    ``true_prefix`` counts those of the same spans that come back behind it, ``cue_too``
    those of the prompt's hits that the cue gives in another row's context too; ``note``
    has the reason where no difference is estimable, ``shown`` is whether one was found,
    None where it is not tested here. Empty where nothing but the true prefix was asked.
    """
    if set(every["prompt"]) <= {FULL}:
        return []
    full = Spans.by_checkpoint(cue_alone(every))
    cue = bool((every["prompt"] == "cue").any())
    records: list[dict[str, Any]] = []
    for prompt in (FULL, *PROMPTS):
        asked = every[every["prompt"] == prompt]
        graded, mail = asked["parts"] > 0, asked["type"] == "EMAIL"
        right = asked["parts_right"]
        counts = {"greedy_sure": right, "greedy": right, "trials": asked["parts"]}
        parts = asked.assign(**counts)
        kept = (asked, parts[graded & ~mail], parts[graded & mail])
        for of, part in zip((WHOLE, *GRADED), kept, strict=True):
            for name, spans in Spans.by_checkpoint(part).items():
                if spans.train.empty:
                    continue
                apart, p = beyond(spans, seed=seed, whole=of == WHOLE)
                record: dict[str, Any] = {"checkpoint": name, "prompt": prompt}
                record |= {"of": of, **_counts(name, spans)}
                for key, end in zip(ENDS, apart or (None,) * 3, strict=False):
                    record[key] = None if end is None else round(100 * end, 2)
                tested = (prompt, of) != (FULL, WHOLE) and name != BASE
                if of == WHOLE:
                    record |= _whole(spans.train, full[name].frame, cue=cue)
                record["note"] = "" if apart else NOT_COMPARED
                record["p"] = p if tested else None
                records.append(record)
    order = [*full]
    records.sort(key=lambda record: order.index(record["checkpoint"]))
    adjusted = holm_by_key({i: record.pop("p") for i, record in enumerate(records)})
    for i, record in enumerate(records):
        clear = (record["low"] or 0.0) > 0 and adjusted.get(i, 1.0) < 1 - LEVEL
        record["shown"] = clear if i in adjusted else None
    return records


def _counts(name: str, spans: Spans) -> dict[str, Any]:
    """What came back, and of how many: trained, held out, and of the base."""
    train, test = spans.train, spans.test
    base = spans if name == BASE else spans.base
    return {
        "spans": len(train),
        "clusters": int(train["cluster"].nunique()),
        "tried": int(train["trials"].sum()),
        "found": int(train["greedy_sure"].sum()),
        "base_found": None if base is None else int(base.train["greedy"].sum()),
        "held_out": int(test["trials"].sum()),
        "held_out_found": int(test["greedy_sure"].sum()),
    }


def _whole(train: pd.DataFrame, full: pd.DataFrame, *, cue: bool) -> dict[str, Any]:
    """Of whole identifiers: hits behind the true prefix and the cue, and by draws."""
    same = full[full["span"].isin(train["span"])]
    hits = train["span"][train["greedy_sure"].astype(bool)]
    tries = n_p(train["logp_top40"].to_numpy(np.float64))
    return {
        "true_prefix": int(same["greedy_sure"].sum()),
        "cue_too": int(same["cue"][same["span"].isin(hits)].sum()) if cue else None,
        **{f"top40_within_{n}": int((tries <= n).sum()) for n in WITHIN},
    }


def not_asked(
    records: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """A record, with the reason, for each prompt that asked for nothing."""
    done = {(record["checkpoint"], record["prompt"]) for record in records}
    empty = dict.fromkeys(records[0] if records else ())
    return [
        {**empty, "checkpoint": name, "prompt": prompt, "of": WHOLE}
        | {"spans": 0, "clusters": 0}
        | {"note": f"not estimable: {NOT_SCORED if scored else NOT_ASKED}"}
        for name in facts["checkpoints"]
        for prompt in facts["asked"]
        if (name, prompt) not in done
        for scored in [prompt in facts["trained"]]
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
    row never trained on, hold it.
    """
    spans = [(row, span) for row in manifest.examples for span in row.spans]
    texts = [string_of(row, span) for row, span in spans]
    find = finder({*texts} - {""})
    holders: dict[str, set[str | None]] = {}
    for row in manifest.examples:
        for text in find(folded(row.text)):
            # Rows never trained on are one source more.
            source = row.source_id if row.split == "train" else None
            holders.setdefault(text, set()).add(source)
    rows = {row.id: number for number, row in enumerate(manifest.examples)}
    numbers: dict[tuple[str, str], int] = {}
    homes: dict[str, int] = {}
    stems: dict[tuple[str, str], set[str]] = {}
    for (row, span), text in zip(spans, texts, strict=True):
        if row.split == "train" and row.canary_id is None:
            homes.setdefault(text, rows[row.id])
            for stem in _stems(text):
                stems.setdefault((span.type, stem), set()).add(text)
    found = {}
    for (row, span), text in zip(spans, texts, strict=True):
        end, word = _TWO_DIGITS.search(text), _WORD.search(text)
        lead = text[: end.start()] if end else word[0] if word else text
        alike = (stems.get((span.type, stem), set()) for stem in _stems(text))
        found[row.id, span.start, span.end] = dict(
            string=numbers.setdefault((span.type, text), len(numbers)),
            lead=numbers.setdefault((span.type, f"\0{lead}"), len(numbers)),
            home=homes.get(text, -1),
            near=len(set(chain.from_iterable(alike))) > 1,
            given=_given(row, span),
            elsewhere=len(holders.get(text, ())) > 1,
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


@dataclass(frozen=True)
class Guess:
    """A test of what came back against guessing.

    Attributes
    ----------
    p
        Chance that guessing gives back as much, or more.
    rate
        Of the identifiers that were tested, the share that guessing gives back.
    found, of
        Those that came back, and all that were tested.
    kind
        Their type; empty: of several.
    clusters
        In how many clusters they stand.
    """

    p: float = 1.0
    rate: float = 1.0
    found: int = 0
    of: int = 0
    kind: str = ""
    clusters: int = 0


def counted(pii: pd.DataFrame, name: str, split: str = "train") -> pd.DataFrame:
    """Identifiers that their rows do not give away; ``hit``: beyond the base's."""
    own = pii[(pii["checkpoint"] == name) & (pii["split"] == split)]
    own = own[~own["given"].astype(bool)]
    return own.assign(hit=own["greedy_sure"].astype(bool) & ~own["base"])


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
    found: dict[str, float] = {}
    leading: dict[str, float] = {}
    every = 0.0
    for kind, part in train.groupby("type", observed=True):
        rates = [LEAST, float(part["base"].mean())]
        if other_rows and part["hit"].any():
            others = part["string"].map(part["string"].value_counts()) - 1
            rates.append(float((others[part["hit"]] / max(len(part) - 1, 1)).mean()))
        theirs = held.loc[held["type"] == kind, "hit"]
        if theirs.any():
            count = int(theirs.sum()), len(theirs)
            rates.append(clopper_pearson(*count, level=0.9)[1])
        if (part["origin"] != "injected").any() or kind in WORDED:
            strings = part.drop_duplicates("string")
            leads = strings["lead"].value_counts().to_numpy()
            pairs = len(strings) * (len(strings) - 1) / 2
            every += pairs
            rates.append(float(strings["near"].mean()))
            alike = float((leads * (leads - 1) / 2).sum())
            leading[str(kind)] = alike / max(pairs, 1.0)
        found[str(kind)] = max(rates)
    # Few strings share none by chance: one pair more, which does.
    return found | {
        kind: max(found[kind], share, 1 / (every + 1))
        for kind, share in leading.items()
    }


def _tested(train: pd.DataFrame, held: pd.DataFrame) -> Guess:
    """One test. Its units are clusters, each with the strings whose first row it holds.

    What is guessed in one row of a source may be guessed in all. Tries of a cluster's
    strings are summed, and the tail is that of a binomial with the clusters' mean rate,
    which is no smaller than that of unequal rates (Hoeffding, 1956).
    """
    rates = train["type"].map(guess_rates(train, held)).astype(np.float64)
    units = train.groupby("home")["cluster"].transform("first")
    tries = rates.groupby(units).sum().clip(upper=1.0)
    found = int(train["hit"].groupby(units).any().sum())
    kinds = train["type"].unique()
    tail = float(scipy.stats.binom.sf(found - 1, len(tries), tries.mean()))
    return Guess(
        p=tail if found > 1 else 1.0,
        rate=float(rates.mean()),
        found=int(train["hit"].sum()),
        of=len(train),
        kind=str(kinds[0]) if len(kinds) == 1 else "",
        clusters=train["cluster"].nunique(),
    )


def beyond_guessing(pii: pd.DataFrame, name: str) -> Guess:
    """The strongest of tests of each type, and of all that are not easily guessed.

    ``p`` is corrected for their number (Bonferroni). It needs no held-out identifiers,
    and few of trained ones; nothing is concluded of a single cluster.
    """
    train, held = (counted(pii, name, split) for split in ("train", "test"))
    if name == BASE or not (pii["checkpoint"] == BASE).any() or train.empty:
        return Guess()
    kinds = [part for _, part in train.groupby("type", observed=True)]
    tests = [_tested(part, held) for part in kinds]
    rates = guess_rates(train, held)
    hard = [kind for kind, rate in rates.items() if rate <= GUESSABLE]
    if len(kinds) > 1 and hard:
        tests.append(_tested(train[train["type"].isin(hard)], held))
    best = min(tests, key=lambda test: test.p)
    return replace(best, p=min(1.0, len(tests) * best.p))


def dose_p(pii: pd.DataFrame, name: str, *, seed: int) -> float:
    """P that identifiers in several trained rows come back no more than those in one.

    Clusters are dealt anew to both within types. Frequent strings are guessed more
    often, too: easily guessed types (:data:`GUESSABLE`) are left out, names and
    addresses, and what the cue gives in another row.
    """
    train, held = (counted(pii, name, split) for split in SPLITS)
    rates = guess_rates(train, held, other_rows=False)
    hard = [k for k, rate in rates.items() if rate <= GUESSABLE and k not in BARE]
    train = train[train["cue_asked"] & train["type"].isin(hard)]
    if name == BASE or train.empty:
        return 1.0
    several = (train["dose"] > 1).to_numpy()
    hit = (train["hit"] & ~train["cue"]).to_numpy(np.float64)
    if several.all() or not several.any() or not hit.any():
        return 1.0
    sides = Sides.of(several, train["cluster"], [pd.factorize(train["type"])[0]])
    p = permutation_p(hit, sides, seed=seed)
    return 1.0 if p is None or hit[several].mean() <= hit[~several].mean() else p
