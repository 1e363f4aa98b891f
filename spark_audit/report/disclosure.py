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

import hmac
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from spark_audit.audits import about
from spark_audit.results import Finding, Hits, ManifestFacts, Report, Row, grouped
from spark_audit.results.findings import BESIDE, FEWEST, WITHHELD, Fact
from spark_audit.stats.estimate import Power

R = TypeVar("R", bound=Row)

APART = 1.0
"""Nats, bits or a whole share: the least rounding step, times clusters."""
NOISE = 1e-6
"""Below this a figure is rounding error."""

MEANT = ("value", "low", "high", "null", "mde")
PS = ("p", "p_adjusted")
FIGURES = (*MEANT, "parity_low", "parity_high", "null_low", "null_high", *PS)
MATCHING = "matching_by_type"
"""The table of how many identifiers have a control."""
PLACES = ("nats", "caliper_nats", "sigma", "relative", "rank", "fpr")
"""Columns that say where a record stands, not what was found."""
SIZES = ("clusters", "spans", "pairs", "draws", "tokens", "n")
DIFFERENCES = ("AUC", "points", "clusters")
"""Units of what a finding claims beyond its row: none is a score of a text."""
EXTRACTED = "extract_prompts"
"""The table of how many identifiers come back; its floats are points."""
NEEDED = ("mia_roc",)
"""Tables whose records say nothing without a figure."""


def disclosed(report: Report) -> Report:
    """The report as every file holds it that is not for its owner only."""
    rows = (*report.results, *report.contrasts)
    hidden = _hidden(rows)
    shown = {_key(row): _shown(row, hidden.get(id(row))) for row in rows}
    by_place = grouped(rows, _place)
    clusters = report.manifest.n_clusters
    checkpoints, guards = [], []
    for one in report.checkpoints:
        # Files are named, not the folders on somebody's machine.
        paths = {"source": one.source, "base": one.base}
        names = {k: _PATH.sub("", path) for k, path in paths.items() if path}
        checkpoints.append(one.model_copy(update=names))
    for guard in report.guards:
        facts = {k: _fact(fact, shown, clusters) for k, fact in guard.facts.items()}
        guards.append(guard.model_copy(update={"facts": facts}))
    return report.model_copy(
        update={
            "command": list(command_line(report.command)),
            "manifest": manifest_facts(report.manifest),
            "checkpoints": checkpoints,
            "settings": {k: v for k, v in report.settings.items() if k != "seed"},
            "results": [shown[_key(row)] for row in report.results],
            "contrasts": [shown[_key(row)] for row in report.contrasts],
            "findings": [
                _finding(one, report, shown, by_place) for one in report.findings
            ],
            "guards": guards,
            "tables": {
                name: _table(name, records, report)
                for name, records in report.tables.items()
            },
        }
    )


# --- how finely a figure may be shown -------------------------------------------------

# As the number of its clusters allows: what two figures differ by, of a whole and its
# part or of reports before and after a row was removed, is the contribution of few
# rows. It stays open by what an average cluster contributes, to each side.


def step_of(row: Row) -> float | None:
    """The rounding step of a row's figures; none where nothing asks for one.

    It is at least what ``APART`` asks for, in other units the figure itself over the
    clusters, and at least what a cluster of one standard deviation, as the interval
    tells it, adds. Of a share, n clusters of equal weight have a standard error ``se``
    of 0.5 / sqrt(n) at the most, so that one weighs 4 se^2 or less; where each row or
    span is in or out (all but tokens), a count would follow from one step: two are
    taken. Of ranks few may be as large as all others together.
    """
    if row.unit == "log10 tries":
        return 0.5
    if row.audit == "utility" or (row.audit == "canary" and row.unit != "nats"):
        return None
    clusters = max(row.clusters, 1)
    se = 0.0 if row.low is None or row.high is None else (row.high - row.low) / 4
    least = APART if row.unit in ("nats", "bits", "") else abs(row.value or 0.0)
    least /= clusters
    if row.unit == "":
        step = max(least * (1 if row.audit == "rank" else 2), 4 * se**2)
    else:
        least *= math.sqrt(clusters) if row.unit == "ranks" else 1
        step = max(least, se / math.sqrt(clusters))
    return step_above(step) if step > 0 else None


