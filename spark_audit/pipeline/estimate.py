"""What a request takes, told in a second or two: nothing is loaded, scored or written.

Tokens are counted in the manifest, weights in the headers of their files, and the speed
of this machine is that of a product of matrices, as busy as it is now.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark_audit.audits import AUDITS
from spark_audit.audits.contract import Plan
from spark_audit.checkpoints.locate import HUB, WEIGHT_SUFFIXES, locate
from spark_audit.checkpoints.run_folder import trained_order
from spark_audit.checkpoints.specs import Spec, parse_specs
from spark_audit.data.examples import data_files, read_examples
from spark_audit.errors import InputError
from spark_audit.files import open_regular
from spark_audit.manifest.file import load_manifest, original
from spark_audit.manifest.items import MORE_TOKENS, labels_key, task_labels
from spark_audit.manifest.schema import Manifest, ManifestCanary, ManifestTwins
from spark_audit.manifest.slots import canary_key, place_of, twins_key
from spark_audit.pipeline.folders import MANIFESTS, default_folder
from spark_audit.pipeline.lineup import check_options, make_plans, union
from spark_audit.pipeline.request import Request
from spark_audit.scoring.speed import billions
from spark_audit.scoring.table import ITEMS, Pass

WORK, BESIDE = 2.2, 900_000
"""Floating-point operations a token and weight, and the weights that all that does not
grow with them is worth: english-5m and babyllama-1m on two cores."""
START, LOADING, STATISTICS, REPORT = 6.0, 1.5, 0.5, 15.0
"""Seconds to import and tokenise, to load a checkpoint, to conclude from one in one
audit, and to draw a report of all formats: with some hundred rows."""
LETTERS = 4
"""Letters of a token, where no manifest says it."""
SHORT = 40
"""Tokens of an identifier behind a prompt that is not its row's own, about."""
BATCH, OTHER = 16_384, 6e8
"""Tokens of a batch, and bytes that libraries take."""


@dataclass(frozen=True)
class Part:
    """What one audit takes beyond those before it: texts are read once for all."""

    audit: str
    reads: str
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """What a request takes: seconds over all checkpoints, bytes of memory.

    ``weights`` are those of each checkpoint's model, 0 where no file here tells them.
    """

    manifest: str
    rows: int
    folder: str
    weights: Mapping[str, int]
    stages: int
    gflops: float
    audits: Sequence[Part]
    loading: float
    report: float
    memory_bytes: float

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return self.loading + self.report + sum(one.seconds for one in self.audits)

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"seconds": round(self.seconds, 1)}


def estimate(request: Request) -> Estimate:
    """What a run of the request takes.

    Raises
    ------
    SparkError
        If a path is not there, or no manifest can be read.
    """
    check_options(request)
    specs = parse_specs(list(request.ckpt))
    weights = _weights(specs, request)
    stages = sum(_stages(path) for spec in specs for path in spec.paths)
    copies = 1 + len(request.loading.quantize)
    gflops = billions(request.loading.device)
    each = {n: WORK * (count + BESIDE) / gflops / 1e9 for n, count in weights.items()}
    mean = sum(each.values()) / len(each)
    whole = sum(each.values()) + (copies - 1) * sum(
        pace for name, pace in each.items() if name != "base"
    )
    of_stages = stages * mean + each.get("base", 0.0)
    texts = _texts(request)
    parts = []
    done: Plan = {}
    for name in request.audits:
        plan = texts.plan(name, request)
        fresh = {w: sorted({*keys} - {*done.get(w, ())}) for w, keys in plan.items()}
        done = union((done, plan))
        tokens = sum(texts.tokens(w, key) for w, keys in fresh.items() for key in keys)
        pace = of_stages if AUDITS.of_stages(name) else whole
        seconds = tokens * pace + STATISTICS * len(weights)
        parts.append(Part(name, _read(fresh), tokens, round(seconds, 1)))
    draws = not request.formats or {"figures", "html"} & {*request.formats}
    hidden = math.sqrt(max(weights.values()) / 12) if max(weights.values()) else 0
    names = [name for name in weights if name != "base"] or ["base"]
    folder = request.output or (
        default_folder(texts.manifest, names) if texts.manifest else Path("reports")
    )
    return Estimate(
        manifest=texts.name,
        rows=texts.rows,
        folder=str(folder),
        weights=weights,
        stages=stages,
        gflops=round(gflops, 1),
        audits=parts,
        loading=START + LOADING * len(weights) * copies,
        report=REPORT if draws else 1.0,
        memory_bytes=4 * max(weights.values()) + 20 * BATCH * hidden + OTHER,
    )


