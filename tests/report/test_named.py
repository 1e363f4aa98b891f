"""Named rows and persons, from a report's evidence alone."""

import json
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_reports import made_report, manifest_facts

from spark_audit.cli.main import run as command_line
from spark_audit.errors import InputError
from spark_audit.provenance import sha256_file
from spark_audit.report.folder import read_report, write_report
from spark_audit.report.named import BLIND, evidence_of, named_rows, persons
from spark_audit.results import Guard, Row
from spark_audit.results.evidence import Evidence

ROWS, HELD_OUT = 60, 80


@pytest.fixture
def folder(tmp_path) -> Path:
    """``leaky`` knows the first 30 rows, ``clean`` none; the last 5 are one source."""
    return made(tmp_path)


def made(folder: Path, held_out: int = HELD_OUT, **columns: object) -> Path:
    rng = np.random.default_rng(0)
    n = ROWS + held_out
    source = [f"s{i}" if not ROWS - 5 <= i < ROWS else "five" for i in range(n)]
    units = pd.DataFrame(
        {
            "example": [f"row-{i}" for i in range(n)],
            "task": [f"t{i % 2}" for i in range(n)],
            "cluster": source,
            "member": np.arange(n) < ROWS,
            "dose": 1.0,
        }
    )
    noise = rng.normal(size=(3, n))
    noise[2, :30] += 6
    scores = zip(("base", "clean", "leaky"), noise, strict=True)
    evidence = Evidence.of(units, ((name, {"reference": x}) for name, x in scores))
    path = folder / "scores" / "mia.parquet"
    path.parent.mkdir()
    evidence.write(path)
    digests = {path.name: sha256_file(path)}
    report = made_report("base", "clean", "leaky", evidence=digests, **columns)
    write_report(report, folder, formats=("json",))
    return folder


def lists(folder: Path) -> dict[str, tuple[list[str], str]]:
    report = read_report(folder)
    found = named_rows(report, evidence_of(report, folder))
    return {
        one.checkpoint: (one.rows.loc[one.rows["named"], "row"].tolist(), one.why)
        for one in found
    }


def test_rows_that_a_checkpoint_knows_are_named(folder):
    found = lists(folder)
    assert found["clean"] == ([], "")
    names, why = found["leaky"]
    assert not why
    known = {f"row-{i}" for i in range(30)}
    assert known <= {*names}
    assert len({*names} - known) <= 3


@pytest.mark.parametrize("passed", [False, None])
def test_nobody_is_named_where_texts_differ_or_were_not_compared(tmp_path, passed):
    says = "guard.mia.blind_missing"
    blind = Guard(name=BLIND, passed=passed, says=says)
    for names, why in lists(made(tmp_path, guards=[blind])).values():
        assert not names
        assert "not known whether the two sets of texts are alike" in why


def test_a_named_row_stays_shown_among_many_persons(folder):
    """Its own p is too large once corrected: the list is what shows it."""
    ids = [f"row-{i}" for i in range(30)]
    found = persons(read_report(folder), folder, ids)
    states = {one.state for one in found if one.checkpoint == "leaky"}
    assert states == {"listed"}


def test_a_person_is_shown_not_shown_or_not_tested(folder):
    report = read_report(folder)
    found = {
        (one.id, one.checkpoint): one
        for one in persons(report, folder, ["row-3", "five", f"row-{ROWS}"])
    }
    assert found["row-3", "leaky"].state == "shown"
    assert found["row-3", "clean"].state == "not_shown"
    assert found["five", "leaky"].trained == 5
    assert found["five", "leaky"].state == "not_shown"
    stranger = found[f"row-{ROWS}", "leaky"]
    assert (stranger.state, stranger.held_out) == ("not_tested", 1)
    assert stranger.back is None


def test_a_person_is_found_by_any_of_their_sources(folder):
    report = read_report(folder)
    sources = {"later-source": "five"}
    found = persons(report, folder, ["later-source"], sources=sources)
    assert {(one.id, one.trained) for one in found} == {("later-source", 5)}
    with pytest.raises(InputError, match="nothing is known"):
        persons(report, folder, ["later-source"])


def test_who_is_in_no_row_is_refused_without_a_word_of_the_id(folder):
    with pytest.raises(InputError) as error:
        persons(read_report(folder), folder, ["jane@example.org"])
    assert "jane" not in str(error.value)


def test_evidence_of_another_report_is_refused(folder):
    path = folder / "scores" / "mia.parquet"
    path.write_bytes(path.read_bytes() + b" ")
    report = read_report(folder)
    with pytest.raises(InputError, match="not the file"):
        evidence_of(report, folder)
    path.unlink()
    with pytest.raises(InputError, match="no evidence of `mia`"):
        evidence_of(report, folder)


def test_the_command_lists_rows_and_writes_a_sheet(folder, capsys):
    assert command_line(["persons", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["checkpoint"] for one in told] == ["clean", "leaky"]
    assert "row-3" in told[1]["rows"]
    assert command_line(["persons", str(folder), "--person", "row-3"]) == 0
    sheet = capsys.readouterr().out
    assert "**leaky** SHOWN" in sheet
    assert "**clean** NOT SHOWN" in sheet
    german = ["persons", str(folder), "--person", "row-3", "--language", "de"]
    assert command_line(german) == 0
    assert "**leaky** GEZEIGT" in capsys.readouterr().out
    assert command_line(["persons", str(folder), "--share", "1"]) == 2
    assert command_line(["persons", str(folder), "--person", "nobody"]) == 2


def test_the_files_of_names_are_private_and_hold_no_figure(tmp_path):
    facts = manifest_facts().model_copy(update={"ids_identify": True})
    folder = made(tmp_path, manifest=facts)
    report = read_report(folder)
    row = Row(audit="mia", checkpoint="leaky", metric="auc", value=0.8)
    with_rows = report.model_copy(update={"results": [row]})
    write_report(with_rows, folder, formats=("named",))
    rows = pd.read_csv(folder / "tables" / "named_rows.csv")
    assert [*rows] == ["checkpoint", "row", "task", "false_share"]
    assert {*rows["false_share"]} == {0.1}
    # Ids that hold identifiers are numbers.
    assert not rows["row"].str.contains("-").any()
    mode = (folder / "tables" / "named_sources.csv").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
