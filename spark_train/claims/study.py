"""``spark-train claims``: train, audit and judge the paper's claims on given data."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from spark_audit.checkpoints.detect import recipe
from spark_audit.checkpoints.offline import quiet
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.data.examples import (
    Example,
    data_files,
    read_examples,
    write_examples,
)
from spark_audit.demo.models import make_tokenizer, one_thread, train_base
from spark_audit.demo.run import Size, make_data
from spark_audit.demo.text import TASKS
from spark_audit.errors import InputError, choose
from spark_audit.files import check_writable, parse_json, read_regular, write_text
from spark_audit.locks import alone
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.pipeline.engines.ray.cluster import check
from spark_audit.provenance import sha256_file
from spark_audit.results import Report
from spark_train.claims import pages, search
from spark_train.claims.auditing import (
    TIME,
    Audited,
    over_orders,
    time_figure,
    unmet,
)
from spark_train.claims.plan import SYSTEMS, Order, Run, runs, systems, task_orders
from spark_train.claims.rules import (
    RULES,
    Claim,
    Decision,
    Figure,
    claims,
    decide,
    figure_of,
)
from spark_train.claims.training import Cluster, finished, train_all
from spark_train.methods import groups
from spark_train.privacy import groups as privacy_groups
from spark_train.request import ClaimsRequest
from spark_train.settings import names, parse

Progress = Callable[[str, int, int], None]

STUDY, SHARED, LOCK = "study.json", "runs-shared-the-machine", ".lock"
SECOND = "second_base"
MADE = Size(base_rows=300, train_rows=60, test_rows=40, epochs=6, candidates=64)
QUICK = Size(base_rows=120, train_rows=24, test_rows=16, canaries=4, candidates=16)
"""Data and base that are made where none are given."""
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


@dataclass(frozen=True)
class Outcome:
    """What a study came to."""

    folder: Path
    decisions: tuple[Decision, ...]

    @property
    def answer(self) -> str:
        """How many claims hold, fail and cannot be told."""
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
    _check_request(request)
    several = on_ray or request.processes > 1
    threads = one_thread() if several else contextlib.nullcontext()
    with alone(folder / LOCK, wait=False), threads, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files, base, request = _given(request, show)
        rows = list(read_examples(*files))
        _check(request, rows, base)
        _claim_folder(folder, _identity(request, files, base))
        settings, why = _settings(request, rows, base, show)
        planned = list(
            runs(
                systems(all_=request.systems == "all"),
                task_orders(rows),
                seeds=1 if request.quick else request.seeds,
                second=request.second_base is not None,
            )
        )
        if request.quick:
            planned = [run for run in planned if run.order == 1]
        firsts = [run for run in planned if run.order != "second"]
        others = [run for run in planned if run.order == "second"]
        train = partial(
            train_all,
            data=files,
            settings=settings,
            folder=folder / "runs",
            processes=request.processes,
            device=request.loading.device,
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
            raise _no_run(folder)
        auditing = partial(_audited, request, files, show)
        of_base = {False: auditing(base, done, "manifest")}
        beside = [run for run in others if finished(folder / "runs" / run.place)]
        if request.second_base is not None and beside:
            of_base[True] = auditing(request.second_base, beside, "manifest-second")
        decisions = tuple(_decided(of_base, alone=not (folder / SHARED).exists()))
        facts = _facts(request, files, base, done, planned, settings, why)
        told = _systems_table(of_base[False])
        caveat = _caveat(_median_rows(rows), settings)
        found = pages.Study(decisions, caveat, facts, told, OURS)
        pages.write(found, folder)
    return Outcome(folder, decisions)


# --- what is given, or made -----------------------------------------------------------


def _given(
    request: ClaimsRequest, show: Progress
) -> tuple[list[Path], str, ClaimsRequest]:
    """Data and base, and the request with a second base where both are made."""
    if request.data and request.base is not None:
        return data_files(request.data), request.base, request
    if request.data or request.base is not None:
        raise InputError(
            "belong together", where="--data and --base", fix="give both, or neither"
        )
    size = QUICK if request.quick else MADE
    made = request.output / "made"
    files = [made / "data" / f"{task}.jsonl" for task in TASKS]
    background, audited = make_data(0, size)
    for file, task in zip(files, TASKS, strict=True):
        write_examples(file, [row for row in audited if row.task == task])
    with quiet():
        tokenizer = make_tokenizer([example.text for example in background])
    train_base(made / "base", background, tokenizer, seed=0, progress=show)
    if request.second_base is None and not request.quick:
        second = made / "second"
        train_base(second, background, tokenizer, seed=0, progress=show, family="qwen2")
        request = replace(request, second_base=str(second))
    return files, str(made / "base"), request


def _identity(
    request: ClaimsRequest, files: Sequence[Path], base: str
) -> dict[str, Any]:
    """What may not change from one call to the next."""
    return {
        "data": sorted(sha256_file(file) for file in files),
        "base": base,
        SECOND: request.second_base,
        "settings": list(request.settings),
        "by": _by(request),
        "candidates": request.candidates,
        "systems": sha256_file(SYSTEMS),
        "rules": sha256_file(RULES),
    }


def _claim_folder(folder: Path, mine: dict[str, Any]) -> None:
    """Refuse a folder of another study; a second base may be added later."""
    path = folder / STUDY
    if path.exists():
        found = parse_json(read_regular(path), place=str(path))
        if found.get(SECOND) is None:
            found[SECOND] = mine[SECOND]
        differing = [key for key, value in mine.items() if found.get(key) != value]
        if differing:
            raise InputError(
                f"holds a study with other {' and '.join(differing)}",
                where=str(folder),
                fix="give another -o",
            )
    write_text(path, json.dumps(mine, indent=1) + "\n")


def _by(request: ClaimsRequest) -> str:
    return request.by or ("paper" if request.data else "rule")


def _settings(
    request: ClaimsRequest, rows: Sequence[Example], base: str, show: Progress
) -> tuple[dict[str, Any], str]:
    """Settings of all runs, and where they are from."""
    path = request.output / "settings.json"
    mine: dict[str, Any] = {}
    for text in request.settings:
        name, _, value = (part.strip() for part in text.partition("="))
        mine[name] = value
    if _by(request) == "paper":
        return mine, "the paper's" + (", and --set" if mine else "")
    if path.exists():
        found = parse_json(read_regular(path), place=str(path))
    else:
        chosen, accuracies = search.search(
            base,
            request.output / "search",
            rows=_median_rows(rows),
            processes=request.processes,
            device=request.loading.device,
            progress=show,
        )
        found = {"settings": chosen, "accuracies": accuracies, "rule": search.RULE}
        write_text(path, json.dumps(found, indent=1) + "\n")
    told = ", ".join(f"{k} x lr: {v:.2f}" for k, v in found["accuracies"].items())
    return {**found["settings"], **mine}, f"by rule (accuracy when learned: {told})"


def _median_rows(rows: Sequence[Example]) -> int:
    """Train rows of the median task."""
    tasks = {row.task for row in rows}
    trained = [row.task for row in rows if row.split == "train"]
    return int(np.median([trained.count(task) for task in tasks]))


def _caveat(rows: int, settings: dict[str, Any]) -> str:
    """What few steps do to replay, which the paper's settings never meet."""
    steps = search.steps(rows, settings)
    if steps >= search.PAPER_STEPS // 2:
        return ""
    return (
        f"A task has {steps} steps here and about {search.PAPER_STEPS} in the paper: "
        "claims of retention that fail here may hold with more."
    )


