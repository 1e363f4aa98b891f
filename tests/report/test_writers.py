"""Every format shows the figures of report.json, and no identifier unless asked."""

import json
from importlib.resources import files
from typing import Any

import jsonschema
import pandas as pd
import pytest
from made_reports import figure, guard, made_report, said

from spark_audit import sentences
from spark_audit.cli.main import run as command_line
from spark_audit.errors import InputError, OutputError
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.folder import read_report, write_report
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.writers.markdown import LONGEST, render
from spark_audit.results import (
    Finding,
    Report,
)


def row(checkpoint: str, metric: str, value: float | None = 0.25, **more: Any) -> Any:
    columns = {"unit": "nats", "clusters": 60, "n": 0, **more}
    return figure(checkpoint, f"matched|{metric}", value, **columns)


def found(text: str) -> Finding:
    return said("matched", "x", "moved", text)


def detection(text: str = "it leaks") -> Finding:
    return said("matched", "x", "memory", f"x: {text}")


@pytest.fixture
def report() -> Report:
    return made_report(
        "a|b",
        versions={"numpy": "2"},
        findings=[found("a|b: something was found.")],
        results=[
            row("a|b", "nll_pii", value=3.5),
            row("a|b", "delta_sel", mde=0.31, n=9),
            row("a|b", "delta_sel", variant="span-weighted"),
            row("a|b", "delta_sel", None, group="type:SSN", note="no span"),
        ],
        contrasts=[
            row("a|b", "did", baseline="c", p=0.0312, p_adjusted=0.0456),
        ],
        guards=[guard("match quality", "is bad")],
        caveats=["Nothing else can be concluded."],
        tables={"balance": [{"covariate": "length", "smd_after": 0.01, "note": ""}]},
    )


def test_json_is_read_back_unchanged_and_fits_its_schema(report, tmp_path):
    write_report(report, tmp_path, formats=["json"])
    assert read_report(tmp_path) == read_report(str(tmp_path)) == report
    assert write_report(report, tmp_path)
    again = read_report(tmp_path)
    assert again.model_copy(update={"files": {}}) == report
    assert again.files["csv"][:2] == [
        "tables/balance.csv",
        "tables/contrasts.csv",
    ]
    schema = json.loads((files("spark_audit") / "schemas/report.json").read_text())
    jsonschema.validate(json.loads((tmp_path / "report.json").read_text()), schema)


REGENERATE = """run, from the repository root:
python -c "import json; from spark_audit.results import Report as R;
print(json.dumps(R.model_json_schema(mode='serialization'), indent=1, sort_keys=True))
" > spark_audit/schemas/report.json"""


def test_shipped_schema_is_that_of_the_code_and_describes_every_property():
    shipped = json.loads((files("spark_audit") / "schemas/report.json").read_text())
    assert shipped == Report.model_json_schema(mode="serialization"), REGENERATE
    assert shipped["$id"].endswith("report:5")
    for definition in (shipped, *shipped["$defs"].values()):
        assert all(
            property_schema.get("description")
            for property_schema in definition["properties"].values()
        )


SQL = set(
    "all alter and any as asc between by case change check column condition "
    "constraint create cross cume_dist current database default delete desc "
    "describe distinct drop else empty end except exists explain false fetch "
    "first_value for foreign from full function group grouping groups having if "
    "ignore in index inner insert interval into is join key keys lag lead left "
    "level like limit lines match natural not null of on or order outer over "
    "partition percent_rank primary range rank read references repeat replace right "
    "row row_number rows schema select set signal system table then to trigger true "
    "union unique update usage use using values when where window with ".split()
)
"""Words that PostgreSQL, SQLite, MySQL 8 or Oracle reserve."""


