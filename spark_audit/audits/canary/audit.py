"""Planted canaries ranked among strings that they could as well have been.

SPARK's canary audit: the rank of the true string among 512 candidates by mean NLL, its
exposure in bits, Top-1 and Top-10. A canary that the model never saw has a uniform
rank, so every figure stands beside its chance value; and where not even the canaries
that stand in most rows are found in any checkpoint, nothing can be concluded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits import AUDITS
from spark_audit.audits.canary.candidates import evidence as candidate_ranks
from spark_audit.audits.canary.candidates import plan
from spark_audit.audits.canary.metrics import COLUMNS, METRICS, flaw
from spark_audit.audits.contract import (
    BASE,
    About,
    Tables,
    by_name,
    missing_rows,
)
from spark_audit.audits.ranked import (
    LEVEL,
    STATED,
    Tested,
    base_tests,
    bounded,
    changes,
    control_tests,
    dose_table,
    epsilon_table,
    extrapolated_table,
    held_out,
    hits_of,
    kinds_moved,
    moved,
    p_risen,
    paired_table,
    ranked,
    resolved,
    streisand_table,
    tied_note,
    trained,
    trend_table,
    two_ended,
    uniformity_table,
    unresolved,
)
from spark_audit.audits.ratio_rows import (
    CELLS,
    ratio_contrasts,
    ratio_rows,
)
from spark_audit.audits.wording import (
    adjusted_p,
    confidence,
    figure,
    limits,
    p_value,
    share,
    unseen,
)
from spark_audit.data.canaries import FORMATS, RANKED
from spark_audit.manifest.schema import Manifest
from spark_audit.results import (
    AuditResult,
    Claim,
    Contrast,
    Finding,
    Guard,
    Row,
    number,
)
from spark_audit.stats.bootstrap import holm
from spark_audit.stats.chance_ranks import (
    chance_mde,
    null_mean,
    null_moments,
    top_k_mde,
)
from spark_audit.stats.exposure import top_k_credit
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.power import with_mde

TOP = {"top1_rate": 1, "top10_rate": 10}
INSENSITIVE = "insensitive: nothing can be concluded"
NONE = "the manifest has no canary"
UNRANKED = "no canary of the manifest is rankable"
UNSCORED = "the candidates of canaries were not scored"

LIFTED = (
    "held-out canaries rank as high: strings of this kind became likelier, memory is "
    "not shown."
)
SUNK = (
    "held-out canaries rank as far back: strings of this kind became less likely, "
    "suppression that tells who was in the data is not shown."
)

SCOPE = (
    "Canary ranks speak of detection among these candidates, with the true text before "
    "them, at the smallest effect named. A rank near chance is no sign of safety where "
    "the positive control was not found, and never of other strings.",
    "A lower bound of epsilon says what the training run is not; it is no upper bound "
    "and no guarantee, and a bound of 0 proves nothing.",
)


def conclude(
    evidence: pd.DataFrame,
    *,
    baselines: Mapping[str, str],
    paper: bool,
    seed: int,
    replicates: int,
) -> AuditResult:
    """Rows, contrasts, guards and verdict from :func:`evidence`."""
    names = list(dict.fromkeys(evidence["checkpoint"]))
    frame = ranked(evidence)
    ours = trained(frame)
    if ours.empty:
        return _nothing(evidence, names)
    options: dict[str, Any] = {"seed": seed, "replicates": replicates}
    in_contexts = trained(ranked(evidence, "context"))
    once, often = _cells(ours), _cells(in_contexts)
    often["of"] += "/annotation"
    cells = pd.concat([once, often], ignore_index=True)
    rows = _rows(cells, ours, in_contexts, paper=paper, **options)
    contrasts = _contrasts(cells, baselines, paper=paper, **options)
    known = set(zip(ours["checkpoint"], ours["part"], strict=True))
    unscored = [name for name in names if not any(name == one for one, _ in known)]
    absent = [
        row
        for name in names
        for part in RANKED
        if (name, part) not in known
        for row in _missing([name], UNSCORED if name in unscored else UNRANKED, (part,))
    ]
    base = base_tests(frame)
    uniform = not (base and base[0].detected)
    control = control_tests(frame, uniform_base=uniform)
    sensitive = {test.part for test in control if test.detected}
    lost = unresolved(ours)
    kinds = kinds_moved(frame)
    lifted = {name for name, ways in kinds.items() if "ahead" in ways}
    rows = _tied(_insensitive(rows, sensitive), lost)
    contrasts = _tied(_insensitive(bounded(contrasts, TOP), sensitive), lost)
    tables = {
        "canary_by_dose": dose_table(frame),
        "canary_uniformity": uniformity_table(frame),
        "canary_streisand": streisand_table(frame),
        "canary_dose_trend": trend_table(frame, seed=seed),
        "canary_paired": paired_table(frame, baselines, seed=seed),
        # Without a uniform draw the bound has no ground.
        "canary_epsilon": (
            epsilon_table(frame, sensitive=sensitive, lifted=lifted) if uniform else []
        ),
        "canary_extrapolated": extrapolated_table(frame),
    }
    # Neither the base nor our own draw tells that chance is what it is taken for.
    supposed = not base and not set(ours["format"]) <= set(FORMATS)
    findings = _findings(
        frame,
        control,
        tables,
        sensitive=sensitive,
        uniform=uniform,
        supposed=supposed,
        tied=lost,
        kinds=kinds,
    )
    return AuditResult(
        rows=[*rows, *absent],
        contrasts=contrasts,
        guards=_guards(evidence, control, base, supposed=supposed),
        findings=[
            *findings,
            *(
                _finding(name, "not_tested", f"canaries not estimable, {UNSCORED}.")
                for name in unscored
            ),
            *(
                _contrast_findings(contrasts, tables["canary_paired"])
                if "full" in sensitive
                else []
            ),
        ],
        scope=list(SCOPE),
        tables={name: table for name, table in tables.items() if table},
    )


def further(
    result: AuditResult,
    tables: Tables,
    manifest: Manifest,
    *,
    preset: str | None = None,
) -> AuditResult:
    """The result with a warning where the manifest lacks contexts of the preset."""
    del tables
    kept = manifest.settings.canary_contexts
    if preset != "paper" or kept is None or result.evidence is None:
        return result
    if result.evidence.empty:
        return result
    detail = (
        f"the manifest holds {kept} of each canary's "
        "contexts: all of them, as the preset `paper` averages over, need a "
        "manifest that was built with it"
    )
    guard = Guard(name="canary contexts", passed=None, detail=detail)
    return replace(result, guards=[*result.guards, guard])


@AUDITS.register(
    order=4,
    about=About(
        METRICS,
        columns=COLUMNS,
        flaw=flaw,
        nothing=NONE,
        unscored=UNSCORED,
        chance=True,
    ),
    plan=plan,
    conclude=conclude,
    further=further,
)
def evidence(
    tables: Tables, manifest: Manifest, *, preset: str | None = None
) -> pd.DataFrame:
    """One row a checkpoint, canary, part and context, and one over its contexts.

    ``full``, ``password`` and ``ssn`` average each candidate's NLL over the canary's
    contexts and rank once; ``full/annotation`` ... rank in every context and average
    the ranks, as SPARK does. The unit is the canary either way.
    """
    return candidate_ranks(tables, manifest, preset=preset)


# --- rows -----------------------------------------------------------------------------


def _cells(frame: pd.DataFrame) -> pd.DataFrame:
    """One cell a checkpoint, part, canary (or annotation) and metric."""
    values = {
        "nll": frame["nll_mean"],
        "rank_mean": frame["mid"],
        "exposure_mean": frame["exposure"],
        **{
            metric: top_k_credit(frame["rank"], k=k, ties=frame["ties"])
            for metric, k in TOP.items()
        },
    }
    parts = [
        pd.DataFrame(
            {
                "checkpoint": frame["checkpoint"],
                "group": "pooled",
                "metric": metric,
                "of": frame["part"],
                "cluster": frame["canary_id"],
                "num": np.asarray(column, dtype=np.float64),
                "den": 1.0,
            }
        )
        for metric, column in values.items()
    ]
    return pd.concat(parts, ignore_index=True)[list(CELLS)]


def _rows(
    cells: pd.DataFrame,
    ours: pd.DataFrame,
    often: pd.DataFrame,
    *,
    paper: bool,
    **options: Any,
) -> list[Row]:
    size = int(ours["n_candidates"].iloc[0])
    # A percentile interval of a mean rank covers far too rarely: never a decision.
    heavy = cells["metric"] == "rank_mean"
    tops = {"rank_mean": (1.0, float(size)), "exposure_mean": (0.0, np.log2(size))}
    metrics = {
        each.name: replace(each, bounds=tops.get(each.name, each.bounds))
        for each in METRICS
    }
    rows: list[Row] = []
    for part, by_percentile in ((cells[~heavy], paper), (cells[heavy], False)):
        rows += ratio_rows(
            part, audit="canary", metrics=metrics, paper=by_percentile, **options
        )
    order = {metric: i for i, metric in enumerate(metrics)}
    found = [
        _beside_chance(row, _of_row(ours, row), _of_row(often, row)) for row in rows
    ]
    names = list(dict.fromkeys(ours["checkpoint"]))
    return sorted(
        found, key=lambda row: (names.index(row.checkpoint), row.of, order[row.metric])
    )


def _of_row(frame: pd.DataFrame, row: Row) -> pd.DataFrame:
    """The ranks of a row's checkpoint and part."""
    part = row.of.partition("/")[0]
    return frame[(frame["checkpoint"] == row.checkpoint) & (frame["part"] == part)]