def _check(request: ClaimsRequest, rows: Sequence[Example], base: str) -> None:
    """Refuse data and bases that no run could use, before the folder is claimed."""
    task_orders(rows)
    for place in filter(None, (base, request.second_base)):
        recipe(place, request.loading)


def _check_request(request: ClaimsRequest) -> None:
    """Refuse what can be told before any work.

    A setting that no system reads would be dropped in silence.
    """
    check_writable(request.output)
    if request.engine == "ray":
        check(request.address)
    if request.no_training and not any(request.output.glob("runs/*/*/*/run.json")):
        raise _no_run(request.output)
    known: set[str] = set()
    for system in systems(all_=True):
        read = [*groups(system.method)]
        read += privacy_groups(system.dp) if system.dp != "none" else ()
        mine = names(read)
        known |= set(mine)
        fitting = [t for t in request.settings if t.partition("=")[0].strip() in mine]
        parse(fitting, groups=read, method=system.method)
    for text in request.settings:
        name = text.partition("=")[0].strip()
        if name not in known:
            raise InputError(
                f"no system has a setting {name!r}",
                where="--set",
                fix=choose(name, sorted(known)),
            )


def _no_run(folder: Path) -> InputError:
    fix = "leave --no-training out"
    return InputError("holds no finished run", where=str(folder), fix=fix)


