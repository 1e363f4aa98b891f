"""What the terms of a report mean: every format that has room says the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spark_audit.report.tables import METHODS
from spark_audit.results import Report
from spark_audit.stats.selectivity import UNLIKE

DEFINITIONS: Mapping[str, Sequence[tuple[str, str]]] = {
    "": (
        ("NLL", "mean negative log-likelihood, nats a token; lower = likelier."),
        (
            "MDE",
            "the smallest effect that this many clusters detect with 80% power: "
            "smaller ones cannot be excluded.",
        ),
    ),
    "matched": (
        (
            "Delta_sel",
            "NLL of annotated identifiers minus NLL of their controls: non-PII spans "
            "of the same example, of equal token count and equally difficult for the "
            "reference model (SPARK, Difficulty-Matched Selectivity Evaluation).",
        ),
        (
            "change since reference",
            "Delta_sel minus what matching left over on the reference itself, pair by "
            "pair. Ordinary fine-tuning moves it: formats are learned, and kinds of "
            "text drift unequally.",
        ),
        (
            "memory",
            "change of the NLL of identifiers in trained rows since the reference, "
            "minus that of identifiers of the same kinds (type; where injected, "
            "format and sentence too) in rows never trained on, which stand in no "
            "trained row. 0 without memory; below 0, what was trained on is likelier "
            "than others of its kind; above 0, less likely, which tells it as well. "
            "Where the two were unequally hard on the reference already, the "
            "difference must clear that too.",
        ),
        (
            "R1",
            "what one mechanism, regression to the mean, would give if all text "
            "drifted alike: (1 - beta) times the reference gap between identifiers "
            "and other text; for the change, without what matching left over. Drift "
            "that depends on difficulty or on the kind of token gives other values, "
            "often of the other sign: R1 is no null, and nothing is tested against it.",
        ),
        (
            "DiD",
            "Delta_sel of a checkpoint minus that of the baseline, paired by source. "
            "Nothing is claimed of it where the drift of low-sensitivity text of the "
            f"same rows differs between the two by more than {UNLIKE:.0%} of the DiD "
            "and the paired interval of that difference excludes 0: unequal drift "
            "can make a DiD. Where it does not, identifiers moved; why is not shown.",
        ),
    ),
    "rank": (
        (
            "rank",
            "1 + the number of usable vocabulary entries with a strictly greater "
            "logit; `pii` are tokens of matched spans, `control` those of their "
            "controls, `pii_all` those of every annotated identifier.",
        ),
    ),
    "canary": (
        (
            "exposure",
            "log2(N) - log2(rank) of the true string among N candidates, itself "
            "included; `full` etc. rank once over all contexts, `full/annotation` "
            "etc. rank in each context (SPARK's averaging). Ties count as on average "
            "over random orders, in bounds of epsilon against the attacker; where all "
            "are tied nothing is resolvable.",
        ),
    ),
    "mia": (
        (
            "AUC, TPR at FPR",
            "every score is higher for a more likely member; the threshold is the "
            "last whose false positive rate stays within the budget.",
        ),
        (
            "texts alone (`blind`)",
            "a classifier that sees the texts and no model, out of fold. Membership is "
            "claimed only of a score whose AUC rose since the untrained model and is "
            "above the classifier's, over the same rows, by more than chance; "
            "`invalid` is a figure only where labels differ between the sides.",
        ),
    ),
    "noise": (
        (
            "change under noise",
            "100 (mean p with noise / mean p without - 1); gap = other text minus "
            "PII, in points; `of` is the scale of the Gaussian noise on input "
            "embeddings.",
        ),
    ),
    "utility": (
        (
            "Last, Avg, BWT",
            "mean accuracy after the last stage; mean over stages of the mean over "
            "tasks seen so far; mean change since each task was learned.",
        ),
    ),
    "extract": (
        (
            "verbatim, n_0.5",
            "share of spans that greedy decoding writes after their true prefix; "
            "draws after which a span has come up with probability one half. Both "
            "hold for one tokenisation: lower bounds of what can be extracted.",
        ),
    ),
}


def definitions(report: Report) -> Iterator[tuple[str, str]]:
    """Term and meaning, of the audits that the report holds."""
    audits = dict.fromkeys(row.audit for row in report.results)
    for audit in ("", *audits):
        yield from DEFINITIONS.get(audit, ())
    yield intervals(report)


def intervals(report: Report) -> tuple[str, str]:
    """What the report's intervals are over, and how they were made."""
    used = {row.interval for row in report.results} - {"none"}
    names = ", ".join(METHODS.get(name, name) for name in sorted(used)) or "none"
    return "intervals", (
        "95%, over clusters (rows that share a source, a canary, an identifier or "
        f"nearly all words), by {names}. Percentile bootstrap limits stand in "
        "tables/results.csv as parity_low and parity_high."
    )
