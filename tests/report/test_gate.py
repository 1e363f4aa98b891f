"""Rules: how they are read, when they trip, and that nothing missing passes."""

from typing import Any

import pytest
from made_reports import checkpoint, figure, group_fields, guard, made_report, said

from spark_audit.errors import InputError
from spark_audit.report.gate.judge import check, judged
from spark_audit.report.gate.rules import DEFAULT_RULES, parse_rule
from spark_audit.results import Contrast, Report, Row
from spark_audit.results import Finding as Told


def rated(name: str, value: float | None = 0.5, **columns: Any) -> Any:
    """A row of the figure that :data:`RULE` asks for."""
    return figure(name, "mia|tpr_at_fpr_0.1|loss", value, **columns)


def report(
    rows: list[Row],
    contrasts: list[Contrast] | None = None,
    names: tuple[str, ...] = ("base", "er", "spark"),
    **more: Any,
) -> Report:
    report_fields = {"results": rows, "contrasts": contrasts or []}
    return made_report(
        *names, **report_fields, **({"settings": {"baseline": "er"}} | more)
    )


RULE = "mia.tpr_at_fpr_0.1.loss.high > 0.55"


def states(found: Any) -> list[tuple[str, str]]:
    return [(outcome.checkpoint, outcome.state) for outcome in found]


@pytest.mark.parametrize(
    ("text", "figure", "operator", "bound", "checkpoint"),
    [
        (RULE, "mia|tpr_at_fpr_0.1|loss|high", ">", 0.55, None),
        ("matched.did.p<0.05 for x", "matched|did||p", "<", 0.05, "x"),
        (
            "canary.top1_rate.full/annotation.low >= 1e-3",
            *("canary|top1_rate|full/annotation|low", ">=", 1e-3, None),
        ),
        ("noise.gap.0.01.value != -2", "noise|gap|0.01|value", "!=", -2, None),
        (
            "extract.greedy_rate.high > .02",
            "extract|greedy_rate||high",
            ">",
            0.02,
            None,
        ),
        (
            "matched.delta_sel.change.low<0",
            "matched|delta_sel|change|low",
            "<",
            0,
            None,
        ),
    ],
)
def test_a_rule_is_read_into_its_parts(text, figure, operator, bound, checkpoint):
    rule = parse_rule(text)
    assert "|".join((rule.audit, rule.metric, rule.variant, rule.field)) == figure
    assert (rule.operator, rule.bound) == (operator, bound)
    assert rule.checkpoint == checkpoint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "'nonsense'"),
        ("mia.auc.loss.low >", "'mia.auc.loss.low >'"),
        ("mia.auc.loss.low > nan", "'mia.auc.loss.low > nan'"),
        ("secrets.auc.loss.low > 1", ": matched, rank, nll"),
        ("mia.accuracy.loss.low > 1", ": auc, tpr_at_fpr_5"),
        ("claim >= extraction", "'verbatim'"),
        ("mia.auc.los.low > 1", "'loss'.* loss"),
        ("mia.auc.loss.median > 1", "mia.auc.loss.median .*: .value"),
        ("mia.auc.low > 1", "mia.auc.VARIANT.*: loss"),
        ("guard", "'guard'"),
        ("guard trained_rows_fitt", "'trained_rows_fit'"),
        ("guard broken_model", "broken_model "),
        ("memory[type=EMAIL] < 0", r" matched\.memory\[type=EMAIL\]\.value$"),
        ("memory[type=EMAIL].low < 0", r" matched\.memory\[type=EMAIL\]\.low$"),
        ("memory.low < 0", r" matched\.memory\.low$"),
        ("memory[type=SSN] rose by 0.1", r" matched\.memory\[type=SSN\]$"),
        ("matched.memory[type=SSN] < 0", r" matched\.memory\[type=SSN\] "),
    ],
)
def test_what_cannot_be_read_lists_what_is_known(text, message):
    with pytest.raises(InputError, match=message):
        parse_rule(text)


@pytest.mark.parametrize("text", ["claim", "matched.memory.low", "rose"])
def test_a_rule_that_a_shell_cut_is_told_to_be_quoted(text):
    with pytest.raises(InputError, match="quotes"):
        parse_rule(text)
    with pytest.raises(InputError) as refusal:
        parse_rule(f"{text} > >")
    assert "quotes" not in str(refusal.value)


