"""What of a report may be shared: the one rule between it and every file but its own.

Whoever has the base model finds a span's text from its NLL, and confirms a guess of it.
As statistical offices do, figures of few clusters are withheld, and with them one more
of the same partition, so that what is left of the pooled figure is never that of a few;
all others are rounded. Findings and their claims stay: only their figures are taken
out. Verdict and gate are of the report itself, which stands in ``report.json``.

Planted canaries belong to nobody, and accuracy counts answers: of these, only scores
are withheld.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from spark_audit.results import Contrast, Finding, Report, Row, number
from spark_audit.results.rows import Power

R = TypeVar("R", bound=Row)

FEWEST = 5
"""Clusters of a figure that is shown. Three are the least that offices ask for; with
five, four of them would have to be known to work out the last."""
APART = 0.5
"""Nats (or bits): the least rounding step, times clusters. What a difference of two
figures leaves of an average cluster is then open by a quarter of a nat a token to each
side at the least, and by more of a span that is only a part of its cluster."""
WITHHELD = f"withheld: fewer than {FEWEST} clusters (see report.json)"
BESIDE = "withheld: else a smaller group could be worked out (see report.json)"
ONE_CLUSTER = "extremes withheld: each leaves out one cluster (see report.json)"

SCORES = ("nats", "bits")
LIMITS = ("value", "low", "high", "parity_low", "parity_high", "mde")
NULLS = ("null", "null_low", "null_high")
SIGNED = ("low", "high", "parity_low", "parity_high")
"""Limits of intervals: on which side of zero they are is what is concluded from."""
COUNTED = (
    "matching_by_type",
    "canary_uniformity",
    "canary_streisand",
    "canary_dose_trend",
    "canary_paired",
    "canary_epsilon",
    "canary_one_run",
    "canary_extrapolated",
    "extract_canaries",
    "mia_all_rows",
    "mia_covariates",
    "mia_roc",
    "mia_texts",
    "accuracy_matrix",
    "stages_states",
    "run_settings",
    "run_time",
)
"""Tables of counts, of ranks of planted strings, of texts, of states, and of runs."""
RELATED = (("memory", "pii_change"), ("kind", "specific"), ("rise", "beyond"))
"""Metrics of sides and of their difference: of some of them follow the others."""
PLACES = ("nats", "caliper_nats", "sigma", "relative", "rank")
"""Columns that say where a record stands, not what was found."""
SIZES = ("clusters", "spans", "pairs", "draws", "tokens", "n")
DIFFERENCES = ("AUC", "points", "clusters")
"""Units of what a finding claims beyond its row: none is a score of a text."""
NEEDED = ("pair_shares", "rank_distribution")
"""Tables whose records say nothing without a figure."""


def disclosed(report: Report) -> Report:
    """The report as every file holds it that is not for its owner only."""
    hidden = _hidden([*report.results, *report.contrasts])
    shown = {id(r): _row(r, hidden) for r in (*report.results, *report.contrasts)}
    clusters = report.manifest.n_clusters
    return report.model_copy(
        update={
            "command": list(_unseeded(report.command)),
            "settings": {k: v for k, v in report.settings.items() if k != "seed"},
            "results": [shown[id(row)] for row in report.results],
            "contrasts": [shown[id(row)] for row in report.contrasts],
            "findings": [_finding(f, report, shown) for f in report.findings],
            "guards": [
                guard.model_copy(update={"detail": _said(guard.detail, (), clusters)})
                for guard in report.guards
            ],
            "tables": {
                name: list(_table(name, records, report))
                for name, records in report.tables.items()
            },
        }
    )


def withheld(row: Row) -> bool:
    """Whether a figure is there, but not in what can be shared."""
    return row.value is None and row.note in (WITHHELD, BESIDE)


def _unseeded(command: Iterable[str]) -> Iterator[str]:
    """A command without its seed: the noise of DP-SGD follows from it."""
    after = False
    for word in command:
        named, equals, _ = word.partition("=")
        seed = named == "--seed" and bool(equals)
        yield "..." if after else "--seed=..." if seed else word
        after = word == "--seed"


# --- rows -----------------------------------------------------------------------------


def _unit(row: Row) -> tuple[str, ...]:
    """Figures with the same key are shown together or not at all."""
    names = next((names for names in RELATED if row.metric in names), ())
    own = names[:1] or (row.metric, row.of)
    place = (row.audit, row.checkpoint, row.over, row.group)
    return (*place, getattr(row, "baseline", ""), *own)


def _hidden(rows: Sequence[Row]) -> dict[int, str]:
    """Rows that are withheld, by their identity, and why."""
    sizes: dict[tuple[str, ...], int] = {}
    units: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        place = (row.audit, row.checkpoint, row.group)
        sizes[place] = max(sizes.get(place, 0), row.clusters)
        planted = row.audit == "canary" and row.unit != "nats"
        if not planted and row.audit != "utility":
            units.setdefault(_unit(row), []).append(row)

    def size(row: Row) -> int:
        # What is not estimable may not say of how many clusters it is not.
        if row.value is not None:
            return row.clusters
        return sizes[row.audit, row.checkpoint, row.group] or FEWEST

    found: dict[int, str] = {}
    parts: dict[tuple[str, ...], list[list[Row]]] = {}
    small: set[tuple[str, ...]] = set()
    for (audit, checkpoint, over, group, *own), unit in units.items():
        part = (audit, checkpoint, over, group.partition(":")[0], *own)
        few = {id(row): WITHHELD for row in unit if size(row) < FEWEST}
        rest = [row for row in unit if row.value is not None and id(row) not in few]
        if few:
            small.add(part)
            found |= few | {id(row): BESIDE for row in rest}
        elif rest:
            parts.setdefault(part, []).append(rest)
    for part in small & parts.keys():
        # Groups may share clusters: several small ones together can be as few.
        least = min(parts[part], key=lambda unit: min(row.clusters for row in unit))
        found |= {id(row): BESIDE for row in least}
    return found


def _row(row: R, hidden: Mapping[int, str]) -> R:
    gone: dict[str, Any] = dict.fromkeys((*LIMITS, *NULLS))
    if isinstance(row, Contrast):
        gone |= {"p": None, "p_adjusted": None}
    if row.value is None:
        return row
    if (why := hidden.get(id(row))) is not None:
        empty = {"status": "not_estimable", "interval": "none", "note": why}
        return row.model_copy(update=gone | empty)
    step, tests = _step_of(row), ("p", "p_adjusted")
    told = {name: getattr(row, name) for name in gone}
    return row.model_copy(
        update={
            name: None
            if value is None
            else _decade(value)
            if row.unit == "tries" and name not in tests
            else value
            if step is None or name in tests
            else _limit(value, step)
            if name in SIGNED
            else _rounded(value, step)
            for name, value in told.items()
        }
    )


def _step_of(row: Row) -> float | None:
    """The rounding step of a row's figures; none where nothing asks for one."""
    if row.unit == "log10 tries":
        return 0.5
    if row.unit not in SCORES or (row.audit == "canary" and row.unit != "nats"):
        return None
    return _step(APART / max(row.clusters, 1))


