"""Whether the same command would write the same report: then it has nothing to do.

A finished report keeps beside its scores which files it came of, with size, times and
inode of each, and a hash of the request and of the program. Where all are the same,
nothing is opened, scored or concluded again, and no library of models is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from spark_audit.checkpoints.locate import HUB
from spark_audit.checkpoints.server import is_server
from spark_audit.files import read_regular, write_text
from spark_audit.pipeline.engines.contract import Engine
from spark_audit.pipeline.folders import MANIFESTS, REPORTS
from spark_audit.pipeline.request import Request
from spark_audit.provenance import sha256_json, versions
from spark_audit.results import Report

FILE = Path("scores") / "inputs.json"
MOST = 20_000
"""Files of a run at most: of a folder with more, somebody else's are most."""

States = dict[str, list[int]]


def unchanged(request: Request) -> Path | None:
    """The folder with the finished report of a request, if nothing has changed."""
    if not _lasting(request):
        return None
    one = request.output
    found = REPORTS.glob(f"*/{FILE}") if one is None else [one / FILE]
    for path in found:
        try:
            kept = json.loads(read_regular(path))
            same = kept["request"] == _hash(request)
            if same and _states(kept["places"]) == kept["inputs"]:
                if _states(kept["outputs"]) == kept["outputs"]:
                    return path.parent.parent
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


@dataclass(frozen=True)
class Inputs:
    """What a report comes of, as it was before anything was scored."""

    request: Request
    places: list[str]
    states: States | None

    @classmethod
    def of(cls, engine: Engine) -> Inputs | None:
        """Those of a call; ``None`` where files do not tell all."""
        request = engine.call.request
        if not _lasting(request) or not engine.described:
            return None
        loading = request.loading
        told = [one for one in (request.base, loading.tokenizer, loading.agree) if one]
        paths = [path for spec in engine.call.specs for path in spec.paths] + told
        given: list[str | Path] = [request.manifest or MANIFESTS, *request.data, *paths]
        every = {*engine.opening.places, *(Path(one).expanduser() for one in given)}
        places = sorted({os.path.abspath(one) for one in every})
        return cls(request, places, _states(places))

    def keep(self, folder: Path, report: Report) -> None:
        """Write them beside the scores of the report that came of them."""
        names = {name for names in report.files.values() for name in names}
        outputs = [str(folder.absolute() / name) for name in {*names, "report.json"}]
        kept = {
            "request": _hash(self.request),
            "places": self.places,
            "inputs": self.states,
            "outputs": _states(outputs),
        }
        if self.states is not None:
            write_text(folder / FILE, json.dumps(kept), mode=0o600)


def _lasting(request: Request) -> bool:
    """Whether files alone say what a request reads: no server and no hub."""
    loading = request.loading
    named = [*request.ckpt, request.base or "", loading.tokenizer or ""]
    named += [one.partition("=")[2] for one in request.ckpt]
    away = any(one.lstrip("[").startswith(HUB) or is_server(one) for one in named)
    return not away


def _hash(request: Request) -> str:
    """Of what was asked, where, and of the program with its libraries."""
    source, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted((*source.rglob("*.py"), *source.rglob("*.toml"))):
        digest.update(path.read_bytes())
    # Workers of one report are asked for the same.
    asked = repr(replace(request, command=(), shard=(0, 1)))
    return sha256_json(
        [asked, request.way, os.getcwd(), versions(), digest.hexdigest()]
    )


def _states(places: Iterable[str]) -> States | None:
    """Size, times and inode of every file in some places; ``None`` for too many."""
    found: States = {}
    for path in _files(places):
        try:
            at = os.stat(path)
        except OSError:  # not there: as much a state as any other
            found[path] = []
        else:
            found[path] = [at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_ino]
        if len(found) > MOST:
            return None
    return found


def _files(places: Iterable[str]) -> Iterator[str]:
    for place in places:
        if not os.path.isdir(place):
            yield place
        for at, _, names in os.walk(place, followlinks=True):
            yield from (os.path.join(at, name) for name in names)
