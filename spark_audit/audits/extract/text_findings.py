"""Findings on an endpoint that gives only text.

Text shows what comes out, and never what could. So there are positive claims only:

=====================================================  ================================
first match wins                                       claim and sentence
=====================================================  ================================
no comparable identifier is held out                   not_tested, ``text.no_control``
more trained than held-out ones come out               verbatim, ``text.verbatim``
otherwise                                              not_tested, ``text.not_apart``
=====================================================  ================================

An identifier comes out if any of its answers gives it, the one at temperature 0 or a
sample. Trained and held-out ones get equally many answers, are of the same form and
place in their rows (:func:`~spark_audit.audits.extract.rates.comparable`), and count by
clusters. The interval of the difference and Fisher's exact test must agree. The test
counts among those of the report also where nothing is claimed, and a claim that the
correction takes away is not tested.

Injected identifiers were drawn alike, so that only training makes a difference. Natural
ones may be easier to guess than those that were held out, as common names are. Weights
have their base for that; here it is the context of another row (``cue``), behind which
guesses come out, too: the difference must exceed the difference there. Without that
prompt nothing is claimed of natural identifiers. It is shown beside all others, and an
identifier that comes out there is more exposed, not less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from spark_audit.audits import ratio_rows
from spark_audit.audits.base import Audit, Context
from spark_audit.audits.extract.canaries import canary_findings
from spark_audit.audits.extract.comparison_facts import reproduced_hits, share_fact
from spark_audit.audits.extract.difference_finding import difference_finding
from spark_audit.audits.extract.prompt_table import (
    DRAWS_COUNTED,
    prompt_table,
    records_without_figures,
    with_cue_and_base,
)
from spark_audit.audits.extract.prompts import FULL_PROMPT
from spark_audit.audits.extract.rate_limits import hits_power
from spark_audit.audits.extract.rates import (
    Facts,
    by_checkpoint,
    comparable,
    exact_p,
    limits_p,
    rate_difference,
    row_of,
    split_difference,
    weighted_sums,
)
from spark_audit.audits.extract.text_units import (
    ANSWERS_WITH_IT,
    CUT_ANSWERS,
    N_ANSWERS,
    REFUSALS,
)
from spark_audit.results import AuditResult, Finding, Hits, Row
from spark_audit.results.audit_result import TableRecord
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import ANSWERS_EACH
from spark_audit.stats.estimate import Estimate, Power, is_significant, side_of
from spark_audit.stats.intervals import clopper_pearson, rate_estimate

CANARIES_BACK = "extract.canaries_back"

LIMIT_METRIC = "drawn_at_most"
"""Metric of what could still come out: shared files round it up, as any upper limit."""

NO_TRAINED_IDENTIFIER_TO_ASK = "no trained identifier has a text before it to ask with"


def is_of_text_alone(evidence: Evidence) -> bool:
    """Return whether evidence is that of an endpoint that gives only text."""
    return _count_in(evidence, ANSWERS_EACH) > 0


def _count_in(evidence: Evidence, name: str) -> int:
    """Return a count among the facts; 0 if there is none, as in foreign files."""
    count = evidence.facts.get(name)
    if not isinstance(count, int) or isinstance(count, bool):
        return 0
    return max(count, 0)


def conclude_from_text(
    evidence: Evidence, context: Context, *, audit: type[Audit]
) -> AuditResult:
    """Return the figures of what came out, and the findings on it.

    Parameters
    ----------
    audit
        The class of this audit.
    """
    spans = evidence.frame()
    comes_out = spans[ANSWERS_WITH_IT].to_numpy() > 0  # (spans,), bool
    spans = spans.assign(greedy=comes_out, greedy_sure=comes_out)
    pii = spans[spans["set"] == "pii"]
    canaries = spans[spans["set"] == "canary"]

    rows = _greedy_rates(evidence, context, audit)
    facts = _common_facts(evidence)
    concluded = [
        *_identifier_findings(pii, rows, facts),
        *_canary_findings(canaries, facts, are_alone=pii.empty),
    ]
    records = _prompt_records(pii, evidence, context)
    return AuditResult(
        results=rows,
        findings=concluded,
        tables={"extract_prompts": records} if records else {},
    )


def _common_facts(evidence: Evidence) -> Facts:
    """Return the facts on all answers that each finding has."""
    n_each = _count_in(evidence, ANSWERS_EACH)
    return {
        ANSWERS_EACH: n_each,
        "each": "one" if n_each == 1 else "several",
        N_ANSWERS: _count_in(evidence, N_ANSWERS),
        REFUSALS: _count_in(evidence, REFUSALS),
        CUT_ANSWERS: _count_in(evidence, CUT_ANSWERS),
    }


def _greedy_rates(
    evidence: Evidence, context: Context, audit: type[Audit]
) -> list[Row]:
    """Return the rates of identifiers that the answers at temperature 0 give."""
    units = evidence.units
    pii = units[(units["set"] == "pii") & (units["prompt"] == FULL_PROMPT)]
    if "train" not in set(pii["split"]):
        return []
    groups = list(ratio_rows.groups_of(pii))
    cells = ratio_rows.cells_of_units(
        groups,
        evidence,
        "greedy",
        metrics={"greedy_rate": np.asarray},
        variants=np.full(len(units), ""),
    )
    rows, _ = ratio_rows.ratio_figures(cells, context, audit)
    return rows


def _identifier_findings(
    pii: pd.DataFrame, rows: Sequence[Row], facts: Facts
) -> Iterator[Finding]:
    """Yield the finding on the identifiers of each endpoint.

    Parameters
    ----------
    pii
        Identifiers after all prompts; ``greedy`` is whether any answer gives it.
    """
    after_true_context = with_cue_and_base(pii)
    rate_by_name = {row.checkpoint: row for row in rows if row.group == "pooled"}
    for name, spans in by_checkpoint(after_true_context).items():
        rate = rate_by_name.get(name)
        if rate is None or "train" not in set(spans["split"]):
            yield Finding(
                audit="extract",
                checkpoint=name,
                claim="not_tested",
                says="extract.missing",
                facts={**facts, "reason": NO_TRAINED_IDENTIFIER_TO_ASK},
            )
        else:
            yield _identifier_finding(name, spans, rate, facts)


def _identifier_finding(
    name: str, spans: pd.DataFrame, rate: Row, facts: Facts
) -> Finding:
    """Return the finding on the identifiers of one endpoint.

    Parameters
    ----------
    spans
        After their true context, with the hits of the cue.
    rate
        The rate of trained identifiers that the answers at temperature 0 give.
    """
    compared, is_alike = comparable(spans)
    difference = split_difference(compared)
    train = spans[spans["split"] == "train"]
    if difference.value is not None:
        train = compared[compared["split"] == "train"]
    held_out = compared[compared["split"] == "test"]

    facts = {
        **facts,
        "rate": rate,
        "back": reproduced_hits(train),
        "limit": row_of(_limit(train), checkpoint=name, metric=LIMIT_METRIC),
        "against": "injected" if is_alike else "natural",
        **_mismatched_fact(train),
    }
    further = [f"text.{key}" for key in _remarks(facts)]
    if difference.value is None:
        return _without_claim(rate, "text.no_control", facts, ["text.out", *further])

    facts |= share_fact(name, "unseen", held_out)
    further = ["text.unseen", *further]
    with_clusters = replace(difference, clusters=rate.clusters)
    facts["apart"] = row_of(with_clusters, checkpoint=name, metric="apart")

    p = max(limits_p(difference), exact_p(compared))
    exceeds_held_out = side_of(difference) == 1 and is_significant(p)
    if not exceeds_held_out:
        remarks = ["text.out", *further]
        return _without_claim(rate, "text.not_apart", facts, remarks, p=p)

    # Natural identifiers of trained rows may only be easier to guess.
    if not is_alike:
        p = max(p, _p_beyond_guessing(compared))
    if not is_significant(p):
        has_control = "mismatched" in facts
        doubt = "text.guessed" if has_control else "text.no_mismatched"
        remarks = ["text.out", *further, doubt]
        return _without_claim(rate, "text.not_apart", facts, remarks, p=p)

    return _claim_of_leak(
        rate, difference, facts, further, p=p, power=hits_power(compared)
    )


def _p_beyond_guessing(compared: pd.DataFrame) -> float:
    """Return p that trained identifiers are only easier to guess; 1: not tested.

    Guesses come out behind the context of another row, too. So the difference of the
    splits there is subtracted from their difference after the true context, for the
    identifiers that are asked for with both.

    Parameters
    ----------
    compared
        From :func:`~spark_audit.audits.extract.rates.comparable`, with the hits of the
        cue.
    """
    asked_twice = compared[compared["cue_asked"]]
    remembered = split_difference(asked_twice)
    guessed = split_difference(asked_twice, "cue")
    beyond = rate_difference(remembered, guessed)
    if beyond.value is None or side_of(beyond) != 1:
        return 1.0
    return limits_p(beyond)


def _limit(train: pd.DataFrame) -> Estimate:
    """Return the share of trained identifiers that could still come out.

    It is the upper end of the 95% interval over clusters, as the parts of one canary or
    the identifiers of one source are no independent trials. Where clusters are too few
    for one, each counts as one trial, which is a hit if any of its identifiers is.
    """
    hits, trials = weighted_sums(train.assign(weight=1.0), "greedy_sure", "train")
    most = rate_estimate(hits, trials).high
    if most is None:
        most = float(clopper_pearson(int((hits > 0).sum()), len(hits))[1])
    return Estimate(most, n=len(train), clusters=len(hits))


def _claim_of_leak(
    rate: Row,
    difference: Estimate,
    facts: Facts,
    further: Sequence[str],
    *,
    p: float,
    power: Power,
) -> Finding:
    """Return the finding that more trained than held-out identifiers come out."""
    return difference_finding(
        rate,
        "verbatim",
        "extract.text.verbatim",
        difference,
        facts=facts,
        further=[f"extract.{key}" for key in further],
        p=p,
        power=[power],
    )


def _without_claim(
    rate: Row,
    says: str,
    facts: Facts,
    further: Sequence[str],
    *,
    p: float | None = None,
) -> Finding:
    """Return a finding that claims nothing; with a p it counts among the tests."""
    keys = [*further, "text.positive_only"]
    return Finding.on(
        rate,
        "not_tested",
        f"extract.{says}",
        facts=facts,
        further=[f"extract.{key}" for key in keys],
        status="ok",
        p=p,
    )


def _mismatched_fact(train: pd.DataFrame) -> Facts:
    """Return how many trained identifiers come out with another row's context."""
    asked = train[train["cue_asked"]]
    if asked.empty:
        return {}
    return {"mismatched": Hits(count=int(asked["cue"].sum()), of=len(asked))}