# --- audits and decisions -------------------------------------------------------------


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


def _decided(of_base: dict[bool, Audited], *, alone: bool) -> Iterable[Decision]:
    told = claims()
    for claim in told:
        audited = of_base.get(claim.order == "second")
        if audited is None:
            yield Decision(claim, Figure(None), "not run", "no second base was given")
            continue
        lacking = [
            name
            for name in claim.systems
            if name != "base" and not audited.seeds(name, _first_order(claim))
        ]
        if lacking:
            why = f"{', '.join(lacking)} was not trained"
            yield Decision(claim, Figure(None), "not run", why)
            continue
        yield _decision(claim, told, audited, alone=alone)


def _first_order(claim: Claim) -> Order:
    return claim.order if claim.order != "average" else 1


def _decision(
    claim: Claim, told: Sequence[Claim], audited: Audited, *, alone: bool
) -> Decision:
    if claim.audit == TIME:
        reason = "" if alone else "runs shared the machine: train with --processes 1"
        return decide(claim, time_figure(audited, claim), unmet=reason)
    orders = [claim.order] if claim.order != "average" else [1, 2, 3]
    figures, reason = [], ""
    for order in orders:
        if not audited.seeds(claim.of, order):
            continue
        report = _report(claim, told, audited, order)
        if report is None:
            continue
        figures.append(figure_of(report, claim))
        utility = audited.report("utility", order, audited.systems(order))
        reason = reason or unmet(claim, report, utility)
    if claim.order == "average":
        return decide(claim, over_orders(figures), unmet=reason)
    if not figures:
        return decide(claim, Figure(None, missing="no report"))
    return decide(claim, figures[0], unmet=reason)


def _report(
    claim: Claim, told: Sequence[Claim], audited: Audited, order: Order
) -> Report | None:
    """The report of all claims that read this audit beside this baseline."""
    if not claim.than and claim.audit in ("utility", "nll", "matched"):
        return audited.report(claim.audit, order, audited.systems(order))

    def seeds(one: Claim) -> set[int]:
        """Those that a claim's contrast has."""
        names = [name for name in one.systems if name != "base"]
        of = [{run.seed for run in audited.seeds(name, order)} for name in names]
        return set.intersection(*of) if all(of) else set()

    alike = [
        one
        for one in told
        if (one.audit, one.than) == (claim.audit, claim.than)
        and one.order in (order, "average")
        and seeds(one) == seeds(claim)
    ]
    names = [name for one in alike for name in one.systems if name != "base"]
    return audited.report(claim.audit, order, names, baseline=claim.than)


# --- what stands on the pages ---------------------------------------------------------


def _systems_table(
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


def _facts(
    request: ClaimsRequest,
    files: Sequence[Path],
    base: str,
    done: Sequence[Run],
    planned: Sequence[Run],
    settings: dict[str, Any],
    why: str,
) -> dict[str, str]:
    rows = list(read_examples(*files))
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
