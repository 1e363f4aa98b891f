"""The extract audit against plain loops over spans, and what it says of nothing."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from audited import (
    change,
    claims,
    conclude,
    evidence,
    extract,
    figure,
    natural,
    of_frame,
)
from scipy.stats import fisher_exact
from short_sentences import check_sentences

from spark_audit.audits.base import Context
from spark_audit.audits.extract.prompts import EXTRACT_COLUMNS
from spark_audit.audits.extract.rate_limits import hits_power
from spark_audit.audits.extract.rates import (
    by_checkpoint,
    comparable,
    comparison_p,
    rate_difference,
    split_difference,
)
from spark_audit.manifest.content import seal
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult
from spark_audit.scoring.table import PLAIN_COLUMNS, Pass, TokenTable
from spark_audit.stats.estimate import Estimate, side_of

Known = Callable[[str, int], bool]
"""Whether a checkpoint knows a span, by example id and number of the span."""

PLAIN = Pass()


def table(
    case: Any, is_known: Known = lambda *_: False, *, seed: int = 0, tie: bool = False
) -> TokenTable:
    """Known spans: each token rank 1 at 0.05 nats. Of others the first alone."""
    rng = np.random.default_rng(seed)
    items = []
    for key, nll in case.reference.items():
        n = len(nll)
        columns = {name: np.zeros(n, dtype) for name, dtype in PLAIN_COLUMNS.items()}
        columns["nll"] = (nll + rng.gamma(1.0, 0.5, n) + 0.1).astype(np.float32)
        columns["rank_lo"] = rng.integers(2, 45, n).astype(np.int32)
        columns["top40_logp"] = np.full(n, -0.02, np.float32)
        for i, (start, end) in enumerate(case.spans(key)):
            columns["rank_lo"][start] = 1
            if is_known(key, i):
                columns["nll"][start:end] = 0.05
                columns["rank_lo"][start:end] = 1
                columns["ties"][start] = int(tie)
        where = np.arange(1, n, dtype=np.int32)
        items.append((key, where, {name: c[1:] for name, c in columns.items()}))
    return TokenTable.from_items(items)


def tables(case: Any, **known: Known) -> dict[str, dict[Pass, TokenTable]]:
    return {
        name: {PLAIN: table(case, which, seed=i)}
        for i, (name, which) in enumerate(known.items())
    }


def nothing(key: str, span: int) -> bool:
    return False


def everything(key: str, span: int) -> bool:
    return True


def some(case: Any, count: int, *, split: str = "train") -> Known:
    """The first span of the first examples of a split."""
    ids = [e.id for e in case.manifest.examples if e.split == split][:count]
    return lambda key, span: key in ids and span == 0


def with_canaries(manifest: Manifest, rows: int) -> Manifest:
    """The last train rows hold canaries, two rows each; the test rows held-out ones."""
    content = manifest.model_dump(mode="json")
    train, test = (
        [e for e in content["examples"] if e["split"] == split]
        for split in ("train", "test")
    )
    named = [(f"c{i // 2}", e) for i, e in enumerate(train[-rows:])]
    named += [(f"h{i}", e) for i, e in enumerate(test)]
    records = []
    for name, example in named:
        example["canary_id"] = name
        example["cluster"] = name
        for span, part in zip(example["spans"], ("password", "ssn"), strict=False):
            span["part"] = part
    for name in dict(named):
        records.append(
            {
                "canary_id": name,
                "part": "full",
                "contexts": [],
                "candidates": [],
                "true_index": None,
                "reason": "too few",
                "n_tokens": None,
                "format": "login",
                "dose": 2 if name.startswith("c") else 0,
                "held_out": name.startswith("h"),
            }
        )
    named_ids = {e["id"] for _, e in named}
    content["pairs"] = [p for p in content["pairs"] if p["example"] not in named_ids]
    content["unmatched"] = [
        u for u in content["unmatched"] if u["example"] not in named_ids
    ]
    return seal(content | {"canaries": records})


def test_a_base_that_differs_by_split_is_a_guard_and_no_extraction(make_case):
    case = make_case(sources=40, tests=20, seed=4)
    knows_some = some(case, 25)
    scored = tables(case, base=knows_some, same=knows_some, more=everything)
    result = extract(scored, case.manifest)
    # As much as the base does is no finding; all train and all test rows neither.
    assert not {"verbatim", "betrays"} & {*claims(result, "same")}
    (guard,) = result.guards
    assert (guard.checkpoint, guard.passed) == ("base", False)
    (guard,) = extract(scored, natural(case.manifest)).guards
    assert guard.passed is None
    # The same rows without the base: the plain difference.
    without_base = extract({"same": scored["same"]}, case.manifest)
    assert without_base.guards == []


def test_natural_identifiers_are_called_extracted_beyond_the_base_alone(make_case):
    """Nobody drew them alike: without the base, they may differ by themselves."""
    case = make_case(sources=40, tests=40, seed=4)
    scored = tables(case, base=nothing, ours=some(case, 25))
    manifest = natural(case.manifest)
    result = extract(scored, manifest)
    assert "verbatim" in claims(result, "ours")
    without_base = {"ours": scored["ours"]}
    assert "verbatim" not in claims(extract(without_base, manifest), "ours")


@pytest.mark.parametrize("tests", [40, 0])
def test_two_ways_to_find_it_are_two_tests(make_case, monkeypatch, tests):
    """Held-out rows or dose are one of them, and guessing is the other."""
    monkeypatch.setattr(
        "spark_audit.audits.extract.comparison.beyond_guessing",
        lambda spans: (1e-30, {}),
    )
    case = make_case(sources=40, tests=tests, seed=4)
    scored = tables(case, base=nothing, ours=some(case, 25))
    result = extract(scored, natural(case.manifest))
    (verbatim,) = [
        finding
        for finding in result.findings
        if (finding.checkpoint, finding.claim) == ("ours", "verbatim")
    ]
    assert verbatim.p == pytest.approx(2e-30, rel=1e-6, abs=0.0)
    assert verbatim.unit == "points"
    assert verbatim.value == pytest.approx(100 * verbatim.facts["apart"].value)
    assert verbatim.low == pytest.approx(100 * verbatim.facts["apart"].low)


def test_a_change_needs_its_interval_and_its_test(make_case):
    """Four of some thirty sources that changed all one way: sign-flip p is 1/8."""
    case = make_case(sources=30, tests=5, seed=12)
    result = extract(
        tables(case, plain=some(case, 4), ours=nothing), case.manifest, baseline="plain"
    )
    row = change(result, "ours", "greedy_rate")
    assert row.p == pytest.approx(1 / 8)
    assert "moved" not in claims(result, "ours")


def test_medians_beyond_counting_are_bounds_and_no_infinities(make_case):
    case = make_case(sources=12, tests=4, seed=9)
    far = table(case)
    columns = dict(far.columns)
    columns["rank_lo"] = np.full_like(columns["rank_lo"], 41)
    columns["nll"] = np.full_like(columns["nll"], 400.0)
    hard = TokenTable(far.ids, far.offsets, far.position, columns)
    result = extract({"ours": {PLAIN: hard}}, case.manifest)
    for of in ("t1", "top40"):
        row = figure(result, "ours", "n50_median", of)
        assert (row.value, row.status) == (1e12, "ok")
        assert (row.low, row.high, row.interval_method) == (1e12, None, "percentile")
        # The bound is explained once.
        assert row.note.count("bound") == 1
    json.dumps([row.model_dump() for row in result.results], allow_nan=False)
    json.dumps(result.tables, allow_nan=False)


def test_top_p_counts_tries_beside_the_other_samplers(make_case):
    """Every nucleus has five tokens: a span is drawn where all its ranks are in it."""
    case = make_case(sources=12, tests=4, seed=9)
    plain = table(case, some(case, 9))
    columns = {"nll": plain.columns["nll"], "rank_lo": plain.columns["rank_lo"]}
    for of, p in (("top_p90", 0.91), ("top_p95", 0.97)):
        columns[f"{of}_size"] = np.full(len(plain), 5, np.int32)
        columns[f"{of}_logp"] = np.full(len(plain), np.log(p), np.float32)
    nucleus = TokenTable(plain.ids, plain.offsets, plain.position, columns)
    scored = {"ours": {PLAIN: plain, Pass("nucleus"): nucleus}, "old": {PLAIN: plain}}
    result = extract(scored, case.manifest, top_p=True)
    for of, p in (("top_p90", 0.91), ("top_p95", 0.97)):
        expected = []
        for example in case.manifest.examples:
            for start, end in (
                case.spans(example.id) if example.split == "train" else ()
            ):
                rows = plain.span(example.id, start, end)
                nll, rank = (columns[k][rows].astype(float) for k in ("nll", "rank_lo"))
                chance = np.prod(np.minimum(np.exp(-nll) / p, 1.0)) * (rank <= 5).all()
                draws = {0.0: np.inf, 1.0: 1.0}.get(float(chance))
                expected.append(draws or np.ceil(np.log(0.5) / np.log1p(-chance)))
        median = min(np.median(expected), 1e12)
        row = figure(result, "ours", "n50_median", of)
        assert row.value == pytest.approx(median, rel=1e-3)
    # What was not asked for is not there.
    rows = extract(scored, case.manifest).results
    assert {r.variant for r in rows if r.metric == "n50_median"} == {"t1", "top40"}


def test_canaries_alone_are_no_identifiers_to_extract(make_case):
    everyone = with_canaries(make_case(sources=4, tests=2).manifest, rows=4)
    only = make_case(sources=4, tests=2)
    result = extract(tables(only, a=everything), everyone)
    assert {r.status for r in result.results} == {"not_estimable"}
    assert "extract.canaries_chance" in {finding.says for finding in result.findings}


def test_rows_without_an_identifier_are_not_estimable(make_case):
    case = make_case(sources=4, tests=2)
    content = case.manifest.model_dump(mode="json")
    for example in content["examples"]:
        example["spans"] = []
    without = seal(content | {"pairs": [], "unmatched": []})
    result = extract(tables(case, base=nothing, ours=everything), without)
    assert {row.status for row in result.results} == {"not_estimable"}
    assert not {"verbatim", "betrays"} & {*claims(result, "ours")}


def test_without_test_rows_the_base_is_the_null(make_case):
    case = make_case(sources=12, tests=0, seed=20)
    scored = tables(
        case, base=nothing, total=everything, many=some(case, 9), one=some(case, 1)
    )
    result = extract(scored, case.manifest)
    for name in ("total", "many"):
        assert claims(result, name) == ["moved", "verbatim"]
        # Where it does not hold among all tests, what came back is told all the same.
    assert claims(result, "one") == ["nothing_shown", "nothing_shown"]
    assert claims(result, "base") == ["nothing_shown", "not_tested"]
    same = extract(
        {n: {PLAIN: table(case, everything)} for n in ("base", "ours")}, case.manifest
    )
    assert claims(same, "ours") == ["nothing_shown", "nothing_shown"]
    without_test_rows = extract(tables(case, ours=everything), case.manifest)
    assert claims(without_test_rows, "ours") == ["moved", "not_tested"]


@pytest.mark.parametrize(
    ("base", "scale"),
    [(nothing, ["moved", "confounded"]), (everything, ["moved", "not_tested"])],
)
def test_of_one_source_nothing_tells_memory_from_guessing(make_case, base, scale):
    case = make_case(sources=1, rows=4, seed=17)
    result = extract(tables(case, base=base, ours=everything), case.manifest)
    assert claims(result, "ours") == scale
    (count, _) = (f for f in result.findings if f.checkpoint == "ours")
    assert count.status == "ok"


def test_hits_that_hang_on_ties_are_no_finding(make_case):
    case = make_case(sources=12, tests=6, seed=8)
    manifest = with_canaries(case.manifest, rows=8)
    tied = {
        "base": {PLAIN: table(case)},
        "ours": {PLAIN: table(case, everything, tie=True)},
    }
    result = extract(tied, manifest)
    assert set(claims(result, "ours")) == {"not_tested"}
    lost = [f for f in result.findings if f.status == "not_resolvable"]
    assert len(lost) == 2


def test_canaries_that_come_back_are_verbatim(make_case):
    case = make_case(sources=20, tests=6, seed=13)
    manifest = with_canaries(case.manifest, rows=12)
    planted = {e.id for e in manifest.examples if e.canary_id and e.split == "train"}

    def trained(key: str, span: int) -> bool:
        return key in planted

    scored = tables(case, base=nothing, ours=trained, all=everything, none=nothing)

    def claim(result: AuditResult, name: str) -> str:
        (finding,) = (
            f
            for f in result.findings
            if f.checkpoint == name and "canaries" in f.sentence
        )
        return finding.claim

    result = extract(scored, manifest)
    claims_by_checkpoint = [
        claim(result, name) for name in ("base", "ours", "all", "none")
    ]
    assert claims_by_checkpoint == [
        "nothing_shown",
        "verbatim",
        "moved",
        "nothing_shown",
    ]
    # What the base returns too was not learned here.
    as_base = {"base": scored["ours"], "ours": scored["ours"]}
    assert claim(extract(as_base, manifest), "ours") == "moved"


def apart_of(frame: pd.DataFrame) -> Estimate:
    own_units = by_checkpoint(frame.assign(trials=1))["ours"]
    return split_difference(comparable(own_units)[0])


def test_natural_identifiers_are_compared_within_strata(make_case):
    """Held-out ones weigh as trained ones of their form; of another form, nothing."""
    case = make_case(sources=40, tests=20, seed=4)
    scored = tables(case, base=nothing, ours=nothing)
    whole_evidence = evidence("extract", scored, natural(case.manifest))
    frame = whole_evidence.frame()
    rng = np.random.default_rng(0)
    train = frame["split"] == "train"
    is_own = frame["checkpoint"] == "ours"
    # Two forms, of which one is guessed: most trained ones are of it.
    easy = np.tile(rng.random(len(frame) // 2) < np.where(train[is_own], 0.8, 0.3), 2)
    hit = is_own & easy & np.tile(rng.random(len(frame) // 2) < 0.7, 2)
    forms = frame.assign(
        type="ID", stratum=1 + easy, origin="natural", greedy=hit, greedy_sure=hit
    )
    difference = apart_of(forms)
    expected = 0.0
    for form in (1, 2):
        inside = forms[is_own & (forms["stratum"] == form)]
        rates = inside.groupby("split")["greedy"].mean()
        share = (inside["split"] == "train").sum() / (train & is_own).sum()
        expected += share * (rates["train"] - rates["test"])
    assert difference.value == pytest.approx(expected)
    assert difference.low < 0 < difference.high
    context = Context(replicates=200)
    values = " ".join(EXTRACT_COLUMNS)
    result = conclude(
        "extract", of_frame(forms, values, **whole_evidence.facts), context
    )
    assert "verbatim" not in claims(result, "ours")
    # Trained ones of a form that nobody held out are not compared, and not counted in
    # the sentence on those that are: its counts are of the same identifiers.
    partly_elsewhere = forms.assign(
        stratum=np.where(easy & train, 2, 1), elsewhere=True
    )
    result = conclude(
        "extract", of_frame(partly_elsewhere, values, **whole_evidence.facts), context
    )
    (compared,) = (
        f for f in result.findings if f.checkpoint == "ours" and f.family == "primary"
    )
    inside = partly_elsewhere[is_own & train & (partly_elsewhere["stratum"] == 1)]
    assert compared.facts["back"].of == len(inside) < (train & is_own).sum()
    given_back = compared.facts["back"]
    counts = [compared.facts[k] for k in ("sure", "shared") if k in compared.facts]
    assert all(
        (count.count, count.of) == (given_back.count, given_back.of) for count in counts
    )
    # Without strata, the mix of forms is taken for memory.
    mixed = apart_of(forms.assign(stratum=1))
    assert mixed.low > 0
    # All trained ones of one form, all held-out ones of another: no control.
    other_strata = forms.assign(stratum=1 + train)
    assert apart_of(other_strata).value is None
    assert comparable(forms.assign(stratum=-1))[0].empty


@pytest.mark.parametrize(
    ("stratum", "held_out", "lacking"),
    [
        (lambda train: 1 + train, 20, "form"),
        (lambda train: -1 + 0 * train, 20, "text"),
        (lambda train: -1 + 0 * train, 9, "few"),
        # Only trained ones are refused, so there is no held-out text to test.
        (lambda train: 1 - 2 * train, 20, "few"),
    ],
)
def test_why_held_out_identifiers_are_no_control_is_told(
    make_case, stratum, held_out, lacking
):
    case = make_case(sources=40, tests=held_out, seed=4)
    scored = tables(case, base=nothing, ours=some(case, 25))
    whole_evidence = evidence("extract", scored, natural(case.manifest))
    frame = whole_evidence.frame()
    frame = frame.assign(stratum=stratum((frame["split"] == "train").astype(int)))
    context = Context(replicates=200)
    values = " ".join(EXTRACT_COLUMNS)
    result = conclude(
        "extract", of_frame(frame, values, **whole_evidence.facts), context
    )
    reasons = {
        finding.facts["lacking"]: finding.further
        for finding in result.findings
        if "lacking" in finding.facts
    }
    assert list(reasons) == [lacking]
    assert f"extract.lacking_{lacking}" in reasons[lacking]


def compared(frame: pd.DataFrame, facts: Any) -> Any:
    """What is said of the comparison of trained with held-out rows at ``ours``."""
    context = Context(replicates=200)
    values = " ".join(EXTRACT_COLUMNS)
    result = conclude("extract", of_frame(frame, values, **facts), context)
    (finding,) = (
        f for f in result.findings if f.checkpoint == "ours" and "unseen" in f.facts
    )
    return finding


def test_a_held_out_row_s_string_that_stands_in_trained_rows_is_no_guess(make_case):
    """It was read: that it comes back says nothing of guessing."""
    case = make_case(sources=40, tests=20, seed=4)
    scored = tables(case, base=nothing, ours=some(case, 25))
    whole_evidence = evidence("extract", scored, case.manifest)
    frame = whole_evidence.frame()
    test = frame["split"] == "test"
    repeated = test & (frame["span"] % 2 == 0)
    is_given_back = (frame["checkpoint"] == "ours") & repeated
    frame = frame.assign(
        dose=frame["dose"].where(~repeated, 3),
        greedy=frame["greedy"].where(~is_given_back, 1.0),
        greedy_sure=frame["greedy_sure"].where(~is_given_back, 1.0),
    )
    finding = compared(frame, whole_evidence.facts)
    stands_alone = test & ~repeated & (frame["checkpoint"] == "ours")
    assert finding.facts["unseen"].n == stands_alone.sum() > 0
    assert finding.facts["unseen"].value == 0.0
    assert finding.claim == "verbatim"


def test_of_trained_identifiers_what_the_base_gives_does_not_count(make_case):
    """The same difference of both sides at the base is taken off, hit by hit."""
    case = make_case(sources=40, tests=20, seed=4)
    for base, claim in ((nothing, "verbatim"), (some(case, 25), "nothing_shown")):
        scored = tables(case, base=base, ours=some(case, 25))
        whole_evidence = evidence("extract", scored, case.manifest)
        finding = compared(whole_evidence.frame(), whole_evidence.facts)
        assert finding.claim == claim
    assert finding.facts["apart"].value == pytest.approx(0.0)


def test_ties_are_no_sure_hits_and_the_base_s_ties_are_won(make_case):
    """Neither side's ties make a finding: without test rows, against the base."""
    case = make_case(sources=12, tests=0, seed=8)
    own_table = table(case, everything)
    for tie, claim in ((False, "verbatim"), (True, "nothing_shown")):
        base = table(case, everything if tie else nothing, tie=tie)
        scored = {"base": {PLAIN: base}, "ours": {PLAIN: own_table}}
        assert claims(extract(scored, case.manifest), "ours")[-1] == claim
    tied = {
        "base": {PLAIN: table(case)},
        "ours": {PLAIN: table(case, everything, tie=True)},
    }
    frame = evidence("extract", tied, case.manifest).frame()
    own_spans = frame[frame["checkpoint"] == "ours"]
    assert own_spans["greedy"].sum() == len(own_spans)
    assert own_spans["greedy_sure"].sum() == 0


