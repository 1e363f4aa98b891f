"""JUnit and SARIF of the gate, which tools of a pipeline read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

from spark_audit.errors import visible
from spark_audit.report.gate.judge import RuleOutcome
from spark_audit.report.writers.page_templates import environment
from spark_audit.results import grouped

SarifObject: TypeAlias = dict[str, Any]

SARIF_LEVELS = {"tripped": "error", "missing": "warning"}
"""State -> level under which a log names it; other states are in no result."""


def junit(outcomes: Sequence[RuleOutcome], *, name: str) -> str:
    """Return one suite per rule and one case per checkpoint: failed where it tripped.

    Cases that a rule leaves out are skipped, and so are those with a missing figure if
    that is allowed.

    Parameters
    ----------
    name
        Name of all suites, such as the report's folder.
    """
    template = environment(visible=visible).get_template("junit.xml")
    outcomes_by_rule = grouped(outcomes, lambda outcome: outcome.rule)
    return template.render(name=name, found=outcomes, rules=outcomes_by_rule)


def sarif(outcomes: Sequence[RuleOutcome], *, name: str) -> SarifObject:
    """Return a log of what tripped or lacks a figure, in SARIF 2.1.0 (OASIS, 2020).

    Parameters
    ----------
    name
        Name of the report's folder.
    """
    rule_texts = list(dict.fromkeys(visible(outcome.rule) for outcome in outcomes))
    results = []
    for outcome in outcomes:
        if outcome.state in SARIF_LEVELS:
            rule_number = rule_texts.index(visible(outcome.rule))
            results.append(_sarif_result(outcome, rule_number, name))

    # Results name rules by number, so rules without a violation are listed, too.
    rules = [_sarif_rule(number, text) for number, text in enumerate(rule_texts)]
    driver = {"name": "spark-audit", "rules": rules}

    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _sarif_rule(number: int, text: str) -> SarifObject:
    """Return a rule as SARIF describes it."""
    # GitHub's code scanning asks for both descriptions and for help.
    return {
        "id": f"gate/{number}",
        "help": {"text": "Rules are explained by `spark-audit gate --help`."},
        "shortDescription": {"text": text},
        "fullDescription": {"text": text},
    }


def _sarif_result(
    outcome: RuleOutcome, rule_number: int, folder_name: str
) -> SarifObject:
    """Return the outcome of a rule on one checkpoint, placed in the report."""
    # Code scanning asks for a line, too.
    physical_location = {
        "artifactLocation": {"uri": quote(f"{folder_name}/report.json")},
        "region": {"startLine": 1},
    }
    message = visible(f"{outcome.whom}: {outcome.rule}: {outcome.detail}")
    return {
        "ruleId": f"gate/{rule_number}",
        "level": SARIF_LEVELS[outcome.state],
        "message": {"text": message},
        "locations": [
            {
                "physicalLocation": physical_location,
                "logicalLocations": [{"name": outcome.whom}],
            }
        ],
    }