def count_of(n: int, clusters: int) -> int:
    """Tokens or spans, to what an average cluster has: a difference would tell them."""
    return int(rounded(n, step_above(n / clusters))) if n > clusters > 0 else n


def step_above(least: float) -> float:
    """The smallest of 1, 1.5, 2, 3, 5, 10, 15 ... that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    steps = (k * power for k in (1, 1.5, 2, 3, 5, 10))
    return next(step for step in steps if step >= least * (1 - 1e-9))


def rounded(value: float, step: float) -> float:
    """The nearest multiple of a step; half a step for what would else be zero.

    So no leak is shown as none, and every limit stays on its side of zero.
    """
    steps: float = round(value / step)
    if steps == 0 and abs(value) > NOISE:
        steps = math.copysign(0.5, value)
    return float(f"{steps * step:.12g}") + 0.0


def rounded_up(effect: float, step: float) -> float:
    """The multiple of a step that is no smaller: no smaller effect was detectable."""
    return float(f"{math.ceil(effect / step - NOISE) * step:.12g}")


def count_step(n: int, clusters: int) -> float:
    """The step of a count of some of ``n``: twice what an average cluster has."""
    return max(step_above(2 * n / max(clusters, 1)), 2.0)


def decade(tries: float) -> float:
    """Tries are a span's NLL: a decade is 2.3 nats."""
    return 10.0 ** round(math.log10(tries)) if tries > 0 else tries


# --- what is no figure ----------------------------------------------------------------

KEYED = "hmac-sha256:"
_PATH = re.compile(
    r"(?<![\w./:\\-])(?:[A-Za-z]:)?[/\\](?:[^/\\\n:=,]*[/\\])*(?=[^/\\])"
)
"""Folders of an absolute path: they tell whose machine it was."""


def manifest_facts(facts: ManifestFacts) -> ManifestFacts:
    """The digest of a text with six unknown digits is found in seconds: it is keyed."""
    given = facts.digest
    if facts.key:
        made = hmac.new(facts.key.encode(), given.encode(), "sha256").hexdigest()
        given = f"{KEYED}{made}"
    elif not given.startswith(KEYED):
        given = "not shown"
    tokens = count_of(facts.n_tokens, facts.n_clusters)
    return facts.model_copy(update={"digest": given, "key": "", "n_tokens": tokens})


def command_line(words: Iterable[str]) -> Iterator[str]:
    """A command without absolute paths, and without its seed.

    The noise of DP-SGD follows from that.
    """
    after = False
    for word in words:
        named, equals, _ = word.partition("=")
        seed = named == "--seed" and bool(equals)
        yield "..." if after else "--seed=..." if seed else _PATH.sub("", word)
        after = word == "--seed"


# --- rows -----------------------------------------------------------------------------


def _unit(row: Row) -> tuple[str, ...]:
    """Figures with the same key are shown together or not at all."""
    partners = {metric.name: metric.partner for metric in about(row.audit).metrics}
    lead = partners.get(row.metric) or row.metric
    own = (lead,) if lead in partners.values() else (row.metric, row.of)
    place = (row.audit, row.checkpoint, row.over, row.group)
    return (*place, getattr(row, "baseline", ""), *own)


def _whole(row: Row) -> tuple[str, ...] | None:
    """What figure is of all identifiers, where this is of those with a control."""
    place = (row.checkpoint, row.over, row.group)
    if (row.audit, row.of) == ("rank", "pii"):
        return ("rank", row.metric, "pii_all", *place)
    if (row.audit, row.metric) == ("matched", "nll_pii"):
        return ("nll", "nll", "pii", *place)
    return None


