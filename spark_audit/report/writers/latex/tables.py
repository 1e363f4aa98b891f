"""Which LaTeX tables there are: the paper's layouts over a report's figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_audit.audits.contract import carriers
from spark_audit.names import entry_of, series_of
from spark_audit.report.writers.latex.text import escaped
from spark_audit.results import Report

UP, DOWN, CHANCE = r"$\uparrow$", r"$\downarrow$", r"$\approx$0.5"
INLINE = 4
"""Columns of figures up to which an interval stands beside its value, not below."""


@dataclass(frozen=True)
class Column:
    """A printed column: its header (as TeX) and the rows that it shows.

    ``of = "last"`` of an accuracy is a series' last stage; ``counted`` says what the
    rows' ``n`` counts.
    """

    header: str
    arrow: str
    audit: str
    metric: str
    of: str = ""
    group: str = "pooled"
    counted: str = "tokens"


Line = tuple[str, str]
"""Checkpoint, and what its intervals are over."""


@dataclass(frozen=True)
class Panel:
    """Lines that belong together, under a heading or beside a label (both TeX)."""

    lines: tuple[Line, ...]
    heading: str = ""
    label: str = ""


@dataclass(frozen=True)
class Layout:
    """A table that may be written; ``needs`` are audits that must give a figure.

    ``split`` makes panels of the lines, ``labels`` heads a column for their labels;
    ``by_task`` puts the accuracy of every task before its columns.
    """

    name: str
    lead: str
    columns: tuple[Column, ...]
    needs: tuple[str, ...]
    split: Callable[[Report, Sequence[Line]], list[Panel]] | None = None
    labels: str = ""
    remark: str = ""
    by_task: bool = False


def _columns(
    audit: str, *columns: tuple[str, ...], of: str = "", counted: str = "tokens"
) -> tuple[Column, ...]:
    """Columns of an audit: header, arrow, metric, variant where it is not ``of``."""
    return tuple(
        Column(header, arrow, audit, metric, (*own, of)[0], counted=counted)
        for header, arrow, metric, *own in columns
    )


LAST, AVG, BWT = _columns(
    "utility",
    *((name, UP, name.lower()) for name in ("Last", "Avg", "BWT")),
    counted="answers",
)
LIKELIHOODS = (
    *_columns("nll", ("PII NLL", UP, "nll", "pii")),
    *_columns("nll", ("Low-sens. NLL", DOWN, "nll", "low")),
    *_columns("nll", ("Canary NLL", UP, "nll", "canary"), counted="canaries"),
)
UNMATCHED = (
    "NLLs (nats a token) are unmatched: they compare checkpoints with each other, "
    "not identifiers with other text."
)
PER = "all contexts of a canary together"
"""What a canary's figure is over; by preset `paper` it is each context."""


def _tasks(report: Report) -> list[str]:
    rows = (r for r in report.results if (r.audit, r.metric) == ("utility", "accuracy"))
    groups = (row.grouping for row in rows)
    return list(dict.fromkeys(name for kind, name in groups if kind == "task"))


# --- panels ---------------------------------------------------------------------------


def _orders(report: Report) -> dict[str, tuple[str, ...]]:
    """Order of the tasks by series, of those that have all their stages."""
    found: dict[str, tuple[str, ...]] = {}
    for record in report.tables.get("accuracy_matrix", ()):
        if record.get("after"):
            name = str(record["checkpoint"])
            found[name] = (*found.get(name, ()), str(record["after"]))
    return found


def _order_of(report: Report, checkpoint: str) -> tuple[str, ...]:
    """Order that a series was trained in; empty where the report has none."""
    for name, order in _orders(report).items():
        if checkpoint in (name, entry_of(name)):
            return order
    return ()


def _numbered(report: Report) -> dict[tuple[str, ...], int]:
    """All orders of the report's series, numbered as they come."""
    orders = dict.fromkeys(_orders(report).values())
    return {order: k for k, order in enumerate(orders, start=1)}


def _by_order(report: Report, lines: Sequence[Line]) -> list[Panel]:
    parts: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        parts.setdefault(_order_of(report, line[0]), []).append(line)
    numbers = _numbered(report)
    return [
        Panel(tuple(part), label=f"Order {numbers[order]}" if order else "--")
        for order, part in parts.items()
    ]


def _orders_told(report: Report) -> str:
    return " ".join(
        f"Order {k}: {escaped(', '.join(order))}."
        for order, k in _numbered(report).items()
    )


def _by_base(report: Report, lines: Sequence[Line]) -> list[Panel]:
    parts: dict[str, list[Line]] = {}
    for line in lines:
        parts.setdefault(_base_of(report, line[0]), []).append(line)
    short = {base: base.rstrip("/").rpartition("/")[2] or base for base in parts}
    if len(set(short.values())) < len(short):
        short = {base: base for base in parts}
    return [
        Panel(tuple(part), heading=f"Base model: {escaped(short[base])}")
        for base, part in parts.items()
    ]


