"""What a gate came to, as a pipeline's own tools read it: JUnit XML, annotations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from spark_audit.errors import visible
from spark_audit.report.gate import NOBODY, Finding

LEVELS = {"tripped": "error", "missing": "warning"}
"""States that stand at a run of GitHub Actions, and as what."""
_ESCAPED = {"%": "%25", "\r": "%0D", "\n": "%0A"}


def junit(found: Sequence[Finding], *, name: str) -> str:
    """One suite a rule, one case a checkpoint: failed where it tripped.

    Cases whose figure is missing, where that may be, and those that a rule leaves out
    are skipped.

    Parameters
    ----------
    name
        Of all suites, such as the report's folder.
    """
    suites = ElementTree.Element("testsuites", _counts(found, f"spark-audit {name}"))
    for rule in dict.fromkeys(one.rule for one in found):
        mine = [one for one in found if one.rule == rule]
        suite = ElementTree.SubElement(suites, "testsuite", _counts(mine, rule))
        for one in mine:
            case = ElementTree.SubElement(
                suite, "testcase", classname=visible(rule), name=_whom(one)
            )
            what = {"tripped": "failure", "ok": "system-out"}.get(one.state, "skipped")
            told = ElementTree.SubElement(case, what)
            if what == "system-out":
                told.text = visible(one.detail)
            else:
                told.set("message", visible(one.detail))
    ElementTree.indent(suites)
    text = ElementTree.tostring(suites, encoding="unicode", xml_declaration=False)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def for_github(found: Sequence[Finding]) -> Iterator[str]:
    """Workflow commands of GitHub Actions, one a rule that tripped or lacks a figure.

    Format: docs.github.com, "Workflow commands for GitHub Actions".
    """
    for one in found:
        if (level := LEVELS.get(one.state)) is not None:
            title = _escaped(f"spark-audit gate: {_whom(one)}")
            title = title.replace(":", "%3A").replace(",", "%2C")
            yield f"::{level} title={title}::{_escaped(f'{one.rule}: {one.detail}')}"


def _whom(one: Finding) -> str:
    return "no checkpoint" if one.checkpoint == NOBODY else visible(one.checkpoint)


def _counts(found: Sequence[Finding], name: str) -> dict[str, str]:
    states = [one.state for one in found]
    return {
        "name": visible(name),
        "tests": str(len(states)),
        "failures": str(states.count("tripped")),
        "errors": "0",
        "skipped": str(states.count("missing") + states.count("left_out")),
    }


def _escaped(text: str) -> str:
    return "".join(_ESCAPED.get(letter, letter) for letter in visible(text, keep="\n"))
