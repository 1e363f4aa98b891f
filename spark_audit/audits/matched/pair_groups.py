"""Groups of matched pairs: all of train rows, by task and type, and those of test rows.

A pair consists of an identifier and its control, a window of the same row and length
that was equally hard for the reference model. A group also holds all windows that could
have become a control of its identifiers: regression to the mean is estimated on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from spark_audit.audits.supervision import NOT_READ
from spark_audit.stats import bootstrap, intervals, selectivity
from spark_audit.stats.estimate import Estimate

PAIR_COLUMNS = ["role", "n_tokens", "ref_sum", "ref_mean", "cell", "cluster_code"]
"""Columns of identifiers, controls and windows in this file; the index is that of the
unit in the evidence. They are as few as possible, since there can be many windows.

``ref_sum`` is the summed NLL on the reference, nats, ``ref_mean`` the same per token;
``cell`` numbers pairs of example and length, ``cluster_code`` the clusters of a split.
"""


@dataclass(frozen=True)
class PairGroup:
    """Pairs and windows of one group, for all checkpoints.

    Attributes
    ----------
    name
        Name of the group, such as ``pooled`` or ``type:NAME``.
    pii, control
        The identifiers of the pairs and their controls, in the same order
        (:data:`PAIR_COLUMNS`).
    pool
        The windows that could have been controls: ``n_tokens`` alone.
    reference_means
        Mean NLL on the reference, nats per token, of the windows and of all identifiers
        of the group, those without a control too.
    """

    name: str
    pii: pd.DataFrame
    control: pd.DataFrame
    pool: pd.DataFrame
    reference_means: selectivity.Windows

    @property
    def n_clusters(self) -> int:
        """Return the number of clusters of the split, also of those without a pair."""
        return self.reference_means.n_clusters

    @cached_property
    def gap_by_pair(self) -> np.ndarray:
        """Return identifier minus control on the reference, shape ``(pairs,)``, nats.

        Matching leaves these gaps. Above 0, the identifier was harder.
        """
        return np.asarray(self.pii["ref_sum"].to_numpy() - self.control["ref_sum"])

    @property
    def residual(self) -> float:
        """Return Delta_sel of the reference, nats per token: the residual of matching.

        It is 0 without pairs.
        """
        return float(self.gap_by_pair.sum() / max(self.pii["n_tokens"].sum(), 1))

    def mean_per_token(self, sum_by_pair: np.ndarray) -> intervals.Estimand:
        """Return the mean per token over all pairs.

        The sums of the estimand have the columns nats and tokens, by cluster.

        Parameters
        ----------
        sum_by_pair
            Shape ``(pairs,)``, nats: a sum over the tokens of each pair.
        """
        n_tokens = self.pii["n_tokens"]
        columns = np.stack([sum_by_pair, n_tokens], axis=1)  # (pairs, 2)
        sums = bootstrap.cluster_sums(
            columns, self.pii["cluster_code"], self.n_clusters
        )  # (clusters, 2)
        return intervals.Estimand(sums, intervals.ratio, int(n_tokens.sum()))

    def regression_to_mean(
        self, nll: np.ndarray, baseline_nll: np.ndarray | None = None
    ) -> intervals.Estimand | Estimate:
        """Return the effect of regression to the mean alone, nats per token.

        It is R1 of :mod:`spark_audit.stats.selectivity`, on Delta_sel or (with a
        baseline) on the DiD. Where it cannot be computed, the estimate says why.

        Parameters
        ----------
        nll, baseline_nll
            Shape ``(units,)``, nats: summed NLL of all units of the evidence.
        """
        n_tokens = self.pool["n_tokens"].to_numpy()  # (windows,)
        mean_nll = nll[self.pool.index] / n_tokens  # (windows,), nats per token
        if baseline_nll is None:
            return selectivity.rtm_bias(self.reference_means, mean_nll)

        baseline_mean_nll = baseline_nll[self.pool.index] / n_tokens  # (windows,)
        return selectivity.rtm_bias(self.reference_means, mean_nll, baseline_mean_nll)


def pair_groups(units: pd.DataFrame) -> Iterator[PairGroup]:
    """Yield train rows pooled, by task and by type, and test rows if there are any.

    Identifiers that training cut off in all of their trained rows are in no group, even
    if test rows contain them: they are neither trained nor held out.

    Parameters
    ----------
    units
        Units of rows of the manifest, both splits.
    """
    is_of_pairs = units["role"].isin(["pii", "control", "unmatched", "window"])
    units = _without_cut_off(units[is_of_pairs])

    # A cell is an example and a length. It holds the windows that could replace a span.
    units = units.assign(
        cell=units.groupby(["example", "n_tokens"]).ngroup(),
        ref_mean=units["ref_sum"] / units["n_tokens"],
    )

    # Clusters are numbered by split, since the splits are resampled separately.
    for split, name_of_all in (("train", "pooled"), ("test", "split:test")):
        of_split = units[units["split"] == split]
        codes, clusters = pd.factorize(of_split["cluster"], sort=True)
        of_split = of_split.assign(cluster_code=codes)
        n_clusters = len(clusters)

        # Identifiers and controls by the number of their pair: so both come in the
        # same order.
        is_window = of_split["role"] == "window"
        spans = of_split[~is_window].sort_values("pair", kind="stable")
        windows = of_split.loc[is_window, PAIR_COLUMNS]

        # Pooled train rows are a group even without identifiers.
        if split == "train" or len(spans):
            yield _pair_group(name_of_all, spans, windows, n_clusters)

        if split == "test":
            continue
        for column in ("task", "type"):
            for value, of_value in spans.groupby(column):
                yield _pair_group(f"{column}:{value}", of_value, windows, n_clusters)


def _without_cut_off(units: pd.DataFrame) -> pd.DataFrame:
    """Return the units without identifiers of dose ``NOT_READ`` and their controls.

    Training cut these off in all of their rows: see
    :mod:`spark_audit.audits.supervision`.
    """
    is_identifier = units["role"].isin(["pii", "unmatched"])
    is_cut_off = is_identifier & (units["dose"] == NOT_READ)

    # The control of a cut-off identifier is left out with it.
    pairs = units.loc[is_cut_off & (units["role"] == "pii"), "pair"]
    is_their_control = (units["role"] == "control") & units["pair"].isin(pairs)
    return units[~is_cut_off & ~is_their_control]


def _pair_group(
    name: str, spans: pd.DataFrame, windows: pd.DataFrame, n_clusters: int
) -> PairGroup:
    """Return one group of identifiers and controls, with the windows of their cells.

    Parameters
    ----------
    spans
        Identifiers (with and without a control) and controls, sorted by pair:
        :data:`PAIR_COLUMNS` and others.
    windows
        Windows of the whole split: :data:`PAIR_COLUMNS`.
    n_clusters
        Clusters of the whole split.
    """
    pool = windows[windows["cell"].isin(spans["cell"])]
    spans = spans[PAIR_COLUMNS]

    # Regression to the mean depends on all identifiers, matched or not.
    identifiers = spans[spans["role"] != "control"]
    reference_means = selectivity.Windows(
        pool=pool["ref_mean"].to_numpy(),
        pool_clusters=pool["cluster_code"].to_numpy(),
        spans=identifiers["ref_mean"].to_numpy(),
        span_tokens=identifiers["n_tokens"].to_numpy(),
        span_clusters=identifiers["cluster_code"].to_numpy(),
        n_clusters=n_clusters,
        pool_cells=pool["cell"].to_numpy(),
        span_cells=identifiers["cell"].to_numpy(),
    )
    return PairGroup(
        name=name,
        pii=spans[spans["role"] == "pii"],
        control=spans[spans["role"] == "control"],
        pool=pool[["n_tokens"]],
        reference_means=reference_means,
    )