def _beside_chance(row: Row, once: pd.DataFrame, often: pd.DataFrame) -> Row:
    """The row with its chance value, band, and the smallest effect it could show.

    ``once`` holds a rank a canary, ``often`` one a context.
    """
    if row.metric == "nll" or row.value is None:
        return row
    n, size = len(once), int(once["n_candidates"].iloc[0])
    change = dict[str, Any]()
    annotation = "/" in row.of
    # Others show nothing, however large the effect.
    able = max(1, int(resolved(once).sum()))
    note = "the chance band is for canaries, as if their rows agreed"
    if row.metric in TOP:
        if (k := TOP[row.metric]) >= size:
            return row
        hits = hits_of(once, k=k)
        least = top_k_mde(able, k=k, n_candidates=size)
        change = {
            "null": hits.null,
            "null_low": hits.null_low / n,
            "null_high": hits.null_high / n,
            "mde": least and least.rate - hits.null,
        }
        if not annotation:
            change |= {
                "low": hits.low,
                "high": hits.high,
                "interval": "clopper-pearson",
                "note": "",
            }
    else:
        of, moments = row.metric.removesuffix("_mean"), null_moments(size)
        null = null_mean([size] * n, of="rank" if of == "rank" else "exposure")
        least_shift = chance_mde(able, n_candidates=size)
        low, high = null.band(row.level)
        change = {
            "null": moments.rank_mean if of == "rank" else moments.exposure_mean,
            "null_low": low,
            "null_high": high,
            "mde": least_shift.ranks if of == "rank" else least_shift.bits,
        }
    if annotation:
        change["note"] = "; ".join(text for text in (row.note, note) if text)
    if tied := tied_note(often if annotation else once):
        before = change.get("note", row.note)
        change["note"] = f"{before}; {tied}" if before else tied
    return row.model_copy(update=change)


