"""What a report of somebody else calls things steers nothing that shows it."""

import csv
import re

import pytest
from made_reports import (
    checkpoint,
    figure,
    guard,
    made_report,
    manifest_facts,
    said,
)

from spark_audit.cli.show import show_report
from spark_audit.errors import InputError, visible
from spark_audit.messages import progress, say
from spark_audit.report.folder import read_report, write_report
from spark_audit.results import (
    Report,
)
from spark_audit.terminal.console import show_facts, tell_json

STEERING = "\x1b]0;owned\x07\x1b[2J\x00\x9b31m\u202egnp\u2066\r"
MARKUP = "<img src=x onerror=a()>![i](//e/i.png)[click](//e)[r][r] www.e.example @e #1"
NAME = f"={STEERING}{MARKUP}`|`\\"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def evil() -> Report:
    return made_report(
        command=["spark-audit", NAME],
        created=NAME,
        versions={NAME: NAME},
        settings={NAME: [NAME]},
        manifest=manifest_facts(NAME),
        checkpoints=[
            checkpoint(NAME, format=NAME, dtype=NAME, notes=[NAME, f"# {NAME}"])
        ],
        findings=[said(NAME, NAME, "memory", f"# {NAME}: said.")],
        results=[
            figure(NAME, "matched|", metric=metric, unit=NAME, note=NAME)
            for metric in ("delta_sel", "nll_pii", NAME)
        ],
        contrasts=[figure(NAME, "matched|did", baseline=NAME)],
        guards=[guard(NAME, NAME, of=NAME)],
        caveats=[f"# {NAME}", f"1. {NAME}"],
        tables={"some": [{NAME: NAME, "x": NAME}]},
    )


def test_text_says_what_is_hidden_in_it():
    assert visible("plain, ümlaut 中") == "plain, ümlaut 中"
    assert visible("a\x1b[2J\u202eb\n") == "a\\x1b[2J\\u202eb\\n"
    assert visible("a\nb\x00", keep="\n") == "a\nb\\x00"
    assert visible("\ud800") == "\\ud800"


def test_nothing_steers_the_terminal(evil, capsys):
    show_report(evil)
    show_facts({NAME: NAME})
    show_facts({NAME: NAME}, as_json=True)
    tell_json(evil.model_dump(mode="json"))
    say(str(InputError(NAME, where=NAME, fix=NAME)))
    with progress() as show:
        show(NAME, 1, 1)
    output = "".join(capsys.readouterr())
    assert "owned" in output
    assert not CONTROL.search(output)


def test_every_format_is_written_and_shows_names_as_text(evil, tmp_path):
    formats = ["json", "csv", "md", "latex", "html", "figures", "dossier"]
    for path in write_report(evil, tmp_path, formats=formats):
        if path.suffix not in (".png", ".pdf"):
            assert not CONTROL.search(path.read_text(encoding="utf-8")), path.name
    again = read_report(tmp_path)
    assert again.model_copy(update={"files": {}}) == evil
    # Nothing in a code span is markup.
    text = re.sub(r"(?<!\\)`[^`]*`", "", (tmp_path / "report.md").read_text())
    assert "<img" not in text
    # Escaped, a bracket begins no link and no image.
    assert not re.search(r"(?<!\\)\]\(|\]\[", text)
    for line in text.splitlines():
        assert not re.match(r"(-|\d+\.) (#|\d+\.) ", line)
    for path in (tmp_path / "tables").glob("*.csv"):
        with path.open() as file:
            for line in csv.reader(file):
                for cell in line:
                    assert not cell.startswith(("=", "+", "@")), path.name
