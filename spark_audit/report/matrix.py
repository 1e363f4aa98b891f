"""The matrix of checkpoints and attacks: each cell has the result of an attack.

Every format of a report shows this one object: the terminal, the page, Markdown and a
notebook. A column, its head and the form of its effects come from the class and the
sentences of an audit, so that an audit of another package has its column, too.

A further kind of cell is an item of :data:`CellKind` and :data:`CELL_MARKS`, a line of
:func:`cell_of`, and has the sentences ``matrix.cell.KIND`` and ``matrix.legend.KIND``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from spark_audit.audits import about
from spark_audit.audits.strongest_leaks import leak_of
from spark_audit.report.checkpoint_states import CheckpointState, State
from spark_audit.report.copies import GivenAndCopies
from spark_audit.report.tried import Tried
from spark_audit.results import Finding
from spark_audit.sentences import optional, render
from spark_audit.sentences.effects import is_on_scale, rounded_up_as_shown
from spark_audit.sentences.renderer import listed

CellKind = Literal["found", "less", "nothing", "void", "not tested"]

CELL_KINDS: tuple[CellKind, ...] = get_args(CellKind)

CELL_MARKS: dict[CellKind, str] = {
    "found": "●",
    "less": "▽",
    "nothing": "○",
    "void": "!",
    "not tested": "·",
}
"""A mark of each kind of cell, so that kinds differ without colour."""

MAX_NAMES = 3
"""Most names in a line; of more it says how many there are."""

MAX_ROWS = 5
"""Most checkpoints of which a glance shows each as a row."""

ROWS_OF_MORE = 4
"""Rows that a glance shows if there are more checkpoints; the others are counted."""

STRENGTH_STEPS: dict[str, tuple[float, float]] = {
    "nats": (math.log(1.25), math.log(2.0)),
    "bits": (1.0, 3.0),
    "AUC": (0.1, 0.25),
    "points": (5.0, 25.0),
}
"""Unit -> the effects from which a cell has the second and the third shade."""


@dataclass(frozen=True)
class MatrixCell:
    """What one attack came to on one checkpoint.

    Attributes
    ----------
    kind
        What the attack came to; see :func:`cell_of`. ``less``: trained strings became
        less likely, which tells them apart, too.
    effect
        The effect (``+12%``), or the limit of what could still be there (``≤ +9%``);
        empty: neither is known.
    reason
        Why the attack is void or was not tested, in words; of a method with several
        seeds, the seed that the effect was found in.
    strength
        Shade of what was found: 1, 2 or 3; 0: nothing was found.
    is_verdict
        Whether ``effect`` is a word of its audit for what it concludes.
    """

    audit: str
    kind: CellKind
    effect: str = ""
    reason: str = ""
    strength: int = 0
    is_verdict: bool = False

    @property
    def mark(self) -> str:
        """Return the sign that stands in front."""
        return CELL_MARKS[self.kind]

    @property
    def words(self) -> str:
        """Return the effect; the word of the kind where there is none."""
        return self.effect or optional(f"matrix.cell.{self.kind.replace(' ', '_')}")

    @property
    def text(self) -> str:
        """Return the mark, and the words where there are any."""
        return f"{self.mark} {self.words}".rstrip()


@dataclass(frozen=True)
class MatrixColumn:
    """One attack.

    Attributes
    ----------
    audit, attack
        Name of the audit, and of its attack in words.
    head, scale
        What effects are measured in, in as few words as a column has room for, and in
        full.
    question
        What the attack asks.
    """

    audit: str
    attack: str
    head: str
    scale: str
    question: str


@dataclass(frozen=True)
class MatrixRow:
    """One checkpoint with its state, and a cell for each column."""

    name: str
    state: State
    cells: tuple[MatrixCell, ...]


@dataclass(frozen=True)
class Matrix:
    """Checkpoints and attacks, the worst checkpoint first.

    Attributes
    ----------
    columns
        Those with a result come first, each group in the order of audits.
    rows
        Checkpoints; behind them the copies of these that are no worse.
    n_models
        Number of rows in front of these copies.
    """

    columns: tuple[MatrixColumn, ...]
    rows: tuple[MatrixRow, ...]
    n_models: int

    @property
    def first_rows(self) -> tuple[MatrixRow, ...]:
        """Return the rows that stand at a glance: the worst."""
        return self.rows[: self._n_first]

    @property
    def further_rows(self) -> tuple[MatrixRow, ...]:
        """Return the rows that a glance has no room for."""
        return self.rows[self._n_first :]

    @property
    def _n_first(self) -> int:
        """Return how many rows a glance shows."""
        if len(self.rows) <= MAX_ROWS or self.n_models == MAX_ROWS:
            return MAX_ROWS
        # The line that counts the other rows takes the room of a row.
        return ROWS_OF_MORE

    @property
    def further_text(self) -> str:
        """Return how many rows a glance leaves out; empty: none."""
        if not self.further_rows:
            return ""

        # One line stands for all of them: the page has the whole matrix.
        n_further = len(self.further_rows)
        if self._n_first >= self.n_models:
            return render("glance.more_copies", count=n_further)
        return render("glance.more_rows", count=n_further)

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Return the marks that there are, each with what it means."""
        cells_by_kind: dict[CellKind, list[MatrixCell]] = {}
        for row in self.rows:
            for cell in row.cells:
                cells_by_kind.setdefault(cell.kind, []).append(cell)

        # Leave out marks that no cell has.
        legend = []
        for kind in CELL_KINDS:
            if kind not in cells_by_kind:
                continue
            key = f"matrix.legend.{kind.replace(' ', '_')}"
            # A verdict is no limit of what could still be there.
            is_limit = any(not cell.is_verdict for cell in cells_by_kind[kind])
            if kind == "nothing" and is_limit:
                key = "matrix.legend.nothing_at_most"
            legend.append((CELL_MARKS[kind], render(key)))
        return legend