def test_each_part_of_a_canary_counts_once_and_p_is_for_all_parts(make_case):
    case = make_case(sources=20, tests=6, seed=13)
    manifest = with_canaries(case.manifest, rows=12)
    planted = {e.id for e in manifest.examples if e.canary_id and e.split == "train"}
    scored = tables(case, base=nothing, ours=lambda key, span: key in planted)
    (finding,) = (
        f
        for f in extract(scored, manifest).findings
        if f.checkpoint == "ours" and f.claim == "verbatim"
    )
    # Six canaries stand in two rows each; the first row alone counts, part by part.
    spans = evidence("extract", scored, manifest).frame()
    canary_spans = spans[(spans["set"] == "canary") & (spans["checkpoint"] == "ours")]
    trained_spans = canary_spans[canary_spans["dose"] > 0]
    n_parts = trained_spans.groupby(["canary_id", "part"]).ngroups
    assert n_parts < len(trained_spans)
    assert (finding.facts["back"], finding.facts["parts"]) == (n_parts, n_parts)
    # Fisher's p of the clearest part, for both of them.
    p_by_part = []
    for part in ("password", "ssn"):
        n, held = (
            side[side["part"] == part]["canary_id"].nunique()
            for side in (trained_spans, canary_spans[canary_spans["dose"] == 0])
        )
        p_by_part.append(fisher_exact([[n, 0], [0, held]], "greater").pvalue)
    assert finding.p == pytest.approx(2 * min(p_by_part))


