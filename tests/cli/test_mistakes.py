"""Typical mistakes: each is one line that says what to do, without loading a model."""

import json
import shlex
from pathlib import Path

import pytest
from made_reports import made_report

from spark_audit.audits import about, audit_names
from spark_audit.audits.known import ALL_AUDITS
from spark_audit.cli.data_commands import DATA_COMMANDS
from spark_audit.cli.main import REPORT_COMMANDS, run
from spark_audit.cli.manifest_commands import MANIFEST_COMMANDS
from spark_audit.report.folder import folder_of, write_report

MISTAKES = [
    # options and commands
    ("all --chkpt runs/er", 2, "Unknown option: --chkpt. Did you mean --ckpt? see sp"),
    ("all --chkpt=runs/er", 2, "Unknown option: --chkpt. Did you mean --ckpt? see sp"),
    ("all --replicatex 9", 2, "Unknown option: --replicatex. Did you mean --replicate"),
    ("all --skkip nll", 2, "Unknown option: --skkip. Did you mean --skip? see spark-a"),
    ("all --fail_if x", 2, "Unknown option: --fail_if; see spark-audit all --help"),
    ("verify reports/one --chkpt a", 2, "Unknown option: --chkpt. Did you mean --ckpt"),
    ("inspect --chkpt runs/er", 2, "--chkpt. CKPT stands without an option; see spark"),
    ("inspect runs/er --ckpt=x", 2, "--ckpt. CKPT stands without an option; see spark"),
    ("gate --folder reports/one", 2, "FOLDER stands without an option; see spark-aud"),
    ("inspect --basee runs/er", 2, "Unknown option: --basee. Did you mean --base? see"),
    ("all --ckpt", 2, "the value of --ckpt is missing; see spark-audit all --help"),
    ("gate", 2, "FOLDER is missing; see spark-audit gate --help"),
    ("mached --ckpt runs/er", 2, '"mached". Did you mean "matched"? see spark-audit -'),
    ("manifest biuld", 2, 'Did you mean "build"? see spark-audit manifest --help'),
    ("all runs/er", 2, "--ckpt is missing; see spark-audit all --help"),
    ("all --ckpt runs/er --skip noize", 2, 'Did you mean "noise"?'),
    (
        "matched --ckpt runs/er --device gpu",
        2,
        "unknown device 'gpu'; give auto, cpu or cuda[:N]",
    ),
    ("matched --ckpt runs/er --dtype float23", 2, 'Did you mean "float32"?'),
    ("matched --ckpt runs/er --batch-size 0", 2, "Give auto or N"),
    ("matched --ckpt runs/er --seed zero", 2, "--seed"),
    ("matched --ckpt runs/er --seed -1", 2, "--seed"),
    ("matched --ckpt runs/er --replicates 1", 2, "give no interval"),
    ("matched --ckpt ''", 2, "is empty; give a path"),
    ("inspect ''", 2, "CKPT: is empty; give a path"),
    ("inspect runs/er --base ''", 2, "--base: is empty; give a path"),
    ("manifest build --base '' --data d.jsonl -o x.json", 2, "--base: is empty; give"),
    ("manifest build --base runs/er --data '' -o x.json", 2, "--data: is empty; give"),
    ("all --ckpt runs/er -o ''", 2, "--output: is empty; give a path"),
    ("gate ''", 2, "FOLDER: is empty; give a path"),
    ("data import '' --task t -o x.jsonl", 2, "SOURCE: is empty; give a path"),
    # several models, or a name, where one path is asked for
    ("all --ckpt runs/er --base 'x=[runs/er,runs/er]'", 2, ": is a list, and one mode"),
    ("all --ckpt runs/er --base '[runs/er]'", 2, ": is a list, and one model is asked"),
    ("inspect runs/er --base runs/er,runs", 2, ": is a list, and one model is asked"),
    ("inspect runs/er --base 'ru*/er'", 2, ": is a pattern, and one model is asked"),
    ("inspect runs/er --base x=runs/er", 2, "has the name 'x' in front, and a path"),
    ("inspect x=runs/er", 2, "a path alone is asked for here; give runs/er"),
    ("inspect /no/such/place", 2, "/no/such/place"),
    ("", 2, "no command was given"),
    ("matched --ckpt runs/er --quantize int5", 2, "did you mean 'int8'?"),
    ("matched --ckpt runs/er --preset papper", 2, 'Did you mean "paper"?'),
    # paths, and things in each other's place
    ("inspect runs/err", 2, "no such file or folder; did you mean runs/er?"),
    ("all --ckpt runs/err --dry-run", 2, "did you mean runs/er?"),
    ("all --ckpt a=runs/er a=runs/er@1", 2, "name each checkpoint differently"),
    ("data inject d.jsonl -o rep.sh", 2, "rep.sh: is a file; name a folder"),
    ("all --ckpt 'm/i=runs/er'", 2, "'m/i' is no name for a checkpoint; write a nam"),
    ("all --ckpt runs/er runs/er", 2, "given twice; leave one out"),
    ("all --ckpt a=runs/er b=./runs/er", 2, "the same checkpoint is given twice"),
    ("manifest show manifests/smal.json", 2, "did you mean manifests/small.json?"),
    ("manifest show runs/er", 2, "runs/er: is a folder, not a manifest"),
    ("all --ckpt runs/er --manifest runs/er", 2, "runs/er: is a folder, not a manife"),
    ("all --ckpt notes.txt", 3, "as a list of checkpoints, and line 1 names no check"),
    ("all --ckpt self.txt", 3, "line 1 names no checkpoint that exists; write one pa"),
    ("all --ckpt empty.txt", 3, "and holds no path; write one path per line, relative"),
    ("manifest show d.jsonl", 2, "is no SPARK Audit manifest"),
    ("manifest show reports/one/report.json", 2, "is no SPARK Audit manifest"),
    ("inspect manifests/small.json", 3, "is no checkpoint; give a folder with"),
    ("inspect reports/one", 3, "is no checkpoint; give a folder with config.json"),
    (
        "manifest build --base runs/er --data t.csv -o x.json",
        2,
        "`spark-audit data import",
    ),
    ("manifest build --base b --data d.jsnl -o x.json", 2, "did you mean d.jsonl?"),
    ("report manifests/small.json", 2, "is a file; give a report folder"),
    ("report reports/onne", 2, "no such file or folder; did you mean reports/one?"),
    ("report reports/one --format htm", 2, "did you mean 'html'?"),
    ("compare reports/one", 2, "needs at least two reports; give DIR DIR"),
    ("compare reports/one reports/one/", 2, "reports/one: is given twice; leave one"),
    ("data inject d.jsonl ./d.jsonl -o out", 2, "d.jsonl: is given twice; leave one"),
    (
        "all --ckpt a --audits nll",
        2,
        "Unknown option: --audits; see",
    ),
    ("gate runs/er", 2, "is a folder without report.json; give a report folder"),
    ("all --ckpt https://h/x", 2, "needs --model NAME"),
    ("all --ckpt http://h:1/x?k=secret", 2, "with a password, a query or a fragment"),
    (
        "gate reports/one reports/two",
        2,
        "unexpected 'reports/two': a value stands behind",
    ),
    ("gate reports/none", 2, "no such file or folder; did you mean reports/one?"),
    ("gate begun", 2, "its audit has not finished; run its command again"),
    ("compare reports/one begun", 2, "begun: holds scores and no report.json: its au"),
    ("gate reports/one --against begun", 2, "for rules on what rose or fell, and ther"),
    # wrong paths of manifests and data, each with all that the command asks for
    ("manifest build --base runs/er --data none -o x.json", 2, "none: there is no suc"),
    (
        "manifest build --base runs/er --data d.jsonl none -o x.json",
        2,
        "none: there is",
    ),
    ("manifest build --base runs/er --data runs -o x.json", 2, "holds no .jsonl file"),
    ("manifest build --base runs/er --data d.jsonl -o runs", 2, "give NAME.json, or"),
    ("manifest build --base runs/er --data d.jsonl -o d.jsonl", 2, "is an input; give"),
    ("data import none.csv --task t --split train -o x.jsonl", 2, "none.csv: there is"),
    ("data import runs --task t --split train -o x.jsonl", 2, "or give one file"),
    ("data import t.csv --task t --split train -o t.csv", 2, "is an input; give anoth"),
    # one code for a path that does not exist, whatever it should be
    ("all --ckpt a=runs/er b=runs/err", 2, "runs/err: there is no such file or folder"),
    ("all --ckpt a=[runs/er,runs/err]", 2, "runs/err: there is no such file or folder"),
    ("nll --ckpt runs/er --base runs/err", 2, "did you mean runs/er?"),
    ("nll --ckpt runs/er --manifest none.json", 2, "none.json: there is no such file"),
    ("nll --ckpt runs/er --tokenizer runs/err", 2, "did you mean runs/er?"),
    ("utility --ckpt runs/er --data dd.jsonl", 2, "did you mean d.jsonl?"),
    ("all --ckpt runs/er --relearn dd.jsonl", 2, "did you mean d.jsonl?"),
    ("all --ckpt runs/er --config sett.toml", 2, "did you mean sets.toml?"),
    ("mia --ckpt runs/er --scores-rows d.jso", 2, "did you mean d.jsonl?"),
    ("inspect runs/er --base runs/err", 2, "did you mean runs/er?"),
    ("data annotate dd.jsonl -o x.jsonl", 2, "did you mean d.jsonl?"),
    ("data inject d.jsonl none/here -o out", 2, "none/here: there is no such file or"),
    ("manifest verify manifests/smal.json", 2, "did you mean manifests/small.json?"),
    ("manifest build --base runs/err --data d.jsonl -o x.json", 2, "mean runs/er?"),
    ("compare reports/one reports/on", 2, "did you mean reports/one?"),
    ("report reports/one --against reports/on", 2, "did you mean reports/one?"),
    ("verify reports/one --attestation at.json", 2, "at.json: there is no such file"),
    ("verify reports/one --ckpt runs/err", 2, "did you mean runs/er?"),
    ("persons reports/one --manifest none.json", 2, "none.json: there is no such"),
    ("epsilon reports/one --claims 1 --run runs/err", 2, "did you mean runs/er?"),
    ("manifest show t.csv/x", 2, "t.csv/x: there is no such file or folder"),
    # an option that takes one value, given twice
    ("all --ckpt runs/er --baseline a --baseline b", 2, "--baseline is given twice"),
    ("all --ckpt runs/er --base=a --base=b", 2, "--base is given twice, and takes"),
    ("all --ckpt runs/er -o a --output b", 2, "--output is given twice, and takes"),
    ("all --ckpt runs/er --shard 0/2 --shard 1/2", 2, "--shard is given twice"),
    ("all --ckpt runs/er --rematched --no-rematched", 2, "--no-rematched is given tw"),
    ("all --ckpt runs/er --config a.toml --config b.toml", 2, "--config is given tw"),
    ("mia --ckpt runs/er --scores-file a=x --scores-file b=y", 2, "--scores-file is"),
    ("gate reports/one --against a --against b", 2, "--against is given twice"),
    ("data import t.csv --task a --task b -o x.jsonl", 2, "--task is given twice"),
    # rules of the gate
    ("gate reports/one --fail-if 'mia.acu.loss.low > 1'", 2, "did you mean 'auc'?"),
    ("gate reports/one --fail-if 'claim >= memroy'", 2, "did you mean 'memory'?"),
    ("gate reports/one --fail-if 'nll.nll.pii.low < 1 for err'", 2, "mean 'er'?"),
    ("gate reports/one --fail-if 'mia auc > 0.5'", 2, "is no rule; write AUDIT.METRIC"),
    # data
    ("data import tt.csv --task t -o x.jsonl", 2, "did you mean t.csv? (a data set on"),
    ("data import t.csv --task t -o x.jsonl --format cvs", 2, 'Did you mean "csv"?'),
    (
        "data import t.csv --task t -o x.jsonl --map prompt=text response=label",
        2,
        "give `--split train` or `--split test`",
    ),
    (
        "data import t.csv --task t -o x.jsonl --split train --template 'T: {txt}' "
        "--map response=label",
        2,
        "is not a column (columns: text, label)",
    ),
    (
        "data import t.csv --task t -o x.jsonl --split train --map prompt=txt "
        "response=lbl",
        2,
        "is not a column (columns: text, label)",
    ),
    (
        "data import u.csv --task t -o x.jsonl --split train",
        2,
        "(columns: mine, yours)",
    ),
    (
        "data import empty.csv --task t -o x.jsonl",
        2,
        "holds no rows; give a file with rows:",
    ),
    (
        "data import empty.jsonl --task t -o x.jsonl",
        2,
        "is empty; give a file with row",
    ),
    ("data import head.csv --task t -o x.jsonl", 2, "holds no rows; give a file with "),
    ("data import t.csv --task t --split train -o runs", 2, "is a folder; name a file"),
    ("data annotate d.jsonl -o runs", 2, "name a file, such as -o runs/rows.jsonl"),
    ("data import t.csv --task t -o x.jsonl --map text", 2, "write it as FIELD=COLUMN"),
    ("data inject d.jsonl -o out --doses '1;4'", 2, "1;4"),
    ("nll --ckpt x=s3://b/x --manifest m.json", 2, "--ckpt: is no path on this mach"),
    ("nll --ckpt [gs://b/x,c]", 2, "copy from or to it, or mount it"),
    ("nll --ckpt runs/er --base s3://b/x", 2, "--base: is no path on this machine"),
    ("nll --ckpt runs/er --manifest s3://b/m.json", 2, "--manifest: is no path on"),
    ("nll --ckpt runs/er -o s3://b/x", 2, "--output: is no path on this machine"),
    ("nll --ckpt runs/er -o http://b/x", 2, "--output: is no path on this machine"),
    ("manifest build --base b --data s3://b/d -o m.json", 2, "--data: is no path "),
    ("data annotate gs://b/d.jsonl -o x.jsonl", 2, ": is no path on this machine; "),
    ("gate s3://b/r", 2, ": is no path on this machine; give a folder"),
]