def test_csv_is_tidy_and_no_column_is_a_word_of_sql(report, tmp_path):
    of_task = report.contrasts[0].model_copy(
        update={"group_kind": "task", "group_value": "reviews"}
    )
    matrix = {"checkpoint": "x", "stage": 1, "after": "a", "a": 0.5, "b": 0.25}
    records: dict[str, list[dict[str, object]]] = {
        "accuracy_matrix": [matrix],
        "matched_sensitivity": [
            {"setting": "v", "checkpoint": "x", "change_value": 0.5}
        ],
        "extract_prompts": [{"checkpoint": "x", "prompt": "test", "variant": "t1"}],
    }
    fields = {"contrasts": [*report.contrasts, of_task], "tables": records}
    fields["origins"] = {"accuracy_matrix": "utility"}
    write_report(report.model_copy(update=fields), tmp_path, formats=["csv"])
    tables = {p.stem: pd.read_csv(p) for p in tmp_path.glob("tables/*.csv")}
    assert not {c.lower() for table in tables.values() for c in table} & SQL
    assert tables["accuracy_matrix"][["task", "accuracy"]].to_numpy().tolist() == [
        ["a", 0.5],
        ["b", 0.25],
    ]
    assert tables["contrasts"]["group_kind"].iloc[-1] == "task"
    assert tables["contrasts"]["group_value"].iloc[-1] == "reviews"
    # Of a whole checkpoint there is no stage that it stands after.
    del matrix["after"]
    write_report(report.model_copy(update=fields), tmp_path, formats=["csv"])
    whole = pd.read_csv(tmp_path / "tables" / "accuracy_matrix.csv")
    assert whole[["task", "accuracy"]].to_numpy().tolist() == [["a", 0.5], ["b", 0.25]]


def test_what_a_report_says_of_itself_writes_nothing_elsewhere(report, tmp_path):
    text = report.model_dump()
    for name in ("../evil", "/evil", "x y/z", "results", "", ".."):
        text["tables"] = {name: [{"a": 1}]}
        (tmp_path / "report.json").write_text(json.dumps(text))
        with pytest.raises(InputError, match="field tables: "):
            read_report(tmp_path)
    (tmp_path / "report.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=f"^{tmp_path / 'report.json'}"):
        read_report(tmp_path)
    with pytest.raises(InputError, match=f"^{tmp_path / 'report.json'}: "):
        read_report(tmp_path / "report.json")


@pytest.mark.parametrize("name", ["tables", "figures", "scores"])
def test_no_link_leads_out_of_the_folder(name, report, tmp_path):
    outside = tmp_path / "theirs"
    folder = tmp_path / "report"
    for path in (outside, folder):
        path.mkdir()
    (outside / "kept.csv").write_text("kept")
    (folder / name).symlink_to(outside)
    with pytest.raises(InputError, match=f"{name}: "):
        write_report(report, folder)
    assert [path.name for path in outside.iterdir()] == ["kept.csv"]
    assert [path.name for path in folder.iterdir()] == [name]
    # A linked file is not written to, and the folder itself may be a link.
    (folder / name).unlink()
    (folder / "report.md").symlink_to(outside / "kept.csv")
    (tmp_path / "latest").symlink_to(folder)
    write_report(report, tmp_path / "latest", formats=("csv", "md"))
    assert (outside / "kept.csv").read_text() == "kept"
    assert (folder / "tables" / "results.csv").is_file()


def test_formats_of_an_earlier_report_are_written_again(report, tmp_path):
    tables = tmp_path / "tables"
    report_of_more = report.model_copy(update={"tables": {"further": [{"a": 1}]}})
    write_report(report_of_more, tmp_path, formats=["csv", "latex", "md", "json"])
    further = (tables / "further.csv").read_bytes()
    for name in ("mine.csv", "mine.tex"):
        (tables / name).write_text("kept")

    # The same report again, in one format: the others still tell of it.
    write_report(report_of_more, tmp_path, formats=["md"])
    assert (tables / "further.csv").exists()
    assert (tmp_path / "report.md").exists()

    # Another report on the same: no format goes, and no table is lost.
    write_report(report, tmp_path, formats=["csv", "json"])
    assert {path.name for path in tables.glob("*.csv")} == {
        *("results.csv", "contrasts.csv", "guards.csv", "balance.csv", "mine.csv")
    }
    assert (tables / "mine.tex").read_text() == "kept"
    kept = {path.name[:8]: path for path in (tables / "previous").iterdir()}
    assert kept["further-"].read_bytes() == further
    written_again = read_report(tmp_path).files
    assert {"csv", "latex", "md"} == {*written_again}
    write_report(report, tmp_path / "fresh", formats=["json", "md"])
    fresh = (tmp_path / "fresh" / "report.md").read_bytes()
    assert (tmp_path / "report.md").read_bytes() == fresh


def test_files_of_a_report_about_something_else_go(report, tmp_path):
    other = report.model_copy(update={"settings": {"seed": 1}})
    write_report(report, tmp_path, formats=["csv", "md", "json"])
    (tmp_path / "mine.md").write_text("kept")
    again = report.model_copy(update={"settings": {"seed": 2}})
    write_report(other, tmp_path / "new", formats=["csv", "md", "json"])
    write_report(again, tmp_path / "new", formats=["csv", "json"])
    assert not (tmp_path / "new" / "report.md").exists()
    assert (tmp_path / "mine.md").read_text() == "kept"


def test_pages_beside_another_report_keep_those_of_it(report, tmp_path):
    other = report.model_copy(update={"caveats": ["Something else."]})
    write_report(report, tmp_path, formats=["json", "md"])
    page = (tmp_path / "report.md").read_bytes()

    write_report(other, tmp_path, formats=["md"])

    (kept,) = (tmp_path / "previous").iterdir()
    assert kept.read_bytes() == page
    assert (tmp_path / "report.md").read_bytes() != page


@pytest.mark.parametrize(
    "name",
    ["../theirs.csv", "tables/../../theirs.csv", "/etc/passwd", "report.json", "a.csv"],
)
def test_a_report_names_files_of_its_folder_only(name, report, tmp_path):
    """Somebody else's report.json would have files deleted."""
    folder = tmp_path / "report"
    write_report(report, folder, formats=["json"])
    for path in (tmp_path / "theirs.csv", folder / "a.csv"):
        path.write_text("kept")
    foreign = json.loads((folder / "report.json").read_text())
    foreign["files"] = {"csv": [name]}
    (folder / "report.json").write_text(json.dumps(foreign))
    with pytest.raises(InputError, match="field files: "):
        read_report(folder)
    write_report(report, folder, formats=["json"])
    assert (tmp_path / "theirs.csv").read_text() == "kept"
    assert (folder / "a.csv").read_text() == "kept"


def test_a_named_file_that_is_a_folder_or_a_link_does_no_harm(report, tmp_path):
    folder = tmp_path / "report"
    named = {"csv": ["tables/folder.csv", "tables/link.csv"]}
    other_report = report.model_copy(update={"files": named, "caveats": ["Another."]})
    (folder / "tables" / "folder.csv").mkdir(parents=True)
    (tmp_path / "theirs").write_text("kept")
    (folder / "tables" / "link.csv").symlink_to(tmp_path / "theirs")
    (folder / "report.json").write_text(other_report.model_dump_json())
    write_report(report, folder, formats=["json"])
    assert (tmp_path / "theirs").read_text() == "kept"
    assert (folder / "tables" / "folder.csv").is_dir()
    assert not (folder / "tables" / "link.csv").is_symlink()


def test_a_report_that_is_a_link_out_of_its_folder_is_not_read(report, tmp_path):
    write_report(report, tmp_path / "theirs", formats=["json"])
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "report.json").symlink_to(tmp_path / "theirs/report.json")
    with pytest.raises(OutputError, match=f"^{tmp_path / 'folder' / 'report.json'}: "):
        read_report(tmp_path / "folder")


