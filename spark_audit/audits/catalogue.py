"""The audits that there are: ours, and those of other packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from spark_audit.audits.base import Audit, Metric, registered
from spark_audit.audits.canary import CanaryRank
from spark_audit.audits.embedding_noise import Noise
from spark_audit.audits.extract import Extraction
from spark_audit.audits.matched.matched_selectivity import Matched
from spark_audit.audits.mia.membership import Membership
from spark_audit.audits.nll import NLL
from spark_audit.audits.rise import Twins
from spark_audit.audits.series_attack import SeriesAttack
from spark_audit.audits.stage_memory import Stages
from spark_audit.audits.task_accuracy import Utility
from spark_audit.audits.vocabulary_rank import Rank
from spark_audit.sentences import optional
from spark_audit.terminal.flags import one_of

AUDITS: tuple[type[Audit], ...] = (
    *(Matched, Rank, NLL, CanaryRank, Twins, Membership, Extraction, Noise, Stages),
    Utility,
    SeriesAttack,
)
"""The audits as reports have them; those of other packages follow."""


def _no_audit(name: str, audit: Any) -> str:
    """Why something registered is no audit; empty if it is one."""
    if isinstance(audit, type) and issubclass(audit, Audit) and audit.name == name:
        return ""
    return f"it is not an Audit named {name!r}"


@cache
def all_audits() -> Mapping[str, type[Audit]]:
    """Every audit by its name, in the order of reports; a broken one is left out."""
    further = registered("spark_audit.audits", _no_audit)
    ours = {audit.name: audit for audit in AUDITS}
    return {**ours, **further, **ours}


def find(name: str) -> type[Audit]:
    """An audit by its name.

    Raises
    ------
    InputError
        If there is none.
    """
    return all_audits()[one_of(name, "audit", all_audits())]


def about(name: str) -> type[Audit]:
    """What is known of an audit; of one that is not installed, the defaults."""
    return all_audits().get(name, Audit)


def metric_of(audit: str, name: str) -> Metric:
    """What is known of a metric; of an unknown one, its name."""
    return about(audit).metric(name)


def label(audit: str, metric: str, of: str = "") -> str:
    """What readers call a metric, or a variant of it; an unknown one by its name."""
    key = f"metric.{audit}.{metric}"
    return optional(f"{key}.of.{of}") or optional(key) or metric


def in_order(names: Iterable[str]) -> list[str]:
    """Names of audits in the order of reports; unknown ones last."""
    places = {name: place for place, name in enumerate(all_audits())}
    return sorted(names, key=lambda name: (places.get(name, len(places)), name))
