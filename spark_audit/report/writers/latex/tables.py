"""Which LaTeX tables there are: the paper's layouts over a report's figures."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_audit.audits.claims import carriers
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
class Layout:
    """A table that may be written; ``needs`` are audits that must give a figure.

    ``by_task`` puts the accuracy of every task before its columns.
    """

    name: str
    lead: str
    columns: tuple[Column, ...]
    needs: tuple[str, ...]
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
    "NLLs (nats per token) are unmatched: they compare checkpoints with each other, "
    "not identifiers with other text."
)
PER = "all contexts of a canary together"
"""What a canary's figure is over; by preset `paper` it is each context."""


def _tasks(report: Report) -> list[str]:
    rows = (r for r in report.results if (r.audit, r.metric) == ("utility", "accuracy"))
    groups = (row.grouping for row in rows)
    return list(dict.fromkeys(name for kind, name in groups if kind == "task"))


# --- the tables -----------------------------------------------------------------------

LAYOUTS = (
    Layout(
        "matched",
        "Selectivity at matched difficulty: NLL (nats per token) of annotated "
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
        "ablations",
        f"Utility and likelihoods of all checkpoints. {UNMATCHED}",
        (LAST, AVG, BWT, *LIKELIHOODS),
        ("nll",),
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


def _variants(report: Report, audit: str, metric: str) -> list[str]:
    rows = (r for r in report.results if (r.audit, r.metric) == (audit, metric))
    return list(dict.fromkeys(row.of for row in rows if row.group == "pooled"))


def tables_of(report: Report) -> list[Layout]:
    """The tables that may be written of a report, in the order of the paper's."""
    tables = [_annotated(one) for one in LAYOUTS]
    if report.settings.get("preset") != "paper":
        tables = list(LAYOUTS)
    tasks = tuple(
        Column(escaped(t), UP, "utility", "accuracy", "last", f"task:{t}", "answers")
        for t in _tasks(report)
    )
    return [
        replace(one, columns=_membership(report))
        if one.name == "mia"
        else replace(one, columns=(*tasks * one.by_task, *one.columns))
        for one in tables
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