def _contrasts(
    cells: pd.DataFrame, baselines: Mapping[str, str], *, paper: bool, **options: Any
) -> list[Contrast]:
    wanted = cells[cells["metric"] != "top1_rate"]
    heavy = wanted["metric"] == "rank_mean"
    return [
        row
        for part, by_percentile in ((wanted[~heavy], paper), (wanted[heavy], False))
        for row in ratio_contrasts(
            part,
            audit="canary",
            metrics=by_name(METRICS),
            baselines=baselines,
            paper=by_percentile,
            **options,
        )
    ]


def _insensitive(rows: Sequence[Any], sensitive: Collection[str]) -> list[Any]:
    """The rows, those of parts without their positive control marked.

    A change of likelihood itself needs no positive control.
    """
    return [
        row
        if row.value is None
        or row.of.partition("/")[0] in sensitive
        or (isinstance(row, Contrast) and row.metric == "nll")
        else row.model_copy(update={"status": "insensitive"})
        for row in rows
    ]


def _tied(rows: Sequence[Any], lost: Mapping[tuple[str, str], str]) -> list[Any]:
    """The rows, those of parts in which nothing is ranked marked; not likelihoods."""
    found = []
    for row in rows:
        sides = (row.checkpoint, getattr(row, "baseline", row.checkpoint))
        part = row.of.partition("/")[0]
        why = next((lost[name, part] for name in sides if (name, part) in lost), None)
        if why and row.metric != "nll" and row.value is not None:
            row = row.model_copy(update={"status": "not_resolvable", "note": why})
        found.append(row)
    return found


