"""A finished report is kept whole where another one takes its folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from named import examples

import spark_audit as sa
from spark_audit.audits import Matched
from spark_audit.checkpoints.specs import Loading
from spark_audit.cli.main import run as command_line
from spark_audit.errors import InputError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.pipeline.run import Request, run
from spark_audit.pipeline.verification.verify import verify


@pytest.fixture(scope="module")
def workshop(tmp_path_factory, tiny_base, make_adapter):
    """A folder with m.json of the tiny base, and adapters ``first`` and ``again``."""
    from spark_audit.checkpoints.open import open_checkpoint

    folder = tmp_path_factory.mktemp("workshop")
    make_adapter(folder / "first", seed=1)
    make_adapter(folder / "again", seed=2)
    loaded = open_checkpoint(str(tiny_base), name="base")
    write_manifest(
        build_manifest(examples(), loaded, name="m", caliper=2.0), folder / "m.json"
    )
    return folder


@pytest.fixture
def request_of(workshop, tiny_base, tmp_path):
    """``request_of(name, **fields)``: an audit of an adapter called ``ours``."""

    def make(name: str, **fields: Any) -> Request:
        return replace(
            Request(
                audits=("nll",),
                checkpoints=(f"ours={workshop / name}",),
                base=str(tiny_base),
                manifest=workshop / "m.json",
                output=tmp_path / "reports" / "m-ours",
                loading=Loading(device="cpu"),
                formats=("md",),
            ),
            **fields,
        )

    return make


def report_files(folder: Path) -> dict[str, bytes]:
    """The files that a report names, and itself."""
    content = json.loads((folder / "report.json").read_text())
    names = [name for names in content["files"].values() for name in names]
    return {name: (folder / name).read_bytes() for name in [*names, "report.json"]}


def kept_folders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.parent.iterdir() if entry != folder)


def test_a_report_of_other_weights_keeps_the_one_of_the_same_name(request_of, capsys):
    folder = run(request_of("first", formats=("md", "dossier"))).folder
    before = report_files(folder)
    assert "dossier.html" in before

    run(request_of("again", formats=("md",)))

    (kept_folder,) = kept_folders(folder)
    assert kept_folder.name.startswith("m-ours-20")
    assert report_files(kept_folder) == before
    assert not (folder / "dossier.html").exists()
    assert [wrong for _, wrong in verify(kept_folder) if wrong] == []
    error_output = capsys.readouterr().err
    assert str(kept_folder) in error_output
    assert "'ours'" in error_output
    assert (kept_folder / "report.json").stat().st_mode & 0o777 == 0o600
    # Scores of models stay where the next run looks for them.
    assert (folder / "scores" / "store" / "salt").exists()


def test_other_audits_of_other_weights_are_no_part_of_the_new_report(request_of):
    folder = run(
        request_of("first", audits=("nll", Matched(placebo_draws=5, rematched=False)))
    ).folder
    before = report_files(folder)

    report = run(request_of("again", audits=("nll",))).report

    assert {row.audit for row in report.results} == {"nll"}
    (kept_folder,) = kept_folders(folder)
    assert report_files(kept_folder) == before


@pytest.mark.parametrize("by", ["python", "command line"])
def test_one_more_format_keeps_the_files_of_the_others(
    by, workshop, tiny_base, tmp_path
):
    """The dossier is added to the folder, as the report advises."""
    folder = tmp_path / "report"

    def audit(*formats: str) -> None:
        if by == "python":
            sa.audit(
                {"ours": workshop / "first"},
                workshop / "m.json",
                base=str(tiny_base),
                audits=["nll"],
                output=folder,
                formats=formats,
                progress=False,
            )
            return
        command = ["nll", "--ckpt", f"ours={workshop / 'first'}", "-o", str(folder)]
        command += ["--manifest", str(workshop / "m.json"), "--base", str(tiny_base)]
        command += [f"--format={','.join(formats)}"] if formats else []
        assert command_line(command) == 0

    audit()
    usual_formats = {*sa.read_report(folder).files} - {"scores"}
    names = {*report_files(folder)}
    assert {"report.html", "report.md"} <= names

    audit("dossier")

    assert {*sa.read_report(folder).files} - {"scores"} == {*usual_formats, "dossier"}
    assert {*report_files(folder)} == names | {"dossier.html"}
    # Every page is one of the report in the folder, and nothing was set aside.
    assert [wrong for _, wrong in verify(folder) if wrong] == []
    assert not list(folder.rglob("previous"))
    assert kept_folders(folder) == []


def test_a_report_that_is_saved_over_another_one_keeps_it_whole(request_of, tmp_path):
    folder = run(request_of("first", formats=("md", "dossier"))).folder
    before = report_files(folder)
    other_folder = run(request_of("again", output=tmp_path / "other")).folder

    sa.read_report(other_folder).save(folder)

    (kept_folder,) = kept_folders(folder)
    assert report_files(kept_folder) == before


@pytest.mark.parametrize("fields", [{"seed": 7}, {"limit": 9}, {"preset": "paper"}])
def test_a_report_of_other_settings_keeps_the_one_before(request_of, fields, capsys):
    folder = run(request_of("first")).folder
    before = report_files(folder)
    run(request_of("first", **fields))
    (kept_folder,) = kept_folders(folder)
    assert report_files(kept_folder) == before
    assert f"({next(iter(fields))}" in capsys.readouterr().err


def test_options_of_an_audit_are_settings_too(request_of):
    for draws in (5, 6):
        matched = Matched(placebo_draws=draws, rematched=False)
        folder = run(request_of("first", audits=(matched,))).folder
    assert len(kept_folders(folder)) == 1


def test_what_adds_to_a_report_keeps_no_copy(request_of):
    folder = run(request_of("first")).folder
    run(request_of("first", audits=("utility",)))
    run(request_of("first", formats=("html",)))
    assert kept_folders(folder) == []


def test_two_reports_of_one_second_are_both_kept(request_of, monkeypatch):
    folder = run(request_of("first")).folder
    content = json.loads((folder / "report.json").read_text())
    run(request_of("again"))
    path = folder / "report.json"
    again = json.loads(path.read_text()) | {"created": content["created"]}
    path.write_text(json.dumps(again))
    run(request_of("first"))
    names = [kept_folder.name for kept_folder in kept_folders(folder)]
    assert len(names) == 2
    assert names[1] == f"{names[0]}-2"


def test_a_comparison_keeps_the_report_that_it_replaces(request_of, tmp_path, capsys):
    first = run(request_of("first", output=tmp_path / "a")).folder
    again = run(request_of("again", output=tmp_path / "b")).folder
    other_folder = run(request_of("first", output=tmp_path / "c", seed=3)).folder
    out = tmp_path / "reports" / "both"
    call = ["compare", str(first), str(again), "-o", str(out)]
    assert command_line(call) == 0
    before = report_files(out)
    assert command_line(call) == 0
    assert kept_folders(out) == []

    before = report_files(out)
    assert command_line(["compare", str(other_folder), str(again), "-o", str(out)]) == 0
    (kept_folder,) = kept_folders(out)
    assert report_files(kept_folder) == before
    assert str(kept_folder) in capsys.readouterr().err


def test_a_page_that_no_report_wrote_is_not_written_over(request_of, tmp_path):
    folder = tmp_path / "reports" / "m-ours"
    folder.mkdir(parents=True)
    (folder / "report.md").write_text("Minutes of a meeting")
    with pytest.raises(InputError, match=r"report\.md"):
        run(request_of("first"))
    assert (folder / "report.md").read_text() == "Minutes of a meeting"
    out = ["-o", str(folder)]
    first_folder, two = (
        run(request_of(name, output=tmp_path / name)).folder
        for name in ("first", "again")
    )
    assert command_line(["compare", str(first_folder), str(two), *out]) == 2


def test_a_file_of_the_users_in_a_report_folder_is_kept(request_of, capsys):
    folder = run(request_of("first", formats=("csv",))).folder
    (folder / "report.md").write_text("Minutes of a meeting")
    run(request_of("first", formats=("md",)))
    (kept_folder,) = (folder / "previous").iterdir()
    assert kept_folder.read_text() == "Minutes of a meeting"
    assert str(kept_folder) in capsys.readouterr().err