def _base_of(report: Report, checkpoint: str) -> str:
    """The base model as the report names it; of full weights, the checkpoint itself."""
    for one in report.checkpoints:
        series = series_of(one.name)
        if checkpoint in (one.name, series, entry_of(series)):
            return one.base or one.source
    return checkpoint


# --- the tables -----------------------------------------------------------------------

LAYOUTS = (
    Layout(
        "matched",
        "Selectivity at matched difficulty: NLL (nats a token) of annotated "
        "identifiers, of non-PII spans of the same examples that are as difficult "
        r"for the reference model, their difference $\Delta_{\mathrm{sel}}$, and "
        "its change since the reference, pair by pair.",
        _columns(
            "matched",
            (r"NLL\textsubscript{PII}", UP, "nll_pii"),
            (r"NLL\textsubscript{Matched}", "", "nll_control"),
            (r"$\Delta_{\mathrm{sel}}$", UP, "delta_sel"),
            (r"$\Delta_{\mathrm{sel}}$ change", UP, "delta_sel", "change"),
        ),
        ("matched",),
    ),
    Layout(
        "memory",
        "Change of the NLL (nats a token) of annotated identifiers since the "
        "reference, in trained rows and, of the same kinds, in rows never trained "
        "on; their difference is below 0 where trained ones are likelier than "
        "others of their kind.",
        _columns(
            "matched",
            ("Trained", "", "pii_change", "trained"),
            ("Never trained", "", "pii_change", "never-trained"),
            ("Difference", "", "memory"),
        ),
        ("matched",),
    ),
    Layout(
        "rank",
        "Ranks of the identifiers' tokens in the vocabulary, after their true "
        "prefix (1 = likeliest), and shares of tokens within the first ranks.",
        _columns(
            "rank",
            ("Rank mean", UP, "rank_mean"),
            ("Rank median", UP, "rank_median"),
            ("Top-1", DOWN, "top1_rate"),
            ("Top-5", DOWN, "top5_rate"),
            ("Top-10", DOWN, "top10_rate"),
            of="pii",
        ),
        ("rank",),
    ),
    Layout(
        "canary_nll",
        f"NLL (nats a token) of the planted canaries, over {PER}. It says nothing "
        "of their rank among other candidates.",
        _columns(
            "canary",
            ("Full NLL", UP, "nll", "full"),
            ("Password NLL", UP, "nll", "password"),
            ("SSN NLL", UP, "nll", "ssn"),
            counted="canaries",
        ),
        ("canary",),
    ),
    Layout(
        "canary_rank",
        f"Rank of the true canary among its candidates, over {PER}: mean rank, "
        "exposure (bits), and shares of first and of first ten ranks.",
        _columns(
            "canary",
            ("Full rank", UP, "rank_mean"),
            ("Exposure", DOWN, "exposure_mean"),
            ("Full Top-1", DOWN, "top1_rate"),
            ("Full Top-10", DOWN, "top10_rate"),
            of="full",
            counted="canaries",
        ),
        ("canary",),
    ),
    Layout(
        "twins",
        "Identifiers that nobody planted, ranked among fresh strings of their kind in "
        "their own context: exposure (bits) of trained ones and of those never trained "
        "on, what each rose since the base, and how much more trained ones did.",
        _columns(
            "twins",
            ("Exposure, trained", DOWN, "exposure_mean", "trained"),
            ("Exposure, never trained", "", "exposure_mean", "never-trained"),
            ("Rise, trained", DOWN, "rise", "trained"),
            ("Rise, never trained", "", "rise", "never-trained"),
            ("Rise beyond", DOWN, "beyond", "rise"),
            counted="identifiers",
        ),
        ("twins",),
    ),
    Layout(
        "mia",
        "Membership inference: AUC of every score, and of a classifier that sees "
        "the texts alone (0.5 = chance), and the share of members found at 5\\% "
        "false positives (chance: 0.05, or somewhat more where a single row sets the "
        "threshold) by the scores that a verdict rests on, means over tasks. Verdicts "
        "hold a score against the base and the texts too: these figures are its level, "
        "not its change.",
        (),
        ("mia",),
    ),
    Layout(
        "extract",
        "Extraction of identifiers after their true prefix: share written verbatim by "
        "greedy decoding, and the median number of tries until one is written with a "
        "chance of one half, by sampling plainly and from the 40 likeliest tokens.",
        _columns(
            "extract",
            ("Verbatim", DOWN, "greedy_rate"),
            ("Tries, plain", UP, "n50_median", "t1"),
            ("Tries, top 40", UP, "n50_median", "top40"),
            counted="identifiers",
        ),
        ("extract",),
    ),
    Layout(
        "noise",
        r"Relative change (\%) of the mean probability of identifiers and of "
        r"low-sensitivity text under Gaussian noise of standard deviation $\sigma$ on "
        "the input embeddings, and the gap between both (percentage points).",
        (),
        ("noise",),
    ),
    Layout(
        "ablations",
        f"Utility and likelihoods of all checkpoints. {UNMATCHED}",
        (LAST, AVG, BWT, *LIKELIHOODS),
        ("nll",),
    ),
    Layout(
        "task_orders",
        "Utility, likelihoods and membership inference (by loss) by the order of "
        f"the tasks. {UNMATCHED}",
        (
            *(LAST, AVG, BWT, *LIKELIHOODS),
            *_columns("mia", ("MIA AUC", CHANCE, "auc", "loss"), counted="rows"),
        ),
        ("utility", "nll"),
        split=_by_order,
        labels="Order",
    ),
    Layout(
        "backbones",
        f"Utility and likelihoods by base model. {UNMATCHED}",
        (LAST, AVG, BWT, *LIKELIHOODS),
        ("utility", "nll"),
        split=_by_base,
    ),
    Layout(
        "utility",
        "Accuracy on each task after the last stage, and over all tasks: Last "
        "(after the last stage), Avg (mean over stages of the mean over tasks seen "
        "so far) and BWT (mean change since each task was learned).",
        (BWT, LAST, AVG),
        ("utility",),
        by_task=True,
    ),
)
"""The paper's tables, in its order."""


