"""A report beside the paper: our figures, the printed ones, and what differs.

Which checkpoint is which of the paper's methods is told by its name or by the user.
The paper's values are no targets: models, data and manifest are others, and every line
says how its setting differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_audit.errors import InputError, choose
from spark_audit.names import entry_of
from spark_audit.report.cells import Cell, Line, Table, figure
from spark_audit.report.paper.values import (
    PRIMARY,
    Figure,
    folded,
    methods,
    methods_named,
    orders,
    reference,
    setting,
)
from spark_audit.results import Report, Row

TITLE = "Beside the paper"
LEAD = (
    "The paper's figures are for orientation only: they are of other checkpoints and "
    "data, another manifest, other canaries; ours are not expected to equal them."
)
"""Stands above every table of :func:`beside`."""

HEADER = (
    "checkpoint",
    "figure",
    "ours",
    "the paper's (its method, table)",
    "what differs (ours / the paper's)",
)
SAME_INTERVAL = {("percentile", "cluster bootstrap"), ("none", "none")}
OVER = ("both", "sources", "seeds")
"""Of an entry with several seeds the first that there is is shown."""


@dataclass(frozen=True)
class _Seen:
    """What of a report decides which printed figures stand beside it."""

    report: Report
    tasks: Mapping[str, tuple[str, ...]]
    order: str
    stages: Mapping[str, int]


def beside(report: Report, *, named: Mapping[str, str] | None = None) -> Table:
    """Our figures with the paper's, one line a figure and printed value.

    A value that several tables print in the same setting stands once, with most
    digits, and names them all. Of the paper's three task orders the one is shown that
    the report's series went through, else the main one.

    Parameters
    ----------
    named
        Checkpoint -> name of a method of the paper, for checkpoints whose own name is
        none (case and punctuation apart).

    Raises
    ------
    InputError
        If a name is unknown, no checkpoint is a method of the paper, or no figure of
        the report is in the paper.
    """
    methods_of = _methods_of(report, named or {})
    seen = _seen(report)
    lines = [
        _line(row, figures, seen)
        for row in _rows(report)
        if row.status != "not_estimable"
        for figures in _figures(row, methods_of, seen)
    ]
    if not any(methods_of.values()):
        raise InputError(
            "no checkpoint of the report is named like a method of the paper",
            where="--against paper",
            fix="say which is which with --paper-method NAME=METHOD; "
            + choose("", (one.name for one in methods())),
        )
    if not lines:
        raise InputError(
            "none of the report's figures is printed in the paper",
            where="--against paper",
            fix="run matched, rank, nll, canary, mia, noise or utility",
        )
    return Table(
        title=TITLE,
        header=HEADER,
        rows=tuple(lines),
        remarks=tuple(_remarks(methods_of, seen)),
        lead=LEAD,
    )


def parse_named(texts: Sequence[str]) -> dict[str, str]:
    """``NAME=METHOD`` of the command line."""
    found = {}
    for text in texts:
        name, equals, method = text.rpartition("=")
        if not equals or not name or not method:
            raise InputError(
                f"{text!r} names no checkpoint and method",
                where="--paper-method",
                fix="write it as NAME=METHOD",
            )
        found[name] = method
    return found


# --- which is which -------------------------------------------------------------------


def _methods_of(report: Report, named: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    names = dict.fromkeys(row.checkpoint for row in report.results)
    for name, method in named.items():
        if name not in names:
            raise InputError(
                f"the report has no checkpoint {name!r}",
                where="--paper-method",
                fix=choose(name, names),
            )
        if not methods_named(method):
            raise InputError(
                f"the paper has no method {method!r}",
                where="--paper-method",
                fix=choose(method, (one.name for one in methods())),
            )
    return {name: methods_named(named.get(name, entry_of(name))) for name in names}


# --- which figures --------------------------------------------------------------------


def _seen(report: Report) -> _Seen:
    groups: dict[str, dict[str, None]] = {}
    stages: dict[str, int] = {}
    for row in report.results:
        kind, _, task = row.group.partition(":")
        if kind == "task":
            groups.setdefault(row.audit, {})[task] = None
        if (row.audit, row.metric) == ("utility", "accuracy") and row.of.isdecimal():
            stages[row.checkpoint] = max(stages.get(row.checkpoint, 0), int(row.of))
    tasks = {audit: tuple(found) for audit, found in groups.items()}
    if order := report.settings.get("utility.order"):
        tasks["utility"] = tuple(str(order).split(","))
    return _Seen(report, tasks, _order(tasks.get("utility", ())), stages)


def _order(tasks: Sequence[str]) -> str:
    """The paper's order that a stream went through, its missing tasks apart."""
    ours = [folded(task) for task in tasks]
    for number, theirs in orders().items():
        if ours and [t for t in map(folded, theirs) if t in ours] == ours:
            return number
    return PRIMARY


def _rows(report: Report) -> Iterator[Row]:
    """One row a figure: of several seeds their entry, over as much as there is."""
    entries = {row.checkpoint for row in report.results}
    found: dict[tuple[str, ...], Row] = {}
    for row in report.results:
        key = (row.checkpoint, row.audit, row.metric, row.of, row.group)
        if entry_of(row.checkpoint) != row.checkpoint and entry_of(row.checkpoint) in (
            entries
        ):
            continue
        if key not in found or OVER.index(row.over) < OVER.index(found[key].over):
            found[key] = row
    yield from found.values()


