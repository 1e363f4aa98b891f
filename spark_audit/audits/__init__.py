"""Audits: what a checkpoint's scores say, each a class; ours, and other packages'.

:class:`~spark_audit.audits.base.Audit` says what each of them must give. Other packages
add theirs by the entry point ``spark_audit.audits``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from spark_audit.audits.base import Audit as Audit
from spark_audit.audits.base import Metric, registered
from spark_audit.audits.canary import CanaryRank as CanaryRank
from spark_audit.audits.embedding_noise import Noise as Noise
from spark_audit.audits.extract import Extraction as Extraction
from spark_audit.audits.matched import Matched as Matched
from spark_audit.audits.mia.membership import Membership as Membership
from spark_audit.audits.nll_and_rank import NLL as NLL
from spark_audit.audits.nll_and_rank import Rank as Rank
from spark_audit.audits.rise import Twins as Twins
from spark_audit.audits.stages import SeriesAttack as SeriesAttack
from spark_audit.audits.stages import Stages as Stages
from spark_audit.audits.task_accuracy import Utility as Utility
from spark_audit.sentences import optional
from spark_audit.terminal.flags import one_of

AUDITS: tuple[type[Audit], ...] = (
    *(Matched, Rank, NLL, CanaryRank, Twins, Membership, Extraction, Noise, Stages),
    *(Utility, SeriesAttack),
)
"""The audits as reports have them; those of other packages follow."""


@cache
def all_audits() -> Mapping[str, type[Audit]]:
    """Every audit by its name, in the order of reports; a broken one is left out."""

    def no_audit(name: str, audit: Any) -> str:
        if isinstance(audit, type) and issubclass(audit, Audit) and audit.name == name:
            return ""
        return f"it is not an Audit named {name!r}"

    ours = {audit.name: audit for audit in AUDITS}
    return {**ours, **registered("spark_audit.audits", no_audit), **ours}


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
