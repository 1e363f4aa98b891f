"""Likelihood of identifiers against equally difficult controls.

SPARK's difficulty-matched selectivity evaluation: every annotated PII span of a train
row stands against a non-PII span of the same example with the same number of tokens
and, on the reference model, the same NLL. ``delta_sel`` is the checkpoint's NLL on
the PII minus that on the controls; ``did`` its difference to a baseline. Both move in
any fine-tuning: neither tells memory, nor that anything was suppressed. ``memory`` is
the change of identifiers in trained rows minus that of identifiers of the same kinds
in rows never trained on, which formats and drift move alike.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Annotated, Any

import numpy as np
import pandas as pd

from spark_audit.audits import matched_changes
from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables, guard
from spark_audit.audits.identifiers import (
    Sums,
    audited_spans,
    identifier_facts,
    plan_of_identifiers,
    sides_of,
)
from spark_audit.audits.supervision import COLUMN, trained_identifiers
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE, CONTROL, entry_of, listed
from spark_audit.provenance import seed_for
from spark_audit.results import AuditResult, Guard, Row, grouped
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import Fact
from spark_audit.scoring.table import Pass
from spark_audit.stats import matching
from spark_audit.stats.estimate import Estimate

_change = partial(Metric, unit="nats", panel="changes")
_level = partial(Metric, unit="nats", bounds=(0.0, np.inf), learned=-1)
_delta = partial(Metric, unit="nats", learned=-1, glance=("",), headline=("",))
FEWEST_REPLICATES = 100
UNBALANCED = 0.25
"""Standardised mean difference from which readers are told (Stuart, 2010)."""
FEW = 10
"""Identifiers of a type from which its share with a control is judged."""
BALANCE = "balance of annotated identifiers"
ROW = ["example", "cluster", "task", "split"]
"""Columns of what a unit's row is."""