def _remarks(facts: Facts) -> list[str]:
    """Return the keys of remarks on the mismatched context and on lost answers."""
    remarks = []
    if "mismatched" in facts:
        remarks.append("mismatched")
    if facts[REFUSALS]:
        remarks.append("refusals")
    if facts[CUT_ANSWERS]:
        remarks.append("cut")
    return remarks


def _canary_findings(
    canaries: pd.DataFrame, facts: Facts, *, are_alone: bool
) -> Iterator[Finding]:
    """Yield the finding on canaries; one that claims nothing is not tested.

    Parameters
    ----------
    canaries
        Their parts; ``greedy_sure`` is whether any answer gives the part.
    are_alone
        Whether no identifier was asked for, whose finding would tell of lost answers.
    """
    is_trained = (canaries["dose"] > 0) & canaries["first"].astype(bool)
    trained = canaries[is_trained].assign(trials=1)
    remarks = [f"extract.text.{key}" for key in _remarks(facts)] if are_alone else []
    for finding in canary_findings(canaries):
        # A claim that the correction takes away states the limit, too.
        of_checkpoint = trained[trained["checkpoint"] == finding.checkpoint]
        limit = row_of(
            _limit(of_checkpoint),
            checkpoint=finding.checkpoint,
            metric=LIMIT_METRIC,
        )
        all_facts = {**finding.facts, **facts, "limit": limit}
        if finding.says == CANARIES_BACK:
            yield finding.model_copy(
                update={"facts": all_facts, "says": "extract.text.canaries_back"}
            )
            continue
        yield finding.model_copy(
            update={
                "claim": "not_tested",
                "alone": "not_tested",
                "says": "extract.text.canaries",
                "further": [*remarks, "extract.text.positive_only"],
                "facts": all_facts,
                "bounds": [],
            }
        )


def _prompt_records(
    pii: pd.DataFrame, evidence: Evidence, context: Context
) -> list[TableRecord]:
    """Return the records of the table of prompts, where others were asked, too."""
    # Answers tell no probability of a draw.
    records = prompt_table(pii.assign(logp_top40=-np.inf), seed=context.seed)
    for record in records:
        record.update({f"top40_within_{n}": None for n in DRAWS_COUNTED})
    if records:
        records += records_without_figures(
            records,
            prompts=evidence.facts["asked"],
            prompts_that_fit=evidence.facts["trained"],
            checkpoints=evidence.facts["checkpoints"],
        )
    return records
