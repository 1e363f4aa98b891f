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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from pydantic import BaseModel, ConfigDict

from spark_audit.errors import InputError

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


class _Listed(_Strict):
    """A table as the index has it."""

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


class _Index(_Strict):
    paper: str
    setting: Setting
    orders: dict[str, tuple[str, ...]]
    methods: tuple[Method, ...]
    tables: tuple[_Listed, ...]


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


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper with its figures, in the order of print.

    ``n`` and ``clusters`` say what the figures are over, ``interval`` of what kind
    intervals are, ``spans`` and ``caliper`` (nats) how identifiers were matched; empty
    or ``None`` where the paper does not say.
    """

    label: str
    caption: str
    columns: tuple[Column, ...]
    figures: tuple[Figure, ...]
    base_model: str
    n: str
    clusters: str
    interval: str
    spans: int | None
    caliper: float | None
    note: str


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
    return _tables()


def table(label: str) -> PaperTable:
    """One table by its label, for instance ``tab:privacy``.

    Raises
    ------
    InputError
        If the paper has no such table; the message lists the known ones.
    """
    for one in _tables():
        if one.label == label:
            return one
    known = ", ".join(one.label for one in _tables())
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
        for one in _tables()
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


@cache
def _tables() -> tuple[PaperTable, ...]:
    return tuple(
        PaperTable(
            **one.model_dump(exclude={"file", "columns"}),
            columns=one.columns,
            figures=tuple(_figures(one)),
        )
        for one in _index().tables
    )


def _figures(listed: _Listed) -> Iterator[Figure]:
    columns = {column.name: column for column in listed.columns}
    text = (_folder() / listed.file).read_text(encoding="utf-8")
    for line in csv.DictReader(text.splitlines()):
        column = columns[line["column"]]
        scale = Decimal(str(column.scale))
        yield Figure(
            table=listed.label,
            panel=line["panel"],
            row=line["row"],
            column=column.name,
            method=line["method"],
            order=line["order"],
            audit=column.audit,
            metric=column.metric,
            of=line["of"] or column.of,
            group=line["group"] or column.group,
            unit=column.unit,
            scale=scale.normalize(),
            text=line["text"],
            value=_number(line["value"], scale),
            low_text=line["low_text"],
            low=_number(line["low"], scale),
            high_text=line["high_text"],
            high=_number(line["high"], scale),
            base_model=listed.base_model or _index().setting.base_model,
            n=listed.n,
            clusters=listed.clusters,
            interval=listed.interval if line["low_text"] else "none",
            spans=listed.spans,
            caliper=listed.caliper,
            note=column.note,
        )


def _number(text: str, scale: Decimal) -> float | None:
    return float(Decimal(text) * scale) if text else None
