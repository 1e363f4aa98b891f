"""Statistics of the audits: pure numpy and SciPy, no model, no file.

``sa.stats.<function>`` are the public functions of this folder's files, found when
they are used.
"""

from __future__ import annotations

import importlib
from typing import Any

_PLACES = {
    "assignment": "assign_disjoint",
    "balance": "balance_rows ecdf_max ecdf_mean effective_clusters rosenbaum_bounds "
    "rosenbaum_gamma smd variance_ratio",
    "bootstrap": "benjamini_hochberg cluster_codes cluster_sums draw_weights holm "
    "max_t ratio_replicates sign_flip simultaneous_quantile "
    "weighted_quantile_replicates",
    "duplicates": "cluster_labels duplicate_groups near_duplicates",
    "intervals": "basic bca bootstrap_t clopper_pearson jackknife_t korn_graubard "
    "linearised_se median_estimate percentile_interval rate_estimate ratio_estimate",
    "matching": "dilate eligible_windows match_spans micro_nats "
    "non_overlapping_windows placebo_spans",
    "power": "clusters_needed mde mde_normal with_mde",
    "selectivity": "Windows delta_sel did did_test estimands placebo_test rtm_bias "
    "rtm_bias_estimate rtm_slope",
}
_OF = {name: file for file, names in _PLACES.items() for name in names.split()}

__all__ = sorted(_OF)


def __getattr__(name: str) -> Any:
    if name not in _OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
