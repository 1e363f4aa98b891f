"""What a study's pages say beside its claims: systems, facts, what is ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from claims import pages, search
from claims.auditing import Audited, over_orders
from claims.plan import SYSTEMS, Order, Run
from claims.request import ClaimsRequest
from claims.rules import RULES, Claim, Decision, Figure, figure_of
from spark_audit.data.examples import Example
from spark_audit.files import sha256_file

SYSTEM = ("system", "order", "seeds", "Last", "Avg", "BWT", "NLL pii", "NLL low")
FIGURES = ("last", "avg", "bwt")
MADE_TASKS = (
    "tasks, base and identifiers are made up; settings were found on the same kind of "
    "tasks, drawn anew"
)
OURS = (
    "settings that the paper does not print have the defaults of `spark-train "
    "methods`, which marks them as ours",
    "PeCL: no code of it is public; noise on embeddings, the schedule of MemReg and "
    "the form of unlearning are ours where its text leaves them open",
    "prompts, label words, identifiers and canaries are of the data given, not the "
    "paper's",
)


def subject(
    request: ClaimsRequest, rows: Sequence[Example], done: Sequence[Run]
) -> str:
    """Model, data and runs, in a sentence."""
    tasks = len({row.task for row in rows})
    train = sum(row.split == "train" for row in rows)
    base = Path(request.base).name if request.base else "a base made for this"
    kind = "" if request.base else "made-up "
    seeds = len({run.seed for run in done})
    several = f", {seeds} seeds of the first task order" if seeds > 1 else ", one seed"
    return (
        f"Base: {base}. Data: {tasks} {kind}tasks with {train} train and "
        f"{len(rows) - train} test rows in all{several}."
    )


def caveat(
    decisions: Iterable[Decision], rows: int, settings: Mapping[str, Any]
) -> str:
    """What few steps do to replay; only where a claim of retention fails."""
    steps = search.steps(rows, settings)
    failing = any(
        d.verdict == "fails" and "learned" in d.claim.needs for d in decisions
    )
    if steps >= search.PAPER_STEPS // 2 or not failing:
        return ""
    return (
        f"A task has {steps} steps here and about {search.PAPER_STEPS} in the paper: "
        "claims of retention that fail here may hold with more."
    )


def systems_table(
    bases: Iterable[Audited],
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Last, Avg, BWT and NLL of all systems, by task order and over them."""
    lines = [line for audited in bases for line in _systems(audited)]
    return SYSTEM, tuple(lines)


def _systems(audited: Audited) -> Iterator[tuple[str, ...]]:
    wanted = [("utility", name, "") for name in FIGURES]
    wanted += [("nll", "nll", part) for part in ("pii", "low")]
    orders: list[Order] = list(dict.fromkeys(run.order for run in audited.runs))
    found: dict[str, dict[Order, list[Figure]]] = {}
    for order in orders:
        names = audited.systems(order)
        reports = {
            audit: audited.report(audit, order, names) for audit in ("utility", "nll")
        }
        first = [] if order in (2, 3) else ["base"]  # it is the same in all
        for name in (*names, *first):
            own = found.setdefault(name, {}).setdefault(order, [])
            for audit, metric, part in wanted:
                ask = Claim.model_construct(
                    audit=audit, metric=metric, part=part, of=name, than=""
                )
                report = reports[audit]
                own.append(figure_of(report, ask) if report else Figure(None))
    for name, by_order in found.items():
        for order, figures in by_order.items():
            count = len(audited.seeds(name, order))
            told = [pages.measured(figure) for figure in figures]
            yield (name, str(order), str(count or "-"), *told)
        if len(by_order) > 1:
            columns = zip(*by_order.values(), strict=True)
            averages = [over_orders(each) for each in columns]
            told = [pages.measured(figure) for figure in averages]
            yield (name, "average", "", *told)


def facts(
    request: ClaimsRequest,
    rows: Sequence[Example],
    base: str,
    done: Sequence[Run],
    planned: Sequence[Run],
    settings: dict[str, Any],
    why: str,
) -> dict[str, str]:
    """What a study is of: name -> text."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    train = sum(row.split == "train" for row in rows)
    seeds = sorted({run.seed for run in done})
    missing = [
        str(run.place) for run in planned if run.order != "second" and run not in done
    ]
    return {
        "base": Path(base).name,
        "data": f"{len(tasks)} tasks ({', '.join(tasks)}), {train} train rows, "
        f"{len(rows) - train} test rows",
        "runs": f"{len(done)} with {len(seeds)} seed(s)"
        + (f"; planned and not finished: {', '.join(missing)}" if missing else ""),
        "settings": f"{why}: " + ", ".join(f"{k}={v}" for k, v in settings.items()),
        "candidates": str(request.candidates),
        "rules": f"claims.toml, SHA-256 {sha256_file(RULES)[:16]}",
        "systems": f"systems.toml, SHA-256 {sha256_file(SYSTEMS)[:16]}",
    }
