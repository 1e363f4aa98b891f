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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Annotated, Any, TypeAlias

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
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest, ManifestExample, TokenRange
from spark_audit.names import BASE, entry_of, listed
from spark_audit.provenance import seed_for
from spark_audit.results import AuditResult, Estimate, Guard, Row, grouped
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import Fact
from spark_audit.scoring.table import Pass
from spark_audit.stats import matching

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
        ``trained`` 1 where that is any; ``form``, ``cue``, ``stratum`` and ``text_auc``
        are those of :class:`~spark_audit.audits.identifiers.Facts`, 0 for any
        other text. ``alike`` rows hold the eligible tokens of one class (``type``: see
        :class:`~spark_audit.manifest.schema.ManifestExample`) of an example, and
        columns :data:`CLASSES` how many tokens of each an identifier has. Without a
        ``split`` are the roles of
        :func:`~spark_audit.audits.matched.other_pairs`.
        """
        scores = {n: passes[Pass()] for n, passes in tables.items() if Pass() in passes}
        skeleton = _frame(_spans(manifest)) if scores else pd.DataFrame()
        if skeleton.empty:
            return Evidence()
        at = tuple(skeleton[name].to_numpy() for name in ("index", "start", "n_tokens"))
        texts = [*_texts(manifest)]
        of, places = ([one[key] for one in texts] for key in ("index", "places"))
        rematched, draws, seed = self.rematched, self.placebo_draws, context.seed
        more = list(other_pairs(manifest, rematched=rematched, draws=draws, seed=seed))

        def scored(found: Sums) -> np.ndarray:
            rows = [*map(found.of_tokens, of, places)]
            others = (summed(found) for _, summed in more)
            return np.concatenate([found(*at), rows, *others])

        parts = [skeleton, _frame(texts), *(_frame(units) for units, _ in more)]
        units = pd.concat(parts, ignore_index=True)
        index = units.pop("index")
        rows = [(e.id, e.cluster, e.task, e.split) for e in manifest.examples]
        known = pd.DataFrame(rows, columns=ROW).iloc[index[index >= 0]]
        units.loc[index >= 0, ROW] = known.to_numpy()
        units["ref_sum"] = scored(Sums(manifest))

        sums = ((name, Sums(manifest, one)) for name, one in scores.items())
        return Evidence.of(units, ((name, {"nll_sum": scored(x)}) for name, x in sums))

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
        for back, after, finding in matched_changes.returned(known, [*told]):
            contrasts.append(back)
            rows.append(after)
            told += [finding] if finding else []
        null, seeds = listed(self.null, [*nll], where="--null"), evidence.checkpoints
        told += matched_changes.contrast_findings(
            rows, contrasts, {*nll} - {*seeds}, null
        )
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
    whole = sides_of(spans)
    kept = whole.cells >= 0
    used, cells, sides = spans[kept], whole.cells[kept], whole[kept]
    trained = sides.trained
    counts = [len(set(sides.clusters[side])) for side in (trained, ~trained)]
    # So many standard deviations are no chance, of so few clusters.
    least = max(UNBALANCED, 1.96 * np.sqrt(sum(1 / max(n, 1) for n in counts)))
    nll = used["ref_sum"] / used["n_tokens"]
    covariates = {"nll": nll, "length": used["n_tokens"], "place": used["start"]}
    apart = {}
    for name, values in covariates.items():
        centred = (values - values.groupby(cells).transform("mean")).to_numpy()
        sd = float(centred.std()) if len(centred) else 0.0
        if sd > 0:
            apart[name] = matching.smd(centred[trained], centred[~trained], sd=sd)
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
    pii, control, unmatched = (
        train[train["role"] == role] for role in ("pii", "control", "unmatched")
    )
    if not (total := len(pii) + len(unmatched)):
        return
    lost = train["role"].eq("unmatched")[train["role"] != "control"]
    types = lost.groupby(train["type"]).agg(["sum", "size", "mean"])
    types = types.sort_values("mean", ascending=False)
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
    figures = {"residual": residual, "distance": worst}
    quality = {name: _row(name, one, clusters) for name, one in figures.items()}
    sound = bool(abs(residual) <= 0.05)
    yield guard("match quality", "match_quality", quality, passed=sound or None)
    effective = matching.effective_clusters(
        pii.groupby("cluster")["n_tokens"].sum().to_numpy()
    )
    counts = {"clusters": clusters, "effective": effective}
    yield guard("clusters", "clusters", counts, passed=effective >= 10 or None)


def _spans(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """The spans of every role, without scores."""
    places = {example.id: i for i, example in enumerate(manifest.examples)}
    facts = identifier_facts(manifest)

    def identifier(i: int, role: str, tokens: TokenRange, pair: int) -> dict[str, Any]:
        example = manifest.examples[i]
        span = next(s for s in example.spans if s.tokens == tokens)
        known = facts[example.id, span.start, span.end]
        told = {"trained": int(known.dose > 0), **vars(known), "type": span.type}
        held = Counter(example.classes[slice(*tokens)])
        told |= {name: held[letter] for letter, name in matched_changes.CLASSES.items()}
        own = {"index": i, "role": role, "pair": pair, "start": tokens[0]}
        return {**own, "n_tokens": tokens[1] - tokens[0], **told}

    paired = set()
    for number, pair in enumerate(manifest.pairs):
        i, pii, control = places[pair.example], pair.pii, pair.control
        place = (pii.token_start, pii.token_end)
        paired.add((i, *place))
        yield identifier(i, "pii", place, number)
        start, size = control.token_start, control.token_end - control.token_start
        own = {"index": i, "role": "control", "start": start, "n_tokens": size}
        yield {**own, "type": pii.type, "pair": number}
    for split in ("train", "test"):
        for i, example, ranges in audited_spans(manifest, split=split):
            for place in ranges:
                if (i, *place) not in paired:
                    yield identifier(i, "unmatched", place, -1)
            for size in sorted({end - start for start, end in ranges}):
                own = {"index": i, "role": "window", "n_tokens": size}
                for start in matching.non_overlapping_windows(
                    example.eligible, size
                ).tolist():
                    yield {**own, "start": start}


def _texts(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """``low`` and ``alike`` rows, with their tokens, which are no range: ``places``."""
    for split in ("train", "test"):
        for i, example, _ in audited_spans(manifest, split=split):
            letters = np.array(list(example.classes))
            parts = [("low", "", np.array(example.low, np.int32))]
            for letter in matched_changes.CLASSES:
                at = np.flatnonzero(example.eligible & (letters == letter))
                parts.append(("alike", letter, at.astype(np.int32)))
            for role, kind, tokens in parts:
                if len(tokens):
                    own = {"index": i, "role": role, "type": kind, "places": tokens}
                    yield {**own, "n_tokens": len(tokens)}


def _frame(records: Iterable[dict[str, Any]] | pd.DataFrame) -> pd.DataFrame:
    words = dict.fromkeys((*ROW, "role", "type"), "")
    counts = dict.fromkeys(("trained", "dose", "form", "cue", "stratum"), 0)
    counts |= dict.fromkeys(matched_changes.CLASSES.values(), 0)
    whole = {"index": -1, "pair": -1, "start": 0, "n_tokens": 0, **counts}
    names = [*words, *whole, "text_auc"]
    frame = pd.DataFrame(records).reindex(columns=names)
    filled = frame.astype(dict.fromkeys(words, object)).fillna({**words, **whole})
    return filled.astype({**dict.fromkeys(whole, np.int64), "text_auc": np.float64})


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
PAIRS = ["example", "pii", "control", "length", "draw"]
"""Columns of matched pairs: place in ``manifest.examples``, first token of either side,
their tokens, and number of the placebo draw."""
Spans: TypeAlias = list[tuple[int, int]]


def rematch(
    manifest: Manifest,
    *,
    drawn: Callable[[ManifestExample, Spans], Iterable[Spans]] | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Pairs of train rows under other settings than the manifest's: :data:`PAIRS`.

    Parameters
    ----------
    drawn
        What is matched in the place of an example's identifiers, by draw.
    settings
        Options of :func:`spark_audit.stats.matching.match_spans`; what is not given
        is the manifest's.
    """
    first = manifest.settings
    kept = {"distance": first.distance, "controls": first.controls}
    options = {"caliper_u": round(1e6 * first.caliper), **kept, **settings}
    # Millions of tuples would take ten times the room.
    records = array("i")
    for i, example, identifiers in audited_spans(manifest):
        draws = [identifiers] if drawn is None else drawn(example, identifiers)
        for draw, spans in enumerate(draws):
            found = matching.match_spans(
                example.unll, example.eligible, spans, **options
            )
            for pair in found.pairs:
                start, size = spans[pair.span][0], pair.end - pair.start
                records.extend((i, start, pair.start, size, draw))
    table = np.asarray(records).reshape(-1, len(PAIRS))
    return pd.DataFrame(table, columns=PAIRS, copy=False)


