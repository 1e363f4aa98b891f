"""What the membership audit gives, and what its evidence holds."""

from __future__ import annotations

from spark_audit.audits.contract import ANY, Metric
from spark_audit.audits.mia.scores import ATTACKS

OFS = (*ATTACKS, "blind")
FPRS = {"tpr_at_fpr_5": 0.05, "tpr_at_fpr_1": 0.01, "tpr_at_fpr_0.1": 0.001}

METRICS = (
    Metric(
        "auc",
        "AUC",
        bounds=(0.0, 1.0),
        learned=1,
        variants=OFS,
        missing=ATTACKS,
        null=0.5,
        glance={ANY: "membership AUC, of the score that the verdict rests on"},
        headline={"loss": "AUC of loss", "reference": "AUC of reference"},
        definitions={
            "AUC, TPR at FPR": "every score is higher for a more likely member; the "
            "threshold is the last whose false positive rate stays within the budget.",
            "texts alone": "the best of classifiers over words, character n-grams, "
            "length, and the untrained model's scores of a text, out of fold; which is "
            "best is chosen inside each fold. Membership is claimed only of a score "
            "whose AUC rose since the untrained model and is above that and above 0.5, "
            "over the same rows, by more than chance. `blind` is the first of them, "
            "tested by permutations. `invalid` is a figure only where labels differ "
            "between the sides, or many near-duplicates stand on both.",
        },
    ),
    *(
        Metric(
            name,
            f"TPR at {100 * fpr:g}% FPR",
            bounds=(0.0, 1.0),
            learned=1,
            variants=OFS,
        )
        for name, fpr in FPRS.items()
    ),
)

COLUMNS = (
    *("checkpoint", "example", "task", "cluster", "label", "length", "zlib_bytes"),
    *("duplicates_left", "duplicates_removed", "member", *ATTACKS),
    *("blind", "blind_auc", "blind_p", "blind_null", "blind_null_low"),
    *("blind_null_high", "blind_permutations", "blind_rows", "texts", "dose"),
)