def few_names(names: Sequence[str]) -> str:
    """Return names as a list; a long list ends with the number of others."""
    if len(names) <= MAX_NAMES:
        return listed(names)

    # The words "and N more" take the room of one name.
    first_names = names[: MAX_NAMES - 1]
    n_more = len(names) - len(first_names)
    return render("glance.more_names", names=", ".join(first_names), more=n_more)


def names_or_count(names: Sequence[str]) -> str:
    """Return checkpoints as a list, or the number of many, since rows name each."""
    if len(names) <= MAX_NAMES:
        return listed(names)
    return render("glance.count", count=len(names))


def matrix_of(checkpoint_states: Sequence[CheckpointState]) -> Matrix:
    """Return the matrix of a report's checkpoints, in their order.

    An untried attack still has its column, since "not tested" is an answer, too. It
    stands behind those with a result, which a narrow screen shows first.
    """
    cells_by_name: dict[str, list[MatrixCell]] = {}
    for checkpoint_state in checkpoint_states:
        cells_by_name[checkpoint_state.name] = [
            cell_of(tried) for tried in checkpoint_state.tried
        ]

    # All checkpoints have the same attacks in the same order.
    tested: list[int] = []
    untested: list[int] = []
    for place, column in enumerate(zip(*cells_by_name.values(), strict=True)):
        if all(cell.kind == "not tested" for cell in column):
            untested.append(place)
        else:
            tested.append(place)
    order = [*tested, *untested]

    # A copy stands behind the checkpoints unless it is worse than its original.
    split = GivenAndCopies.of(checkpoint_states)
    names_in_front = {state.name for state in (*split.given, *split.worse_copies)}
    in_front = []
    behind = []
    for checkpoint_state in checkpoint_states:
        if checkpoint_state.name in names_in_front:
            in_front.append(checkpoint_state)
        else:
            behind.append(checkpoint_state)

    rows = []
    for checkpoint_state in (*in_front, *behind):
        cells = cells_by_name[checkpoint_state.name]
        rows.append(
            MatrixRow(
                name=checkpoint_state.name,
                state=checkpoint_state.state,
                cells=tuple(cells[place] for place in order),
            )
        )
    audits = [tried.audit for tried in checkpoint_states[0].tried]
    columns = [column_of(audits[place]) for place in order]
    return Matrix(tuple(columns), tuple(rows), n_models=len(in_front))


