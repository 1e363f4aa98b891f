"""The audits of a study: as many reports as the claims have baselines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from claims.plan import Order, Run
from claims.rules import CONTROL, CONTROLS, Claim, Figure, figure_of
from spark_audit.audits import Noise
from spark_audit.checkpoints.specs import Loading
from spark_audit.pipeline.request import Request
from spark_audit.pipeline.run import run
from spark_audit.report.folder import read_report
from spark_audit.results import Report
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.power import with_mde
from spark_train.run_folder import Folder

TIME = "time"
TRAINING = "training"
"""What is read from the folders of runs, and is no audit."""
ORDERS = 3
OPTIONS = {"noise": Noise(draws=2)}


@dataclass(frozen=True)
class Audited:
    """The trained runs of one base, and how they are audited.

    Attributes
    ----------
    runs
        Finished ones.
    folder
        Of the study: ``reports/`` and ``scores/`` stand in it.
    """

    runs: Sequence[Run]
    base: str
    manifest: Path
    folder: Path
    trained: Path
    device: str
    progress: Any
    _read: dict[Path, Report] = field(default_factory=dict, repr=False)

    def seeds(self, system: str, order: Order) -> list[Run]:
        """Its runs in a task order, by seed."""
        found = [r for r in self.runs if (r.system.name, r.order) == (system, order)]
        return sorted(found, key=lambda run: run.seed)

    def systems(self, order: Order) -> list[str]:
        """Those that have a run in a task order, in the order of the plan."""
        names = (run.system.name for run in self.runs if run.order == order)
        return list(dict.fromkeys(names))

    def report(
        self, audit: str, order: Order, names: Iterable[str], *, baseline: str = ""
    ) -> Report | None:
        """One audit of systems in a task order; a finished report is read.

        ``None`` where there is no run of any of them, or none of the baseline.
        """
        runs = {name: self.seeds(name, order) for name in dict.fromkeys(names)}
        runs = {name: found for name, found in runs.items() if found}
        if not runs or baseline not in ("", "base", *runs):
            return None
        # A contrast is of the seeds that all of them have.
        own = [{run.seed for run in found} for found in runs.values()]
        seeds = set.intersection(*own) if baseline else set.union(*own)
        specs = []
        for name, found in runs.items():
            kept = [run for run in found if run.seed in seeds]
            places = [str(self.trained / run.place) for run in kept]
            listed = f"[{','.join(places)}]" if len(places) > 1 else places[0]
            specs.append(f"{name}={listed}")
        beside = f"-{baseline}" if baseline else ""
        # Of other runs it is another report.
        of = hashlib.sha256("\n".join(specs).encode()).hexdigest()[:8]
        output = self.folder / "reports" / f"order-{order}-{audit}{beside}-{of}"
        if output not in self._read and (output / "report.json").exists():
            self._read[output] = read_report(output)
        if output in self._read:
            return self._read[output]
        request = Request(
            audits=(OPTIONS.get(audit, audit),),
            checkpoints=tuple(specs),
            base=self.base,
            baseline=baseline or None,
            manifest=self.manifest,
            output=output,
            scores=self.folder / "scores",
            formats=("json", "md", "csv"),
            loading=Loading(device=self.device),
        )
        made = run(request, progress=self.progress).report
        if made is not None:
            self._read[output] = made
        return made


def time_figure(audited: Audited, claim: Claim, *, alone: bool) -> Figure:
    """Seconds of runs, as ratio (to ``than``) or as correction's share, over seeds.

    Parameters
    ----------
    alone
        Whether runs had the machine to themselves: else only seconds of the processor
        count, which no other run slows.
    """
    values = []
    for mine in audited.seeds(claim.of, 1):
        own = _seconds(audited, mine, alone=alone)
        theirs = own
        if claim.than:
            others = [r for r in audited.seeds(claim.than, 1) if r.seed == mine.seed]
            theirs = _seconds(audited, others[0], alone=alone) if others else {}
        if not own or not theirs:
            continue
        part = sum(own.values()) if claim.than else own.get("correction", 0.0)
        values.append(part / sum(theirs.values()))
    if not values and not alone:
        shared = "runs shared the machine: train with --processes 1"
        return Figure(None, missing=shared)
    return over_values(values, over="seeds")


def loss_figure(audited: Audited, claim: Claim) -> Figure:
    """What correction leaves of its own loss, over seeds.

    The loss of rows set aside (``probe`` in ``metrics.jsonl``) at the end of a task's
    correction, divided by that at its start; of a run the mean over tasks.
    """
    kept_of_runs = []
    for trained in audited.seeds(claim.of, 1):
        losses_of_stages: dict[str, list[float]] = {}
        metrics = Folder(audited.trained / trained.place).metrics
        for line in metrics.read_text("utf-8").splitlines():
            step = json.loads(line)
            if step.get("probe") and step["part"] == "priv":
                losses_of_stages.setdefault(step["stage"], []).append(step["loss"])

        kept = [
            losses[-1] / losses[0]
            for losses in losses_of_stages.values()
            if len(losses) > 1 and losses[0] > 0
        ]
        if kept:
            kept_of_runs.append(float(np.mean(kept)))
    return over_values(kept_of_runs, over="seeds")


def _seconds(audited: Audited, run: Run, *, alone: bool) -> dict[str, float]:
    """Seconds of a run by kind of work, without looking at it; empty: disturbed."""
    record = Folder(audited.trained / run.place).read()
    assert record is not None
    if not alone and record.clock != "processor":
        return {}
    total: dict[str, float] = {}
    for kinds in record.seconds.values():
        for kind, seconds in kinds.items():
            total[kind] = total.get(kind, 0.0) + seconds
    # Looking at a run is no part of its method.
    for kind in ("answers", "probe"):
        total.pop(kind, None)
    return total


def over_values(values: Sequence[float], *, over: str) -> Figure:
    """Mean of values with Student's interval."""
    if not values:
        return Figure(None, missing="no run has it")
    estimate = with_mde(ratio_estimate(list(values), np.ones(len(values))))
    return Figure(
        estimate.value,
        estimate.low,
        estimate.high,
        estimate.mde,
        by_seed=tuple(values),
        over=over,
    )