def _figures(
    row: Row, methods_of: Mapping[str, Sequence[str]], seen: _Seen
) -> Iterator[list[Figure]]:
    for method in methods_of[row.checkpoint]:
        yield from _merged(_printed(row, method, seen))


def _printed(row: Row, method: str, seen: _Seen) -> list[Figure]:
    last = str(seen.stages.get(row.checkpoint, ""))
    stage = (row.audit, row.metric) == ("utility", "accuracy")
    found = []
    for of in (row.of, "last") if stage and row.of == last else (row.of,):
        if stage and of != "last" and not _same_start(row, seen):
            continue
        found += reference(row.audit, row.metric, of=of, group=row.group, method=method)
    return [one for one in found if one.order in ("", seen.order)]


def _same_start(row: Row, seen: _Seen) -> bool:
    """Whether stage K is the paper's: of a whole series with the same first tasks."""
    ours = [folded(task) for task in seen.tasks.get("utility", ())]
    theirs = [folded(task) for task in orders()[seen.order]]
    stage = int(row.of)
    whole = seen.stages.get(row.checkpoint) == len(ours)
    return whole and ours[:stage] == theirs[:stage]


def _merged(figures: Sequence[Figure]) -> list[list[Figure]]:
    """Figures by value; the one with most digits (and an interval) comes first."""
    groups: list[list[Figure]] = []
    finest = sorted(figures, key=lambda one: (one.step, not one.low_text))
    for one in finest:
        for group in groups:
            if one.base_model == group[0].base_model and one.rounds(group[0]):
                group.append(one)
                break
        else:
            groups.append([one])
    place = {id(one): number for number, one in enumerate(figures)}
    return sorted(groups, key=lambda group: min(place[id(one)] for one in group))


# --- one line -------------------------------------------------------------------------


def _line(row: Row, figures: Sequence[Figure], seen: _Seen) -> Line:
    first = figures[0]
    tables = ", ".join(dict.fromkeys(one.table for one in figures))
    printed = f"{first.shown()} ({first.method or 'checkpoint not named'}, {tables})"
    differs = "; ".join(_differences(row, first, seen))
    words = Cell(row.checkpoint), Cell(_name(row))
    return Line((*words, figure(row), Cell(printed), Cell(differs)), row.checkpoint)


def _name(row: Row) -> str:
    """As rules of a gate name it, with its group."""
    parts = ".".join(part for part in (row.audit, row.metric, row.of) if part)
    return parts if row.group == "pooled" else f"{parts} {row.group}"


def _differences(row: Row, printed: Figure, seen: _Seen) -> Iterator[str]:
    model = _base(row.checkpoint, seen.report)
    if _model(model) != _model(printed.base_model):
        yield f"model {model} / {printed.base_model}"
    yield from _tasks(row, seen)
    for ours, theirs in ((row.n, printed.n), (row.clusters, printed.clusters)):
        count, _, what = theirs.partition(" ")
        if theirs and str(ours) != count:
            yield f"{what} {ours} / {count}"
    if printed.spans is not None:
        spans = seen.report.manifest.n_spans
        yield f"another manifest, spans {spans} / {printed.spans}"
        caliper = seen.report.settings.get("caliper")
        if caliper != printed.caliper:
            yield f"caliper {caliper} / {printed.caliper}"
    if (row.interval, printed.interval) not in SAME_INTERVAL:
        yield f"interval {row.interval} / {printed.interval}"
    if row.over != "sources":
        yield f"interval over {row.over} / sources"
    if printed.note:
        yield printed.note


def _base(checkpoint: str, report: Report) -> str:
    known = {entry_of(one.name): one.base for one in report.checkpoints}
    return known.get(checkpoint) or str(report.settings.get("reference", "not known"))


def _model(name: str) -> str:
    return folded(name).removesuffix("hf")


def _tasks(row: Row, seen: _Seen) -> Iterator[str]:
    ours = seen.tasks.get(row.audit, ())
    theirs = setting().tasks
    if row.audit == "utility":
        stages = seen.stages.get(row.checkpoint, 0)
        if stages != len(theirs):
            yield f"stages {stages} / {len(theirs)}"
    if row.group != "pooled" and row.audit != "utility":
        return
    mine, its = [folded(task) for task in ours], [folded(task) for task in theirs]
    if not ours:
        yield f"tasks not known / {len(its)}"
    elif set(mine) != set(its):
        yield f"tasks {len(mine)} ({len({*mine} & {*its})} shared) / {len(its)}"
    elif row.audit == "utility" and mine != [folded(t) for t in orders()[seen.order]]:
        yield f"order {', '.join(ours)} / {', '.join(orders()[seen.order])}"


def _remarks(methods_of: Mapping[str, Sequence[str]], seen: _Seen) -> Iterator[str]:
    yield (
        f"The paper's task order {seen.order} is shown: "
        f"{', '.join(orders()[seen.order])}; {setting().train_rows} training rows. Its "
        "data, manifest, canaries and checkpoints are not published, its seeds and the "
        "sizes that are not named here not printed."
    )
    missing = [row for row in _rows(seen.report) if row.status == "not_estimable"]
    left = [row for row in missing if any(_figures(row, methods_of, seen))]
    if left:
        named = dict.fromkeys(f"{_name(row)} ({row.checkpoint})" for row in left)
        yield f"Not estimable here and left out: {', '.join(named)}."
    unknown = [name for name, found in methods_of.items() if not found]
    if unknown:
        yield (
            f"Named like no method of the paper: {', '.join(unknown)} "
            "(--paper-method NAME=METHOD says which one it is)."
        )
