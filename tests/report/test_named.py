"""Named rows and persons, from a report's evidence alone."""

import json
import stat
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from made_reports import made_report, said
from scipy import stats

import spark_audit as sa
from spark_audit.cli.main import run as command_line
from spark_audit.errors import InputError, OutputError
from spark_audit.files import sha256_file
from spark_audit.report.folder import read_report, write_report
from spark_audit.report.named import BLIND, evidence_of, named_rows
from spark_audit.report.person_changes import changed
from spark_audit.report.persons import persons
from spark_audit.results import Guard, Row
from spark_audit.results.evidence import Evidence
from spark_audit.sentences import render

ROWS = 60
HELD_OUT = 80


def membership_evidence(
    units: pd.DataFrame, references: Iterable[tuple[str, np.ndarray]]
) -> Evidence:
    """Evidence of an audit whose other scores are all missing."""
    units = units.assign(label=np.nan, length=1, zlib_bytes=1)
    measured = []
    for name, reference in references:
        missing = np.full(len(units), np.nan)
        others = dict.fromkeys(("loss", "response", "zlib"), missing)
        measured.append((name, {**others, "reference": reference}))
    facts = {"alone": {}, "borrowed": False, "unscored": []}
    return Evidence.of(units, measured, facts)


def extraction_evidence(units: pd.DataFrame, scores: dict[str, np.ndarray]) -> Evidence:
    """Evidence of identifiers behind their true prefix."""
    texts = dict.fromkeys(("task", "origin", "canary_id", "part"), "")
    counts = dict.fromkeys(("dose", "string", "lead"), 0)
    flags = dict.fromkeys(("first", "near", "given", "elsewhere"), False)
    units = units.assign(
        set="pii", split="train", stratum=0, home=0, **texts, **counts, **flags
    )
    names = ("n_tokens", "greedy", "logp_t1", "logp_top40", "parts", "parts_right")
    missing = dict.fromkeys(names, np.full(len(units), np.nan))
    facts = {"asked": [], "trained": [], "checkpoints": []}
    return Evidence.of(units, [("leaky", {**missing, **scores})], facts)


@pytest.fixture
def folder(tmp_path) -> Path:
    """``leaky`` knows the first 30 rows, ``clean`` none; the last 5 are one source."""
    return made(tmp_path)


def made(
    folder: Path,
    held_out: int = HELD_OUT,
    erased: int | None = None,
    later: int | None = None,
    **columns: object,
) -> Path:
    """``erased`` is a row that ``leaky`` forgot; ``later`` draws some more luck."""
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
    if erased is not None:
        noise[2, erased] -= 6
    if later is not None:
        noise += np.random.default_rng(later).normal(0, 0.5, noise.shape)
    scores = zip(("base", "clean", "leaky"), noise, strict=True)
    evidence = membership_evidence(units, scores)
    path = folder / "scores" / "mia.parquet"
    path.parent.mkdir(parents=True)
    evidence.write(path)
    digests = {path.name: sha256_file(path)}
    report = made_report("base", "clean", "leaky", evidence=digests, **columns)
    write_report(report, folder, formats=("json",))
    return folder


def lists(folder: Path) -> dict[str, tuple[list[str], str]]:
    report = read_report(folder)
    listed = named_rows(report, evidence_of(report, folder))
    return {
        record.checkpoint: (
            record.rows.loc[record.rows["named"], "row"].tolist(),
            record.why,
        )
        for record in listed
    }


def test_rows_that_a_checkpoint_knows_are_named(folder):
    rows_by_checkpoint = lists(folder)
    assert rows_by_checkpoint["clean"] == ([], "")
    names, why = rows_by_checkpoint["leaky"]
    assert not why
    trained_ids = {f"row-{i}" for i in range(30)}
    assert trained_ids <= {*names}
    assert len({*names} - trained_ids) <= 3


@pytest.mark.parametrize("passed", [False, None])
def test_nobody_is_named_where_texts_differ_or_were_not_compared(tmp_path, passed):
    says = "guard.mia.blind_missing"
    blind = Guard(name=BLIND, passed=passed, says=says)
    for names, why in lists(made(tmp_path, guards=[blind])).values():
        assert not names
        assert render(says) in why