SCORES = {
    "loss": "Loss",
    "response": "Response",
    "mink10": "Min-K10",
    "minkpp10": r"Min-K10\texttt{++}",
    "zlib": "zlib",
    "reference": "Reference",
    "wbc": "WBC",
    "combined": "Combined",
    "blind": "Texts alone",
}


def _membership(report: Report) -> tuple[Column, ...]:
    """The AUC of scores that claims may rest on, and of the paper's; some TPR."""
    found = _variants(report, "mia", "auc")
    # Texts alone come last: what all others are held against.
    scores = [score for score in SCORES if score in found]
    resting = set(carriers(report.findings, "mia").values()) or {
        "response",
        "reference",
    }
    auc = [(f"{SCORES[s]} AUC", CHANCE, "auc", s) for s in scores]
    tpr = [
        (rf"{SCORES[s]} TPR@5\% FPR", DOWN, "tpr_at_fpr_5", s)
        for s in scores
        if s in resting
    ]
    return _columns("mia", *auc, *tpr, counted="rows")


def _noises(report: Report) -> tuple[Column, ...]:
    """Both kinds of text and their gap at each size of the noise."""
    sigmas = sorted(_variants(report, "noise", "gap"), key=_size)
    kinds = (("PII", "dp_pii"), ("low-sens.", "dp_nonpii"), ("gap", "gap"))
    return _columns(
        "noise",
        *(
            (rf"$\sigma$ {escaped(sigma)}, {kind}", "", metric, sigma)
            for sigma in sigmas
            for kind, metric in kinds
        ),
    )


def _size(sigma: str) -> float:
    try:
        return float(sigma)
    except ValueError:
        return math.inf


def _variants(report: Report, audit: str, metric: str) -> list[str]:
    rows = (r for r in report.results if (r.audit, r.metric) == (audit, metric))
    return list(dict.fromkeys(row.of for row in rows if row.group == "pooled"))


def _varied(layout: Layout, report: Report) -> bool:
    """Whether the report differs in what a table is split by."""
    if layout.split is _by_order:
        return len(_numbered(report)) > 1
    if layout.split is _by_base:
        names = {row.checkpoint for row in report.results}
        return len({_base_of(report, name) for name in names}) > 1
    return True


def tables_of(report: Report) -> list[Layout]:
    """The tables that may be written of a report, in the order of the paper's."""
    tables = [_annotated(one) for one in LAYOUTS]
    if report.settings.get("preset") != "paper":
        tables = list(LAYOUTS)
    tasks = tuple(
        Column(escaped(t), UP, "utility", "accuracy", "last", f"task:{t}", "answers")
        for t in _tasks(report)
    )
    own = {"mia": _membership(report), "noise": _noises(report)}
    return [
        replace(
            one,
            columns=own.get(one.name, (*tasks * one.by_task, *one.columns)),
            remark=_orders_told(report) if one.split is _by_order else "",
        )
        for one in tables
        if _varied(one, report)
    ]


def _annotated(layout: Layout) -> Layout:
    """Canaries averaged over annotations, as the paper does."""
    columns = tuple(
        replace(one, of=f"{one.of}/annotation", counted="annotations")
        if one.audit == "canary"
        else one
        for one in layout.columns
    )
    return replace(
        layout, columns=columns, lead=layout.lead.replace(PER, "each context")
    )
