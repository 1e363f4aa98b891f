"""Work that was done before is taken, and nothing is scored twice."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from named import examples

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import InputError, SparkError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.pipeline.estimate import estimate
from spark_audit.pipeline.job import checked_job
from spark_audit.pipeline.run import run
from spark_audit.scoring.store import Store


def test_the_same_command_opens_nothing_until_something_changed(
    request_of, workshop, tiny_base, tmp_path, monkeypatch
):
    from spark_audit.pipeline import inputs_record, up_to_date

    lora = tmp_path / "lora"
    base = tmp_path / "base"
    words = tmp_path / "words"
    shutil.copytree(workshop / "lora", lora)
    shutil.copytree(tiny_base, base)
    shutil.copytree(tiny_base, words, ignore=shutil.ignore_patterns("*.safetensors"))
    manifest = tmp_path / "m.json"
    shutil.copy(workshop / "manifests" / "m.json", manifest)
    monkeypatch.chdir(tmp_path)
    request = request_of(
        checkpoints=(f"ours={lora}",),
        base=str(base),
        manifest=manifest,
        output=None,
        loading=Loading(tokenizer=str(words)),
    )
    done = run(request)
    again = run(replace(request, command=("typed", "otherwise")))
    assert (done.anew, again.anew) == (True, False)
    assert again.report == done.report
    for fields in ({"seed": 1}, {"formats": ("md",)}, {"audits": ("matched",)}):
        assert up_to_date.unchanged(replace(request, **fields)) is None

    def touched(path: Path) -> bool:
        """Whether a file with other bytes of the same size and time is noticed."""
        file_stat = path.stat()
        raw = path.read_bytes()
        path.write_bytes(raw[:-1] + b"?")
        os.utime(path, ns=(file_stat.st_atime_ns, file_stat.st_mtime_ns))
        noticed = up_to_date.unchanged(request) is None
        path.write_bytes(raw)
        return noticed

    report = done.folder / "report.json"
    files = [manifest, lora / "adapter_model.safetensors", base / "model.safetensors"]
    for path in (*files, words / "tokenizer.json", report, done.folder / "report.md"):
        run(request)
        assert up_to_date.unchanged(request) is not None
        assert touched(path), path
    for gone in (lora / "adapter_model.safetensors", base / "model.safetensors"):
        assert run(request).anew
        assert not run(request).anew
        gone.unlink()
        with pytest.raises(SparkError):
            run(request)
        source = workshop / "lora" if gone.parent == lora else tiny_base
        shutil.copy(source / gone.name, gone)
    assert run(request).anew
    monkeypatch.setattr(inputs_record, "versions", lambda: {"torch": "another"})
    assert run(request).anew


def test_an_empty_store_holds_nothing_in_part(request_of, tiny_base, tmp_path):
    """A text that stands in two rows is stored once, and is not stored for that."""
    rows = [*examples()]
    again = replace(rows[0], id="again", source_id="again")
    loaded = open_checkpoint(str(tiny_base), name="base")
    manifest = build_manifest([*rows, again], loaded, name="twice", caliper=2.0)
    write_manifest(manifest, tmp_path / "twice.json")
    job = checked_job(request_of(manifest=tmp_path / "twice.json"))
    unscored = job.unscored()
    assert job.stored(unscored) == (0, len(unscored), 0)


def test_scores_of_another_report_are_counted_and_taken(
    request_of, tmp_path, capsys, monkeypatch
):
    first = run(request_of()).report
    report = tmp_path / "report"
    for scores_folder in (report, report / "scores", report / "scores" / "store"):
        request = request_of(scores=scores_folder, output=tmp_path / "other", seed=1)
        facts = estimate(replace(request, audits=("matched", "canary", "extract")))
        assert 2 == facts["there"][0] < facts["there"][1]
        assert facts["store"] == str(report / "scores" / "store")
    capsys.readouterr()
    with monkeypatch.context() as patched:  # no model is loaded for them
        patched.setattr(
            "spark_audit.checkpoints.stored_checkpoint.StoredCheckpoint.load", None
        )
        report_of_stored = run(request).report
    assert report_of_stored.checkpoints == first.checkpoints
    assert "2 of 2 " in capsys.readouterr().err
    assert not (tmp_path / "other" / "scores" / "store").exists()
    shutil.rmtree(report / "scores")
    with pytest.raises(InputError, match="^--scores "):
        run(request_of(scores=report, output=tmp_path / "third"))


def test_what_several_audits_read_is_scored_once(request_of, monkeypatch):
    scored: list[str] = []
    add = Store.add

    def count(self: Store, key: str, *given: Any) -> None:
        scored.append(key)
        add(self, key, *given)

    monkeypatch.setattr(Store, "add", count)
    run(request_of(audits=("nll", "rank", "matched", "noise", "canary")))
    assert len(scored) == len({*scored}) > 64
