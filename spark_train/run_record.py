"""``run.json``: what a run is, and each of its starts."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict

from spark_audit.checkpoints.loaded import Loaded
from spark_audit.checksums import Fact
from spark_audit.provenance import now, sha256_file, sha256_json, versions
from spark_train.corpus import Corpus
from spark_train.distributed import Processes
from spark_train.loop import Timed, timed
from spark_train.request import NONE, TrainRequest

DATA = "data"
"""Of a run's identity: the SHA-256 of its data files, sorted."""
FREE = ("save_every",)
"""Settings that may change from one start of a run to the next: neither a weight nor an
accuracy depends on them."""

# The libraries that compute: with others of them a step may round otherwise.
_COMPUTING = ("torch", "transformers", "peft")


class Start(BaseModel):
    """One start of a run.

    Attributes
    ----------
    device, threads
        Where it computed; CPU threads of the first process.
    versions
        Of a start after the first: those that are others than before.
    """

    model_config = ConfigDict(extra="forbid")

    created: str
    command: list[str]
    processes: int
    device: str
    threads: int
    gradient_checkpointing: bool
    versions: dict[str, str]


class RunRecord(Start):
    """``run.json``.

    Attributes
    ----------
    identity
        Everything the adapters depend on: a folder is gone on with only where all of
        it is the same.
    privacy
        What the run's privacy option says of itself; empty without one.
    clock, seconds
        Phase -> seconds by kind of work, on the wall or of the processor.
    starts
        Those after the first one, which the record's own fields tell of.
    files
        Size and SHA-256 of what a complete run left beside its adapters.
    seal
        Checksum of the record.
    """

    kind: Literal["spark-train-run"] = "spark-train-run"
    schema_version: Literal[1] = 1
    status: Literal["running", "complete"] = "running"
    method: str
    tasks: list[str]
    settings: dict[str, Any]
    identity: dict[str, Any]
    base: dict[str, Any]
    data: list[dict[str, str]]
    rows: dict[str, dict[str, int]]
    privacy: dict[str, Any] = {}
    clock: Timed = "wall"
    seconds: dict[str, dict[str, float]] = {}
    notes: list[str] = []
    starts: list[Start] = []
    files: dict[str, Fact] = {}
    seal: str = ""

    @classmethod
    def begun(
        cls,
        request: TrainRequest,
        corpus: Corpus,
        loaded: Loaded,
        settings: dict[str, Any],
        processes: Processes,
    ) -> RunRecord:
        """What ``run.json`` says of a run that begins now.

        Parameters
        ----------
        settings
            Those that the method and the privacy option read, by name.
        """
        method, dp, loading = request.method, request.dp, request.loading
        hashes = [sha256_file(path) for path in corpus.files]
        identity = {
            "method": method,
            "order": ",".join(corpus.tasks),
            "base": loaded.weights_sha256,
            "tokenizer": loaded.tokenizer_sha256,
            "dtype": loading.dtype,
            "lora_targets": ",".join(request.lora_targets),
            DATA: hashes,
        }
        if dp != NONE:
            identity["dp"] = dp
        return cls(
            method=method,
            tasks=list(corpus.tasks),
            settings=settings,
            identity=identity,
            base={"source": request.base, "weights_sha256": loaded.weights_sha256},
            data=[
                {"file": path.name, "sha256": sha256}
                for path, sha256 in zip(corpus.files, hashes, strict=True)
            ],
            rows=corpus.counts(),
            processes=processes.world,
            device=loaded.device,
            threads=torch.get_num_threads(),
            clock=timed(loaded.device),
            gradient_checkpointing=request.gradient_checkpointing,
            command=list(request.command),
            created=now(),
            versions=versions(),
        )

    def fingerprint(self) -> str:
        """A hash of all that a run's weights depend on; of another run, another one."""
        settings = {k: v for k, v in self.settings.items() if k not in FREE}
        return sha256_json({"identity": self.identity, "settings": settings})

    def continued(self, new: RunRecord) -> tuple[RunRecord, list[str]]:
        """The record with one start more, and what the bytes may differ for.

        Parameters
        ----------
        new
            What the record of the start would be, were it the first.
        """
        before, versions = (self.starts or [self])[-1], dict(self.versions)
        for start in self.starts:
            versions |= start.versions
        others = {
            name: new.versions.get(name, "none")
            for name in sorted(versions.keys() | new.versions.keys())
            if versions.get(name, "none") != new.versions.get(name, "none")
        }
        fields = {name: getattr(new, name) for name in Start.model_fields}
        start = Start(**fields | {"versions": others})
        changed = [
            f"{name.replace('_', ' ')} {getattr(before, name)} -> {getattr(new, name)}"
            for name in ("device", "threads", "processes", "gradient_checkpointing")
            if getattr(before, name) != getattr(new, name)
        ]
        changed += [
            f"{name} {versions.get(name, 'none')} -> {others[name]}"
            for name in _COMPUTING
            if name in others
        ]
        return self.model_copy(update={"starts": [*self.starts, start]}), changed
