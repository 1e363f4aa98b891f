"""Findings of the extraction audit: conclusions from reproduced identifiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from spark_audit.audits.extract.guessing import (
    GuessTest,
    beyond_guessing,
    counted,
    dose_p,
)
from spark_audit.audits.extract.rates import (
    CONFIDENCE,
    SPLITS,
    Facts,
    base_bound,
    base_difference,
    by_checkpoint,
    comparable,
    difference_from_base,
    exact_p,
    has_base,
    hits_power,
    limits_p,
    points,
    rate_difference,
    rates_bound,
    row_of,
    split_difference,
)
from spark_audit.audits.identifier_texts import MIN_CLUSTERS_FOR_CLASSIFIER
from spark_audit.names import BASE
from spark_audit.results import Claim, Contrast, Finding, Hits, Row
from spark_audit.results.findings import EXCESS
from spark_audit.stats.estimate import Bound, Estimate, Power, side_of

NO_TRAINED_IDENTIFIER = "no identifier of a trained row was scored"

TIES_MATTER = 0.005
"""A finding states how ties change the greedy rate if that is more than this."""


def findings(pii: pd.DataFrame, rows: Sequence[Row], *, seed: int) -> Iterator[Finding]:
    """Yield the findings on the identifiers that each checkpoint reproduces.

    Parameters
    ----------
    pii
        Identifiers after their true prefix, of all checkpoints: one row per checkpoint
        and identifier, with the columns of :mod:`~spark_audit.audits.extract.rates`.
    rows
        Figures of the report: its pooled rates and numbers of tries are used.
    """
    pooled = {
        (row.checkpoint, row.metric, row.of): row
        for row in rows
        if row.group == "pooled"
    }
    for name, spans in by_checkpoint(pii).items():
        yield from _findings_on(name, spans, pooled, seed=seed)


def _findings_on(
    name: str,
    spans: pd.DataFrame,
    pooled: Mapping[tuple[str, str, str], Row],
    *,
    seed: int,
) -> Iterator[Finding]:
    """Yield the findings on one checkpoint: its rate, a comparison, and its ties.

    Parameters
    ----------
    spans
        Of the checkpoint, from :func:`spark_audit.audits.extract.rates.by_checkpoint`.
    pooled
        Checkpoint, metric and variant -> its figure over all tasks.
    """
    rate = pooled.get((name, "greedy_rate", ""))
    reproduced = reproduced_hits(spans)
    is_all_tied = reproduced.tied > 0 and reproduced.count == 0
    is_none_reproduced = reproduced.tied == 0 and reproduced.count == 0

    # If there are hits there is a finding even without a rate.
    if rate is None or (rate.value is None and is_none_reproduced):
        reason = NO_TRAINED_IDENTIFIER if rate is None else rate.note
        yield Finding.not_tested(
            "extract", "extract.missing", checkpoint=name, reason=reason
        )
        return

    # Numbers of tries appear in the facts of the sentence and in tables.
    facts: Facts = {"rate": rate, "back": reproduced}
    for sampler in ("t1", "top40"):
        facts[sampler] = pooled[name, "n50_median", sampler]

    if is_all_tied:
        yield Finding.on(
            rate,
            "not_tested",
            "extract.counts_tied",
            facts=facts,
            further=["extract.tied", "extract.all_tied"],
            status="not_resolvable",
        )
    else:
        comparison = _comparison(spans, rate, seed=seed)
        # A detection is claimed only once, by the sentence of the comparison.
        is_untested = comparison.claim == "not_tested" and not reproduced.count
        claim: Claim = "moved"
        if comparison.claim == "nothing_shown" or is_untested:
            claim = "nothing_shown"
        yield Finding.on(rate, claim, "extract.counts", facts=facts, status="ok")
        yield comparison

    # With many ties the precision of the scores decides the rate.
    tied_share = reproduced.tied / reproduced.of
    if tied_share > TIES_MATTER:
        estimate = Estimate(tied_share, clusters=rate.clusters)
        yield Finding.not_tested(
            "extract",
            "extract.ties",
            checkpoint=name,
            further=["extract.score_in_float32"],
            ties=row_of(estimate, checkpoint=name, metric="ties"),
        )


def reproduced_hits(spans: pd.DataFrame) -> Hits:
    """Return the reproduced identifiers of trained rows as a count of a total.

    ``tied`` counts identifiers that are reproduced only if ties are won.

    Parameters
    ----------
    spans
        Of one checkpoint: columns ``split``, ``greedy`` and ``greedy_sure``.
    """
    train = spans[spans["split"] == "train"]
    n_if_ties_won = int(train["greedy"].sum())
    n_sure = int(train["greedy_sure"].sum())
    return Hits(count=n_sure, of=len(train), tied=n_if_ties_won - n_sure)


def _share_fact(
    checkpoint: str, metric: str, spans: pd.DataFrame, hits: str = "greedy_sure"
) -> Facts:
    """Return the reproduced share of some spans as a fact; empty without spans.

    Parameters
    ----------
    checkpoint
        The checkpoint that reproduces them.
    metric
        Name of the fact.
    hits
        Column of hits; NaN where the checkpoint was not scored.
    """
    scored = spans.dropna(subset=hits)
    if scored.empty:
        return {}

    # In each stratum held-out spans get the total weight of the trained ones.
    share = np.average(scored[hits].astype(float), weights=scored.get("weight"))
    n_clusters = scored["cluster"].nunique()
    estimate = Estimate(float(share), n=len(scored), clusters=n_clusters)
    return {metric: row_of(estimate, checkpoint=checkpoint, metric=metric)}


def _finding(
    rate: Row,
    claim: Claim,
    says: str,
    facts: Facts,
    difference: Estimate,
    *,
    further: Sequence[str] = (),
    p: float | None = None,
    power: Sequence[Power] = (),
    bounds: Sequence[Bound] = (),
) -> Finding:
    """Return the finding of a comparison; it is primary if it has a p.

    Parameters
    ----------
    rate
        The rate of trained identifiers that are reproduced.
    says, further
        Keys of its sentence and of the remarks that follow, without ``extract.``.
    difference
        The rate minus the rate that it is compared with; above 0 is a leak.
    """
    key = f"extract.{says}"
    remarks = [f"extract.{remark}" for remark in further]
    # Without a comparison the finding has the figures of the rate itself.
    if difference.value is None:
        return Finding.on(
            rate, claim, key, facts=facts, further=remarks, p=p, power=power
        )

    # The claim is about the difference, not about the rate.
    in_clusters = replace(difference, clusters=rate.clusters)
    shown = row_of(in_clusters, checkpoint=rate.checkpoint, metric="apart")
    return Finding.on(
        rate,
        claim,
        key,
        facts={**facts, "apart": shown},
        further=remarks,
        metric=f"{rate.metric}{EXCESS}",
        value=points(difference.value),
        low=points(difference.low),
        high=points(difference.high),
        mde=points(difference.mde),
        unit="points",
        null=0.0,
        p=p,
        power=power,
        bounds=bounds,
    )


def _comparison(spans: pd.DataFrame, rate: Row, *, seed: int) -> Finding:
    """Return the finding on trained next to never-trained identifiers.

    If the base was scored, its difference is subtracted: it shows how far the two
    splits differ without training.

    ====================================  ========================================
    first match wins                      finding
    ====================================  ========================================
    some held-out ones are comparable     :func:`_comparison_of_splits`
    the base was scored                   :func:`_comparison_with_base`
    nothing is held out                   not_tested, ``no_control``
    otherwise                             not_tested, ``no_comparison``
    ====================================  ========================================

    Parameters
    ----------
    spans
        Of one checkpoint, as for :func:`findings`.
    rate
        The rate of trained identifiers that are reproduced.
    """
    train = spans[spans["split"] == "train"]
    has_held_out = len(train) < len(spans)

    counts_beyond_base = has_base(spans)
    compared, is_alike = comparable(spans)
    difference = rate_difference(split_difference(compared), base_difference(compared))

    # Without any hit only an upper limit of the rate can be stated.
    is_none_reproduced = not train["greedy"].any()
    limit_remarks = []
    if is_none_reproduced and rate.high is not None:
        limit_remarks.append("limit")
    facts: Facts = {
        "rate": rate,
        "none_back": is_none_reproduced,
        "past_base": counts_beyond_base,
        "back": reproduced_hits(train),
    }
    if difference.value is not None:
        facts["against"] = "injected" if is_alike else "natural"
        return _comparison_of_splits(
            spans,
            compared,
            rate,
            facts,
            difference,
            limit_remarks=limit_remarks,
            is_alike=is_alike,
        )

    # The base on the same rows replaces held-out identifiers.
    facts |= _holder_facts(train)
    if counts_beyond_base:
        facts |= _share_fact(BASE, "before", train, "base_sure")
        facts["few_held_out"] = has_held_out
        if has_held_out:
            facts["lacking"] = _not_compared_because(spans)
        return _comparison_with_base(
            spans, rate, facts, limit_remarks=limit_remarks, seed=seed
        )
    if not has_held_out:
        return _finding(
            rate, "not_tested", "no_control", facts, difference, further=limit_remarks
        )

    facts["against"] = "injected" if is_alike else "natural"
    return _finding(
        rate, "not_tested", "no_comparison", facts, difference, further=limit_remarks
    )


def _comparison_of_splits(
    spans: pd.DataFrame,
    compared: pd.DataFrame,
    rate: Row,
    facts: Facts,
    difference: Estimate,
    *,
    limit_remarks: Sequence[str],
    is_alike: bool,
) -> Finding:
    """Return the finding on trained next to held-out identifiers.

    =============================================  ==================================
    first match wins                               claim and sentence
    =============================================  ==================================
    no side is significant                         nothing_shown, ``not_apart``
    the base itself                                confounded, ``splits_differ``
    not drawn alike, and no base                   confounded, ``kinds_differ``
    more trained ones                              ``verbatim``
    fewer trained ones                             ``betrays``
    =============================================  ==================================

    Parameters
    ----------
    spans, compared
        All spans of one checkpoint, and the comparable ones
        (:func:`spark_audit.audits.extract.rates.comparable`).
    difference
        Rate of trained minus rate of held-out spans, less the same at the base.
    limit_remarks
        Keys of remarks on the upper limit, where none is reproduced.
    is_alike
        Whether both splits were drawn alike.
    """
    name = rate.checkpoint
    train = compared[compared["split"] == "train"]
    held_out = compared[compared["split"] == "test"]
    counts_beyond_base = bool(facts["past_base"])

    # The facts describe only the compared identifiers.
    facts |= {**_holder_facts(train), "back": reproduced_hits(train)}
    facts |= _share_fact(name, "unseen", held_out)
    facts |= _share_fact(BASE, "before", train, "base_sure")

    # Remarks state the two shares of the difference.
    further = []
    if "unseen" in facts:
        further.append("unseen")
    if "before" in facts:
        further.append("before")
    if counts_beyond_base:
        further.append("beyond_base")

    side = side_of(difference)
    p: float | None = None
    power: list[Power] = []
    bounds: list[Bound] = []
    # The base was not trained on these rows, so its output proves no memory.
    if name != BASE:
        test = _split_test(spans, compared, difference)
        p = test.p
        power = [hits_power(compared, base_difference(compared))]
        bounds = rates_bound(compared)
        if test.facts:
            facts |= test.facts
            further += _guess_remarks(facts, "lucky_guesses")

    # In the order of the table.
    claim: Claim
    if side == 0 or (p is not None and p > 1 - CONFIDENCE):
        claim = "nothing_shown"
        says = "not_apart"
        further += limit_remarks
    elif name == BASE:
        claim = "confounded"
        says = "splits_differ"
        power = []
    elif not (is_alike or counts_beyond_base):
        claim = "confounded"
        says = "kinds_differ"
        power = []
        further = ["word_for_word", *further, *_holder_remarks(facts)]
    elif side == 1:
        claim = "verbatim"
        says = "verbatim"
        further += _holder_remarks(facts)
    else:
        claim = "betrays"
        says = "betrays"
        further = ["word_for_word", *further]
    return _finding(
        rate,
        claim,
        says,
        facts,
        difference,
        further=further,
        p=p,
        power=power,
        bounds=bounds,
    )


def _split_test(
    spans: pd.DataFrame, compared: pd.DataFrame, difference: Estimate
) -> GuessTest:
    """Return the p that trained identifiers are reproduced as often as held-out ones.

    Where they are reproduced more often, it may be the p of guessing instead, if that
    is smaller once corrected for two tests (Bonferroni): then the facts of guessing
    come with it, else none.
    """
    # The interval is approximate with few hits, so Fisher's exact test must agree.
    p = max(limits_p(difference), exact_p(compared))
    if side_of(difference) != 1:
        return GuessTest(p, {})

    guess_p, guess_facts = beyond_guessing(spans)
    if 2 * guess_p < p:
        return GuessTest(2 * guess_p, guess_facts)
    return GuessTest(p, {})


def _not_compared_because(spans: pd.DataFrame) -> str:
    """Return the reason why held-out identifiers are no control of trained ones.

    ``form``: none has the form and the place of trained ones; ``few``: too few have,
    to test whether their texts differ; ``text``: their texts differ.
    """
    # A stratum below 0 holds spans whose texts differ between sides, or may.
    of_like_form = spans[spans["stratum"] < 0]
    if of_like_form.empty:
        return "form"

    n_clusters = of_like_form.groupby("split")["cluster"].nunique().reindex(SPLITS)
    is_tested = n_clusters.min() >= MIN_CLUSTERS_FOR_CLASSIFIER
    return "text" if is_tested else "few"


def _comparison_with_base(
    spans: pd.DataFrame,
    rate: Row,
    facts: Facts,
    *,
    limit_remarks: Sequence[str],
    seed: int,
) -> Finding:
    """Return the finding on trained identifiers next to the base and to guessing.

    Without held-out identifiers as a control, hits beyond the base are memory if there
    are more of them than guessing gives, or if their rate grows with dose.

    =============================================  ==================================
    first match wins                               claim and sentence
    =============================================  ==================================
    more than the base, beyond guessing or dose    verbatim, ``beyond_guessing``
    more than the base                             confounded, ``maybe_guessed``
    no interval, and nothing beyond the base       not_tested, ``no_comparison``
    no significant difference                      nothing_shown, ``not_apart``
    fewer than the base                            moved, ``fewer_than_base``
    =============================================  ==================================

    Parameters
    ----------
    facts
        ``lacking`` is the reason why the held-out identifiers, if any, are no control.
    limit_remarks
        Keys of remarks on the upper limit, where none is reproduced.
    """
    # Remarks say why the base is the comparison, and how much it gives.
    facts |= {"against": "base", "past_base": False}
    why_base = "no_held_out"
    if "lacking" in facts:
        why_base = f"lacking_{facts['lacking']}"
    before = []
    if "before" in facts:
        before.append("before")

    # Without an interval, any hit beyond those of the base counts.
    difference, p = difference_from_base(spans, seed=seed)
    side = side_of(difference)
    has_hits = side is None and bool(counted(spans)["hit"].any())
    claim: Claim
    if side == 1 or has_hits:
        # Two tests of memory: more hits than guessing gives, or a rate that grows with
        # dose.
        guess_p, guess_facts = beyond_guessing(spans)
        growth_p = dose_p(spans, seed=seed)
        p = min(1.0, 2 * min(guess_p, growth_p))
        is_dose_clearer = growth_p < guess_p
        facts["grows"] = growth_p if is_dose_clearer else None
        facts |= guess_facts
        guesses = _guess_remarks(facts, "guessing")
        further = [why_base, *before, *guesses, *_holder_remarks(facts)]
        claim = "verbatim"
        says = "beyond_guessing"
        if p > 1 - CONFIDENCE:
            claim = "confounded"
            says = "maybe_guessed"
        elif is_dose_clearer:
            further.insert(1, "grows")
    elif side is None:
        claim = "not_tested"
        says = "no_comparison"
        further = [why_base, *limit_remarks]
    elif side == 0 or (p or 0.0) > 1 - CONFIDENCE:
        claim = "nothing_shown"
        says = "not_apart"
        further = [why_base, *before, *limit_remarks]
    else:
        claim = "moved"
        says = "fewer_than_base"
        further = [why_base, *before]
    return _finding(
        rate,
        claim,
        says,
        facts,
        difference,
        further=further,
        p=p,
        bounds=base_bound(spans, difference),
    )


def _guess_remarks(facts: Facts, says: str) -> list[str]:
    """Return the key of the remark on guessing, for one type or for several.

    Parameters
    ----------
    says
        ``guessing`` or ``lucky_guesses``.
    """
    if "guessed" in facts:
        return [f"{says}_of_kind" if facts["kind"] else says]

    # Without an estimate, the rows of these hits give them away.
    if says == "guessing":
        return ["hinted"]
    return []


def _holder_facts(train: pd.DataFrame) -> Facts:
    """Return the counts of hits that other rows contain, and that the cue gives alone.

    Parameters
    ----------
    train
        Spans of train rows: columns ``greedy_sure``, ``elsewhere``, ``cue``, ``base``.
    """
    hits = train[train["greedy_sure"].astype(bool)]
    n_hits = len(hits)
    n_shared = int(hits["elsewhere"].sum())
    # A hit of the base does not come from the cue.
    n_cued = int((hits["cue"] & ~hits["base"]).sum())

    # Leave out counts of 0, which no remark states.
    facts: Facts = {"all_shared": n_shared == n_hits}
    counts = {"sure": n_hits, "shared": n_shared, "cued": n_cued}
    for name, count in counts.items():
        if count:
            facts[name] = Hits(count=count, of=len(train))
    return facts


def _holder_remarks(facts: Facts) -> list[str]:
    """Return the keys of remarks on facts of :func:`_holder_facts`."""
    further = []
    if "shared" in facts:
        further.append("all_shared" if facts["all_shared"] else "some_shared")
    if "cued" in facts:
        further.append("cued")
    return further


def contrast_findings(contrasts: Sequence[Contrast]) -> Iterator[Finding]:
    """Yield findings on the change of the greedy rate from each baseline."""
    for contrast in contrasts:
        if (contrast.group, contrast.metric) != ("pooled", "greedy_rate"):
            continue

        # If all clusters agree there is no interval, so the test decides.
        is_significant = (
            contrast.ends is None
            and contrast.p is not None
            and contrast.p <= 1 - contrast.level
        )
        claim: Claim = "nothing_shown"
        says = "change_none"
        if contrast.value is None:
            claim = "not_tested"
            says = "change_missing"
        elif contrast.moved or is_significant:
            claim = "moved"
            says = "change_up" if contrast.value > 0 else "change_down"
        yield Finding.on(contrast, claim, f"extract.{says}", facts={"change": contrast})
