"""Where manifests are found, and where reports go without losing any.

Audits of the same checkpoints add up in one folder, whether they were called together
or one by one. What would be lost otherwise is refused before anything is scored.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_audit.audits import about, in_order
from spark_audit.checkpoints.specs import is_server, parse_specs
from spark_audit.checkpoints.untrusted import HUB
from spark_audit.errors import InputError
from spark_audit.files import (
    check_links,
    check_writable,
    lies_inside,
    read_regular,
    write_text,
)
from spark_audit.manifest.file import check_fit, load_manifest, original
from spark_audit.manifest.schema import Manifest
from spark_audit.names import (
    BASE,
    RELEARN,
    RELEARNED_BASE,
    CheckpointName,
    seeds_of,
    series_of,
)
from spark_audit.pipeline.request import Request
from spark_audit.provenance import sha256_json, versions
from spark_audit.report.assemble import results_of
from spark_audit.report.folder import REPORT_FOLDERS, read_report
from spark_audit.results import AuditResult, Report

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.checkpoints.open import OpenCheckpoints
    from spark_audit.checkpoints.specs import Spec

MANIFESTS = Path("manifests")
REPORTS = Path("reports")
OTHERS = ("run.json", "adapter_config.json", "config.json", "*.jsonl")
"""What folders of checkpoints and of data hold."""
REPORT_PAGES = ("report.html", "report.md", "dossier.html", "tables", "figures")
"""What a report would write over in a folder that is not its own."""


def manifest_for(checkpoint: Loaded, request: Request) -> Manifest:
    """The one that fits, or one of the data alone."""
    if not request.data:
        return find_manifest(checkpoint)
    from spark_audit.data.examples import data_files, read_examples
    from spark_audit.manifest.build import task_manifest

    name = "+".join(dict.fromkeys(path.stem for path in request.data))
    return task_manifest(
        read_examples(*data_files(request.data)), checkpoint, name=name
    )


def find_manifest(checkpoint: Loaded) -> Manifest:
    """The one manifest of ``manifests/`` that was made for this checkpoint's base.

    Raises
    ------
    InputError
        If none or several fit; it lists them.
    """
    fitting: dict[Path, Manifest] = {}
    others: list[str] = []
    for path in sorted([*MANIFESTS.glob("*.json"), *MANIFESTS.glob("*.arrow")]):
        try:
            if not lies_inside(path):
                raise InputError("is a link out of the folder")
            manifest = original(load_manifest(path))
            check_fit(manifest, checkpoint, base_sha256=checkpoint.base_sha256)
            fitting[path] = manifest
        except InputError as error:
            others.append(f"{path} ({error.what})")
    if len(fitting) == 1:
        return fitting.popitem()[1]
    what = f"several manifests fit: {', '.join(map(str, fitting))}"
    if not fitting:
        found = "; ".join(others) or f"there is none in {MANIFESTS}/"
        what = f"no manifest fits: {found}"
    raise InputError(
        what,
        where=f"checkpoint {checkpoint.name!r}",
        fix="give --manifest, or build one with `spark-audit manifest build`",
    )


def report_folder(
    manifest: Manifest, names: Sequence[str], specs: Sequence[Spec], request: Request
) -> Path:
    """Where a report goes, checked: by default ``reports/<manifest>-<names>``."""
    name = "-".join([manifest.name, *names])
    # Nothing in it that a file system could read otherwise.
    safe = "".join(c if c.isalnum() or c in "._+-" else "_" for c in name)
    folder = request.output or REPORTS / safe
    check_folder(folder, manifest, specs, request)
    return folder


def check_folder(
    folder: Path, manifest: Manifest, specs: Sequence[Spec], request: Request
) -> Report | None:
    """The report that the folder holds; refuse to lose it, or not to be able to write.

    A folder of another manifest is refused, one with a finished report that this call
    would not write again, and one of data or of a checkpoint.
    """
    check_links(folder, *REPORT_FOLDERS)
    check_is_for_reports(folder)
    before = None
    if (folder / "report.json").exists():
        before = read_report(folder)
        if lost := _lost(before, request, manifest, specs):
            raise InputError(
                f"holds a finished report with {lost}, which would be lost",
                where=str(folder),
                fix="give another -o, or remove the folder",
            )
    check_writable(folder)
    return before


def check_is_for_reports(folder: Path) -> None:
    """Refuse a folder of data, of a checkpoint, or of files named like a report's.

    Raises
    ------
    InputError
        With the first such file.
    """
    if (folder / "report.json").exists():
        return
    theirs = [one for kind in OTHERS for one in folder.glob(kind)]
    # A run that was interrupted while it wrote its report has scores.
    if not (folder / "scores").exists():
        theirs += [folder / name for name in REPORT_PAGES if (folder / name).exists()]
    if theirs:
        what = f"is no report folder: it holds {theirs[0].name}"
        raise InputError(what, where=str(folder), fix="give another -o")


# --- a folder that is written again ---------------------------------------------------


def audits_of(report: Report) -> list[str]:
    """The audits that a report tells of, in order."""
    rows = [*report.results, *report.contrasts]
    return in_order({row.audit for row in rows})


def _lost(
    old: Report, request: Request, manifest: Manifest, specs: Sequence[Spec]
) -> str:
    """What a finished report tells of that the new one would not; empty: nothing.

    That is all of another manifest, checkpoints that are not audited now, and other
    audits where checkpoints or settings are others.
    """
    if old.manifest.digest != manifest.digest:
        return f"another manifest ({old.manifest.name!r})"
    names = (
        str(CheckpointName(name, derived=kind))
        for spec in specs
        for name in seeds_of(spec.name, len(spec.paths))
        for kind in ("", *request.loading.quantize, *[RELEARN] * bool(request.relearn))
    )
    before = {series_of(one.name) for one in old.checkpoints} - {BASE, RELEARNED_BASE}
    now = {series_of(name) for name in names} - {BASE}
    asked = {audit.name for audit in request.audits}
    others = [one for one in audits_of(old) if one not in asked]
    differs = ["checkpoints"] if before != now else []
    settings = request.shared_settings(manifest)
    differs += [key for key in settings if old.settings.get(key) != settings[key]]
    if before - now:
        return f"checkpoints {', '.join(sorted(before - now))}"
    if others and differs:
        return f"audits {', '.join(others)} with another {', '.join(differs)}"
    return ""


def joined(
    old: Report, results: Mapping[str, AuditResult], facts: dict[str, Any]
) -> tuple[Mapping[str, AuditResult], dict[str, Any]]:
    """What a report is assembled of, with the other audits of the old one.

    Raises
    ------
    InputError
        If the base would be lost from an audit; the new scores are kept.
    """
    others = [audit for audit in audits_of(old) if audit not in results]
    if not others:
        return results, facts
    now = {one.name: one for one in facts["checkpoints"]}
    had = any(row.checkpoint == BASE and row.audit in results for row in old.results)
    rows = (row for one in results.values() for row in one.rows)
    if had and not any(row.checkpoint == BASE for row in rows):
        what = f"holds a finished report of {', '.join(others)} with another base, "
        what += "which is not scored now (--base)"
        fix = "give another -o, or remove the folder; what was scored is kept"
        raise InputError(what, fix=fix)
    united = {**results_of(old, others), **results}
    guards = [*facts["guards"], *(g for one in results.values() for g in one.guards)]
    told = {(guard.name, guard.checkpoint) for guard in guards}
    kept = [one for one in old.guards if (one.name, one.checkpoint) not in told]
    files = {about(audit).evidence_file() for audit in others}
    return {audit: united[audit] for audit in in_order(united)}, facts | {
        "settings": old.settings | facts["settings"],
        "checkpoints": [
            *now.values(),
            *(c for c in old.checkpoints if c.name not in now),
        ],
        "guards": [*facts["guards"], *kept],
        "evidence": {k: sha256 for k, sha256 in old.evidence.items() if k in files},
        "timing": old.timing | facts["timing"],
    }


# --- a report that nothing would change -----------------------------------------------

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