def _missing(
    names: list[str], reason: str, parts: tuple[str, ...] = RANKED
) -> list[Row]:
    metrics = [replace(metric, missing=parts) for metric in METRICS]
    return missing_rows("canary", names, metrics, reason)


def _nothing(evidence: pd.DataFrame, names: list[str]) -> AuditResult:
    kinds = set(evidence["kind"])
    reason = NONE if evidence.empty else UNRANKED
    if "canary" in kinds:
        reason = "no canary that stands in train rows can be ranked"
    elif "unscored" in kinds:
        reason = UNSCORED
    return AuditResult(
        rows=_missing(names, reason),
        guards=_rankable(evidence),
        findings=[_absent(reason)],
    )


def _absent(reason: str) -> Finding:
    sentence = f"Not estimable: {reason}."
    return Finding(audit="canary", claim="not_tested", sentence=sentence)


def _finding(name: str, claim: Claim, said: str, **figures: Any) -> Finding:
    return Finding(
        audit="canary",
        checkpoint=name,
        claim=claim,
        sentence=f"{name}: {said}",
        **figures,
    )


# --- guards and words -----------------------------------------------------------------


def _rankable(evidence: pd.DataFrame) -> list[Guard]:
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


def _guards(
    evidence: pd.DataFrame,
    control: Sequence[Tested],
    base: Sequence[Tested],
    *,
    supposed: bool,
) -> list[Guard]:
    shown = list(dict.fromkeys(t.checkpoint for t in control if t.detected))
    lost = _lost(control)
    passed: bool | None = bool(shown)
    if shown:
        detail = (
            f"the {control[0].n} canaries that stand in most rows are found in "
            f"{', '.join(shown)} ({control[0].part}: mean exposure "
            f"{number(control[0].value)} bits, {control[0].said})"
        )
        if lost:
            passed = None
            detail += f"; not by {', '.join(lost)}: nothing can be concluded there"
    elif control:
        detail = (
            "the canaries that stand in most rows are found in no audited checkpoint "
            f"and part (smallest {control[0].said}); audit the unprotected "
            "fine-tune too, or plant canaries in more rows (--doses)"
        )
    else:
        detail = "no fine-tuned checkpoint was audited"
    found = [Guard(name="positive control", passed=passed, detail=detail)]
    if base:
        worst = base[0]
        ok = not worst.detected
        found.append(
            Guard(
                name="base ranks canaries by chance",
                checkpoint=BASE,
                passed=ok,
                detail=f"smallest {worst.said} ({worst.part}, mean rank "
                f"{number(worst.value, 1)})"
                + (
                    ""
                    if ok
                    else ": the canaries are not exchangeable with their candidates, "
                    "or the base knows them; only changes since it mean anything"
                ),
            )
        )
    else:
        detail = "the base was not scored: give --base to check the draw"
        if BASE in set(evidence.loc[evidence["kind"] == "canary", "checkpoint"]):
            detail = "the base ranks nothing: its candidates are tied"
        if supposed:
            detail += "; the draw is not one of ours"
        name = "base ranks canaries by chance"
        found.append(Guard(name=name, passed=None, detail=detail))
    return [*found, *_rankable(evidence)]


