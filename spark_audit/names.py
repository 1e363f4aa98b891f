"""Names of checkpoints: a method, its seed or stage, and its derived checkpoints.

``NAME[K]`` is the K-th seed (replicate) of a method, ``NAME@K`` the K-th stage of a
series, ``NAME+int8``, ``NAME+int4`` and ``NAME+nf4`` the checkpoint with rounded
weights, and ``NAME+relearn`` the checkpoint after a short training on other rows. Only
this module parses and writes names. A name of any other form is a method.

A further kind of derived checkpoint is a name in :data:`ROUNDINGS`, or a constant
beside :data:`RELEARN` that the pattern below includes.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from spark_audit.errors import InputError, choose

BASE = "base"
"""Name of the reference model if it is scored, too."""

ANY_NAME = "*"
"""A wildcard for any variant of a metric."""

TRAINED = "trained"
NEVER = "never-trained"
"""Variants of a metric of identifiers: those in trained rows, and held-out ones."""

ROUNDINGS = ("int8", "int4", "nf4")
"""Kinds of rounded weights."""

NF4 = "nf4"
"""The rounding of the base alone, under an adapter that is not merged."""

RELEARN = "relearn"
"""Marks a checkpoint after a short training on rows without audited identifiers."""

RELEARNED_BASE = f"{BASE}+{RELEARN}"
"""The base after the same short training: the effect of relearning on a model that
never read the rows."""

REMEMBERED_NAMES = 4096
"""Names whose parts are remembered: each row of a report names its checkpoint."""

_CHECKPOINT_NAME = re.compile(
    r"(?P<method>.+?)(?:\[(?P<seed>[1-9]\d*)\])?(?:@(?P<stage>[1-9]\d*))?"
    rf"(?:\+(?P<derived>{'|'.join((*ROUNDINGS, RELEARN))}))?",
    re.DOTALL,
)
"""``METHOD[SEED]@STAGE+DERIVED``, of which only the method must be there."""


@dataclass(frozen=True)
class CheckpointName:
    """The parts of a checkpoint's name; ``str`` joins them.

    Attributes
    ----------
    seed, stage
        Number of the replicate and of the stage of a series, both from 1; None: the
        name has none.
    derived
        One of :data:`ROUNDINGS`, or :data:`RELEARN`; empty: not derived.
    """

    method: str
    seed: int | None = None
    stage: int | None = None
    derived: str = ""

    @classmethod
    def parse(cls, name: str) -> Self:
        """Parse a name; a name of any other form is a method as a whole."""
        match = _CHECKPOINT_NAME.fullmatch(name)
        if match is None:
            return cls(name)
        # Both count from 1, so 0 stands for a missing number.
        seed = int(match["seed"] or 0) or None
        stage = int(match["stage"] or 0) or None
        return cls(match["method"], seed, stage, match["derived"] or "")

    def __str__(self) -> str:
        seed = "" if self.seed is None else f"[{self.seed}]"
        stage = "" if self.stage is None else f"@{self.stage}"
        derived = f"+{self.derived}" if self.derived else ""
        return f"{self.method}{seed}{stage}{derived}"


def seeds_of(name: str, count: int) -> list[str]:
    """Return the names of a checkpoint's seeds; a single seed has the plain name.

    >>> seeds_of("spark", 2)
    ['spark[1]', 'spark[2]']
    """
    if count == 1:
        return [name]
    return [str(CheckpointName(name, seed)) for seed in range(1, count + 1)]


@lru_cache(maxsize=REMEMBERED_NAMES)
def entry_of(name: str) -> str:
    """Return the name of a checkpoint's entry in a report: for a seed, its method.

    The seeds ``NAME[K]`` of a method are pooled into the entry ``NAME``. Any other
    checkpoint, such as a stage or a derived one, is an entry of its own.
    """
    parts = CheckpointName.parse(name)
    is_seed = parts.seed is not None and parts.stage is None and not parts.derived
    return parts.method if is_seed else name


@lru_cache(maxsize=REMEMBERED_NAMES)
def series_of(name: str) -> str:
    """Return the series of a stage ``NAME@K``; any other name is its own series."""
    parts = CheckpointName.parse(name)
    if parts.stage is None or parts.derived:
        return name
    return str(replace(parts, stage=None))


@lru_cache(maxsize=REMEMBERED_NAMES)
def original_of(name: str) -> str:
    """Return the checkpoint from which ``NAME+int8`` or ``NAME+relearn`` was derived.

    Any other name is returned unchanged.
    """
    return str(replace(CheckpointName.parse(name), derived=""))


def is_untrained(name: str) -> bool:
    """Return whether a checkpoint is the base, or was derived from it.

    Neither was trained on audited rows.
    """
    return original_of(name) == BASE


def check_known(name: str, known: Collection[str], *, where: str) -> None:
    """Refuse a name that belongs to no checkpoint; the error names the option.

    Raises
    ------
    InputError
        If the name is unknown.
    """
    if name not in known:
        raise InputError(
            f"{name!r} is none of the checkpoints",
            where=where,
            fix=choose(name, dict.fromkeys(known)),
        )


def listed(given: str | None, known: Collection[str], *, where: str) -> list[str]:
    """Return the checkpoints that an option lists as ``NAME,NAME,...``, each once.

    Parameters
    ----------
    given
        The option's text; None: not given, which lists none.
    known
        Names of all checkpoints.
    where
        The option, for errors.

    Raises
    ------
    InputError
        If a name belongs to no checkpoint. The error names the option.
    """
    names = [name.strip() for name in (given or "").split(",") if name.strip()]
    for name in names:
        check_known(name, known, where=where)
    return list(dict.fromkeys(names))