def _hidden(rows: Sequence[Row]) -> dict[int, str]:
    """Rows that are withheld, by their identity, and why."""
    sizes: dict[tuple[str, ...], int] = {}
    matched: dict[tuple[str, ...] | None, int] = {}
    units: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        place = (row.audit, row.checkpoint, row.group)
        sizes[place] = max(sizes.get(place, 0), row.clusters)
        if row.value is not None:
            matched[_whole(row)] = row.n
        planted = row.audit == "canary" and row.unit != "nats"
        if not planted and row.audit != "utility":
            units.setdefault(_unit(row), []).append(row)
    found: dict[int, str] = {}
    parts: dict[tuple[str, ...], list[list[Row]]] = {}
    small: set[tuple[str, ...]] = set()
    for (audit, checkpoint, over, group, *own), unit in units.items():
        part = (audit, checkpoint, over, group.partition(":")[0], *own)
        few, rest = {}, []
        for row in unit:
            size = row.clusters
            if row.value is None:
                # What is not estimable may not say of how many clusters it is not.
                size = sizes[audit, checkpoint, group] or FEWEST
            whole = (audit, row.metric, row.of, checkpoint, over, group)
            alone = row.n - matched.get(whole, row.n)
            # Without a control are fewer tokens than so many clusters have on average.
            if 0 < alone * row.clusters < FEWEST * row.n:
                few[id(row)] = BESIDE
            elif size < FEWEST:
                few[id(row)] = WITHHELD
            elif row.value is not None:
                rest.append(row)
        if few:
            small.add(part)
            found |= few | dict.fromkeys(map(id, rest), BESIDE)
        elif rest:
            parts.setdefault(part, []).append(rest)
    for part in small & parts.keys():
        # Groups may share clusters: several small ones together can be as few.
        least = min(parts[part], key=lambda unit: min(row.clusters for row in unit))
        found |= dict.fromkeys(map(id, least), BESIDE)
    return found


def _shown(row: R, why: str | None = None) -> R:
    """The row with rounded figures, or with none and ``why`` they are withheld."""
    known = {k: v for k in FIGURES if (v := getattr(row, k, None)) is not None}
    if row.value is None:
        return row
    if why is not None:
        empty = {"status": "not_estimable", "interval": "none", "note": why}
        return row.model_copy(update=dict.fromkeys(known) | empty)
    step = step_of(row)
    # Steps from an AUC's null, so that every limit stays on its side of it.
    null = 0.5 if (row.metric, row.null) == ("auc", 0.5) else 0.0
    told: dict[str, Any] = {"n": count_of(row.n, row.clusters)}
    for name, value in known.items():
        if name in PS:
            told[name] = float(f"{value:.2g}")
        elif row.unit == "tries":
            told[name] = decade(value)
        elif step is not None:
            most = 1.0 if row.unit == "" and abs(value) <= 1 else math.inf
            near = round(null + rounded(value - null, step), 12)
            if name == "mde":
                near = rounded_up(value, step)
            told[name] = max(-most, min(most, near))
    return row.model_copy(update=told)


# --- findings and guards --------------------------------------------------------------


def _key(row: Row) -> tuple[object, ...]:
    place = (row.audit, row.checkpoint, getattr(row, "baseline", ""), row.over)
    return (*place, row.metric, row.of, row.group, row.value)


def _fact(
    fact: Fact, shown: Mapping[Any, Row], clusters: int, *, gone: bool = False
) -> Fact:
    """A fact, rounded or withheld as the row is that it was taken from.

    ``gone``: so is the figure of its finding, and every row is withheld.
    """
    if isinstance(fact, list):
        return [_fact(one, shown, clusters, gone=gone) for one in fact]  # type: ignore[return-value]
    if isinstance(fact, Hits):
        # A count before and after a row was removed tells of the row.
        if not fact.count:
            return fact.model_copy(update={"tied": 0})
        step = count_step(fact.of, clusters)
        near = round(min(rounded(fact.count, step), fact.of))
        return Hits(count=near, of=fact.of, rounded=True, vague=2 * step > fact.of)
    if not isinstance(fact, Row):
        return fact
    if (row := shown.get(_key(fact))) is None:
        made = _shown(fact, _hidden([fact]).get(id(fact)))
    else:
        # It may be told with another reason, or a contrast's without its baseline.
        names = {*type(fact).model_fields} & {*type(row).model_fields} - {"baseline"}
        made = fact.model_copy(update={name: getattr(row, name) for name in names})
    return _shown(made, WITHHELD) if gone else made


