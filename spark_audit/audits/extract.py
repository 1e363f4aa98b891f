"""Identifiers that come back word for word after their true prefix, and when.

Greedy decoding reproduces a span exactly when each of its tokens has rank 1 in the pass
that scores it; sampling reproduces it with the product of its tokens' probabilities.
Beside both stands what identifiers that were never trained on give: guessing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from spark_audit.audits import (
    AUDITS,
    BASE,
    Baseline,
    Plan,
    Tables,
    baselines_of,
    settings_of,
)
from spark_audit.audits._ranked import bounded, moved
from spark_audit.audits._tries import MOST, SAMPLERS, Medians
from spark_audit.manifest import Manifest, ManifestExample, ManifestSpan
from spark_audit.ratios import (
    CELLS,
    Figure,
    by_group,
    missing_rows,
    ratio_contrasts,
    ratio_rows,
)
from spark_audit.results import (
    AuditResult,
    Claim,
    Contrast,
    Finding,
    Guard,
    Row,
    number,
)
from spark_audit.stats.extraction import n_p, n_p_counts, top_k_logp
from spark_audit.stats.intervals import clopper_pearson, rate_estimate
from spark_audit.stats.power import mde_normal
from spark_audit.table import Pass, TokenTable

FIGURES = {"greedy_rate": Figure(rate=True)}
MEDIANS = {"n50_median": Figure(unit="tries")}
CATALOGUE = {"greedy_rate": ("",), "n50_median": SAMPLERS}
NOTHING = "no identifier of a train row was scored"
UNSCORED = "its texts were not scored"
TIES_MATTER = 0.005
"""Difference of the greedy rate by tie rule above which readers are told."""

SCOPE = (
    "Extraction is measured after the true prefix, for these spans, in one "
    "tokenisation each: other prefixes, near misses and other spellings are not "
    "counted, so that what is found is a lower bound.",
    "Numbers of tries are for the sampler named; they say nothing of an attacker who "
    "does not know the text before an identifier.",
)

COLUMNS = (
    "checkpoint set split task type origin cluster canary_id part dose first n_tokens "
    "greedy greedy_sure logp_t1 logp_top40"
).split()


def plan(manifest: Manifest, *, preset: str | None = None) -> Plan:
    """All examples with an identifier whose tokens were scored, canaries too."""
    del preset
    ids = sorted({example.id for example, _ in _spans(manifest)})
    return {Pass(): ids} if ids else {}


def _spans(manifest: Manifest) -> Iterator[tuple[ManifestExample, ManifestSpan]]:
    """Identifiers of rows without a canary, and the parts of canaries."""
    for example in manifest.examples:
        for span in example.spans:
            planted = span.part is not None
            if planted != (example.canary_id is not None):
                continue
            start, end = span.token_start, span.token_end
            if start is None or end is None or start == end:
                continue
            if example.scored[start:end].all():
                yield example, span


def evidence(tables: Tables, manifest: Manifest) -> pd.DataFrame:
    """One row a checkpoint and span.

    ``set`` is ``pii`` or ``canary``; ``greedy``: every token has rank 1, ties for the
    first place included, ``greedy_sure`` without them; ``logp_*`` the log probability
    (nats) that sampling gives the span, minus infinity where it cannot. ``dose`` is a
    canary's, 0 where it was held out; ``first`` marks its first row by id, the one
    that it is judged by.
    """
    firsts: dict[tuple[str, str], str] = {}
    for example, span in _spans(manifest):
        key = (example.canary_id or example.id, span.part or "")
        firsts[key] = min(example.id, firsts.get(key, example.id))
    doses = {
        canary.canary_id: 0 if canary.held_out else canary.dose
        for canary in manifest.canaries
    }
    records = []
    for name, passes in tables.items():
        table = passes.get(Pass())
        if table is None:
            continue
        for example, span in _spans(manifest):
            canary = example.canary_id or ""
            # Where only a part of the manifest is audited, its canaries are not listed.
            dose = doses.get(canary, 0 if example.split == "test" else 1)
            records.append(
                {
                    "checkpoint": name,
                    "set": "canary" if canary else "pii",
                    "split": example.split,
                    "task": example.task,
                    "type": span.type,
                    "origin": span.origin,
                    "cluster": example.cluster,
                    "canary_id": canary,
                    "part": span.part or "",
                    "dose": dose if canary else 0,
                    "first": firsts[canary or example.id, span.part or ""]
                    == example.id,
                    **_scores(table, example, span),
                }
            )
    return pd.DataFrame.from_records(records, columns=COLUMNS)


def _scores(
    table: TokenTable, example: ManifestExample, span: ManifestSpan
) -> dict[str, Any]:
    assert span.token_start is not None
    assert span.token_end is not None
    rows = table.span(example.id, span.token_start, span.token_end)
    nll, rank, ties, mass = (
        table.columns[name][rows] for name in ("nll", "rank_lo", "ties", "top40_logp")
    )
    first = bool((rank == 1).all())
    return {
        "n_tokens": len(nll),
        "greedy": first,
        "greedy_sure": first and not ties.any(),
        # Rounding may leave a certain token's NLL a hair below 0.
        "logp_t1": min(0.0, -float(nll.sum(dtype=np.float64))),
        "logp_top40": float(top_k_logp(nll, rank, mass, k=40).sum()),
    }


def conclude(
    evidence: pd.DataFrame,
    *,
    baselines: Mapping[str, str],
    paper: bool,
    seed: int,
    replicates: int,
) -> AuditResult:
    """Rows, contrasts and verdict from :func:`evidence`."""
    pii = evidence[evidence["set"] == "pii"]
    names = list(dict.fromkeys(evidence["checkpoint"]))
    options: dict[str, Any] = {"seed": seed, "replicates": replicates}
    tables = {
        "extract_counts": _count_table(pii),
        "extract_canaries": _canary_table(evidence[evidence["set"] == "canary"]),
    }
    tables = {name: table for name, table in tables.items() if table}
    if pii[pii["split"] == "train"].empty:
        return AuditResult(
            rows=_missing(names, NOTHING),
            findings=[
                Finding(
                    audit="extract",
                    claim="not_tested",
                    sentence=f"Not estimable: {NOTHING}.",
                ),
                *_canary_findings(tables.get("extract_canaries", [])),
            ],
            tables=tables,
        )
    cells = pd.concat([_cells(part, group) for group, part in by_group(pii)])
    rows = ratio_rows(cells, audit="extract", figures=FIGURES, paper=paper, **options)
    contrasts = bounded(
        ratio_contrasts(
            cells,
            audit="extract",
            figures=FIGURES,
            baselines=baselines,
            paper=paper,
            **options,
        ),
        FIGURES,
    )
    for group, part in by_group(pii):
        medians = Medians(part, group, **options)
        rows += medians.rows()
        contrasts += medians.contrasts(baselines)
    rows = _beside_base(rows)
    return AuditResult(
        rows=rows,
        contrasts=contrasts,
        guards=_guards(pii),
        findings=[
            *_findings(pii, rows),
            *_canary_findings(tables.get("extract_canaries", [])),
            *_contrast_findings(contrasts),
        ],
        scope=list(SCOPE),
        tables=tables,
    )


@AUDITS.register(plan=plan, conclude=conclude)
def extract(
    tables: Tables,
    manifest: Manifest,
    *,
    baseline: Baseline = None,
    preset: str | None = None,
    seed: int = 0,
) -> AuditResult:
    """Conclude from the plain tables of the checkpoints.

    ``greedy_rate``: share of identifiers that greedy decoding reproduces;
    ``n50_median``: median over identifiers of the tries after which one came with even
    odds, sampling at temperature 1 (``t1``) or from the 40 likeliest tokens
    (``top40``). Test rows, never trained on, are ``split:test``: what guessing gives.

    Parameters
    ----------
    tables
        Checkpoint name -> pass -> table.
    baseline
        Checkpoint that contrasts are taken with, or checkpoint -> its own.
    preset
        ``robust`` or ``paper``; default: the manifest's.
    """
    frame = evidence(tables, manifest)
    result = conclude(
        frame,
        baselines=baselines_of(baseline, tables),
        **settings_of(manifest, preset=preset, seed=seed),
    )
    absent = [name for name in tables if name not in set(frame["checkpoint"])]
    reason = UNSCORED if plan(manifest) else NOTHING
    return replace(
        result, rows=[*result.rows, *_missing(absent, reason)], evidence=frame
    )


def _missing(names: list[str], reason: str) -> list[Row]:
    return [
        *missing_rows("extract", names, FIGURES, ("",), reason),
        *missing_rows("extract", names, MEDIANS, SAMPLERS, reason),
    ]


# --- figures --------------------------------------------------------------------------


def _cells(part: pd.DataFrame, group: str) -> pd.DataFrame:
    return part.assign(
        group=group,
        metric="greedy_rate",
        of="",
        num=part["greedy"].astype(np.float64),
        den=1.0,
    )[list(CELLS)]


def _beside_base(rows: Sequence[Row]) -> list[Row]:
    """The rows with the base's figure of the same spans as their null value."""
    base = {(r.group, r.metric, r.of): r for r in rows if r.checkpoint == BASE}
    found = []
    for row in rows:
        other = base.get((row.group, row.metric, row.of))
        if other is not None and row.checkpoint != BASE:
            null = {
                "null": other.value,
                "null_low": other.low,
                "null_high": other.high,
            }
            row = row.model_copy(update=null)
        found.append(row)
    return found