def _lost(control: Sequence[Tested]) -> list[str]:
    """Parts whose positive control was found in no checkpoint."""
    found = {test.part for test in control if test.detected}
    tested = {test.part for test in control}
    return [part for part in RANKED if part in tested - found]


def _findings(
    frame: pd.DataFrame,
    control: Sequence[Tested],
    tables: Mapping[str, list[dict[str, Any]]],
    *,
    sensitive: Collection[str],
    uniform: bool,
    supposed: bool,
    tied: Mapping[tuple[str, str], str],
    kinds: Mapping[str, Collection[str]],
) -> list[Finding]:
    found = []
    if sensitive and (lost := _lost(control)):
        sentence = (
            f"Of {', '.join(lost)}: {INSENSITIVE}. The positive control was found by "
            f"{', '.join(part for part in RANKED if part in sensitive)} only."
        )
        found.append(Finding(audit="canary", claim="not_tested", sentence=sentence))
    condition = "if the canaries were drawn uniformly, " if supposed else ""
    for name in dict.fromkeys(trained(frame)["checkpoint"]):
        chosen = frame[frame["checkpoint"] == name]
        ours = trained(chosen)
        if gone := [part for one, part in tied if one == name]:
            found.append(_not_resolvable(name, gone, tied))
            chosen, ours = (f[~f["part"].isin(gone)] for f in (chosen, ours))
            if ours.empty:
                continue
        if known := set(ours["part"]) & set(sensitive):
            chosen, ours = (f[f["part"].isin(known)] for f in (chosen, ours))
        size = int(ours["n_candidates"].iloc[0])
        n = max(1, int(resolved(ours).groupby(ours["part"]).sum().min()))
        mde = f"{number(chance_mde(n, n_candidates=size).bits)} bits"
        if not known:
            said = (
                f"{INSENSITIVE}. The positive control was found in no checkpoint; with "
                f"{n} canaries, shifts of the mean exposure below {mde} go unseen "
                "anyway."
            )
            found.append(_finding(name, "not_tested", said))
            continue
        if name == BASE:
            if not uniform:
                said = (
                    "ranks of canaries differ from chance before any training on "
                    "them; only changes since it mean anything."
                )
                found.append(_finding(name, "confounded", said))
            continue
        records = [
            r
            for r in tables["canary_streisand"]
            if r["checkpoint"] == name and r["part"] in known
        ]
        ahead, behind = _apart(records)
        if not uniform:
            tests = [test for test in control if test.part in known]
            found.append(_rise(name, frame, tests, ahead=ahead))
            continue
        # Adjusted over all parts, before those that tell nothing are left out.
        ends = {
            end: [test for test in tests if test.part in known]
            for end, tests in two_ended(frame[frame["checkpoint"] == name]).items()
        }
        told = [_end_words(name, ours, ends["remembered"], control, mde)]
        if told[0][0] == "memory" and "ahead" in kinds[name]:
            # Chance is no null here: only the held-out canaries tell.
            told = [] if ahead else [("confounded", LIFTED)]
        told += _streisand_words(
            records,
            ends["suppressed"][0],
            ends["remembered"][0],
            ahead=ahead,
            behind=behind,
            sunk="behind" in kinds[name],
        )
        found += [_finding(name, claim, condition + said) for claim, said in told]
        # The table holds canaries of our own draw only: no condition.
        if said := _epsilon_words(name, tables["canary_epsilon"]):
            found.append(_finding(name, "memory", said))
    return found