Part: TypeAlias = tuple[pd.DataFrame, Callable[[Sums], np.ndarray]]
"""Units without a split, and what gives their summed NLL, nats."""


def other_pairs(
    manifest: Manifest, *, rematched: bool, draws: int, seed: int
) -> Iterator[Part]:
    """Pairs under :data:`VARIANTS`, and placebo pairs, as units of the evidence.

    Sums are those of identifiers minus those of controls. ``rematched``: a pair under
    the setting ``type``. ``placebo``: all pairs of the draw ``start``; of a large
    manifest are fewer draws, or none. Each draw replaces every matched span by a random
    eligible window of its length and matches that as the manifest does. It has no gap
    in difficulty: it shows spread and matching quality, and is no null for a Delta_sel
    (see :func:`spark_audit.stats.matching`).
    """
    clusters = np.array([example.cluster for example in manifest.examples], object)
    for of, settings in VARIANTS.items() if rematched else ():
        pairs = rematch(manifest, **settings)
        units = pd.DataFrame({"n_tokens": pairs["length"], "type": of})
        held = clusters[pairs["example"]]
        yield units.assign(cluster=held, role="rematched"), partial(_apart, pairs)
    paired = {(p.example, p.pii.token_start, p.pii.token_end) for p in manifest.pairs}
    rows = len({example for example, *_ in paired})
    if not draws or rows > MOST_ROWS:
        return
    count = min(draws, max(FEWEST_DRAWS, MATCHINGS // max(rows, 1)))

    def windows(example: ManifestExample, spans: Spans) -> Iterator[Spans]:
        spans = [span for span in spans if (example.id, *span) in paired]
        rng = np.random.default_rng(seed_for(seed, "placebo", example.id))
        for _ in range(count if spans else 0):
            yield matching.placebo_spans(example.unll, example.eligible, spans, rng)

    drawn = rematch(manifest, drawn=windows, controls="any")
    tokens = drawn.groupby("draw")["length"].sum()
    units = pd.DataFrame({"start": tokens.index, "n_tokens": tokens.to_numpy()})

    def summed(sums: Sums) -> np.ndarray:
        return pd.Series(_apart(drawn, sums)).groupby(drawn["draw"]).sum().to_numpy()

    yield units.assign(role="placebo"), summed


def _apart(pairs: pd.DataFrame, sums: Sums) -> np.ndarray:
    """Summed NLL of each pair's identifier minus that of its control, nats."""
    ours, theirs = (
        sums(*(pairs[name].to_numpy() for name in ("example", side, "length")))
        for side in ("pii", "control")
    )
    return np.asarray(ours - theirs)


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