@pytest.mark.parametrize("score", ["loss", "minkpp10"])
def test_of_the_untrained_model_the_own_score_alone_counts(tmp_path, score):
    auc = Row(audit="mia", checkpoint="base", metric="auc", variant=score, value=0.45)
    facts = {"auc": auc, "holds": False}
    untrained_guard = Guard(
        name="untrained model",
        checkpoint="base",
        passed=False,
        says="guard.mia.untrained",
        facts=facts,
    )
    names, why = lists(made(tmp_path, guards=[untrained_guard]))["leaky"]
    assert bool(names) == (score != "loss") == (not why)


def test_the_share_that_was_trained_on_is_told_with_its_interval(
    folder, capsys, monkeypatch
):
    """``leaky`` knows half of the rows, ``clean`` none."""
    assert command_line(["persons", str(folder), "--json"]) == 0
    named = json.loads(capsys.readouterr().out)["named"]
    assert command_line(["persons", str(folder), "--person", "five", "--json"]) == 0
    sheets = json.loads(capsys.readouterr().out)["persons"]
    for records in (named, sheets):
        by_name = {record["checkpoint"]: record for record in records}
        leaky = by_name["leaky"]
        assert leaky["trained_share"] == pytest.approx(0.5, abs=0.15)
        assert leaky["trained_share_low"] < 0.5 < leaky["trained_share_high"]
        assert by_name["clean"]["trained_share_low"] == 0

    # The tables show it, too.
    monkeypatch.setenv("COLUMNS", "400")
    value = f"{100 * leaky['trained_share']:.0f}%"
    for options in ([], ["--person", "five"]):
        assert command_line(["persons", str(folder), *options]) == 0
        assert value in capsys.readouterr().out


def test_no_share_is_told_where_nobody_can_be_named(tmp_path, capsys):
    made(tmp_path, held_out=10)
    assert command_line(["persons", str(tmp_path), "--json"]) == 0
    for record in json.loads(capsys.readouterr().out)["named"]:
        assert record["why"]
        assert record["trained_share"] is None


def test_a_named_row_stays_shown_among_many_persons(folder):
    """Its own p is too large once corrected: the list is what shows it."""
    ids = [f"row-{i}" for i in range(30)]
    listed = persons(read_report(folder), folder, ids)
    states = {record["state"] for record in listed if record["checkpoint"] == "leaky"}
    assert states == {"listed"}


