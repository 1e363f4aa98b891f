"""Train, audit and judge the paper's claims on given data."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from claims import costs, facts, given, judging, pages, search
from claims.auditing import Audited
from claims.plan import Run, runs, systems, task_orders
from claims.request import ClaimsRequest
from claims.rules import Decision, claims
from claims.training import Cluster, finished, train_all
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.untrusted import quiet
from spark_audit.data.examples import Example, read_examples
from spark_audit.files import alone, write_text
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.scoring.threads import use_threads

Progress = Callable[[str, int, int], None]

SHARED, LOCK = "runs-shared-the-machine", ".lock"


@dataclass(frozen=True)
class Outcome:
    """What a study came to."""

    folder: Path
    decisions: tuple[Decision, ...]

    @property
    def answer(self) -> str:
        """How many claims hold, fail and cannot be judged."""
        return pages.answer(self.decisions)


def study(request: ClaimsRequest, *, progress: Progress | None = None) -> Outcome:
    """Train what is not there yet, audit it, and write ``claims.html``, md and json.

    Raises
    ------
    InputError
        If the folder holds another study, or the data has fewer than two tasks.
    SparkError
        What training and audits raise; what was finished is used again.
    """
    show = progress or (lambda what, done, total: None)
    folder = request.output
    on_ray = request.engine == "ray"
    given.check_request(request)
    several = on_ray or request.processes > 1
    threads = use_threads(1) if several else contextlib.nullcontext()
    with alone(folder / LOCK, wait=False), threads, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files, base, request = given.given(request, show)
        rows = list(read_examples(*files))
        given.check_data(request, rows, base)
        given.claim_folder(folder, given.identity(request, files, base))
        settings, why = given.settings_of(request, rows, base, show)
        planned = planned_runs(request, rows)
        firsts = [run for run in planned if run.order != "second"]
        others = [run for run in planned if run.order == "second"]
        train = partial(
            train_all,
            data=files,
            settings=settings,
            folder=folder / "runs",
            processes=request.processes,
            options=request.training,
            progress=show,
            cluster=Cluster(request.address) if on_ray else None,
        )
        if not request.no_training:
            if several:
                write_text(folder / SHARED, "")
            train(firsts, base=base)
            if request.second_base is not None:
                train(others, base=request.second_base)
        done = [run for run in firsts if finished(folder / "runs" / run.place)]
        if not done:
            raise given.no_run(folder)
        auditing = partial(_audited, request, files, show)
        of_base = {False: auditing(base, done, "manifest")}
        beside = [run for run in others if finished(folder / "runs" / run.place)]
        if request.second_base is not None and beside:
            of_base[True] = auditing(request.second_base, beside, "manifest-second")
        undisturbed = not (folder / SHARED).exists()
        unlike = search.unlike(given.median_rows(rows), settings)
        decisions = tuple(judging.decided(of_base, alone=undisturbed, unlike=unlike))
        found = pages.Study(
            decisions,
            facts.subject(request, rows, done),
            facts.caveat(decisions, given.median_rows(rows), settings),
            facts.facts(request, rows, base, done, planned, settings, why),
            facts.systems_table(of_base.values()),
            facts.OURS if request.data else (facts.MADE_TASKS, *facts.OURS),
        )
        pages.write(found, folder)
    return Outcome(folder, decisions)


def planned_runs(request: ClaimsRequest, rows: Sequence[Example]) -> list[Run]:
    """Return every run of a study, in the order in which they are trained.

    Of the core systems only those that a claim reads, in the task orders in which it
    reads them. The few claims that read another system cannot be judged then.
    """
    chosen = systems(all_=request.systems != "core")
    if request.system_names:
        chosen = [system for system in chosen if system.name in request.system_names]
    planned = runs(
        chosen,
        task_orders(rows),
        seeds=1 if request.quick else request.seeds,
        order_seeds=request.order_seeds,
        second=request.second_base is not None,
    )
    if request.quick or request.first_order:
        planned = (run for run in planned if run.order == 1)
    if request.quick or request.systems != "core":
        return list(planned)
    read = {
        (name, order)
        for claim in claims()
        for name in claim.systems
        for order in ((1, 2, 3) if claim.order == "average" else (claim.order,))
    }
    return [run for run in planned if (run.system.name, run.order) in read]


def plan(request: ClaimsRequest, *, progress: Progress | None = None) -> list[str]:
    """Return what the study would train, in hours and money; nothing is kept.

    Raises
    ------
    InputError
        Without data and a base, which a study makes for itself and needs no plan for.
    """
    show = progress or (lambda what, done, total: None)
    given.check_request(request)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files, base, request = given.given(request, show)
        rows = list(read_examples(*files))
        given.check_data(request, rows, base)
        settings = dict(text.split("=", 1) for text in request.settings)
        bases = {False: base}
        if request.second_base is not None:
            bases[True] = request.second_base
        planned = costs.planned_costs(
            planned_runs(request, rows),
            bases=bases,
            rows=rows,
            settings=settings,
            options=request.training,
            progress=show,
        )
    return list(costs.lines(planned, hour_price=request.hour_price))


def _audited(
    request: ClaimsRequest,
    files: Sequence[Path],
    show: Progress,
    base: str,
    done: Sequence[Run],
    name: str,
) -> Audited:
    folder = request.output
    path = folder / f"{name}.json"
    if not path.exists():
        with quiet():
            opened = open_checkpoint(base, name="base", device=request.loading.device)
        manifest = build_manifest(
            read_examples(*files),
            opened,
            name=name,
            n_candidates=request.candidates,
            data=files,
            progress=show,
        )
        write_manifest(manifest, path)
    return Audited(
        runs=done,
        base=base,
        manifest=path,
        folder=folder / name.replace("manifest", "audits"),
        trained=folder / "runs",
        device=request.loading.device,
        progress=show,
    )