def test_a_group_that_the_report_does_not_have_is_answered_by_those_that_it_has():
    rows = [
        figure("er", f"matched|memory||type:{kind}", -0.2) for kind in ("EMAIL", "SSN")
    ]
    rule = "matched.memory[type={}].value < -1"
    (misspelt,) = check(report(rows, names=("er",)), [parse_rule(rule.format("EMIAL"))])
    assert misspelt.state == "tripped"
    for name in ("EMIAL", "EMAIL", "SSN"):
        assert name in misspelt.detail

    (right,) = check(report(rows, names=("er",)), [parse_rule(rule.format("EMAIL"))])
    assert right.state == "ok"
    # A type that another checkpoint has is not misspelt.
    outcomes = check(
        report(rows, names=("er", "spark")), [parse_rule(rule.format("EMAIL"))]
    )
    assert states(outcomes) == [("er", "ok"), ("spark", "tripped")]
    assert "SSN" not in outcomes[1].detail


def test_every_checkpoint_is_judged_unless_a_rule_excludes_it():
    rows = [rated("base", 0.9), rated("er", 0.9), rated("spark", 0.2)]
    outcomes = check(report(rows), [parse_rule(RULE)])
    assert states(outcomes) == [("base", "tripped"), ("er", "tripped"), ("spark", "ok")]
    assert judged(outcomes) == [f"{RULE}: judged 3 of 3 checkpoints"]
    outcomes_of_base = check(report(rows), [parse_rule(f"{RULE} for base")])
    assert states(outcomes_of_base) == [
        ("base", "tripped"),
        ("er", "left_out"),
        ("spark", "left_out"),
    ]
    most = check(report(rows), [parse_rule(f"{RULE} except base, er")])
    assert states(most) == [("base", "left_out"), ("er", "left_out"), ("spark", "ok")]
    assert parse_rule(f"{RULE} except base, er").but == "base, er"
    assert judged(most) == [
        f"{RULE} except base, er: judged 1 of 3 checkpoints; "
        "left out: base, er (by the rule)"
    ]
    for rule in (f"{RULE} for nobody", f"{RULE} except base, nobody"):
        with pytest.raises(InputError, match="'nobody' .*base, er, sp"):
            check(report(rows), [parse_rule(rule)])


def test_a_rounded_baseline_is_judged_too():
    rows = [rated(n, 0.2) for n in ("base", "er", "spark")] + [rated("er+int4", 0.9)]

    names = ("base", "er", "spark")
    small = checkpoint("er+int4", quantised_from="er")
    full_report = report(rows, checkpoints=[*map(checkpoint, names), small])
    assert ("er+int4", "tripped") in states(check(full_report, [parse_rule(RULE)]))


FIT = "guard trained_rows_fit"


def test_rows_that_do_not_fit_trip_a_rule_on_their_guard():
    names = ("base", "asked", "fits", "found", "seeds[1]", "seeds[2]", "x+relearn")
    guards = [
        guard("trained_rows_fit", "Were these the rows?", passed=None, of="asked"),
        guard("trained_rows_fit", "They fit.", passed=True, of="fits"),
        guard("trained_rows_fit", "They fit.", passed=True, of="seeds[1]"),
    ]
    finding_told = said("extract", "found", "verbatim", p=0.001, family="primary")
    full_report = report([], names=names, guards=guards, findings=[finding_told])
    outcome_by_name = {
        outcome.checkpoint: outcome for outcome in check(full_report, [parse_rule(FIT)])
    }
    assert {name: outcome.state for name, outcome in outcome_by_name.items()} == {
        "base": "left_out",
        "asked": "tripped",
        "fits": "ok",
        "found": "ok",
        "seeds[1]": "ok",
        "seeds[2]": "ok",
        "x+relearn": "left_out",
    }
    assert outcome_by_name["asked"].detail == "Were these the rows?"
    assert "verbatim (extract)" in outcome_by_name["found"].detail
    # Without the rule, it stops nobody.
    default = check(full_report, [parse_rule(DEFAULT_RULES[0])])
    assert {outcome.checkpoint: outcome.detail for outcome in default}["asked"] == (
        "its memory was not tested"
    )