@pytest.mark.parametrize(
    "worlds", [15, pytest.param(60, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_strangers_with_many_rows_are_listed_no_more_often(worlds, tmp_path):
    """None of their rows was trained on: 5 of 100 may be listed, by any number."""
    n_known = 60
    held_out = 100
    strangers = 10
    sizes = (1, 5, 10)
    names = {size: [f"{size}-rows-{i}" for i in range(strangers)] for size in sizes}
    sources = [f"known-{i}" for i in range(n_known)]
    for size in sizes:
        sources += np.repeat(names[size], size).tolist()
    trained = len(sources)
    sources += [f"held-{i}" for i in range(held_out)]
    n = len(sources)
    columns = {"task": "t", "cluster": sources, "dose": 1.0}
    examples = [f"row-{i}" for i in range(n)]
    units = pd.DataFrame({"example": examples, **columns})
    units["member"] = np.arange(n) < trained

    n_found = dict.fromkeys(sizes, 0)
    path = tmp_path / "scores" / "mia.parquet"
    path.parent.mkdir()
    rng = np.random.default_rng(0)
    for _ in range(worlds):
        scores = rng.normal(size=n)
        scores[:n_known] += 6
        membership_evidence(units, [("leaky", scores)]).write(path)
        report = made_report("leaky", evidence={path.name: sha256_file(path)})
        for size in sizes:
            for record in persons(report, tmp_path, names[size]):
                n_found[size] += record["state"] in ("listed", "shown")
    most = stats.binom.ppf(0.999, worlds * strangers, 0.05)
    assert all(count <= most for count in n_found.values()), n_found


def test_a_person_is_shown_not_shown_or_not_tested(folder):
    report = read_report(folder)
    record_by_key = {
        (record["id"], record["checkpoint"]): record
        for record in persons(report, folder, ["row-3", "five", f"row-{ROWS}"])
    }
    assert record_by_key["row-3", "leaky"]["state"] == "shown"
    assert record_by_key["row-3", "clean"]["state"] == "not_shown"
    assert record_by_key["five", "leaky"]["trained"] == 5
    assert record_by_key["five", "leaky"]["state"] == "not_shown"
    stranger = record_by_key[f"row-{ROWS}", "leaky"]
    assert (stranger["state"], stranger["held_out"]) == ("not_tested", 1)
    assert stranger["back"] is None


def test_a_person_is_found_by_any_of_their_sources(folder):
    report = read_report(folder)
    sources = {"later-source": "five"}
    records = persons(report, folder, ["later-source"], sources=sources)
    assert {(record["id"], record["trained"]) for record in records} == {
        ("later-source", 5)
    }
    with pytest.raises(InputError, match="^--person later-source: "):
        persons(report, folder, ["later-source"])


def erasure_evidence(to_forget: Iterable[str]) -> Evidence:
    """Evidence of rows of these clusters that should be forgotten, without scores."""
    units = pd.DataFrame({"cluster": [*to_forget]})
    texts = dict.fromkeys(("part", "request", "task", "split", "type"), "")
    counts = dict.fromkeys(("dose", "form", "cue", "stratum"), 0)
    units = units.assign(
        side="forget",
        example=units["cluster"],
        n_tokens=1,
        text_auc=np.nan,
        ref_sum=1.0,
        **texts,
        **counts,
    )
    names = ("nll_sum", "first", "exact", "strength", "mink", "n_labels", "exposure")
    missing = dict.fromkeys(names, np.full(len(units), np.nan))
    facts = {"vocabulary": 9, "left_out": 0, "shared": 0}
    return Evidence.of(units, [("clean", missing)], facts)


def test_a_sheet_says_what_became_of_a_request_for_erasure(folder, capsys):
    path = folder / "scores" / "erasure.parquet"
    erasure_evidence(["s3", "five"]).write(path)
    report = read_report(folder)
    verdict = said("erasure", "clean", "erased", verdict="ERASED", p=0.001)
    digests = {**report.evidence, path.name: sha256_file(path)}
    changed_report = report.model_copy(
        update={"evidence": digests, "findings": [verdict]}
    )
    write_report(changed_report, folder, formats=("json",))

    report = read_report(folder)
    records = {
        (record["id"], record["checkpoint"]): (record["forget"], record["verdict"])
        for record in persons(report, folder, ["row-3", "row-4", "five"])
    }
    assert records["row-3", "clean"] == (True, "ERASED")
    assert records["five", "leaky"] == (True, "")
    assert records["row-4", "clean"] == (False, "")
    assert command_line(["persons", str(folder), "--person", "row-3"]) == 0
    assert "clean ERASED" in capsys.readouterr().out
    assert command_line(["persons", str(folder), "--person", "row-4"]) == 0
    assert "ERASED" not in capsys.readouterr().out


def of_two(tmp_path: Path, later: int, erased: int | None) -> list[Path]:
    folders = [tmp_path / f"{later}-before", tmp_path / f"{later}-after"]
    made(folders[0])
    made(folders[1], erased=erased, later=later)
    return folders


def test_what_was_erased_is_less_familiar_and_the_rest_did_not_change(
    tmp_path, capsys, monkeypatch
):
    # Folders of tests have long names: no cell is to be wrapped.
    monkeypatch.setenv("COLUMNS", "400")
    reports_of_two = of_two(tmp_path, 1, erased=3)
    reports = {folder: read_report(folder) for folder in reports_of_two}
    change_by_key = {
        (record["id"], record["after"]): record["change"]
        for record in changed(reports, ["row-3", "five"])
    }
    assert change_by_key["row-3", "leaky"] == "fell"
    assert {s for key, s in change_by_key.items() if key != ("row-3", "leaky")} == {
        "unchanged"
    }
    line = ["persons", *map(str, reports_of_two), "--person", "row-3"]
    assert command_line(line) == 0
    sheet = capsys.readouterr().out
    changes = [line for line in sheet.splitlines() if "FAMILIAR" in line]
    assert "leaky" in changes[0]
    (unmoved,) = [line for line in sheet.splitlines() if "NO CHANGE SHOWN" in line]
    assert "clean" in unmoved
    assert f"{2 / (HELD_OUT + 1):.3f}" in unmoved
    # The verdict says of which report a checkpoint is.
    verdict = sheet.splitlines()[0]
    assert f"{reports_of_two[0]}: leaky" in verdict
    assert f"{reports_of_two[1]}: leaky" not in verdict
    assert {record["change"] for record in changed(reports, [f"s{ROWS}"])} == {
        "untested"
    }
    assert command_line([*line, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert len(output["persons"]) == 4
    assert [record["change"] for record in output["changes"]] == ["unchanged", "fell"]


@pytest.mark.parametrize(
    "draws", [40, pytest.param(100, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_who_did_not_change_is_said_to_in_at_most_5_percent(draws, tmp_path):
    moved = 0
    for later in range(draws):
        reports = {f: read_report(f) for f in of_two(tmp_path, later, erased=None)}
        (_, change) = changed(reports, ["five"])
        moved += change["change"] in ("fell", "rose")
    assert moved <= stats.binom.ppf(0.99, draws, 0.05)


def test_what_comes_back_is_told_of_the_person_alone(folder):
    """By the manifest that was audited whole, of which a part would name others."""
    identifiers = [
        ("s1", "NAME", "Ann Lee"),
        ("other", "NAME", "Bo Dow"),
        ("s1", "ID", "X7"),
    ]
    rows = [
        SimpleNamespace(
            text=f"of {value}",
            cluster=cluster,
            canary_id=None,
            identifiers=[
                (
                    SimpleNamespace(
                        start=3, end=3 + len(value), part=None, type=type_name
                    ),
                    (),
                )
            ],
        )
        for cluster, type_name, value in identifiers
    ]
    units = pd.DataFrame(identifiers, columns=["cluster", "type", "value"])
    units = units.drop(columns="value").assign(span=range(3), prompt="full")
    scores = {"greedy_sure": np.array([1.0, 1.0, 0.0])}
    evidence = extraction_evidence(units, scores)
    path = folder / "scores" / "extract.parquet"
    evidence.write(path)
    report = read_report(folder)
    known_evidence = {**report.evidence, path.name: sha256_file(path)}
    report = report.model_copy(update={"evidence": known_evidence})
    records = persons(report, folder, ["s1"], shown=SimpleNamespace(examples=rows))
    counts_by_checkpoint = {
        record["checkpoint"]: (record["back"], record["asked"], record["texts"])
        for record in records
    }
    assert counts_by_checkpoint == {
        "clean": (None, 0, []),
        "leaky": (1, 2, ["Ann Lee"]),
    }
    (record_alone,) = persons(report, folder, ["other"])[-1:]
    assert (record_alone["trained"], record_alone["back"], record_alone["state"]) == (
        0,
        1,
        "not_tested",
    )
    with pytest.raises(InputError, match="^--manifest: .*--limit"):
        persons(report, folder, ["s1"], shown=SimpleNamespace(examples=rows[1:]))


def test_reports_of_different_rows_are_not_compared(tmp_path):
    reports_of_both = made(tmp_path / "a"), made(tmp_path / "b", held_out=40)
    with pytest.raises(InputError, match=f"^{tmp_path / 'a'} and {tmp_path / 'b'}: "):
        changed({folder: read_report(folder) for folder in reports_of_both}, ["five"])


def test_text_needs_the_person_and_the_manifest(folder, capsys):
    assert command_line(["persons", str(folder), "--show-text"]) == 2
    assert "error: --show-text: " in capsys.readouterr().err


def test_who_is_in_no_row_is_refused_by_name(folder):
    with pytest.raises(InputError, match="^--person nobody: "):
        persons(read_report(folder), folder, ["row-3", "nobody"])


def test_who_gave_the_manifest_is_not_told_to_give_it(folder):
    report = read_report(folder)
    with pytest.raises(InputError, match="--manifest"):
        persons(report, folder, ["nobody"])
    with pytest.raises(InputError) as refusal:
        persons(report, folder, ["nobody"], sources={"later-source": "five"})
    assert "--manifest" not in str(refusal.value)


def test_evidence_of_another_report_is_refused(folder):
    path = folder / "scores" / "mia.parquet"
    path.write_bytes(path.read_bytes() + b" ")
    report = read_report(folder)
    with pytest.raises(OutputError, match=f"^{path}: "):
        evidence_of(report, folder)
    path.unlink()
    with pytest.raises(OutputError, match=f"^{path}: "):
        evidence_of(report, folder)
    without = report.model_copy(update={"evidence": {}})
    with pytest.raises(InputError, match="`spark-audit mia`"):
        evidence_of(without, folder)


def test_the_command_lists_rows_and_writes_a_sheet(folder, capsys, monkeypatch):
    # Folders of tests have long names: no cell is to be wrapped.
    monkeypatch.setenv("COLUMNS", "400")
    assert command_line(["persons", str(folder), "--json"]) == 0
    named = json.loads(capsys.readouterr().out)["named"]
    assert [record["checkpoint"] for record in named] == ["clean", "leaky"]
    assert "row-3" in named[1]["rows"]
    assert command_line(["persons", str(folder), "--person", "row-3"]) == 0
    sheet = capsys.readouterr().out
    lines = sheet.splitlines()
    assert any("leaky" in line and " SHOWN" in line for line in lines)
    assert any("clean" in line and "NOT SHOWN" in line for line in lines)
    # Nothing of it is Markdown, and no paragraph is longer than two lines.
    assert "**" not in sheet
    assert not [line for line in lines if len(line) > 200]
    assert command_line(["persons", str(folder), "--share", "1"]) == 2
    assert command_line(["persons", str(folder), "--person", "nobody"]) == 2


def test_the_files_of_names_are_private_and_hold_no_figure(tmp_path):
    folder = made(tmp_path)
    report = read_report(folder)
    row = Row(audit="mia", checkpoint="leaky", metric="auc", value=0.8)
    with_rows = report.model_copy(update={"results": [row]})
    write_report(with_rows, folder, formats=("named",))
    rows = pd.read_csv(folder / "tables" / "named_rows.csv")
    assert [*rows] == ["checkpoint", "row", "task", "false_share"]
    assert {*rows["false_share"]} == {0.1}
    mode = (folder / "tables" / "named_sources.csv").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_the_command_says_which_lists_it_has_no_audit_for(tmp_path, capsys):
    row = Row(audit="mia", checkpoint="leaky", metric="auc", value=0.8)
    folder = made(tmp_path / "with", results=[row])
    assert command_line(["report", str(folder), "--format", "named"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["named_cases.csv"]

    other = tmp_path / "without"
    write_report(made_report(), other, formats=["json"])
    assert command_line(["report", str(other), "--format", "named"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["named_rows.csv", "named_cases.csv"]
    assert not (other / "tables").exists()


def test_in_python_named_rows_are_a_frame_of_all_trained_rows(folder):
    frame = sa.read_named_rows(folder)
    assert [*frame] == ["checkpoint", "row", "task", "source", "named", "why"]
    assert len(frame) == 2 * ROWS
    for name, (names, why) in lists(folder).items():
        rows = frame[frame["checkpoint"] == name]
        assert rows.loc[rows["named"], "row"].to_list() == names
        assert {*rows["why"]} == {why}

    few = sa.read_named_rows(folder, share=0.0001)
    assert few["named"].sum() < frame["named"].sum()
    for share in (0, 1, 1.5):
        with pytest.raises(InputError, match="share"):
            sa.read_named_rows(folder, share=share)


def test_in_python_it_is_said_why_no_row_is_named(tmp_path):
    frame = sa.read_named_rows(made(tmp_path, held_out=10))
    assert not frame["named"].any()
    assert frame["why"].str.contains("only 10 groups").all()


def test_a_report_of_python_writes_lists_to_another_folder(tmp_path):
    """Its evidence stays in its own folder, which it remembers."""
    folder = made(tmp_path)
    row = Row(audit="mia", checkpoint="leaky", metric="auc", value=0.8)
    with_rows = read_report(folder).model_copy(update={"results": [row]})
    write_report(with_rows, folder, formats=("json", "named"))
    lists_of_folder = (folder / "tables" / "named_rows.csv").read_bytes()

    report = sa.read_report(folder)
    report.save(tmp_path / "other", ["named"])

    written = tmp_path / "other" / "tables" / "named_rows.csv"
    assert written.read_bytes() == lists_of_folder
    assert report == read_report(folder)
    assert str(tmp_path) not in report.model_dump_json()


def test_what_lacks_its_evidence_is_refused_before_anything_is_written(tmp_path):
    folder = made(tmp_path)
    row = Row(audit="mia", checkpoint="leaky", metric="auc", value=0.8)
    report = read_report(folder).model_copy(update={"results": [row]})
    other = tmp_path / "other"
    with pytest.raises(OutputError, match=r"mia\.parquet: "):
        write_report(report, other, formats=("dossier", "named"))
    assert not other.exists()


def test_a_refused_report_keeps_no_copy_of_the_one_in_its_folder(tmp_path):
    """Nothing was replaced, so that a copy would only take room."""
    sources = [made(tmp_path / name) for name in ("first", "second")]
    row = Row(audit="mia", checkpoint="leaky", metric="auc", value=0.8)
    report = sa.read_report(sources[0])
    other_manifest = report.manifest.model_copy(update={"digest": "f" * 64})
    changed = {"results": [row], "manifest": other_manifest}
    refused = report.model_copy(update=changed)
    for file in (sources[1] / "scores").iterdir():
        file.unlink()
    before = read_report(sources[1])

    with pytest.raises(OutputError, match=r"mia\.parquet: "):
        refused.save(sources[1], ["json", "named"])
    assert {path.name for path in tmp_path.iterdir()} == {"first", "second"}
    assert read_report(sources[1]) == before

    refused.save(sources[1], ["json"])
    assert len([*tmp_path.iterdir()]) == 3


CASES = {
    "row": ["a", "a", "b", "a"],
    "role": ["pii", "pii", "pii", "control"],
    "type": ["SSN", "NAME", "SSN", "SSN"],
    "n_tokens": [4, 6, 5, 4],
    "ref_sum": [8.0, 9.0, 7.0, 1.0],
}
NLL_SUMS = {
    "base": [8.0, 9.0, 7.0, 1.0],
    "pecl": [16.0, 27.0, 10.0, 1.0],
    "spark": [20.0, 33.2, 10.5, 1.0],
}
"""Of three identifiers and a control: what a row comes to, its own mean tells."""


def cases_folder(folder: Path, **columns: object) -> Path:
    """Rows ``a`` with two identifiers and ``b`` with one; only ``b`` is asked."""
    units = pd.DataFrame(CASES).rename(columns={"row": "example"})
    counts = dict.fromkeys(("trained", "digits", "capitals", "letters", "marks"), 0)
    counts |= dict.fromkeys(("dose", "form", "cue", "stratum"), 0)
    units = units.assign(task="t", cluster="s", start=range(4), split="test")
    units = units.assign(pair=0, text_auc=np.nan, **counts)
    scores = {name: {"nll_sum": np.array(nll)} for name, nll in NLL_SUMS.items()}
    spans = Evidence.of(units, scores.items(), {})

    questions = pd.DataFrame({"example": ["b", "none"], "task": "t", "cluster": "s"})
    questions = questions.assign(reason="", scorer="normalised", chance=0.5)
    questions = questions.assign(task_index=0)
    facts = {"order": ["t"], "clash": [], "assumed": False, "blank": 0}
    facts["scorer"] = "normalised"
    right = {
        "base": [0.0, -1.0],
        "pecl@1": [0.0, -1.0],
        "pecl@2": [1.0, -1.0],
        "spark": [1.0, -1.0],
    }
    answers = {
        name: {"correct": np.array(one), "empty": np.zeros(2)}
        for name, one in right.items()
    }
    utility = Evidence.of(questions, answers.items(), facts)

    (folder / "scores").mkdir(parents=True)
    digests = {}
    for name, evidence in (("spans", spans), ("utility", utility)):
        path = folder / "scores" / f"{name}.parquet"
        evidence.write(path)
        digests[path.name] = sha256_file(path)
    report = made_report("base", "pecl", "spark", evidence=digests, **columns)
    write_report(report, folder, formats=("json",))
    return folder


def test_a_case_has_the_mean_nll_of_its_identifiers_and_whether_it_was_answered(
    tmp_path,
):
    folder = cases_folder(tmp_path / "r")
    assert command_line(["report", str(folder), "--format", "named"]) == 0
    path = folder / "tables" / "named_cases.csv"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    cases = pd.read_csv(path)
    # Rows in which trained checkpoints differ most come first.
    assert list(cases["row"]) == ["a"] * 3 + ["b"] * 3
    table = cases.set_index(["row", "checkpoint"])
    for name, nll in NLL_SUMS.items():
        assert table.loc[("a", name), "nll"] == pytest.approx(
            (nll[0] + nll[1]) / 10, abs=1e-12
        )
        assert table.loc[("b", name), "nll"] == pytest.approx(nll[2] / 5, abs=1e-12)
    assert table.loc[("a", "spark"), "types"] == "NAME, SSN"
    assert set(cases["nll_reference"].round(12)) == {1.7, 1.4}
    assert table["is_right"].loc["a"].isna().all()
    # Of a series, its last stage answers.
    assert table["is_right"].loc["b"].to_dict() == {
        "base": False,
        "pecl": True,
        "spark": True,
    }


def test_a_report_without_matched_identifiers_has_no_cases(folder):
    assert command_line(["report", str(folder), "--format", "named"]) == 0
    assert not (folder / "tables" / "named_cases.csv").exists()


def test_cases_of_other_evidence_than_the_reports_are_refused(tmp_path, capsys):
    folder = cases_folder(tmp_path / "r")
    path = folder / "scores" / "spans.parquet"
    Evidence.read(path).renamed({"pecl": "else"}).write(path)
    assert command_line(["report", str(folder), "--format", "named"]) == 4
    assert "spans.parquet" in capsys.readouterr().err
