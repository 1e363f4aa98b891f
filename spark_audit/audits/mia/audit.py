"""Whether scores tell the rows that were trained on from rows that were not.

Members are train rows, non-members test rows; every score is larger for what looks
more like a member. An AUC is evidence of leakage only if nothing but training tells
the two sides apart: the untrained model should score 0.5, and so should a classifier
that sees the texts alone. Membership is claimed only of a score that changed since the
former and is above the latter by more than chance; every figure stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pandas as pd

from spark_audit.audits import AUDITS
from spark_audit.audits.contract import BASE, About, Plan, Tables
from spark_audit.audits.contract import replicates as preset_replicates
from spark_audit.audits.mia.estimates import (
    NO_ROWS,
    AboveTexts,
    Group,
    Known,
    rows_by_group,
)
from spark_audit.audits.mia.guards import (
    ALL,
    APART,
    Findings,
    covariate_table,
    findings,
    sides_of,
)
from spark_audit.audits.mia.metrics import COLUMNS, METRICS, flaw
from spark_audit.audits.mia.scores import (
    ATTACKS,
    blind_classifier,
    compressed_bytes,
    crossing_duplicates,
    label_codes,
    membership_scores,
    own_text,
    reference_table,
    scored_text,
)
from spark_audit.audits.wording import figure, p_value
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.provenance import seed_for
from spark_audit.results import (
    AuditResult,
    Claim,
    Contrast,
    Estimate,
    Finding,
    Guard,
    Row,
    number,
)
from spark_audit.scoring.table import Pass
from spark_audit.stats.bootstrap import holm
from spark_audit.stats.power import NOT_DETECTED
from spark_audit.stats.roc import tost
from spark_audit.stats.roc_clusters import auc_estimate

USABLE = ("ok", "insensitive")
CURVE = 20
"""Points of a ROC curve in the report."""
MARGIN = (0.45, 0.55)
"""An AUC is called equivalent to chance within this margin."""
LEAST_P = 1e-4
"""Smaller p values are only said to be below it."""
MOST_REPLICATES = 2000
"""Both presets: percentile limits of an AUC need no more, and rows are many."""

FACTS = (
    "blind_auc",
    "blind_p",
    "blind_null",
    "blind_null_low",
    "blind_null_high",
    "blind_permutations",
    "blind_rows",
    "duplicates_left",
    "duplicates_removed",
)
"""Columns of the evidence that are the same on every row."""
UNSCORED = "its plain table is missing"

SCOPE = (
    "An AUC near 0.5 says that these scores do not separate these sets. It bounds no "
    "other attack: stronger ones train models of their own for comparison.",
    "Membership figures need members and non-members that were split at random from "
    "one source; the guards can refute that, not prove it. Without a checkpoint that "
    "is known to have memorised, what was not detected may have been undetectable.",
)


def plan(manifest: Manifest, *, preset: str | None = None) -> Plan:
    """All members and non-members."""
    del preset
    sides = manifest.membership
    if not sides.members or not sides.non_members:
        return {}
    return {Pass(): sorted([*sides.members, *sides.non_members])}


def check(*, blind_permutations: int = 199) -> None:
    """Refuse options that cannot be used, before anything is scored."""
    if blind_permutations and blind_permutations < 20:
        raise InputError(
            f"{blind_permutations} permutations cannot give a p below 0.05",
            where="--blind-permutations",
            fix="give at least 20, or 0 for no blind classifier",
        )


def conclude(
    evidence: pd.DataFrame,
    *,
    baselines: Mapping[str, str],
    paper: bool,
    seed: int,
    replicates: int,
) -> AuditResult:
    """Rows, contrasts, guards and verdict from :func:`evidence`.

    ``auc`` and the rates are taken by task and averaged over the tasks with at least
    20 members and 20 non-members.
    """
    frame = evidence.drop_duplicates(["checkpoint", "example"])
    names = list(dict.fromkeys(frame["checkpoint"]))
    facts = frame[frame["checkpoint"] == names[0]].reset_index(drop=True)
    scores = {
        name: frame[frame["checkpoint"] == name]
        .set_index("example")
        .reindex(facts["example"])[[*ATTACKS, "blind"]]
        .to_numpy(np.float64)
        .T
        for name in names
    }
    known = Known(facts, scores, seed, min(replicates, MOST_REPLICATES), paper)
    groups = {
        group: Group(known, group, rows) for group, rows in rows_by_group(facts).items()
    }
    pooled = groups["pooled"]
    used = facts.iloc[pooled.rows]
    base = None
    if BASE in names:
        base = {attack: pooled.auc(BASE, attack) for attack in ATTACKS}
    judged = findings(used, base, seed=seed)
    rows = [
        row
        for group in groups.values()
        for name in names
        for attack in (*ATTACKS, "blind")
        for row in _rows(group, name, attack, judged)
    ]
    contrasts = [
        row
        for group in groups.values()
        for name, other in _pairs(names, baselines)
        for attack in ATTACKS
        # The untrained model is `reference`'s own reference.
        if (attack, other) != ("reference", BASE)
        for row in _contrasts(group, name, other, attack, judged)
    ]
    return AuditResult(
        rows=rows,
        contrasts=contrasts,
        guards=judged.guards,
        findings=_findings(names, rows, contrasts, pooled, judged),
        scope=list(SCOPE),
        tables={
            "mia_all_rows": _all_rows(known, names),
            "mia_covariates": covariate_table(used, judged.label_p),
            "mia_roc": _curves(pooled, names),
        },
    )


def further(
    result: AuditResult,
    tables: Tables,
    manifest: Manifest,
    *,
    preset: str | None = None,
) -> AuditResult:
    """The result, with whom it says nothing of and whose figures are borrowed."""
    scored = set() if result.evidence is None else set(result.evidence["checkpoint"])
    reason = UNSCORED if plan(manifest) else NO_ROWS
    absent = [
        _finding(name, "not_tested", f"membership is not estimable ({reason}).")
        for name in tables
        if scored and name not in scored
    ]
    borrowed = []
    if BASE in scored and BASE not in tables:
        detail = "it was not scored here: its figures are from the reference scores in "
        detail += "the manifest, which have no Min-K%++"
        borrowed = [
            Guard(name="untrained model", checkpoint=BASE, passed=None, detail=detail)
        ]
    count = min(preset_replicates(preset), MOST_REPLICATES)
    return replace(
        result,
        guards=[*borrowed, *result.guards],
        findings=[*result.findings, *absent],
        settings={**result.settings, "replicates": count},
    )


@AUDITS.register(
    order=5,
    about=About(
        METRICS,
        columns=COLUMNS,
        flaw=flaw,
        nothing=NO_ROWS,
        unscored=UNSCORED,
        over="train rows against test rows",
        chance=True,
    ),
    plan=plan,
    check=check,
    conclude=conclude,
    further=further,
)
def evidence(
    tables: Tables,
    manifest: Manifest,
    *,
    seed: int = 0,
    blind_permutations: Annotated[
        int, "permutations of the blind text classifier; 0: none"
    ] = 199,
) -> pd.DataFrame:
    """One row a checkpoint and example: its scores, and what the texts alone say.

    ``label`` is a number within the task, ``blind`` the out-of-fold score of the blind
    classifier, NaN where there is none. No text. A checkpoint called ``base`` is the
    untrained model: the guard on all scores, the reference of ``reference``, and what
    every checkpoint is held against. Without one, the reference scores that stand in
    the manifest take its place.
    """
    ids = plan(manifest).get(Pass(), [])
    scored = {
        name: passes[Pass()] for name, passes in tables.items() if Pass() in passes
    }
    if not ids or not scored:
        return pd.DataFrame(columns=list(COLUMNS))
    if BASE not in scored:
        scored = {BASE: reference_table(manifest, ids), **scored}
    facts = _facts(manifest, ids, seed=seed, permutations=blind_permutations)
    parts = []
    for name, table in scored.items():
        base = scored.get(BASE) if name != BASE else None
        scores = membership_scores(table, manifest, ids, base=base)
        parts.append(facts.assign(checkpoint=name, **scores))
    return pd.concat(parts, ignore_index=True)[list(COLUMNS)]


# --- evidence -------------------------------------------------------------------------


def _facts(
    manifest: Manifest, ids: list[str], *, seed: int, permutations: int
) -> pd.DataFrame:
    """What holds of the examples whatever the checkpoint."""
    examples = [manifest.by_id[key] for key in ids]
    members = set(manifest.membership.members)
    texts = [scored_text(example) for example in examples]
    facts = pd.DataFrame(
        {
            "example": ids,
            "task": [example.task for example in examples],
            "cluster": [example.cluster for example in examples],
            "member": [key in members for key in ids],
            "label": label_codes(manifest, ids),
            "length": [len(text) if text else np.nan for text in texts],
            "zlib_bytes": [compressed_bytes(t) if t else np.nan for t in texts],
            "blind": np.nan,
            **dict.fromkeys(FACTS, np.nan),
        }
    )
    if not all(texts):
        return facts
    facts["duplicates_removed"] = manifest.counts.get("rows_near_duplicate", 0)
    own = [own_text(example) for example in examples]
    facts["duplicates_left"] = crossing_duplicates(own, facts["member"].to_numpy(bool))
    if not permutations:
        return facts
    blind = blind_classifier(
        texts,
        facts["label"].to_numpy(np.int64),
        sides_of(facts),
        seed=seed_for(seed, "mia", "blind"),
        permutations=permutations,
    )
    if blind is None:
        return facts
    return facts.assign(
        blind=blind.scores,
        blind_auc=blind.value,
        blind_p=blind.p,
        blind_null=blind.null,
        blind_null_low=blind.null_low,
        blind_null_high=blind.null_high,
        blind_permutations=blind.permutations,
        blind_rows=blind.rows,
    )


# --- rows -----------------------------------------------------------------------------


def _row(
    name: str, group: str, metric: str, of: str, estimate: Estimate, **more: Any
) -> Row:
    row: Row = Row.of_estimate(
        estimate,
        audit="mia",
        checkpoint=name,
        group=group,
        metric=metric,
        of=of,
        **{"null": 0.5 if metric == "auc" else None, **more},
    )
    return row


def _rows(group: Group, name: str, attack: str, judged: Findings) -> Iterator[Row]:
    for metric in (each.name for each in METRICS):
        null: dict[str, float | None] = {}
        if metric == "auc":
            estimate = group.auc(name, attack)
        else:
            estimate = group.tpr(name, attack, metric)
            if estimate.value is not None:
                null = group.chance(name, attack, metric)
        if attack == "blind":
            estimate, null = _blind(group, estimate, null, metric)
        else:
            estimate = _voided(estimate, judged, attack)
            if metric == "auc":
                estimate = _noted(estimate, group)
        yield _row(name, group.name, metric, attack, estimate, **null)


def _noted(estimate: Estimate, group: Group) -> Estimate:
    """Over which tasks the mean is, and whether chance is excluded."""
    if estimate.value is None:
        return estimate
    if group.name == "pooled":
        count = group.known.facts["task"].iloc[group.rows].nunique()
        estimate = estimate.noting(
            f"mean over {count} tasks" if count > 1 else "1 task"
        )
    if estimate.status != "ok" or estimate.low is None or estimate.high is None:
        return estimate
    if estimate.low <= 0.5 <= estimate.high and estimate.mde is not None:
        return estimate.noting(NOT_DETECTED)
    return estimate


def _voided(
    estimate: Estimate, judged: Findings, attack: str, *, change: bool = False
) -> Estimate:
    """The estimate with the status and notes that the guards give it."""
    status, reason = judged.of(attack, change=change)
    if estimate.value is None:
        return estimate
    if status == "ok":
        status = estimate.status
    note = "; ".join(text for text in (reason, estimate.note) if text)
    return replace(estimate, status=status, note=note)


def _blind(
    group: Group, estimate: Estimate, null: dict[str, float | None], metric: str
) -> tuple[Estimate, dict[str, float | None]]:
    """The blind classifier's figure: held against permutations, without interval.

    Intervals of a cross-validated AUC that take its scores as given are too narrow.
    """
    if estimate.value is None:
        return estimate, null
    bare = Estimate(
        estimate.value,
        n=estimate.n,
        clusters=estimate.clusters,
        status=estimate.status,
        note="out of fold, without a model",
    )
    if metric != "auc" or group.name != "pooled":
        return bare, null
    fact = group.known.facts.iloc[0]
    band: dict[str, float | None] = {
        name: float(fact[f"blind_{name}"]) for name in ("null", "null_low", "null_high")
    }
    drawn = int(fact["blind_permutations"])
    p = p_value(fact["blind_p"], places=3)
    said = f"permutation {p}, {drawn} permutations"
    return bare.noting(said), band


# --- contrasts ------------------------------------------------------------------------


def _pairs(names: list[str], baselines: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each checkpoint with its baseline, and with the untrained model."""
    for name in names:
        others = [baselines.get(name), BASE if BASE in names and name != BASE else None]
        for other in dict.fromkeys(others):
            if other is not None and other in names:
                yield name, other


