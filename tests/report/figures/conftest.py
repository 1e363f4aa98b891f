"""Synthetic reports with everything in them that a figure is drawn from."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from made_reports import group_fields, made_report, said

from spark_audit.audits.doors.accesses import DOOR_NAMES
from spark_audit.names import entry_of
from spark_audit.report.figures.drawing import Drawing, drawings
from spark_audit.results import Contrast, Report, Row

SHORT = ("er", "sd-replay", "spark", "spark-ul", "spark-dkl", "pecl", "ewc")
LONG = "llama-2-7b-hf_order{}-spark-without-unlikelihood.lambda_{}+int8"
TASKS = ("fomc", "yelp", "agnews", "amazon", "mentill", "yahoo")
SCORES = ("loss", "response", "mink10", "minkpp10", "zlib", "reference")
MEASURED = (
    ("canary", "exposure_mean", "full"),
    ("extract", "greedy_rate", ""),
    ("series", "auc", ""),
)
"""Figures of audits that are drawn from tables."""
UNKNOWN = {"status": "not_estimable", "note": "it cannot be estimated", "value": None}
BASE_IS_REFERENCE = UNKNOWN | {"note": "it is the matching reference"}


def rich(count: int, *, long: bool = False, seeds: int = 0) -> Report:
    """A report with ``count`` checkpoints, the base among them.

    Among the rows are negative and missing figures, rows without an interval, and
    every status. With ``seeds``, the second method has that many replicates.
    """
    random = np.random.default_rng(count)
    methods = [
        LONG.format(i, i) if long else (SHORT[i] if i < len(SHORT) else f"m{i}")
        for i in range(count - 1)
    ]
    replicated = methods[1] if seeds else ""
    names = ["base"]
    for method in methods:
        names += (
            [f"{method}[{k + 1}]" for k in range(seeds)]
            if method == replicated
            else [method]
        )
    rows: list[Row] = []
    contrasts: list[Contrast] = []
    entries = [*names, *([replicated] if seeds else [])]

    def put(name: str, audit: str, metric: str, at: float, **more: Any) -> None:
        value = more.pop("value", at)
        width = float(more.pop("width", 0.2) * random.uniform(0.6, 1.4))
        row: dict[str, Any] = {
            "audit": audit,
            "checkpoint": name,
            "metric": metric,
            "value": value,
            "low": at - width,
            "high": at + width,
            "interval_method": "jackknife-t",
            "n": 100,
            "clusters": 40,
        } | more
        overs = ("sources", "seeds", "both") if name == replicated else ("sources",)
        for factor, over in enumerate(overs, start=1):
            wide = dict(row, interval_over=over)
            if row["low"] is not None:
                wide |= {"low": at - factor * width, "high": at + factor * width}
            if value is None:
                wide |= {"low": None, "high": None, "interval_method": "none"}
            if "baseline" in row:
                contrasts.append(Contrast.model_validate(wide))
            else:
                rows.append(Row.model_validate(wide))

    leaking = methods[1] if len(methods) > 1 else ""
    status = {1: "invalid", 3: "insensitive", 5: "not_resolvable"}
    for index, name in enumerate(entries):
        base = name == "base"
        status_fields: dict[str, Any] = {"status": status.get(index, "ok")}
        bare = (
            {"low": None, "high": None, "interval_method": "none"} if index == 2 else {}
        )
        level = float(random.normal(0.4, 0.6))
        change = BASE_IS_REFERENCE if base else status_fields | bare
        put(name, "matched", "delta_sel", level, unit="nats")
        remembered = BASE_IS_REFERENCE if base else status_fields | bare
        memory = -0.3 if entry_of(name) == leaking else -level / 3
        still = {} if base else {"at_most": min(memory - 0.15, 0.0)}
        figures = {"unit": "nats", "mde": 0.2, **still, **remembered}
        put(name, "matched", "memory", memory, **figures)
        put(name, "matched", "delta_sel", level - 0.05, variant="change", **change)
        mechanism = BASE_IS_REFERENCE if base else {}
        put(name, "matched", "rtm_bias", 0.1, variant="change", **mechanism)
        if not base and name != methods[0]:
            at = float(random.normal(0.2, 0.3))
            put(name, "matched", "did", at, baseline=methods[0])
            put(name, "matched", "rtm_bias", 0.1, baseline=methods[0])
        for of in SCORES:
            put(
                name,
                "mia",
                "auc",
                float(random.uniform(0.45, 0.7)),
                variant=of,
                no_effect=0.5,
            )
        for metric, at in (("last", 0.7), ("avg", 0.75), ("bwt", -0.1)):
            value = float(at + random.uniform(-0.1, 0.1))
            gone = UNKNOWN if base and metric != "last" else {"no_effect": 0.3}
            put(name, "utility", metric, value, width=0.04, **gone)
    for name in dict.fromkeys(map(entry_of, names)):
        for stage in (1,) if name == "base" else (1, 2, 3):
            for task in TASKS:
                where = {"variant": str(stage), **group_fields(f"task:{task}")}
                put(name, "utility", "accuracy", float(random.uniform(0, 1)), **where)
    for name in dict.fromkeys(map(entry_of, names[1:])):
        for stage in (1, 2, 3):
            for position, task in enumerate(TASKS[:3], start=1):
                at = -1.0 if stage >= position else 0.0
                where = {"variant": str(stage), **group_fields(f"task:{task}")}
                gone = UNKNOWN if (stage, position) == (2, 3) else {}
                put(name, "stages", "memory", at, unit="nats", **where, **gone)
        if name != "base":
            gain = float(random.normal(0.1, 0.2))
            put(
                name,
                "twins",
                "rise",
                gain,
                variant="trained",
                no_effect=0.0,
                unit="bits",
            )
            put(
                name,
                "twins",
                "rise",
                0.0,
                variant="never-trained",
                no_effect=0.0,
                unit="bits",
            )
            put(
                name,
                "twins",
                "beyond",
                gain,
                variant="rise",
                no_effect=0.0,
                unit="bits",
            )
        for audit, metric, of in MEASURED:
            put(name, audit, metric, 0.6, variant=of)
    for name in entries:
        for side in ("pii_all", "control"):
            for rank, share in ((1, 0.2), (5, 0.5), (10, 0.7)):
                put(name, "rank", f"top{rank}_rate", share, variant=side, width=0.02)
        for side, nats in (("pii", 3.0), ("low", 1.0)):
            put(name, "nll", "nll", nats + float(random.uniform(0, 1)), variant=side)
        for metric in ("dp_pii", "dp_nonpii"):
            for sigma, lost in (("0.05", -20.0), ("0.5", -90.0)):
                put(name, "noise", metric, lost, variant=sigma, unit="%", width=3.0)
    # Last, so that the random numbers of all others stay the same.
    for name in entries[1:]:
        for part in ("row", "identifiers"):
            within = {"no_effect": 0.0, "no_effect_low": -0.3, "no_effect_high": 0.3}
            at = float(random.normal(-0.1, 0.3))
            put(name, "erasure", "remaining", at, variant=part, unit="nats", **within)
    for name in entries:
        for group in ("pooled", "type:NAME", "type:PHONE"):
            for draws, most in (("1", 0.01), ("1000", 0.2), ("1000000", 0.7)):
                where = {"variant": draws, "width": 0.005, **group_fields(group)}
                put(name, "extract", "drawn_at_most", most, **where)
                put(name, "extract", "drawn_at_least", most / 10, **where)
    for name in entries:
        for place, door in enumerate(DOOR_NAMES):
            gone = UNKNOWN if (name, door) == ("base", "weights") else {}
            at = 0.5 + 0.03 * place
            put(name, "doors", "auc", at, variant=door, no_effect=0.5, **gone)
    return made_report(
        *names,
        results=rows,
        contrasts=contrasts,
        findings=findings(names, leaking),
        tables=tables(names, random),
    )


def findings(names: list[str], leaking: str) -> list[Any]:
    """One test of each attack on each checkpoint; in one of them two found a leak."""
    made_findings = []
    for name in names:
        for audit in ("matched", "canary", "twins", "mia", "extract", "series"):
            claim = "nothing_shown"
            if entry_of(name) == leaking and audit in ("matched", "twins"):
                claim = "memory"
            tested = {"p": 0.0001 if claim == "memory" else 0.5, "family": "primary"}
            made_findings.append(said(audit, name, claim, **tested))
    return made_findings


def tables(names: list[str], random: np.random.Generator) -> dict[str, Any]:
    """The further tables, in the form in which audits and the pipeline write them."""
    trained = [name for name in names if name != "base"]
    fpr = np.geomspace(1 / 200, 1, 30)
    return {
        "doors_outcomes": [
            {
                "checkpoint": name,
                "variant": door,
                "says": ("not shown", "confounded", "shown")[place % 3],
            }
            for name in trained
            for place, door in enumerate(DOOR_NAMES)
        ],
        "mia_roc": [
            {
                "checkpoint": name,
                "variant": score,
                "fpr": float(x),
                "tpr": 0.0 if x < 0.01 and score == "loss" else float(x**power),
                "chance_low": float(max(0.0, x - 1.5 * np.sqrt(x / 200))),
                "chance_high": float(min(1.0, x + 1.5 * np.sqrt(x / 200))),
            }
            for name in names
            for score in SCORES
            for power in [random.uniform(0.6, 1.1)]
            for x in fpr
        ],
        "canary_by_dose": [
            {
                "checkpoint": name,
                "part": part,
                "dose": dose,
                "held_out": dose == 0,
                "canaries": 4,
                "exposure_most": 7.0,
                "exposure_mean": float(1.4 + dose * random.uniform(0, 0.4)),
                "chance_exposure": 1.43,
                "chance_exposure_low": 0.4,
                "chance_exposure_high": 3.1,
            }
            for name in names
            for part in ("full", "password", "ssn")
            for dose in (0, 1, 4, 16)
        ],
        "extract_prompts": [
            {
                "checkpoint": name,
                "prompt": prompt,
                "variant": "identifiers",
                "spans": 60,
                "clusters": 60,
                "tried": 60,
                "found": index % 7,
                "held_out": 30,
                "held_out_found": 0,
            }
            for index, name in enumerate(names)
            for prompt in ("full", "cue")
        ],
        "balance": [
            {
                "covariate": covariate,
                "smd_before": 0.1 + index,
                "smd_after": 0.05 * index,
                "variance_ratio_before": 0.5 + index,
                "variance_ratio_after": 1.1,
            }
            for index, covariate in enumerate(("nll_mean", "tokens", "position"))
        ],
        "matching_by_type": [
            {"type": "SSN", "matched": 4, "unmatched": 2, "reasons": "2 too far"}
        ],
        "stages_states": [
            {
                "checkpoint": name,
                "task": task,
                "stage": stage,
                "trained_at": position,
                "state": "remembered" if stage >= position else "not yet trained",
            }
            for name in dict.fromkeys(map(entry_of, trained))
            for position, task in enumerate(TASKS[:3], start=1)
            for stage in (1, 2, 3)
        ],
        "series_stages": [
            {"checkpoint": name, "stage": stage, "tasks": stage}
            | {
                f"{of}_{end}": 0.6 + offset + gain * stage / 20
                for of, gain in (("last", 0), ("series", 1))
                for end, offset in (("value", 0.0), ("low", -0.05), ("high", 0.05))
            }
            for name in dict.fromkeys(map(entry_of, trained))
            for stage in (1, 2, 3)
        ],
    }


@pytest.fixture(scope="session")
def drawn_report() -> Callable[[int, bool], tuple[Report, dict[str, Drawing]]]:
    """``drawn_report(count, long)``: a rich report and its drawings by name."""
    known_reports: dict[tuple[int, bool], tuple[Report, dict[str, Drawing]]] = {}

    def get(count: int, long: bool = False) -> tuple[Report, dict[str, Drawing]]:
        if (count, long) not in known_reports:
            report = rich(count, long=long, seeds=3 if count == 4 else 0)
            drawings_by_name = {drawing.name: drawing for drawing in drawings(report)}
            known_reports[count, long] = (report, drawings_by_name)
        return known_reports[count, long]

    return get