def test_canaries_are_not_counted_among_the_identifiers_that_come_back(make_case):
    case = make_case(sources=12, tests=6, seed=8)
    manifest = with_canaries(case.manifest, rows=8)
    result = extract(tables(case, base=nothing, ours=everything), manifest)
    n_identifiers = sum(
        len(example.identifiers)
        for example in manifest.examples
        if example.split == "train" and example.canary_id is None
    )

    (counts,) = (
        finding
        for finding in result.findings
        if (finding.checkpoint, finding.says) == ("ours", "extract.counts")
    )
    assert counts.facts["back"].count == counts.facts["back"].of == n_identifiers


def test_a_contrast_of_tries_is_the_checkpoint_s_minus_the_baseline_s(make_case):
    """More tries are less memory: what forgot most identifiers is above 0."""
    case = make_case(sources=30, tests=5, seed=12)
    result = extract(
        tables(case, plain=everything, ours=some(case, 4)),
        case.manifest,
        baseline="plain",
    )
    contrast = change(result, "ours", "n50_median", "t1")
    own_tries, plain = (
        np.log10(figure(result, name, "n50_median", "t1").value)
        for name in ("ours", "plain")
    )
    assert contrast.value > 0
    assert contrast.value == pytest.approx(own_tries - plain)
    assert contrast.low <= contrast.value <= contrast.high