WRONG_PATHS = {
    "inspect": "gone",
    "data import": "gone --task t --split train -o x.jsonl",
    "data annotate": "gone -o x.jsonl",
    "data inject": "gone -o out",
    "data supervision": "gone --base runs/er",
    "manifest build": "--base runs/er --data gone -o x.json",
    "manifest show": "gone",
    "manifest verify": "gone",
    "manifest export": "gone -o x.json",
    "manifest rows": "gone -o x",
    "report": "gone",
    "persons": "gone",
    "compare": "reports/one gone",
    "verify": "gone",
    "epsilon": "gone --claims 1",
    "gate": "gone",
}
"""Command -> options with a path that does not exist."""

WRONG_PATHS_OF_AUDITS = (
    "--ckpt gone",
    "--ckpt runs/er --base gone",
    "--ckpt runs/er --manifest gone",
    "--ckpt runs/er --data gone",
)
"""Options of each audit with a path that does not exist."""

AUDITS_OF_FILES = [name for name in audit_names() if about(name).of_files]
AUDIT_COMMANDS = [*audit_names(), ALL_AUDITS]
AUDITS_OF_CHECKPOINTS = [name for name in AUDIT_COMMANDS if name not in AUDITS_OF_FILES]

WRONG_PATHS_OF_FILES = ("gone", "t.csv --manifest gone")
"""Arguments of an audit of files with a path that does not exist."""