def column_of(audit: str) -> MatrixColumn:
    """Return the column of an attack; what it has no words for stays empty."""
    return MatrixColumn(
        audit=audit,
        attack=optional(f"audit.{audit}.attack") or audit,
        head=optional(f"audit.{audit}.head"),
        scale=optional(f"audit.{audit}.scale"),
        question=optional(f"audit.{audit}.asks"),
    )


def cell_of(tried: Tried) -> MatrixCell:
    """Return the cell of one attack on one checkpoint.

    ==============  =======================================================
    outcome         cell
    ==============  =======================================================
    ``FOUND``       ``found``, or ``less`` where strings became less likely
    ``not shown``   ``nothing``, and at most how much could still be there
    ``not tested``  ``not tested``, and why
    any other       ``void``, and why
    ==============  =======================================================
    """
    cell = _cell_of_outcome(tried)
    # An audit that has words for what it concludes shows them in place of an effect.
    if tried.finding is not None and tried.finding.verdict:
        return replace(cell, effect=tried.finding.verdict, is_verdict=True)
    return cell


def _cell_of_outcome(tried: Tried) -> MatrixCell:
    """Return the cell of an attack with its effect, or how much could still be there.

    The table of :func:`cell_of` says which kind it has.
    """
    if tried.outcome == "FOUND" and tried.finding is not None:
        return _cell_of_found(tried, tried.finding)
    if tried.outcome == "not shown":
        return MatrixCell(audit=tried.audit, kind="nothing", effect=_at_most(tried))
    if tried.outcome == "not tested":
        return MatrixCell(audit=tried.audit, kind="not tested", reason=_why(tried))
    return MatrixCell(audit=tried.audit, kind="void", reason=_why(tried))


def _cell_of_found(tried: Tried, finding: Finding) -> MatrixCell:
    """Return the cell of an attack that found something."""
    size = effect_size(finding, finding.value)
    return MatrixCell(
        audit=tried.audit,
        kind="less" if finding.claim == "betrays" else "found",
        effect=effect_text(tried.audit, size, finding.unit),
        reason=tried.seed,
        strength=strength_of(size, finding.unit),
    )


def _at_most(tried: Tried) -> str:
    """Return the limit of what could still be there; empty: not known."""
    if tried.bounded is None:
        return ""

    size = effect_size(tried.bounded, tried.bounded.at_most)
    limit = limit_text(tried.audit, size, tried.bounded.unit)
    return render("matrix.at_most", limit=limit) if limit else ""


def _why(tried: Tried) -> str:
    """Return why an attack has no result, in words; empty: no reason is known."""
    if not tried.ran:
        return tried.why_not_run
    if tried.outcome == "confounded":
        return render("outcome.confounded")
    if tried.finding is None:
        return ""
    return tried.finding.text


def effect_size(finding: Finding, end: float | None) -> float | None:
    """Return how far a figure is from no effect: above 0 is more of a leak.

    None: one of them is not known, as a withheld value of no effect is not 0.

    Parameters
    ----------
    end
        The finding's value, an end of its interval, or its limit ``at_most``.
    """
    if end is None or finding.no_effect is None:
        return None

    return leak_of(finding, end)


def effect_text(audit: str, size: float | None, unit: str) -> str:
    """Return an effect on the scale of its column, such as ``+12%`` or ``×7.0``."""
    if size is None:
        return ""
    return about(audit).effect_in_cell(size, unit)


def limit_text(audit: str, size: float | None, unit: str) -> str:
    """Return how much could still be there, such as ``12%``: rounded up, without plus.

    Without the sign it is not mistaken for an effect that was found.
    """
    if size is None:
        return ""
    return effect_text(audit, rounded_up_as_shown(size, unit), unit).removeprefix("+")


def scale_of(finding: Finding) -> str:
    """Return what an effect of a finding counts, such as ``of 100 pairs``.

    Empty: the effect has its own unit, or its audit has no words for the scale.
    """
    if not is_on_scale(finding.unit):
        return ""
    return optional(f"audit.{finding.audit}.scale")


def strength_of(size: float | None, unit: str) -> int:
    """Return the shade of what was found, from 1 to 3."""
    if size is None:
        return 1

    # A unit without steps has only one shade.
    second_step, third_step = STRENGTH_STEPS.get(unit, (math.inf, math.inf))
    if abs(size) >= third_step:
        return 3
    if abs(size) >= second_step:
        return 2
    return 1