def _step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20 ... that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= least * (1 - 1e-9))


def _rounded(value: float, step: float) -> float:
    return float(f"{round(value / step) * step:.12g}") + 0.0


def _limit(value: float, step: float) -> float:
    """Rounded, but never to zero: one digit is kept then."""
    found = _rounded(value, step)
    return float(f"{value:.1g}") if found == 0 else found


def _decade(tries: float) -> float:
    """Tries are a span's NLL: a decade is 2.3 nats."""
    return 10.0 ** round(math.log10(tries)) if tries > 0 else tries


# --- sentences ------------------------------------------------------------------------

_FIGURE = re.compile(
    r"(?<![\w.])(?<!p )(?<!sigma )(?<!alone, )(?<!limit )-?\d+\.\d+(?!\w|\.\d)"
)
_TRIES = re.compile(r"(?<![\w.+])(?<!than )\d[\d.]*(?:e\+\d+)?(?= at T| from the)")
_GONE = re.compile(r"withheld%?(?: \[withheld%?, withheld%?\])?")


def _finding(finding: Finding, report: Report, shown: Mapping[int, Row]) -> Finding:
    """The same claim, its figures rounded or withheld as those of its rows."""
    rows = [
        row
        for row in (*report.results, *report.contrasts)
        if row.checkpoint == finding.checkpoint and row.audit == finding.audit
        if row.group in ("pooled", "split:test", finding.group)
    ]
    place = (finding.metric, finding.of, finding.group)
    alike = [r for r in rows if (r.metric, r.of, r.group) == place]
    units = {finding.unit} if finding.unit else {row.unit for row in alike}
    own = [r for r in alike if r.value == finding.value and r.unit in units]
    told: list[str] = []
    for row in rows:
        if row.value is not None and withheld(shown[id(row)]):
            limits = f" [{number(row.low)}, {number(row.high)}]"
            told.append(number(row.value) + limits * (row.low is not None))
            if row.group == "pooled":
                told.append(number(row.value))
    clusters = min((r.clusters for r in own), default=report.manifest.n_clusters)
    # Of two figures that are written alike, what it is about is meant.
    others = rows if re.search(r"\b(nats|bits)\b", finding.sentence) else []
    same = _same_figures([*own, *others], shown)
    sentence = finding.sentence
    gone = any(withheld(shown[id(row)]) for row in own or alike)
    if gone:
        sentence = _FIGURE.sub("withheld", sentence)
    kept = finding if finding.unit in DIFFERENCES and not gone else None
    source = shown[id(own[0])] if own else kept
    names = ("value", "low", "high", "null", "mde")
    figures = {name: getattr(source, name, None) for name in names}
    figures["p_adjusted"] = getattr(source, "p_adjusted", None) if own else None
    return finding.model_copy(
        update={
            **figures,
            # Standard errors stay here; why nothing can be detected does not.
            "power": [Power(test=one.test, why=one.why) for one in finding.power]
            if finding.mde is None
            else [],
            "ending": "",
            "sentence": _said(sentence, told, clusters, same),
        }
    )