@dataclass(frozen=True, kw_only=True)
class Matched(Audit):
    """Likelihood of identifiers compared with equally difficult controls.

    The scores of a checkpoint named ``base`` are compared with the reference scores of
    the manifest. ``null`` names ordinary training runs: their spread around the
    baseline replaces the tolerance for unequal drift. ``replicates`` of 0 means 9,999,
    or 2,000 in the preset ``paper``.
    """

    name = "matched"
    metrics = (
        _delta("memory", panel="changes", variants=("", "trend"), counted=("",)),
        _change(
            "pii_change",
            partner="memory",
            learned=-1,
            variants=("trained", "never-trained"),
        ),
        _change("kind"),
        _change("specific", partner="kind"),
        _change("low_change"),
        _level("nll_pii"),
        _level("nll_control"),
        _delta(
            "delta_sel",
            variants=("", "change", "span-weighted", "source-weighted"),
            hidden=("span-weighted", "source-weighted"),
            counted=("change",),
            glance=("change",),
            headline=("change",),
        ),
        Metric("rtm_bias", "nats", variants=("", "change")),
        _delta("did"),
        Metric("did_alike", "nats"),
        _change("returned", learned=-1, variants=("", "after")),
    )
    nothing = "the manifest has no identifier to audit"
    wide = True
    file = "spans.parquet"
    covers = ("memory", "clusters")
    memory = True
    unit = "nats per token"

    replicates: Annotated[
        int, "bootstrap replicates of the percentile interval; 0: as in the preset"
    ] = 0
    placebo_draws: Annotated[int, "draws of the placebo distribution; 0: none"] = 200
    rematched: Annotated[
        bool, "repeat the matching with other calipers and distances"
    ] = True
    null: Annotated[
        str | None,
        "NAME,NAME,...: ordinary training runs; only a DiD larger than theirs counts",
    ] = None

    def __post_init__(self) -> None:
        if self.replicates and self.replicates < FEWEST_REPLICATES:
            few = f"{self.replicates} replicates give no interval"
            fix = f"give at least {FEWEST_REPLICATES}, or 0 for the preset's number"
            raise InputError(few, where="--replicates", fix=fix)
        if self.placebo_draws < 0:
            wrong = "must not be negative"
            raise InputError(wrong, where="--placebo-draws", fix="give 0 for none")

    def check_names(self, names: Sequence[str]) -> None:
        if names:
            listed(self.null, names, where="--null")

    def replicates_of(self, preset: str) -> int:
        return self.replicates or super().replicates_of(preset)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        # Unmatched spans bear on ``rtm_bias`` too.
        return plan_of_identifiers(manifest)

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """What the matched audit concludes from.

        Roles: ``pii`` and ``control`` (the two sides of ``pair``), ``unmatched`` (PII
        without a control), ``window`` (eligible non-PII text of a span's length, the
        pool that regression to the mean is estimated on) and ``low`` (the tokens of low
        sensitivity of an example, one row an example). ``nll_sum`` is the checkpoint's,
        ``ref_sum`` the reference's, both in nats. ``dose`` is the number of trained
        rows that the identifier's string stands in, whichever row it is read in, and
        ``trained`` 1 where that is any; ``supervision`` is what training did with it,
        where that is known; ``form``, ``cue``, ``stratum`` and ``text_auc`` are those
        of :class:`~spark_audit.audits.identifiers.Facts`, 0 for any other text.
        ``alike`` rows hold the eligible tokens of one class (``type``: see
        :class:`~spark_audit.manifest.schema.ManifestExample`) of an example, and
        columns :data:`CLASSES` how many tokens of each an identifier has. Without a
        ``split`` are ``rematched`` and ``placebo``, whose sums are those of identifiers
        minus those of controls: see :func:`~spark_audit.audits.matched.other_pairs`.
        """
        scores = {n: passes[Pass()] for n, passes in tables.items() if Pass() in passes}
        spans = pd.DataFrame(_spans(manifest) if scores else ())
        if spans.empty:
            return Evidence()
        spans = spans.sort_values("pair", kind="stable")  # the others behind all pairs
        at = spans[["index", "start", "n_tokens"]].to_numpy().T
        texts = [*_texts(manifest)]
        sets = [(text["index"], text.pop("tokens")) for text in texts]
        variants = VARIANTS if self.rematched else {}
        others, pairs = other_pairs(
            manifest, variants, draws=self.placebo_draws, seed=context.seed
        )
        rows = [(e.id, e.cluster, e.task, e.split) for e in manifest.examples]
        known = pd.DataFrame(rows, columns=ROW, dtype=object)
        own = pd.concat([spans, pd.DataFrame(texts)]).join(known, on="index")
        units = _filled(pd.concat([own, others], ignore_index=True))

        def summed(nll: Sums) -> np.ndarray:
            row, ours, theirs, size = pairs[PAIRS[:4]].to_numpy().T
            apart = nll(row, ours, size) - nll(row, theirs, size)
            apart = np.bincount(pairs["unit"], apart, len(others))
            return np.concatenate([nll(*at), nll.over(sets), apart])

        units["ref_sum"] = summed(Sums(manifest))
        sums = ((n, {"nll_sum": summed(Sums(manifest, x))}) for n, x in scores.items())
        return Evidence.of(units, sums)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        nll, baselines = _with_entries(evidence, context.baselines)
        known = matched_changes.UnitScores(
            evidence.units, nll, replace(context, baselines=baselines)
        )
        rows, contrasts = matched_changes.pair_figures(known)
        tested: dict[str, dict[str, matched_changes.Moved]] = {}
        for name in nll:
            made, tested[name] = matched_changes.memory_rows(known, name)
            rows += made
        for pair in baselines.items():
            contrasts += matched_changes.contrasts_of(known, *pair)
        roles, tables = {*evidence.units["role"]}, {}
        if "rematched" in roles:
            tables["matched_sensitivity"] = [*sensitivity_table(evidence)]
        if "placebo" in roles:
            tables["matched_placebo"] = [*placebo_table(evidence)]
        told = [*matched_changes.findings(known, rows, tested)]
        if CONTROL in nll:
            for back, after, finding in matched_changes.returned(known, [*told]):
                contrasts.append(back)
                rows.append(after)
                told += [finding] if finding else []
        if contrasts:
            entries = {*nll}.difference(evidence.checkpoints)
            null = listed(self.null, [*nll], where="--null")
            told += matched_changes.contrast_findings(rows, contrasts, entries, null)
        return AuditResult(rows, contrasts, [*_guards(known)], told, tables)