@pytest.fixture(scope="module")
def work_folder(tmp_path_factory) -> Path:
    """A folder with a run, a manifest, a report and a table."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "runs" / "er").mkdir(parents=True)
    (folder / "runs" / "er" / "run.json").write_text("{}")
    manifest = folder / "manifests" / "small.json"
    manifest.parent.mkdir()
    manifest.write_text('{"kind": "spark-audit-manifest"}')
    (folder / "rep.sh").touch()
    (folder / "sets.toml").touch()
    (folder / "begun" / "scores").mkdir(parents=True)
    (folder / "t.csv").write_text("text,label\na,b\n")
    (folder / "u.csv").write_text("mine,yours\na,b\n")
    (folder / "head.csv").write_text("text,label\n")
    (folder / "notes.txt").write_text("Run 3 was the best.\n")
    (folder / "self.txt").write_text("self.txt\n")
    for name in ("empty.txt", "empty.csv", "empty.jsonl"):
        (folder / name).touch()
    row = {"id": "1", "task": "t", "prompt": "Who?", "response": " I"}
    (folder / "d.jsonl").write_text(json.dumps(row | {"split": "train"}) + "\n")
    report = made_report("er")
    write_report(report, folder / "reports" / "one", formats=("json",))
    return folder


@pytest.mark.parametrize(("line", "code", "message"), MISTAKES)
def test_a_mistake_is_a_line_to_act_on(
    line, code, message, work_folder, monkeypatch, capsys
):
    monkeypatch.chdir(work_folder)
    assert run(shlex.split(line)) == code
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("spark-audit: error: ")
    assert err.count("\n") == 1
    assert not [*work_folder.glob("*:")]


def test_every_command_that_reads_a_path_is_listed_with_a_wrong_one():
    groups = {"data": DATA_COMMANDS, "manifest": MANIFEST_COMMANDS}
    grouped = {f"{group} {name}" for group in groups for name in groups[group]}
    assert set(WRONG_PATHS) == {"inspect", *grouped, *REPORT_COMMANDS}


@pytest.mark.parametrize("command", [*WRONG_PATHS, *AUDIT_COMMANDS])
def test_a_path_that_does_not_exist_has_one_code_in_all_commands(
    command, work_folder, monkeypatch, capsys
):
    monkeypatch.chdir(work_folder)
    lines: tuple[str, ...] = WRONG_PATHS_OF_AUDITS
    if command in WRONG_PATHS:
        lines = (WRONG_PATHS[command],)
    elif command in AUDITS_OF_FILES:
        lines = WRONG_PATHS_OF_FILES
    for line in lines:
        assert run([*command.split(), *line.split()]) == 2, line
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "gone" in err
    assert not (work_folder / "gone").exists()


@pytest.mark.parametrize("command", AUDITS_OF_CHECKPOINTS)
def test_a_misspelt_option_is_answered_with_the_right_one(command, capsys):
    assert run([command, "--chkpt", "runs/er"]) == 2
    assert "--ckpt?" in capsys.readouterr().err


def test_a_file_of_a_report_stands_for_it_and_a_folder_inside_does_not(work_folder):
    report_folder = work_folder / "reports" / "one"
    deep = report_folder / "figures" / "roc.png"
    deep.parent.mkdir()
    deep.touch()
    assert {
        folder_of(path) for path in (report_folder, report_folder / "report.json", deep)
    } == {report_folder}
    assert folder_of(work_folder) == work_folder
    # A gate of a report that is not there must not judge the one around it, and what
    # is asked for in a folder inside must not be written around it.
    assert folder_of(report_folder / "gone") == report_folder / "gone"
    assert folder_of(deep.parent) == deep.parent
    run_file = report_folder / "runs" / "mine" / "run.json"
    run_file.parent.mkdir(parents=True)
    run_file.touch()
    assert folder_of(run_file) == run_file


@pytest.mark.parametrize("command", ["report", "gate", "verify", "persons"])
def test_a_folder_inside_a_report_is_refused_with_the_report(
    command, work_folder, capsys
):
    report_folder = work_folder / "reports" / "one"
    inside = report_folder / "not-finished"
    inside.mkdir(exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in report_folder.rglob("*")}
    assert run([command, str(inside)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"give {report_folder}" in err
    assert {
        path: path.stat().st_mtime_ns for path in report_folder.rglob("*")
    } == before


def test_paths_are_read_as_a_shell_would_have_made_them(work_folder, monkeypatch):
    monkeypatch.setenv("HOME", str(work_folder))
    below = work_folder / "below"
    below.mkdir(exist_ok=True)
    monkeypatch.chdir(below)
    assert run(["report", "~/reports/one", "--format", "json"]) == 0
    assert run(["data", "annotate", "~/d.jsonl", "-o", "~/below/x.jsonl"]) == 0


def test_a_file_of_settings_is_read_by_every_command(work_folder, monkeypatch, capsys):
    monkeypatch.chdir(work_folder)
    (work_folder / "gate.toml").write_text('fail_if = ["claim >= memory"]\n')
    assert run(["gate", "reports/one", "--config", "gate.toml", "--json"]) == 1
    assert [check["rule"] for check in json.loads(capsys.readouterr().out)] == [
        "claim >= memory"
    ]
    (work_folder / "report.toml").write_text('format = "csv"\n')
    assert run(["report", "reports/one", "--config", "report.toml"]) == 0
    assert "results.csv" in capsys.readouterr().out