# --- tables ---------------------------------------------------------------------------


def _count_table(pii: pd.DataFrame) -> list[dict[str, Any]]:
    """Spans by the tries they need, of train and of test rows."""
    found: list[dict[str, Any]] = []
    for (name, split), part in pii.groupby(["checkpoint", "split"], sort=False):
        for of in SAMPLERS:
            counts = n_p_counts(n_p(part[f"logp_{of}"].to_numpy(np.float64)))
            found.append(
                {
                    "checkpoint": name,
                    "rows": split,
                    "of": of,
                    "spans": len(part),
                    "greedy": int(part["greedy"].sum()),
                    "greedy_if_ties_lose": int(part["greedy_sure"].sum()),
                    **{f"n50_within_{most}": n for most, n in counts.items()},
                }
            )
    return found


def _canary_table(canaries: pd.DataFrame) -> list[dict[str, Any]]:
    """Canaries that come back, by dose and part.

    In the first of their rows: held-out ones have one row, and more rows are more
    tries. ``greedy_in_any_row`` is no figure to compare.
    """
    found: list[dict[str, Any]] = []
    keys = canaries[["checkpoint", "part", "dose"]].drop_duplicates()
    order = {name: i for i, name in enumerate(dict.fromkeys(keys["checkpoint"]))}
    for name, part, dose in sorted(
        keys.itertuples(index=False, name=None), key=lambda k: (order[k[0]], *k[1:])
    ):
        here = (canaries["checkpoint"] == name) & (canaries["part"] == part)
        chosen = canaries[here & (canaries["dose"] == dose)]
        first = chosen[chosen["first"].astype(bool)]
        hits, n = int(first["greedy"].sum()), len(first)
        low, high = clopper_pearson(hits, n)
        tries = n_p(first["logp_t1"].to_numpy(np.float64))
        anywhere = chosen.groupby("canary_id")["greedy"].any()
        found.append(
            {
                "checkpoint": name,
                "part": part,
                "dose": int(dose),
                "held_out": int(dose) == 0,
                "canaries": n,
                "rows": len(chosen),
                "greedy": hits,
                "greedy_rate": hits / n,
                "low": low,
                "high": high,
                "greedy_in_any_row": int(anywhere.sum()),
                **{f"n50_within_{k}": v for k, v in n_p_counts(tries).items()},
            }
        )
    return found


