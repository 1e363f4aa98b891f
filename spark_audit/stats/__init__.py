"""Statistics of the audits: pure numpy and SciPy, no model, no file.

``sa.stats.<function>`` are the public functions of this folder's files, found when
they are used.
"""

from __future__ import annotations

import importlib
from typing import Any

_PLACES = {
    "accuracy": "Answers accuracy_difference accuracy_estimate accuracy_metrics "
    "cluster_shares stratified_weights task_weights",
    "assignment": "assign_disjoint",
    "balance": "balance_rows ecdf_max ecdf_mean effective_clusters smd variance_ratio",
    "bootstrap": "benjamini_hochberg cluster_codes cluster_sums draw_weights holm "
    "max_t ratio_replicates sign_flip simultaneous_quantile "
    "weighted_quantile_replicates",
    "duplicates": "cluster_labels duplicate_groups near_duplicates",
    "epsilon": "candidate_guess_bound largest_exposure one_run_bound two_sided_bound",
    "exposure": "candidate_ranks chance_mde dose_trend exposure_bits "
    "extrapolated_exposure interpolated_exposure lower_tail_exposure null_mean "
    "null_moments posterior_bits top_k top_k_credit top_k_mde uniformity",
    "extraction": "decoded_logp extraction_probability n_p n_p_counts top_k_logp",
    "intervals": "basic bca bootstrap_t clopper_pearson jackknife_t korn_graubard "
    "linearised_se median_estimate percentile_interval rate_estimate ratio_estimate",
    "matching": "dilate eligible_windows match_spans micro_nats "
    "non_overlapping_windows placebo_spans",
    "memory": "Sides memory",
    "power": "clusters_needed mde mde_normal with_mde",
    "roc": "auc chance_band chance_p delong paired_delong roc_curve split_tpr tost "
    "tpr_at_fpr",
    "roc_clusters": "Design auc_difference auc_estimate auc_replicates auc_test "
    "chance tpr_estimate tpr_replicates",
    "selectivity": "Windows delta_sel did estimands rtm_bias rtm_bias_estimate "
    "rtm_slope unlike_drift",
}
_OF = {name: file for file, names in _PLACES.items() for name in names.split()}

__all__ = sorted(_OF)


def __getattr__(name: str) -> Any:
    if name not in _OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
