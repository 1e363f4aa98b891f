"""Changes of the NLL of other text, with which identifiers are compared.

The change of low-sensitivity text is the drift of the checkpoint, which any training
causes. The change of identifiers minus that of text that looks alike excludes a change
of, say, all digits or all capital letters. All are in nats per token; below 0, a text
became likelier.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from spark_audit.audits.matched.unit_records import CLASS_NAMES
from spark_audit.stats import bootstrap, intervals
from spark_audit.stats.estimate import Estimate

NO_LOW = "the drift of low-sensitivity text is not known"

NONE_ALIKE = "no other text has tokens of the same classes as these identifiers"

MIN_CLUSTERS_OF_CLASS = 2
"""Number of clusters that must contain other tokens of a class."""


def pooled_change(spans: pd.DataFrame, change: np.ndarray) -> Estimate:
    """Return the change of the NLL of some spans, nats per token.

    Parameters
    ----------
    spans
        Units by their indices in the evidence: ``n_tokens``, ``cluster``.
    change
        Shape ``(units,)``: change of the summed NLL of all units, nats.
    """
    columns = np.stack([change[spans.index], spans["n_tokens"]], axis=1)  # (spans, 2)
    codes, _ = pd.factorize(spans["cluster"], sort=True)
    nats, tokens = bootstrap.cluster_sums(columns, codes).T  # each (clusters,)
    return intervals.ratio_estimate(nats, tokens)


def low_drift(train: pd.DataFrame, change: np.ndarray) -> Estimate:
    """Return the change of the NLL of low-sensitivity text, nats per token.

    Parameters
    ----------
    train
        Units of train rows.
    change
        Shape ``(units,)``: change of the NLL of all units, nats.
    """
    low = train[train["role"] == "low"]
    if low.empty:
        return Estimate.missing(NO_LOW)
    return pooled_change(low, change)


def change_beyond_alike(train: pd.DataFrame, change: np.ndarray) -> Estimate:
    """Return the change of matched identifiers minus that of text that looks alike.

    Text looks alike by its classes of tokens (digits, capitals, letters, marks). The
    expected change of an identifier is the mean change of other tokens of its classes,
    weighted by its tokens of each class. An identifier is used if all of its classes
    have other tokens in :data:`MIN_CLUSTERS_OF_CLASS` clusters. The unit is nats per
    token.

    Parameters
    ----------
    train
        Units of train rows.
    change
        Shape ``(units,)``: change of the NLL of all units, nats.
    """
    identifiers = train[train["role"] == "pii"]
    alike = train[train["role"] == "alike"]

    # Classes with other tokens in enough clusters. The type of `alike` is a class.
    n_clusters = alike.groupby("type")["cluster"].nunique()
    letters = [
        letter
        for letter in CLASS_NAMES
        if n_clusters.get(letter, 0) >= MIN_CLUSTERS_OF_CLASS
    ]
    count_columns = [CLASS_NAMES[letter] for letter in letters]
    rare_columns = [name for name in CLASS_NAMES.values() if name not in count_columns]

    # Identifiers with tokens of other classes cannot be compared.
    has_common_tokens_only = (identifiers[rare_columns] == 0).all(axis=1)
    used = identifiers[has_common_tokens_only]
    if used.empty:
        return Estimate.missing(NONE_ALIKE)

    # Per unit: nats and tokens of identifiers, their tokens by class (0 for `alike`),
    # and nats and tokens of other text by class.
    units = pd.concat([used, alike])
    is_identifier = (units["role"] == "pii").to_numpy()[:, None]  # (units, 1)
    is_of_class = units["type"].to_numpy()[:, None] == np.array(letters, object)
    is_other = ~is_identifier & is_of_class  # (units, classes)
    nats = change[units.index][:, None]  # (units, 1)
    tokens = units[["n_tokens"]].to_numpy()  # (units, 1)
    columns = np.hstack(
        [
            is_identifier * nats,
            is_identifier * tokens,
            units[count_columns],
            is_other * nats,
            is_other * tokens,
        ]
    )  # (units, 2 + 3 * classes)
    codes, _ = pd.factorize(units["cluster"])
    sums = bootstrap.cluster_sums(columns, codes)  # (clusters, 2 + 3 * classes)

    def beyond_expected(totals: np.ndarray) -> np.ndarray:
        """Map totals ``(..., 2 + 3 * classes)`` to nats per token ``(...)``.

        An identifier's tokens of a class are expected to change as the mean token of
        that class does.
        """
        counts, class_nats, class_tokens = np.split(totals[..., 2:], 3, axis=-1)
        expected = (counts * class_nats / class_tokens).sum(axis=-1)
        return np.asarray((totals[..., 0] - expected) / totals[..., 1])

    # The note states the number of identifiers that are left out.
    n_tokens = int(used["n_tokens"].sum())
    estimate = intervals.estimate_of(sums, beyond_expected, n=n_tokens)
    n_left_out = len(identifiers) - len(used)
    if n_left_out:
        note = f"{n_left_out} of {len(identifiers)} identifiers left out: {NONE_ALIKE}"
        estimate = estimate.noting(note)
    return estimate