def over_orders(figures: Iterable[Figure]) -> Figure:
    """Mean over task orders.

    The same texts are read in each, so that the half-width over sources is the mean of
    theirs; that over orders is Student's; both are added in quadrature: conservative.
    """
    known = [figure for figure in figures if figure.value is not None]
    if len(known) < ORDERS:
        return Figure(None, missing=f"it takes {ORDERS} task orders")
    if any(figure.low is None or figure.high is None for figure in known):
        return Figure(None, missing="an order has no interval")
    spread = over_values([figure.value or 0.0 for figure in known], over="")
    halves = [((f.high or 0.0) - (f.low or 0.0)) / 2 for f in known]
    wide = ((spread.high or 0.0) - (spread.low or 0.0)) / 2
    half = float(np.hypot(np.mean(halves), wide))
    smallest = float(
        np.hypot(np.mean([f.smallest or 0.0 for f in known]), spread.smallest or 0.0)
    )
    assert spread.value is not None
    return Figure(
        spread.value,
        spread.value - half,
        spread.value + half,
        smallest,
        by_seed=spread.by_seed,
        over=f"sources and {len(known)} orders",
    )


def unmet(claim: Claim, report: Report, utility: Report | None) -> str:
    """Why what a claim needs is not there; empty where it is.

    Parameters
    ----------
    report
        What the claim's figure is from.
    utility
        Of all systems in the claim's task order.
    """
    for need in claim.needs:
        if need == "learned":
            for name in _must_have_learned(claim):
                ask = Claim.model_construct(
                    audit="utility", metric="learning_accuracy", of=name
                )
                learned = figure_of(utility, ask) if utility else Figure(None)
                if not _beyond_chance(learned):
                    return (
                        f"{name} has not learned the tasks beyond their commonest "
                        "label; more rows or epochs may help"
                    )
        if need in CONTROLS:
            ask = claim.model_copy(update={"of": CONTROL, "than": ""})
            if not _beyond_chance(figure_of(report, ask)):
                return f"this audit does not find the positive control ({CONTROL})"
    return ""


def _must_have_learned(claim: Claim) -> list[str]:
    """Names of the systems without whose learning a claim means nothing.

    ER always: where it learns nothing, the tasks cannot be learned here. What the claim
    compares, too, unless it is about accuracy itself, as "DP-SGD costs utility" is: a
    model that learned nothing forgets nothing and remembers no identifier.
    """
    names = ["er"]
    if claim.audit != "utility" or claim.metric == "bwt":
        names += [name for name in (claim.of, claim.than) if name not in ("", "base")]
    return list(dict.fromkeys(names))


def _beyond_chance(figure: Figure) -> bool:
    """Whether a figure lies above what it is without any effect, if that is known."""
    low, chance = figure.low, figure.chance
    return low is not None and chance is not None and low > chance
