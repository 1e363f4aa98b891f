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
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from spark_audit.audits import about
from spark_audit.audits.claims import ALPHA
from spark_audit.report.places import command_line, shareable, shareable_settings
from spark_audit.results import Finding, Hits, ManifestFacts, Report, Row, grouped
from spark_audit.results.findings import (
    MIN_CLUSTERS_TO_PUBLISH,
    WITHHELD,
    WITHHELD_NOTE,
    Fact,
)
from spark_audit.stats.estimate import Power

RowT = TypeVar("RowT", bound=Row)

MIN_STEP_TIMES_CLUSTERS = 1.0
"""Nats, bits or a whole share: the least rounding step, times clusters."""
ROUNDING_ERROR = 1e-6
"""Below this a figure is rounding error."""

MEANT = ("value", "low", "high", "null", "mde")
PS = ("p", "p_adjusted")
FIGURE_COLUMNS = (*MEANT, "parity_low", "parity_high", "null_low", "null_high", *PS)
DIGITS = 6
"""The most digits that a number has in a shared file, whatever it is of."""

MATCHING_TABLE = "matching_by_type"
"""The table of how many identifiers have a control."""
PLANTED = ("canary_by_dose", "canary_epsilon", "canary_one_run", "series_epsilon")
"""Tables of planted strings, which belong to nobody: only digits are cut."""
ACCURACY = ("accuracy_matrix",)
"""Tables that count answers: only digits are cut."""
PLACE_COLUMNS = (
    *("nats", "caliper_nats", "sigma", "relative", "rank", "fpr"),
    *("stage", "trained_at", "tasks"),
)
"""Columns that say where a record stands, not what was found."""
COUNT_COLUMNS = ("clusters", "spans", "pairs", "draws", "tokens", "n")
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
        shown_names = {
            "source": shareable(one.source),
            "base": one.base and shareable(one.base),
            "notes": [shareable(note) for note in one.notes],
        }
        checkpoints.append(one.model_copy(update=shown_names))
    for guard in report.guards:
        facts = {
            name: _named_fact(name, fact, shown, clusters)
            for name, fact in guard.facts.items()
        }
        guards.append(guard.model_copy(update={"facts": facts}))
    return report.model_copy(
        update={
            "command": list(command_line(report.command)),
            "manifest": manifest_facts(report.manifest),
            "checkpoints": checkpoints,
            "settings": shareable_settings(report.settings),
            "results": [shown[_key(row)] for row in report.results],
            "contrasts": [shown[_key(row)] for row in report.contrasts],
            "findings": [
                _finding(one, report, shown, by_place) for one in report.findings
            ],
            "guards": guards,
            "caveats": [shareable(one) for one in report.caveats],
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

    It is at least what ``MIN_STEP_TIMES_CLUSTERS`` asks for, in other units the figure
    itself over the clusters, and at least what a cluster of one standard deviation, as
    the interval tells it, adds. Of a share, n clusters of equal weight have a standard
    error ``se`` of 0.5 / sqrt(n) at the most, so that one weighs 4 se^2 or less; where
    each row or span is in or out (all but tokens), a count would follow from one step:
    two are taken. Of ranks few may be as large as all others together.
    """
    if row.unit == "log10 tries":
        return 0.5
    if row.audit == "utility" or (row.audit == "canary" and row.unit != "nats"):
        return None
    clusters = max(row.clusters, 1)
    se = 0.0 if row.low is None or row.high is None else (row.high - row.low) / 4
    least = (
        MIN_STEP_TIMES_CLUSTERS
        if row.unit in ("nats", "bits", "")
        else abs(row.value or 0.0)
    )
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
    if steps == 0 and abs(value) > ROUNDING_ERROR:
        steps = math.copysign(0.5, value)
    return float(f"{steps * step:.12g}") + 0.0


def with_digits(value: float, digits: int = DIGITS) -> float:
    """Return a number with so many significant digits."""
    return float(f"{value:.{digits}g}")


def rounded_p(p: float) -> float:
    """Return a p with one digit, on its side of the level of 0.05.

    A p is as good as the figures that it follows from: of a hundred scores, two digits
    left 1% of the guesses of the last one open, one digit leaves 10%, as the rounding
    of a mean does.

    >>> [rounded_p(p) for p in (0.0137, 0.0496, 0.0504, 0.76, 1.0, 3.2e-05)]
    [0.01, 0.04, 0.06, 0.8, 1.0, 3e-05]
    """
    near = with_digits(p, 1)
    if near == ALPHA and p != ALPHA:
        return 0.04 if p < ALPHA else 0.06
    return near


def is_p(column: str) -> bool:
    """Whether a column holds p: ``p``, ``p_adjusted``, ``step_p_adjusted``, ..."""
    return "p" in column.split("_")


def rounded_up(effect: float, step: float) -> float:
    """The multiple of a step that is no smaller: no smaller effect was detectable."""
    return float(f"{math.ceil(effect / step - ROUNDING_ERROR) * step:.12g}")


def count_step(n: int, clusters: int) -> float:
    """The step of a count of some of ``n``: twice what an average cluster has."""
    return max(step_above(2 * n / max(clusters, 1)), 2.0)


def decade(tries: float) -> float:
    """Tries are a span's NLL: a decade is 2.3 nats."""
    return 10.0 ** round(math.log10(tries)) if tries > 0 else tries


# --- what is no figure ----------------------------------------------------------------

KEYED = "hmac-sha256:"


def manifest_facts(facts: ManifestFacts) -> ManifestFacts:
    """The digest of a text with six unknown digits is found in seconds: it is keyed."""
    given = facts.digest
    if facts.key:
        given = f"{KEYED}{keyed_digest(facts, given)}"
    elif not given.startswith(KEYED):
        given = "not shown"
    tokens = count_of(facts.n_tokens, facts.n_clusters)
    return facts.model_copy(update={"digest": given, "key": "", "n_tokens": tokens})


def keyed_digest(facts: ManifestFacts, digest: str) -> str:
    """Return the HMAC-SHA256 of a digest of private content, by the report's key.

    Against the digest itself whatever is unknown of the content could be tried out.
    """
    return hmac.new(facts.key.encode(), digest.encode(), "sha256").hexdigest()


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
                size = sizes[audit, checkpoint, group] or MIN_CLUSTERS_TO_PUBLISH
            whole = (audit, row.metric, row.of, checkpoint, over, group)
            alone = row.n - matched.get(whole, row.n)
            # Without a control are fewer tokens than so many clusters have on average.
            if 0 < alone * row.clusters < MIN_CLUSTERS_TO_PUBLISH * row.n:
                few[id(row)] = WITHHELD_NOTE
            elif size < MIN_CLUSTERS_TO_PUBLISH:
                few[id(row)] = WITHHELD
            elif row.value is not None:
                rest.append(row)
        if few:
            small.add(part)
            found |= few | dict.fromkeys(map(id, rest), WITHHELD_NOTE)
        elif rest:
            parts.setdefault(part, []).append(rest)
    for part in small & parts.keys():
        # Groups may share clusters: several small ones together can be as few.
        least = min(parts[part], key=lambda unit: min(row.clusters for row in unit))
        found |= dict.fromkeys(map(id, least), WITHHELD_NOTE)
    return found


def _shown(row: RowT, why: str | None = None) -> RowT:
    """The row with rounded figures, or with none and ``why`` they are withheld."""
    known = {k: v for k in FIGURE_COLUMNS if (v := getattr(row, k, None)) is not None}
    if row.value is None:
        return row
    if why is not None:
        empty = {"status": "not_estimable", "interval": "none", "note": why}
        return row.model_copy(update=dict.fromkeys(known) | empty)
    step = step_of(row)
    # Steps from an AUC's null, so that every limit stays on its side of it.
    null = 0.5 if (row.metric, row.null) == ("auc", 0.5) else 0.0
    told: dict[str, Any] = {
        "n": count_of(row.n, row.clusters),
        "level": with_digits(row.level),
    }
    for name, value in known.items():
        if name in PS:
            told[name] = rounded_p(value)
        elif row.unit == "tries":
            told[name] = decade(value)
        elif step is None:
            told[name] = with_digits(value)
        else:
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


def _named_fact(
    name: str,
    fact: Fact,
    shown: Mapping[Any, Row],
    clusters: int,
    *,
    gone: bool = False,
) -> Fact:
    """A fact as :func:`_fact` has it, and a p as tables have it."""
    if isinstance(fact, float) and is_p(name):
        return rounded_p(fact)
    return _fact(fact, shown, clusters, gone=gone)


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
            figures[name] = with_digits(value * scale)
    if figures["mde"] is None and not gone:
        figures["mde"] = _effect(finding.mde, claimed)
    for name in PS:
        if (p := getattr(finding, name)) is not None:
            figures[name] = rounded_p(p)
    facts = {
        name: _named_fact(name, fact, shown, clusters, gone=gone)
        for name, fact in finding.facts.items()
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
    if name == MATCHING_TABLE:
        return [_matching(record) for record in records]
    if name in (*PLANTED, *ACCURACY):
        return [_with_digits(record) for record in records]
    audit = report.origins.get(name, "")
    shown_records = []
    for record in records:
        shown_record = _record(name, record, _clusters_of(record, audit, report))
        if shown_record is not None:
            shown_records.append(_with_digits(shown_record))
    return shown_records


_LENGTH = re.compile(r" of length \d+")


def _matching(record: Record) -> Record:
    """Return how many identifiers of a type have no control, without their lengths.

    Of one alone the reason would tell how many tokens it has.
    """
    counts = Counter[str]()
    for part in filter(None, record["reasons"].split("; ")):
        count, _, reason = part.partition(" ")
        counts[_LENGTH.sub("", reason)] += int(count) if count.isdigit() else 0
    reasons = "; ".join(f"{counts[reason]} {reason}" for reason in sorted(counts))
    return record | {"reasons": reasons}


def _with_digits(record: Record) -> Record:
    """Return a record whose p are rounded, and no number has more than its digits."""
    told = dict(record)
    for column, value in record.items():
        if isinstance(value, float):
            told[column] = rounded_p(value) if is_p(column) else with_digits(value)
    return told


def _clusters_of(record: Record, audit: str, report: Report) -> int:
    """Return of how many clusters a record is, or at least its audit's smallest figure.

    A record of a task says so, and has those of its task.
    """
    for column in ("clusters", "spans"):
        if column in record:
            size = record[column]
            return size if isinstance(size, int) else 0
    groups = {"pooled"}
    if isinstance(record.get("task"), str):
        groups.add(f"task:{record['task']}")
    rows = [r for r in report.results if r.audit == audit and r.group in groups]
    sizes = [row.clusters for row in rows if row.clusters]
    return min(sizes, default=report.manifest.n_clusters)


def _record(name: str, record: Record, size: int) -> Record | None:
    """A record without figures of few; nothing where it says nothing without."""
    figures = {
        key: value
        for key, value in record.items()
        if key not in (*PLACE_COLUMNS, *COUNT_COLUMNS)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    }
    if size == 0 and not figures:
        return record  # of nothing, and why
    if size < MIN_CLUSTERS_TO_PUBLISH:
        empty = dict.fromkeys(figures) | {"note": WITHHELD}
        return None if name in NEEDED else record | empty
    step = step_above(MIN_STEP_TIMES_CLUSTERS / size) * (
        100 if name == EXTRACTED else 1
    )
    told = dict(record)
    for key, value in record.items():
        if key in ("tokens", "n"):
            told[key] = count_of(value, size)
        elif key in figures and is_p(key):
            told[key] = rounded_p(value)
        elif key in figures and isinstance(value, float):
            told[key] = rounded(value, step)
        elif key in figures and name == EXTRACTED:
            # A cluster has several identifiers, and each of them several parts.
            tried = max(size, record.get("spans") or 0, record.get("tried") or 0)
            told[key] = round(rounded(value, count_step(tried, size)))
    return told
