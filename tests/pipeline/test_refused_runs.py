"""Runs that cannot be are refused before anything is scored."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_model, save_model

from spark_audit.errors import CheckpointError, InputError, SparkError
from spark_audit.manifest.file import read_manifest
from spark_audit.pipeline.estimate import estimate
from spark_audit.pipeline.run import Request, run


def test_every_checkpoint_is_checked_before_any_is_scored(
    request_of, workshop, tiny_base, tmp_path, monkeypatch
):
    def never(*args: Any, **options: Any) -> Any:
        raise AssertionError("loaded or scored though another checkpoint does not fit")

    monkeypatch.setattr("spark_audit.pipeline.engines.local.score", never)
    monkeypatch.setattr(
        "spark_audit.checkpoints.stored_checkpoint.StoredCheckpoint.load", never
    )
    wide = tmp_path / "wide"
    lowercase_base = tmp_path / "other"
    save_model(make_model("llama", hidden_size=48, seed=9), wide)
    shutil.copytree(tiny_base, lowercase_base)
    raw = json.loads((lowercase_base / "tokenizer.json").read_text())
    raw["normalizer"] = {"type": "Lowercase"}
    (lowercase_base / "tokenizer.json").write_text(json.dumps(raw))
    first = f"ours={workshop / 'lora'}"
    for wrong, message in ((wide, "hidden_size"), (lowercase_base, "tokenizer")):
        request = request_of(checkpoints=(first, f"theirs={wrong}"))
        for command in (run, estimate):
            with pytest.raises(CheckpointError, match=f"^{wrong.name}: .*{message}"):
                command(request)
        assert not (tmp_path / "report").exists()


def test_a_copy_under_another_name_is_noted_and_the_path_itself_refused(
    request_of, workshop, tmp_path
):
    shutil.copytree(workshop / "lora", tmp_path / "copy")
    specs = (f"ours={workshop / 'lora'}", f"theirs={tmp_path / 'copy'}")
    report = run(request_of(checkpoints=specs)).report
    notes = {checkpoint.name: checkpoint.notes for checkpoint in report.checkpoints}
    assert "the same model as 'ours'" in notes["theirs"]
    assert not any("the same model" in note for note in notes["base"])
    same = workshop / "manifests" / ".." / "lora"
    with pytest.raises(InputError, match="^--ckpt "):
        run(request_of(checkpoints=(specs[0], f"theirs={same}")))


def test_what_cannot_be_is_found_before_scoring_and_leaves_no_folder(
    request_of, workshop, tmp_path, monkeypatch
):
    def never(*args: Any, **options: Any) -> Any:
        raise AssertionError("scored although nothing can come of it")

    monkeypatch.setattr("spark_audit.pipeline.engines.local.score", never)
    given_folder = tmp_path / "given"
    save_model(make_model("llama", seed=9), given_folder / "base")
    (given_folder / "file").write_text("")
    raw = (workshop / "manifests" / "m.json").read_bytes()
    changed = raw.replace(b'"caliper":2.0', b'"caliper":3.0', 1)
    (given_folder / "changed.json").write_bytes(changed)
    assert changed != raw
    other_base = {"base": str(given_folder / "base")}
    for wrong, code, message in (
        (
            {"checkpoints": ("x=/no/such/place",)},
            2,
            "^x: /no/such/place|^/no/such/place",
        ),
        ({"manifest": tmp_path / "none.json"}, 2, "none.json"),
        ({"manifest": given_folder / "changed.json"}, 2, "changed.json: "),
        (other_base, 2, "^checkpoint .*: base weights "),
        (other_base | {"shard": (0, 2)}, 2, "^checkpoint .*: base weights "),
        ({"formats": ("md", "docx")}, 2, "^--format: 'docx'"),
        (
            {"baseline": "x", "checkpoints": ("a=/no",)},
            2,
            "^--baseline: 'x'",
        ),
        ({"output": given_folder / "file" / "report"}, 4, "file/report|/file"),
        ({"audits": ("stages",)}, 2, "^--ckpt: "),
    ):
        with pytest.raises(SparkError, match=message) as caught:
            run(request_of(**wrong))
        assert caught.value.exit_code == code
        assert [path.name for path in tmp_path.iterdir()] == ["given"]


def test_python_takes_paths_and_names_the_argument_that_is_wrong(workshop, tiny_base):
    import spark_audit as sa

    path = workshop / "manifests" / "m.json"
    scores = sa.score(str(tiny_base), str(path))
    result = sa.audits.Matched(placebo_draws=5)({"mine": scores}, str(path))
    same = sa.audits.Matched(placebo_draws=5)({"mine": scores}, read_manifest(path))
    assert result.results == same.results
    assert any(row.value is not None for row in result.results)
    for bare in (scores, {"mine": next(iter(scores.values()))}, scores.keys()):
        with pytest.raises(TypeError, match="^tables: "):
            sa.audits.Matched()(bare, path)
    with pytest.raises(TypeError, match="manifest: 3 "):
        sa.audits.Matched()({"mine": scores}, 3)
    with pytest.raises(TypeError, match="checkpoint: 3 "):
        sa.score(3, [])  # type: ignore[arg-type]
    request = Request(audits="matched", checkpoints="runs/a", manifest="m", data=())  # type: ignore[arg-type]
    assert request == Request(
        audits=("matched",), checkpoints=("runs/a",), manifest=Path("m")
    )