def _contrasts(
    group: Group, name: str, other: str, attack: str, judged: Findings
) -> Iterator[Contrast]:
    columns: dict[str, Any] = {
        "audit": "mia",
        "checkpoint": name,
        "baseline": other,
        "group": group.name,
        "of": attack,
        "null": 0.0,
    }
    for metric, estimate, p in group.differences(name, other, attack):
        shown = _voided(estimate, judged, attack, change=True)
        yield Contrast.of_estimate(shown, metric=metric, p=p, **columns)


# --- tables and findings --------------------------------------------------------------


def _all_rows(known: Known, names: list[str]) -> list[dict[str, Any]]:
    """AUC with all rows in one, tasks mixed, and whether it is equivalent to 0.5."""
    found: list[dict[str, Any]] = []
    for name in names:
        for attack in ATTACKS:
            values = known.of(name, attack)
            rows = np.flatnonzero(np.isfinite(values))
            if not len(rows):
                continue
            estimate = auc_estimate(known.design(rows, by_task=False), values[rows])
            record: dict[str, Any] = {
                "checkpoint": name,
                "of": attack,
                "auc": estimate.value,
                "low": estimate.low,
                "high": estimate.high,
                "n": estimate.n,
                "equivalent_to_chance": None,
            }
            if estimate.value is not None and estimate.se:
                test = tost(estimate.value, estimate.se, low=MARGIN[0], high=MARGIN[1])
                record["equivalent_to_chance"] = test.equivalent
            found.append(record)
    return found