def _with_entries(
    evidence: Evidence, baselines: Mapping[str, str]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """NLL by checkpoint, and the mean of each method's replicates under its own name.

    Delta_sel and DiD are linear in a checkpoint's sums, so their interval over sources
    for the mean of several seeds is that of the averaged sums.
    """
    nll = dict(zip(evidence.checkpoints, evidence.values["nll_sum"], strict=True))
    pairs = dict(baselines)
    replicates = (name for name in nll if entry_of(name) != name)
    for entry, names in grouped(replicates, entry_of).items():
        nll[entry] = np.mean([nll[name] for name in names], axis=0)
        if (other := baselines.get(names[0])) is not None:
            pairs[entry] = entry_of(other)
    return nll, pairs


def _row(metric: str, value: float, clusters: int) -> Row:
    """A figure that only a guard shows."""
    shown = Estimate(float(value), clusters=clusters)
    return matched_changes.row_of(shown, checkpoint=BASE, metric=metric)


def _balance(spans: pd.DataFrame) -> Guard:
    """Whether compared identifiers differ in what can move their likelihood."""
    sides = sides_of(spans)
    kept = sides.cells >= 0
    used, cells, trained = spans[kept], sides.cells[kept], sides.trained[kept]
    counts = [used["cluster"][side].nunique() for side in (trained, ~trained)]
    # So many standard deviations are no chance, of so few clusters.
    least = max(UNBALANCED, 1.96 * np.sqrt(sum(1 / max(n, 1) for n in counts)))
    nll = used["ref_sum"] / used["n_tokens"]
    covariates = {"nll": nll, "length": used["n_tokens"], "place": used["start"]}
    centred = pd.DataFrame(covariates).groupby(cells).transform(lambda x: x - x.mean())
    apart: dict[str, float] = {}
    for name, sd in centred.std(ddof=0).items():
        values = centred[name].to_numpy()
        if sd > 0:
            apart[str(name)] = matching.smd(values[trained], values[~trained], sd=sd)
    worst = [name for name, value in apart.items() if abs(value) > least]
    facts: dict[str, Fact] = {**apart, "least": float(least), "worst": worst}
    return guard(BALANCE, "balance", facts, passed=not worst)


def _guards(known: matched_changes.UnitScores) -> Iterator[Guard]:
    """What can void the figures, from the reference alone.

    And whether the base still scores as the manifest says it did. Where chance dealt
    identifiers to the sides, they were equally hard before training by design; of
    annotated ones that is an assumption, which their text, NLL, length and place can
    refute.
    """
    units, whole = known.units, known.sides[0]
    if BASE in known.nll:
        shown = _row("reproduced", known.worst[BASE], units["cluster"].nunique())
        sound = BASE in known.references
        facts: dict[str, Fact] = {"worst": shown, "reproduced": sound}
        told: dict[str, Any] = {"passed": sound, "checkpoint": BASE}
        yield guard("reference reproduced", "reproduced", facts, **told)
    yield from _pair_guards(known.train)
    if whole.before.value is None:
        return
    apart, annotated = bool(whole.reach), whole.spans["form"] == 0
    before = matched_changes.row_of(whole.before, checkpoint=BASE, metric="before")
    facts = {"before": before, "unequal": apart}
    name = "never-trained identifiers"
    yield guard(name, "before", facts, passed=None if apart else True)
    if annotated.any():
        facts = {**whole.by_text(BASE), "apart": whole.told_apart}
        passed = (None if "fewest" in facts else False) if whole.told_apart else True
        yield guard("text of annotated identifiers", "by_text", facts, passed=passed)
        yield _balance(whole.spans[annotated])


def _pair_guards(train: pd.DataFrame) -> Iterator[Guard]:
    """Whether enough identifiers have a control, and one that is as hard."""
    pii, control = train[train["role"] == "pii"], train[train["role"] == "control"]
    every = train[train["role"].isin(["pii", "unmatched"])]
    if not (total := len(every)):
        return
    lost = every["role"].eq("unmatched").groupby(every["type"])
    types = lost.agg(["sum", "size", "mean"]).sort_values("mean", ascending=False)
    half = types.loc[types["size"] >= FEW, "mean"] <= 0.5
    share: dict[str, Fact] = {"matched": len(pii), "identifiers": total}
    share["without"] = [
        f"{kind} {missing}/{count}"
        for kind, missing, count, _ in types[:4].itertuples()
        if missing
    ]
    sound = len(pii) / total >= 0.5 and bool(half.all())
    yield guard("matched share", "matched_share", share, passed=sound or None)
    if not len(pii):
        return
    tokens, clusters = pii["n_tokens"].to_numpy(float), pii["cluster"].nunique()
    gaps = pii["ref_sum"].to_numpy() - control["ref_sum"].to_numpy()
    residual = gaps.sum() / tokens.sum()
    worst = float(np.quantile(np.abs(gaps) / tokens, 0.95))
    quality = {"residual": _row("residual", residual, clusters)}
    quality["distance"] = _row("distance", worst, clusters)
    sound = bool(abs(residual) <= 0.05)
    yield guard("match quality", "match_quality", quality, passed=sound or None)
    effective = matching.effective_clusters(
        pii.groupby("cluster")["n_tokens"].sum().to_numpy()
    )
    counts = {"clusters": clusters, "effective": effective}
    yield guard("clusters", "clusters", counts, passed=effective >= 10 or None)


def _spans(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Units that are ranges of tokens, without scores."""
    trained_on = trained_identifiers(manifest)
    facts = identifier_facts(manifest, trained_on)
    # By characters too: several spans may share a token.
    controls: dict[tuple[str, int, int, int, int], tuple[int, int]] = {}
    for k, pair in enumerate(manifest.pairs):
        one = pair.pii
        at = one.char_start, one.char_end, one.token_start, one.token_end
        controls[pair.example, *at] = k, pair.control.token_start
    for i, example, spans in audited_spans(manifest):
        for span, (start, end) in spans:
            known = facts[example.id, span.start, span.end]
            counts = Counter(example.classes[start:end])
            told: dict[str, Any] = {
                name: counts[c] for c, name in matched_changes.CLASSES.items()
            }
            told |= {"trained": int(known.dose > 0), **vars(known)}
            if trained_on.is_known:
                told[COLUMN] = trained_on.supervision_of(example, span)
            place = example.id, span.start, span.end, start, end
            number, control = controls.pop(place, (None, None))
            own = {"index": i, "type": span.type, "n_tokens": end - start}
            own["pair"] = number
            role = "unmatched" if control is None else "pii"
            yield {**own, "role": role, "start": start, **told}
            if control is not None:
                yield {**own, "role": "control", "start": control}
        for size in sorted({end - start for _, (start, end) in spans}):
            own = {"index": i, "role": "window", "n_tokens": size}
            starts = matching.non_overlapping_windows(example.eligible, size)
            for first in starts.tolist():
                yield {**own, "start": first}
    if controls:
        what = f"{len(controls)} of its pairs are of no annotated identifier"
        raise InputError(what, where=manifest.name, fix="build the manifest again")


def _texts(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """``low`` and ``alike`` units, with their ``tokens``, which are no range."""
    for i, example, _ in audited_spans(manifest):
        letters = np.array(list(example.classes))
        parts = [("low", "", np.array(example.low, np.int32))]
        for letter in matched_changes.CLASSES:
            at = np.flatnonzero(example.eligible & (letters == letter))
            parts.append(("alike", letter, at.astype(np.int32)))
        for role, kind, tokens in parts:
            if len(tokens):
                own = {"index": i, "role": role, "type": kind, "tokens": tokens}
                yield {**own, "n_tokens": len(tokens)}


def _filled(units: pd.DataFrame) -> pd.DataFrame:
    """The columns of the evidence but for scores; what units lack is 0 or empty."""
    words = dict.fromkeys((*ROW, "role", "type"), "")
    if COLUMN in units:
        words[COLUMN] = ""
    counts = ("trained", "dose", "form", "cue", "stratum")
    zeros = ("start", "n_tokens", *counts, *matched_changes.CLASSES.values())
    whole = {"pair": -1, **dict.fromkeys(zeros, 0)}
    units = units.reindex(columns=[*words, *whole, "text_auc"])
    units = units.astype(dict.fromkeys(words, object)).fillna({**words, **whole})
    return units.astype({**dict.fromkeys(whole, np.int64), "text_auc": np.float64})


VARIANTS: dict[str, dict[str, Any]] = {
    "caliper 0.1": {"caliper_u": 100_000},
    "caliper 0.25": {"caliper_u": 250_000},
    "caliper 1.0": {"caliper_u": 1_000_000},
    "distance profile": {"distance": "profile"},
    "controls before": {"controls": "before"},
}
"""Sensitivity runs: what differs from the manifest's own settings."""
MATCHINGS, FEWEST_DRAWS = 100_000, 40
"""Examples are matched at most so often for the placebo (seconds), and the draws that
a large manifest is left with; the table says how many there were."""
MOST_ROWS = 25_000
"""With more rows a placebo takes hours, and shows a spread of next to nothing."""
PAIRS = ["example", "pii", "control", "length", "setting"]
"""Columns of matched pairs: place in ``manifest.examples``, first token of either side,
their tokens, and number of the variant, or of the placebo draw behind all variants."""


def other_pairs(
    manifest: Manifest, variants: Mapping[str, Any], *, draws: int, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Pairs of train rows under other settings, and placebo pairs.

    Each placebo draw replaces every matched span by a random eligible window of its
    length and matches that as the manifest does; of a large manifest are fewer draws,
    or none. It has no gap in difficulty: it shows spread and matching quality, and is
    no null for a Delta_sel (see :func:`spark_audit.stats.matching`).

    Parameters
    ----------
    variants
        Options of :func:`spark_audit.stats.matching.match_spans` by name; what is not
        given is the manifest's.

    Returns
    -------
    units
        Of the evidence, without scores. ``rematched``: a pair under the setting
        ``type``; ``placebo``: all pairs of the draw ``start``.
    pairs
        :data:`PAIRS`, and ``unit``, the place of the one that a pair is of.
    """
    first = manifest.settings
    own: dict[str, Any] = {"distance": first.distance, "controls": first.controls}
    own |= {"caliper_u": round(1e6 * first.caliper)}
    matched = defaultdict[str, set[tuple[int, int]]](set)
    for known in manifest.pairs:
        matched[known.example].add((known.pii.token_start, known.pii.token_end))
    rows = len(matched)
    count = min(draws, max(FEWEST_DRAWS, MATCHINGS // max(rows, 1)))
    # Millions of tuples would take ten times the room.
    records = array("i")
    for i, example, spans in audited_spans(manifest, ["train"]):
        ranges = [tokens for _, tokens in spans]
        paired = [tokens for tokens in ranges if tokens in matched[example.id]]
        scores = example.unll, example.eligible
        rng = np.random.default_rng(seed_for(seed, "placebo", example.id))
        tried = [(ranges, own | more) for more in variants.values()]
        for _ in range(count if paired and rows <= MOST_ROWS else 0):
            windows = matching.placebo_spans(*scores, paired, rng)
            tried.append((windows, own | {"controls": "any"}))
        for setting, (matching_of, options) in enumerate(tried):
            for pair in matching.match_spans(*scores, matching_of, **options).pairs:
                start, size = matching_of[pair.span][0], pair.end - pair.start
                records.extend((i, start, pair.start, size, setting))
    pairs = pd.DataFrame(np.asarray(records).reshape(-1, len(PAIRS)), columns=PAIRS)
    # A pair is a unit, and so are all pairs of a draw: of a draw d all are -1 - d, of
    # the others each is its own place.
    draw = pairs["setting"] - len(variants)
    pairs["unit"] = pd.factorize(pairs.index.where(draw < 0, -1 - draw))[0]
    # Of many pairs all columns of units would not fit.
    heads = pairs[~pairs["unit"].duplicated()]
    draw = draw[heads.index]
    names = np.array([*variants, *[""] * count], object)
    clusters = np.array([example.cluster for example in manifest.examples], object)
    units = pd.DataFrame(
        {
            "role": np.where(draw < 0, "rematched", "placebo"),
            "type": names[heads["setting"]],
            "cluster": np.where(draw < 0, clusters[heads["example"]], ""),
            "start": draw.clip(lower=0),
            "n_tokens": np.bincount(pairs["unit"], pairs["length"], len(heads)),
        }
    )
    return units, pairs


def sensitivity_table(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Delta_sel under other matching settings; the manifest's pairs stay primary."""
    units = evidence.units[evidence.units["role"] == "rematched"]
    reference = evidence.units["ref_sum"].to_numpy()
    for variant, name in product(VARIANTS, evidence.checkpoints):
        pairs, apart = units[units["type"] == variant], evidence.row(name, "nll_sum")
        record = {"variant": variant, "checkpoint": name, "pairs": len(pairs)}
        raw = matched_changes.pooled_change(pairs, apart)
        record |= {"clusters": raw.clusters, "delta_sel": raw.value}
        record |= {"low": raw.low, "high": raw.high}
        change = matched_changes.pooled_change(pairs, apart - reference)
        record |= {"change": change.value, "change_low": change.low}
        yield record | {"change_high": change.high, "note": raw.note}


def placebo_table(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Delta_sel of random non-PII windows, minus that on the reference, by checkpoint.

    It centres on 0 whatever regression to the mean does: it shows the spread that
    matching leaves, and is no null. Nats per token.
    """
    drawn = evidence.units[evidence.units["role"] == "placebo"]
    for name in evidence.checkpoints:
        change = evidence.row(name, "nll_sum")[drawn.index] - drawn["ref_sum"]
        values = change / drawn["n_tokens"]
        sd = float(values.std()) if len(values) > 1 else None
        figures = {"draws": len(values), "mean": float(values.mean()), "sd": sd}
        yield {"checkpoint": name, **figures}