# --- what is read ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Texts:
    """The texts of a manifest, or of data that stand in its place."""

    name: str
    rows: int
    manifest: Manifest | None
    sizes: Mapping[str, int]

    def plan(self, audit: str, request: Request) -> Plan:
        """What an audit reads."""
        if self.manifest is None:
            return {Pass("generate"): sorted(self.sizes)}
        _, plans = make_plans(
            self.manifest,
            [audit],
            preset=request.preset,
            options=request.audit_options,
            limit=request.limit,
        )
        return union((plans.whole, plans.stages))

    def tokens(self, wanted: Pass, key: str) -> int:
        """How long a sequence of a pass is, about."""
        if ITEMS[wanted.kind] == "candidates":
            return self.sizes.get(key, self.sizes.get(place_of(key)[1], 0))
        if ITEMS[wanted.kind] == "continuations":
            return SHORT
        return self.sizes[key] + (MORE_TOKENS if wanted.kind == "generate" else 0)


def _texts(request: Request) -> _Texts:
    if request.data:
        rows = read_examples(*data_files(request.data))
        asked = [one for one in rows if one.split == "test"][: request.limit]
        sizes = {one.id: len(one.prompt) // LETTERS for one in asked}
        return _Texts("+".join(p.stem for p in request.data), len(rows), None, sizes)
    manifest = original(load_manifest(request.manifest or _only_manifest()))
    sizes = dict(_sizes(manifest))
    return _Texts(manifest.name, len(manifest.examples), manifest, sizes)


def _only_manifest() -> Path:
    found = sorted(MANIFESTS.glob("*.json"))
    if len(found) == 1:
        return found[0]
    listed = ", ".join(map(str, found)) or f"none in {MANIFESTS}/"
    raise InputError(
        f"which one fits is told by loading a checkpoint: {listed}",
        where="--manifest",
        fix="give one for --dry-run",
    )


def _sizes(manifest: Manifest) -> Iterator[tuple[str, int]]:
    """Every sequence of a manifest with its tokens."""
    labels = task_labels(manifest)
    for one in manifest.examples:
        size = one.kept[1] - one.kept[0]
        yield one.id, size
        answers = sum(map(len, labels.get(one.task, ()))) // LETTERS
        yield labels_key(one.id), size + answers
    sets: list[tuple[str, ManifestCanary | ManifestTwins]] = [
        *((canary_key(c.canary_id, c.part, ""), c) for c in manifest.canaries),
        *((twins_key(twins.id, ""), twins) for twins in manifest.twins),
    ]
    for key, held in sets:
        for place in held.contexts:
            row = manifest.by_id[place.example]
            share = (row.kept[1] - row.kept[0]) / max(len(row.text), 1)
            own = [
                tokens[1] - tokens[0]
                for span, tokens in row.identifiers
                if (span.start, span.end) == (place.char_start, place.char_end)
            ]
            spoken = share * (place.char_end - place.char_start)
            each = getattr(held, "n_tokens", None) or next(iter(own), spoken)
            read = share * place.char_start + each * len(held.candidates)
            yield f"{place_of(key)[0]}/{place.example}", round(read)


def _read(fresh: Mapping[Pass, Sequence[str]]) -> str:
    """What is read of each checkpoint, in words."""
    nouns = {
        "texts": "texts",
        "candidates": "sets of candidates",
        "prompts": "prompts",
        "continuations": "short prompts",
    }
    told: dict[str, list[int]] = {}
    for wanted, keys in fresh.items():
        if keys:
            noun = "noisy texts" if wanted.sigma else nouns[ITEMS[wanted.kind]]
            told.setdefault(noun, []).append(len(keys))
    said = [
        f"{many[0]:,} {noun}" + (f", {len(many)} times" if len(many) > 1 else "")
        for noun, many in told.items()
    ]
    return " and ".join(said) or "nothing more"


# --- what reads it --------------------------------------------------------------------


def _weights(specs: Sequence[Spec], request: Request) -> dict[str, int]:
    """Each checkpoint's weights; an adapter's are those of its base."""
    base = 0 if request.base is None else count_weights(_place(request.base))
    found = {"base": base} if request.base is not None else {}
    for spec in specs:
        for number, path in enumerate(spec.paths, start=1):
            name = spec.name if len(spec.paths) == 1 else f"{spec.name}#{number}"
            found[name] = count_weights(_place(path)) or base
    known = [count for count in found.values() if count]
    return {name: count or max(known, default=0) for name, count in found.items()}


def _place(source: str) -> Path | None:
    return None if source.startswith(HUB) else locate(source)


def _stages(path: str) -> int:
    place = _place(path)
    return max(len(trained_order(place)) if place and place.is_dir() else 0, 1)


def count_weights(path: Path | None) -> int:
    """The weights of a model's files, by their headers; 0 of an adapter."""
    if path is None or (path / "adapter_config.json").exists():
        return 0
    files = [path]
    if path.is_dir():
        if not (path / "config.json").exists():
            return 0
        every = sorted(path.iterdir())
        files = [one for one in every if one.suffix == ".safetensors"]
        files = files or [one for one in every if one.suffix in WEIGHT_SUFFIXES]
    total = 0
    for file in files:
        with suppress(OSError, ValueError, KeyError, TypeError):
            if file.suffix != ".safetensors":
                total += file.stat().st_size // 4
                continue
            with open_regular(file, follow=True) as opened:
                length = int.from_bytes(opened.read(8), "little")
                header = json.loads(opened.read(min(length, 1 << 27)))
            header.pop("__metadata__", None)
            total += sum(math.prod(one["shape"]) for one in header.values())
    return total


# --- in words -------------------------------------------------------------------------


def told(estimate: Estimate) -> Iterator[str]:
    """The estimate in at most 25 lines of 80 columns."""
    weights = estimate.weights
    sizes = sorted({*weights.values()})
    of = " to ".join(_many(size) for size in dict.fromkeys((sizes[0], sizes[-1])))
    named = ", ".join(weights)
    listed = named if len(named) <= 40 else f"{named[:37]}..."
    known = f"{of} weights each" if all(sizes) else "of unknown size: no weights here"
    yield f"Reads    {estimate.manifest[:40]}, {estimate.rows:,} rows"
    yield f"with     {len(weights)} checkpoints ({listed})"
    yield f"         {known}"
    yield ""
    width = max(map(len, (*(one.audit for one in estimate.audits), "loading")))
    for one in estimate.audits:
        spent = duration(one.seconds)
        yield f"{one.audit:<{width}}  {spent:>12}  {one.reads}"
    yield f"{'loading':<{width}}  {duration(estimate.loading):>12}"
    yield f"{'report':<{width}}  {duration(estimate.report):>12}"
    yield ""
    memory = f"{estimate.memory_bytes / 1e9:.1f} GB"
    yield f"In all about {duration(estimate.seconds)}, and about {memory} of memory."
    yield "Right within a factor of two while this machine is as busy as now. What"
    yield "several audits read is counted with the first; what is scored, not again."
    longest = max(estimate.audits, key=lambda one: one.seconds)
    if len(estimate.audits) > 1 and longest.seconds > estimate.seconds / 3:
        yield (
            f"Most of it is {longest.audit}: --skip {longest.audit} goes without, and "
            "without its evidence."
        )
    yield f"The report goes to {estimate.folder}; nothing was loaded or written."


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} days"


def _many(count: int) -> str:
    for size, word in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= size:
            return f"{count / size:.1f} {word}"
    return str(count)