@pytest.mark.parametrize(
    ("table", "record", "message"),
    [
        ("mia_roc", {"checkpoint": "x", "fpr": 1}, "lacks variant"),
        (
            "noise_draws",
            {"checkpoint": True},
            "holds something else than text or a number",
        ),
        ("canary_by_dose", {"checkpoint": "x", "part": "p", "canaries": None}, "dose"),
    ],
)
def test_tables_that_no_audit_leaves(table, record, message, report, tmp_path):
    write_report(report, tmp_path, formats=["json"])
    report_json = json.loads((tmp_path / "report.json").read_text())
    report_json["tables"] = {table: [record]}
    (tmp_path / "report.json").write_text(json.dumps(report_json))
    with pytest.raises(InputError, match=message):
        read_report(tmp_path)


def test_what_is_of_nothing_says_why_where_figures_of_few_are_withheld(report):
    why = {"checkpoint": "x", "spans": 0, "clusters": 0, "found": None, "note": "why"}
    few = why | {"spans": 3, "clusters": 3, "found": 2}
    tables = {"extract_prompts": [why, few, why | {"found": 2}]}
    none, *others = disclosed(report.model_copy(update={"tables": tables})).tables[
        "extract_prompts"
    ]
    assert none == why
    for record in others:
        assert record["found"] is None
        assert record["note"].startswith("withheld: fewer than 5 clusters")


def markdown_of(report: Report) -> str:
    """Return report.md of a report."""
    return render(PreparedReport(report))


def test_markdown_renders_no_tags(report):
    told_report = report.model_copy(
        update={"findings": [found("x: <img src=a> but p < 0.05")]}
    )
    assert "&lt;img src=a> but p < 0.05" in markdown_of(told_report)


LEFT_OUT = ("pooled", "no_tables", "no_terms", "tests", "detections")