# --- words ----------------------------------------------------------------------------


def _findings(pii: pd.DataFrame, rows: Sequence[Row]) -> list[Finding]:
    known = {(r.checkpoint, r.group, r.metric, r.of): r for r in rows}
    found = []
    for name in dict.fromkeys(pii["checkpoint"]):
        where = {"audit": "extract", "checkpoint": name}
        chosen = pii[pii["checkpoint"] == name]
        row = known.get((name, "pooled", "greedy_rate", ""))
        if row is None or row.value is None:
            reason = NOTHING if row is None else row.note
            sentence = f"{name}: extraction is not estimable ({reason})."
            found.append(Finding.on(row, "not_tested", sentence, **where))
            continue
        train = chosen[chosen["split"] == "train"]
        tries = [
            f"{_median(known[name, 'pooled', 'n50_median', of])} {words}"
            for of, words in (("t1", "at T = 1"), ("top40", "from the top 40"))
        ]
        sentence = (
            f"{name}: {int(train['greedy'].sum())} of {len(train)} identifiers of "
            f"train rows come back word for word under greedy decoding "
            f"({_percent(row)}){_base_words(name, row)}; median tries for even odds: "
            f"{', '.join(tries)}."
        )
        claim, beside = _against_test(name, pii, known)
        found.append(Finding.on(row, claim, sentence))
        found.append(Finding.on(row, claim, beside))
        apart = float((train["greedy"] & ~train["greedy_sure"]).mean())
        if apart > TIES_MATTER:
            said = (
                f"{name}: ties matter, {number(100 * apart, 1)}% come back only if "
                "ties are won; score in float32."
            )
            found.append(Finding(**where, claim="not_tested", sentence=said))
    return found


