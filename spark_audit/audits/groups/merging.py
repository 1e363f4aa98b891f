"""Which groups a report shows: none from which a small one could be worked out.

A group with fewer than :data:`MIN_CLUSTERS_TO_PUBLISH` clusters on either side is not
shown. If it were the only one, its figure would follow from that of all rows and those
of the other groups. So the small groups become one, together with the smallest group
that is left and as many more as it needs to have enough clusters itself. All shown
groups then add up to all rows, and no two sets of them differ by few clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from spark_audit.audits.groups.field import NOT_STATED, OTHER_GROUPS
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH


class ShownGroups(NamedTuple):
    """The groups that a report shows.

    Attributes
    ----------
    masks
        Name of a group -> its units, shape ``(units,)`` bool. Empty: fewer than two
        groups have enough clusters.
    n_merged
        Groups that are shown together as one.
    """

    masks: Mapping[str, np.ndarray]
    n_merged: int


def shown_groups(
    names: np.ndarray,
    clusters: np.ndarray,
    is_trained: np.ndarray,
    compared: Callable[[np.ndarray], np.ndarray],
) -> ShownGroups:
    """Return the groups that are shown, small ones merged.

    Parameters
    ----------
    names
        Shape ``(units,)``: the group of each unit; empty: none.
    clusters
        Shape ``(units,)``: its cluster.
    is_trained
        Shape ``(units,)``, bool: its side.
    compared
        Mask of a group's units -> mask of those among them that can be compared with
        the other side, both ``(units,)`` bool.
    """
    members = {name: names == name for name in sorted({*names} - {""}, key=_order)}
    codes = np.unique(clusters.astype(str), return_inverse=True)[1]  # (units,)

    def clusters_of_smaller_side(mask: np.ndarray) -> int:
        """Return the clusters on the side of a group that has fewer."""
        is_compared = compared(mask)
        sides = (is_compared & is_trained, is_compared & ~is_trained)
        return min(len(np.unique(codes[side])) for side in sides)

    small = [
        name
        for name, mask in members.items()
        if clusters_of_smaller_side(mask) < MIN_CLUSTERS_TO_PUBLISH
    ]
    if not small:
        return ShownGroups(members if len(members) > 1 else {}, n_merged=0)

    # The smallest trained side goes first, as where a figure of few is withheld.
    others = [name for name in members if name not in small]
    others.sort(key=lambda name: len(np.unique(codes[members[name] & is_trained])))
    merged = [*small]
    mask = np.any([members[name] for name in merged], axis=0)
    for name in others:
        merged.append(name)
        mask = mask | members[name]
        if clusters_of_smaller_side(mask) >= MIN_CLUSTERS_TO_PUBLISH:
            break

    masks = {name: of_group for name, of_group in members.items() if name not in merged}
    masks[OTHER_GROUPS] = mask
    return ShownGroups(masks if len(masks) > 1 else {}, n_merged=len(merged))


def _order(name: str) -> tuple[bool, str]:
    """Return the sort key of a group: by name, rows without a value last."""
    return name == NOT_STATED, name
