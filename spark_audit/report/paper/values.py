"""What the SPARK paper prints: its tables as data, in the terms of the audits here.

*Decoupling Knowledge and Privacy: Post-Task Self-Distillation Replay for LLM Continual
Learning*: every table, and the figures of its plots that the text prints. Digits are
kept as printed. Nothing here was measured by this program, and nothing here is a value
that another model on other data should reach.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from pydantic import BaseModel, ConfigDict

from spark_audit.errors import InputError

AS_PRINTED = "panel row method order text low_text high_text".split()
PRIMARY = "1"
"""The paper's main task order."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Column(_Strict):
    """What a printed column is here; without an ``audit`` no audit measures it.

    ``of = "last"`` is a series' last stage. ``scale`` times the printed value is the
    value as audits here give it (0.01 where percent are printed and shares measured).
    """

    name: str
    audit: str = ""
    metric: str = ""
    of: str = ""
    group: str = "pooled"
    unit: str = ""
    scale: float = 1.0
    note: str = ""


class Method(_Strict):
    """A method of the paper and the other names that it goes by."""

    name: str
    aliases: tuple[str, ...] = ()
    note: str = ""


class Setting(_Strict):
    """What holds for every table that does not say otherwise."""

    base_model: str
    tasks: tuple[str, ...]
    train_rows: str
    adaptation: str
    seeds: str


class PaperTable(_Strict):
    """A table of the paper as the index has it.

    ``n`` and ``clusters`` say what the figures are over, ``interval`` of what kind
    intervals are, ``spans`` and ``caliper`` (nats) how identifiers were matched; empty
    or ``None`` where the paper does not say.
    """

    label: str
    file: str
    caption: str
    columns: tuple[Column, ...]
    base_model: str = ""
    n: str = ""
    clusters: str = ""
    interval: str = "none"
    spans: int | None = None
    caliper: float | None = None
    note: str = ""

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """Its figures, in the order of print."""
        columns = {column.name: column for column in self.columns}
        text = (_folder() / self.file).read_text(encoding="utf-8")
        lines = csv.DictReader(text.splitlines())
        return tuple(self._figure(columns[line["column"]], line) for line in lines)

    def _figure(self, column: Column, line: Mapping[str, str]) -> Figure:
        scale = Decimal(str(column.scale))
        columns: dict[str, Any] = {
            **self.model_dump(include={"n", "clusters", "spans", "caliper"}),
            **column.model_dump(include={"audit", "metric", "unit", "note"}),
            **{name: line[name] for name in AS_PRINTED},
            **{name: _number(line[name], scale) for name in ("value", "low", "high")},
        }
        return Figure(
            table=self.label,
            column=column.name,
            of=line["of"] or column.of,
            group=line["group"] or column.group,
            scale=scale.normalize(),
            base_model=self.base_model or setting().base_model,
            interval=self.interval if line["low_text"] else "none",
            **columns,
        )


class _Index(_Strict):
    paper: str
    setting: Setting
    orders: dict[str, tuple[str, ...]]
    methods: tuple[Method, ...]
    tables: tuple[PaperTable, ...]


@dataclass(frozen=True)
class Figure:
    """One printed figure and its place.

    ``text`` (and ``low_text``, ``high_text``, empty without an interval) are as
    printed; ``value``, ``low`` and ``high`` are numbers on the scale of the audits
    here. ``method`` is empty where the paper names no checkpoint, ``order`` where it
    makes no difference; ``value`` is ``None`` for settings that are no numbers.
    """

    table: str
    panel: str
    row: str
    column: str
    method: str
    order: str
    audit: str
    metric: str
    of: str
    group: str
    unit: str
    scale: Decimal
    text: str
    value: float | None
    low_text: str = ""
    low: float | None = None
    high_text: str = ""
    high: float | None = None
    base_model: str = ""
    n: str = ""
    clusters: str = ""
    interval: str = "none"
    spans: int | None = None
    caliper: float | None = None
    note: str = ""

    @property
    def place(self) -> str:
        """The table's label, with the panel where it has several."""
        return f"{self.table}, {self.panel}" if self.panel else self.table

    def shown(self) -> str:
        """Value and interval on the scale of the audits here, printed digits kept."""
        value = self._scaled(self.text)
        if self.low_text:
            value += f" [{self._scaled(self.low_text)}, {self._scaled(self.high_text)}]"
        return value if self.scale == 1 else f"{value} (printed {self.text} %)"

    @property
    def step(self) -> Decimal:
        """The last printed digit's place, on the scale of the audits here."""
        exponent = Decimal(self.text).as_tuple().exponent
        assert isinstance(exponent, int), "printed figures are finite"
        return Decimal(1).scaleb(exponent) * self.scale

    def rounds(self, other: Figure) -> bool:
        """Whether this is the other's value, printed with as many digits or fewer."""
        apart = abs(Decimal(self.text) * self.scale - Decimal(other.text) * other.scale)
        return other.step <= self.step and apart <= self.step / 2

    def _scaled(self, text: str) -> str:
        # Decimal keeps the digits: 47.13 percent are 0.4713, 1.00 percent 0.0100.
        return text if self.scale == 1 else str(Decimal(text) * self.scale)


def setting() -> Setting:
    """Model, tasks, sizes and seeds that the paper gives for all tables."""
    return _index().setting


def orders() -> Mapping[str, tuple[str, ...]]:
    """The paper's task orders by number."""
    return _index().orders


def methods() -> tuple[Method, ...]:
    """All methods of the paper."""
    return _index().methods


def methods_named(name: str) -> tuple[str, ...]:
    """Methods that a name stands for, case and punctuation apart; often none.

    ``pecl`` stands for two: PeCL as cited, and as the authors reproduced it.
    """
    for method in methods():
        if method.name == name:
            return (name,)
    wanted = folded(name)
    return tuple(
        method.name
        for method in methods()
        if wanted and wanted in {folded(one) for one in (method.name, *method.aliases)}
    )


def tables() -> tuple[PaperTable, ...]:
    """All tables, in the order of the index."""
    return _index().tables


def table(label: str) -> PaperTable:
    """One table by its label, for instance ``tab:privacy``.

    Raises
    ------
    InputError
        If the paper has no such table; the message lists the known ones.
    """
    for one in tables():
        if one.label == label:
            return one
    known = ", ".join(one.label for one in tables())
    raise InputError(f"the paper has no table {label!r}", fix=f"choose one of: {known}")


def reference(
    audit: str,
    metric: str,
    *,
    of: str = "",
    group: str = "pooled",
    method: str | None = None,
) -> list[Figure]:
    """What the paper prints for a figure of an audit, each with its place.

    Parameters
    ----------
    audit, metric, of, group
        As in a report's rows; of a series' last stage also ``of="last"``.
    method
        Name of a method as :func:`methods` has it; default: all. Figures of no named
        checkpoint belong to every method.
    """
    return [
        figure
        for one in tables()
        for figure in one.figures
        if (figure.audit, figure.metric, figure.of) == (audit, metric, of)
        and figure.group == group.casefold()
        and (method is None or figure.method in ("", method))
    ]


def folded(name: str) -> str:
    """A name without case and punctuation."""
    return re.sub(r"[\W_]", "", name.casefold()).replace("without", "wo")


@cache
def _index() -> _Index:
    text = (_folder() / "index.toml").read_text(encoding="utf-8")
    return _Index.model_validate(tomllib.loads(text))


def _folder() -> Traversable:
    return files("spark_audit.report.paper") / "printed"


def _number(text: str, scale: Decimal) -> float | None:
    return float(Decimal(text) * scale) if text else None
