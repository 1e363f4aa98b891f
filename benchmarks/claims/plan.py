"""What is trained for the claims: systems, task orders and seeds."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from spark_audit.data.examples import Example
from spark_audit.errors import InputError
from spark_train.training_corpus import ORDERS

Order: TypeAlias = int | Literal["second"]
"""A task order by its number, or the first one on the second base."""
SYSTEMS = Path(__file__).with_name("systems.toml")


@dataclass(frozen=True)
class System:
    """One row of the paper's tables.

    Attributes
    ----------
    settings
        What differs from the study's.
    orders
        Task orders that it is trained in.
    core
        Whether it is trained without ``--systems all``.
    """

    name: str
    method: str
    dp: str = "none"
    settings: dict[str, Any] = field(default_factory=dict)
    orders: tuple[int, ...] = (1,)
    core: bool = True


@dataclass(frozen=True)
class Run:
    """A system in a task order with a seed."""

    system: System
    order: Order
    seed: int
    tasks: tuple[str, ...]

    @property
    def place(self) -> Path:
        """Its folder within ``runs/``."""
        order = f"order{self.order}" if self.order != "second" else "second"
        return Path(order, f"seed{self.seed}", self.system.name)


def systems(*, all_: bool = False) -> list[System]:
    """Those of ``systems.toml``, without those that no claim needs unless ``all_``."""
    with SYSTEMS.open("rb") as file:
        listed = tomllib.load(file)
    found = []
    for name, entry in listed.items():
        values = {"settings": entry.pop("set", {}), **entry}
        values["orders"] = tuple(values.get("orders", (1,)))
        found.append(System(name, **values))
    return [system for system in found if all_ or system.core]


def task_orders(rows: Sequence[Example]) -> dict[int, tuple[str, ...]]:
    """The orders of the tasks that there are: the paper's where they are its own.

    Other tasks have the order in which they come, its reverse, and one that begins in
    the middle.

    Raises
    ------
    InputError
        If there are fewer than two tasks.
    """
    tasks = tuple(dict.fromkeys(row.task for row in rows))
    if len(tasks) < 2:
        raise InputError(
            f"holds {len(tasks)} task(s)", where="--data", fix="give two or more"
        )
    if set(tasks) <= set(ORDERS["1"]):
        orders = [tuple(t for t in order if t in tasks) for order in ORDERS.values()]
    else:
        middle = len(tasks) // 2
        orders = [tasks, tasks[::-1], (*tasks[middle:], *tasks[:middle])]
    return dict(enumerate(dict.fromkeys(orders), start=1))  # two tasks have two


def runs(
    chosen: Sequence[System],
    orders: dict[int, tuple[str, ...]],
    *,
    seeds: int,
    order_seeds: int = 1,
    second: bool = False,
) -> Iterator[Run]:
    """All runs: seed by seed, so that an interrupted study has whole seeds.

    The other orders come last; in the paper they have one seed.
    """
    for seed in range(seeds):
        for system in chosen:
            yield Run(system, 1, seed, orders[1])
    for order, tasks in list(orders.items())[1:]:
        for seed in range(order_seeds):
            for system in chosen:
                if order in system.orders:
                    yield Run(system, order, seed, tasks)
    for seed in range(seeds if second else 0):
        for system in chosen:
            if len(system.orders) > 1:  # those of the paper's second table of models
                yield Run(system, "second", seed, orders[1])
