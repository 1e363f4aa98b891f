"""What a study is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from spark_audit.errors import InputError
from spark_train.training_request import StudentLoading

SYSTEM_SETS = ("core", "all")
"""Sets of systems with a name of their own."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How every run is trained, beside its settings.

    Attributes
    ----------
    device, dtype
        Where, and in which type the base is kept.
    gradient_checkpointing
        Compute the forward pass twice to save memory.
    lora_targets
        Last names of linear layers, where q, k, v and o are not found.
    tf32
        Let a GPU round factors of float32 products to 10 bits while it trains; audits
        never do.
    """

    device: str = "auto"
    dtype: str = "float32"
    gradient_checkpointing: bool = False
    lora_targets: tuple[str, ...] = ()
    tf32: bool = False


@dataclass(frozen=True, kw_only=True)
class ClaimsRequest:
    """The paper's claims on given data: trained, audited and judged.

    Attributes
    ----------
    data, base
        Injected JSON lines and the model that learns them; without both they are made,
        as the demo makes its own.
    second_base
        Of another family, for the paper's table of two.
    seeds
        Of the first task order.
    order_seeds
        Of the others, which have one in the paper.
    systems
        ``core``: runs that a claim reads, without those of the systems marked ``core =
        false``, which only a few claims read; ``all``: those too, and the rest of the
        paper's 20 rows; or names of systems, with commas between them.
    first_order
        Train in the first task order, and on one base alone.
    by
        ``paper``: the settings printed; ``rule``: those that a written rule finds for
        small models on made-up tasks. Default: the paper's with ``data``.
    settings
        ``NAME=VALUE`` texts for all systems that know the name.
    rows
        Train rows of a task where data are made.
    engine, address
        What trains: processes here, or the nodes of a Ray cluster that share the disk.
    quick
        One seed, one task order, little data.
    no_training
        Judge what is trained already.
    plan
        Measure and print what the study costs, and do nothing else.
    hour_price
        What an hour of this machine costs, for the plan.

    Raises
    ------
    InputError
        If a number is out of its range.
    """

    output: Path
    data: tuple[Path, ...] = ()
    base: str | None = None
    second_base: str | None = None
    seeds: int = 3
    order_seeds: int = 1
    systems: str = "core"
    first_order: bool = False
    by: str | None = None
    settings: tuple[str, ...] = ()
    candidates: int = 512
    rows: int | None = None
    processes: int = 1
    engine: str = "local"
    address: str | None = None
    quick: bool = False
    no_training: bool = False
    plan: bool = False
    hour_price: float | None = None
    training: TrainingOptions = TrainingOptions()

    @property
    def system_names(self) -> tuple[str, ...]:
        """Names of the systems that were chosen one by one; empty: a whole set was."""
        if self.systems in SYSTEM_SETS:
            return ()
        names = [name.strip() for name in self.systems.split(",")]
        return tuple(name for name in names if name)

    @property
    def loading(self) -> StudentLoading:
        """How the base is opened."""
        return StudentLoading(device=self.training.device, dtype=self.training.dtype)

    def __post_init__(self) -> None:
        _check_at_least("--seeds", self.seeds, 1)
        _check_at_least("--order-seeds", self.order_seeds, 1)
        _check_at_least("--processes", self.processes, 1)
        _check_at_least("--candidates", self.candidates, 2)
        if self.rows is not None:
            _check_at_least("--rows", self.rows, 1)
            if self.data:
                raise InputError(
                    "is the number of rows where data are made",
                    where="--rows",
                    fix="leave out --rows or --data",
                )
        if self.hour_price is not None and not self.plan:
            raise InputError(
                "is the price of an hour in a plan",
                where="--hour-price",
                fix="add --plan, or leave out --hour-price",
            )
        if self.hour_price is not None and not 0 <= self.hour_price < math.inf:
            raise InputError(
                f"{self.hour_price} is no price",
                where="--hour-price",
                fix="give a number, such as 2.5",
            )
        if self.address is not None and self.engine != "ray":
            raise InputError(
                "is that of a Ray cluster", where="--address", fix="add --engine ray"
            )
        if self.systems not in SYSTEM_SETS and not self.system_names:
            raise InputError(
                "names no system",
                where="--systems",
                fix="give core, all, or names such as er,spark",
            )
        if self.first_order and self.second_base is not None:
            raise InputError(
                "trains on one base",
                where="--first-order",
                fix="leave out --first-order or --second-base",
            )
        for text in self.settings:
            if "=" not in text:
                raise InputError(
                    f"{text!r} has no value", where="--set", fix="give NAME=VALUE"
                )


def _check_at_least(option: str, number: int, least: int) -> None:
    """Refuse a number of an option that is too small."""
    if number < least:
        raise InputError(
            f"{number} is too small", where=option, fix=f"give {least} or more"
        )
