"""What a study is given, or makes: data, bases, settings, and its folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from claims import search
from claims.plan import SYSTEMS, systems, task_orders
from claims.request import SYSTEM_SETS, ClaimsRequest, TrainingOptions
from claims.rules import RULES
from spark_audit.checkpoints.detect import read_headers
from spark_audit.checkpoints.devices import pick_device
from spark_audit.checkpoints.untrusted import quiet
from spark_audit.data.examples import Example, data_files, write_examples
from spark_audit.demo import Size, make_data
from spark_audit.demo_base import make_tokenizer, train_base
from spark_audit.demo_rows import TASKS
from spark_audit.errors import InputError, choose
from spark_audit.files import (
    check_writable,
    parse_json,
    read_regular,
    sha256_file,
    write_text,
)
from spark_audit.pipeline.engines.cluster import check
from spark_train.privacy import groups as privacy_groups
from spark_train.training_methods import groups
from spark_train.training_settings import names, parse

Progress = Callable[[str, int, int], None]

STUDY, SECOND = "study.json", "second_base"
MADE = Size(base_rows=300, train_rows=60, test_rows=40, epochs=6, candidates=64)
QUICK = Size(base_rows=120, train_rows=24, test_rows=16, canaries=4, candidates=16)
"""Data and base that are made where none are given."""


def given(
    request: ClaimsRequest, show: Progress
) -> tuple[list[Path], str, ClaimsRequest]:
    """Data and base, and the request with a second base where both are made."""
    if request.data and request.base is not None:
        return data_files(request.data), request.base, request
    size = QUICK if request.quick else MADE
    size = replace(size, train_rows=request.rows or size.train_rows)
    made = request.output / "made"
    files = [made / "data" / f"{task}.jsonl" for task in TASKS]
    background, audited = make_data(0, size)
    for file, task in zip(files, TASKS, strict=True):
        write_examples(file, [row for row in audited if row.task == task])
    with quiet():
        tokenizer = make_tokenizer([example.text for example in background])
    train_base(made / "base", background, tokenizer, seed=0, progress=show)
    has_one_base = request.quick or request.first_order
    if request.second_base is None and not has_one_base:
        second = made / "second"
        train_base(second, background, tokenizer, seed=0, progress=show, family="qwen2")
        request = replace(request, second_base=str(second))
    return files, str(made / "base"), request


def identity(
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
        "training": _as_trained(request.training),
    }


def _as_trained(options: TrainingOptions) -> dict[str, Any]:
    """The options that a run's weights depend on; the machine is not one."""
    chosen = asdict(options)
    del chosen["device"]
    return {**chosen, "lora_targets": list(options.lora_targets)}


def claim_folder(folder: Path, mine: dict[str, Any]) -> None:
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


def settings_of(
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
            rows=median_rows(rows),
            processes=request.processes,
            device=request.loading.device,
            progress=show,
        )
        found = {"settings": chosen, "accuracies": accuracies, "rule": search.RULE}
        write_text(path, json.dumps(found, indent=1) + "\n")
    told = ", ".join(f"{k} x lr: {v:.2f}" for k, v in found["accuracies"].items())
    return {**found["settings"], **mine}, f"by rule (accuracy when learned: {told})"


def median_rows(rows: Sequence[Example]) -> int:
    """Train rows of the median task."""
    tasks = {row.task for row in rows}
    trained = [row.task for row in rows if row.split == "train"]
    return int(np.median([trained.count(task) for task in tasks]))


def check_data(request: ClaimsRequest, rows: Sequence[Example], base: str) -> None:
    """Refuse data and bases that no run could use, before the folder is claimed."""
    task_orders(rows)
    for place in filter(None, (base, request.second_base)):
        read_headers(place, request.loading)


def check_request(request: ClaimsRequest) -> None:
    """Refuse what can be told before any work.

    A setting that no system reads would be dropped in silence.
    """
    _check_data_and_base(request)
    check_writable(request.output)
    if request.engine == "ray":
        check()
    else:
        pick_device(request.loading.device)
    if request.no_training and not any(request.output.glob("runs/*/*/*/run.json")):
        raise no_run(request.output)
    every_system = systems(all_=True)
    names_of_systems = [*SYSTEM_SETS, *(system.name for system in every_system)]
    for name in request.system_names:
        if name not in names_of_systems:
            raise InputError(
                f"there is no system {name!r}",
                where="--systems",
                fix=choose(name, names_of_systems),
            )
    known: set[str] = set()
    for system in every_system:
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


def _check_data_and_base(request: ClaimsRequest) -> None:
    """Refuse data without a base, and a base without data; a plan needs both."""
    if request.data and request.base is None:
        raise InputError(
            "needs the model that learns it",
            where="--data",
            fix="add --base MODEL, or leave out --data to have both made",
        )
    if request.base is not None and not request.data:
        raise InputError(
            "needs the rows that it learns",
            where="--base",
            fix="add --data FILE, or leave out --base to have both made",
        )
    if request.plan and not request.data:
        raise InputError(
            "measures your own data and base",
            where="--plan",
            fix="add --data FILE and --base MODEL",
        )


def no_run(folder: Path) -> InputError:
    """What is said where there is nothing to judge."""
    fix = "leave --no-training out"
    return InputError("holds no finished run", where=str(folder), fix=fix)
