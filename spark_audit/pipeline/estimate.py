"""What a request takes: checkpoints are checked from headers, nothing is scored.

Tokens are counted in the manifest, weights in the headers of their files, and the speed
of this machine is that of a product of matrices, as busy as it is now.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spark_audit.audits import AUDITS
from spark_audit.audits.contract import Plan
from spark_audit.checkpoints.locate import HUB, WEIGHT_SUFFIXES, locate
from spark_audit.checkpoints.run_folder import trained_order
from spark_audit.checkpoints.server import is_server
from spark_audit.checkpoints.specs import Loading, Spec, parse_specs
from spark_audit.data.examples import data_files, read_examples
from spark_audit.errors import InputError
from spark_audit.files import open_regular
from spark_audit.manifest.items import MORE_TOKENS, labels_key, task_labels
from spark_audit.manifest.schema import Manifest, ManifestCanary, ManifestTwins
from spark_audit.manifest.slots import canary_key, place_of, twins_key
from spark_audit.memory import free_bytes
from spark_audit.pipeline.engines.contract import DRIFT_ROWS
from spark_audit.pipeline.engines.jobs import processes
from spark_audit.pipeline.folders import default_folder
from spark_audit.pipeline.lineup import make_plans, union
from spark_audit.pipeline.request import Request
from spark_audit.pipeline.run import checked
from spark_audit.scoring.speed import billions
from spark_audit.scoring.table import ITEMS, Pass

WORK, BESIDE = 2.2, 900_000
"""Floating-point operations a token and weight, and the weights that all that does not
grow with them is worth: english-5m and babyllama-1m on two cores."""
START, LOADING, STATISTICS, REPORT = 6.0, 1.5, 0.5, 15.0
"""Seconds to import and tokenise, to load a checkpoint, to conclude from one in one
audit, and to draw a report of all formats: with some hundred rows."""
READING = 2e-8
"""Seconds a byte of weights, to read, hash, widen and check them."""
LETTERS = 4
"""Letters of a token, where no manifest says it."""
SHORT = 40
"""Tokens of an identifier behind a prompt that is not its row's own, about."""
BATCH, CPU_BATCH, OTHER = 16_384, 1024, 8e8
"""Tokens of a batch, on GPUs and CPUs, and bytes that libraries and buffers take."""
HALF = {True: 0.8, False: 2.0}
"""Time of a bfloat16 body and a float32 head over that of all in float32, by whether
the machine has instructions for bfloat16: Qwen2 of 0.5B shape on two cores."""


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

    ``weights`` are those of each checkpoint's model, 0 where no file here tells them;
    ``free_bytes`` is by place where it is told; ``passes`` are how many the ``store``
    holds, and how many there are.
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
    processes: int = 1
    passes: tuple[int, int] | None = None
    store: str = ""
    free_bytes: Mapping[str, int] = field(default_factory=dict)

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
        As a run raises it before it scores.
    """
    specs = parse_specs(list(request.ckpt))
    if any(is_server(path) for spec in specs for path in spec.paths):
        raise InputError("how long a server takes is not known", where="--dry-run")
    found = checked(request)
    files = _weights(specs, request)
    weights = {name: one.count for name, one in files.items()}
    on_disk = max((one.size for one in files.values()), default=4.0)
    on_gpu = request.loading.device != "cpu" and Path("/dev/nvidia0").exists()
    size, slower = _computed(request.loading, on_disk, on_gpu)
    stages = sum(_stages(path) for spec in specs for path in spec.paths)
    copies = 1 + len(request.loading.quantize)
    gflops = billions(request.loading.device)
    pace_of = WORK * slower / gflops / 1e9
    each = {name: pace_of * (count + BESIDE) for name, count in weights.items()}
    mean = sum(each.values()) / len(each)
    whole = sum(each.values()) + (copies - 1) * sum(
        pace for name, pace in each.items() if name != "base"
    )
    of_stages = stages * mean + each.get("base", 0.0)
    texts = _texts(request, found.manifest)
    parts = []
    done: Plan = {}
    for name in request.audits:
        plan = texts.plan(name, request)
        fresh = {w: sorted({*keys} - {*done.get(w, ())}) for w, keys in plan.items()}
        done = union((done, plan))
        tokens = sum(texts.tokens(w, key) for w, keys in fresh.items() for key in keys)
        pace = of_stages if AUDITS.of_stages(name) else whole
        seconds = tokens * pace + STATISTICS * len(weights)
        if texts_read := fresh.get(Pass()):
            # Some are scored again, alone, in one batch and in float32.
            few = sum(texts.tokens(Pass(), key) for key in texts_read[:DRIFT_ROWS])
            seconds += few * whole * (2 + (slower != 1) / slower)
        parts.append(Part(name, _read(fresh), tokens, round(seconds, 1)))
    # Adapters have the entry of their base.
    read = sum({id(one): one.size * one.count for one in files.values()}.values())
    draws = not request.formats or {"figures", "html"} & {*request.formats}
    most = max(weights.values())
    batch = 20 * (BATCH if on_gpu else CPU_BATCH) * math.sqrt(most / 12)
    # While weights are widened, their file stands beside them in memory.
    mapped = 0.0 if size == on_disk else on_disk
    names = [name for name in weights if name != "base"] or ["base"]
    folder = request.output or (
        default_folder(texts.manifest, names) if texts.manifest else Path("reports")
    )
    free = _free(on_gpu)
    work = sum(one.tokens for one in parts) * sum(weights.values())
    at_once = processes(request, work=work, size=size * most, free=free.get("cpu"))
    at_once = 1 if on_gpu else at_once
    return Estimate(
        manifest=texts.name,
        rows=texts.rows,
        folder=str(folder),
        weights=weights,
        stages=stages,
        gflops=round(gflops, 1),
        audits=parts,
        loading=START + LOADING * len(weights) * copies + READING * read,
        report=REPORT if draws else 1.0,
        memory_bytes=at_once * ((size + mapped) * most + batch + OTHER),
        processes=at_once,
        passes=found.there,
        store=str(found.store) if found.there or request.scores else "",
        free_bytes=free,
    )


def _computed(loading: Loading, on_disk: float, on_gpu: bool) -> tuple[float, float]:
    """Bytes a weight as it is computed, and the time over that of float32."""
    flags = _cpu_flags()
    has = on_gpu or any(one in flags for one in ("avx512_bf16", "amx_bf16", " bf16"))
    half = loading.dtype in ("bfloat16", "float16")
    if loading.dtype == "auto":
        half = on_disk <= 2 and has
    return (2.0, HALF[has]) if half else (4.0, 1.0)


def _cpu_flags() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()[:8192]
    except OSError:
        return ""


def _free(on_gpu: bool) -> dict[str, int]:
    if on_gpu:  # nothing heavy is loaded elsewhere
        from spark_audit.checkpoints.placement import rooms

        return rooms("cuda")
    here = free_bytes()
    return {} if here is None else {"cpu": here}


# --- what is read ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Texts:
    """The texts of a manifest, or of data that stand in its place."""

    name: str
    rows: int
    manifest: Manifest | None
    view: Manifest | None
    sizes: Mapping[str, int]

    def plan(self, audit: str, request: Request) -> Plan:
        """What an audit reads."""
        if self.view is None:
            return {Pass("generate"): sorted(self.sizes)}
        _, plans = make_plans(
            self.view, [audit], preset=request.preset, options=request.audit_options
        )
        return union((plans.whole, plans.stages))

    def tokens(self, wanted: Pass, key: str) -> int:
        """How long a sequence of a pass is, about."""
        if ITEMS[wanted.kind] == "candidates":
            return self.sizes.get(key, self.sizes.get(place_of(key)[1], 0))
        if ITEMS[wanted.kind] == "continuations":
            return SHORT
        return self.sizes[key] + (MORE_TOKENS if wanted.kind == "generate" else 0)


def _texts(request: Request, manifest: Manifest) -> _Texts:
    if request.data:
        rows = read_examples(*data_files(request.data))
        asked = [one for one in rows if one.split == "test"][: request.limit]
        sizes = {one.id: len(one.prompt) // LETTERS for one in asked}
        name = "+".join(p.stem for p in request.data)
        return _Texts(name, len(rows), None, None, sizes)
    # A limit is over what all audits read.
    view, _ = make_plans(
        manifest,
        request.audits,
        preset=request.preset,
        options=request.audit_options,
        limit=request.limit,
    )
    sizes = dict(_sizes(view))
    return _Texts(manifest.name, len(manifest.examples), manifest, view, sizes)


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


@dataclass(frozen=True)
class Stored:
    """Weights in files: how many, and bytes of each."""

    count: int = 0
    size: float = 4.0


def _weights(specs: Sequence[Spec], request: Request) -> dict[str, Stored]:
    """Each checkpoint's weights; an adapter's are those of its base."""
    base = Stored() if request.base is None else stored(_place(request.base))
    found = {"base": base} if request.base is not None else {}
    for spec in specs:
        for number, path in enumerate(spec.paths, start=1):
            name = spec.name if len(spec.paths) == 1 else f"{spec.name}#{number}"
            own = stored(_place(path))
            found[name] = own if own.count else base
    most = max(found.values(), key=lambda one: one.count, default=Stored())
    return {name: one if one.count else most for name, one in found.items()}


def _place(source: str) -> Path | None:
    return None if source.startswith(HUB) else locate(source)


def _stages(path: str) -> int:
    place = _place(path)
    return max(len(trained_order(place)) if place and place.is_dir() else 0, 1)


def stored(path: Path | None) -> Stored:
    """The weights of a model's files, by their headers; none of an adapter."""
    if path is None or (path / "adapter_config.json").exists():
        return Stored()
    files = [path]
    if path.is_dir():
        if not (path / "config.json").exists():
            return Stored()
        every = sorted(path.iterdir())
        files = [one for one in every if one.suffix == ".safetensors"]
        files = files or [one for one in every if one.suffix in WEIGHT_SUFFIXES]
    total, size = 0, 0
    for file in files:
        with suppress(OSError, ValueError, KeyError, TypeError):
            if file.suffix != ".safetensors":
                total += file.stat().st_size // 4
                size += file.stat().st_size
                continue
            with open_regular(file, follow=True) as opened:
                length = int.from_bytes(opened.read(8), "little")
                header = json.loads(opened.read(min(length, 1 << 27)))
            header.pop("__metadata__", None)
            total += sum(math.prod(one["shape"]) for one in header.values())
            size += max((one["data_offsets"][1] for one in header.values()), default=0)
    return Stored(total, size / total) if total else Stored()


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
    yield "         tokenizer, vocabulary, shapes and base of each were checked"
    if estimate.passes is not None:
        there, every = estimate.passes
        yield f"Scores   {there} of {every} passes are there: {estimate.store}"
    elif estimate.store:
        yield f"Scores   none are there yet: {estimate.store}"
    yield ""
    width = max(map(len, (*(one.audit for one in estimate.audits), "loading")))
    for one in estimate.audits:
        spent = duration(one.seconds)
        yield f"{one.audit:<{width}}  {spent:>12}  {one.reads}"
    yield f"{'loading':<{width}}  {duration(estimate.loading):>12}"
    yield f"{'report':<{width}}  {duration(estimate.report):>12}"
    yield ""
    memory = f"{estimate.memory_bytes / 1e9:.1f} GB"
    by = f", by {estimate.processes} processes" if estimate.processes > 1 else ""
    whole = duration(estimate.seconds)
    yield f"In all about {whole}, and about {memory} of memory{by}."
    if estimate.free_bytes:
        free = estimate.free_bytes.items()
        listed = ", ".join(f"{size / 1e9:.1f} GB {place}" for place, size in free)
        yield f"Free: {listed}."
        if estimate.memory_bytes > max(estimate.free_bytes.values()):
            yield "It may not fit: see --dtype bfloat16 and --device-map auto."
    yield "Right within a factor of two while this machine is as busy as now. What"
    yield "several audits read is counted with the first; what is there, not again."
    longest = max(estimate.audits, key=lambda one: one.seconds)
    if len(estimate.audits) > 1 and longest.seconds > estimate.seconds / 3:
        yield (
            f"Most of it is {longest.audit}: --skip {longest.audit} goes without, and "
            "without its evidence."
        )
    yield f"The report goes to {estimate.folder}; no weights were read."


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