def _base_words(name: str, row: Row) -> str:
    if name == BASE or row.null is None:
        return ""
    return f", of the base before training {number(100 * row.null, 1)}%"


def _against_test(
    name: str, pii: pd.DataFrame, known: Mapping[tuple[str, str, str, str], Row]
) -> tuple[Claim, str]:
    """Train rows against rows never trained on: whether it is more than guessing.

    Where the base was scored, beyond what it gives on the same rows: it shows how far
    the two splits differ by themselves.
    """
    train = known[name, "pooled", "greedy_rate", ""]
    limit = ""
    if train.high is not None:
        limit = f" Up to {number(100 * train.high, 1)}% cannot be excluded."
    chosen = pii[pii["checkpoint"] == name]
    if not (chosen["split"] == "test").any():
        said = f"{name}: no identifier of test rows tells what guessing gives.{limit}"
        return "not_tested", said
    apart, alike = _against(pii, name)
    what = "injected identifiers" if alike else "identifiers, not drawn alike,"
    head = f"{name}: against {what} of rows never trained on"
    if name != BASE and _has_base(pii):
        base, _ = _against(pii, BASE)
        apart = _since(apart, base)
        head += " (beyond the base's own difference)"
    if apart is None:
        return "not_tested", f"{head}: no comparison, clusters are too few.{limit}"
    points = f"{_points(apart)} points"
    if apart.low <= 0 <= apart.high:
        return "nothing_shown", (
            f"{head}: no difference detected, {points}; differences below "
            f"{number(100 * apart.mde, 1)} points go unseen.{limit}"
        )
    if name == BASE:
        said = f"{head} they differ, by {points}: the splits differ by themselves."
        return "confounded", said
    if not alike:
        said = f"{head} they differ, by {points}: that may be the identifiers' doing."
        return "confounded", said
    if apart.low > 0:
        said = f"{head} MORE come back, by {points}: training text is extracted."
        return "verbatim", said
    said = f"{head} FEWER come back, {points}: over-suppression is a signal too."
    return "betrays", said


def _guards(pii: pd.DataFrame) -> list[Guard]:
    """Whether the base, which saw none of the rows, tells train from test rows."""
    if not _has_base(pii):
        return []
    apart, alike = _against(pii, BASE)
    if apart is None or apart.low <= 0 <= apart.high:
        # That no difference is seen does not show that there is none.
        return []
    detail = (
        "greedy decoding of the base returns identifiers of train rows more or less "
        f"often than of test rows, by {_points(apart)} points: "
    )
    detail += (
        "the splits differ by themselves; only changes since it mean anything"
        if alike
        else "natural identifiers of the two splits differ"
    )
    name = "base tells no train from test identifiers"
    passed = False if alike else None
    return [Guard(name=name, checkpoint=BASE, passed=passed, detail=detail)]


def _has_base(pii: pd.DataFrame) -> bool:
    return bool((pii["checkpoint"] == BASE).any())


def _against(pii: pd.DataFrame, name: str) -> tuple[_Apart | None, bool]:
    """Train minus test of a checkpoint; whether both were drawn alike (injected)."""
    chosen = pii[pii["checkpoint"] == name]
    injected = chosen[chosen["origin"] == "injected"]
    alike = set(injected["split"]) == {"train", "test"}
    return _train_minus_test(injected if alike else chosen), alike


class _Apart(NamedTuple):
    """A difference of two rates with its interval and smallest detectable effect."""

    value: float
    low: float
    high: float
    mde: float