def left_out(text: str) -> list[str]:
    """Keys of the lines by which Markdown says what it leaves out."""
    lines = {key: sentences.render(f"markdown.left_out.{key}") for key in LEFT_OUT}
    return [key for key, line in lines.items() if line in text]


def test_markdown_fits_an_issue_and_says_what_it_leaves_out(report):
    def grown(tasks: int, checkpoints: int) -> Report:
        rows = [
            row(f"c{i}", "delta_sel", group=group, value=i + 0.5)
            for i in range(checkpoints)
            for group in ("pooled", *(f"task:t{k}" for k in range(tasks)))
        ]
        return report.model_copy(update={"results": rows, "contrasts": []})

    short = markdown_of(grown(3, 2))
    assert not left_out(short)
    assert "matched: by task" in short
    longer = markdown_of(grown(800, 2))
    assert len(longer) <= LONGEST
    assert left_out(longer) == ["pooled"]
    assert "matched: by task" not in longer
    assert "matched: pooled over training rows" in longer
    longest = markdown_of(grown(0, 700))
    assert left_out(longest) == ["detections"]
    assert "matched: pooled over training rows" not in longest


def test_markdown_of_many_findings_fits_an_issue(report):
    """Definitions go first, then exploratory results, then tests that found nothing."""

    def rendered(**counts: int) -> str:
        findings = [detection()]
        for family, count in counts.items():
            for number in range(count):
                text = f"x: {family} {number} {'y' * 200}"
                finding = said("matched", "x", "nothing_shown", text)
                findings.append(finding.model_copy(update={"family": family}))
        return markdown_of(report.model_copy(update={"findings": findings}))

    assert "## Definitions" in rendered(exploratory=100)
    without_terms = next(
        text
        for count in range(200, 400, 5)
        if "## Definitions" not in (text := rendered(exploratory=count))
    )
    assert left_out(without_terms) == ["no_terms"]
    assert "exploratory 100" in without_terms

    without_exploratory = rendered(exploratory=400, primary=100)
    assert "exploratory 1 " not in without_exploratory
    assert "primary 99 " in without_exploratory

    detections_alone = rendered(exploratory=400, primary=400)
    assert "primary 1 " not in detections_alone
    for text in (without_terms, without_exploratory, detections_alone):
        assert len(text) <= LONGEST
        assert "it leaks" in text
        assert left_out(text)


def test_markdown_leaves_no_detection_out_however_long_it_is(report):
    long_detection = detection("y" * 70_000)
    text = markdown_of(report.model_copy(update={"findings": [long_detection]}))
    assert "y" * 70_000 in text


@pytest.mark.parametrize(
    "forged", [{"says": "no.such"}, {"says": "matched.memory", "facts": {"memory": 1}}]
)
def test_a_report_whose_sentence_cannot_be_rendered_is_refused(
    forged, report, tmp_path
):
    write_report(report, tmp_path, formats=["json"])
    path = tmp_path / "report.json"
    content = json.loads(path.read_text())
    content["findings"][0] |= forged
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"^{path}: "):
        read_report(tmp_path)


def test_the_page_is_opened_in_a_browser_if_asked(tmp_path, monkeypatch, capsys):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    write_report(made_report("base"), tmp_path / "r", formats=("json",))
    call = ["report", str(tmp_path / "r"), "--open"]
    assert command_line([*call, "--format", "md"]) == 2
    error_output = capsys.readouterr().err
    assert "--open: " in error_output
    assert "html" in error_output
    assert opened == []
    assert command_line([*call, "--format", "html"]) == 0
    assert opened == [(tmp_path / "r" / "report.html").resolve().as_uri()]


def test_the_page_does_not_change_with_what_else_is_written(tmp_path):
    """Else a report whose tables were written after its page would not be verified."""
    rows = [
        figure("base", f"rank|top1_rate|pii|type:T{seed}", 0.5) for seed in range(80)
    ]
    leak = said("matched", "a", "memory", "memory.", p=0.01, family="primary")
    leaking_report = made_report("base", "a", results=rows, findings=[leak])
    folder = tmp_path / "r"
    write_report(leaking_report, folder, formats=("html", "json"))
    page_alone = (folder / "report.html").read_bytes()
    assert b'href="tables/results.csv"' in page_alone
    write_report(read_report(folder), folder, formats=("csv", "dossier"))
    write_report(read_report(folder), folder, formats=("html",))
    assert (folder / "report.html").read_bytes() == page_alone