def _curves(pooled: Group, names: list[str]) -> list[dict[str, Any]]:
    """Points of the ROC curves, with the band of a score that knows nothing.

    Budgets of false positives run from what one non-member of the smallest task
    allows to 1; a rate is the mean over tasks, as in the rows.
    """
    found = []
    for name in names:
        for attack in ATTACKS:
            if pooled.usable(name, attack):
                continue
            drawn = pooled.drawn(pooled.known.of(name, attack))
            held = [len(others) for _, others in drawn.design.tasks()]
            if not held or min(held) < 2:
                continue
            # A hair above, or the smallest task's first false positive is lost.
            for fpr in np.geomspace(1 / min(held) * (1 + 1e-9), 0.99, CURVE):
                band = pooled.band(drawn, float(fpr))
                rate = pooled.rate(name, attack, drawn, float(fpr))
                if band is None or rate is None:
                    continue
                found.append(
                    {
                        "checkpoint": name,
                        "of": attack,
                        "fpr": float(fpr),
                        "tpr": rate,
                        "chance_low": band.low,
                        "chance_high": band.high,
                    }
                )
    return found


def _findings(
    names: list[str],
    rows: list[Row],
    contrasts: list[Contrast],
    pooled: Group,
    judged: Findings,
) -> list[Finding]:
    found = []
    for name in names:
        if name == BASE:
            continue
        own = {
            row.of: row
            for row in rows
            if (row.checkpoint, row.group, row.metric) == (name, "pooled", "auc")
            and row.of != "blind"
            and row.value is not None
        }
        changes = {
            row.of: row
            for row in contrasts
            if (row.checkpoint, row.baseline, row.group, row.metric)
            == (name, BASE, "pooled", "auc")
            and row.value is not None
        }
        found.append(_concluded(name, own, changes, pooled, judged))
    return found


