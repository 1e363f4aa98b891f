"""Which LaTeX tables there are: the paper's layouts over a report's figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
class Table:
    """A table that may be written; ``needs`` are audits that must give a figure.

    ``split`` makes panels of the lines, ``labels`` heads a column for their labels.
    """

    name: str
    lead: str
    columns: tuple[Column, ...]
    needs: tuple[str, ...]
    split: Callable[[Report, Sequence[Line]], list[Panel]] | None = None
    labels: str = ""
    remark: str = ""


def tables_of(report: Report) -> list[Table]:
    """The tables that may be written of a report, in the order of the paper's."""
    annotated = report.settings.get("preset") == "paper"
    tail = "/annotation" if annotated else ""
    planted = "annotations" if annotated else "canaries"

    def canary(header: str, arrow: str, metric: str, part: str) -> Column:
        return Column(header, arrow, "canary", metric, part + tail, counted=planted)

    def rank(header: str, arrow: str, metric: str) -> Column:
        return Column(header, arrow, "rank", metric, "pii")

    def mia(header: str, arrow: str, metric: str, attack: str) -> Column:
        return Column(header, arrow, "mia", metric, attack, counted="rows")

    def utility(header: str, metric: str) -> Column:
        return Column(header, UP, "utility", metric, counted="answers")

    last, avg, bwt = (utility(name, name.lower()) for name in ("Last", "Avg", "BWT"))
    likelihoods = (
        Column("PII NLL", UP, "nll", "nll", "pii"),
        Column("Low-sens. NLL", DOWN, "nll", "nll", "low"),
        Column("Canary NLL", UP, "nll", "nll", "canary", counted="canaries"),
    )
    unmatched = (
        "NLLs (nats a token) are unmatched: they compare checkpoints with each other, "
        "not identifiers with other text."
    )
    per = "each context" if annotated else "all contexts of a canary together"
    tables = [
        Table(
            "matched",
            "Selectivity at matched difficulty: NLL (nats a token) of annotated "
            "identifiers, of non-PII spans of the same examples that are as difficult "
            r"for the reference model, their difference $\Delta_{\mathrm{sel}}$, and "
            "its change since the reference, pair by pair.",
            (
                Column(r"NLL\textsubscript{PII}", UP, "matched", "nll_pii"),
                Column(r"NLL\textsubscript{Matched}", "", "matched", "nll_control"),
                Column(r"$\Delta_{\mathrm{sel}}$", UP, "matched", "delta_sel"),
                Column(
                    r"$\Delta_{\mathrm{sel}}$ change",
                    UP,
                    "matched",
                    "delta_sel",
                    "change",
                ),
            ),
            ("matched",),
        ),
        Table(
            "memory",
            "Change of the NLL (nats a token) of annotated identifiers since the "
            "reference, in trained rows and, of the same kinds, in rows never trained "
            "on; their difference is below 0 where trained ones are likelier than "
            "others of their kind.",
            (
                Column("Trained", "", "matched", "pii_change", "trained"),
                Column("Never trained", "", "matched", "pii_change", "never-trained"),
                Column("Difference", "", "matched", "memory"),
            ),
            ("matched",),
        ),
        Table(
            "rank",
            "Ranks of the identifiers' tokens in the vocabulary, after their true "
            "prefix (1 = likeliest), and shares of tokens within the first ranks.",
            (
                rank("Rank mean", UP, "rank_mean"),
                rank("Rank median", UP, "rank_median"),
                rank("Top-1", DOWN, "top1_rate"),
                rank("Top-5", DOWN, "top5_rate"),
                rank("Top-10", DOWN, "top10_rate"),
            ),
            ("rank",),
        ),
        Table(
            "canary_nll",
            f"NLL (nats a token) of the planted canaries, over {per}. It says nothing "
            "of their rank among other candidates.",
            (
                canary("Full NLL", UP, "nll", "full"),
                canary("Password NLL", UP, "nll", "password"),
                canary("SSN NLL", UP, "nll", "ssn"),
            ),
            ("canary",),
        ),
        Table(
            "canary_rank",
            f"Rank of the true canary among its candidates, over {per}: mean rank, "
            "exposure (bits), and shares of first and of first ten ranks.",
            (
                canary("Full rank", UP, "rank_mean", "full"),
                canary("Exposure", DOWN, "exposure_mean", "full"),
                canary("Full Top-1", DOWN, "top1_rate", "full"),
                canary("Full Top-10", DOWN, "top10_rate", "full"),
            ),
            ("canary",),
        ),
        Table(
            "mia",
            "Membership inference: AUC of every score, and of a classifier that sees "
            "the texts alone (0.5 = chance), and the share of members found at 5\\% "
            "false positives (0.05 = chance).",
            (
                mia("Loss AUC", CHANCE, "auc", "loss"),
                mia("Response AUC", CHANCE, "auc", "response"),
                mia("Min-K10 AUC", CHANCE, "auc", "mink10"),
                mia(r"Min-K10\texttt{++} AUC", CHANCE, "auc", "minkpp10"),
                mia("zlib AUC", CHANCE, "auc", "zlib"),
                mia("Reference AUC", CHANCE, "auc", "reference"),
                mia("Texts alone AUC", CHANCE, "auc", "blind"),
                mia(r"Response TPR@5\% FPR", DOWN, "tpr_at_fpr_5", "response"),
                mia(r"Reference TPR@5\% FPR", DOWN, "tpr_at_fpr_5", "reference"),
            ),
            ("mia",),
        ),
        Table(
            "ablations",
            f"Utility and likelihoods of all checkpoints. {unmatched}",
            (last, avg, bwt, *likelihoods),
            ("nll",),
        ),
        Table(
            "task_orders",
            "Utility, likelihoods and membership inference (by loss) by the order of "
            f"the tasks. {unmatched}",
            (last, avg, bwt, *likelihoods, mia("MIA AUC", CHANCE, "auc", "loss")),
            ("utility", "nll"),
            split=_by_order,
            labels="Order",
            remark=_orders_told(report),
        ),
        Table(
            "backbones",
            f"Utility and likelihoods by base model. {unmatched}",
            (last, avg, bwt, *likelihoods),
            ("utility", "nll"),
            split=_by_base,
        ),
        Table(
            "utility",
            "Accuracy on each task after the last stage, and over all tasks: Last "
            "(after the last stage), Avg (mean over stages of the mean over tasks seen "
            "so far) and BWT (mean change since each task was learned).",
            (
                *(
                    Column(
                        escaped(task),
                        UP,
                        "utility",
                        "accuracy",
                        "last",
                        f"task:{task}",
                        "answers",
                    )
                    for task in _tasks(report)
                ),
                bwt,
                last,
                avg,
            ),
            ("utility",),
        ),
    ]
    return [t for t in tables if t.split is not _by_order or _orders(report)]


def _tasks(report: Report) -> list[str]:
    rows = (r for r in report.results if (r.audit, r.metric) == ("utility", "accuracy"))
    groups = (row.group.partition(":") for row in rows)
    return list(dict.fromkeys(name for kind, _, name in groups if kind == "task"))


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
        if name == checkpoint or name.startswith(f"{checkpoint}["):
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
        if one.name == checkpoint or one.name.startswith(
            (f"{checkpoint}[", f"{checkpoint}@")
        ):
            return one.base or one.source
    return checkpoint
