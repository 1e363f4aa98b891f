"""Whether a folder holds the finished report of a request, and nothing has changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.checkpoints.specs import is_server, parse_specs
from spark_audit.checkpoints.untrusted import HUB
from spark_audit.files import (
    read_regular,
    write_text,
)
from spark_audit.pipeline.request import Request
from spark_audit.provenance import sha256_json, versions
from spark_audit.results import Report

if TYPE_CHECKING:
    from spark_audit.checkpoints.open import OpenCheckpoints
from spark_audit.pipeline.folders import MANIFESTS, REPORTS

INPUTS_FILE = Path("scores") / "inputs.json"

MAX_FILES = 20_000
"""Files of a run at most: of a folder with more, somebody else's are most."""

States = dict[str, list[int]]


def unchanged(request: Request) -> Path | None:
    """The folder with the finished report of a request, if nothing has changed."""
    if not _lasting(request):
        return None
    one = request.output
    found = REPORTS.glob(f"*/{INPUTS_FILE}") if one is None else [one / INPUTS_FILE]
    for path in found:
        try:
            kept = json.loads(read_regular(path))
            states = {**kept["inputs"], **kept["outputs"]}
            if kept["request"] == _hash(request) and _states(states) == states:
                return path.parent.parent
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def inputs_of(request: Request, opening: OpenCheckpoints) -> States | None:
    """What a report comes of, as it is now; ``None`` where files do not show all."""
    if not _lasting(request):
        return None
    named = [request.manifest or MANIFESTS, *request.data, *request.relearn]
    named += [path for audit in request.audits for path in audit.inputs]
    named += [Path(one) for one in [request.loading.tokenizer] if one]
    # Of a series the folder around what is opened: stages may be added.
    paths = [path for spec in parse_specs(list(request.ckpt)) for path in spec.paths]
    places = {*opening.places, *named, *(Path(one).expanduser() for one in paths)}
    files = list(islice(_files(places), MAX_FILES + 1))
    return _states(files) if len(files) <= MAX_FILES else None


def keep_inputs(
    request: Request, inputs: States | None, folder: Path, report: Report
) -> None:
    """Write them beside the scores of the report that came of them."""
    names = {name for names in report.files.values() for name in names}
    outputs = [folder / name for name in {*names, "report.json"}]
    kept = {"request": _hash(request), "inputs": inputs, "outputs": _states(outputs)}
    if inputs is not None:
        write_text(folder / INPUTS_FILE, json.dumps(kept), mode=0o600)


def _lasting(request: Request) -> bool:
    """Whether files alone say what a request reads: no server and no hub."""
    loading = request.loading
    named = [*request.ckpt, request.base or "", loading.tokenizer or ""]
    named += [one.partition("=")[2] for one in request.ckpt]
    return not any(one.lstrip("[").startswith(HUB) or is_server(one) for one in named)


def _hash(request: Request) -> str:
    """Of what was asked, where, and of the program with its libraries."""
    source, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted((*source.rglob("*.py"), *source.rglob("*.toml"))):
        digest.update(path.read_bytes())
    # Workers of one report are asked for the same.
    asked = repr(replace(request, command=(), shard=(0, 1)))
    return sha256_json([asked, os.getcwd(), versions(), digest.hexdigest()])


def _states(paths: Iterable[str | Path]) -> States:
    """Size, times and inode of files and folders; nothing of one that is not there."""
    states: States = {}
    for path in map(os.path.abspath, paths):
        states[path] = []
        with suppress(OSError):
            at = os.stat(path)
            states[path] = [at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_ino]
    return states


def _files(places: Iterable[str | Path]) -> Iterator[str | Path]:
    """Places and all files and folders in them."""
    for place in places:
        yield place
        for at, folders, names in os.walk(place, followlinks=True):
            yield from (os.path.join(at, name) for name in (*folders, *names))
