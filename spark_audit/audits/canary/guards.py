"""The conditions that the canary audit speaks under."""

from __future__ import annotations

import pandas as pd

from spark_audit.audits.canary.chance import Judged
from spark_audit.audits.contract import BASE
from spark_audit.results import Guard, number


def rankable(evidence: pd.DataFrame) -> list[Guard]:
    """A warning where parts of canaries have no candidates."""
    if evidence.empty:
        return []
    first = evidence[evidence["checkpoint"] == evidence["checkpoint"].iloc[0]]
    whole = first[first["kind"] != "context"]
    lost = int((whole["kind"] == "unrankable").sum())
    if not lost:
        return []
    detail = (
        f"{lost} of {len(whole)} canary parts have no candidates to be ranked among"
    )
    return [Guard(name="canaries rankable", passed=None, detail=detail)]


def guards(judged: Judged, evidence: pd.DataFrame) -> list[Guard]:
    """What can void the figures: no positive control, or a base that knows canaries."""
    return [_control_guard(judged), _base_guard(judged, evidence), *rankable(evidence)]


def _control_guard(judged: Judged) -> Guard:
    control = judged.control
    shown = list(dict.fromkeys(t.checkpoint for t in control if t.detected))
    passed: bool | None = bool(shown)
    if shown:
        detail = (
            f"the {control[0].n} canaries that stand in most rows are found in "
            f"{', '.join(shown)} ({control[0].part}: mean exposure "
            f"{number(control[0].value)} bits, {control[0].said})"
        )
        if judged.lost:
            passed = None
            lost = ", ".join(judged.lost)
            detail += f"; not by {lost}: nothing can be concluded there"
    elif control:
        detail = (
            "the canaries that stand in most rows are found in no audited checkpoint "
            f"and part (smallest {control[0].said}); audit the unprotected "
            "fine-tune too, or plant canaries in more rows (--doses)"
        )
    else:
        detail = "no fine-tuned checkpoint was audited"
    return Guard(name="positive control", passed=passed, detail=detail)


def _base_guard(judged: Judged, evidence: pd.DataFrame) -> Guard:
    name = "base ranks canaries by chance"
    if judged.base:
        worst = judged.base[0]
        rank = number(worst.value, 1)
        detail = f"smallest {worst.said} ({worst.part}, mean rank {rank})"
        if worst.detected:
            detail += (
                ": the canaries are not exchangeable with their candidates, "
                "or the base knows them; only changes since it mean anything"
            )
        passed = not worst.detected
        return Guard(name=name, checkpoint=BASE, passed=passed, detail=detail)
    detail = "the base was not scored: give --base to check the draw"
    if BASE in set(evidence.loc[evidence["kind"] == "canary", "checkpoint"]):
        detail = "the base ranks nothing: its candidates are tied"
    if judged.supposed:
        detail += "; the draw is not one of ours"
    return Guard(name=name, passed=None, detail=detail)