def test_the_smallest_difference_lies_beyond_the_base_s_own():
    """Points: what held-out clusters return, and how far the base tells both apart."""
    held_out_back = [True] + [False] * 9
    chosen = pd.DataFrame(
        {
            "split": ["train"] * 20 + ["test"] * 10,
            "cluster": range(30),
            "greedy_sure": [False] * 20 + held_out_back,
        }
    )
    assert hits_power(chosen).tolerance == pytest.approx(10.0)
    of_base = Estimate(0.2, 0.1, 0.3)
    assert hits_power(chosen, of_base).tolerance == pytest.approx(30.0)
    # Beyond such a base as many hits are weaker evidence.
    first = hits_power(chosen).ps
    second = hits_power(chosen, of_base).ps
    assert all(p <= q for p, q in zip(first, second, strict=False))


def of_rates(trained: float, held_out: float) -> pd.DataFrame:
    """100 clusters of each split, of which these shares come back."""
    place = np.tile(np.arange(100), 2)
    hit = place < 100 * np.repeat([trained, held_out], 100)
    columns = {"split": np.repeat(["train", "test"], 100), "cluster": range(200)}
    return pd.DataFrame({**columns, "greedy_sure": hit, "trials": 1, "weight": 1.0})


@pytest.mark.parametrize(
    ("trained", "held_out", "of_base", "is_shown"),
    [
        (0.4, 0.1, (0.0, 0.0), True),
        # The base gave more held-out ones, so that the difference rose. Trained ones
        # come back less often than held-out ones all the same.
        (0.05, 0.2, (0.0, 0.4), False),
        (0.2, 0.05, (0.4, 0.0), False),
    ],
)
def test_what_the_base_gave_turns_no_difference_round(
    trained, held_out, of_base, is_shown
):
    compared = of_rates(trained, held_out)
    difference = rate_difference(
        split_difference(compared), split_difference(of_rates(*of_base))
    )
    assert side_of(difference) != 0, "else nothing is tested"
    assert (comparison_p(difference, compared) < 0.05) is is_shown


