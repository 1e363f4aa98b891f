"""Rules: how they are read, when they trip, and that nothing missing passes."""

from __future__ import annotations

from typing import Any

import pytest

from spark_audit.audits import AUDITS
from spark_audit.errors import InputError
from spark_audit.gate import catalogue, check, parse_rule
from spark_audit.results import CheckpointFacts, Contrast, ManifestFacts, Report, Row


def facts(name: str) -> CheckpointFacts:
    return CheckpointFacts(
        name=name, source=name, format="f", weights_sha256="0", model_id=name, dtype="d"
    )


def figure(name: str, value: float | None = 0.5, **more: Any) -> dict[str, Any]:
    columns = {"audit": "mia", "metric": "tpr_at_fpr_0.1", "of": "loss", **more}
    if value is None:
        columns |= {"status": "not_estimable", "note": "no base"}
        return {"checkpoint": name, **columns}
    limits = {"low": value - 0.1, "high": value + 0.1, "interval": "jackknife-t"}
    return {"checkpoint": name, "value": value, **limits, **columns}


def report(
    rows: list[dict[str, Any]],
    contrasts: list[dict[str, Any]] | None = None,
    names: tuple[str, ...] = ("base", "er", "spark"),
    **more: Any,
) -> Report:
    return Report(
        **{
            "status": "complete",
            "command": [],
            "created": "now",
            "versions": {},
            "settings": {"baseline": "er"},
            "manifest": ManifestFacts(
                name="m", digest="d", n_sources=1, n_clusters=1, n_spans=1, n_tokens=1
            ),
            "checkpoints": [facts(name) for name in names],
            "results": [Row(**row) for row in rows],
            "contrasts": [Contrast(**c) for c in contrasts or []],
            "guards": [],
            "scope": [],
            **more,
        }
    )


RULE = "mia.tpr_at_fpr_0.1.loss.high > 0.55"


def states(found: Any) -> list[tuple[str, str]]:
    return [(one.checkpoint, one.state) for one in found]


@pytest.mark.parametrize(
    ("text", "audit", "metric", "of", "field", "operator", "bound", "checkpoint"),
    [
        (RULE, "mia", "tpr_at_fpr_0.1", "loss", "high", ">", 0.55, None),
        ("matched.did.p<0.05 for x", "matched", "did", "", "p", "<", 0.05, "x"),
        (
            "canary.top1_rate.full/annotation.low >= 1e-3",
            *("canary", "top1_rate", "full/annotation", "low", ">=", 1e-3, None),
        ),
        ("noise.gap.0.01.value != -2", "noise", "gap", "0.01", "value", "!=", -2, None),
        (
            "extract.greedy_rate.high > .02",
            *("extract", "greedy_rate", "", "high"),
            ">",
            0.02,
            None,
        ),
        (
            "matched.delta_sel.change.low<0",
            *("matched", "delta_sel", "change", "low"),
            "<",
            0,
            None,
        ),
    ],
)
def test_rules_are_read(
    text: str,
    audit: str,
    metric: str,
    of: str,
    field: str,
    operator: str,
    bound: float,
    checkpoint: str | None,
) -> None:
    rule = parse_rule(text)
    assert (rule.audit, rule.metric, rule.of) == (audit, metric, of)
    assert (rule.field, rule.operator, rule.bound) == (field, operator, bound)
    assert rule.checkpoint == checkpoint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "is no rule"),
        ("mia.auc.loss.low >", "is no rule"),
        ("mia.auc.loss.low > nan", "is no rule"),
        ("secrets.auc.loss.low > 1", "choose one of: canary, extract, matched"),
        ("mia.accuracy.loss.low > 1", "choose one of: auc, tpr_at_fpr_5"),
        ("mia.auc.los.low > 1", "known variants: loss, response"),
        ("mia.auc.loss.median > 1", "end the figure with one of: value"),
        ("mia.auc.low > 1", "auc needs one"),
    ],
)
def test_what_cannot_be_read_lists_what_is_known(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_rule(text)


def test_base_and_baseline_are_left_out_unless_named() -> None:
    rows = [figure("base", 0.9), figure("er", 0.9), figure("spark", 0.2)]
    assert states(check(report(rows), [parse_rule(RULE)])) == [("spark", "ok")]
    named = [parse_rule(f"{RULE} for base")]
    assert states(check(report(rows), named)) == [("base", "tripped")]
    with pytest.raises(InputError, match="choose one of: base, er, spark"):
        check(report(rows), [parse_rule(f"{RULE} for nobody")])


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [figure("spark", None)],
        [figure("spark", status="invalid", note="texts differ")],
        [figure("spark", status="insensitive")],
        [figure("spark", status="not_resolvable")],
        [figure("spark", group="task:x")],
        [figure("spark", low=None, high=None)],
    ],
)
def test_what_was_not_measured_trips(rows: list[dict[str, Any]]) -> None:
    rule = [parse_rule(RULE)]
    assert states(check(report(rows), rule)) == [("spark", "tripped")]
    found = check(report(rows), rule, allow_missing=True)
    assert states(found) == [("spark", "missing")]


def test_a_partial_report_and_one_without_checkpoints_trip() -> None:
    rows = [figure("spark", 0.1)]
    partial = report(rows, status="partial")
    assert states(check(partial, [parse_rule(RULE)])) == [("spark", "tripped")]
    nobody = report([], names=("base",))
    assert states(check(nobody, [parse_rule(RULE)])) == [("-", "tripped")]


def test_p_is_the_adjusted_one_of_a_contrast() -> None:
    contrast = figure("spark", audit="matched", metric="did", of="")
    contrast |= {"baseline": "er", "p": 0.01, "p_adjusted": 0.2}
    rule = [parse_rule("matched.did.p < 0.05")]
    assert states(check(report([], [contrast]), rule)) == [("spark", "ok")]
    contrast["p_adjusted"] = None
    assert states(check(report([], [contrast]), rule)) == [("spark", "tripped")]


def test_a_method_speaks_for_its_seeds_and_a_series_for_its_stages() -> None:
    rows = [figure("s[1]", 0.9), figure("s[2]", 0.1), figure("s", 0.3, over="both")]
    found = report(rows, names=("base", "s[1]", "s[2]"), settings={})
    assert states(check(found, [parse_rule(RULE)])) == [("s", "ok")]
    stages = report([figure("s", 0.9)], names=("s@1", "s@2"), settings={})
    assert states(check(stages, [parse_rule(RULE)])) == [("s", "tripped")]


def test_every_audit_has_a_catalogue() -> None:
    for name in AUDITS.names():
        assert catalogue(name), name
        for variants in catalogue(name).values():
            assert variants


def test_a_name_may_hold_blanks_and_a_bound_is_finite() -> None:
    assert parse_rule(f"{RULE} for my model (v1) ").checkpoint == "my model (v1)"
    with pytest.raises(InputError, match="not finite"):
        parse_rule("mia.auc.loss.low > 1e999")