def _not_resolvable(
    name: str, parts: Sequence[str], why: Mapping[tuple[str, str], str]
) -> Finding:
    reasons = dict.fromkeys(why[name, part] for part in parts)
    said = f"canaries are not resolvable ({', '.join(parts)}): {'; '.join(reasons)}."
    return _finding(name, "not_tested", said, status="not_resolvable")


def _end_words(
    name: str,
    ours: pd.DataFrame,
    tests: Sequence[Tested],
    control: Sequence[Tested],
    mde: str,
) -> tuple[Claim, str]:
    best = tests[0]
    part = ours[ours["part"] == best.part]
    size = int(part["n_candidates"].iloc[0])
    low, high = null_mean([size] * best.n).band()
    first = hits_of(part, k=1)
    mean = number(null_moments(size).exposure_mean, 2)
    chance = f"{mean}{limits(low, high, digits=2)}"
    figures = (
        f"mean exposure {number(best.value, 2)} bits ({best.part}) where chance gives "
        f"{chance}, {round(first.hits, 2):g} of {best.n} canaries ranked first of "
        f"{size}"
    )
    if note := tied_note(part):
        figures += f" ({note})"
    own = [t for t in control if t.checkpoint == name and t.detected]
    if best.detected:
        return "memory", f"canaries are REMEMBERED: {figures}, {best.said}."
    if own:
        return "memory", (
            f"canaries that stand in most rows are REMEMBERED ({own[0].part}: "
            f"mean exposure {number(own[0].value, 2)} bits, {own[0].said}); over all "
            f"canaries {figures}."
        )
    return "nothing_shown", (
        f"memorisation of canaries not detected: {figures}. Not excluded: shifts of "
        f"the mean below {mde}, up to {share(first.high)}% ranked first "
        "(exact 95% limit)."
    )


def _rise(
    name: str, frame: pd.DataFrame, control: Sequence[Tested], *, ahead: str
) -> Finding:
    """What a checkpoint adds to a base that does not rank by chance."""
    best = next(test for test in control if test.checkpoint == name)
    parts = trained(frame[frame["part"] == best.part])
    ours, base = (parts[parts["checkpoint"] == one] for one in (name, BASE))
    change, both = changes(ours, base, "exposure")
    rise = with_mde(ratio_estimate(change, np.ones(len(both))))
    figures = f"mean change of exposure {number(rise.value, 2)} bits ({best.part})"
    if best.detected:
        never = held_out(frame[frame["part"] == best.part])
        kind, before = (never[never["checkpoint"] == one] for one in (name, BASE))
        if len(kind) and not ahead and p_risen(kind, before) <= 1 - LEVEL:
            return _finding(name, "confounded", f"{figures}, but {LIFTED}")
        said = (
            f"canaries are REMEMBERED beyond what the base knows: {figures}, of those "
            f"in most rows {best.said}."
        )
        return _finding(name, "memory", said)
    tail = unseen(rise.mde, "", unit="bits", digits=2)
    said = f"no rise of exposure since the base detected: {figures}{tail}."
    return _finding(name, "nothing_shown", said)