def test_all_that_is_said_of_extraction_is_short(make_case):
    case = make_case(sources=40, tests=20, seed=4)
    planted = with_canaries(case.manifest, rows=12)

    tables_of_all = tables(
        case, base=nothing, ours=some(case, 25), all=everything, none=nothing
    )
    without_base = {
        name: table for name, table in tables_of_all.items() if name != "base"
    }
    tied = {
        "base": {PLAIN: table(case)},
        "ours": {PLAIN: table(case, everything, tie=True)},
    }
    no_tests = make_case(sources=20, tests=0, seed=4)
    keys = set()
    for scored, manifest in (
        (tables_of_all, case.manifest),
        (tables_of_all, natural(case.manifest)),
        (tables_of_all, planted),
        (without_base, natural(case.manifest)),
        (tied, planted),
    ):
        keys |= check_sentences(extract(scored, manifest, baseline="none"))
    of_no_tests = tables(no_tests, base=nothing, ours=everything, none=nothing)
    keys |= check_sentences(extract(of_no_tests, no_tests.manifest))
    keys |= check_sentences(extract({"ours": of_no_tests["ours"]}, no_tests.manifest))
    fewer = tables(case, base=some(case, 25), ours=nothing)
    keys |= check_sentences(extract(fewer, case.manifest))

    said_keys = {key for key in keys if key.startswith("extract.")}
    assert said_keys >= {
        "extract.counts",
        "extract.counts_tied",
        "extract.verbatim",
        "extract.not_apart",
        "extract.no_control",
        "extract.unseen",
        "extract.before",
        "extract.no_held_out",
        "extract.canaries_tied",
    }
