"""What a study's pages say beside its claims: systems, facts, what is ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_audit.data.examples import Example
from spark_audit.provenance import sha256_file
from spark_train.claims import pages, search
from spark_train.claims.auditing import Audited, over_orders
from spark_train.claims.plan import SYSTEMS, Order, Run
from spark_train.claims.rules import RULES, Claim, Decision, Figure, figure_of
from spark_train.request import ClaimsRequest

FIGURES = ("last", "avg", "bwt")
OURS = (
    "settings that the paper does not print have the defaults of `spark-train "
    "methods`, which marks them as ours",
    "PeCL: no code of it is public; noise on embeddings, the schedule of MemReg and "
    "the form of unlearning are ours where its text leaves them open",
    "made data: its tasks are those that the rule for settings is carried out on, of "
    "another seed",
    "prompts, label words, identifiers and canaries are of the data given, not the "
    "paper's",
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
    audited: Audited,
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Last, Avg, BWT and NLL of all systems, by task order and over them."""
    header = ("system", "order", "seeds", "Last", "Avg", "BWT", "NLL pii", "NLL low")
    wanted = [("utility", name, "") for name in FIGURES]
    wanted += [("nll", "nll", part) for part in ("pii", "low")]
    orders: list[Order] = list(dict.fromkeys(run.order for run in audited.runs))
    found: dict[str, dict[Order, list[Figure]]] = {}
    for order in orders:
        names = audited.systems(order)
        reports = {
            audit: audited.report(audit, order, names) for audit in ("utility", "nll")
        }
        for name in names:
            own = found.setdefault(name, {}).setdefault(order, [])
            for audit, metric, part in wanted:
                ask = Claim.model_construct(
                    audit=audit, metric=metric, part=part, of=name, than=""
                )
                report = reports[audit]
                own.append(figure_of(report, ask) if report else Figure(None))
    lines: list[tuple[str, ...]] = []
    for name, by_order in found.items():
        for order, figures in by_order.items():
            count = len(audited.seeds(name, order))
            told = [pages.measured(figure) for figure in figures]
            lines.append((name, str(order), str(count), *told))
        if len(by_order) > 1:
            columns = zip(*by_order.values(), strict=True)
            averages = [over_orders(each) for each in columns]
            told = [pages.measured(figure) for figure in averages]
            lines.append((name, "average", "", *told))
    return header, tuple(lines)


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