def _same_figures(rows: Iterable[Row], shown: Mapping[int, Row]) -> dict[str, str]:
    """Figures as sentences write them -> as the tables beside them show them."""
    found: dict[str, str] = {}
    for row in rows:
        for name in (*LIMITS, *NULLS):
            exact, told = getattr(row, name), getattr(shown[id(row)], name)
            if exact is not None and told is not None and row.unit in SCORES:
                for digits in (2, 3):
                    text = number(abs(told), digits)
                    found.setdefault(number(abs(exact), digits), text)
    return found


def _said(
    text: str,
    told: Iterable[str],
    clusters: int,
    same: Mapping[str, str] | None = None,
) -> str:
    """A sentence without the figures ``told``; the others that are in nats rounded."""
    for known in told:
        text = re.sub(rf"(?<![\w.-]){re.escape(known)}(?!\w|\.\d)", "withheld", text)
    step = _step(APART / max(clusters, 1))
    places = max(-math.floor(math.log10(step)), 0)

    def figure(found: re.Match[str]) -> str:
        nats = "nats" in text
        if nats and clusters < FEWEST:
            return "withheld"
        if same and (text_of := same.get(found[0].removeprefix("-"))) is not None:
            below = found[0].startswith("-") and float(text_of) != 0
            return "-" * below + text_of
        if not nats:
            return found[0]
        return f"{_rounded(float(found[0]), step):.{places}f}"

    text = _FIGURE.sub(figure, text)
    text = _TRIES.sub(lambda found: f"{_decade(float(found[0])):.3g}", text)
    return _GONE.sub("withheld", text)


# --- tables ---------------------------------------------------------------------------

Record = dict[str, Any]
RUN = ("checkpoint", "stage", "part", "kind")


def _table(name: str, records: list[Record], report: Report) -> Iterator[Record]:
    if name == "run_losses":
        yield from _losses(records, report)
        return
    for record in records:
        if name == "run_settings" and record.get("setting") == "seed":
            continue
        if name in COUNTED:
            yield record
        elif name == "canary_by_dose":
            few = (record.get("canaries") or 0) < FEWEST
            scores = ("nll_mean", "posterior_bits_mean")
            yield record | dict.fromkeys(scores) if few else record
        else:
            yield from _record(name, record, report.manifest.n_clusters)


def _record(name: str, record: Record, clusters: int) -> Iterator[Record]:
    """A record without figures of few, and those of single clusters."""
    size = next((record[k] for k in ("clusters", "spans") if k in record), clusters)
    figures = [
        key
        for key, value in record.items()
        if key not in PLACES
        and key not in SIZES
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    ]
    if size == 0 and not figures:
        yield record  # of nothing, and why
        return
    if not isinstance(size, int) or size < FEWEST:
        if name not in NEEDED:
            yield record | dict.fromkeys(figures) | {"note": WITHHELD}
        return
    step = _step(APART / size)
    found = record | {
        key: _rounded(record[key], step)
        for key in figures
        if isinstance(record[key], float)
    }
    alone = [key for key in record if key.startswith("leave_one_cluster_out")]
    if alone:
        found |= dict.fromkeys(alone) | {"note": ONE_CLUSTER}
    yield found


def _losses(records: list[Record], report: Report) -> Iterator[Record]:
    """Points of at least so many rows; a probe always has as many of each kind."""
    sizes = {
        (r["checkpoint"], r["setting"]): r.get("value")
        for r in report.tables.get("run_settings", [])
    }
    before: dict[tuple[Any, ...], int] = {}
    for given in records:
        record = dict(given)
        place = tuple(record.get(k) for k in ("checkpoint", "stage", "part"))
        probe = record.get("kind") == "probe"
        step = int(record.get("step") or 0)
        steps = step - before.get(place, 0)
        if not probe:
            before[place] = step
            for term in record.keys() - {*RUN, "step"}:
                kind = "old_batch_size" if term == "old" else "batch_size"
                part = "ptpc." if record.get("part") == "priv" else ""
                size = sizes.get((record["checkpoint"], part + kind))
                if not isinstance(size, int) or steps * size < FEWEST:
                    record[term] = None
        yield record