def _place(one: Row | Finding) -> tuple[str, ...]:
    metric = one.row_metric if isinstance(one, Finding) else one.metric
    return (one.audit, one.checkpoint, metric, one.of, one.group)


def _finding(
    finding: Finding,
    report: Report,
    shown: Mapping[Any, Row],
    by_place: Mapping[tuple[str, ...], Sequence[Row]],
) -> Finding:
    """The same claim, its figures rounded or withheld as those of its rows."""
    alike = by_place.get(_place(finding), [])
    units = {finding.unit} if finding.unit else {row.unit for row in alike}
    own = [r for r in alike if r.value == finding.value and r.unit in units]
    # Over sources and over seeds the value is the same, and the interval is not.
    own.sort(key=lambda r: (r.low, r.high) != (finding.low, finding.high))
    gone = any(shown[_key(row)].withheld for row in own or alike)
    sizes = filter(None, (row.clusters for row in own or alike))
    clusters = min(sizes, default=report.manifest.n_clusters)
    scale = 100 if finding.unit == "points" else 1
    shares = {k: v / scale for k in MEANT if (v := getattr(finding, k)) is not None}
    # What it claims, as a row: the row that it rests on may have other figures.
    whole = Row(
        audit=finding.audit,
        checkpoint=finding.checkpoint,
        metric=finding.metric,
        unit="" if finding.unit in ("AUC", "points") else finding.unit,
        clusters=clusters,
        status="not_estimable" if finding.value is None else "ok",
        note="none",
        **shares,
    )
    claimed, source = _shown(whole), None
    if own:
        source, scale = shown[_key(own[0])], 1
    elif finding.unit in DIFFERENCES and not gone:
        source = claimed
    figures: dict[str, Any] = dict.fromkeys(MEANT)
    for name in MEANT:
        if (value := getattr(source, name, None)) is not None:
            figures[name] = round(value * scale, 9)
    if figures["mde"] is None and not gone:
        figures["mde"] = _effect(finding.mde, claimed)
    for name in PS:
        if (p := getattr(finding, name)) is not None:
            figures[name] = float(f"{p:.2g}")
    facts = {
        k: _fact(fact, shown, clusters, gone=gone) for k, fact in finding.facts.items()
    }
    # Standard errors stay here; why nothing can be detected does not.
    power = [
        Power(test=one.test, why=one.why, of=one.of, mde=_effect(one.mde, claimed))
        for one in finding.power
        if not gone
    ]
    return finding.model_copy(update={**figures, "facts": facts, "power": power})


def _effect(mde: float | None, claimed: Row) -> float | None:
    """A smallest effect, as finely as the figure that is claimed."""
    step = None if mde is None else step_of(claimed)
    return mde if step is None or mde is None else rounded_up(mde, step)


# --- tables ---------------------------------------------------------------------------

Record = dict[str, Any]


def _table(name: str, records: list[Record], report: Report) -> list[Record]:
    audit = report.origins.get(name, "")
    if name in (*about(audit).public, MATCHING):
        return records
    pooled = (r for r in report.results if (r.audit, r.group) == (audit, "pooled"))
    sizes = filter(None, (row.clusters for row in pooled))
    size = min(sizes, default=report.manifest.n_clusters)
    told = (_record(name, record, size) for record in records)
    return [record for record in told if record is not None]


def _record(name: str, record: Record, clusters: int) -> Record | None:
    """A record without figures of few; nothing where it says nothing without."""
    size = next((record[k] for k in ("clusters", "spans") if k in record), clusters)
    figures = {
        key: value
        for key, value in record.items()
        if key not in (*PLACES, *SIZES)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    }
    if size == 0 and not figures:
        return record  # of nothing, and why
    if not isinstance(size, int) or size < FEWEST:
        empty = dict.fromkeys(figures) | {"note": WITHHELD}
        return None if name in NEEDED else record | empty
    step = step_above(APART / size) * (100 if name == EXTRACTED else 1)
    told = dict(record)
    for key, value in record.items():
        if key in ("tokens", "n"):
            told[key] = count_of(value, size)
        elif key in figures and isinstance(value, float):
            told[key] = rounded(value, step)
        elif key in figures and name == EXTRACTED:
            told[key] = round(rounded(value, count_step(size, size)))
    return told
