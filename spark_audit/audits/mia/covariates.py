"""Differences of length and compressed size between members and non-members.

:mod:`~spark_audit.audits.mia.guards` warns of them, and the report has them as the
table ``mia_covariates``. A further covariate is a column of
:class:`~spark_audit.audits.mia.texts.WithoutModel` that :data:`COVARIATES` names.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import scipy

from spark_audit.results.audit_result import TableRecord
from spark_audit.stats.balance import smd

COVARIATES = ("length", "zlib_bytes")
"""Columns that are compared: characters of a text, and its bytes once compressed."""

COVARIATE_P = 0.01
"""A covariate differs if p is below this and its difference is large enough."""

COVARIATE_SMD = 0.1
"""Standardised mean difference above which a difference is large (Stuart 2010)."""


def covariate_table(facts: pd.DataFrame) -> Iterator[TableRecord]:
    """Yield the differences of length and compressed size between sides, by task.

    Parameters
    ----------
    facts
        One line per example: columns ``task``, ``cluster``, ``member`` (bool),
        ``length`` and ``zlib_bytes``.

    Yields
    ------
    ``task``, ``covariate``; ``ks`` and ``p`` of Kolmogorov-Smirnov, examples taken as
    independent; ``smd``, the mean of members minus that of non-members over the pooled
    SD (None where that is 0); and ``clusters``, the number of clusters of the side that
    has fewer. Examples without a value of the covariate do not count. A covariate with
    fewer than two examples on a side is left out.
    """
    for task, facts_of_task in facts.groupby("task", sort=False):
        for covariate in COVARIATES:
            compared = facts_of_task.dropna(subset=[covariate])
            values = compared[covariate].to_numpy(np.float64)  # (compared,)
            is_member = compared["member"].to_numpy(bool)  # (compared,)
            of_members = values[is_member]  # (members,)
            of_others = values[~is_member]  # (non-members,)

            # A spread needs two examples.
            if len(of_members) < 2 or len(of_others) < 2:
                continue

            test = scipy.stats.ks_2samp(of_members, of_others)

            # The standardised difference, which needs a spread (see stats/balance.py).
            variances = (np.var(of_members, ddof=1), np.var(of_others, ddof=1))
            pooled_sd = float(np.sqrt(sum(variances) / 2))

            difference: float | None = None
            if pooled_sd > 0:
                difference = smd(of_members, of_others, sd=pooled_sd)

            n_clusters_by_side = compared.groupby("member")["cluster"].nunique()
            yield {
                "task": task,
                "covariate": covariate,
                "ks": float(test.statistic),
                "p": float(test.pvalue),
                "smd": difference,
                "clusters": int(n_clusters_by_side.min()),
            }


def differs_by_covariate(record: TableRecord) -> bool:
    """Return whether the sides differ by a covariate significantly and by enough.

    Parameters
    ----------
    record
        A record of :func:`covariate_table`. Without a spread on both sides there is no
        ``smd``, and p alone decides whether two constants differ.
    """
    is_large = record["smd"] is None or abs(record["smd"]) > COVARIATE_SMD
    return bool(is_large and record["p"] < COVARIATE_P)
