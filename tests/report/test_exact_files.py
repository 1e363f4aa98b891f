"""Exact tables are for the owner alone, in a folder of their own."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_reports import checkpoint, figure, made_report, manifest_facts

from spark_audit.cli.main import run as command_line
from spark_audit.errors import InputError
from spark_audit.files import sha256_file
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.folder import read_report, write_report
from spark_audit.report.gate.statement import statement
from spark_audit.report.training_table import training_tables
from spark_audit.results import Report
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH
from spark_audit.sentences import render

VALUE = 1.0710123456789012
FEW = MIN_CLUSTERS_TO_PUBLISH - 1
KEY = "k" * 32


def a_report(value: float = VALUE, **columns: Any) -> Report:
    """A figure of many clusters, and one that shared files withhold."""
    sides = {"low": value - 0.1, "high": value + 0.1, "unit": "nats", "clusters": 40}
    rows = [
        figure("a", "nll|nll|pii", value, **sides),
        figure("a", "nll|nll|pii|type:SSN", 3 * value, **(sides | {"clusters": FEW})),
        figure("a", "noise|dp_pii|0.05", -4.0123456, clusters=40, unit="%"),
    ]
    training = {"method": "er", "settings": {"seed": 3}, "changed": ["seed"]}
    facts = {"manifest": manifest_facts().model_copy(update={"key": KEY})}
    facts |= {"checkpoints": [checkpoint("a", training=training)]}
    return made_report(results=rows, **(facts | columns))


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "report"
    write_report(a_report(), folder)
    return folder


def exact(folder: Path, *more: str) -> int:
    return command_line(["report", str(folder), "--exact", *more])


def test_csv_has_all_digits_and_latex_the_four_of_the_paper(folder):
    assert exact(folder, "--format", "latex,csv") == 0
    table = pd.read_csv(folder / "exact" / "results.csv", dtype="string")
    assert [float(text) for text in table["value"]] == [VALUE, 3 * VALUE, -4.0123456]
    assert "rounded" not in table
    tex = (folder / "exact" / "ablations.tex").read_text()
    assert "1.0710" in tex
    assert "0.9710, 1.1710" in tex
    assert "$-$4.0123" in (folder / "exact" / "noise.tex").read_text()


def test_tables_of_records_have_the_decimals_and_the_note_too(tmp_path):
    training = {"method": "er", "settings": {"lr": 0.1}, "changed": ["lr"]}
    part = {"part": "task", "steps": 7, "loss": 0.6491234, "seconds": {"step": 17.87}}
    facts = [checkpoint("a", training=training | {"parts": [part]})]
    folder = tmp_path / "report"
    report = a_report(checkpoints=facts, tables=training_tables(facts))
    write_report(report, folder, formats=["json"])
    assert exact(folder, "--format", "latex") == 0

    tex = (folder / "exact" / "training.tex").read_text()
    assert "0.6491" in tex
    note = render("latex.note.exact").split()
    assert " ".join(note) in " ".join(tex.split())


def test_nobody_else_can_read_them_and_shared_files_stay_as_they_are(folder):
    before = {path: path.read_bytes() for path in (folder / "tables").iterdir()}
    assert exact(folder, "--format", "csv") == 0
    for path in (folder / "exact").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {path: path.read_bytes() for path in (folder / "tables").iterdir()} == before

    formats = ["html", "md", "csv", "latex", "card"]
    write_report(read_report(folder), folder, formats=formats)
    for path in [
        *folder.glob("report.*"),
        *folder.glob("tables/*"),
        *folder.glob("*.md"),
    ]:
        if path.name != "report.json":
            assert "1.071" not in path.read_text()


def test_a_table_for_print_names_no_digest_of_the_texts(folder):
    assert exact(folder, "--format", "latex") == 0
    digest = read_report(folder).manifest.digest
    for path in (folder / "exact").glob("*.tex"):
        assert digest[:12] not in path.read_text()


@pytest.mark.parametrize("formats", [[], ["--format", "csv,html"], ["--format", "md"]])
def test_formats_without_exact_figures_are_refused_before_anything_is_written(
    formats, folder, capsys
):
    assert exact(folder, *formats) == 2
    assert "--exact" in capsys.readouterr().err
    assert not (folder / "exact").exists()


def test_a_report_that_is_rounded_already_has_no_exact_figures(tmp_path, capsys):
    write_report(disclosed(a_report()), tmp_path, formats=["json"])
    assert exact(tmp_path, "--format", "csv") == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert not (tmp_path / "exact").exists()


def test_a_format_of_exact_figures_is_asked_for_by_its_option_alone(tmp_path):
    with pytest.raises(InputError) as caught:
        write_report(a_report(), tmp_path, formats=["exact-csv"])
    assert "exact-csv" not in caught.value.fix
    assert not (tmp_path / "report.json").exists()


def test_exact_files_never_contradict_the_report_beside_them(folder):
    assert exact(folder, "--format", "csv") == 0
    assert read_report(folder).files["exact-csv"][0].startswith("exact/")
    write_report(read_report(folder), folder, formats=["html"])
    assert (folder / "exact" / "results.csv").exists()

    # A later report on the same checkpoints: the tables are written again.
    write_report(a_report(2 * VALUE), folder, formats=["json", "csv"])
    table = pd.read_csv(folder / "exact" / "results.csv")
    assert table["value"][0] == pytest.approx(2 * VALUE, rel=1e-12)

    # Another manifest: nothing of the earlier report stays.
    other = a_report(manifest=manifest_facts("other", "e" * 64))
    write_report(other, folder, formats=["json"])
    assert not list((folder / "exact").glob("*.csv"))


def test_a_folder_rendered_again_has_all_formats_that_it_held(folder):
    assert exact(folder, "--format", "latex,csv") == 0
    assert command_line(["report", str(folder), "--format", "latex"]) == 0
    edited = [folder / "exact" / "noise.tex", folder / "tables" / "noise.tex"]
    deleted = folder / "exact" / "results.csv"
    before = [path.read_bytes() for path in (*edited, deleted)]
    for path in edited:
        path.write_text("edited")
    deleted.unlink()

    # A named format is written alone.
    assert command_line(["report", str(folder), "--format", "md"]) == 0
    assert edited[0].read_text() == "edited"

    assert command_line(["report", str(folder)]) == 0
    assert [path.read_bytes() for path in (*edited, deleted)] == before


def test_python_saves_them_too(folder, tmp_path):
    report = a_report()
    paths = report.save(tmp_path / "other", ["csv"], exact=True)
    assert {path.parent.name for path in paths} == {"exact"}


def test_no_name_of_a_file_leads_out_of_the_folder(folder):
    record = json.loads((folder / "report.json").read_text())
    for name in ("exact/../x.csv", "exact/a/b.csv", "exacts/a.csv"):
        record["files"] = {"exact-csv": [name]}
        (folder / "report.json").write_text(json.dumps(record))
        with pytest.raises(InputError):
            read_report(folder)


def test_a_number_has_the_same_digits_in_every_cell(folder):
    assert exact(folder, "--format", "latex") == 0
    tex = (folder / "exact" / "ablations.tex").read_text()
    body = tex[tex.index(r"\midrule") : tex.index(r"\bottomrule")]
    assert {len(part) for part in re.findall(r"\d\.(\d+)", body)} == {4}


def test_a_statement_on_the_report_has_no_bare_digest_of_them(folder):
    """With it, anybody could try out figures of single rows."""
    assert exact(folder, "--format", "csv") == 0
    report = read_report(folder)
    text = statement(report, folder, [], allow_missing=False).decode()
    assert "exact/results.csv" in text
    assert sha256_file(folder / "exact" / "results.csv") not in text
    assert sha256_file(folder / "tables" / "results.csv") in text
