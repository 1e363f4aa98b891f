"""Find a finished report that the same request would only write again.

Beside its scores a report keeps a record of all that it comes from
(``inputs_record.py``). If the request, the program and all files are the same, a run
returns the report at once.

``run.py`` calls :func:`unchanged` first, :func:`inputs_of` before scoring and
:func:`keep_inputs` at the end. A further file that a run reads is added to
:func:`inputs_of`; an audit names its own in ``inputs``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.checkpoints.specs import is_server, parse_specs
from spark_audit.checkpoints.untrusted import HUB
from spark_audit.pipeline.folders import MANIFESTS
from spark_audit.pipeline.inputs_record import (
    REPORTS,
    States,
    folders_with_record,
    is_current,
    program_sha256,
    read_record,
    states_of,
    write_record,
)
from spark_audit.pipeline.request import Request
from spark_audit.provenance import sha256_json
from spark_audit.results import Report

if TYPE_CHECKING:
    from spark_audit.checkpoints.open import OpenCheckpoints
    from spark_audit.scoring.store import Store

MAX_FILES = 20_000
"""Files of a run whose states are kept, at most.

A folder with more holds mostly files of something else.
"""


def unchanged(request: Request) -> Path | None:
    """Return the folder with the finished report of a request.

    ``None`` if there is none, or anything has changed since it was written.
    """
    if not _reads_only_files(request):
        return None

    if request.output is not None:
        folders = [request.output]
    else:
        folders = folders_with_record(REPORTS)

    request_sha256 = _hash(request)
    for folder in folders:
        record = read_record(folder)
        if record is None or record.get("request") != request_sha256:
            continue
        if is_current(record):
            return folder
    return None


def inputs_of(request: Request, opening: OpenCheckpoints) -> States | None:
    """Return the states of all files that a report will come from, as they are now.

    It is called before scoring, so that a file that changes meanwhile counts as
    changed. ``None``: checkpoints come from a server or a hub, or the files are too
    many.
    """
    if not _reads_only_files(request):
        return None

    paths = {*opening.files_and_folders, request.manifest or MANIFESTS}
    paths |= {*request.data, *request.relearn}
    for audit in request.audits:
        paths.update(audit.inputs)
    if request.loading.tokenizer:
        paths.add(Path(request.loading.tokenizer))
    # The whole folder of a series, as stages may be added to it.
    for spec in parse_specs(list(request.checkpoints)):
        paths.update(Path(os.path.expanduser(path)) for path in spec.paths)

    # One file above the limit is enough to see that there are too many.
    files = list(islice(_files(paths), MAX_FILES + 1))
    return states_of(files) if len(files) <= MAX_FILES else None


def keep_inputs(
    request: Request,
    inputs: States | None,
    folder: Path,
    report: Report,
    store: Store,
) -> None:
    """Write the record of a finished report: the states of inputs and of its files.

    Parameters
    ----------
    inputs
        As :func:`inputs_of` returns them; ``None``: no record is written.
    folder
        The folder of the report.
    store
        The store of its scores. Parts that others add later are no change.
    """
    if inputs is None:
        return

    outputs = {folder / "report.json"}
    for names in report.files.values():
        outputs.update(folder / name for name in names)
    record = {
        "request": _hash(request),
        "inputs": inputs,
        "outputs": states_of(outputs),
        "scores": states_of(store.files()),
    }
    write_record(folder, record)


def _reads_only_files(request: Request) -> bool:
    """Return whether all inputs are files, without a server and the hub."""
    # What is open may have changed since it was opened.
    if request.opened or request.open_manifest is not None:
        return False

    sources = [
        *request.checkpoints,
        request.base or "",
        request.loading.tokenizer or "",
    ]
    # In NAME=PATH, PATH may be the address of a server.
    sources += [typed.partition("=")[2] for typed in request.checkpoints]

    for source in sources:
        if is_server(source) or source.lstrip("[").startswith(HUB):
            return False
    return True


def _hash(request: Request) -> str:
    """Return a hash of the request, the working directory, and all that computes."""
    # Without its command and shard, the request is the same for all its workers.
    fields = repr(replace(request, command=(), shard=(0, 1)))
    return sha256_json([fields, os.getcwd(), program_sha256()])


def _files(paths: Iterable[str | Path]) -> Iterator[str | Path]:
    """Yield the paths, and all files and folders in them."""
    for path in paths:
        yield path
        for folder, folders, names in os.walk(path, followlinks=True):
            for name in (*folders, *names):
                yield os.path.join(folder, name)