def test_rows_whose_fit_was_not_tested_do_not_pass():
    untested_report = report([], names=("base", "x", "x+int8"))
    rule = parse_rule(f"{FIT} except x+int8")
    assert states(check(untested_report, [rule])) == [
        ("base", "left_out"),
        ("x", "tripped"),
        ("x+int8", "left_out"),
    ]
    passed = check(untested_report, [rule], allow_missing=True)
    assert ("x", "missing") in states(passed)
    # A failed setup voids this too.
    broken = guard("broken_model", "It failed.", of="x")
    fits = guard("trained_rows_fit", "They fit.", passed=True, of="x")
    void = report([], names=("base", "x"), guards=[broken, fits])
    assert ("x", "tripped") in states(check(void, [parse_rule(FIT)]))


def test_the_reference_has_no_change_and_is_left_out():
    rows = [
        figure(name, "matched|memory", value)
        for name, value in (("base", None), ("er", 0.0), ("spark", -0.4))
    ]
    outcomes = check(report(rows), [parse_rule("matched.memory.value < -0.3")])
    assert states(outcomes) == [
        ("base", "left_out"),
        ("er", "ok"),
        ("spark", "tripped"),
    ]
    assert outcomes[-1].detail == "value -0.4000 (lower is more memory)"
    named = check(report(rows), [parse_rule("matched.memory.value < -0.3 for base")])
    assert states(named)[0] == ("base", "tripped")


@pytest.mark.parametrize(
    ("rule", "metric", "pooled_of_base"),
    [
        ("matched.memory[type=EMAIL].value < -5", "matched|memory", True),
        ("matched.memory[type=*].value < -5", "matched|memory", True),
        ("twins.rise.trained[type=EMAIL].value < -5", "twins|rise|trained", False),
    ],
)
def test_a_rule_by_type_leaves_the_base_out_that_has_no_such_row(
    rule, metric, pooled_of_base
):
    rows = [figure(name, metric, 0.1, group="type:EMAIL") for name in ("er", "spark")]
    if pooled_of_base:
        rows.append(figure("base", metric, None))
    outcomes = check(report(rows), [parse_rule(rule)])
    assert states(outcomes) == [("base", "left_out"), ("er", "ok"), ("spark", "ok")]
    assert outcomes[0].detail


def test_a_figure_of_the_base_that_is_missing_by_type_alone_is_missing():
    rows = [figure("er", "extract|greedy_rate", 0.1, group="type:EMAIL")]
    rows.append(figure("base", "extract|greedy_rate", 0.1))
    rule = parse_rule("extract.greedy_rate[type=EMAIL].value > 0.5")
    outcomes = check(report(rows, names=("base", "er")), [rule])
    assert states(outcomes) == [("base", "tripped"), ("er", "ok")]


def test_a_contrast_has_no_figure_of_what_is_held_against_nothing():
    rule = parse_rule("matched.did.low < 0")
    did = figure("spark", "matched|did", 0.5, baseline="er")
    outcomes = check(report([], [did]), [rule])
    assert states(outcomes) == [
        ("base", "left_out"),
        ("er", "left_out"),
        ("spark", "ok"),
    ]
    assert "left out: base, er (compared with nothing)" in judged(outcomes)[0]
    # One that could have been held against the baseline, and was not, is missing.
    small = did.model_copy(update={"checkpoint": "spark+int4", "baseline": "spark"})
    assert ("spark", "tripped") in states(check(report([], [small]), [rule]))
    named = check(report([], [did]), [parse_rule("matched.did.low < 0 for er")])
    assert ("er", "tripped") in states(named)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [rated("spark", None)],
        [rated("spark", status="invalid", note="texts differ")],
        [rated("spark", status="insensitive")],
        [rated("spark", status="not_resolvable")],
        [rated("spark", group="task:x")],
        [rated("spark", low=None, high=None)],
    ],
)
def test_what_was_not_measured_trips(rows):
    rule = [parse_rule(RULE)]
    report_of_one = report(rows, names=("spark",))
    assert states(check(report_of_one, rule)) == [("spark", "tripped")]
    assert states(check(report_of_one, rule, allow_missing=True)) == [
        ("spark", "missing")
    ]


