"""Folders of reports: which manifest fits, what adds up, what would be lost."""

import json
import shutil
from pathlib import Path

import pytest

from spark_audit.cli.main import run as command_line
from spark_audit.errors import InputError
from spark_audit.files import sha256_file
from spark_audit.manifest.content import seal
from spark_audit.manifest.file import read_manifest, write_manifest
from spark_audit.pipeline.run import run


def test_only_the_manifest_of_a_report_is_read_with_it(request_of, workshop, capsys):
    folder = run(request_of(formats=("md",))).folder
    manifest = workshop / "manifests" / "m.json"
    call = ["report", str(folder), "--format", "dossier", "--manifest", str(manifest)]
    for show_text, mode in (([], 0o644), (["--show-text"], 0o600)):
        assert command_line([*call, *show_text]) == 0
        assert (folder / "dossier.html").stat().st_mode & 0o777 == mode
    assert command_line([*call[:-2], "--show-text"]) == 2
    assert "--show-text: " in capsys.readouterr().err
    assert command_line(["report", str(folder), "--show-text"]) == 2
    error_output = capsys.readouterr().err
    assert "--show-text: " in error_output
    assert "--format dossier" in error_output
    with pytest.raises(InputError, match="^--show-text: .*--format dossier"):
        request_of(formats=("md",), show_text=True)
    other_content = read_manifest(manifest).model_dump(mode="json")
    other_content["pairs"].pop()
    write_manifest(seal(other_content), folder / "other.json")
    assert command_line([*call[:-1], str(folder / "other.json")]) == 2
    assert f"{folder / 'other.json'}: " in capsys.readouterr().err


def test_manifest_is_found_in_the_working_directory(
    request_of, workshop, monkeypatch, tmp_path
):
    monkeypatch.chdir(workshop)
    report = run(request_of(manifest=None)).report
    assert report.manifest.name == "m"
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    with pytest.raises(InputError, match="manifests"):
        run(request_of(manifest=None))
    (empty / "manifests").mkdir()
    (empty / "manifests/m.json").symlink_to(workshop / "manifests/m.json")
    with pytest.raises(InputError, match=r"m\.json"):
        run(request_of(manifest=None))
    shutil.rmtree(empty / "manifests")
    shutil.copytree(workshop / "manifests", empty / "manifests")
    shutil.copy(empty / "manifests/m.json", empty / "manifests/n.json")
    with pytest.raises(InputError, match=r"m\.json, .*n\.json"):
        run(request_of(manifest=None))


def test_folder_of_another_manifest_is_refused(request_of, tmp_path):
    request = request_of()
    run(request)
    path = tmp_path / "report" / "report.json"
    report = json.loads(path.read_text())
    report["manifest"]["digest"] = "f" * 64
    path.write_text(json.dumps(report))
    with pytest.raises(InputError, match=f"^{tmp_path / 'report'}: .*'m'"):
        run(request)


def test_audits_of_the_same_checkpoints_add_up_in_one_folder(request_of, tmp_path):
    together = run(
        request_of(audits=("nll", "rank"), output=tmp_path / "together")
    ).report
    run(request_of(audits=("rank",)))
    outcome = run(request_of(audits=("nll",)))
    assert {row.audit for row in outcome.report.results} == {"nll", "rank"}
    assert sorted(outcome.report.results, key=repr) == sorted(
        together.results, key=repr
    )
    heads = [finding.audit for finding in outcome.report.findings]
    assert list(dict.fromkeys(heads)) == ["report", "rank", "nll"]
    scores = outcome.folder / "scores"
    assert (scores / "rank.parquet").exists()
    assert (scores / "nll.parquet").exists()
    assert outcome.report.evidence == {
        f"{audit}.parquet": sha256_file(scores / f"{audit}.parquet")
        for audit in ("rank", "nll")
    }
    assert together.evidence == outcome.report.evidence
    # The same audit again takes the old one's place.
    again = run(request_of(audits=("nll",))).report
    assert len(again.results) == len(outcome.report.results)


def _link(folder: Path, target: Path) -> Path:
    """Another path of a checkpoint: one path under two names is refused."""
    link = folder / f"link-{len(list(folder.iterdir()))}"
    link.symlink_to(target)
    return link


def test_a_finished_report_is_not_lost_without_a_word(request_of, workshop, tmp_path):
    lora = workshop / "lora"
    two = (f"ours={lora}", f"other={_link(tmp_path, lora)}")
    third = f"third={_link(tmp_path, lora)}"
    run(request_of(audits=("rank", "nll"), checkpoints=two))
    with pytest.raises(
        InputError, match=f"^{tmp_path / 'report'}: .*checkpoints other"
    ):
        run(request_of(audits=("rank", "nll")))
    with pytest.raises(InputError, match="(nll, rank|rank, nll) .*checkpoints"):
        run(request_of(audits=("matched",), checkpoints=(*two, third)))
    with pytest.raises(InputError, match="nll .*seed"):
        run(request_of(audits=("rank",), checkpoints=two, seed=1))
    # More of everything loses nothing.
    request_of_more = request_of(audits=("rank", "nll"), checkpoints=(*two, third))
    assert run(request_of_more).report is not None


@pytest.mark.parametrize("name", ["scores", "scores/store", "tables"])
def test_a_report_folder_from_others_leads_nowhere_else(name, request_of, tmp_path):
    request = request_of()
    outside = tmp_path / "theirs"
    for name_of_file in ("spans.parquet", "tables/a.csv", "results.csv"):
        (outside / name_of_file).parent.mkdir(parents=True, exist_ok=True)
        (outside / name_of_file).write_text("kept")
    (request.output / name).parent.mkdir(parents=True)
    (request.output / name).symlink_to(outside)
    with pytest.raises(InputError, match=f"{name}: "):
        run(request)
    files_left = [path for path in outside.rglob("*") if path.is_file()]
    assert [path.read_text() for path in files_left] == ["kept"] * 3
