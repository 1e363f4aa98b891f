"""The record of a training run, ``run.json``.

``training_run.py`` fills it, and ``run_folder.py`` writes and reads it. A run resumes
only with the same :meth:`RunRecord.fingerprint`: :meth:`RunRecord.identity`, and all
settings except ``FREE_SETTINGS``. A further field that adapters depend on also belongs
in :meth:`RunRecord.identity`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from spark_audit.files import Fact
from spark_audit.provenance import sha256_json

FREE_SETTINGS = ("save_every",)
"""Settings that may change between starts of a run, because no weight or accuracy
depends on them."""

PhaseSeconds: TypeAlias = dict[str, dict[str, float]]
"""Phase -> kind of work -> seconds."""


class RunRecord(BaseModel):
    """``run.json``: the settings of a run, its data, and its results.

    Attributes
    ----------
    settings
        Settings that the method and the privacy option read, by name.
    changed
        Names of those that differ from the defaults of the version that made the
        record; ``None`` in a record of a version that did not say.
    base
        ``source`` as it was typed, and ``weights_sha256``.
    data
        ``file`` (its name) and ``sha256`` of each data file, sorted by hash, so that
        names and given order do not matter.
    status
        ``running`` until the last phase is saved, also while the run is interrupted.
    starts
        Every start of the run, with its machine and the CPU threads of the first
        process. Another device, another number of threads or processes, or other
        versions of libraries may round a step differently.
    privacy
        The facts of the run's privacy option; empty without one.
    accuracy
        ``accuracy[t][i]``: on task ``i`` after stage ``t``; ``None``: not measured
        (later tasks, tasks without test rows). ``accuracy.csv`` shows it.
    clock
        Clock that counts ``seconds``: on the ``wall``, or of the ``processor``.
    seconds
        Phase -> kind of work -> seconds. ``2-yelp/task`` is a training phase, and
        ``2-yelp/answers`` the measuring of accuracy after that stage.
    notes
        Notes to the user, which a resumed run shows again.
    files
        Size and SHA-256 of a complete run's files, other than those of its adapters.
    seal
        SHA-256 of ``run.json`` with zeros in place of the seal.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    kind: Literal["spark-train-run"] = "spark-train-run"
    schema_version: Literal[1] = 1
    status: Literal["running", "complete"] = "running"
    method: str
    dp: str
    tasks: list[str]
    settings: dict[str, object]
    changed: list[str] | None = None
    base: dict[str, str]
    tokenizer_sha256: str
    dtype: str
    lora_targets: list[str]
    data: list[dict[str, str]]
    starts: list[dict[str, object]]
    privacy: dict[str, object] = {}
    accuracy: list[list[float | None]] = []
    clock: Literal["wall", "processor"] = "wall"
    seconds: PhaseSeconds = {}
    notes: list[str] = []
    files: dict[str, Fact] = {}
    seal: str = ""

    def identity(self) -> dict[str, object]:
        """Return everything besides settings that adapters depend on.

        Keys are names in messages and must differ from all settings. A new key changes
        every fingerprint, so that older runs cannot resume. ``data`` holds hashes only,
        not the names of files.
        """
        return {
            "method": self.method,
            "order": ",".join(self.tasks),
            "base": self.base["weights_sha256"],
            "tokenizer": self.tokenizer_sha256,
            "dtype": self.dtype,
            "lora_targets": ",".join(self.lora_targets),
            "data": [file["sha256"] for file in self.data],
            "dp": self.dp,
        }

    def fingerprint(self) -> str:
        """Return a hash of everything that a run's weights depend on."""
        settings = {
            name: value
            for name, value in self.settings.items()
            if name not in FREE_SETTINGS
        }
        return sha256_json({"identity": self.identity(), "settings": settings})