def test_what_was_measured_trips_whatever_is_missing_beside_it():
    rule = [parse_rule(RULE)]
    lost = rated("spark", None, interval_over="seeds")
    report_of_both = report([rated("spark", 0.9), lost], names=("spark",))
    assert states(check(report_of_both, rule, allow_missing=True)) == [
        ("spark", "tripped")
    ]
    partial = report([rated("spark", 0.9)], names=("spark",), status="partial")
    assert states(check(partial, rule, allow_missing=True)) == [("spark", "tripped")]


def test_a_partial_report_and_one_without_checkpoints_trip():
    partial = report([rated("spark", 0.1)], names=("spark",), status="partial")
    assert states(check(partial, [parse_rule(RULE)])) == [("spark", "tripped")]
    nobody = check(report([], names=("base",)), [parse_rule(f"{RULE} except base")])
    assert states(nobody) == [("base", "left_out"), ("-", "tripped")]
    assert "judged 0 of 1 checkpoints" in judged(nobody)[0]


def test_p_is_the_adjusted_one_of_a_contrast():
    p = {"p": 0.01, "p_adjusted": 0.2}
    contrast = figure("spark", "matched|did", 0.5, baseline="er", **p)
    rule = [parse_rule("matched.did.p < 0.05")]
    assert ("spark", "ok") in states(check(report([], [contrast]), rule))
    contrast = contrast.model_copy(update={"p_adjusted": None})
    assert ("spark", "tripped") in states(check(report([], [contrast]), rule))


def test_seeds_are_judged_beside_their_method_and_a_series_for_its_stages():
    rows = [
        rated("s[1]", 0.9),
        rated("s[2]", 0.1),
        rated("s", 0.3, interval_over="both"),
    ]
    report_of_seeds = report(rows, names=("s[1]", "s[2]"), settings={})
    assert states(check(report_of_seeds, [parse_rule(RULE)])) == [
        ("s[1]", "tripped"),
        ("s[2]", "ok"),
        ("s", "ok"),
    ]
    without = check(report_of_seeds, [parse_rule(f"{RULE} except s")])
    assert {outcome.state for outcome in without if outcome.checkpoint != "-"} == {
        "left_out"
    }
    stages = report([rated("s", 0.9)], names=("s@1", "s@2"), settings={})
    assert states(check(stages, [parse_rule(RULE)])) == [("s", "tripped")]


def test_a_name_may_hold_blanks_and_a_bound_is_finite():
    assert parse_rule(f"{RULE} for my model (v1) ").checkpoint == "my model (v1)"
    with pytest.raises(InputError, match="1e999"):
        parse_rule("mia.auc.loss.low > 1e999")


def test_claims_are_gated_by_severity_and_what_was_not_tested_trips():
    def one(name: str, claim: str, audit: str = "canary", **more: Any) -> Told:
        return said(audit, name, claim, "s", **more)

    tested = {"family": "primary", "p": 0.4}
    caught = {"family": "primary", "p": 1e-6}
    finding_list = [
        one("er", "memory", **caught),
        one("spark", "nothing_shown", **tested),
        one("base", "confounded"),
    ]
    claims = report([], findings=finding_list)
    rules = [parse_rule(text) for text in DEFAULT_RULES]
    states = {outcome.checkpoint: outcome.state for outcome in check(claims, rules)}
    assert states == {"base": "left_out", "er": "tripped", "spark": "ok"}
    (only,) = judged(check(claims, rules))
    assert "left out: base (trained on nothing)" in only
    for text, tripped in {
        "claim == memory": ["er"],
        "claim = memory": ["er"],
        "claim == membership": [],
        "claim > memory": [],
        "claim >= nothing_shown except er": ["spark"],
        "claim >= membership for spark": [],
        "claim <= nothing_shown": ["spark"],
    }.items():
        verdicts = check(claims, [parse_rule(text)])
        assert [o.checkpoint for o in verdicts if o.state == "tripped"] == tripped, text
    untested = report([], findings=[one("er", "membership", "mia", **caught)])
    details = {o.checkpoint: o for o in check(untested, rules)}
    assert details["er"].detail == "membership (mia)"
    assert details["spark"].state == "tripped"
    lenient = check(untested, rules, allow_missing=True)
    assert [o.state for o in lenient] == ["left_out", "tripped", "missing"]
    with pytest.raises(InputError, match="'leak'"):
        parse_rule("claim >= leak")