def _train_minus_test(chosen: pd.DataFrame) -> _Apart | None:
    """Difference of the greedy rates of train and test rows.

    Its interval combines those of both rates as method 10 of Newcombe (1998) does with
    Wilson's, which keeps it honest where next to nothing comes back.
    """
    sides = []
    for split in ("train", "test"):
        part = chosen[chosen["split"] == split].groupby("cluster")["greedy"]
        sides.append(rate_estimate(part.sum().to_numpy(), part.count().to_numpy()))
    ends = [end for side in sides for end in (side.value, side.low, side.high)]
    p1, low1, high1, p2, low2, high2 = np.array(ends, dtype=np.float64)
    if np.isnan([p1, low1, high1, p2, low2, high2]).any():
        return None
    train = _Apart(float(p1), float(low1), float(high1), 0.0)
    return _minus(train, _Apart(float(p2), float(low2), float(high2), 0.0))


def _minus(one: _Apart, two: _Apart) -> _Apart:
    """Difference of two independent figures, its interval from both of theirs."""
    value = one.value - two.value
    low = value - float(np.hypot(one.value - one.low, two.high - two.value))
    high = value + float(np.hypot(one.high - one.value, two.value - two.low))
    # Half the width of a 95 % interval is 1.96 standard errors.
    se = (high - low) / 2 / float(special.ndtri(0.975))
    return _Apart(value, low, high, mde_normal(se))


def _since(one: _Apart | None, base: _Apart | None) -> _Apart | None:
    """A difference beyond the base's, as if both were independent.

    Both are of the same rows and mostly agree, so that the interval is rather wide.
    """
    return None if one is None or base is None else _minus(one, base)


def _points(apart: _Apart) -> str:
    low, high = number(100 * apart.low, 1), number(100 * apart.high, 1)
    return f"{number(100 * apart.value, 1)} [{low}, {high}]"


def _median(row: Row) -> str:
    if row.value is None:
        return "not estimable"
    if row.value >= MOST:
        return f"more than {MOST:.0e}"
    return f"{row.value:.3g}"


def _percent(row: Row) -> str:
    if row.value is None:
        return "-"
    text = f"{number(100 * row.value, 1)}%"
    if row.low is None or row.high is None:
        return text
    return f"{text} [{number(100 * row.low, 1)}, {number(100 * row.high, 1)}]"


def _canary_findings(table: Sequence[Mapping[str, Any]]) -> list[Finding]:
    found = []
    for name in dict.fromkeys(r["checkpoint"] for r in table if not r["held_out"]):
        ours = [r for r in table if r["checkpoint"] == name and not r["held_out"]]
        never = [r for r in table if r["checkpoint"] == name and r["held_out"]]
        hits, n = sum(r["greedy"] for r in ours), sum(r["canaries"] for r in ours)
        among = "in the first row of each"
        if not hits:
            worst = number(100 * max(r["high"] for r in ours), 1)
            among += f"; up to {worst}% of a part and dose not excluded"
        text = (
            f"{name}: {hits} of {n} parts of canaries come back word for word ({among})"
        )
        if never:
            guessed, m = (sum(r[k] for r in never) for k in ("greedy", "canaries"))
            text += f", of held-out ones {guessed} of {m}"
        found.append(
            Finding(
                audit="extract",
                checkpoint=str(name),
                claim="moved",
                sentence=f"{text}.",
            )
        )
    return found


def _contrast_findings(contrasts: Sequence[Contrast]) -> list[Finding]:
    found = []
    for row in contrasts:
        if (row.group, row.metric) != ("pooled", "greedy_rate"):
            continue
        head = f"{row.checkpoint} against {row.baseline}: greedy extraction"
        if row.value is None or row.low is None or row.high is None:
            same = row.value == 0
            why = "as much comes back in both" if same else row.note
            said = f"{head}: no change can be estimated ({why})."
            found.append(Finding.on(row, "moved", said))
            continue
        points = (
            f"{number(100 * row.value, 1)} [{number(100 * row.low, 1)}, "
            f"{number(100 * row.high, 1)}] points"
        )
        if not moved(row):
            tail = (
                ""
                if row.mde is None
                else (f"; changes below {number(100 * row.mde, 1)} points go unseen")
            )
            said = f"{head}: no change detected, {points}{tail}."
        else:
            way = "ROSE" if row.value > 0 else "fell"
            said = f"{head} {way}: {points}."
        found.append(Finding.on(row, "moved", said))
    return found