def _finding(name: str, claim: Claim, said: str, row: Row | None = None) -> Finding:
    where = {"audit": "mia", "checkpoint": name}
    return Finding.on(row, claim, f"{name}: {said}", **where)


@dataclass(frozen=True)
class _Tested:
    """One score's test: of its change since the untrained model, or of its AUC.

    ``above`` is what it has beyond the texts alone: a weak difference in topic passes
    the guard and still moves every score. Where the texts were not tried, a score that
    a guard doubts claims nothing, and the sentence of any other says so.
    """

    row: Row
    p: float
    doubted: bool = False
    above: AboveTexts | None = None

    @property
    def more(self) -> bool:
        """Whether members look more familiar; else less."""
        return self.effect > 0

    @property
    def effect(self) -> float:
        return (self.row.value or 0.0) - (self.row.null or 0.0)

    @property
    def claim_p(self) -> float:
        """Of the claim: the larger of both where both are needed."""
        if self.above is not None:
            return max(self.p, self.above.excess_p)
        return 1.0 if self.doubted else self.p


def _concluded(
    name: str,
    own: dict[str, Row],
    changes: Mapping[str, Contrast],
    pooled: Group,
    judged: Findings,
) -> Finding:
    if not own:
        said = f"membership is not estimable ({pooled.reason or NO_ROWS})."
        return _finding(name, "not_tested", said)
    tests: dict[str, _Tested] = {}
    void, untested = [], []
    for attack, row in own.items():
        change = changes.get(attack)
        tested = change or row
        p = change.p if change else pooled.p(name, attack)
        if tested.status not in USABLE:
            void.append(attack)
        elif p is None:
            untested.append(attack)
        else:
            test = _Tested(tested, p, doubted=judged.doubted(attack))
            above = pooled.above_texts(name, attack, more=test.more)
            tests[attack] = replace(test, above=above)
    tail = f" Void: {', '.join(sorted(void))}." if void else ""
    if untested:
        tail += f" Without a test: {', '.join(sorted(untested))}."
    if not tests:
        said = f"nothing can be said of membership.{tail}"
        return _finding(name, "not_tested", said)

    def corrected(ps: list[float]) -> dict[str, float]:
        return dict(zip(tests, holm(ps).tolist(), strict=True))

    def largest(found: list[str]) -> str:
        return max(found, key=lambda attack: abs(tests[attack].effect))

    moved = corrected([test.p for test in tests.values()])
    # A claim's p value is never below that of the change: nor is it once corrected.
    needed = corrected([test.claim_p for test in tests.values()])
    if detected := [attack for attack in tests if needed[attack] < 0.05]:
        best = largest(detected)
        test = tests[best]
        said = (
            f"membership was detected: {_shown(best, test.row)}, "
            f"{p_value(needed[best], least=LEAST_P)} corrected for {len(tests)} "
            f"scores{_beyond(test) or NOT_TRIED}. Rows it was trained on look "
            f"{'more' if test.more else 'LESS'} familiar than rows "
            f"that it was not trained on.{tail}"
        )
        return _finding(name, "membership", said, test.row)
    if confounded := [attack for attack in tests if moved[attack] < 0.05]:
        best = largest(confounded)
        test = tests[best]
        why = APART if best in judged.apart else "the sides differ in their texts"
        said = (
            "membership cannot be told from what differs between the texts: "
            f"{_shown(best, test.row)}, {p_value(moved[best], least=LEAST_P)} "
            f"corrected for {len(tests)} scores"
            f"{_beyond(test) or NOT_BESIDE}: {why}.{tail}"
        )
        return _finding(name, "confounded", said, test.row)
    best = min(tests, key=lambda attack: (moved[attack], tests[attack].p))
    row = tests[best].row
    said = f"effects below {number(row.mde)}" if row.mde else "smaller effects"
    blurred = f" {judged.void[ALL][1]}." if ALL in judged.void else ""
    sentence = (
        f"membership was not detected: {_shown(best, row)} is the clearest of "
        f"{len(tests)} scores, corrected {p_value(moved[best], places=2)}; "
        f"{said} cannot be excluded, nor can stronger attacks.{blurred}{tail}"
    )
    return _finding(name, "nothing_shown", sentence, row)


NOT_TRIED = "; what the texts alone tell was not tried"
NOT_BESIDE = ", and no AUC of the texts alone is there to hold it against"


def _beyond(test: _Tested) -> str:
    """The score's AUC beside that of the texts alone; empty where nobody asks."""
    if test.above is None:
        return ""
    apart = test.above.difference
    turned = "" if test.more else " (turned round)"
    own = f"; its AUC{turned} is {number(test.above.score)}, "
    if test.above.texts <= 0.5:
        return f"{own}the texts alone give {number(test.above.texts)}: chance or less"
    return (
        f"{own}where the texts alone give {number(test.above.texts)}, a difference of "
        f"{figure(apart)}"
    )


def _shown(attack: str, row: Row) -> str:
    if isinstance(row, Contrast):
        return f"the AUC of {attack} changed by {figure(row)} since the untrained model"
    return f"the AUC of {attack} is {figure(row)}, chance 0.5"