def changed(
    low: float, high: float, *, mde: float | None, group: str = "pooled"
) -> Any:
    """A contrast of memory; below 0 is more of it."""
    return {
        **{"audit": "matched", "metric": "memory", "checkpoint": "spark"},
        **{"baseline": "old", "value": (low + high) / 2, **group_fields(group)},
        **{"low": low, "high": high, "interval_method": "jackknife-t", "mde": mde},
        **{"clusters": 50, "n": 50},
    }


@pytest.mark.parametrize(
    ("low", "high", "mde", "rose", "fell"),
    [
        (-0.30, -0.10, 0.14, "tripped", "ok"),
        (0.10, 0.30, 0.14, "ok", "tripped"),
        (-0.04, -0.01, 0.02, "ok", "ok"),  # shown to have risen, by less
        (-0.04, 0.04, 0.06, "ok", "ok"),
        (-0.08, 0.06, 0.04, "ok", "ok"),
        (-0.20, 0.20, 0.28, "missing", "missing"),
        (-0.20, 0.20, None, "missing", "missing"),
    ],
)
def test_a_change_trips_where_it_is_shown_or_could_not_have_been_seen(
    low, high, mde, rose, fell
):
    since = report([], [changed(low, high, mde=mde)])
    for word, state in (("rose", rose), ("fell", fell)):
        rule = parse_rule(f"matched.memory {word} by 0.05 for spark")
        outcomes = check(report([]), [rule], changed=since, allow_missing=True)
        assert ("spark", state) in states(outcomes)
        closed = check(report([]), [rule], changed=since)
        assert ("spark", state.replace("missing", "tripped")) in states(closed)
    least = "cannot tell: 0.280 is the smallest change"
    assert mde != 0.28 or any(least in outcome.detail for outcome in outcomes)


def test_a_change_of_each_type_and_of_the_same_model():
    rows = [changed(-0.3, -0.1, mde=0.1, group="type:EMAIL")]
    rows += [changed(-0.04, 0.04, mde=0.1, group="type:SSN")]
    since = report([], rows)
    for type_name, state in (("EMAIL", "tripped"), ("SSN", "ok"), ("*", "tripped")):
        rule = parse_rule(f"matched.memory[type={type_name}] rose by 0.05 for spark")
        (outcome,) = [
            f
            for f in check(report([]), [rule], changed=since)
            if f.checkpoint == "spark"
        ]
        assert outcome.state == state
    assert outcome.detail.startswith("EMAIL rose by 0.2")
    fell = parse_rule("matched.memory[type=EMAIL] fell by 0.05 for spark")
    assert {f.detail[:15] for f in check(report([]), [fell], changed=since)} >= {
        "EMAIL rose by 0"
    }
    same = check(report([]), [rule], changed=since, same=["spark"])
    assert ("spark", "ok") in states(same)
    out = parse_rule("matched.memory rose by 0.05 for er")
    outcomes_left = check(report([]), [out], changed=since, same=["spark"])
    assert ("spark", "left_out") in states(outcomes_left)
    with pytest.raises(InputError, match="add --against REPORT"):
        check(report([]), [rule])


def test_a_part_of_the_rows_is_judged_by_its_figures():
    rows = [rated("er", 0.2, group="task:a"), rated("er", 0.9, group="task:b")]
    for part_name, state in (
        ("a", "ok"),
        ("b", "tripped"),
        ("*", "tripped"),
        ("c", ""),
    ):
        rule = parse_rule(
            f"mia.tpr_at_fpr_0.1.loss[task={part_name}].high > 0.55 for er"
        )
        (outcome,) = [f for f in check(report(rows), [rule]) if f.checkpoint == "er"]
        assert outcome.state == (state or "tripped")
        assert ("was not measured" in outcome.detail) is not bool(state)


def test_a_metric_without_its_audit_is_offered_with_it():
    for text in ("memory < 0", "memory.low > 0"):
        field = "low" if "low" in text else "value"
        with pytest.raises(InputError) as error:
            parse_rule(text)
        assert f"matched.memory.{field}" in str(error.value)
