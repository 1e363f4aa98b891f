"""Rules that decide which figures of a report are withheld, and why.

With the base model, anybody can find the text of a span from its NLL. A figure of few
clusters is nearly the NLL of one span, so it is withheld. As statistical offices do, we
also withhold figures from which a withheld one could be computed.

====  ===============================================  =========================
Rule  A figure is withheld where ...                   Why, as the row says
====  ===============================================  =========================
1     it is of fewer clusters than                     ``WITHHELD``
      ``MIN_CLUSTERS_TO_PUBLISH``.
2     it is of all identifiers, and those that its     ``WITHHELD_NOTE``
      figure of the matched ones leaves out are few.
3     it follows from a figure that rule 1 or 2        ``WITHHELD_NOTE``
      withholds (``Place.shown_together``).
4     it is the smallest group left of a partition     ``WITHHELD_NOTE``
      in which a group is withheld.
====  ===============================================  =========================

Rule 4 is against subtraction: if one group alone were withheld, it would follow from
the pooled figure and the other groups. No rule withholds figures that concern no person
(planted canaries, counts of right answers).

A further rule is a line of the table above and a step of :func:`reasons_to_withhold`.
The relations between figures that rules use are properties of ``Place``
(``figure_place.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_audit.audits import about
from spark_audit.report.disclosure.figure_place import Place
from spark_audit.results import Row
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH, WITHHELD, WITHHELD_NOTE


def reasons_to_withhold(rows: Sequence[Row]) -> list[str | None]:
    """Return the reason to withhold the figures of each row; None: they are shown.

    Parameters
    ----------
    rows
        All rows and contrasts of a report, since the rules compare them.

    Returns
    -------
    list of str or None
        ``WITHHELD``, ``WITHHELD_NOTE`` or None for each row, in the same order.
    """
    places = [Place.of_row(row) for row in rows]
    indices_by_place: dict[Place, list[int]] = {}
    for index, row in enumerate(rows):
        if not about(row.audit).is_of_nobody(row.unit):
            place = places[index].shown_together
            indices_by_place.setdefault(place, []).append(index)

    reasons: list[str | None] = [None] * len(rows)
    sizes = _Sizes.of_rows(rows, places)
    for indices in indices_by_place.values():
        # Rules 1 and 2.
        for index in indices:
            reasons[index] = _reason_of_size(rows[index], places[index], sizes)

        # Rule 3.
        if any(reasons[index] is not None for index in indices):
            _withhold(indices, rows, reasons)

    # Rule 4.
    for indices in _groups_against_subtraction(indices_by_place, rows, reasons):
        _withhold(indices, rows, reasons)
    return reasons


def _withhold(
    indices: Sequence[int], rows: Sequence[Row], reasons: list[str | None]
) -> None:
    """Withhold all figures of some rows that are not withheld already."""
    for index in indices:
        if reasons[index] is None and rows[index].value is not None:
            reasons[index] = WITHHELD_NOTE


@dataclass(frozen=True)
class _Sizes:
    """Sizes of the figures of a report, for rules 1 and 2.

    Attributes
    ----------
    clusters_of_group
        ``Place.group_of_audit`` -> largest number of clusters of a figure.
    n_matched
        Place of the figure of all identifiers -> number of its tokens that belong to
        identifiers with a control.
    """

    clusters_of_group: dict[Place, int]
    n_matched: dict[Place, int]

    @classmethod
    def of_rows(cls, rows: Sequence[Row], places: Sequence[Place]) -> _Sizes:
        """Return the sizes of a report's figures, whose places are ``places``."""
        clusters_of_group: dict[Place, int] = {}
        n_matched: dict[Place, int] = {}
        for row, place in zip(rows, places, strict=True):
            group = place.group_of_audit
            most = clusters_of_group.get(group, 0)
            clusters_of_group[group] = max(most, row.clusters)

            whole_place = place.whole_place
            if row.value is not None and whole_place is not None:
                n_matched[whole_place] = row.n
        return cls(clusters_of_group, n_matched)


def _reason_of_size(row: Row, place: Place, sizes: _Sizes) -> str | None:
    """Return why a row is withheld by its own size (rules 1 and 2), or None."""
    n_clusters = row.clusters
    if row.value is None:
        # A row without a figure may lack its number of clusters. If no row of its group
        # has one, there is nothing to withhold.
        n_clusters = sizes.clusters_of_group[place.group_of_audit]
        n_clusters = n_clusters or MIN_CLUSTERS_TO_PUBLISH

    # Rule 2. A cluster has row.n / row.clusters tokens on average: are those without a
    # control fewer than MIN_CLUSTERS_TO_PUBLISH clusters have?
    all_identifiers = place._replace(baseline="")
    n_without_control = row.n - sizes.n_matched.get(all_identifiers, row.n)
    if 0 < n_without_control * row.clusters < MIN_CLUSTERS_TO_PUBLISH * row.n:
        return WITHHELD_NOTE

    # Rule 1.
    if n_clusters < MIN_CLUSTERS_TO_PUBLISH:
        return WITHHELD
    return None


def _groups_against_subtraction(
    indices_by_place: dict[Place, list[int]],
    rows: Sequence[Row],
    reasons: Sequence[str | None],
) -> list[list[int]]:
    """Return the rows that rule 4 withholds, a list for each partition that needs it.

    A partition needs it where one of its groups is withheld and another is shown.
    """
    partitions_with_withheld: set[Place] = set()
    shown_groups: dict[Place, list[list[int]]] = {}
    for place, indices in indices_by_place.items():
        if any(reasons[index] is not None for index in indices):
            partitions_with_withheld.add(place.partition)
            continue

        shown = [index for index in indices if rows[index].value is not None]
        if shown:
            shown_groups.setdefault(place.partition, []).append(shown)

    def fewest_clusters(indices: Sequence[int]) -> int:
        return min(rows[index].clusters for index in indices)

    # Withhold it even if several groups are already withheld: groups may share
    # clusters, so several small ones together can be as small as one.
    return [
        min(groups, key=fewest_clusters)
        for partition, groups in shown_groups.items()
        if partition in partitions_with_withheld
    ]