def _apart(records: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Where true strings rank ahead of never-inserted ones, and behind; by Holm."""
    compared = [r for r in records if r["p"] is not None]
    told = {True: "", False: ""}
    if not compared:
        return told[True], told[False]
    ps = holm([r["p"] for r in compared])
    for p, record in sorted(zip(ps, compared, strict=True), key=lambda one: one[0]):
        ahead = record["trained_ahead"] > 0.5
        if p <= 1 - LEVEL and not told[ahead]:
            told[ahead] = _places(record, p, len(compared))
    return told[True], told[False]


def _places(record: Mapping[str, Any], p: float, over: int) -> str:
    return (
        f"mean rank {number(record['rank_mean_trained'], 1)} against "
        f"{number(record['rank_mean_held_out'], 1)} ({record['part']}, "
        f"{adjusted_p(p, over)})"
    )


def _streisand_words(
    records: Sequence[Mapping[str, Any]],
    low: Tested,
    best: Tested,
    *,
    ahead: str,
    behind: str,
    sunk: bool,
) -> list[tuple[Claim, str]]:
    """True strings against never-inserted ones, at either end."""
    found: list[tuple[Claim, str]] = []
    if low.detected and sunk and not behind:
        found.append(("confounded", SUNK))
    elif low.detected:
        said = (
            f"true canaries stand FURTHER BACK than chance ({low.part}: lower-tail "
            f"exposure {number(low.value, 2)} bits, {low.said}): over-suppression "
            "tells who was in the data, as memorisation does."
        )
        found.append(("betrays", said))
    differ = "true canaries differ from never-inserted ones, they rank"
    if ahead:
        found.append(("memory", f"{differ} AHEAD: {ahead}."))
    elif behind and not low.detected:
        said = f"{differ} behind, though not behind chance: {behind}."
        found.append(("confounded", said))
    # Chance has told more than so few held-out canaries can.
    if found or best.detected:
        return found
    compared = [r for r in records if r["p"] is not None]
    if not compared:
        return [("not_tested", "no held-out canaries to compare true ones with.")]
    ps = holm([r["p"] for r in compared])
    at = int(np.argmin(ps))
    said = (
        "no difference between true and never-inserted canaries detected: "
        f"{_places(compared[at], ps[at], len(ps))}"
        f"{unseen(compared[at]['mde_ranks'], 'differences', unit='ranks', digits=1)}."
    )
    return [("nothing_shown", said)]


def _epsilon_words(name: str, table: Sequence[Mapping[str, Any]]) -> str:
    """The bound declared beforehand, and the largest of the others if it is more."""
    here = [r for r in table if r["checkpoint"] == name and r["epsilon_per_record"]]
    told: list[str] = []
    largest = 0.0
    for kind in (True, False):
        some = [r for r in here if r["declared"] == kind]
        best = max(some, key=lambda r: r["epsilon_per_record"], default=None)
        if best is None or best["epsilon_per_record"] <= largest:
            continue
        largest = best["epsilon_per_record"]
        which = "declared beforehand" if kind else "largest of the others, corrected"
        dose = "" if best["dose"] == "all" else f"dose {best['dose']}, "
        level = confidence(best["significance"])
        of = "" if told else " a record"
        sure = "" if told else " confidence"
        told.append(
            f"{largest:.3f}{of} at {level}{sure} "
            f"({best['part']}, {dose}k = {best['k']}, {which})"
        )
    if not told:
        return ""
    return (
        f"the training run is not eps-DP for eps < {', nor for eps < '.join(told)}: "
        f"pure DP (delta 0), if {STATED}."
    )


def _contrast_findings(
    contrasts: Sequence[Contrast], paired: Sequence[Mapping[str, Any]]
) -> list[Finding]:
    wilcoxon = {(r["checkpoint"], r["part"]): r["wilcoxon_p"] for r in paired}
    found = []
    for row in contrasts:
        if (row.metric, row.of) != ("exposure_mean", "full"):
            continue
        if row.status == "not_resolvable":
            continue
        head = f"{row.checkpoint} against {row.baseline}: exposure of canaries"
        if row.value is None or row.low is None or row.high is None:
            said = f"{head} did not change, or it cannot be estimated ({row.note})."
            found.append(Finding.on(row, "nothing_shown", said))
            continue
        p = wilcoxon.get((row.checkpoint, row.of))
        change = f"{figure(row, digits=2)} bits" + (
            "" if p is None else f" (Wilcoxon {p_value(p)})"
        )
        claim: Claim = "moved" if moved(row) else "nothing_shown"
        if claim == "nothing_shown":
            tail = unseen(row.mde, "", digits=2)
            said = f"{head}: no change detected, {change}{tail}."
        else:
            way = "ROSE" if row.value > 0 else "fell"
            said = f"{head} {way}: {change}."
        found.append(Finding.on(row, claim, said))
    return found
